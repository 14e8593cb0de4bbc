"""Threshold corrections: how far above the threshold a noisy answer must come before it is reported.

A correction is public: it may depend on the attempt and on past outputs, never on a value, and costs nothing. It is
measured in scales of the query noise (1/rate grid steps), rounded up to the grid, and knows the split w = epsilon of
all queries / epsilon of the threshold that it works best with. Queries that are not monotonic have twice the query
scale at the same epsilon; w keeps threshold scale / query scale where it was.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

from stream_svt.mechanisms.arguments import require, require_bool
from stream_svt.mechanisms.grid import CORRECTION_LIMIT
from stream_svt.mechanisms.noise import (
    RELATIVE_VARIANCE,
    Law,
    Noise,
    least_integer,
    mean,
    scales_at_odds,
    survival_of_difference,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a correction may know about the comparison whose bar it raises."""

    scale: Fraction
    """Query-noise scale of the branch, 1/rate, in grid steps."""
    branches: int = 1
    """Number of branches that test every query."""
    noise: Noise = Noise.EXPONENTIAL
    """Family of the query noise."""
    base: bool = True
    """Whether this is the last and most accurate branch."""
    threshold_mean: float = 0.0
    """Mean of the threshold noise in grid steps."""


class Correction(ABC):
    """How far the bar of a test is raised, by attempt."""

    __slots__ = ()

    @abstractmethod
    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Corrections in grid steps by attempt number; the last one holds for all later attempts."""

    def default_split(self, cutoff: int, monotonic: bool) -> Fraction:
        """Epsilon of all queries / epsilon of the threshold: that of least variance (Lyu, Su & Li 2017)."""
        return least_variance_split(cutoff, monotonic=monotonic, threshold_noise=Noise.EXPONENTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure(Correction):
    """For streams: tolerate `false_alerts` over all the tests that the budget must last for.

    r = s ln(branches * expected_queries * attempts / false_alerts): a query exactly on the noisy threshold is then
    reported by chance with probability at most false_alerts / expected_queries, however often it is retried.
    """

    expected_queries: int
    false_alerts: Fraction
    attempts: int = 1

    def __post_init__(self) -> None:
        require(
            self.expected_queries >= 1 and self.false_alerts > 0 and self.attempts >= 1,
            "exposure needs expected_queries >= 1, false_alerts > 0 and attempts >= 1",
        )

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """One correction for all attempts; never below 0."""
        tests = Fraction(comparison.branches * self.expected_queries * self.attempts) / self.false_alerts
        return (_steps(comparison.scale, max(0.0, math.log(tests))),)

    def default_split(self, cutoff: int, monotonic: bool) -> Fraction:
        """c/2: the threshold noise is half as wide as the query noise."""
        return Fraction(cutoff, 2) if monotonic else Fraction(cutoff)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annealed(Correction):
    """For finite sets: the bar falls from `start` to `end` query-noise scales, by `step` a pass.

    Approaches the accuracy of ranking all noisy answers without knowing the workload. Not for open streams, where
    fresh queries would keep reaching the last and lowest bar. `end` = -3 suits exponential threshold noise; stop
    higher (3 to 6) where precision matters more than filling the cutoff.

    Attributes:
        start, end, step: Of the last and most accurate branch, in its query-noise scales.
        upper: Correction of the cheap branches, in their own scales, at every attempt. The larger of 9 and
            ln(items) keeps false alerts rare; 12 holds even where most items lie near the threshold.
    """

    start: Fraction = Fraction(12)
    end: Fraction = Fraction(-3)
    step: Fraction = Fraction(1)
    upper: Fraction = Fraction(9)

    def __post_init__(self) -> None:
        require(
            self.step > 0 and self.end <= self.start,
            "an annealed correction falls: start >= end and step > 0",
        )
        require(
            self.upper >= 0, "the cheap branches of an annealed correction are corrected upwards: upper >= 0"
        )
        require(self.passes <= 256, "an annealed correction has at most 256 passes; widen its step")

    @property
    def passes(self) -> int:
        """Number of attempts from start to end, both included where the step meets them."""
        return int((self.start - self.end) // self.step) + 1

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """One correction a pass; cheap branches stay at `upper` of their own, wider scales throughout.

        Annealed down as well they would spend the budget on noise: nine scales of an eighth's branch are 72 of the
        base.
        """
        if not comparison.base:
            return (_steps(comparison.scale, self.upper),)
        return tuple(_steps(comparison.scale, self.start - j * self.step) for j in range(self.passes))

    def default_split(self, cutoff: int, monotonic: bool) -> Fraction:
        """c: threshold noise as wide as the query noise; it only shifts the sweep."""
        return Fraction(cutoff if monotonic else 2 * cutoff)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimal(Correction):
    """The correction of Liu et al. (2024): r = argmax G(r)^k (1 - G(r)), rounded up and never below 0.

    Here k = queries/cutoff and G is the distribution function of the query noise of scale s. At 1 - G(r) = 1/(k +
    1) it is s ln(k + 1) for exponential, s ln((k + 1)/2) for Laplace, -s ln ln(1 + 1/k) for Gumbel noise;
    `optimal_steps` finds the maximum on the grid itself. Retries multiply the exposure by their number; `Exposure`
    accounts for them.
    """

    queries: int
    cutoff: int

    def __post_init__(self) -> None:
        require(
            self.queries >= 1 and self.cutoff >= 1,
            "the optimal correction needs queries >= 1 and cutoff >= 1",
        )

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """One correction for all attempts."""
        scales = scales_at_odds(comparison.noise, Fraction(self.queries, self.cutoff))
        return (_steps(comparison.scale, max(0.0, scales)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Correction):
    """Take away the means of both noises, so that an answer on the threshold is compared without bias."""

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Mean of the query noise less that of the threshold noise, for all attempts."""
        of_query = mean(comparison.noise, 1 / comparison.scale)
        return (_bounded(math.ceil(of_query - comparison.threshold_mean)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncorrected(Correction):
    """No correction."""

    def table(self, _comparison: Comparison) -> tuple[int, ...]:
        """Zero for all attempts."""
        return (0,)


@dataclass(frozen=True, slots=True)
class Explicit(Correction):
    """Corrections written down by the user, in grid steps by attempt number."""

    corrections: tuple[int, ...]

    def __post_init__(self) -> None:
        require(bool(self.corrections), "a table of corrections needs at least one number")
        for number in self.corrections:
            _bounded(number)

    def table(self, _comparison: Comparison) -> tuple[int, ...]:
        """Return the numbers as given."""
        return self.corrections


def optimal_steps(ratio: Fraction | float, query: Law, threshold: Law | None = None) -> int:
    """Optimal threshold correction of Liu et al. (2024) on the grid, for any pair of noises; use it with `Explicit`.

    The integer r that maximises G(r)^k (1 - G(r)), G(r) the probability that the noise is less than r: an answer on
    the bar is reported while k others are not. It rises while 1 - G(r) > 1/(k + 1) and falls afterwards.

    `ratio` is k, queries for every answer wanted. Where the law of the threshold noise is given, G is that of query
    noise - threshold noise; without it the noisy threshold is taken as given, as in the paper.
    """
    require(ratio > 0, "queries for every answer wanted: the ratio must be greater than 0")
    balance = 1 / (float(ratio) + 1)

    def logarithm(steps: int) -> float:
        tail = survival_of_difference(query, threshold, steps)
        return float(ratio) * math.log1p(-tail) + math.log(tail) if 0 < tail < 1 else -math.inf

    above = least_integer(lambda steps: survival_of_difference(query, threshold, _bounded(steps)) <= balance)
    return max((above - 1, above), key=logarithm)


def least_variance_split(
    cutoff: int,
    *,
    monotonic: bool,
    query_noise: Noise = Noise.EXPONENTIAL,
    threshold_noise: Noise = Noise.LAPLACE,
) -> Fraction:
    """Epsilon of all queries / epsilon of the threshold that the papers use (Liu et al. 2024, Table 4).

    It minimises the variance of an answer's comparison. With V the variance at scale 1, u = 1 for monotonic queries
    and 2 for others, and epsilon divided as 1 : w, V_t (1 + w)^2 + V_q (u c)^2 (1 + w)^2/w^2 has its minimum at
    w = (V_q/V_t)^(1/3) (u c)^(2/3). The splits of `Exposure` and `Annealed` are larger and better: a corrected
    comparison suffers less from the threshold's noise, which all answers share.
    """
    require(cutoff >= 1, "cutoff must be at least 1")
    require_bool(monotonic, "monotonic")
    query, threshold = Noise.of(query_noise, "query_noise"), Noise.of(threshold_noise, "threshold_noise")
    families = RELATIVE_VARIANCE[query] / RELATIVE_VARIANCE[threshold]
    split = families ** (1 / 3) * (cutoff if monotonic else 2 * cutoff) ** (2 / 3)
    return Fraction(round(split * 10**6), 10**6)


def _steps(scale: Fraction, scales: Fraction | float) -> int:
    """So many scales in grid steps, rounded up."""
    return _bounded(math.ceil(scale * Fraction(scales)))


def _bounded(steps: int) -> int:
    """Refuse a correction that does not fit the grid."""
    require(
        abs(steps) < CORRECTION_LIMIT,
        "a correction reaches 2^48 grid steps, beyond the grid: raise epsilon or granularity",
    )
    return steps
