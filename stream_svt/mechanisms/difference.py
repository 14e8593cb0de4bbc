"""Query noise less threshold noise, numerically and for any pair of families.

A query with margin m above its bar is reported when query noise - threshold noise >= -m. `estimates.survival` has
that law in closed form for exponential and Laplace noise; here it is summed over the grid of the threshold noise,
which also does for Gumbel noise and for functions of the threshold noise that are no survival functions (see
`accuracy`). These are predictions: no released outcome and no charge depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.noise import Noise

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_POINTS_PER_SCALE = 512
_MOST_POINTS = 2**20
_FAR = 45.0
"""Scales beyond which a noise has less than 10^-19 of its probability."""


def tails(noise: Noise, rate: Fraction | float, steps: Integers | Floats) -> Floats:
    """P(noise >= steps), elementwise; `steps` need not be whole, the formulas are read between them as well."""
    noise, rate = Noise.of(noise), float(rate)
    steps = steps.astype(np.float64)
    if noise is Noise.LAPLACE:
        outer = np.exp(-rate * np.where(steps >= 0, steps, 1 - steps)) / (1 + math.exp(-rate))
        return np.where(steps >= 0, outer, 1 - outer)
    if noise is Noise.GUMBEL:
        # exp(700) is the largest power of e that a float holds; the tail is 1 long before.
        return -np.expm1(-np.exp(np.minimum(-rate * steps, 700.0)))
    return np.exp(-rate * np.maximum(steps, 0.0))


def expectation(function: Callable[[Floats], Floats], law: Law, *, scale: float = math.inf) -> float:
    """Mean of a function of a noise.

    Args:
        function: Of grid steps, elementwise.
        law: Of the noise.
        scale: Grid steps over which the function changes by a factor of about e, if less than the scale of
            the noise.

    Notes:
        Narrow noise is summed point by point, which is exact up to rounding. Wide noise is summed over blocks of equal
        width, at most 1/512 of either scale (as long as 2^20 blocks cover the law), by the midpoint rule: the
        relative error is about (1/512)^2 / 24.
    """
    wide = float(1 / law.rate)
    reach = math.ceil(_FAR * wide) + 1
    # The left tail of Gumbel noise falls doubly exponentially: e^-e^4 is 10^-24.
    first = {Noise.EXPONENTIAL: 0, Noise.LAPLACE: -reach, Noise.GUMBEL: -math.ceil(4 * wide) - 1}[law.noise]
    block = max(1, int(min(wide, scale) / _POINTS_PER_SCALE), (reach - first) // _MOST_POINTS)
    edges = np.arange(first, reach + block, block, dtype=np.float64)
    low, high = edges[:-1], edges[1:]
    # Each side is differenced where it is small, or it would lose its digits.
    mass = np.where(
        high <= 0,
        _heads(law, high) - _heads(law, low),
        tails(law.noise, law.rate, low) - tails(law.noise, law.rate, high),
    )
    return float(mass @ function((low + high - 1) / 2))


def survival_of_difference(query: Law, threshold: Law | None, steps: int) -> float:
    """P(query noise - threshold noise >= steps), or P(query noise >= steps) without threshold noise."""
    if threshold is None:
        return float(tails(query.noise, query.rate, np.array([steps]))[0])
    return expectation(
        lambda z: tails(query.noise, query.rate, z + steps), threshold, scale=float(1 / query.rate)
    )


def _heads(law: Law, steps: Floats) -> Floats:
    """P(noise < steps) with all its digits for steps <= 0."""
    rate = float(law.rate)
    steps = np.minimum(steps, 0.0)
    if law.noise is Noise.LAPLACE:
        return np.exp(-rate * (1 - steps)) / (1 + math.exp(-rate))
    if law.noise is Noise.GUMBEL:
        return np.exp(-np.exp(np.minimum(-rate * steps, 700.0)))
    return np.zeros_like(steps)
