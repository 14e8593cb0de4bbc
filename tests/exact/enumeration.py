"""Exact probabilities of all outputs of small instances, summed over the hidden noise in closed form.

Rates are integer multiples of u = ln 2, x = e^-u = 1/2, so every probability is a rational number and the
bound "ratio at most e^(charge u)" is checked without rounding. These models share no code with the package; a
test in this folder checks that the package's own decisions, enumerated over a box of noise, agree with them.

An output is a sum over one hidden integer rho, the threshold noise, of a product of factors: a bottom contributes
P(nu < k + rho), a top P(nu = k + gap + rho), k = T + r - q. Beyond all kinks a factor is a polynomial in x^|rho|,
so the infinite sums over rho are geometric series.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from stream_svt.mechanisms import Noise

X = Fraction(1, 2)
"""e^-u"""

Values: TypeAlias = "tuple[int, ...] | Reacting"
"""The values of all tests, given beforehand or by an environment that reacts."""

Polynomial = dict[int, Fraction]
"""Coefficients by exponent of x^|rho|."""


class Kind(IntEnum):
    """The event of a noise at m = k + rho."""

    AT_LEAST = 0
    """P(nu >= m)"""
    BELOW = 1
    """P(nu < m)"""
    EQUAL = 2
    """P(nu = m)"""


class Factor(NamedTuple):
    """One factor of an output's probability; `rate` in units of u."""

    kind: Kind
    noise: Noise
    rate: int
    k: int

    def at(self, rho: int) -> Fraction:
        return _law(self.kind, self.noise, self.rate, self.k + rho)

    def far(self, sign: int) -> Polynomial:
        """Return the polynomial in x^|rho| that equals the factor beyond its kink, for rho of this sign."""
        b, n = X**self.rate, self.rate
        mass = _law(Kind.EQUAL, self.noise, self.rate, 0)
        if sign > 0:  # m >= 1: tail = weight * b^m
            weight = Fraction(1) if self.noise is Noise.EXPONENTIAL else 1 / (1 + b)
            reach = weight * X ** (n * self.k)
            return {
                Kind.AT_LEAST: {n: reach},
                Kind.BELOW: {0: Fraction(1), n: -reach},
                Kind.EQUAL: {n: mass * X ** (n * self.k)},
            }[self.kind]
        if self.noise is Noise.EXPONENTIAL:  # m < 0, below the support
            return {0: Fraction(1)} if self.kind is Kind.AT_LEAST else {}
        reach = X ** (-n * self.k)  # b^-m = x^(-n k) (x^|rho|)^n
        return {
            Kind.AT_LEAST: {0: Fraction(1), n: -b / (1 + b) * reach},
            Kind.BELOW: {n: b / (1 + b) * reach},
            Kind.EQUAL: {n: mass * reach},
        }[self.kind]


@cache
def _law(kind: Kind, noise: Noise, rate: int, m: int) -> Fraction:
    return law(kind, noise, X**rate, m)


def law(kind: Kind, noise: Noise, b: Fraction, m: int) -> Fraction:
    """Return the probability of an event of a noise, for b = e^-rate."""
    if noise is Noise.LAPLACE:
        equal = (1 - b) / (1 + b) * b ** abs(m)
        tail = b**m / (1 + b) if m >= 0 else 1 - b ** (1 - m) / (1 + b)
    else:
        equal = (1 - b) * b**m if m >= 0 else Fraction(0)
        tail = b**m if m >= 0 else Fraction(1)
    return {Kind.AT_LEAST: tail, Kind.BELOW: 1 - tail, Kind.EQUAL: equal}[kind]


def expectation(factors: Iterable[Factor], noise: Noise, rate: int) -> Fraction:
    """Return the sum over all integers rho of P(rho) times the product of the factors."""
    return _expectation(tuple(sorted(factors)), noise, rate)


@cache
def _expectation(factors: tuple[Factor, ...], noise: Noise, rate: int) -> Fraction:
    """Add the finite part between the kinks and a geometric series on each side."""
    kinks = [-factor.k for factor in factors] or [0]
    high = max(0, *kinks) + 2
    low = 0 if noise is Noise.EXPONENTIAL else min(0, *kinks) - 2
    total = Fraction(0)
    for rho in range(low, high):
        term = _law(Kind.EQUAL, noise, rate, rho)
        for factor in factors:
            term *= factor.at(rho)
            if not term:
                break
        total += term
    total += _series(factors, noise, rate, sign=1, start=high)
    if noise is not Noise.EXPONENTIAL:
        total += _series(factors, noise, rate, sign=-1, start=1 - low)
    return total


def _series(factors: Sequence[Factor], noise: Noise, rate: int, *, sign: int, start: int) -> Fraction:
    """Return the sum over |rho| >= start on one side, where every factor is a polynomial in z = x^|rho|."""
    product: Polynomial = {rate: _law(Kind.EQUAL, noise, rate, 0)}
    for factor in factors:
        following: Polynomial = {}
        for exponent, coefficient in product.items():
            for step, weight in factor.far(sign).items():
                following[exponent + step] = (
                    following.get(exponent + step, Fraction(0)) + coefficient * weight
                )
        product = following
    return sum((c * X ** (n * start) / (1 - X**n) for n, c in product.items()), Fraction(0))


class Condition(NamedTuple):
    """The event of one query noise in an output: a factor at k = shift - value."""

    kind: Kind
    noise: Noise
    rate: int
    shift: int
    test: int


class Hidden(NamedTuple):
    """A sum over one hidden integer of the product of the conditions, and the law of this integer."""

    conditions: tuple[Condition, ...]
    noise: Noise
    rate: int

    def at(self, values: Sequence[int]) -> Fraction:
        factors = [
            Factor(kind, noise, rate, shift - values[test])
            for kind, noise, rate, shift, test in self.conditions
        ]
        return expectation(factors, self.noise, self.rate)


class Reacting(NamedTuple):
    """An environment that chooses the next value by what was released: ``values`` by test and choice.

    It chooses by the latest top: none so far, one with gap 0, one with a larger gap.
    """

    values: tuple[tuple[int, int, int], ...]

    def asked(self, outcome: Iterable[tuple[int, int, int, int]]) -> list[int]:
        """Return the values that are tested if this is the outcome, one for each of its tests."""
        choice, asked = 0, []
        for test, (_, _, branch, gap) in enumerate(outcome):
            asked.append(self.values[test][choice])
            if branch >= 0:
                choice = 1 + (gap > 0)
        return asked


@dataclass(frozen=True)
class Output:
    """One output, its charge in units of u, and its probability, a product of hidden sums."""

    outcome: tuple[tuple[int, int, int, int], ...]
    charge: int
    hidden: tuple[Hidden, ...]

    def probability(self, values: Sequence[int] | Reacting) -> Fraction:
        if isinstance(values, Reacting):
            values = values.asked(self.outcome)
        return math.prod((one.at(values) for one in self.hidden), start=Fraction(1))


@dataclass(frozen=True)
class Rung:
    """A branch of the model: charge and rate in units of u, corrections by attempt."""

    charge: int
    rate: int
    corrections: tuple[int, ...] = (0,)

    def correction(self, attempt: int) -> int:
        return self.corrections[min(attempt, len(self.corrections) - 1)]


@dataclass(frozen=True)
class Model:
    """A sparse vector with integer rates, for enumeration.

    Attributes:
        queries: Number of queries, each with its own value; up to `retries` further attempts of bottoms follow, in
            order.
        tops_charge: Units that the tops of one run may cost.
        threshold_charge, threshold_rate: Charge and rate of one threshold noise.
        noises: Families of threshold and query noise.
        resample: Whether a new threshold noise follows each top, while tops are left.
        largest_gap: All larger gaps are one output.
    """

    queries: int
    rungs: tuple[Rung, ...]
    tops_charge: int
    threshold_charge: int
    threshold_rate: int
    noises: tuple[Noise, Noise]
    resample: bool = False
    retries: int = 0
    largest_gap: int = 1


def transcripts(model: Model) -> Iterator[Output]:
    """Yield all outputs of a model; gaps above `largest_gap` are one output.

    Tests are numbered by time: test i uses values[i], so a value may change between attempts. The schedule depends
    on outputs: bottoms are tested again, in order, after the last query.
    """
    yield from _extend(model, [(i, 0) for i in range(model.queries)], 0, model.tops_charge)


def _extend(
    model: Model,
    queue: list[tuple[int, int]],
    test: int,
    left: int,
    outcome: tuple[tuple[int, int, int, int], ...] = (),
    segments: tuple[tuple[Condition, ...], ...] = ((),),
) -> Iterator[Output]:
    """Yield the outputs that begin with this outcome."""
    (threshold_noise, query_noise), used = model.noises, [segment for segment in segments if segment]
    available = [number for number, rung in enumerate(model.rungs) if rung.charge <= left]
    if not queue or not available:
        hidden = tuple(Hidden(conditions, threshold_noise, model.threshold_rate) for conditions in used)
        charge = model.threshold_charge * len(used) + model.tops_charge - left
        yield Output(outcome, charge, hidden)
        return
    (query, attempt), rest = queue[0], queue[1:]
    failed: tuple[Condition, ...] = ()
    for number in available:
        rung = model.rungs[number]
        shift = rung.correction(attempt)
        for gap in range(model.largest_gap + 2):
            kind = Kind.EQUAL if gap <= model.largest_gap else Kind.AT_LEAST
            conditions = (*failed, Condition(kind, query_noise, rung.rate, shift + gap, test))
            grown = (*segments[:-1], segments[-1] + conditions)
            if model.resample:
                grown = (*grown, ())
            record = (query, attempt, number, gap)
            yield from _extend(model, rest, test + 1, left - rung.charge, (*outcome, record), grown)
        failed = (*failed, Condition(Kind.BELOW, query_noise, rung.rate, shift, test))
    again = [*rest, (query, attempt + 1)] if attempt < model.retries else rest
    grown = (*segments[:-1], segments[-1] + failed)
    yield from _extend(model, again, test + 1, left, (*outcome, (query, attempt, -1, 0)), grown)


def exceeds(p: Fraction, q: Fraction, charge: int) -> bool:
    """Return whether p > e^(charge u) q."""
    return p * X**charge > q


def log_ratio(p: Fraction, q: Fraction) -> float:
    """Return ln(p/q) in units of u."""
    if not p:
        return -math.inf
    return (math.log(p) - math.log(q)) / -math.log(X) if q else math.inf


def _size(p: Fraction) -> int:
    """Return the binary logarithm within 1."""
    return p.numerator.bit_length() - p.denominator.bit_length()


@dataclass(frozen=True)
class Worst:
    """Result of comparing all outputs on many pairs.

    Attributes:
        largest: Largest log-ratio / charge, in floats.
        attained: Whether a ratio equals e^charge, exactly.
        violations: Number of ratios above e^charge, exactly.
    """

    largest: float
    attained: bool
    violations: int


def worst(listed: Sequence[Output], pairs: Iterable[tuple[Values, Values]]) -> Worst:
    """Compare the probability of every output on every pair of value vectors, or environments, with its charge."""
    known: dict[Values, list[Fraction]] = {}

    def probabilities(values: Values) -> list[Fraction]:
        if values not in known:
            known[values] = [output.probability(values) for output in listed]
        return known[values]

    largest, attained, violations = 0.0, False, 0
    for first, second in pairs:
        for output, p, q in zip(listed, probabilities(first), probabilities(second), strict=True):
            if not p:
                continue
            claimed = p * X**output.charge
            violations += claimed > q
            attained = attained or claimed == q
            # Logarithms are slow, so a comparison of sizes first excludes ratios that cannot be the largest.
            if output.charge and (not q or _size(p) - _size(q) + 2 > largest * output.charge):
                largest = max(largest, log_ratio(p, q) / output.charge)
    return Worst(largest, attained, violations)


def reacting_neighbours(
    tests: int, distance: int, monotonic: bool, count: int = 300
) -> Iterator[tuple[Reacting, Reacting]]:
    """Yield pairs of environments: what was released decides the next value, and by how much it moves."""
    rng = random.Random(11)
    low = 0 if monotonic else -distance
    for number in range(count):
        cells = [tuple(rng.randint(-1, 1) for _ in range(3)) for _ in range(tests)]
        moved = [tuple(value + rng.choice((low, distance)) for value in cell) for cell in cells]
        pair = tuple(cells), tuple(moved)
        first, second = pair[:: (-1) ** number] if monotonic else pair
        yield Reacting(first), Reacting(second)


def neighbours(
    tests: int, distance: int, monotonic: bool, values: Sequence[int] = (-1, 0, 1)
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield pairs of value vectors, one value per test, in both orders."""
    shifts = range(distance + 1) if monotonic else range(-distance, distance + 1)
    for first in product(values, repeat=tests):
        for shift in product(shifts, repeat=tests):
            if any(shift):
                second = tuple(a + b for a, b in zip(first, shift, strict=True))
                yield first, second
                if monotonic:
                    yield second, first


def shared(
    noises: tuple[Noise, Noise],
    monotonic: bool,
    *,
    distance: int = 1,
    cutoff: int = 2,
    queries: int = 2,
    corrections: tuple[int, ...] = (0,),
    retries: int = 0,
    resample: bool = False,
) -> Model:
    """Return plain sparse vector with rates l0 = 1 and l1 = 1 in units of u."""
    reach = distance if monotonic else 2 * distance
    return Model(
        queries=queries,
        rungs=(Rung(charge=reach, rate=1, corrections=corrections),),
        tops_charge=cutoff * reach,
        threshold_charge=distance,
        threshold_rate=1,
        noises=noises,
        retries=retries,
        resample=resample,
    )
