"""What one monitor can do with the budget of one dataset, if no other draws on it, and when a budget will be spent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from scipy.special import fdtri

from stream_svt.mechanisms import Law, estimates, noise
from stream_svt.mechanisms.noise import least_integer
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.fields import ExposureOptions, OnHalt, Sweep
from stream_svt.settings.monitors import MonitorSpec

SURE = 0.95
"""A margin counts as detectable where a single test reports it at least this often."""


@dataclass(frozen=True, slots=True)
class PaidRuns:
    """Whole runs that a limit pays for, and alerts of the shorter one that the rest pays for."""

    runs: int
    last_run_alerts: int

    @classmethod
    def paid(cls, mechanism: SparseVector, units: int) -> PaidRuns:
        """Return what so many units of epsilon pay for."""
        runs, rest = divmod(max(units, 0), mechanism.epsilon)
        short = mechanism.shortened(rest)
        return cls(runs, 0 if short is None else short.cutoff)

    @classmethod
    def left(cls, monitor: MonitorSpec, dataset: DatasetSpec) -> PaidRuns:
        """Return what is left of a dataset's budget pays for, if the monitor is alone on it."""
        affordable = dataset.limit - dataset.spent_before - monitor.reserve_units(dataset.kind)
        if dataset.kind is Kind.PURE:
            return cls.paid(monitor.mechanism(), affordable)
        # A run under zCDP is paid whole; only pure epsilon has change to spend on a shorter one.
        return cls(max(affordable, 0) // monitor.run_price(dataset.kind), 0)


def reported_margin(monitor: MonitorSpec, chance: float) -> Fraction:
    """Least distance above the threshold at which one test reports with at least this probability.

    In real units; of the branch that reports it soonest, and of the last attempt, where the bar is lowest.
    """
    mechanism = monitor.mechanism()

    def above_the_bar(query: Law) -> int:
        return least_integer(
            lambda steps: estimates.survival(query, mechanism.threshold_law, -steps) >= chance
        )

    last = monitor.attempts - 1
    margins = [
        branch.correction(last) + above_the_bar(law)
        for branch, law in zip(mechanism.branches, mechanism.branch_laws, strict=True)
    ]
    return min(margins) * monitor.granularity


def false_alerts(monitor: MonitorSpec) -> float | None:
    """Expected tests, over a run, that noise alone carries over the bar from the noisy threshold.

    With exponential threshold noise, which is never negative, this bounds the reports of values at or below the
    threshold. None where there is no bound: nothing bounds a sweep with a falling bar.
    """
    mechanism = monitor.mechanism()
    bounded = isinstance(monitor.correction, ExposureOptions) and not isinstance(monitor.append, Sweep)
    if monitor.expected_queries is None or not bounded or not mechanism.threshold_noise.is_one_sided:
        return None
    chance = sum(
        noise.tail(mechanism.query_noise, branch.rate, branch.correction(attempt))
        for branch in mechanism.branches
        for attempt in range(monitor.attempts)
    )
    return float(monitor.expected_queries * chance)


def explain(spec: ApplicationSpec) -> list[str]:
    """Return what each monitor can do with a dataset's budget, as lines of text.

    Datasets that share limit and unit are described once.
    """
    lines: list[str] = []
    for monitor in spec.monitors:
        groups: dict[tuple[Kind, int, str], list[DatasetSpec]] = {}
        for dataset in (one for one in spec.datasets if monitor.covers(one.name)):
            groups.setdefault((dataset.kind, dataset.limit, dataset.unit), []).append(dataset)
        for datasets in groups.values():
            others = [
                one.name for one in spec.monitors if one is not monitor and one.covers(datasets[0].name)
            ]
            lines += [*_paragraph(monitor, datasets, others), ""]
    return lines[:-1]


def _paragraph(monitor: MonitorSpec, datasets: list[DatasetSpec], others: list[str]) -> list[str]:
    first = max(datasets, key=lambda dataset: dataset.spent_before)
    measure = first.kind.measure
    which = first.name if len(datasets) == 1 else f"each of {len(datasets)} datasets ({datasets[0].name}, ..)"
    limit = as_text(first.limit, first.kind)
    said = {
        "Protects": f"{first.unit}: whatever is published about it costs at most {measure} {limit}.",
        "Detects": _detects(monitor),
        "Wastes": _wastes(monitor),
        "Reports": _reports(monitor, first.kind),
        "Lasts": _lasts(monitor, PaidRuns.left(monitor, first)),
    }
    if first.spent_before:
        spent = f"{measure} {as_text(first.spent_before, first.kind)}"
        most = "" if len(datasets) == 1 else f", the most of any, of {first.name}"
        said["Carried"] = f"over: {spent} of the limit was spent before{most}; it lasts for the rest."
    if others:
        said["Shares"] = f"the budget with {', '.join(others)}: what they spend comes off these figures."
    return [f"Monitor {monitor.name} on {which}:", *(f"  {word:8} {text}" for word, text in said.items())]


def _detects(monitor: MonitorSpec) -> str:
    when = "on the last pass over its set" if isinstance(monitor.append, Sweep) else "at its first test"
    sure, even = (f"{float(reported_margin(monitor, chance)):,.6g}" for chance in (SURE, 0.5))
    mechanism = monitor.mechanism()
    rates = (mechanism.branches[-1].rate, mechanism.threshold_rate)
    query, threshold = (f"{float(monitor.granularity / rate):.3g}" for rate in rates)
    return (
        f"a value {sure} above the threshold {when} 19 times in 20, one {even} above it every other time (noise: "
        f"{query} on each test, {threshold} on the threshold)."
    )


def _wastes(monitor: MonitorSpec) -> str:
    if (most := false_alerts(monitor)) is not None:
        return (
            f"at most {most:.3g} of a run's {monitor.cutoff} alerts on values at or below the threshold on average, "
            f"if a run lasts for {monitor.expected_queries:,} queries; far fewer if few values come near it."
        )
    if isinstance(monitor.append, Sweep):
        return (
            "alerts on the best of what is below the threshold where a set holds fewer values above it "
            "than its passes look for."
        )
    return "an unknown share on values below the threshold: only the correction `exposure` bounds it."


def _reports(monitor: MonitorSpec, kind: Kind) -> str:
    mechanism, price = monitor.mechanism(), as_text(monitor.run_price(kind), kind)
    most = (mechanism.epsilon - mechanism.threshold_charge) // mechanism.smallest_charge
    more = f" (up to {most} if all lie far above the threshold)" if most > monitor.cutoff else ""
    cost = f"a run costs {kind.measure} {price}, and queries that are not reported cost nothing further"
    return f"{monitor.cutoff} alerts a run{more}; {cost}."


def _lasts(monitor: MonitorSpec, left: PaidRuns) -> str:
    if monitor.on_halt is OnHalt.STOP:
        return f"for 1 run: {monitor.cutoff} alerts in all; then it stops until an operator resamples it."
    runs = f"{left.runs} whole run{'s' if left.runs != 1 else ''}"
    if left.last_run_alerts:
        runs += f" and a shorter one of {left.last_run_alerts}"
    return (
        f"for {runs}: {left.runs * monitor.cutoff + left.last_run_alerts} alerts in all; then the monitor is "
        "exhausted, skips its queries and says so once, until an operator raises the budget or a new period's "
        "dataset begins."
    )


LEAST_PAYMENTS = 3
"""Payments after the first without which nothing is said."""

_TAIL = 0.05
"""Probability on either side of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """When what is left will be spent, in seconds of Unix time.

    Attributes:
        early, expected, late: With 90 % between the first and the last.
        payments, since: What that is drawn from: so many payments after the moment ``since``.
    """

    early: float
    expected: float
    late: float
    payments: int
    since: float


def exhaustion(charges: Iterable[tuple[float, float]], left: float, now: float) -> Exhaustion | None:
    """Project the end of a budget; None where nothing is left, or too little was charged to say anything.

    Payments (charges of the same moment count as one) are taken as a Poisson process of unknown rate. Where `n` of them
    came in a time `T`, the next `k` take a time whose ratio to `T k / n` has an F distribution with `2 k` and `2 n`
    degrees of freedom.

    Args:
        charges: The latest ones as (Unix time, amount), oldest first. The first sets the clock and is not
            counted.
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
    # The time ends now and not at a payment: counting one more makes the early end early enough.
    early = seconds / (count + 1) * to_come * float(fdtri(2 * to_come, 2 * count + 2, _TAIL))
    late = pace * float(fdtri(2 * to_come, 2 * count, 1 - _TAIL))
    return Exhaustion(early=now + early, expected=now + pace, late=now + late, payments=count, since=since)
