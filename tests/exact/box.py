"""The package's own decisions on all noise of a box, weighted exactly: what it does, without a model of it.

Rates of the played form are whole multiples of a unit, and a unit is taken for u = ln 2: what a mechanism decides
does not depend on its rates, only the weights do. Noise outside the box is left out, so that each probability
is known to lie between what was found and that plus what is missing.
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
"""Units of 10^-9 epsilon that are taken for u."""


GAUSSIAN: Any = "gaussian"
"""No family of the package: the discretised Gaussian with the variance of Laplace noise, for a control."""


def mass(noise: Noise, rate: Fraction, k: int) -> Fraction:
    """P(noise = k) for a rate in units of u."""
    if noise is GAUSSIAN:
        return _gaussian(int(rate), k)
    if rate.denominator != 1:
        raise ValueError("rates are whole multiples of the unit")
    return law(Kind.EQUAL, noise, X**rate.numerator, k)


@cache
def _gaussian(rate: int, k: int) -> Fraction:
    """Mass in floats, which is as good as exact for a control."""
    b = 0.5**rate
    twice_variance = 4 * b / (1 - b) ** 2
    total = sum(math.exp(-(j**2) / twice_variance) for j in range(-60, 61))
    return Fraction(math.exp(-(k**2) / twice_variance) / total)


@dataclass(frozen=True)
class Box:
    """Probabilities of the outcomes, and of the noise that was left out."""

    found: dict[object, Fraction]
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
    """Play a form on all tapes whose noises sum to at most `size` in magnitude, each weighed by its rate.

    A test has one value unless `tests` says how many there are.
    """
    tests = len(values) if tests is None else tests
    threshold, branches = form.laws
    laws = [threshold] * thresholds if threshold else []
    laws += [law for law in branches for _ in range(tests)]
    weights = [_weights(law, size) for law in laws]
    free = thresholds if threshold else 0
    found: dict[object, Fraction] = {}
    charges: dict[object, int] = {}
    total = Fraction(0)
    for drawn, weight in _tapes(weights, size):
        rows = tuple(
            tuple(drawn[free + number * tests : free + (number + 1) * tests])
            for number in range(len(branches))
        )
        played = form.play(tuple(values), Tape(drawn[:free] or (0,), rows))
        key = key_of(played)
        found[key] = found.get(key, Fraction(0)) + weight
        charges[key] = max(charges.get(key, 0), played.charge)
        total += weight
    return Box(found, charges, 1 - total)


def largest_loss(
    form: Form, pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], size: int, **options: Any
) -> float:
    """Largest log-ratio / charge over a box of noise, a lower bound: noise outside it counts against it.

    It is above 1 only where a ratio is above e^charge, exactly.
    """
    box = cache(lambda values: enumerate_box(form, values, size, **options))
    largest = 0.0
    for here, there in ((box(first), box(second)) for first, second in pairs):
        for outcome, p in here.found.items():
            charge, q = here.charges[outcome] // UNIT, there.found.get(outcome, 0) + there.missing
            exceeds = p * X**charge > q
            loss = log_ratio(p, q) / charge if charge else math.inf
            largest = max(largest, loss if exceeds else min(loss, 1.0))
    return largest


def _weights(law: Law, size: int) -> dict[int, tuple[int, Fraction]]:
    """Noises within reach with what they use of the size, and their weights."""
    rate = law.rate * UNITS_PER_EPSILON / UNIT
    steps = range(size + 1) if law.noise is Noise.EXPONENTIAL else range(-size, size + 1)
    return {k: (abs(k) * int(rate), mass(law.noise, rate, k)) for k in steps if abs(k) * rate <= size}


def _tapes(
    weights: Sequence[dict[int, tuple[int, Fraction]]], size: int
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """All noises within the size, with their weights."""
    if not weights:
        yield (), Fraction(1)
        return
    for k, (used, weight) in weights[0].items():
        if used <= size:
            for rest, product in _tapes(weights[1:], size - used):
                yield (k, *rest), weight * product
