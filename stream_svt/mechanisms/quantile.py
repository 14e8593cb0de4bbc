"""Quantiles without bounds on the data, and sums clipped at them (Durfee 2023).

For data on the integer grid, with a public base b > 1 and a public start l, the candidates t_i = l + b^i - 1, i =
0, 1, .. grow without end. A sparse-vector run with one top asks of each in turn whether enough of the data lie
below; the first noisy yes, at k, tells t_k (Algorithm 2; the code of the paper's appendix C returns b^i - l + 1,
with the sign of l - 1 turned).

Guarantee, for level A/B in lowest terms, e1 the charge of the threshold and e2 that of the query:

* **Swap** neighbours (n is public): the answers are count(x < t_i) and move the same way by at most 1, the threshold
  is ceil(A n/B). Rates e1 and e2, charge e1 + e2; under zCDP (e1 + 2 e2)^2/8. The same charge covers a record more or
  less, whose threshold moves by 0 or 1 for all tests alike; the next form is charged less for it.
* **Add or remove** one: the answers are B count(x < t_i) - A n, the threshold is 0, the rates e1/B and e2/B. Taking a
  unit away raises answers by at most A: the threshold noise moves by A and the top's by at most B. Adding it raises
  them by B - A from some test on: if the top is among those, the threshold noise moves by B - A and the top's not at
  all, else by 0 and A. So the charge is max((A/B) e1 + e2, (1 - A/B) e1) (Lemma B.1), gap included, and a run stopped
  without a top costs max(A/B, 1 - A/B) e1. The log-ratio lies between minus max((1 - A/B) e1, (A/B) e2) and
  (A/B) e1 + e2; an eighth of the square of that width is the loss under zCDP.

The alignment moves noise up only, so that every family will do. Runs for several levels, or for both ends of the
data, are composed sequentially: their charges add up.

References:
    Durfee, Unbounded Differentially Private Quantile and Maximum Estimation, NeurIPS 2023: Algorithms 2 to 4,
    Lemma B.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms.arguments import (
    BranchNoise,
    checked_noise,
    integer_array,
    is_integer,
    require,
)
from stream_svt.mechanisms.contract import (
    Mechanism,
    Neighbours,
    Noises,
    Outcomes,
    Run,
    Top,
    rate_of,
    shifts_of_rows,
)
from stream_svt.mechanisms.grid import GAP_LIMIT, LEAST_RATE, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise

DEFAULT_BASE = Fraction(1001, 1000)
"""Ratio of neighbouring candidates that the paper recommends."""

_FARTHEST = 2**62


class Adjacency(StrEnum):
    """What neighbouring data sets are."""

    SWAP = "swap"
    """One record replaced; the number of records is public."""
    ADD_REMOVE = "add_remove"
    """One record added or removed; the number of records is private."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnboundedQuantile(Mechanism):
    """One quantile of data with a known least value (Durfee 2023, Algorithm 2).

    Attributes:
        epsilon: Units of 10^-9 that a run that reports costs.
        level: A/B, strictly between 0 and 1.
        adjacency: The neighbours that the charge is for.
        split: e2/e1, query over threshold.
        base, start: Public: candidates are start + base^i - 1, in grid steps.
        threshold_noise, query_noise: Families.
    """

    epsilon: int
    level: Fraction
    adjacency: Adjacency
    split: Fraction = Fraction(1)
    base: Fraction = DEFAULT_BASE
    start: int = 0
    threshold_noise: Noise = Noise.EXPONENTIAL
    query_noise: Noise = Noise.EXPONENTIAL

    def __post_init__(self) -> None:
        require(
            isinstance(self.level, Fraction),
            "the level of a quantile is a Fraction, such as Fraction(1, 2): its denominator scales the noise, and that "
            "of a float is not what was meant",
        )
        require(0 < self.level < 1, "the level of a quantile lies strictly between 0 and 1")
        require(self.base > 1, "the base of the candidates is greater than 1, or they would not grow")
        Mechanism.__post_init__(self)

    @property
    def monotonic(self) -> bool:
        """Whether neighbours move all answers the same way: swaps do, adding or removing does not."""
        return self.adjacency is Adjacency.SWAP

    @property
    def sensitivity(self) -> int:
        """Grid steps that rates are divided by, and a top's noise moves at most: 1 for swaps, B for others."""
        return 1 if self.monotonic else self.level.denominator

    @property
    def query_sensitivity(self) -> int:
        """U, equal to `sensitivity`."""
        return self.sensitivity

    @property
    def threshold_units(self) -> int:
        """Return e1, the most that `epsilon` pays: see the module."""
        of_one = 1 + self.split if self.monotonic else max(self.level + self.split, 1 - self.level)
        return math.floor(self.epsilon / of_one)

    @property
    def query_units(self) -> int:
        """Return e2."""
        return math.floor(self.threshold_units * self.split)

    @property
    def threshold_law(self) -> Law:
        """Law of the threshold noise."""
        return Law(self.threshold_noise, rate_of(self.threshold_units, self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise."""
        return (Law(self.query_noise, rate_of(self.query_units, self.sensitivity)),)

    @property
    def threshold_charge(self) -> int:
        """Units spent when a run opens, and all that a run without a top costs."""
        if self.monotonic:
            return self.threshold_units
        return math.ceil(max(self.level, 1 - self.level) * self.threshold_units)

    @property
    def rho(self) -> Fraction:
        """Zero-concentrated loss of a run, gap included: width of the log-ratio's interval, squared, by 8."""
        e1, e2 = (rate_of(units, 1) for units in (self.threshold_units, self.query_units))
        if self.monotonic:
            return (e1 + 2 * e2) ** 2 / 8
        return (self.level * e1 + e2 + max((1 - self.level) * e1, self.level * e2)) ** 2 / 8

    def candidate(self, index: int) -> Fraction:
        """Return t_index, exactly, in grid steps: what a top at this test tells."""
        return self.start + self.base**index - 1

    def answers(self, data: Integers, first: int, tests: int) -> Integers:
        """Answers less their threshold, for so many candidates from `first` on; at least 0 is a yes.

        The records are a sorted array of whole grid steps.
        """
        data = integer_array(data, "records")
        require(
            not (data[1:] < data[:-1]).any(),
            "the records are not sorted: those below a candidate are counted by bisection, and in another order one "
            "record could change the count by any number. Sort them first",
        )
        size, A, B = len(data), self.level.numerator, self.level.denominator
        require(
            (size + 1) * B < VALUE_LIMIT,
            "so many records at this level reach beyond the grid: use a simpler level",
        )
        power, bounds = self.base**first, np.empty(tests, dtype=np.int64)
        for i in range(tests):
            bounds[i] = min(_FARTHEST, math.ceil(self.start + power - 1))  # x < t iff x < ceil(t), x whole
            power *= self.base
        below = np.searchsorted(data, bounds, side="left").astype(np.int64)
        return below + A * size // -B if self.monotonic else B * below - A * size

    def is_over(self, run: Run) -> bool:
        """Whether the run has reported."""
        return run.tops > 0

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Outcomes]:
        """Test the next candidates, with values from `answers`, in order until one is reported."""
        values = self.checked_values(run, values)
        gaps = values + checked_noise(noise, len(values))(0) - run.threshold_noise
        outcomes = Outcomes(consumed=len(values), tops=())
        for row in np.flatnonzero(gaps >= 0)[:1].tolist():
            top = Top(row=row, gap=min(int(gaps[row]), GAP_LIMIT), charge=run.left)
            outcomes = Outcomes(consumed=row + 1, tops=(top,), charge=run.left)
        return run.after(outcomes), outcomes

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, _neighbours: Neighbours
    ) -> Noises:
        """Randomness alignment, given all tests of a run.

        The threshold noise moves by the most that an answer tested rises, the top's by as much plus what its own
        falls.
        """
        lift = int((second - first)[: outcomes.consumed].max(initial=0))
        return Noises(lift, shifts_of_rows(first, second, outcomes.rows, lift)[np.newaxis])


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyUnboundedQuantile:
    """Quantile of data with no known least value: a run on the data and one on their negatives (Algorithm 4).

    Charge: `epsilon` of the given quantile, half for each run; the second need not be opened when the first has told a
    candidate above 0. `upper` is of x from 0 on, `lower` of -x from 0 on, at the complementary level.
    """

    quantile: UnboundedQuantile

    def __post_init__(self) -> None:
        require(self.quantile.start == 0, "the two runs of a quantile without a least value start at 0")

    @property
    def upper(self) -> UnboundedQuantile:
        """The run on the data."""
        return replace(self.quantile, epsilon=self.quantile.epsilon // 2)

    @property
    def lower(self) -> UnboundedQuantile:
        """The run on their negatives."""
        return replace(self.upper, level=1 - self.quantile.level)

    def reported(self, upper: int, lower: int) -> Fraction:
        """Grid steps told by the numbers of the tests that were reported: of the first run, and of the second."""
        return self.upper.candidate(upper) if upper > 0 else -self.lower.candidate(lower)


def multiple_quantiles(
    quantile: UnboundedQuantile, levels: tuple[Fraction, ...]
) -> tuple[UnboundedQuantile, ...]:
    """Return runs for several levels, which rise strictly, each with an equal share of a quantile's epsilon.

    Composed sequentially, under zCDP too. Noise may turn two results around; sorting them is free.
    """
    require(
        bool(levels) and list(levels) == sorted(set(levels)),
        "levels of quantiles are one or more and rise strictly",
    )
    share = quantile.epsilon // len(levels)
    return tuple(replace(quantile, level=level, epsilon=share) for level in levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """Sum of records that are at least 0, each clipped at a quantile of them, with discrete Laplace noise.

    Charge: that of the quantile, whose start is 0, and `charge` units for the sum. Clipped records lie in [0, bound],
    so that adding, removing or replacing one changes the sum by at most the bound, public once the quantile is told.
    The alignment moves the sum's noise by the change, up or down: Laplace only.
    """

    quantile: UnboundedQuantile
    charge: int

    def __post_init__(self) -> None:
        require(
            self.quantile.start == 0,
            "a clipped sum is of records that are at least 0: the quantile starts at 0",
        )
        require(self.charge >= 1, "the charge of the sum is at least one unit")

    @property
    def epsilon(self) -> int:
        """Units of the quantile and the sum."""
        return self.quantile.epsilon + self.charge

    def bound(self, index: int) -> int:
        """Grid steps at which records are clipped when the quantile reports this test; at least 1."""
        return max(1, math.floor(self.quantile.candidate(index)))

    def law(self, bound: int) -> Law:
        """Law of the sum's noise: discrete Laplace at charge / bound; refused where it is wider than the grid."""
        rate = rate_of(self.charge, bound)
        require(
            rate >= LEAST_RATE,
            "noise of the sum would be wider than the grid: raise its charge or the granularity",
        )
        return Law(Noise.LAPLACE, rate)

    def release(self, data: Integers, bound: int, noise: int) -> int:
        """Clipped sum plus a draw of `law(bound)`, in grid steps; exact, whatever its size."""
        require(is_integer(noise), "the noise of a sum is a whole number of grid steps")
        return self.clipped(data, bound) + int(noise)

    def shift(self, first: Integers, second: Integers, bound: int) -> int:
        """Randomness alignment of the sum: how far its noise moves so that `second` gives the same."""
        return self.clipped(first, bound) - self.clipped(second, bound)

    @staticmethod
    def clipped(data: Integers, bound: int) -> int:
        """Sum of the records, whole numbers of shape (n,), clipped to [0, bound]; secret."""
        require(
            is_integer(bound) and 1 <= bound <= _FARTHEST,
            "records are clipped at a whole number of grid steps, from 1 to 2^62",
        )
        return sum(np.clip(integer_array(data, "records"), 0, int(bound)).tolist())
