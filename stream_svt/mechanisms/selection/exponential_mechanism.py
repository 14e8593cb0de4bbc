"""The exponential mechanism with gap on the integer grid: the index of a large utility, and its lead.

With integer utilities u_i of sensitivity D, U = D for monotonic utilities and 2D for others, and l = epsilon/U::

    P(s, gap >= m) = e^(l (u_s - m)) / (e^(l (u_s - m)) + sum over i != s of e^(l u_i))        m = 0, 1, ..

Index s has probability e^(l u_s)/sum of all e^(l u_i). The gap is a logistic variable with location
u_s - ln(sum over i != s of e^(l u_i))/l and scale 1/l, given that it is at least 0, rounded down to grid steps. Noisy
max with continuous Gumbel noise has the same law; there the gap is how much the winner could lose and still win.

Charge: **epsilon**, gap included, because log P(s, gap = m) changes by at most l U between neighbours (Ding et al.
2023, Theorem 7). Their Algorithm 8 as printed lacks the factor epsilon in the location of the logistic; its exact
loss is about 1 for every epsilon (10.3 times the charge at epsilon = 0.1). Under zCDP the gap is not free: it doubles
the range of the log-ratio, and rho grows from at most epsilon^2/8 for the index alone to at most epsilon^2/2.

`ExponentialMechanism` draws exactly this law ("black box" in the paper); `NoisyMaxGumbel` adds discretised Gumbel
noise on a refined grid and reports the largest ("naive").

References:
    McSherry & Talwar 2007. Ding, Wang, Xiao, Wang, Zhang & Kifer, Free Gap Estimates from the Exponential
    Mechanism, Sparse Vector, Noisy Max and Related Algorithms, VLDB Journal, 2023: section 5.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np

from stream_svt.mechanisms.arguments import grid_values, require
from stream_svt.mechanisms.contract import Mechanism, Neighbours, Noises, Outcomes, Run, Top, rate_of
from stream_svt.mechanisms.grid import GAP_LIMIT, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise, to_decimal
from stream_svt.mechanisms.numbers import Epsilon
from stream_svt.mechanisms.sampler import decimal_context, prefixes
from stream_svt.mechanisms.selection.top_k import Ranking, TopK

Word = Callable[[], int]
"""Returns 64 fresh uniform bits as an integer from 0 to 2^64 - 1; the caller guarantees that they are uniform."""

_GUARD = 20


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism(Mechanism):
    """Exponential mechanism with gap (McSherry & Talwar 2007; Ding et al. 2023), sampled exactly; see the module.

    Charge: `epsilon`, with or without the gap. Under zCDP the price is about a quarter if `release_gap` is False.

    Examples:
        >>> mechanism = ExponentialMechanism(epsilon=1, monotonic=True)
        >>> words = iter([2**63, 2**60])
        >>> run, outcomes = mechanism.step(mechanism.open(0, (0, 0)), np.array([3, 9, 8]), lambda: next(words))
        >>> [(top.row, top.gap) for top in outcomes.tops]
        [(1, 4)]
    """

    epsilon: Epsilon = Epsilon()
    monotonic: bool
    sensitivity: int = 1
    release_gap: bool = True

    @property
    def rate(self) -> Fraction:
        """Rate l = epsilon/U, per grid step."""
        return rate_of(self.epsilon_units, self.query_sensitivity)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the Gumbel noise with which noisy max has the same law."""
        return (Law(Noise.GUMBEL, self.rate),)

    def step(self, run: Run, values: Integers, word: Word) -> tuple[Run, Outcomes]:
        """Report one index and, with `release_gap`, its gap in grid steps; this ends the run.

        `values` are integer utilities in grid steps, shape (answers,), below 2^47 in magnitude; their number is public.
        Each draw reads a word, and more if that does not determine it. `RunExhausted` if the run has made its step,
        `MisuseError` if there are fewer than two utilities, or another mechanism opened the run.
        """
        values = self.checked_values(run, values)
        require(len(values) >= 2, "an exponential mechanism needs at least two answers")
        row = draw_index(values, self.rate, word)
        gap = draw_gap(values, row, self.rate, word) if self.release_gap else None
        outcomes = Outcomes(
            consumed=len(values), tops=(Top(row=row, gap=gap),), charge_units=self.epsilon_units
        )
        return run.after(outcomes), outcomes


@dataclass(frozen=True, kw_only=True)
class NoisyMaxGumbel(Ranking):
    """Exponential mechanism with gap by noisy max: `TopK` with k = 1 and Gumbel noise on a finer grid.

    The grid is `refinement` times finer, so ties are rare; the lexicographic gap is rounded down to grid steps.
    Charge: `epsilon`, by the theorem on noisy top-k, since rounding is post-processing. Probabilities differ from those
    of `ExponentialMechanism` by a relative rate/refinement.
    """

    epsilon: Epsilon = Epsilon()
    monotonic: bool
    sensitivity: int = 1
    refinement: int = 2**10

    @property
    def on_finer_grid(self) -> TopK:
        """The noisy max on the finer grid."""
        return TopK(
            epsilon=self.epsilon,
            k=1,
            monotonic=self.monotonic,
            sensitivity=self.sensitivity * self.refinement,
            noise=Noise.GUMBEL,
        )

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise, in steps of the finer grid."""
        return self.on_finer_grid.branch_laws

    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """Return the largest noisy utility and its gap; the noise is in steps of the finer grid.

        `MisuseError` unless utilities are below 2^47/refinement in magnitude.
        """
        fits = abs(values).max(initial=0) <= (VALUE_LIMIT - 1) // self.refinement
        require(
            bool(fits), f"a utility does not fit a grid {self.refinement} times finer: lower the refinement"
        )
        outcomes = self.on_finer_grid.select(run, values * self.refinement, noise)
        tops = (replace(top, gap=(top.gap or 0) // self.refinement) for top in outcomes.tops)
        return replace(outcomes, tops=tuple(tops))

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Return the alignment of the noisy max on the finer grid, which reproduces the gap of that grid."""
        before, after = (answers * self.refinement for answers in (first, second))
        return self.on_finer_grid.shifts(outcomes, before, after, neighbours, drawn)


def draw_index(utilities: Integers, rate: Fraction, word: Word) -> int:
    """Draw an index with probability exactly proportional to e^(rate utility); utilities have shape (answers,).

    It is the first index whose cumulative weight exceeds a uniform share of the total.
    """
    utilities = grid_values(utilities)
    distances = (int(utilities.max()) - utilities).tolist()
    for low, high, digits in _refinements(word, len(distances)):
        sums, error = _cumulative_weights(distances, rate, digits)
        lower, upper = low * (sums[-1] - error), high * (sums[-1] + error)
        row = bisect_right(sums, lower - error)
        before = sums[row - 1] + error if row else 0
        if before <= lower and (row == len(sums) - 1 or upper <= sums[row] - error):
            return row
    raise AssertionError  # the refinements do not end


def draw_gap(utilities: Integers, row: int, rate: Fraction, word: Word) -> int:
    """Draw the gap given index `row`, exactly, in grid steps: the greatest m with P(gap >= m | row) >= U, U uniform.

    With R = sum over i != row of e^(rate (u_i - u_row)), this is the floor of ln((1 + R - U)/(U R)) / rate.
    """
    utilities = grid_values(utilities)
    behind = int(utilities[row]) - np.delete(utilities, row)
    nearest = int(behind.min())
    distances = (behind - nearest).tolist()
    for low, high, digits in _refinements(word, len(distances)):
        if low == 0:
            continue
        sums, error = _cumulative_weights(distances, rate, digits)
        unit = 10**digits
        slack = Fraction(len(distances) + digits * 8, 10 ** (digits - _GUARD)) / rate
        with decimal.localcontext(decimal_context(digits)):
            shift = to_decimal(rate * nearest)
            lower = _steps(high, Fraction(sums[-1] + error, unit), shift, digits) / rate - slack
            upper = _steps(low, Fraction(sums[-1] - error, unit), shift, digits) / rate + slack
        if max(0, math.floor(lower)) == max(0, math.floor(upper)):
            return min(max(0, math.floor(lower)), GAP_LIMIT)
    raise AssertionError  # the refinements do not end


def _steps(uniform: Fraction, others: Fraction, shift: Decimal, digits: int) -> Fraction:
    """Return ln(1 + (1 - U)/R) - ln U for R = others * e^-shift; it decreases in U and in R."""
    scaled, logarithm = to_decimal((1 - uniform) / others), to_decimal(uniform).ln()
    if not scaled:
        return Fraction(-logarithm)
    if shift > 8 * digits:  # 1 is below the error of (1 - U)/R > 10^(2 digits)
        return Fraction(shift + scaled.ln() - logarithm)
    return Fraction((1 + scaled * shift.exp()).ln() - logarithm)


def _refinements(word: Word, count: int) -> Iterator[tuple[Fraction, Fraction, int]]:
    """Yield ever closer bounds of a uniform number, with the decimal digits needed to compare it."""
    for prefix, bits in prefixes(word):
        digits = bits * 30103 // 100000 + 2 * len(str(count)) + 2 * _GUARD
        yield Fraction(prefix, 1 << bits), Fraction(prefix + 1, 1 << bits), digits


def _cumulative_weights(distances: list[int], rate: Fraction, digits: int) -> tuple[list[int], int]:
    """Return cumulative sums of e^-(rate distance) in units of 10^-digits, and a bound of their error.

    Distances are at least 0, and one is 0. Each weight is at most 1 with error 10^(1 - digits) (1 + x) for x = rate *
    distance < 3 digits; beyond, it is below 10^-digits and omitted.
    """
    sums = list(accumulate(_weight(distance, rate, digits) for distance in distances))
    return sums, 40 * len(distances) * digits


@lru_cache(maxsize=2**16)
def _weight(distance: int, rate: Fraction, digits: int) -> int:
    x = rate * distance
    if x >= 3 * digits:
        return 0
    with decimal.localcontext(decimal_context(digits)):
        return int((-to_decimal(x)).exp().scaleb(digits))
