"""Sparse vector, top-k and quantiles of arrays, each in one call with exact noise from the operating system.

A call spends its epsilon on the people in its data; `charge` of the result is the cost. The losses of several calls
on the same people add up. This module does not count them; `stream_svt.privacy.ledger.Ledger` does, in
`charge_units`.

The charge covers everything that a call returns. It does not cover the number of values of `svt` and `top_k`, their
type, all other arguments, and the running time. Whether all values are finite numbers must be public, too, because
an error reveals it. Replace NaN, None and infinities by a fixed number first. Values beyond 2^47 steps of the grid
count as on its last step. `quantile` accepts any number of records, even none. Numbers are exact (see
`stream_svt.mechanisms.numbers`). Results are in the units of the values, and become rows of a table:
``pandas.DataFrame(result.answers)``, ``polars.DataFrame(result.answers)``.
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

from stream_svt.mechanisms.arguments import BranchNoise, is_integer, parse_choice, require, require_bool
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
    listed,
    number_of,
    shown,
)
from stream_svt.mechanisms.sampler import KEY_BYTES, Identity, KeyedSampler, draw_threshold
from stream_svt.mechanisms.selection.quantile import DEFAULT_BASE, Adjacency, UnboundedQuantile
from stream_svt.mechanisms.selection.top_k import LastGap, TopK
from stream_svt.mechanisms.sparse_vector import SparseVector, sparse_vector

_TESTS_AT_ONCE = 1024
_LEAST_BASE = Decimal("1.0001")
"""With a smaller base a quantile takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SvtAnswer:
    """A value that `svt` reported.

    Attributes:
        index: Its index among the values.
        gap: Distance above its bar, including noise.
        bound: Lower bound of the value that is wrong for at most a share `beta` of the reported answers; None if the
            gap is too small for one.
        estimate: Estimate of the value, unbiased but for selection; None without a bound.
        attempt: Number of the test that reported it, from 1.
        charge: Its cost in epsilon; ``charge_units`` is the same in units of 10^-9, exact, for a ledger.
    """

    index: int
    gap: float
    bound: float | None
    estimate: float | None
    attempt: int
    charge: float
    charge_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SvtResult:
    """Report of `svt`: the answers in the order of their tests.

    ``charge``, in epsilon, and ``charge_units``, the same in 10^-9 and exact, include the charge of the threshold.
    """

    answers: tuple[SvtAnswer, ...]
    charge: float
    charge_units: int

    @property
    def indices(self) -> list[int]:
        """Indices of the reported values."""
        return [answer.index for answer in self.answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKAnswer:
    """A value that `top_k` reported: its index, and its gap to the next value, including noise.

    The last gap is the amount that the value could lose and still be reported; None if all values are reported.
    """

    index: int
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKResult:
    """Report of `top_k`: the largest value first; its charge as in `SvtResult`."""

    answers: tuple[TopKAnswer, ...]
    charge: float
    charge_units: int

    @property
    def indices(self) -> list[int]:
        """Indices of the reported values."""
        return [answer.index for answer in self.answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileResult:
    """Report of `quantile`.

    Attributes:
        value: The quantile; None if no candidate within 2^47 steps of the grid was reported.
        gap: Number of records below `value` minus the wanted number, including noise; None if `value` is None.
        charge: Its cost in epsilon; ``charge_units`` is the same in units of 10^-9, exact, for a ledger.
    """

    value: float | None
    gap: float | None
    charge: float
    charge_units: int


def svt(
    values: Numbers,
    threshold: Number | Numbers,
    epsilon: Number = 0.5,
    cutoff: int = 20,
    sweep: bool = True,
    *,
    monotonic: bool = False,
    sensitivity: Number = 1,
    granularity: Number | None = None,
    beta: Number = 0.05,
    seed: bytes | None = None,
) -> SvtResult:
    """Report up to `cutoff` values that lie above a threshold, with their gaps (sparse vector, exponential noise).

    Values that are not reported cost nothing. Guarantee and sources: `stream_svt.mechanisms.sparse_vector`.

    Args:
        values: Answers of counting or other queries, shape (queries,). Their number and order are public.
        threshold: Public; one for all values, or one for each.
        epsilon: Largest cost of the call. The charge is the threshold's part, and a part for each answer.
        cutoff: Largest number of answers. More answers mean more noise on each.
        sweep: Test the values repeatedly against a falling bar (`Annealed`), so that large values are reported first
            and the cutoff is used up; otherwise once, in order, against one bar (`Optimal`).
        monotonic: Declaration: one person more or less moves all values in the same direction, as for counts. It
            halves the noise; a wrong declaration voids the guarantee.
        sensitivity: Declaration: the largest change of a value by one person, in units of the values. Rounded up to
            the grid.
        granularity: Step of the grid of values and noise, in units of the values. Values are rounded down to it and
            thresholds up, except within 1/1024 of a step. Default 1 for integers; required for other values, even
            for a float such as 2.0.
        beta: Share of the answers whose `bound` may be wrong.
        seed: For tests only: the noise is a function of the seed, and anyone who knows the seed can remove the
            noise. By default every call draws fresh secrets from the operating system.

    Raises:
        MisuseError: An argument is not as described; nothing was drawn.

    Examples:
        >>> report = svt([12, 950, 30, 700, 8], threshold=500, epsilon=10, cutoff=2, monotonic=True)
        >>> report.indices, report.charge
        ([1, 3], 10.0)
    """
    require_bool(sweep, "sweep")
    grid = _grid(granularity, values)
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
    units = mechanism.threshold_units + sum(one.charge_units for one in answers)
    return SvtResult(answers=answers, charge=_epsilon(units), charge_units=units)


def top_k(
    values: Numbers,
    k: int,
    epsilon: Number = 0.5,
    *,
    monotonic: bool = False,
    sensitivity: Number = 1,
    granularity: Number | None = None,
    seed: bytes | None = None,
) -> TopKResult:
    """Report the `k` largest values in order, each with its gap to the next (noisy top-k, exponential noise).

    The charge is epsilon. Guarantee and sources: `stream_svt.mechanisms.selection.top_k`. The other arguments are as in
    `svt`.

    Raises:
        MisuseError: An argument is not as described; nothing was drawn.

    Examples:
        >>> top_k([12, 950, 30, 700, 8], k=2, epsilon=10, monotonic=True).indices
        [1, 3]
    """
    grid = _grid(granularity, values)
    steps = _answers(values, grid)
    mechanism = TopK(
        epsilon=epsilon,
        k=integer_of(k, "k", least=1, limit=len(steps) + 1),
        monotonic=monotonic,
        sensitivity=_steps_of(sensitivity, grid),
        last_gap=LastGap.NONE if k == len(steps) else LastGap.LEXICOGRAPHIC,
    )
    noise = _Noise(_entropy(seed))
    _, outcomes = mechanism.step(
        noise.open(mechanism), steps, noise.of(mechanism, np.arange(len(steps)), steps)
    )
    answers = (TopKAnswer(index=top.row, gap=_real(top.gap, grid)) for top in outcomes.tops)
    units = outcomes.charge_units
    return TopKResult(answers=tuple(answers), charge=_epsilon(units), charge_units=units)


def quantile(
    values: Numbers,
    level: Number,
    epsilon: Number = 0.5,
    *,
    lower: Number = 0,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    granularity: Number | None = None,
    base: Number = DEFAULT_BASE,
    seed: bytes | None = None,
) -> QuantileResult:
    """Report a quantile of records without an upper bound (Durfee 2023), where each person has one record.

    The charge is at most epsilon. Guarantee and sources: `stream_svt.mechanisms.selection.quantile`.

    Args:
        values: Records, shape (records,), in any order; there may be none.
        level: Strictly between 0 and 1: 0.5 is the median.
        lower: Public lower bound of the records; smaller records count as equal to it.
        adjacency: "add_remove" a person, or "swap" one for another; the number of records is public then.
        base: Ratio of successive candidates lower + granularity * (base^i - 1), at least 1.0001.
        epsilon, granularity, seed: As for `svt`.

    Raises:
        MisuseError: An argument is not as described; nothing was drawn.

    Examples:
        >>> 45 < quantile(range(1, 101), 0.5, epsilon=10).value < 55
        True
    """
    grid = _grid(granularity, values)
    start = grid_floor(number_of(lower, "lower"), grid)
    require(abs(start) < VALUE_LIMIT, f"lower must lie within 2^47 steps of the grid; found {shown(lower)}")
    kind = parse_choice(Adjacency, adjacency, "adjacency")
    mechanism = UnboundedQuantile(epsilon=epsilon, level=level, adjacency=kind, base=base, start=start)
    require(mechanism.base >= _LEAST_BASE, f"base must be at least {_LEAST_BASE}; found {shown(base)}")
    steps, noise = np.sort(grid_steps(values, grid, "values")), _Noise(_entropy(seed))
    run, units = noise.open(mechanism), mechanism.threshold_units
    tests = math.ceil(math.log(VALUE_LIMIT) / math.log(mechanism.base))  # until a candidate leaves the grid
    for first in range(0, tests, _TESTS_AT_ONCE):
        answers = mechanism.answers(steps, first, min(_TESTS_AT_ONCE, tests - first))
        run, outcomes = mechanism.step(
            run, answers, noise.of(mechanism, first + np.arange(len(answers)), answers)
        )
        for top in outcomes.tops:
            units += outcomes.charge_units
            return QuantileResult(
                value=float(mechanism.candidate(first + top.row) * grid),
                gap=(top.gap or 0) / mechanism.sensitivity,
                charge=_epsilon(units),
                charge_units=units,
            )
    return QuantileResult(value=None, gap=None, charge=_epsilon(units), charge_units=units)


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
    """Return a top in real units, with estimate and bound of the value."""
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
        charge=_epsilon(top.charge_units),
        charge_units=top.charge_units,
    )


def _epsilon(units: int) -> float:
    return units / UNITS_PER_EPSILON


def _grid(granularity: Number | None, values: Numbers) -> Fraction:
    """Return the granularity, by default 1 for integers. The type of the values decides, never a value."""
    if granularity is not None:
        return number_of(granularity, "granularity", above=0)
    kind = getattr(getattr(values, "dtype", None), "kind", None)
    if kind is None and hasattr(values, "__array__"):  # columns of pyarrow and polars have no types of numpy
        kind = np.asarray(values).dtype.kind
    entries = listed(values, "values")
    whole = kind in {"i", "u"} or not len(entries) or (kind in {None, "O"} and all(map(is_integer, entries)))
    require(
        whole,
        "granularity must be given for values that are not of an integer type: the step to which they are rounded "
        "down, such as granularity=0.01, or granularity=1 where they are whole numbers",
    )
    return Fraction(1)


def _answers(values: Numbers, grid: Fraction) -> Integers:
    """Return one or more answers of queries on the grid."""
    steps = grid_steps(values, grid, "values")
    require(len(steps) > 0, "values must be one or more numbers; found none")
    return steps


def _steps_of(sensitivity: Number, grid: Fraction) -> int:
    return grid_sensitivity(number_of(sensitivity, "sensitivity", above=0), grid)


def _real(steps: int | None, grid: Fraction) -> float | None:
    return None if steps is None else float(steps * grid)


def _entropy(seed: bytes | None) -> Callable[[int], bytes]:
    """Return a source of random bytes: the operating system's, or a fixed one for tests."""
    if seed is None:
        return os.urandom
    require(isinstance(seed, bytes), f"seed must be bytes; found {shown(seed)}")
    calls = itertools.count()
    return lambda count: hashlib.shake_256(seed + next(calls).to_bytes(8, "big")).digest(count)
