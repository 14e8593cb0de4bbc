"""What one monitor can do alone with the budget of one dataset, and when a budget will be spent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

from stream_svt.mechanisms import Exposure, accuracy
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.state.plan import RARELY, silent_margin
from stream_svt.planning import detected
from stream_svt.planning.model import report_chances
from stream_svt.planning.sources import rows_per_day
from stream_svt.privacy.loss import Kind, amount_text
from stream_svt.settings import detection
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec, Terms
from stream_svt.settings.fields import AUTO, MaxRuns, Mute, Sweep, duration_text
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sources import SourceSpec
from stream_svt.wording import SHOWN, counted, listed, named


@dataclass(frozen=True, slots=True)
class PaidRuns:
    """Whole runs that a limit pays for, and alerts of the shorter run that the remainder pays for.

    ``at_once`` is the number of runs that may begin within a time, None for any number. ``together`` is the number
    that the limit pays for if each other monitor of the dataset begins as many, None without another monitor.
    """

    runs: int
    last_run_alerts: int
    at_once: MaxRuns | None = field(default=None, compare=False)
    together: int | None = field(default=None, compare=False)

    @classmethod
    def paid(cls, mechanism: SparseVector, units: int) -> PaidRuns:
        """Return the runs that an amount pays for; ``units`` of epsilon."""
        runs, rest = divmod(max(units, 0), mechanism.epsilon_units)
        short = mechanism.shortened(rest)
        return cls(runs, 0 if short is None else short.cutoff)

    @classmethod
    def left(
        cls, monitor: MonitorSpec, dataset: DatasetSpec, others: Collection[MonitorSpec] = ()
    ) -> PaidRuns:
        """Return the runs that the rest of a dataset's budget pays for; ``others`` are its other monitors."""
        terms, kind = dataset.terms, dataset.terms.kind
        affordable = max(terms.limit - terms.spent_before - monitor.reserve_units(kind), 0)
        # Under zCDP a run is charged as a whole; only pure epsilon can pay for a shorter one.
        is_pure, price = kind is Kind.PURE, monitor.run_price(kind)
        paid = cls.paid(monitor.mechanism(), affordable) if is_pure else cls(affordable // price, 0)
        round_price = price + sum(one.run_price(kind) for one in others)
        together = affordable // round_price if others else None
        return replace(paid, at_once=monitor.runs_allowed(terms, 1 + len(others)), together=together)


def reported_margin(monitor: MonitorSpec, chance: float) -> Fraction:
    """Return the least distance above the threshold at which one test reports with at least this probability.

    In real units, for the branch with the lowest bar and the last attempt, whose bar is the lowest.
    """
    last = monitor.attempts - 1
    return accuracy.reported_margin(monitor.mechanism(), chance, last) * monitor.granularity


SURE = detection.SURE
_Alike = tuple[Kind, int, str, tuple[MonitorSpec, ...], MaxRuns | None]


def explain(spec: ApplicationSpec) -> list[str]:
    """Return what the monitors can do with the budgets of their datasets, as lines of text.

    Datasets with the same limit, unit and maximum of runs are described once, and so are monitors of the same datasets:
    a text that differs names its monitors or datasets.
    """
    together: dict[tuple[tuple[str, ...], ...], list[tuple[MonitorSpec, list[dict[str, str]]]]] = {}
    for monitor in spec.monitors:
        groups: dict[_Alike, list[DatasetSpec]] = {}
        neighbours = [(one, one.covers) for one in spec.monitors if one is not monitor]
        for dataset in (one for one in spec.datasets if monitor.covers(one.name)):
            others = tuple(one for one, covers in neighbours if covers(dataset.name))
            at_once = monitor.runs_allowed(dataset.terms, 1 + len(others))
            key = (dataset.terms.kind, dataset.terms.limit, dataset.terms.unit, others, at_once)
            groups.setdefault(key, []).append(dataset)
        names = tuple(tuple(one.name for one in datasets) for datasets in groups.values())
        parts = [_parts(spec, monitor, datasets, key[3]) for key, datasets in groups.items()]
        if parts:
            together.setdefault(names, []).append((monitor, parts))
    return [line for names, found in together.items() for line in ("", *_paragraph(names, found))][1:]


def _paragraph(
    names: tuple[tuple[str, ...], ...], found: list[tuple[MonitorSpec, list[dict[str, str]]]]
) -> list[str]:
    """Return what monitors do with the same groups of datasets: each text once, with whom it is about."""
    where = [one[0] if len(one) == 1 else f"each of {len(one)} datasets ({one[0]}, ..)" for one in names]
    who = [monitor.name for monitor, _ in found]
    lines = [f"{named('Monitor', who, SHOWN)} on {' and on '.join(where)}:"]
    for word in dict.fromkeys(word for _, parts in found for one in parts for word in one):
        about: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for monitor, parts in found:
            texts: dict[str, list[str]] = {}
            for group, one in zip(where, parts, strict=True):
                if word in one:
                    texts.setdefault(one[word], []).append(group)
            for text, groups in texts.items():
                about.setdefault((text, tuple(groups)), []).append(monitor.name)
        for (text, groups_of), monitors in about.items():
            by = listed(monitors, SHOWN) if len(monitors) < len(who) else ""
            on = f"on {' and on '.join(groups_of)}" if len(groups_of) < len(where) else ""
            label = " ".join(one for one in (by, on) if one)
            lines.append(f"  {word:8} {label}{': ' if label else ''}{text}")
    return lines


def _parts(
    spec: ApplicationSpec, monitor: MonitorSpec, datasets: list[DatasetSpec], others: Collection[MonitorSpec]
) -> dict[str, str]:
    """Return what one monitor does with datasets that are alike, by the first word of its line."""
    first = max(datasets, key=lambda dataset: dataset.terms.spent_before)
    left = PaidRuns.left(monitor, first, others)
    source = None if monitor.source is None else spec.source(monitor.source)
    parts = {}
    if source is None or source.answers is not None:  # else the source's own text says it
        endless = datasets[0].terms.pattern in {one.pattern for one in spec.generators}
        parts["Protects"] = _protects(first.terms, len(datasets), endless)
    parts |= {
        "Detects": " ".join((_detects(monitor), *_when_quiet(monitor, source))),
        "Adds": _adds(monitor),
        "Wastes": wastes(monitor),
        "Reports": _reports(monitor, first.terms.kind),
        "Mutes": _mutes(monitor, source),
        "Lasts": _lasts(monitor, left, len(others), renews=first.terms.renewal is not None),
        "Begins": _begins(monitor, left.at_once),
    }
    if monitor.detect is not None and source is not None:
        detects = " ".join((detected.odds(monitor, monitor.detect), *_when_quiet(monitor, source)))
        parts |= {"Detects": detects, "Wastes": detected.WASTE}
        parts["Reports"] = detected.price(monitor, monitor.detect, first.terms, source)
        del parts["Lasts"], parts["Begins"]
    if monitor.not_renewed is not None:
        parts["Silence"] = f"after an alert, alert.not-renewed: {silence(monitor)}"
    if monitor.maintenance:
        parts["Rests"] = f"tests nothing in maintenance: {', '.join(map(str, monitor.maintenance))}, UTC."
    if monitor.severity:
        parts["Severity"] = _severity(monitor)
    if first.terms.spent_before:
        spent = amount_text(first.terms.spent_before, first.terms.kind)
        whose = "" if len(datasets) == 1 else f" (dataset {first.name}, the largest amount)"
        parts["Carries"] = f"{spent} over, spent before{whose}: the figures are for the rest of the limit."
    if others:
        sharing = (one.name for one in spec.monitors if one is monitor or one in others)
        parts["Shares"] = f"one budget for each dataset: {', '.join(sharing)}."
    return parts


def _severity(monitor: MonitorSpec) -> str:
    ranked = sorted(monitor.severity.items(), key=lambda one: -one[1])
    named = [f"{name} from a bound of {float(least):,.12g} on" for name, least in ranked[:-1]]
    return (
        ", ".join([*named, f"else {ranked[-1][0]}, also without a bound" if named else ranked[-1][0]]) + "."
    )


def _protects(terms: Terms, count: int, endless: bool) -> str:
    limit = amount_text(terms.limit, terms.kind)
    if count == 1 and not endless:
        return f"{terms.unit}: everything published about it costs at most {limit} in all."
    total = f"In all {count} datasets together: {amount_text(count * terms.limit, terms.kind)}."
    if terms.renewal is not None:
        total = f"{terms.renewal.promise.capitalize()}."
    elif endless:
        total = f"In several datasets: {limit} for each, and every period adds datasets."
    return f"{terms.unit} in one dataset: everything published about it costs at most {limit}. {total}"


def _detects(monitor: MonitorSpec) -> str:
    if monitor.ends:
        sure, half = (
            f"{float(-monitor.threshold - reported_margin(monitor, chance)):,.12g}" for chance in (SURE, 0.5)
        )
        text = f"the end of an incident of {monitor.ends} at a value of {sure} at its first test {SURE:.0%} of the time"
        return f"{text}, at one of {half} half of the time. It and the alert are all that an incident costs."
    when = "on the last pass over its set" if isinstance(monitor.append, Sweep) else "at its first test"
    margins = [reported_margin(monitor, chance) for chance in (SURE, 0.5)]
    sure, half = (f"{float(monitor.threshold + margin):,.12g}" for margin in margins)
    margin = f"{abs(float(margins[0])):,.6g} {'above' if margins[0] >= 0 else 'below'}"
    return f"a value of {sure} ({margin} the threshold) {when} {SURE:.0%} of the time, one of {half} half of the time."


_NEVER: Final = 36_500
"""Days between two false alerts from which on they are said to be rarer than that."""


def _when_quiet(monitor: MonitorSpec, source: SourceSpec | None) -> Iterator[str]:
    """Yield how often values of half the threshold are reported, for a monitor of counts."""
    if source is None or source.answers is not None or monitor.threshold <= 0 or monitor.ends:
        return
    quiet, a_day = monitor.threshold / 2, rows_per_day(source) // len(source.measures)
    alerts = a_day * float(report_chances(monitor, np.array([-float(quiet)])).mean())
    odds = f"{_rounded(alerts)} false alerts a day"
    if alerts * _NEVER < 1:
        odds = f"less than one false alert in {_NEVER // 365} years"
    elif alerts < 1:
        odds = f"one false alert in {_rounded(1 / alerts)} days"
    yield f"If all {a_day:,} values a day were {float(quiet):,.12g}: {odds}."


def _rounded(number: float) -> str:
    return f"{float(f'{number:.3g}'):,.12g}"


def _adds(monitor: MonitorSpec) -> str:
    mechanism = monitor.mechanism()
    rates = (mechanism.branches[-1].rate, mechanism.threshold_rate)
    query, threshold = (f"{float(monitor.granularity / rate):.3g}" for rate in rates)
    return f"noise of scale {query} to each test, {threshold} to the threshold."


def silence(monitor: MonitorSpec) -> str:
    """Return the odds that a monitor with ``not_renewed`` says so although values stay above the threshold."""
    windows, threshold = monitor.not_renewed or 1, float(monitor.threshold)
    margins = (silent_margin(monitor, windows, chance) for chance in (0.5, RARELY))
    half, rare = (f"{threshold + one:,.12g} ({one:,.12g} above the threshold)" for one in margins)
    return (
        f"if each of {counted(windows, 'window')} has a value of {half}, none of them is reported half of the time, of "
        f"{rare} {RARELY:.0%} of the time."
    )


def wastes(monitor: MonitorSpec) -> str:
    """Return how many alerts a monitor wastes on values that are not above the threshold."""
    if isinstance(monitor.append, Sweep):
        return (
            "alerts on the largest values below the threshold, where a set has fewer than "
            f"{monitor.append.alerts_per_set} values above it."
        )
    rule = monitor.correction_rule()
    # Exponential threshold noise is never negative, so these values lie at or below the noisy threshold.
    if isinstance(rule, Exposure) and monitor.threshold_noise.is_one_sided:
        if monitor.ends:
            text = f"on average at most {float(rule.false_alerts):.3g} of a run's {monitor.cutoff} ends on values that"
            return f"{text} are not below, in a run of {rule.expected_queries:,} tests: the next alert costs again."
        return (
            f"on average at most {float(rule.false_alerts):.3g} of a run's {monitor.cutoff} alerts on values at or "
            f"below the threshold, in a run of {rule.expected_queries:,} queries; far fewer if few values are near the "
            "threshold."
        )
    return "an unknown share of alerts on values below the threshold: only the correction exposure bounds it."


def _reports(monitor: MonitorSpec, kind: Kind) -> str:
    mechanism, price = monitor.mechanism(), amount_text(monitor.run_price(kind), kind)
    largest = mechanism.top_units // mechanism.smallest_units
    more = f" (up to {largest} if all lie far above the threshold)" if largest > monitor.cutoff else ""
    cost = f"A whole run costs {price}; queries without an alert add nothing"
    return f"{monitor.cutoff} {_outcomes(monitor)} a run{more}. {cost}."


def _outcomes(monitor: MonitorSpec) -> str:
    return "ends" if monitor.ends else "alerts"


def _mutes(monitor: MonitorSpec, source: SourceSpec | None) -> str:
    mute = monitor.mute
    if monitor.ends:
        return f"nothing: it tests a series from its alert by {monitor.ends} to the end, which ends that one's mute."
    if monitor.end is not None and isinstance(mute, int):
        return f"a series from its alert to the end of the incident, and for {duration_text(mute)} at most."
    if mute is Mute.NONE:
        return "nothing: every later query of a reported series is tested, and may cost an alert again."
    lasts = {Mute.PERIOD: "as long as the dataset lives", Mute.RUN: "for the rest of the run"}
    how_long = f"for {duration_text(mute)}" if isinstance(mute, int) else lasts[mute]
    has_series = source is not None and (source.series if source.answers is None else source.answers.series)
    return f"a series after its alert, {how_long}{'' if has_series else '; a query without a series is never muted'}."


def _lasts(monitor: MonitorSpec, left: PaidRuns, others: int, *, renews: bool) -> str:
    if monitor.on_halt == "stop":
        return f"for 1 run: {monitor.cutoff} {_outcomes(monitor)} in all. Then it stops until an operator resamples it."
    runs = counted(left.runs, "whole run")
    if left.last_run_alerts:
        runs += f" and a shorter one of {left.last_run_alerts}"
    lasts = f"for {runs}: {left.runs * monitor.cutoff + left.last_run_alerts} {_outcomes(monitor)} in all"
    if left.together is not None:
        which, none = (
            ("each other monitor", "they begin") if others > 1 else ("the other monitor", "it begins")
        )
        lasts = (
            f"for {counted(left.together, 'whole run')}: {left.together * monitor.cutoff} {_outcomes(monitor)}, if "
            f"{which} begins as many runs (up to {runs} if {none} none)"
        )
    until = "the next period" if renews else "an operator raises the budget or the next period's dataset"
    return f"{lasts}. Then the monitor is exhausted: it reports that once and skips queries until {until} begins."


def _begins(monitor: MonitorSpec, most: MaxRuns | None) -> str:
    if most is None and monitor.on_halt == "stop":
        return "at once, whenever an operator resamples it (max_runs: off)."
    if most is None:
        return "any number of runs within a moment (max_runs: off): one burst of high values may use up the budget."
    runs, time = f"at most {counted(most.count, 'run')}", duration_text(most.within_ms)
    if monitor.on_halt == "stop":
        return f"{runs} within {time} (max_runs)."
    chosen = "max_runs: auto" if monitor.max_runs == AUTO else "max_runs"
    return (
        f"{runs} within {time} ({chosen}). A burst of high values may use them up at once: the monitor then skips "
        f"queries for up to {time}, says so, and begins again. A lasting flood spends as much every {time}."
    )


LEAST_PAYMENTS = 3
"""Payments after the first that a projection needs at least."""

_TAIL = 0.05
"""Probability on either side of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """Predicted end of a budget, in seconds of Unix time.

    Attributes:
        early, expected, late: The interval from the first to the last has a probability of 90 %.
        payments, since: Number of payments after the moment ``since`` that the projection is based on.
        least: The moment before which `max_runs` prevents the end; 0 for none. No other end is earlier.
    """

    early: float
    expected: float
    late: float
    payments: int
    since: float
    least: float = 0.0

    def not_before(self, least: float) -> Exhaustion:
        """Return the projection with a least end."""
        ends = {name: max(getattr(self, name), least) for name in ("early", "expected", "late")}
        return replace(self, least=least, **ends)


def least_end(
    monitors: Mapping[MonitorSpec, float], terms: Terms, left: float, reserved: float, now: float
) -> float:
    """Return the moment (Unix time) before which `max_runs` prevents the end of the budget; 0 without a bound.

    Args:
        monitors: Those on the dataset, each with the moment before which no run of it begins; 0 for none.
        terms: The dataset's, with its present limit.
        left: Amount that can still be spent, in the dataset's measure.
        reserved: Part of it that open runs may spend at any time.
        now: Unix time.
    """
    paces: list[tuple[int, int, int, int]] = []
    for monitor, begin in monitors.items():
        most = monitor.runs_allowed(terms, len(monitors))
        if most is None:
            return 0.0
        wait = max(int((begin - now) * 1000), 0)
        paces.append((monitor.run_price(terms.kind), most.count, most.within_ms, wait))
    # The budget ends when the rest pays no further run.
    least = int((left - reserved) * terms.kind.units) - min((price for price, *_ in paces), default=0)
    if not paces or least < 0:
        return 0.0

    def is_spent(ms: int) -> bool:
        return least < sum(
            price * count * ((ms - wait) // within + 1) for price, count, within, wait in paces if ms >= wait
        )

    early, late = 0, max(wait + within * (least // price + 1) for price, _, within, wait in paces)
    while early < late:
        middle = (early + late) // 2
        early, late = (early, middle) if is_spent(middle) else (middle + 1, late)
    return now + early / 1000 if early else 0.0


def exhaustion(charges: Iterable[tuple[float, float]], left: float, now: float) -> Exhaustion | None:
    """Project the end of a budget; None if nothing is left or there are too few charges.

    Payments (charges of the same moment count as one) are modelled as a Poisson process of unknown rate. After `n`
    payments in a time `T`, the time that the next `k` take, divided by `T k / n`, has an F distribution with `2 k` and
    `2 n` degrees of freedom.

    Args:
        charges: The latest charges as (Unix time, amount), oldest first. The first only starts the clock.
        left: What can still be spent, in the charges' measure.
        now: Unix time.

    >>> week = 7 * 86400
    >>> found = exhaustion([(day * 86400.0, 0.1) for day in range(8)], left=1.0, now=week)
    >>> [round((end - week) / 86400) for end in (found.early, found.expected, found.late)]
    [4, 10, 24]
    """
    payments: dict[float, float] = {}
    for time, amount in charges:
        payments[time] = payments.get(time, 0.0) + amount
    count = len(payments) - 1
    if left <= 0 or count < LEAST_PAYMENTS:
        return None
    since = next(iter(payments))
    seconds = max(now, *payments) - since
    mean = sum(payments.values()) / len(payments)
    if seconds <= 0 or mean <= 0:
        return None
    to_come = max(ceil(left / mean - 1e-9), 1)
    pace = seconds / count * to_come
    from scipy.special import fdtri  # slow to import

    # The observed time ends now, not at a payment: one more payment makes the early end early enough.
    early = seconds / (count + 1) * to_come * float(fdtri(2 * to_come, 2 * count + 2, _TAIL))
    late = pace * float(fdtri(2 * to_come, 2 * count, 1 - _TAIL))
    return Exhaustion(early=now + early, expected=now + pace, late=now + late, payments=count, since=since)
