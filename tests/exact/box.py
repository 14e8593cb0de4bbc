"""Exact probabilities of the package's own decisions over a box of noise, without a model of the mechanism.

Rates of the played form are integer multiples of a unit, and the weights use u = ln 2 for this unit: the decisions of a
mechanism do not depend on its rates, only the weights do. Noise outside the box is left out, so each probability lies
between the sum over the box and this sum plus the missing probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from stream_svt.mechanisms import UNITS_PER_EPSILON, Noise
from stream_svt.mechanisms.noise import Law
from tests.exact.contract import Form, PlayedCase, Tape
from tests.exact.enumeration import Kind, X, law, log_ratio

UNIT = 10**6
"""Units of 10^-9 epsilon that stand for u."""


GAUSSIAN: Any = "gaussian"
"""Not a family of the package: the discretised Gaussian with the variance of Laplace noise, as a control."""


def mass(noise: Noise, rate: Fraction, k: int) -> Fraction:
    """Return P(noise = k) for a rate in units of u."""
    if noise is GAUSSIAN:
        return _gaussian(int(rate), k)
    if rate.denominator != 1:
        raise ValueError("rates are whole multiples of the unit")
    return law(Kind.EQUAL, noise, X**rate.numerator, k)


@cache
def _gaussian(rate: int, k: int) -> Fraction:
    """Return the mass in floats, which suffices for a control."""
    b = 0.5**rate
    twice_variance = 4 * b / (1 - b) ** 2
    total = sum(math.exp(-(j**2) / twice_variance) for j in range(-60, 61))
    return Fraction(math.exp(-(k**2) / twice_variance) / total)


@dataclass(frozen=True)
class Box:
    """Probabilities of the outcomes, and of the noise that was left out."""

    probabilities: dict[object, Fraction]
    charges: dict[object, int]
    missing: Fraction


def enumerate_box(
    form: Form,
    values: Sequence[int],
    size: int,
    key_of: Callable[[PlayedCase], object] = lambda played: played.released,
    thresholds: int = 1,
    tests: int | None = None,
) -> Box:
    """Play a form on all tapes whose noise, weighted by rate, sums to at most `size` in magnitude.

    `tests` is the number of tests, by default the number of values.
    """
    tests = len(values) if tests is None else tests
    threshold, branches = form.laws
    laws = [threshold] * thresholds if threshold else []
    laws += [law for law in branches for _ in range(tests)]
    weights = [_weights(law, size) for law in laws]
    free = thresholds if threshold else 0
    probabilities: dict[object, Fraction] = {}
    charges: dict[object, int] = {}
    total = Fraction(0)
    for drawn, weight in _tapes(weights, size):
        rows = tuple(
            tuple(drawn[free + number * tests : free + (number + 1) * tests])
            for number in range(len(branches))
        )
        played = form.play(tuple(values), Tape(drawn[:free] or (0,), rows))
        key = key_of(played)
        probabilities[key] = probabilities.get(key, Fraction(0)) + weight
        charges[key] = max(charges.get(key, 0), played.charge)
        total += weight
    return Box(probabilities, charges, 1 - total)


def largest_loss(
    form: Form, pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], size: int, **options: Any
) -> float:
    """Return a lower bound of the largest log-ratio / charge: all missing noise is added to the second dataset.

    It is above 1 only if a ratio is above e^charge, exactly.
    """
    box = cache(lambda values: enumerate_box(form, values, size, **options))
    largest = 0.0
    for here, there in ((box(first), box(second)) for first, second in pairs):
        for outcome, p in here.probabilities.items():
            charge, q = here.charges[outcome] // UNIT, there.probabilities.get(outcome, 0) + there.missing
            exceeds = p * X**charge > q
            loss = log_ratio(p, q) / charge if charge else math.inf
            largest = max(largest, loss if exceeds else min(loss, 1.0))
    return largest


def _weights(law: Law, size: int) -> dict[int, tuple[int, Fraction]]:
    """Return the noises in the box with their part of the size and their weights."""
    rate = law.rate * UNITS_PER_EPSILON / UNIT
    steps = range(size + 1) if law.noise is Noise.EXPONENTIAL else range(-size, size + 1)
    return {k: (abs(k) * int(rate), mass(law.noise, rate, k)) for k in steps if abs(k) * rate <= size}


def _tapes(
    weights: Sequence[dict[int, tuple[int, Fraction]]], size: int
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Yield all tapes within the size with their weights."""
    if not weights:
        yield (), Fraction(1)
        return
    for k, (used, weight) in weights[0].items():
        if used <= size:
            for others, product in _tapes(weights[1:], size - used):
                yield (k, *others), weight * product
