"""Sparse vector, top-k and quantiles of arrays, each in one call with exact noise from the operating system.

A call spends its epsilon on the people in its data; `charge` of the result is what it cost. The losses of several calls
on the same people add up, and nothing here counts them: `stream_svt.privacy.ledger.Ledger` does, in `charge_units`.

Everything a call returns is covered by its charge. Not covered are the number of values, all other arguments, errors
that a call raises, and its running time. Numbers are taken exactly, see `stream_svt.mechanisms.numbers`; results are in
the units of the values.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms.arguments import BranchNoise, parse_choice, require, require_bool
from stream_svt.mechanisms.contract import Mechanism, Run, Top
from stream_svt.mechanisms.correction import Annealed, Optimal
from stream_svt.mechanisms.estimates import estimate, lower_bound
from stream_svt.mechanisms.grid import VALUE_LIMIT, Integers, grid_floor, grid_sensitivity
from stream_svt.mechanisms.numbers import (
    UNITS_PER_EPSILON,
    Number,
    Numbers,
    grid_steps,
    integer_of,
    number_of,
    shown,
)
from stream_svt.mechanisms.quantile import DEFAULT_BASE, Adjacency, UnboundedQuantile
from stream_svt.mechanisms.sampler import KEY_BYTES, Identity, KeyedSampler, draw_threshold
from stream_svt.mechanisms.sparse_vector import SparseVector, sparse_vector
from stream_svt.mechanisms.top_k import LastGap, TopK

_TESTS_AT_ONCE = 1024
_LEAST_BASE = Decimal("1.0001")
"""With smaller ones a quantile takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Charged:
    """What a call cost."""

    charge: Fraction
    """In epsilon."""

    @property
    def charge_units(self) -> int:
        """The same in units of 10^-9, for a ledger."""
        return int(self.charge * UNITS_PER_EPSILON)


@dataclass(frozen=True, slots=True, kw_only=True)
class SvtAnswer(_Charged):
    """A value that `svt` reported.

    Attributes:
        index: Its index among the values.
        gap: How far it lies above its bar, noise included.
        bound: Lower bound of the value that is wrong for at most a share `beta` of the reported answers; None if the
            gap is too small for one.
        estimate: Estimate of the value, unbiased but for selection; None without a bound.
        attempt: Number of the test that reported it, from 1.
    """

    index: int
    gap: float
    bound: float | None
    estimate: float | None
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SvtResult(_Charged):
    """What `svt` reports: the answers in the order of their tests. The charge includes that of the threshold."""

    answers: tuple[SvtAnswer, ...]

    @property
    def indices(self) -> list[int]:
        """Indices of the reported values."""
        return [answer.index for answer in self.answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKAnswer:
    """A value that `top_k` reported: its index, and its gap to the next one, noise included.

    The last gap is how much the value could lose and still be reported; None if no value is left to compare with.
    """

    index: int
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKResult(_Charged):
    """What `top_k` reports: the largest value first."""

    answers: tuple[TopKAnswer, ...]

    @property
    def indices(self) -> list[int]:
        """Indices of the reported values."""
        return [answer.index for answer in self.answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileResult(_Charged):
    """What `quantile` reports.

    Attributes:
        value: The quantile; None if no candidate within 2^47 steps of the grid was reported.
        gap: By how many records, noise included, the number below `value` exceeds the number wanted; None likewise.
    """

    value: float | None
    gap: float | None


def svt(
    values: Numbers,
    threshold: Number | Numbers,
    epsilon: Number = 0.5,
    cutoff: int = 20,
    sweep: bool = True,
    *,
    monotonic: bool = False,
    sensitivity: Number = 1,
    granularity: Number = 1,
    beta: Number = 0.05,
    seed: bytes | None = None,
) -> SvtResult:
    """Report up to `cutoff` values that lie above a threshold, with their gaps (sparse vector, exponential noise).

    Values that are not reported cost nothing. Guarantee and sources: `stream_svt.mechanisms.sparse_vector`.

    Args:
        values: Answers of counting or other queries, shape (queries,). Their number and order are public.
        threshold: Public; one for all values, or one for each.
        epsilon: Largest cost of the call. Charged is the part of the threshold, and a part for each answer.
        cutoff: Largest number of answers. More answers mean more noise on each.
        sweep: Test the values again and again under a falling bar (`Annealed`), so that large values are reported
            first and the cutoff is used up; otherwise once, in order, under one bar (`Optimal`).
        monotonic: Declared: one person more or less moves all values in the same direction, as for counts. It halves
            the noise; a wrong declaration voids the guarantee.
        sensitivity: Declared: the most that one person changes a value, in units of the values. Rounded up to the grid.
        granularity: Step of the grid of values and noise, in units of the values. Values are rounded down to it,
            thresholds up: fractions need one below 1.
        beta: Share of the answers whose `bound` may be wrong.
        seed: For tests only: makes the noise a function of the seed, and whoever knows it can remove the noise. By
            default every call draws fresh secrets of the operating system.

    Raises:
        MisuseError: An argument is not as described; nothing was drawn.

    Examples:
        >>> report = svt([12, 950, 30, 700, 8], threshold=500, epsilon=10, cutoff=2, monotonic=True)
        >>> report.indices, report.charge
        ([1, 3], Fraction(10, 1))
    """
    require_bool(sweep, "sweep")
    grid = number_of(granularity, "granularity", above=0)
    steps = _answers(values, grid)
    one = isinstance(threshold, Number | np.generic)
    bars = grid_steps([number_of(threshold, "threshold")] if one else threshold, grid, "threshold", up=True)
    fits = one or len(bars) == len(steps)
    require(fits, f"threshold must be one number, or one for each of {len(steps)} values; found {len(bars)}")
    tolerated = number_of(beta, "beta", above=0, below=1)
    count = integer_of(cutoff, "cutoff", least=1)
    mechanism = sparse_vector(
        epsilon=epsilon,
        cutoff=count,
        monotonic=monotonic,
        sensitivity=_steps_of(sensitivity, grid),
        correction=Annealed() if sweep else Optimal(queries=len(steps), cutoff=count),
    )
    found = _swept(mechanism, steps, np.broadcast_to(bars, steps.shape), _entropy(seed))
    answers = tuple(_answer(mechanism, one, grid, tolerated) for one in found)
    return SvtResult(answers=answers, charge=mechanism.threshold_charge + sum(one.charge for one in answers))


def top_k(
    values: Numbers,
    k: int,
    epsilon: Number = 0.5,
    *,
    monotonic: bool = False,
    sensitivity: Number = 1,
    granularity: Number = 1,
    seed: bytes | None = None,
) -> TopKResult:
    """Report the `k` largest values in order, each with its gap to the next (noisy top-k, exponential noise).

    The charge is epsilon. Guarantee and sources: `stream_svt.mechanisms.top_k`. The other arguments are those of `svt`.

    Raises:
        MisuseError: An argument is not as described; nothing was drawn.

    Examples:
        >>> top_k([12, 950, 30, 700, 8], k=2, epsilon=10, monotonic=True).indices
        [1, 3]
    """
    grid = number_of(granularity, "granularity", above=0)
    steps = _answers(values, grid)
    mechanism = TopK(
        epsilon=epsilon,
        count=integer_of(k, "k", least=1, limit=len(steps) + 1),
        monotonic=monotonic,
        sensitivity=_steps_of(sensitivity, grid),
        last_gap=LastGap.NONE if k == len(steps) else LastGap.LEXICOGRAPHIC,
    )
    noise = _Noise(_entropy(seed))
    _, outcomes = mechanism.step(
        noise.open(mechanism), steps, noise.of(mechanism, np.arange(len(steps)), steps)
    )
    answers = (TopKAnswer(index=top.row, gap=_real(top.gap, grid)) for top in outcomes.tops)
    return TopKResult(answers=tuple(answers), charge=outcomes.charge)


def quantile(
    values: Numbers,
    level: Number,
    epsilon: Number = 0.5,
    *,
    lower: Number = 0,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    granularity: Number = 1,
    base: Number = DEFAULT_BASE,
    seed: bytes | None = None,
) -> QuantileResult:
    """Report a quantile of records without an upper bound (Durfee 2023), where each person has one record.

    The charge is at most epsilon. Guarantee and sources: `stream_svt.mechanisms.quantile`.

    Args:
        values: Records, shape (records,), in any order.
        level: Strictly between 0 and 1: 0.5 is the median.
        lower: Public lower bound of the records; what lies below it counts as equal to it.
        adjacency: "add_remove" a person, or "swap" one for another; the number of records is public then.
        base: Ratio of successive candidates lower + granularity * (base^i - 1), at least 1.0001.
        epsilon, granularity, seed: As for `svt`.

    Raises:
        MisuseError: An argument is not as described; nothing was drawn.

    Examples:
        >>> 45 < quantile(range(1, 101), 0.5, epsilon=10).value < 55
        True
    """
    grid = number_of(granularity, "granularity", above=0)
    start = grid_floor(number_of(lower, "lower"), grid)
    require(abs(start) < VALUE_LIMIT, f"lower must lie within 2^47 steps of the grid; found {shown(lower)}")
    kind = parse_choice(Adjacency, adjacency, "adjacency")
    mechanism = UnboundedQuantile(epsilon=epsilon, level=level, adjacency=kind, base=base, start=start)
    require(mechanism.base >= _LEAST_BASE, f"base must be at least {_LEAST_BASE}; found {shown(base)}")
    steps, noise = np.sort(_answers(values, grid)), _Noise(_entropy(seed))
    run = noise.open(mechanism)
    tests = math.ceil(math.log(VALUE_LIMIT) / math.log(mechanism.base))  # until a candidate leaves the grid
    for first in range(0, tests, _TESTS_AT_ONCE):
        answers = mechanism.answers(steps, first, min(_TESTS_AT_ONCE, tests - first))
        run, outcomes = mechanism.step(
            run, answers, noise.of(mechanism, first + np.arange(len(answers)), answers)
        )
        for top in outcomes.tops:
            return QuantileResult(
                value=float(mechanism.candidate(first + top.row) * grid),
                gap=(top.gap or 0) / mechanism.sensitivity,
                charge=mechanism.threshold_charge + outcomes.charge,
            )
    return QuantileResult(value=None, gap=None, charge=mechanism.threshold_charge)


@dataclass(frozen=True, slots=True)
class _Noise:
    """The secrets of one call, and the noise made from them."""

    entropy: Callable[[int], bytes]
    salt: tuple[int, int] = field(init=False)
    sampler: KeyedSampler = field(init=False)

    def __post_init__(self) -> None:
        secret = self.entropy(KEY_BYTES + 16)
        halves = (int.from_bytes(secret[at : at + 8], "big") for at in (KEY_BYTES, KEY_BYTES + 8))
        object.__setattr__(self, "salt", tuple(halves))
        object.__setattr__(self, "sampler", KeyedSampler(secret[:KEY_BYTES]))

    def open(self, mechanism: Mechanism) -> Run:
        """Return a new run of a mechanism."""
        law = mechanism.threshold_law
        return mechanism.open(draw_threshold(law, self.entropy) if law else 0, self.salt)

    def of(self, mechanism: Mechanism, tests: Integers, values: Integers, attempt: int = 0) -> BranchNoise:
        """Return the source of the noise of tests, which have numbers and values, shape (tests,)."""

        def draw(branch: int) -> Integers:
            identity = Identity(self.salt, tests, row=0, attempt=attempt, branch=branch, value=values)
            return self.sampler.draw(mechanism.branch_laws[branch], identity)

        return draw


def _swept(
    mechanism: SparseVector, values: Integers, thresholds: Integers, entropy: Callable[[int], bytes]
) -> Iterator[tuple[int, int, int, Top]]:
    """Test all values, pass after pass, until the run or the corrections end.

    Yield the index of each reported value, the attempt from 0, the threshold in grid steps, and the top.
    """
    noise, waiting = _Noise(entropy), np.arange(len(values))
    run = noise.open(mechanism)
    for attempt in range(len(mechanism.branches[0].corrections)):
        bars, asked = thresholds[waiting], values[waiting]
        run, outcomes = mechanism.step(
            run, asked, bars, attempt, noise.of(mechanism, waiting, asked, attempt)
        )
        for top in outcomes.tops:
            yield int(waiting[top.row]), attempt, int(bars[top.row]), top
        waiting = np.delete(waiting, outcomes.rows)
        if mechanism.is_over(run) or not len(waiting):
            break


def _answer(
    mechanism: SparseVector, reported: tuple[int, int, int, Top], grid: Fraction, beta: Fraction
) -> SvtAnswer:
    """Return a top in real units, with what its gap says about the value."""
    (index, attempt, threshold, top), [branch] = reported, mechanism.branches
    bar, gap = threshold + branch.correction(attempt), top.gap or 0
    laws = {"query": mechanism.branch_laws[0], "threshold": mechanism.threshold_law}
    bound = lower_bound(bar, gap, **laws, beta=beta)
    return SvtAnswer(
        index=index,
        gap=float(gap * grid),
        bound=_real(bound, grid),
        estimate=None if bound is None else estimate(bar, gap, **laws) * float(grid),
        attempt=attempt + 1,
        charge=top.charge,
    )


def _answers(values: Numbers, grid: Fraction) -> Integers:
    steps = grid_steps(values, grid, "values")
    require(len(steps) > 0, "values must be one or more numbers; found none")
    return steps


def _steps_of(sensitivity: Number, grid: Fraction) -> int:
    return grid_sensitivity(number_of(sensitivity, "sensitivity", above=0), grid)


def _real(steps: int | None, grid: Fraction) -> float | None:
    return None if steps is None else float(steps * grid)


def _entropy(seed: bytes | None) -> Callable[[int], bytes]:
    """Return a source of random bytes: that of the operating system, or a fixed one for tests."""
    if seed is None:
        return os.urandom
    require(isinstance(seed, bytes), f"seed must be bytes; found {shown(seed)}")
    calls = itertools.count()
    return lambda count: hashlib.shake_256(seed + next(calls).to_bytes(8, "big")).digest(count)
