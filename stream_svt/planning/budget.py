"""What one monitor can do with the budget of one dataset, if no other monitor draws on it. Reads no data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stream_svt.mechanisms import estimates, noise
from stream_svt.mechanisms.search import least
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """What a budget buys.

    Attributes:
        kind, limit: Measure of the dataset's ledger and its limit, in ledger units.
        run_price: Ledger units of one whole run.
        runs: Whole runs the limit pays for.
        alerts_per_run, most_alerts_per_run: Alerts of one run at full price each, and where every one is far
            above the threshold.
        last_run_alerts: Alerts of the shorter run that what is left after the whole runs still pays for.
        even_margin, sure_margin: Least distance above the threshold, in real units, reported by the last
            attempt at least half the time, and at least 95 % of the time.
        threshold_scale, query_scale: Scales of the noises in real units; the query noise is that of the last
            branch.
        false_alerts, expected_queries: Bound on the expected alerts of a run on values at or below the
            threshold, and the queries of a run to which it refers; None where there is none.
    """

    kind: Kind
    limit: int
    run_price: int
    runs: int
    alerts_per_run: int
    most_alerts_per_run: int
    last_run_alerts: int
    even_margin: Fraction
    sure_margin: Fraction
    threshold_scale: float
    query_scale: float
    false_alerts: float | None
    expected_queries: int | None

    @property
    def alerts(self) -> int:
        """Alerts the whole budget pays for at full price each."""
        return self.runs * self.alerts_per_run + self.last_run_alerts


def purchase(monitor: MonitorSpec, dataset: DatasetSpec) -> Purchase:
    """Return what a monitor can do with what is left of a dataset's budget if it is alone on it."""
    mechanism, kind = monitor.mechanism(), dataset.kind
    price = monitor.run_price(kind)
    affordable = dataset.limit - dataset.spent_before - monitor.reserve_units(kind)
    # A run under zCDP is paid whole; only pure epsilon has change to spend on a shorter one.
    pure = kind is Kind.PURE
    paid = Runs.paid(mechanism, affordable) if pure else Runs(max(affordable, 0) // price, 0)
    last = mechanism.branches[-1]
    return Purchase(
        kind=kind,
        limit=dataset.limit,
        run_price=price,
        runs=paid.runs,
        alerts_per_run=mechanism.cutoff,
        most_alerts_per_run=(mechanism.epsilon - mechanism.threshold_charge) // mechanism.smallest_charge,
        last_run_alerts=paid.last_run_alerts,
        even_margin=reported_margin(monitor, 0.5),
        sure_margin=reported_margin(monitor, SURE),
        threshold_scale=float(monitor.granularity / mechanism.threshold_rate),
        query_scale=float(monitor.granularity / last.rate),
        false_alerts=_false_alerts(mechanism, monitor),
        expected_queries=monitor.expected_queries,
    )


def reported_margin(monitor: MonitorSpec, chance: float) -> Fraction:
    """Least distance above the threshold at which one test reports with at least this probability.

    In real units; of the branch that reports it soonest, and of the last attempt, where the bar is lowest.
    """
    mechanism = monitor.mechanism()

    def above_the_bar(rate: Fraction) -> int:
        laws = mechanism.query_noise, rate, mechanism.threshold_noise, mechanism.threshold_rate
        return least(lambda steps: estimates.survival(*laws, -steps) >= chance)

    last = monitor.attempts - 1
    margins = [branch.correction(last) + above_the_bar(branch.rate) for branch in mechanism.branches]
    return min(margins) * monitor.granularity


def _false_alerts(mechanism: SparseVector, monitor: MonitorSpec) -> float | None:
    """Expected tests, over a run, that noise alone carries over the bar from the noisy threshold.

    With exponential threshold noise, which is never negative, this bounds the reports of values at or below the
    threshold. Nothing bounds a sweep with a falling bar.
    """
    if monitor.expected_queries is None or isinstance(monitor.append, Sweep):
        return None
    if not mechanism.threshold_noise.is_one_sided or not isinstance(monitor.correction, Exposure):
        return None
    chance = sum(
        noise.tail(mechanism.query_noise, branch.rate, branch.correction(attempt))
        for branch in mechanism.branches
        for attempt in range(monitor.attempts)
    )
    return float(monitor.expected_queries * chance)
