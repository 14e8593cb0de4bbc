"""Forecasts precision, recall, delay and life of a budget for a mechanism on a workload.

Nothing is simulated and no data is read. The model conditions on quantiles of the threshold noise and sums the exact
probabilities that a value of each margin is reported at each attempt. It treats the budget units demanded up to each
time as normally distributed, and cuts off the demand that exceeds the budget.

A margin is the distance of a value from the public threshold, in real units. Margins must be prior knowledge: margins
measured on the monitored data would leak information about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.noise import Law, quantiles, tails
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.settings.fields import Retry, Sweep
from stream_svt.settings.monitors import MonitorSpec

Floats = NDArray[np.float64]

MARGINS = 200
"""Number of quantiles that represent a distribution of margins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Linear rise of a positive to its margin, over a number of queries of the stream.

    ``start`` is its distance below the threshold at the first query of its series, in real units.
    """

    queries: float
    start: float

    def __post_init__(self) -> None:
        sound = self.queries > 0 and math.isfinite(self.queries) and math.isfinite(self.start)
        require(sound, "a drift takes more than 0 queries and starts at a finite distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The queries that one run of a monitor receives.

    Attributes:
        queries: Queries of a stream, without new values of waiting series; or items of a finite set.
        positives: Expected share of them at or above the threshold, above 0 and below 1.
        above: Margins of the positives: their distances at or above the threshold, in real units. Equally likely
            values of any distribution: quantiles, or a sample from public data.
        below: Margins of the negatives: their distances below the threshold.
        finite: Whether the queries are one closed set, tested pass after pass, rather than a stream.
        drift: Rise of the positives of a stream; None if values are constant.
        rate: Queries per second, to express durations; None if unknown.

    Raises:
        MisuseError: A number is out of its range.
    """

    queries: int
    positives: float
    above: Floats = field(repr=False)
    below: Floats = field(repr=False)
    finite: bool = False
    drift: Drift | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        require(self.queries >= 1, "a workload has at least one query")
        require(0 < self.positives < 1, "the share of positives lies strictly between 0 and 1")
        known = self.rate is None or 0 < self.rate < math.inf
        require(known, "the rate is in queries per second and greater than 0")
        still = not self.finite or self.drift is None
        require(still, "values of a finite set do not drift: leave the drift out, or plan a stream")
        for name in ("above", "below"):
            margins = np.sort(np.asarray(getattr(self, name), dtype=np.float64).ravel())
            sound = len(margins) > 0 and bool(np.isfinite(margins).all()) and margins[0] >= 0
            require(sound, f"margins {name} the threshold are one or more numbers, finite and not negative")
            object.__setattr__(self, name, margins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Prior knowledge of a workload, with its uncertainty.

    A single median stands for Weibull distributions of shapes 1/2 (many values near the threshold), 1 (exponential,
    the central one) and 4 (nearly all values at the median). Medians and quantiles may be up to `factor` times smaller
    or larger.

    Attributes:
        positives: Expected share of positives.
        above, below: Margins of positives and negatives in real units: a median, or quantiles as in `Workload`.
        factor: At least 1.
    """

    positives: float
    above: float | Floats
    below: float | Floats
    factor: float = 2.0

    def __post_init__(self) -> None:
        medians = [margin for margin in (self.above, self.below) if not isinstance(margin, np.ndarray)]
        sound = all(0 < median < math.inf for median in medians) and 1 <= self.factor < math.inf
        require(sound, "median margins are greater than 0, and the factor of uncertainty is at least 1")

    def central(
        self, queries: int, *, finite: bool = False, drift: Drift | None = None, rate: float | None = None
    ) -> Workload:
        """Return the central workload; arguments are those of `Workload`."""
        margins = self._margins(1.0, 1.0)
        return Workload(
            queries=queries, positives=self.positives, finite=finite, drift=drift, rate=rate, **margins
        )

    def spread(self, central: Workload) -> tuple[Workload, ...]:
        """Return the other possible workloads: pessimistic, optimistic and mixed."""
        known = isinstance(self.above, np.ndarray) and isinstance(self.below, np.ndarray)
        return tuple(
            replace(central, **self._margins(scale, shape))
            for scale in sorted({1 / self.factor, 1.0, self.factor})
            for shape in ((1.0,) if known else (0.5, 1.0, 4.0))
            if (scale, shape) != (1.0, 1.0)
        )

    def _margins(self, scale: float, shape: float) -> dict[str, Any]:
        return {
            name: scale * margin if isinstance(margin, np.ndarray) else weibull(scale * margin, shape)
            for name, margin in (("above", self.above), ("below", self.below))
        }


def weibull(median: float, shape: float) -> Floats:
    """Return the quantiles of a Weibull distribution at the middles of `MARGINS` equal shares."""
    return np.asarray(median * (-np.log2(1 - middles(MARGINS))) ** (1 / shape))


def from_percentiles(points: Sequence[tuple[float, float]]) -> Floats:
    """Return margins of a distribution that is linear between given percentiles and 0 at percentile 0.

    Args:
        points: Rising percentages (above 0, at most 100), each with its margin. Beyond the last one the
            distribution continues as an exponential one.

    Raises:
        MisuseError: Percentages or margins do not rise.

    Examples:
        >>> from_percentiles([(50, 10), (100, 20)])[[0, 99, 100, 199]]
        array([ 0.05,  9.95, 10.05, 19.95])
    """
    levels = np.array([0.0, *(level for level, _ in points)]) / 100
    margins = np.array([0.0, *(margin for _, margin in points)])
    rise = bool((np.diff(levels) > 0).all() and (np.diff(margins) >= 0).all())
    require(
        len(points) > 0 and rise and levels[-1] <= 1,
        "percentiles are pairs such as 10:20, 50:150, 90:400: percentages above 0 and up to 100 that rise, each with a "
        "margin at least as large as the one before",
    )
    wanted = middles(MARGINS)
    found = np.interp(wanted, levels, margins)
    beyond = wanted > levels[-1]
    if beyond.any():
        found[beyond] = margins[-1] * np.log1p(-wanted[beyond]) / math.log1p(-levels[-1])
    return np.asarray(found)


def thinned(margins: Floats, count: int = 2 * MARGINS) -> Floats:
    """Return at most ``count`` margins of the same distribution: quantiles at the middles of equal shares."""
    return margins if len(margins) <= count else np.asarray(np.quantile(margins, middles(count)))


def middles(count: int) -> Floats:
    """Return the probabilities at the middles of equal shares, shape (count,)."""
    return (np.arange(count) + 0.5) / count


THRESHOLDS = 41
"""Number of quantiles that represent the threshold noise."""

_UNLIMITED = 1e4
"""A run that lasts this many times the workload counts as unlimited."""
_PHASES = 8
_SLICES = 40


class Span(NamedTuple):
    """Quantiles over the runs: 10 %, 50 % and 90 %."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected results of one run on its workload.

    Attributes:
        precision: Expected true alerts / expected alerts; 1 if no alert is expected.
        recall, recall_span: Expected true alerts / expected positives; quantiles over the threshold noise.
        alerts, true_alerts, false_alerts: Expected numbers.
        delay: Mean queries from the first query of a series to its true alert; 0 for finite sets.
        ends: Probability that the run uses up its budget before the workload ends.
        life: Median of the queries, or sets, after which a run has used up its budget; infinite if alerts are rare.
    """

    precision: float
    recall: float
    recall_span: Span
    alerts: float
    true_alerts: float
    false_alerts: float
    delay: float
    ends: float
    life: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Expected results of a run up to each time, by threshold noise.

    Attributes:
        time: Queries of a stream, or passes over a set, shape (times,); starts at 0.
        true_alerts, false_alerts: Alerts up to each time, shape (thresholds, times).
        over: Probability that the run has ended by then, shape (thresholds, times).
        waited: Sum of the delays of the true alerts, shape (thresholds,).
        lives: Queries of a stream, or sets, after which the run's units are used up, shape (thresholds,).
    """

    time: Floats
    true_alerts: Floats
    false_alerts: Floats
    over: Floats
    waited: Floats
    lives: Floats


def forecast(plan: SparseVector | MonitorSpec, workload: Workload) -> Forecast:
    """Return the expected results of one run.

    Args:
        plan: A mechanism from its constructor, or a monitor's specification with its grid, retry queue and sweep.
        workload: The expected queries. For a mechanism, margins are in grid steps.

    Raises:
        MisuseError: A finite set has a retry queue or a stream has a sweep; a lifetime is a duration and the workload
            has no rate.

    Examples:
        >>> from fractions import Fraction
        >>> from stream_svt.mechanisms import Exposure, sparse_vector
        >>> mechanism = sparse_vector(
        ...     epsilon=1, cutoff=10, monotonic=True,
        ...     correction=Exposure(expected_queries=10_000, false_alerts=Fraction(1)),
        ... )
        >>> workload = Workload(queries=10_000, positives=0.001, above=np.array([200.0]), below=np.array([300.0]))
        >>> plan = forecast(mechanism, workload)
        >>> round(plan.precision, 2), round(plan.recall, 2), round(plan.alerts, 1)
        (1.0, 0.87, 8.7)
    """
    run = trajectory(plan, workload)
    true_alerts = run.true_alerts[:, -1]
    found, wasted = float(true_alerts.mean()), float(run.false_alerts[:, -1].mean())
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
        life=_span(run.lives).middle,
    )


def trajectory(plan: SparseVector | MonitorSpec, workload: Workload) -> Trajectory:
    """Return the expected results of one run up to each time; arguments are those of `forecast`."""
    mechanism, workload, retries, tops = _on_grid(plan, workload)
    time, ages, reach = _schedule(mechanism, workload, retries)
    above, below = np.floor(thinned(workload.above)), np.floor(-thinned(workload.below))
    true_hits = workload.positives * _hits(mechanism, _drifting(above, workload.drift, ages))
    false_hits = (1 - workload.positives) * _hits(mechanism, _drifting(below, None, ages))
    # (positives and negatives, branches, thresholds, times): reports so far with an unlimited budget
    asked = np.einsum("hbrqa,kqa->hbrk", np.stack([true_hits, false_hits]), reach)
    budget = mechanism.top_units
    charges = np.array([branch.charge_units for branch in mechanism.branches], dtype=np.float64)[
        :, None, None
    ]
    demanded, share, over = _cut(charges, budget, asked, time, workload)
    if tops is not None:
        share = np.minimum(share, _cut(np.ones_like(charges), tops, asked, time, workload)[1])
    steps = np.einsum("brqa,kqa,qa->rk", true_hits, np.diff(reach, axis=0), ages)
    paid = np.cumsum(np.diff(asked.sum(axis=1)) * share, axis=2)
    true_alerts, false_alerts = np.pad(paid, ((0, 0), (0, 0), (1, 0)))
    if workload.finite:
        alerts = (true_alerts + false_alerts)[:, -1]
        lives = np.divide(mechanism.cutoff, alerts, out=np.full_like(alerts, math.inf), where=alerts > 0)
        lives = np.maximum(1.0, lives)
    else:
        lives = np.array([_used_up(budget, one, time) for one in demanded])
    return Trajectory(
        time=time,
        true_alerts=true_alerts,
        false_alerts=false_alerts,
        over=over,
        waited=(steps * share).sum(axis=1),
        lives=lives,
    )


def _on_grid(
    plan: SparseVector | MonitorSpec, workload: Workload
) -> tuple[SparseVector, Workload, Retry | None, int | None]:
    """Return mechanism, workload in grid steps, retry queue, and largest number of alerts of a set."""
    if isinstance(plan, SparseVector):
        return plan, workload, None, None
    sweep = plan.append if isinstance(plan.append, Sweep) else None
    suits = workload.finite == (sweep is not None)
    require(suits, "a finite set needs a monitor with append: sweep, and a stream a monitor without")
    steps, drift = float(1 / plan.granularity), workload.drift
    workload = replace(
        workload,
        above=workload.above * steps,
        below=workload.below * steps,
        drift=None if drift is None else replace(drift, start=drift.start * steps),
    )
    queue = plan.append if isinstance(plan.append, Retry) else None
    return plan.mechanism(), workload, queue, None if sweep is None else sweep.alerts_per_set


def report_chances(monitor: MonitorSpec, distances: Floats) -> Floats:
    """Return the probability that a value at each distance from the threshold is reported by one of its tests.

    For a constant value while units last; shape (thresholds, distances), distances in real units.
    """
    steps = np.floor(distances * float(1 / monitor.granularity))
    margins = np.broadcast_to(steps, (1, monitor.attempts, len(steps)))
    return np.asarray(sum(reported[:, 0] for *_, reported in _reports(monitor.mechanism(), margins)))


def threshold_quantiles(law: Law) -> Floats:
    """Return the threshold noise at the middles of `THRESHOLDS` equal shares of its law, in grid steps."""
    return quantiles(law.noise, law.rate, 1 - middles(THRESHOLDS)).astype(np.float64)


def _schedule(
    mechanism: SparseVector, workload: Workload, retries: Retry | None
) -> tuple[Floats, Floats, Floats]:
    """Return times, ages at each attempt, and how many queries have had each attempt by each time.

    The shapes are (times,), (phases, attempts) and (times, phases, attempts). An age counts queries since the first one
    of the series, or passes. The first attempt comes with the query, the others in rounds of retries; a phase is the
    distance from the query to the next round. A series waits for the lifetime of the queue or its capacity, whichever
    is less.
    """
    if workload.finite:
        passes = max(len(branch.corrections) for branch in mechanism.branches)
        time, ages = np.arange(passes + 1.0), np.arange(float(passes))[None]
        return time, ages, np.where(ages < time[:, None, None], float(workload.queries), 0.0)
    time = np.linspace(0, workload.queries, _SLICES + 1)
    if retries is None:
        return time, np.zeros((1, 1)), time[:, None, None]
    lifetime = retries.lifetime.offsets or 1
    if retries.lifetime.ms is not None:
        if workload.rate is None:
            raise MisuseError("the lifetime of the retry queue is a duration: give the rate of the queries")
        lifetime = max(1, round(workload.rate * retries.lifetime.ms / 1000))
    later = np.arange(retries.attempts - 1)
    ages = np.pad(retries.every * (later + middles(_PHASES)[:, None]), ((0, 0), (1, 0)))
    rounds = np.maximum(0.0, np.floor(time / retries.every)[:, None] - later)
    reach = np.column_stack((time, retries.every * rounds))[:, None]
    return time, ages, reach * (ages <= min(lifetime, retries.capacity)) / _PHASES


def _drifting(margins: Floats, drift: Drift | None, ages: Floats) -> Floats:
    """Return margins at each attempt, shape (phases, attempts, margins)."""
    if drift is None:
        return np.broadcast_to(margins, (*ages.shape, len(margins)))
    risen = np.minimum(1.0, ages / drift.queries)[:, :, None]
    return np.asarray(np.floor(-drift.start + (margins + drift.start) * risen))


def _reports(mechanism: SparseVector, margins: Floats) -> Iterator[tuple[int, int, Floats]]:
    """Yield attempt, branch and the probability of a report of each margin, shape (thresholds, phases, margins).

    ``margins`` has the shape (phases, attempts, margins); a report ends the series.
    """
    noise = threshold_quantiles(mechanism.threshold_law)[:, None, None]
    waiting = np.ones((len(noise), len(margins), margins.shape[2]))
    for attempt in range(margins.shape[1]):
        bar = noise - margins[None, :, attempt]
        for number, branch in enumerate(mechanism.branches):
            reported = waiting * tails(mechanism.query_noise, branch.rate, bar + branch.correction(attempt))
            yield attempt, number, reported
            waiting -= reported


def _hits(mechanism: SparseVector, margins: Floats) -> Floats:
    """Return the mean over the margins of `_reports`, shape (branches, thresholds, phases, attempts)."""
    result = np.zeros((len(mechanism.branches), THRESHOLDS, *margins.shape[:2]))
    for attempt, branch, reported in _reports(mechanism, margins):
        result[branch, :, :, attempt] = reported.mean(axis=2)
    return result


def _cut(
    prices: Floats, budget: int, asked: Floats, time: Floats, workload: Workload
) -> tuple[Floats, Floats, Floats]:
    """Return units demanded so far, share of each slice's reports that is paid, and chance that the budget is used up.

    The paid units are the mean of min(demanded, budget) if reports are independent; shapes (thresholds, times),
    (thresholds, slices) and (thresholds, times).
    """
    by_kind = (prices * asked).sum(axis=1)
    demanded = by_kind.sum(axis=0)
    if workload.finite:  # a set has fixed numbers of positives and negatives
        positives = workload.queries * workload.positives
        fixed = by_kind[0] ** 2 / positives + by_kind[1] ** 2 / (workload.queries - positives)
    else:
        fixed = demanded**2 / np.maximum(time, 1.0)
    variance = (prices**2 * asked).sum(axis=(0, 1)) - fixed
    deviation = np.sqrt(np.maximum(variance, 1e-12 * np.maximum(demanded, 1.0) ** 2))
    z = (budget - demanded) / deviation
    from scipy.special import ndtr  # slow to import, and most commands plan nothing

    below = ndtr(z)
    excess = (demanded - budget) * (1 - below) + deviation * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    paid = np.maximum.accumulate(np.clip(demanded - np.maximum(excess, 0.0), 0.0, budget), axis=1)
    more = np.diff(demanded)
    share = np.divide(np.diff(paid), more, out=np.ones_like(more), where=more > 0)
    return demanded, np.clip(share, 0.0, 1.0), 1 - below


def _used_up(budget: int, asked: Floats, time: Floats) -> float:
    """Return the number of queries after which the units are used up; beyond the workload at its last pace."""
    if asked[-1] >= budget:
        return float(np.interp(budget, asked, time))
    pace = (asked[-1] - asked[-2]) / (time[-1] - time[-2])
    life = float(time[-1] + (budget - asked[-1]) / pace) if pace > 0 else math.inf
    return life if life < _UNLIMITED * time[-1] else math.inf


def _span(values: Floats) -> Span:
    return Span(*np.quantile(values, (0.1, 0.5, 0.9), method="lower").tolist())
