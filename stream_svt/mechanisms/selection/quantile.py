"""Quantiles of unbounded data, and sums clipped at them (Durfee 2023).

For data on the integer grid, a public base b > 1 and a public start l, the candidates t_i = l + b^i - 1 for i = 0,
1, .. grow without bound. A sparse-vector run with one top tests for each in turn whether enough records lie below it;
if test k reports, t_k is the quantile (Algorithm 2; the paper's appendix C has the opposite sign of l - 1).

Guarantee for level A/B in lowest terms, with e1 the epsilon of the threshold and e2 that of the query:

* **Swap** neighbours (n is public): the answers are count(x < t_i) and move in one direction by at most 1; the
  threshold is ceil(A n/B). Rates e1 and e2, charge e1 + e2, under zCDP (e1 + 2 e2)^2/8. The same charge covers adding
  or removing a record, which moves the threshold by 0 or 1 for all tests; the next form is charged less for it.
* **Add or remove** a record: the answers are B count(x < t_i) - A n, the threshold is 0, the rates are e1/B and e2/B.
  Removal raises answers by at most A: the threshold noise moves by A and the top's noise by at most B. Addition raises
  them by B - A from some test on: if the top is among these tests, the threshold noise moves by B - A and the top's
  noise by 0, otherwise by 0 and A. So the charge is max((A/B) e1 + e2, (1 - A/B) e1) (Lemma B.1), gap included, and
  max(A/B, 1 - A/B) e1 for a run without a top. The log-ratio lies between -max((1 - A/B) e1, (A/B) e2) and
  (A/B) e1 + e2; the zCDP loss is an eighth of the square of this interval's width.

The alignment moves noise up only, so every family is allowed. Runs for several levels, or for both tails of the data,
compose sequentially: their charges add up.

References:
    Durfee, Unbounded Differentially Private Quantile and Maximum Estimation, NeurIPS 2023: Algorithms 2 to 4,
    Lemma B.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms.arguments import BranchNoise, checked_noise, integer_array, is_integer, require
from stream_svt.mechanisms.contract import Mechanism, Neighbours, Noises, Outcomes, Run, Top, rate_of
from stream_svt.mechanisms.grid import GAP_LIMIT, LEAST_RATE, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON, Epsilon, Exact, Number, listed, number_of, shown

DEFAULT_BASE = Fraction(1001, 1000)
"""Ratio of successive candidates that the paper recommends."""

_FARTHEST = 2**62


class Adjacency(StrEnum):
    """How neighbouring datasets differ."""

    SWAP = "swap"
    """One record replaced; the number of records is public."""
    ADD_REMOVE = "add_remove"
    """One record added or removed; the number of records is private."""


@dataclass(frozen=True, kw_only=True)
class UnboundedQuantile(Mechanism):
    """One quantile of data with a known lower bound (Durfee 2023, Algorithm 2); see the module for the charge.

    Attributes:
        epsilon: What a run with a top costs at most.
        level: A/B, strictly between 0 and 1. Its denominator scales the noise.
        adjacency: The neighbours for which the charge holds.
        split: e2/e1, epsilon of the query / epsilon of the threshold.
        base, start: Public; the candidates are start + base^i - 1, in grid steps.
    """

    epsilon: Epsilon = Epsilon()
    level: Exact = Exact(above=0, below=1)
    adjacency: Adjacency
    split: Exact = Exact(1)
    base: Exact = Exact(DEFAULT_BASE, above=1)
    start: int = 0
    threshold_noise: Noise = Noise.EXPONENTIAL
    query_noise: Noise = Noise.EXPONENTIAL

    @property
    def monotonic(self) -> bool:
        """Whether neighbours move all answers in one direction: True for swaps only."""
        return self.adjacency is Adjacency.SWAP

    @property
    def sensitivity(self) -> int:
        """Largest move of a top's noise, by which rates are divided: 1 for swaps, B for adding or removing."""
        return 1 if self.monotonic else self.level.denominator

    @property
    def query_sensitivity(self) -> int:
        """U, equal to `sensitivity`."""
        return self.sensitivity

    @property
    def e1_units(self) -> int:
        """Units of e1, the largest that `epsilon` pays for; see the module."""
        of_one = 1 + self.split if self.monotonic else max(self.level + self.split, 1 - self.level)
        return math.floor(self.epsilon_units / of_one)

    @property
    def e2_units(self) -> int:
        """Units of e2."""
        return math.floor(self.e1_units * self.split)

    @property
    def threshold_law(self) -> Law:
        """Law of the threshold noise."""
        return Law(self.threshold_noise, rate_of(self.e1_units, self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise."""
        return (Law(self.query_noise, rate_of(self.e2_units, self.sensitivity)),)

    @property
    def threshold_units(self) -> int:
        """Units that opening a run costs, and the whole cost of a run without a top."""
        if self.monotonic:
            return self.e1_units
        return math.ceil(max(self.level, 1 - self.level) * self.e1_units)

    @property
    def rho(self) -> Fraction:
        """Loss of a run under zCDP, gap included: an eighth of the squared width of the log-ratio's interval."""
        e1, e2 = (rate_of(units, 1) for units in (self.e1_units, self.e2_units))
        if self.monotonic:
            return (e1 + 2 * e2) ** 2 / 8
        return (self.level * e1 + e2 + max((1 - self.level) * e1, self.level * e2)) ** 2 / 8

    def candidate(self, index: int) -> Fraction:
        """Return candidate t_index exactly, in grid steps: the quantile if the test of this index reports."""
        return self.start + self.base**index - 1

    def answers(self, data: Integers, first: int, tests: int) -> Integers:
        """Return answers minus threshold for `tests` candidates from index `first` on, int64, shape (tests,).

        `data` are the records in grid steps, an integer array of shape (n,) in ascending order; `MisuseError` if they
        are not sorted, or too many for the grid at this level. The answers are secret.
        """
        data = integer_array(data, "records")
        require(
            not (data[1:] < data[:-1]).any(),
            "the records are not sorted: bisection counts those below a candidate, and in another order one record "
            "could change the count by any number. Sort them first",
        )
        size, A, B = len(data), self.level.numerator, self.level.denominator
        require(
            (size + 1) * B < VALUE_LIMIT,
            "the answers of this many records reach beyond the grid: use a level with a smaller denominator",
        )
        above, below = (
            self.base.as_integer_ratio()
        )  # integers: a Fraction would look for common factors each time
        power, scale = above**first, below**first
        bounds = np.empty(tests, dtype=np.int64)
        for i in range(tests):
            # x < t iff x < ceil(t) for integer x
            bounds[i] = min(_FARTHEST, self.start - 1 - power // -scale)
            power, scale = power * above, scale * below
        smaller = np.searchsorted(data, bounds, side="left").astype(np.int64)
        return smaller + A * size // -B if self.monotonic else B * smaller - A * size

    def is_over(self, run: Run) -> bool:
        """Whether the run has reported a top."""
        return run.tops > 0

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Outcomes]:
        """Test the next candidates in order until one is reported; `values` come from `answers`, shape (tests,).

        `RunExhausted` after a top, `MisuseError` for a run that another mechanism opened.
        """
        values = self.checked_values(run, values)
        gaps = values + checked_noise(noise, len(values))(0) - run.threshold_noise
        outcomes = Outcomes(consumed=len(values), tops=())
        for row in np.flatnonzero(gaps >= 0)[:1].tolist():
            top = Top(row=row, gap=min(int(gaps[row]), GAP_LIMIT), charge_units=run.left_units)
            outcomes = Outcomes(consumed=row + 1, tops=(top,), charge_units=run.left_units)
        return run.after(outcomes), outcomes

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, _neighbours: Neighbours
    ) -> Noises:
        """Return the alignment, given all tests of a run.

        The threshold noise moves by the largest rise of a tested answer, the top's by that plus its answer's fall.
        """
        rise = int((second - first)[: outcomes.consumed].max(initial=0))
        return Noises(rise, self.shifts_of_rows(first, second, outcomes.rows, rise)[np.newaxis])


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyUnboundedQuantile:
    """Quantile of data without a known lower bound: one run on the data, one on their negatives (Algorithm 4).

    Charge: `epsilon` of the given quantile, half for each run. If the first run reports a candidate above 0, the second
    need not be opened.
    """

    quantile: UnboundedQuantile

    def __post_init__(self) -> None:
        of_kind = isinstance(self.quantile, UnboundedQuantile)
        require(of_kind, f"quantile must be an UnboundedQuantile; found {shown(self.quantile)}")
        require(self.quantile.start == 0, "the two runs of a quantile without a lower bound must start at 0")

    @property
    def upper(self) -> UnboundedQuantile:
        """Mechanism of the run on the data."""
        return replace(self.quantile, epsilon=self.quantile.epsilon / 2)

    @property
    def lower(self) -> UnboundedQuantile:
        """Mechanism of the run on the negatives of the data."""
        return replace(self.upper, level=1 - self.quantile.level)

    def reported(self, upper: int, lower: int) -> Fraction:
        """Return the quantile in grid steps, from the indices of the tests that the two runs reported."""
        return self.upper.candidate(upper) if upper > 0 else -self.lower.candidate(lower)


def multiple_quantiles(
    quantile: UnboundedQuantile, levels: Sequence[Number]
) -> tuple[UnboundedQuantile, ...]:
    """Return mechanisms for strictly rising levels, each with an equal share of the epsilon of `quantile`.

    They compose sequentially, under zCDP too. Noise may reverse the order of two results; sorting them is free.
    `MisuseError` if levels are missing or do not rise strictly.
    """
    require(
        isinstance(quantile, UnboundedQuantile),
        f"quantile must be an UnboundedQuantile; found {shown(quantile)}",
    )
    exactly = [number_of(level, "levels", above=0, below=1) for level in listed(levels, "levels")]
    rising = bool(exactly) and exactly == sorted(set(exactly))
    require(
        rising, "levels must be a list of one or more numbers that rise strictly, such as [0.25, 0.5, 0.75]"
    )
    share = quantile.epsilon / len(exactly)
    return tuple(replace(quantile, level=level, epsilon=share) for level in exactly)


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """Sum of records of at least 0, clipped at a quantile of the records, with discrete Laplace noise (Durfee 2023).

    Charge: that of the quantile, whose start is 0, plus `charge` for the sum. Clipped records lie in [0, bound],
    so adding, removing or replacing one changes the sum by at most the bound, which the quantile has made public. The
    alignment moves the noise of the sum by this change, up or down, so it must be Laplace noise.
    """

    quantile: UnboundedQuantile
    charge: Epsilon = Epsilon()

    def __post_init__(self) -> None:
        of_kind = isinstance(self.quantile, UnboundedQuantile)
        require(of_kind, f"quantile must be an UnboundedQuantile; found {shown(self.quantile)}")
        from_zero = self.quantile.start == 0
        require(from_zero, "a clipped sum needs records of at least 0: the quantile must start at 0")

    @property
    def epsilon(self) -> Fraction:
        """Epsilon that the quantile and the sum cost together."""
        return self.quantile.epsilon + self.charge

    @property
    def charge_units(self) -> int:
        """Units that the sum costs."""
        return int(self.charge * UNITS_PER_EPSILON)

    def bound(self, index: int) -> int:
        """Return the grid steps, at least 1, at which records are clipped if the quantile reports this test."""
        return max(1, math.floor(self.quantile.candidate(index)))

    def law(self, bound: int) -> Law:
        """Return the law of the sum's noise, discrete Laplace at charge/bound; `MisuseError` if wider than the grid."""
        rate = rate_of(self.charge_units, bound)
        require(
            rate >= LEAST_RATE,
            "noise of the sum would be wider than the grid: raise its charge or the granularity",
        )
        return Law(Noise.LAPLACE, rate)

    def release(self, data: Integers, bound: int, noise: int) -> int:
        """Return the clipped sum plus `noise`, a draw of `law(bound)`, in grid steps; exact for any size."""
        require(is_integer(noise), "the noise of a sum must be an integer number of grid steps")
        return self.clipped(data, bound) + int(noise)

    def shift(self, first: Integers, second: Integers, bound: int) -> int:
        """Return the randomness alignment: how far the noise moves so that `second` gives the same sum."""
        return self.clipped(first, bound) - self.clipped(second, bound)

    @staticmethod
    def clipped(data: Integers, bound: int) -> int:
        """Return the sum of the records, integers of shape (n,), clipped to [0, bound]; it is secret."""
        fits = is_integer(bound) and 1 <= bound <= _FARTHEST
        require(fits, "the bound must be an integer number of grid steps, from 1 to 2^62")
        return sum(np.clip(integer_array(data, "records"), 0, int(bound)).tolist())
