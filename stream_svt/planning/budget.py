"""What one monitor can do with the budget of one dataset, if no other monitor draws on it. Reads no data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stream_svt.mechanisms import Law, estimates, noise
from stream_svt.mechanisms.noise import least
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.privacy.loss import Kind
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.options import Exposure, Sweep

SURE = 0.95
"""A margin counts as detectable where a single test reports it at least this often."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Whole runs that a limit pays for, and alerts of the shorter one that the rest pays for."""

    runs: int
    last_run_alerts: int

    @classmethod
    def paid(cls, mechanism: SparseVector, units: int) -> Runs:
        """Return what so many units of epsilon pay for."""
        runs, rest = divmod(max(units, 0), mechanism.epsilon)
        short = mechanism.shortened(rest)
        return cls(runs, 0 if short is None else short.cutoff)

    @classmethod
    def left(cls, monitor: MonitorSpec, dataset: DatasetSpec) -> Runs:
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
        return least(lambda steps: estimates.survival(query, mechanism.threshold_law, -steps) >= chance)

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
    bounded = isinstance(monitor.correction, Exposure) and not isinstance(monitor.append, Sweep)
    if monitor.expected_queries is None or not bounded or not mechanism.threshold_noise.is_one_sided:
        return None
    chance = sum(
        noise.tail(mechanism.query_noise, branch.rate, branch.correction(attempt))
        for branch in mechanism.branches
        for attempt in range(monitor.attempts)
    )
    return float(monitor.expected_queries * chance)
