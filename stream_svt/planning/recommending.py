"""Recommends settings of a monitor for a workload: the candidate with the best F1, averaged over possible workloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

from stream_svt.errors import MisuseError
from stream_svt.planning.model import Forecast, Span, Workload, forecast, thinned
from stream_svt.settings.fields import MAX_ATTEMPTS, Retry, Sweep
from stream_svt.settings.monitors import MonitorSpec

EVEN = 0.005
"""Candidates whose F1 differs by less than this count as equally good: the simplest one is recommended."""

_COARSE = 50
_SHORTLIST = 8
_SPLITS = (Fraction(1, 4), Fraction(1, 2), Fraction(1))
_TOLERATED = (Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(3), Fraction(10))
_ATTEMPTS = (3, 5, 8)
_LIFETIMES = (1, 2, 4)
_ENDS = (-3, 0, 3, 6)
_MAX_WAITING = 1_000_000
_LARGEST_SET = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings and their forecasts.

    Attributes:
        settings: The settings chosen by the planner, as written in the file.
        forecast, others: Forecasts for the central workload and for the other possible ones.
    """

    monitor: MonitorSpec = field(repr=False)
    settings: dict[str, Any]
    forecast: Forecast
    others: tuple[Forecast, ...] = field(default=(), repr=False)

    @property
    def score(self) -> float:
        """F1, averaged over all possible workloads."""
        plans = (self.forecast, *self.others)
        return sum(plan.f1 for plan in plans) / len(plans)

    @property
    def lifetime(self) -> int | None:
        """Queries a series waits for its retries; None without a retry queue."""
        append = self.monitor.append
        return append.lifetime.offsets if isinstance(append, Retry) else None

    @property
    def tolerated(self) -> Fraction | None:
        """False alerts that the correction tolerates; None if the correction has no such number."""
        return getattr(self.monitor.correction_rule(), "false_alerts", None)

    def range(self, figure: str) -> Span:
        """Return least, central and largest value of a figure of the forecast, such as "recall"."""
        values = list(map(attrgetter(figure), (self.forecast, *self.others)))
        return Span(min(values), values[0], max(values))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recommendation:
    """Candidates, best first, and the present settings of the monitor.

    Attributes:
        candidates: The best of those ``tried``, the recommended one first.
        present: The monitor with its present settings; None if not asked for or not possible for this workload.
    """

    workload: Workload
    candidates: tuple[Candidate, ...]
    present: Candidate | None
    tried: int

    def __repr__(self) -> str:
        """Return the recommended candidate, and how many were tried."""
        return f"Recommendation(best={self.best}, tried={self.tried})"

    @property
    def best(self) -> Candidate:
        """The recommended candidate."""
        return self.candidates[0]


def monitor_for(
    *,
    epsilon: Fraction | int | str,
    cutoff: int,
    sensitivity: Fraction | int | str = 1,
    monotonic: bool = False,
    granularity: Fraction | int | str = 1,
    form: str = "svt",
) -> MonitorSpec:
    """Return a monitor with these figures for planning; topic, threshold and bounds are placeholders.

    Raises:
        pydantic.ValidationError: A figure is out of range.
    """
    step = Fraction(granularity)
    return MonitorSpec.model_validate(
        {
            "name": "planned",
            "topic": "queries",
            "mechanism": form,
            "epsilon": str(epsilon),
            "cutoff": cutoff,
            "sensitivity": str(sensitivity),
            "monotonic": monotonic,
            "granularity": str(granularity),
            "bounds": [str(-(2**40) * step), str(2**40 * step)],
            "threshold": 0,
            "correction": "none",
        }
    )


def recommend(
    monitor: MonitorSpec, workload: Workload, others: Sequence[Workload] = (), *, present: bool = False
) -> Recommendation:
    """Return settings for a monitor on a workload, best first.

    The planner chooses the split, the correction with its tolerated false alerts, the retry queue of a stream, and
    the last correction of a finite set. Of a monitor with `detect` all of that follows: it is forecast as it is.

    Args:
        monitor: From a specification, or from `monitor_for`.
        workload: The central workload; see `Belief.central`.
        others: Other possible workloads; see `Belief.spread`.
        present: Whether to forecast the monitor's own settings too.

    Raises:
        MisuseError: Epsilon is too small for a threshold and one top with any settings.
    """

    def candidate_of(monitor: MonitorSpec, settings: dict[str, Any], *loads: Workload) -> Candidate:
        plan, *others = (forecast(monitor, load) for load in loads)
        return Candidate(monitor=monitor, settings=settings, forecast=plan, others=tuple(others))

    if monitor.detect is not None:
        as_it_is = candidate_of(monitor, {}, workload, *others)
        return Recommendation(workload=workload, candidates=(as_it_is,), present=None, tried=1)
    coarse = replace(workload, above=thinned(workload.above, _COARSE), below=thinned(workload.below, _COARSE))
    rough = [candidate_of(*possible, coarse) for possible in _candidates(monitor, workload)]
    if not rough:
        raise MisuseError(
            "epsilon is too small for a threshold and one top: raise epsilon, lower the cutoff, or use a coarser "
            "granularity"
        )
    # The best candidate of each correction, with and without a retry queue.
    kinds = dict[tuple[str, bool], Candidate]()
    for candidate in sorted(rough, key=attrgetter("score"), reverse=True):
        kinds.setdefault((str(candidate.settings["correction"]), candidate.lifetime is None), candidate)
    loads = (workload, *others)
    best = [candidate_of(one.monitor, one.settings, *loads) for one in [*kinds.values()][:_SHORTLIST]]
    best.sort(key=attrgetter("score"), reverse=True)
    first = min((one for one in best if one.score >= best[0].score - EVEN), key=_simplicity)
    best.remove(first)
    shown = present and workload.finite == isinstance(monitor.append, Sweep)
    own = candidate_of(monitor, {}, *loads) if shown else None
    return Recommendation(workload=workload, candidates=(first, *best), present=own, tried=len(rough))


def _simplicity(one: Candidate) -> tuple[Any, ...]:
    """Sort equally good candidates: no queue first, then fewer tests, shorter delay, fewer false alerts."""
    tests, delay = one.monitor.attempts, one.forecast.delay
    return one.lifetime is not None, tests, delay, one.tolerated or 0, -one.score


def _candidates(monitor: MonitorSpec, workload: Workload) -> Iterator[tuple[MonitorSpec, dict[str, Any]]]:
    """Yield monitors whose epsilon pays for one top, with their settings as written in the file."""
    planned = {"split", "expected_queries", "correction", "append"}
    fields = monitor.model_dump(mode="json", by_alias=True, exclude=planned)
    for settings in _settings(monitor, workload):
        try:
            changed = MonitorSpec.model_validate({**fields, **settings})
        except ValueError:
            continue
        yield changed, settings


def _settings(monitor: MonitorSpec, workload: Workload) -> Iterator[dict[str, Any]]:
    width = 1 if monitor.monotonic else 2
    splits = [{"split": _plain(share * monitor.cutoff * width)} for share in _SPLITS]
    size = min(max(workload.queries, 50_000), _LARGEST_SET)
    sweep = {"sweep": {"alerts_per_set": monitor.cutoff, "max_set_size": size}}
    for split in [{}] if monitor.form == "adaptive" else splits:  # adaptive has a closed form
        for end in _ENDS if workload.finite else ():
            yield {**split, "correction": {"annealed": {"end": end}}, "append": sweep}
        for share in () if workload.finite else _TOLERATED:
            correction = {"exposure": {"false_alerts": _plain(share * monitor.cutoff)}}
            stream = {**split, "expected_queries": workload.queries, "correction": correction}
            yield {**stream, "append": "off"}
            for attempts, lifetime in _queues(workload):
                queue = {
                    "attempts": attempts,
                    "lifetime": lifetime,
                    "capacity": min(lifetime, _MAX_WAITING),
                    "every": max(1, lifetime // (attempts - 1)),
                }
                yield {**stream, "append": {"retry": queue}}


def _queues(workload: Workload) -> list[tuple[int, int]]:
    """Return attempts and lifetimes of retry queues: around the drift; without drift, one for comparison."""
    if workload.drift is None:
        return [(_ATTEMPTS[0], max(2, workload.queries // 20))]
    lifetimes = [round(times * workload.drift.queries) for times in _LIFETIMES]
    return [
        (attempts, lifetime)
        for attempts in _ATTEMPTS
        for lifetime in lifetimes
        if attempts <= min(lifetime, MAX_ATTEMPTS)
    ]


def _plain(number: Fraction) -> int | str:
    """Return a number in its shortest form for the file."""
    if number.denominator == 1:
        return int(number)
    return f"{float(number):.4g}" if number < 1000 else f"{float(number):.1f}"
