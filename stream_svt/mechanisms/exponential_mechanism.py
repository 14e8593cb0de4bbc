"""The exponential mechanism with a gap, on the integer grid: which utility is the largest, and by how much.

With integer utilities u_i of sensitivity D, U = D for monotonic utilities and 2D for others, and l = epsilon/U::

    P(s, gap >= m) = e^(l (u_s - m)) / (e^(l (u_s - m)) + sum over i != s of e^(l u_i))        m = 0, 1, ..

so that index s has the probability e^(l u_s)/sum of all e^(l u_i), and the gap is that of a logistic variable at
u_s - ln(sum over i != s of e^(l u_i))/l of scale 1/l, given that it is at least 0, rounded down to grid steps: what
noisy max with continuous Gumbel noise reports, and how much the winner could lose and still win.

Charge: **epsilon**, gap included, for log P(s, gap = m) moves by at most l U between neighbours (Ding et al. 2023,
Theorem 7). Their Algorithm 8 as printed lacks the factor epsilon in the logistic's location: its exact loss is
about 1 whatever epsilon is (10.3 times the charge at epsilon = 0.1). Under zCDP the gap is not free: it doubles the
range of the log-ratio, from a bound of epsilon^2/8 for the index alone to epsilon^2/2
(`stream_svt.privacy.range_bounded`).

* `ExponentialMechanism` draws the index, then the gap given the index, each from one uniform number that is known
  to as many bits as the answer takes: the law above, exactly ("black box").
* `NoisyMaxGumbel` adds discretised Gumbel noise on a refined grid and reports the largest with its gap ("naive"):
  exactly epsilon-private, as any noisy top-1 with the lexicographic gap, of that law up to ties on the refined grid.

References:
    McSherry & Talwar 2007. Ding, Wang, Xiao, Wang, Zhang & Kifer, Free Gap Estimates from the Exponential
    Mechanism, Sparse Vector, Noisy Max and Related Algorithms, VLDB Journal, 2023: section 5, Algorithms 7 and
    8, Theorem 7.
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
from stream_svt.mechanisms.sampler import decimal_context, prefixes
from stream_svt.mechanisms.top_k import Ranking, TopK

Word = Callable[[], int]
"""Returns 64 fresh uniform bits, as a whole number from 0 to 2^64 - 1; that all are uniform, no check can tell."""

_GUARD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism(Mechanism):
    """Exponential mechanism with gap, drawn exactly; see the module for its law.

    Charge: `epsilon`, with the gap or without; under zCDP the price is a quarter where `release_gap` is not set.

    Examples:
        >>> mechanism = ExponentialMechanism(epsilon=10**9, monotonic=True)
        >>> words = iter([2**63, 2**60])
        >>> run, outcomes = mechanism.step(mechanism.open(0, (0, 0)), np.array([3, 9, 8]), lambda: next(words))
        >>> [(top.row, top.gap) for top in outcomes.tops]
        [(1, 4)]
    """

    epsilon: int
    monotonic: bool
    sensitivity: int = 1
    release_gap: bool = True

    @property
    def rate(self) -> Fraction:
        """Return l = epsilon/U, per grid step."""
        return rate_of(self.epsilon, self.query_sensitivity)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise that a noisy max of the same law would have."""
        return (Law(Noise.GUMBEL, self.rate),)

    def step(self, run: Run, values: Integers, word: Word) -> tuple[Run, Outcomes]:
        """Report one index, and its gap, and end the run.

        Args:
            values: Integer utilities, shape (answers,), below 2^47 in magnitude; their number is public.
            word: Source of fresh words; two are read, more where they leave a draw open.

        Raises:
            RunExhausted: When the run has made its step; nothing was drawn.
            MisuseError: When there are fewer than two utilities.
        """
        values = self.checked_values(run, values)
        require(len(values) >= 2, "an exponential mechanism chooses among at least two answers")
        row = draw_index(values, self.rate, word)
        gap = draw_gap(values, row, self.rate, word) if self.release_gap else None
        outcomes = Outcomes(consumed=len(values), tops=(Top(row=row, gap=gap),), charge=self.epsilon)
        return run.after(outcomes), outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyMaxGumbel(Ranking):
    """Exponential mechanism with gap by noisy max: `TopK` with count 1 and Gumbel noise, on a finer grid.

    The grid is `refinement` times finer, where ties are rare; the lexicographic gap is rounded down to whole grid
    steps. Charge: `epsilon`, by the theorem on noisy top-k (rounding is post-processing). For each answer and each
    gap, the probability differs from that of `ExponentialMechanism` by about rate/refinement, relatively.
    """

    epsilon: int
    monotonic: bool
    sensitivity: int = 1
    refinement: int = 2**10

    @property
    def fine(self) -> TopK:
        """The noisy max on the finer grid."""
        return TopK(
            epsilon=self.epsilon,
            count=1,
            monotonic=self.monotonic,
            sensitivity=self.sensitivity * self.refinement,
            noise=Noise.GUMBEL,
        )

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise, in steps of the finer grid."""
        return self.fine.branch_laws

    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """The largest noisy utility; those are below 2^47/refinement in magnitude, noise in steps of the finer grid."""
        most = (VALUE_LIMIT - 1) // self.refinement
        require(
            not len(values) or int(abs(values).max()) <= most,
            f"a utility does not fit a grid {self.refinement} times finer: refine less",
        )
        outcomes = self.fine.select(run, values * self.refinement, noise)
        tops = (replace(top, gap=(top.gap or 0) // self.refinement) for top in outcomes.tops)
        return replace(outcomes, tops=tuple(tops))

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Alignment of the noisy max on the finer grid, which repeats even the finer gap."""
        before, after = (answers * self.refinement for answers in (first, second))
        return self.fine.shifts(outcomes, before, after, neighbours, drawn)


def draw_index(utilities: Integers, rate: Fraction, word: Word) -> int:
    """Draw an index with probability proportional to e^(rate utility), exactly.

    It is that at which the cumulative weights pass a uniform share of their total, both known within closing bounds.
    """
    utilities = grid_values(utilities)
    distances = (int(utilities.max()) - utilities).tolist()
    for low, high, digits in _refinements(word, len(distances)):
        sums, error = _cumulative_weights(distances, rate, digits)
        least, most = low * (sums[-1] - error), high * (sums[-1] + error)
        row = bisect_right(sums, least - error)
        before = sums[row - 1] + error if row else 0
        if before <= least and (row == len(sums) - 1 or most <= sums[row] - error):
            return row
    raise AssertionError  # the refinements do not end


def draw_gap(utilities: Integers, row: int, rate: Fraction, word: Word) -> int:
    """Draw the gap given that the index is `row`, exactly: the greatest m with P(gap >= m | row) >= U, U uniform.

    With R = sum over i != row of e^(rate (u_i - u_row)), that is the floor of ln((1 + R - U)/(U R)) / rate.
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
            least = _steps(high, Fraction(sums[-1] + error, unit), shift, digits) / rate - slack
            most = _steps(low, Fraction(sums[-1] - error, unit), shift, digits) / rate + slack
        if max(0, math.floor(least)) == max(0, math.floor(most)):
            return min(max(0, math.floor(least)), GAP_LIMIT)
    raise AssertionError  # the refinements do not end


def _steps(uniform: Fraction, others: Fraction, shift: Decimal, digits: int) -> Fraction:
    """Return ln(1 + (1 - U)/R) - ln U, R = others * e^-shift; it falls with U and with R."""
    scaled, logarithm = to_decimal((1 - uniform) / others), to_decimal(uniform).ln()
    if not scaled:
        return Fraction(-logarithm)
    if shift > 8 * digits:  # 1 is beneath the error of (1 - U)/R > 10^(2 digits)
        return Fraction(shift + scaled.ln() - logarithm)
    return Fraction((1 + scaled * shift.exp()).ln() - logarithm)


def _refinements(word: Word, count: int) -> Iterator[tuple[Fraction, Fraction, int]]:
    """Ever closer bounds of a uniform number, with the decimal digits that comparing it takes."""
    for prefix, bits in prefixes(word):
        digits = bits * 30103 // 100000 + 2 * len(str(count)) + 2 * _GUARD
        yield Fraction(prefix, 1 << bits), Fraction(prefix + 1, 1 << bits), digits


def _cumulative_weights(distances: list[int], rate: Fraction, digits: int) -> tuple[list[int], int]:
    """Cumulative sums of e^-(rate distance) in units of 10^-digits, and a bound of their error.

    Distances are at least 0, one of them 0. Each weight is at most 1 and errs by 10^(1 - digits) (1 + x),
    x = rate * distance < 3 digits or the weight is below 10^-digits and left out.
    """
    sums = list(accumulate(_weight(distance, rate, digits) for distance in distances))
    return sums, 40 * len(distances) * digits


@lru_cache(maxsize=2**16)
def _weight(distance: int, rate: Fraction, digits: int) -> int:
    """e^-(rate distance) in units of 10^-digits."""
    x = rate * distance
    if x >= 3 * digits:
        return 0
    with decimal.localcontext(decimal_context(digits)):
        return int((-to_decimal(x)).exp().scaleb(digits))
