"""What a monitor of counts shall detect, and the epsilon and split of a run that follow.

An applied version contains these numbers in a separate file (`FILE`). They are solved again only if their problem
(`RunProblem`) has changed, never by another release alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pydantic import BeforeValidator, Field

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.accuracy import reported_margin
from stream_svt.mechanisms.correction import Exposure
from stream_svt.mechanisms.grid import grid_ceil, grid_floor, grid_sensitivity
from stream_svt.mechanisms.sparse_vector import SparseVector, sparse_vector
from stream_svt.settings import fields
from stream_svt.settings.document import Strict, consistent, quote

if TYPE_CHECKING:
    from stream_svt.settings.monitors import MonitorSpec

FOLLOW: Final = (
    *("threshold", "epsilon", "cutoff", "split", "correction", "expected_queries", "on_halt"),
    *("mechanism", "query_noise", "threshold_noise", "append", "resample_every", "max_runs"),
)
"""Keys that follow from `detect`, or would change what a run costs or finds."""
FILE: Final = "\0detect"
"""The file of a version that holds the numbers; no file that a configuration names has a NUL in its name."""
SURE: Final = 0.95
"""A margin counts as detectable if a single test reports it with at least this probability."""
WASTED: Final = 10
"""One alert in so many may be wasted, on average."""
_EPSILONS: Final = [Fraction(f"{digits}e{power}") for power in range(-8, 2) for digits in range(100, 1000)]
"""Candidates for epsilon: numbers of three digits from 1e-6 to 9990, in ascending order."""
_SPLITS: Final = [1.15**power for power in range(-4, 13)]
"""Candidates for the split, divided by the root of the cutoff: the best one is a small multiple of it."""


class DetectOptions(Strict):
    """What shall be detected, in the units of the question; epsilon and all else about a run follow."""

    above: fields.Exact
    """The threshold: values above it are worth an alert."""
    surely_from: fields.Exact
    """The value that a single test reports 95 times in 100. The smaller its distance from `above`, the more an alert
    costs."""
    alerts: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(fields.integer)]
    """Alerts in the time `per`. A period of the datasets has one run, which pays for its part of them, rounded up."""
    per: fields.Duration | None = None
    """The time `per` of the datasets' limit, such as 30d. Default: the life of a dataset, whose limit then has no such
    time."""

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        if (found := self.surely_from) <= self.above:
            yield "surely_from", f"must be more than above ({quote(self.above)}), found {quote(found)}"

    def cutoff(self, period_ms: int | None) -> int:
        """Return the alerts of one run, in a period of so many ms."""
        return -(-self.alerts * (period_ms or 1) // (self.per or period_ms or 1))


class RunProblem(msgspec.Struct, frozen=True):
    """What a run shall find, and for how long: distance and sensitivity in grid steps, alerts and queries."""

    distance: int
    sensitivity: int
    cutoff: int
    queries: int

    def margin(self, epsilon: Fraction) -> tuple[float, Fraction]:
        """Return the least distance in steps that a run with an epsilon finds, and its split."""
        best = math.inf, Fraction(1)
        for part in _SPLITS:
            split = Fraction(f"{math.sqrt(self.cutoff) * part:.3g}")
            try:
                best = min(best, (reported_margin(self.mechanism(epsilon, split), SURE), split))
            except (MisuseError, OverflowError):  # too little for so many alerts
                continue
        return best

    def mechanism(self, epsilon: Fraction, split: Fraction) -> SparseVector:
        """Return the mechanism of the run with an epsilon and a split, as its monitor has it."""
        rule = Exposure(expected_queries=self.queries, false_alerts=Fraction(self.cutoff, WASTED))
        options: Any = {"cutoff": self.cutoff, "sensitivity": self.sensitivity, "correction": rule}
        return sparse_vector(epsilon=epsilon, split=split, monotonic=True, **options)

    def at_length(self, detect: DetectOptions, now_ms: int, then_ms: int) -> RunProblem:
        """Return the problem in periods of another length."""
        queries = max(self.queries * then_ms // now_ms, 1)
        return msgspec.structs.replace(self, cutoff=detect.cutoff(then_ms), queries=queries)

    def affordable(self, pays: Callable[[Fraction, Fraction], bool]) -> tuple[float, int]:
        """Return the least distance in steps within a limit, and the alerts of a run that finds the one wanted."""

        def costs_more(epsilon: Fraction) -> bool:
            found, split = self.margin(epsilon)
            return found < math.inf and not pays(epsilon, split)

        def finds_too_little(cutoff: int) -> bool:
            return msgspec.structs.replace(self, cutoff=cutoff).margin(most)[0] > self.distance

        most = _EPSILONS[max(bisect_left(_EPSILONS, True, key=costs_more) - 1, 0)]
        return self.margin(most)[0], bisect_left(range(1, self.cutoff), True, key=finds_too_little)


@lru_cache(maxsize=1000)
def solve(run: RunProblem) -> tuple[Fraction, Fraction] | None:
    """Return the least epsilon of three digits, and the split, whose run finds the distance.

    None if none does, or if the run has fewer queries than alerts.
    """
    if run.cutoff > run.queries:  # a tenth of the alerts may be false: soon each test would report
        return None
    number = bisect_left(_EPSILONS, True, key=lambda one: run.margin(one)[0] <= run.distance)
    return None if number == len(_EPSILONS) else (_EPSILONS[number], run.margin(_EPSILONS[number])[1])


def problem_of(detect: DetectOptions, cutoff: int, follows: Mapping[str, Any]) -> RunProblem:
    """Return the problem of a monitor with these values of the keys that follow from its source."""
    step = follows["granularity"]
    distance = grid_floor(detect.surely_from, step) - grid_ceil(detect.above, step)
    return RunProblem(
        distance, grid_sensitivity(follows["sensitivity"], step), cutoff, follows["expected_queries"]
    )


_Exact = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,20}(/[1-9][0-9]{0,20})?$")]
"""A positive fraction, as Python writes it."""


class SolvedRun(msgspec.Struct, frozen=True):
    """Epsilon and split of a run, exact, as texts, and the problem that they solve."""

    of: RunProblem
    epsilon: _Exact
    split: _Exact

    @classmethod
    def by(cls, monitor: MonitorSpec, detect: DetectOptions) -> SolvedRun:
        """Return the numbers of a monitor."""
        of = problem_of(detect, monitor.cutoff, dict(monitor))
        return cls(of, str(monitor.epsilon), str(monitor.split))


@dataclass(frozen=True, slots=True)
class Held:
    """The numbers of an applied version, by monitor; if it is the version that is read (``own``), they hold as such."""

    numbers: Mapping[str, SolvedRun] = field(default_factory=dict)
    own: bool = False

    @classmethod
    def by(cls, files: Mapping[str, str], *, own: bool = False) -> Held:
        """Return the numbers in the files of an applied version; ValueError if they cannot be read."""
        return cls(msgspec.json.decode(files.get(FILE, "{}"), type=dict[str, SolvedRun]), own)

    def keys_of(self, name: str, detect: DetectOptions, of: RunProblem) -> dict[str, Any]:
        """Return the keys of a monitor that follow from `detect`; ValueError if no epsilon finds so much."""
        found = self.numbers.get(name)
        if found is None or not (self.own or found.of == of):
            if of.cutoff > of.queries:
                asked = f"a period has {of.queries:,} queries, and {of.cutoff:,} of the alerts"
                raise ValueError(f"{asked}: ask for fewer alerts")
            if (solved := solve(of)) is None:
                raise ValueError(
                    "no epsilon finds so small a distance: ask for a larger one, or fewer alerts"
                )
            found = SolvedRun(of, *map(str, solved))
        exact = {"epsilon": Fraction(found.epsilon), "split": Fraction(found.split)}
        size = {"cutoff": found.of.cutoff, "expected_queries": found.of.queries}
        # A period has one run; an operator or a change may begin another one at once.
        return {"threshold": detect.above, **exact, **size, "on_halt": "stop", "max_runs": "off"}


def held_file(monitors: Iterable[MonitorSpec]) -> dict[str, str]:
    """Return the file of a version that holds the numbers of its monitors; none without any."""
    held = {one.name: SolvedRun.by(one, one.detect) for one in monitors if one.detect is not None}
    return {FILE: msgspec.json.encode(held, order="sorted").decode()} if held else {}
