"""What a mechanism would do on a workload: precision, recall, delay, and how long its budget lasts.

Nothing is simulated and no data is looked at. The model conditions on the threshold noise (at quantiles of its law),
takes the exact probability that a value of each margin is reported at each attempt, and adds up. The units asked for
up to each point of time are taken as normally distributed, and what exceeds the budget is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.noise import Law, quantiles, tails
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.planning.workload import Drift, Floats, Workload, middles, thinned
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.options import Retry, Sweep

THRESHOLDS = 41
"""Quantiles that stand for the threshold noise."""

_PHASES = 8
_SLICES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Quantiles over the runs: what one in ten stays below, half, and nine in ten."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one run is expected to do on its workload.

    Attributes:
        precision: Expected true alerts / expected alerts; 1 where no alert is expected.
        recall, recall_span: Expected true alerts / expected positives, and its quantiles over the threshold
            noise.
        alerts, true_alerts, false_alerts: Expected numbers.
        delay: Mean queries from the first query of a series to its true alert; 0 for finite sets.
        ends: Probability that the run has used its budget before the workload ends.
        life: Queries, or finite sets, after which the run has used its budget; infinite where alerts stop
            coming.
    """

    precision: float
    recall: float
    recall_span: Span
    alerts: float
    true_alerts: float
    false_alerts: float
    delay: float
    ends: float
    life: Span

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is expected up to each point of time, by threshold noise.

    Attributes:
        time: Queries of a stream, or passes over a set, shape (times,); starts at 0.
        true_alerts, false_alerts: Up to then, shape (thresholds, times).
        asked: Units that alerts would have cost by then if the budget had no end, shape (thresholds, times).
        over: Probability that the run has ended by then, shape (thresholds, times).
        waited: Sum of the delays of the true alerts, shape (thresholds,).
    """

    time: Floats
    true_alerts: Floats
    false_alerts: Floats
    asked: Floats
    over: Floats
    waited: Floats


def forecast(plan: SparseVector | MonitorSpec, workload: Workload, retries: Retry | None = None) -> Forecast:
    """Return what one run is expected to do.

    Args:
        plan: The mechanism that would run, from its constructor; or a monitor's specification, whose
            mechanism, grid, retry queue and sweep are then used.
        workload: What is believed about the queries. For a mechanism, margins count grid steps.
        retries: The retry queue of a mechanism on a stream; None for none, or for a specification, which says
            it.

    Raises:
        MisuseError: A finite set has a retry queue or a stream is swept; a specification comes with retries
            of its own; a lifetime is a duration and the workload has no rate.

    Examples:
        >>> from fractions import Fraction
        >>> from stream_svt.mechanisms import Exposure, sparse_vector
        >>> mechanism = sparse_vector(
        ...     epsilon=1_000_000_000, cutoff=10, monotonic=True,
        ...     correction=Exposure(expected_queries=10_000, false_alerts=Fraction(1)),
        ... )
        >>> workload = Workload(queries=10_000, positives=0.001, above=np.array([200.0]), below=np.array([300.0]))
        >>> plan = forecast(mechanism, workload)
        >>> round(plan.precision, 2), round(plan.recall, 2), round(plan.alerts, 1)
        (1.0, 0.87, 8.7)
    """
    setting = _setting(plan, workload, retries)
    run = _course(setting)
    true_alerts, false_alerts = run.true_alerts[:, -1], run.false_alerts[:, -1]
    found, wasted = float(true_alerts.mean()), float(false_alerts.mean())
    positives = workload.queries * workload.positives
    return Forecast(
        precision=found / (found + wasted) if found + wasted > 0 else 1.0,
        recall=min(1.0, found / positives),
        recall_span=_span(np.minimum(1.0, true_alerts / positives)),
        alerts=found + wasted,
        true_alerts=found,
        false_alerts=wasted,
        delay=0.0 if workload.finite or not found else float(run.waited.mean()) / found,
        ends=float(run.over[:, -1].mean()),
        life=_span(_lives(setting, run)),
    )


def course(plan: SparseVector | MonitorSpec, workload: Workload, retries: Retry | None = None) -> Course:
    """Return what one run is expected to have done by each point of time; arguments are those of `forecast`."""
    return _course(_setting(plan, workload, retries))


@dataclass(frozen=True, slots=True)
class _Setting:
    """A mechanism on a workload whose margins count its grid steps; ``tops`` limits the alerts of a set."""

    mechanism: SparseVector
    workload: Workload
    retries: Retry | None
    tops: int | None = None

    @property
    def budget(self) -> int:
        """Units for alerts."""
        return self.mechanism.epsilon - self.mechanism.threshold_charge

    @property
    def lifetime(self) -> int:
        """Queries that a series waits at most: the lesser of the queue's lifetime and its capacity."""
        if self.retries is None:
            return 0
        found, capacity = self.retries.lifetime, self.retries.capacity
        if found.ms is None:
            return min(found.offsets or 1, capacity)
        if self.workload.rate is None:
            raise MisuseError("series are kept for a time: planning that needs the rate of the queries")
        return min(max(1, round(self.workload.rate * found.ms / 1000)), capacity)


def _setting(plan: SparseVector | MonitorSpec, workload: Workload, retries: Retry | None) -> _Setting:
    if isinstance(plan, SparseVector):
        if workload.finite and retries is not None:
            raise MisuseError("a finite set is swept when it closes; a retry queue belongs to a stream")
        return _Setting(plan, workload, retries)
    if retries is not None:
        raise MisuseError("a monitor's specification says how it retries: leave the retries out")
    sweep = plan.append if isinstance(plan.append, Sweep) else None
    if workload.finite != (sweep is not None):
        raise MisuseError(
            "a finite set is planned for a monitor with append: sweep, a stream for one without"
        )
    queue = plan.append if isinstance(plan.append, Retry) else None
    tops = None if sweep is None else sweep.tops_per_set
    return _Setting(plan.mechanism(), _on_grid(workload, plan), queue, tops)


def _on_grid(workload: Workload, monitor: MonitorSpec) -> Workload:
    """Return the workload with distances in grid steps."""
    steps = float(1 / monitor.granularity)
    drift = workload.drift
    if drift is not None:
        drift = replace(drift, start=drift.start * steps)
    return replace(workload, above=workload.above * steps, below=workload.below * steps, drift=drift)


def _course(setting: _Setting) -> Course:
    mechanism, workload, retries = setting.mechanism, setting.workload, setting.retries
    noise = threshold_quantiles(mechanism.threshold_law)
    ages, due = _attempts(setting)
    above, below = np.floor(thinned(workload.above)), np.floor(-thinned(workload.below))
    true_hits = _hits(mechanism, noise, _drifting(above, workload.drift, ages), due)
    false_hits = _hits(mechanism, noise, np.broadcast_to(below, (*ages.shape, len(below))), due)
    if workload.finite:
        time = np.arange(ages.shape[1] + 1, dtype=np.float64)
        reach = np.where(ages[None] < time[:, None, None], float(workload.queries), 0.0)
    else:
        time = np.linspace(0, workload.queries, _SLICES + 1)
        reach = _reach(time, ages, retries)
    # (branches, thresholds, times): reports so far if the budget had no end
    true_asked = workload.positives * np.einsum("brqa,kqa->brk", true_hits, reach)
    false_asked = (1 - workload.positives) * np.einsum("brqa,kqa->brk", false_hits, reach)

    def cut(prices: Floats, limit: float) -> tuple[Floats, Floats, Floats]:
        """Return the price of the reports so far, and what `_cut` makes of it."""
        asked = (prices * (true_asked + false_asked)).sum(axis=0)
        if workload.finite:  # a set has just so many of either kind
            spread = _variance(prices, true_asked, workload.queries * workload.positives)
            spread = spread + _variance(prices, false_asked, workload.queries * (1 - workload.positives))
        else:
            spread = _variance(prices, true_asked + false_asked, np.maximum(time, 1.0))
        return asked, *_cut(asked, spread, limit)

    charges = np.array([branch.charge for branch in mechanism.branches], dtype=np.float64)[:, None, None]
    asked, share, over = cut(charges, setting.budget)
    if setting.tops is not None:
        share = np.minimum(share, cut(np.ones_like(charges), setting.tops)[1])
    steps = np.einsum("brqa,kqa,qa->rk", true_hits, np.diff(reach, axis=0), ages)
    return Course(
        time=time,
        true_alerts=_accumulated(true_asked.sum(axis=0), share),
        false_alerts=_accumulated(false_asked.sum(axis=0), share),
        asked=asked,
        over=over,
        waited=workload.positives * (steps * share).sum(axis=1),
    )


def report_chances(monitor: MonitorSpec, distances: Floats) -> Floats:
    """Return how likely a value at each distance from the threshold is ever reported while units last.

    By all its tests, its value staying as it is; shape (thresholds, distances), distances in real units.
    """
    mechanism = monitor.mechanism()
    noise = threshold_quantiles(mechanism.threshold_law)
    attempts = (1, monitor.attempts)
    margins = np.broadcast_to(
        np.floor(distances * float(1 / monitor.granularity)), (*attempts, len(distances))
    )
    reports = _reports(mechanism, noise, margins, np.ones(attempts, dtype=np.bool_))
    return sum((reported[:, 0] for *_, reported in reports), np.zeros((len(noise), len(distances))))


def threshold_quantiles(law: Law) -> Floats:
    """Return the threshold noise at the middles of `THRESHOLDS` equal shares of its law, in grid steps."""
    return quantiles(law.noise, law.rate, 1 - middles(THRESHOLDS)).astype(np.float64)


def _attempts(setting: _Setting) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the age of a query at each attempt and whether the attempt is made, shape (phases, attempts).

    An age counts queries since the first one of the series, or passes. A phase is how far off the next round of
    retries was at the first query.
    """
    retries = setting.retries
    if setting.workload.finite:
        passes = max(len(branch.corrections) for branch in setting.mechanism.branches)
        ages = np.arange(passes, dtype=np.float64)[None]
        return ages, np.ones(ages.shape, dtype=np.bool_)
    if retries is None:
        return np.zeros((1, 1)), np.ones((1, 1), dtype=np.bool_)
    phase = (np.arange(_PHASES) + 0.5) / _PHASES
    rounds = np.arange(retries.attempts - 1) + phase[:, None]
    ages = np.concatenate([np.zeros((_PHASES, 1)), retries.every * rounds], axis=1)
    return ages, ages <= setting.lifetime


def _reach(time: Floats, ages: Floats, retries: Retry | None) -> Floats:
    """Return how many queries have had each attempt by each time, shape (times, phases, attempts).

    The first comes with the query; the others in rounds, of which a run has had a whole number.
    """
    reach = np.repeat(time[:, None], ages.shape[1], axis=1)
    if retries is not None:
        rounds = np.floor(time / retries.every)[:, None] - np.arange(ages.shape[1] - 1)
        reach[:, 1:] = retries.every * np.maximum(0.0, rounds)
    return np.repeat(reach[:, None], len(ages), axis=1) / len(ages)


def _drifting(margins: Floats, drift: Drift | None, ages: Floats) -> Floats:
    """Return margins at each attempt, shape (phases, attempts, margins)."""
    if drift is None:
        return np.broadcast_to(margins, (*ages.shape, len(margins)))
    risen = np.minimum(1.0, ages / drift.queries)[:, :, None]
    return np.asarray(np.floor(-drift.start + (margins + drift.start) * risen))


def _reports(
    mechanism: SparseVector, noise: Floats, margins: Floats, due: NDArray[np.bool_]
) -> Iterator[tuple[int, int, Floats]]:
    """Yield attempt, branch and the probability that it reports each margin then, (thresholds, phases, margins).

    Margins have the shape (phases, attempts, margins); a report ends the series.
    """
    phases, attempts, count = margins.shape
    waiting = np.ones((len(noise), phases, count))
    for attempt in range(attempts):
        made = due[None, :, attempt, None]
        bar = noise[:, None, None] - margins[None, :, attempt]
        for number, branch in enumerate(mechanism.branches):
            chance = tails(mechanism.query_noise, branch.rate, bar + branch.correction(attempt)) * made
            reported = waiting * chance
            yield attempt, number, reported
            waiting -= reported


def _hits(mechanism: SparseVector, noise: Floats, margins: Floats, due: NDArray[np.bool_]) -> Floats:
    """Return the mean over the margins of `_reports`, shape (branches, thresholds, phases, attempts)."""
    result = np.zeros((len(mechanism.branches), len(noise), *margins.shape[:2]))
    for attempt, branch, reported in _reports(mechanism, noise, margins, due):
        result[branch, :, :, attempt] = reported.mean(axis=2)
    return result


def _variance(charges: Floats, hits: Floats, population: Floats | float) -> Floats:
    """Variance of the units asked for where each of a population is reported independently, shape (.., times)."""
    mean = (charges * hits).sum(axis=0)
    return np.asarray((charges**2 * hits).sum(axis=0) - mean**2 / population)


def _cut(asked: Floats, variance: Floats, budget: float) -> tuple[Floats, Floats]:
    """Return the share of each slice's reports that is paid for, and the probability that the budget is used.

    Paid is the mean of min(asked, budget); shapes (thresholds, slices) and (thresholds, times).
    """
    deviation = np.sqrt(np.maximum(variance, 1e-12 * np.maximum(asked, 1.0) ** 2))
    z = (budget - asked) / deviation
    below = ndtr(z)
    excess = (asked - budget) * (1 - below) + deviation * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    paid = np.clip(asked - np.maximum(excess, 0.0), 0.0, budget)
    paid = np.maximum.accumulate(paid, axis=1)
    more = np.diff(asked, axis=1)
    share = np.divide(np.diff(paid, axis=1), more, out=np.ones_like(more), where=more > 0)
    return np.clip(share, 0.0, 1.0), 1 - below


def _accumulated(hits: Floats, share: Floats) -> Floats:
    """Return reports that are paid for up to each time."""
    return np.pad(np.cumsum(np.diff(hits, axis=1) * share, axis=1), ((0, 0), (1, 0)))


def _lives(setting: _Setting, run: Course) -> Floats:
    """When the units of a run are used, by threshold noise: queries of a stream, or sets."""
    if setting.workload.finite:
        paid = (run.true_alerts + run.false_alerts)[:, -1]
        sets = np.divide(setting.mechanism.cutoff, paid, out=np.full_like(paid, math.inf), where=paid > 0)
        return np.maximum(1.0, sets)
    lives = np.empty(len(run.asked))
    for number, asked in enumerate(run.asked):
        if asked[-1] >= setting.budget:
            lives[number] = np.interp(setting.budget, asked, run.time)
        else:
            pace = (asked[-1] - asked[-2]) / (run.time[-1] - run.time[-2])
            lives[number] = run.time[-1] + (setting.budget - asked[-1]) / pace if pace > 0 else math.inf
    return lives


def _span(values: Floats) -> Span:
    """Return what a tenth, half and nine tenths of the runs stay below."""
    ordered = np.sort(values)
    low, middle, high = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.1, 0.5, 0.9))
    return Span(low=low, middle=middle, high=high)
