"""The exponential mechanism with a gap, on the integer grid: which utility is the largest, and by how much.

With integer utilities u_i of sensitivity D, U = D for monotonic utilities and 2D for others, and l = epsilon/U::

    P(s, gap >= m) = e^(l (u_s - m)) / (e^(l (u_s - m)) + sum over i != s of e^(l u_i))        m = 0, 1, ..

so that index s has the probability e^(l u_s)/sum of all e^(l u_i), and the gap that of a logistic variable at the
location u_s - ln(sum over i != s of e^(l u_i))/l of scale 1/l, given that it is at least 0, rounded down to grid steps.
It is what noisy max with continuous Gumbel noise reports, and the gap how much the winner could lose and still win.

Charge: **epsilon**, gap included, for log P(s, gap = m) moves by at most l U between neighbours (Ding et al. 2023,
Theorem 7; the location of the logistic moves by at most U). Their Algorithm 8 as printed lacks the factor epsilon in
that location: its exact loss is about 1 whatever epsilon is (10.3 times the charge at epsilon = 0.1). Under pure
differential privacy the gap is free, under zCDP it is not: it doubles the range of the log-ratio, from a bound of
epsilon^2/8 for the index alone to epsilon^2/2 (`stream_svt.privacy.range_bounded.exact_exponential` has both prices).

Two ways to run it:

* `ExponentialMechanism` draws the index, then the gap given the index, each from one uniform number that is known to as
  many bits as the answer takes: the law above, exactly ("black box": the mechanism need not be noisy max).
* `NoisyMaxGumbel` adds discretised Gumbel noise on a refined grid and reports the largest with its gap ("naive"). It
  is exactly epsilon-private, as any noisy top-1 with the lexicographic gap; its law is that above up to ties on the
  refined grid.

References:
    McSherry & Talwar 2007. Ding, Wang, Xiao, Wang, Zhang & Kifer, Free Gap Estimates from the Exponential
    Mechanism, Sparse Vector, Noisy Max and Related Algorithms, VLDB Journal, 2023: section 5, Algorithms 7 and
    8, Theorem 7.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms.arguments import grid_values, next_word, require_bool, require_own
from stream_svt.mechanisms.contract import Law, Neighbours, OneStep, Shifts
from stream_svt.mechanisms.grid import GAP_LIMIT, LEAST_RATE, VALUE_LIMIT
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.run import UNITS_PER_EPSILON, BranchNoise, Integers, Run, mechanism_id
from stream_svt.mechanisms.selection import Chosen, Drawn, Selection
from stream_svt.mechanisms.top_k import TopK

Real = TypeVar("Real", float, Fraction)
Word = Callable[[], int]
"""Returns 64 fresh uniform bits, as a whole number from 0 to 2^64 - 1.

All 64 must be uniform, which no check can tell: words of a 32-bit generator are in range, and all of them lie where the
first answer is chosen.
"""

_WORD = 64
_GUARD = 20
_LEAST_LOG = -700.0
"""Weights below e^-700 are beneath the error that is allowed for anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism(OneStep):
    """Exponential mechanism with gap, drawn exactly; see the module for its law.

    Charge: `epsilon`, with the gap or without.

    Attributes:
        epsilon: Units that the one step costs.
        monotonic: Whether neighbours move all utilities the same way.
        sensitivity: D: most that one utility changes between neighbours, in grid steps.
        release_gap: Whether the gap is released; without it the zCDP price is a quarter.

    Raises:
        MisuseError: When a parameter is out of range, or the noise would be wider than the grid.

    Examples:
        >>> mechanism = ExponentialMechanism(epsilon=10**9, monotonic=True)
        >>> words = iter([2**63, 2**60])
        >>> run, selection = mechanism.step(mechanism.open(0, (0, 0)), np.array([3, 9, 8]), lambda: next(words))
        >>> selection.tops
        (Chosen(row=1, gap=4),)
    """

    epsilon: int
    monotonic: bool
    sensitivity: int = 1
    release_gap: bool = True

    def __post_init__(self) -> None:
        """Check the parameters."""
        require_bool(self.monotonic, "monotonic")
        require_bool(self.release_gap, "release_gap")
        if self.epsilon < 1:
            raise MisuseError("epsilon must be at least one unit, 1e-9")
        if self.sensitivity < 1:
            raise MisuseError("sensitivity must be at least one grid step")
        if self.rate < LEAST_RATE:
            raise MisuseError(
                "the law would be wider than the grid: raise epsilon, or use a coarser granularity"
            )

    @property
    def rate(self) -> Fraction:
        """Return l = epsilon/U, per grid step."""
        return Fraction(self.epsilon, UNITS_PER_EPSILON * self.query_sensitivity)

    def step(self, run: Run, values: Integers, word: Word) -> tuple[Run, Selection]:
        """Report one index, and its gap, and end the run.

        Args:
            values: Integer utilities, shape (answers,), below 2^47 in magnitude; their number is public.
            word: Source of noise: fresh numbers of 64 uniform bits each, no fewer. Two are read, more where
                they leave a draw open (about once in 10^5 steps for 10^5 answers).

        Raises:
            RunExhausted: When the run has made its step; nothing was drawn.
            MisuseError: When there are fewer than two utilities, for a run or utilities that
                `SparseVector.step` refuses, and for a word outside [0, 2^64).
        """
        require_own(run, self, self.epsilon)
        if self.is_over(run):
            raise RunExhausted("this run has made its one step; a new one pays again")
        values = grid_values(values)
        if len(values) < 2:
            raise MisuseError("an exponential mechanism chooses among at least two answers")
        row = draw_index(values, self.rate, word)
        gap = draw_gap(values, row, self.rate, word) if self.release_gap else None
        return (
            replace(run, left=0, tops=1),
            Selection(consumed=len(values), tops=(Chosen(row=row, gap=gap),), charge=self.epsilon),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyMaxGumbel(OneStep):
    """Exponential mechanism with gap by noisy max: `TopK` with count 1 and Gumbel noise, on a finer grid.

    Utilities and noise live on a grid `refinement` times finer, where ties are rare; the lexicographic gap is
    rounded down to whole grid steps. Charge: `epsilon`, by the theorem on noisy top-k (rounding is post-processing).
    For each answer and each gap, the probability differs from that of `ExponentialMechanism` by about rate/refinement,
    relatively.

    Attributes:
        epsilon, monotonic, sensitivity: As of `ExponentialMechanism`.
        refinement: Steps of the finer grid in a grid step.
    """

    epsilon: int
    monotonic: bool
    sensitivity: int = 1
    refinement: int = 2**10

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.refinement < 1:
            raise MisuseError("refinement must be at least 1")
        _ = self.fine

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
    def query_sensitivity(self) -> int:
        """U, in steps of the finer grid, on which the noise lives."""
        return self.fine.query_sensitivity

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise, in steps of the finer grid."""
        return self.fine.branch_laws

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Selection]:
        """Report the largest noisy utility and its gap, and end the run.

        Args:
            values: Integer utilities, shape (answers,), below 2^47/refinement in magnitude.
            noise: Gumbel noise of all answers, in steps of the finer grid; asked for branch 0 only.

        Raises:
            RunExhausted: When the run has made its step; nothing was drawn.
            MisuseError: When there are fewer than two utilities, or one does not fit the finer grid.
        """
        require_own(run, self, self.epsilon)
        part = replace(run, mechanism=mechanism_id(self.fine))
        after, selection = self.fine.step(part, self._refined(values), noise)
        tops = tuple(
            Chosen(row=top.row, gap=None if top.gap is None else top.gap // self.refinement)
            for top in selection.tops
        )
        return replace(after, mechanism=run.mechanism), replace(selection, tops=tops)

    def shifts(
        self,
        outcomes: Selection,
        first: Integers,
        second: Integers,
        neighbours: Neighbours,
        noise_on_first: Drawn,
    ) -> Shifts:
        """Randomness alignment of the noisy max on the finer grid, which repeats even the finer gap."""
        return self.fine.shifts(
            outcomes, self._refined(first), self._refined(second), neighbours, noise_on_first
        )

    def _refined(self, values: Integers) -> Integers:
        """Utilities on the finer grid."""
        values = grid_values(values)
        most = (VALUE_LIMIT - 1) // self.refinement
        if len(values) and (int(values.max()) > most or int(values.min()) < -most):
            raise MisuseError(f"a utility does not fit a grid {self.refinement} times finer: refine less")
        return values * self.refinement


def choice_probability(utilities: Sequence[int], row: int, ratio: Real) -> Real:
    """P(index = row) for `ratio` = e^-l; exact when that is a Fraction."""
    return tail_probability(utilities, row, 0, ratio)


def tail_probability(utilities: Sequence[int], row: int, gap: int, ratio: Real) -> Real:
    """P(index = row and gap >= `gap`) for `ratio` = e^-l and `gap` >= 0; exact when that is a Fraction."""
    top = max(utilities)
    own = ratio ** (top - utilities[row] + gap)
    return own / (own + sum(ratio ** (top - u) for i, u in enumerate(utilities) if i != row))


def gap_probability(utilities: Sequence[int], row: int, gap: int, ratio: Real) -> Real:
    """P(index = row and gap = `gap`) for `ratio` = e^-l; exact when that is a Fraction."""
    return tail_probability(utilities, row, gap, ratio) - tail_probability(utilities, row, gap + 1, ratio)


def draw_index(utilities: Integers, rate: Fraction, word: Word) -> int:
    """Draw an index with probability proportional to e^(rate utility), exactly.

    A uniform number is compared with the cumulative weights, in floats where their error (below) cannot change the
    answer and otherwise in decimals, with as many bits and digits as it takes.

    Notes:
        A weight e^-x, x < 700, computed in floats from a rate and a product that are rounded each, errs by a relative
        700 * 2^-51 + 2^-51 < 2^-41; n of them are summed with n 2^-53. Weights below e^-700 count less than that.
    """
    first, utilities = next_word(word), grid_values(utilities)
    distances = int(utilities.max()) - utilities
    cumulative = np.cumsum(_weights(distances, rate))
    total = float(cumulative[-1])
    slack = _float_error(len(utilities)) * total
    place = math.ldexp(first, -_WORD) * total
    row = int(np.searchsorted(cumulative, place, side="right"))
    below = float(cumulative[row - 1]) if row else -math.inf
    if row < len(utilities) and below + slack <= place and place + slack <= float(cumulative[row]):
        return row
    for low, high, digits in _refinements(first, word, len(utilities)):
        sums, error = _exact_sums(distances, rate, digits)
        total_low, total_high = sums[-1] - error, sums[-1] + error
        row = next(i for i, part in enumerate(sums) if part + error > low * total_low)
        before = sums[row - 1] + error if row else Fraction(0)
        if before <= low * total_low and (row == len(sums) - 1 or high * total_high <= sums[row] - error):
            return row
    raise AssertionError  # the refinements do not end


def draw_gap(utilities: Integers, row: int, rate: Fraction, word: Word) -> int:
    """Draw the gap given that the index is `row`, exactly: the greatest m with P(gap >= m | row) >= U, U uniform.

    With R = sum over i != row of e^(rate (u_i - u_row)), that is the floor of ln((1 + R - U)/(U R)) / rate. It has the
    same law as lowering u_row step by step: draw an index with u_row lowered by m + 1; if it is `row`, or with
    probability e^-rate otherwise, go on to m + 1; else stop.
    """
    first, utilities = next_word(word), grid_values(utilities)
    distances = int(utilities[row]) - np.delete(utilities, row)
    nearest = int(distances.min())
    # ln R = ln(sum of the weights against the best other) - rate * nearest: R itself may be beyond all floats.
    log_rest = math.log(float(np.sum(_weights(distances - nearest, rate)))) - float(rate) * nearest
    slack = (_float_error(len(utilities)) + 2.0**-50 * (abs(log_rest) + 64)) / float(rate)
    if 0 < first < 2**_WORD - 1 and slack < 0.25:
        ends = [_logistic(log_rest, bits) / float(rate) for bits in (first + 1, first)]
        low, high = math.floor(ends[0] - slack), math.floor(ends[1] + slack)
        if 0 <= low == high < 2**50:
            return low
    for least, most, digits in _refinements(first, word, len(utilities)):
        result = _settled_gap(distances, nearest, rate, least, most, digits)
        if result is not None:
            return min(result, GAP_LIMIT)
    raise AssertionError  # the refinements do not end


def _logistic(log_rest: float, bits: int) -> float:
    """Return ln((1 + R - U)/(U R)) = ln(1 + (1 - U)/R) - ln U for U = bits/2^64."""
    ratio = math.log((2**_WORD - bits) * 2.0**-_WORD) - log_rest if bits < 2**_WORD else -math.inf
    grown = ratio + math.log1p(math.exp(-ratio)) if ratio > 0 else math.log1p(math.exp(ratio))
    return grown - math.log(bits * 2.0**-_WORD)


def _settled_gap(
    distances: Integers, nearest: int, rate: Fraction, low: Fraction, high: Fraction, digits: int
) -> int | None:
    """Gap of every uniform number in [low, high], or None where it is not the same for all."""
    sums, error = _exact_sums(distances - nearest, rate, digits)
    if low == 0:
        return None
    context = _context(digits)
    with decimal.localcontext(context):
        shift = _decimal(rate * nearest)

        def steps(uniform: Fraction, others: Fraction) -> Fraction:
            """Return ln(1 + (1 - U)/R) - ln U in grid steps, R = others * e^-shift; falls with both."""
            scaled = _decimal((1 - uniform) / others)
            if shift > 8 * digits:  # 1 is beneath the error of (1 - U)/R > 10^(2 digits)
                grown = shift + scaled.ln() if scaled else Decimal(0)
            else:
                grown = (1 + scaled * shift.exp()).ln()
            return Fraction(grown - _decimal(uniform).ln()) / rate

        slack = Fraction(len(distances) + digits * 8, 10 ** (digits - _GUARD)) / rate
        ends = steps(high, sums[-1] + error) - slack, steps(low, sums[-1] - error) + slack
    below, above = max(0, math.floor(ends[0])), max(0, math.floor(ends[1]))
    return below if below == above else None


def _weights(distances: Integers, rate: Fraction) -> NDArray[np.float64]:
    """e^-(rate distance), 0 where it is beneath all errors."""
    logs = distances * -float(rate)
    return np.where(logs > _LEAST_LOG, np.exp(np.maximum(logs, _LEAST_LOG)), 0.0)


def _float_error(count: int) -> float:
    """Bound of the relative error of a sum of `count` weights in floats; see `draw_index`."""
    return 2.0**-40 + count * 2.0**-51


def _refinements(first: int, word: Word, count: int) -> Iterator[tuple[Fraction, Fraction, int]]:
    """Ever closer bounds of a uniform number, with the decimal digits that comparing it takes."""
    prefix, bits = first, _WORD
    while True:
        digits = bits * 30103 // 100000 + 2 * len(str(count)) + 2 * _GUARD
        yield Fraction(prefix, 1 << bits), Fraction(prefix + 1, 1 << bits), digits
        prefix, bits = prefix << _WORD | next_word(word), bits + _WORD


def _exact_sums(distances: Integers, rate: Fraction, digits: int) -> tuple[list[Fraction], Fraction]:
    """Cumulative sums of e^-(rate distance) and a bound of their error, for distances >= 0, one of them 0.

    Each weight is at most 1 and errs by 10^(1 - digits) (1 + x), x = rate * distance < 3 digits or the weight is
    below 10^-digits and left out.
    """
    known: dict[int, Fraction] = {}
    sums, total = list[Fraction](), Fraction(0)
    with decimal.localcontext(_context(digits)):
        for distance in distances.tolist():
            if distance not in known:
                x = rate * distance
                # whole multiples of 10^-digits, so that the sums are exact and their denominators stay small
                scaled = int((-_decimal(x)).exp().scaleb(digits)) if x < 3 * digits else 0
                known[distance] = Fraction(scaled, 10**digits)
            total += known[distance]
            sums.append(total)
    return sums, Fraction(len(sums) * 4 * digits, 10 ** (digits - 1))


def _context(digits: int) -> decimal.Context:
    """Context of so many digits and unlimited exponents."""
    return decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)


def _decimal(number: Fraction) -> Decimal:
    """Return the quotient in the context's precision."""
    return Decimal(number.numerator) / Decimal(number.denominator)
