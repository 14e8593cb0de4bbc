"""Threshold corrections: how far above the threshold a noisy answer must lie to be reported.

A correction is public and costs nothing: it may depend on the attempt and on past outputs, never on a value. It is
given in scales of the query noise (1/rate grid steps) and rounded up to the grid. Each kind has a default split
w = epsilon of all queries / epsilon of the threshold. Queries that are not monotonic have twice the query scale at the
same epsilon; the defaults keep the ratio of threshold scale to query scale.
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
    Noise,
    mean,
    scales_at_odds,
)
from stream_svt.mechanisms.numbers import Exact, integer_of, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The public parameters of a comparison that a correction may depend on."""

    scale: Fraction
    """Query-noise scale of the branch, 1/rate, in grid steps."""
    branches: int = 1
    """Number of branches that test every query."""
    noise: Noise = Noise.EXPONENTIAL
    """Family of the query noise."""
    base: bool = True
    """Whether this is the last branch, which has the least noise."""
    threshold_mean: float = 0.0
    """Mean of the threshold noise in grid steps."""


class Correction(ABC):
    """Grid steps by which the bar of a test is raised, by attempt."""

    __slots__ = ()

    @abstractmethod
    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Return corrections in grid steps by attempt number; the last one applies to all later attempts."""

    def default_split(self, cutoff: int, monotonic: bool) -> Fraction:
        """Return epsilon of all queries / epsilon of the threshold; here the least variance (Lyu, Su & Li 2017)."""
        return least_variance_split(cutoff, monotonic=monotonic, threshold_noise=Noise.EXPONENTIAL)


@dataclass(frozen=True, kw_only=True)
class Exposure(Correction):
    """Correction for streams that allows `false_alerts` among all tests that the budget must last for.

    r = s ln(branches * expected_queries * attempts / false_alerts), s the query-noise scale. A query exactly on the
    noisy threshold is then reported with probability at most false_alerts / expected_queries, over all its attempts.
    """

    expected_queries: int
    false_alerts: Exact = Exact()
    attempts: int = 1

    def __post_init__(self) -> None:
        for name in ("expected_queries", "attempts"):
            integer_of(getattr(self, name), name, least=1)

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Return one correction for all attempts, at least 0."""
        tests = Fraction(comparison.branches * self.expected_queries * self.attempts) / self.false_alerts
        return (_steps(comparison.scale, max(0.0, math.log(tests))),)

    def default_split(self, cutoff: int, monotonic: bool) -> Fraction:
        """Return c/2 (c if not monotonic): the threshold noise is half as wide as the query noise."""
        return Fraction(cutoff, 2) if monotonic else Fraction(cutoff)


@dataclass(frozen=True, kw_only=True)
class Annealed(Correction):
    """Correction for finite sets: the bar falls from `start` to `end` query-noise scales, by `step` per attempt.

    It approaches the accuracy of ranking all noisy answers. In an open stream new queries would keep reaching the
    lowest bar. `end` = -3 suits exponential threshold noise; choose 3 to 6 if precision matters more than using up the
    cutoff.

    Attributes:
        start, end, step: Corrections of the last branch, in its query-noise scales.
        upper: Correction of the cheaper branches at every attempt, in their own scales. The larger of 9 and ln(items)
            keeps false alerts rare; 12 does so even if most items lie near the threshold.
    """

    start: Exact = Exact(12, above=None)
    end: Exact = Exact(-3, above=None)
    step: Exact = Exact(1)
    upper: Exact = Exact(9, above=None)

    def __post_init__(self) -> None:
        falls = self.end <= self.start
        require(
            falls, f"end must be at most start, since an annealed correction falls; found {shown(self.end)}"
        )
        require(
            self.upper >= 0,
            f"upper, the correction of the cheaper branches, must be at least 0; found {self.upper}",
        )
        require(self.passes <= 256, "an annealed correction has at most 256 attempts: raise step")

    @property
    def passes(self) -> int:
        """Number of attempts from start to end, including end if the steps meet it."""
        return int((self.start - self.end) // self.step) + 1

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Return one correction per attempt; cheaper branches, which would spend the budget on noise, have `upper`."""
        if not comparison.base:
            return (_steps(comparison.scale, self.upper),)
        return tuple(_steps(comparison.scale, self.start - j * self.step) for j in range(self.passes))

    def default_split(self, cutoff: int, monotonic: bool) -> Fraction:
        """Return c (2c if not monotonic): threshold noise as wide as query noise, since it only shifts the sweep."""
        return Fraction(cutoff if monotonic else 2 * cutoff)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimal(Correction):
    """Correction of Liu et al. (2024): r = argmax G(r)^k (1 - G(r)), rounded up, at least 0.

    Here k = queries/cutoff and G is the distribution function of the query noise of scale s. The maximum, at
    1 - G(r) = 1/(k + 1), is s ln(k + 1) for exponential, s ln((k + 1)/2) for Laplace and -s ln ln(1 + 1/k) for Gumbel
    noise. This rule ignores retries; `Exposure` accounts for them.
    """

    queries: int
    cutoff: int

    def __post_init__(self) -> None:
        for name in ("queries", "cutoff"):
            integer_of(getattr(self, name), name, least=1)

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Return one correction for all attempts."""
        scales = scales_at_odds(comparison.noise, Fraction(self.queries, self.cutoff))
        return (_steps(comparison.scale, max(0.0, scales)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Correction):
    """Correction that removes the means of both noises: an answer on the threshold is compared without bias."""

    def table(self, comparison: Comparison) -> tuple[int, ...]:
        """Return the mean of the query noise minus that of the threshold noise, for all attempts."""
        of_query = mean(comparison.noise, 1 / comparison.scale)
        return (_bounded(math.ceil(of_query - comparison.threshold_mean)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncorrected(Correction):
    """No correction."""

    def table(self, _comparison: Comparison) -> tuple[int, ...]:
        """Return 0 for all attempts."""
        return (0,)


@dataclass(frozen=True, slots=True)
class Explicit(Correction):
    """Corrections given by the user, in grid steps by attempt number."""

    corrections: tuple[int, ...]

    def __post_init__(self) -> None:
        given: object = self.corrections
        some = isinstance(given, tuple) and given != ()
        require(some, f"corrections must be a tuple of one or more integers; found {shown(given)}")
        for number in self.corrections:
            integer_of(number, "corrections", least=1 - CORRECTION_LIMIT, limit=CORRECTION_LIMIT)

    def table(self, _comparison: Comparison) -> tuple[int, ...]:
        """Return the numbers as given."""
        return self.corrections


def least_variance_split(
    cutoff: int,
    *,
    monotonic: bool,
    query_noise: Noise = Noise.EXPONENTIAL,
    threshold_noise: Noise = Noise.LAPLACE,
) -> Fraction:
    """Return epsilon of all queries / epsilon of the threshold of least variance (Liu et al. 2024, Table 4).

    With V the variance at scale 1, u = 1 for monotonic queries and 2 for others, and epsilon divided as 1 : w, the
    variance V_t (1 + w)^2 + V_q (u c)^2 (1 + w)^2/w^2 of query noise - threshold noise has its minimum at
    w = (V_q/V_t)^(1/3) (u c)^(2/3). The splits of `Exposure` and `Annealed` are larger and more accurate: all answers
    share the threshold noise, which matters less to a corrected comparison.
    """
    integer_of(cutoff, "cutoff", least=1)
    require_bool(monotonic, "monotonic")
    query, threshold = Noise.of(query_noise, "query_noise"), Noise.of(threshold_noise, "threshold_noise")
    families = RELATIVE_VARIANCE[query] / RELATIVE_VARIANCE[threshold]
    split = families ** (1 / 3) * (cutoff if monotonic else 2 * cutoff) ** (2 / 3)
    return Fraction(round(split * 10**6), 10**6)


def _steps(scale: Fraction, scales: Fraction | float) -> int:
    """Return a number of scales in grid steps, rounded up."""
    return _bounded(math.ceil(scale * Fraction(scales)))


def _bounded(steps: int) -> int:
    """Return a correction; `MisuseError` if it lies beyond the grid."""
    reason = "a correction reaches 2^48 grid steps, beyond the grid: raise epsilon or granularity"
    require(abs(steps) < CORRECTION_LIMIT, reason)
    return steps
