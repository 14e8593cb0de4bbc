"""Query noise less threshold noise, numerically and for any pair of families.

A query with margin m above its bar is reported when query noise - threshold noise >= -m. `estimates.survival` has
that law in closed form for exponential and Laplace noise; here it is summed over the grid of the threshold noise,
which also does for Gumbel noise and for functions of the threshold noise that are no survival functions (see
`accuracy`). These are predictions: no released outcome and no charge depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.noise import Floats, head, heads, tails

_POINTS_PER_SCALE = 512
_MOST_POINTS = 2**20
_FAR = 45.0
"""Scales beyond which a noise has less than 10^-19 of its probability."""


def expectation(function: Callable[[Floats], Floats], law: Law, *, scale: float = math.inf) -> float:
    """Mean of a function of a noise.

    Narrow noise is summed point by point, which is exact up to rounding. Wide noise is summed over blocks of equal
    width, at most 1/512 of either scale (as long as 2^20 blocks cover the law), by the midpoint rule: the relative
    error is about (1/512)^2 / 24.

    Args:
        function: Of grid steps, elementwise.
        law: Of the noise.
        scale: Grid steps over which the function changes by a factor of about e, if less than the scale of
            the noise.
    """
    wide = float(1 / law.rate)
    reach = math.ceil(_FAR * wide) + 1
    first = -reach if head(law.noise, law.rate, -1) else 0
    block = max(1, int(min(wide, scale) / _POINTS_PER_SCALE), (reach - first) // _MOST_POINTS)
    edges = np.arange(first, reach + block, block, dtype=np.float64)
    low, high = edges[:-1], edges[1:]
    # Each side is differenced where it is small, or it would lose its digits.
    mass = np.where(
        high <= 0,
        heads(law.noise, law.rate, high - 1) - heads(law.noise, law.rate, low - 1),
        tails(law.noise, law.rate, low) - tails(law.noise, law.rate, high),
    )
    return float(mass @ function((low + high - 1) / 2))


def survival_of_difference(query: Law, threshold: Law | None, steps: int) -> float:
    """P(query noise - threshold noise >= steps), or P(query noise >= steps) without threshold noise."""

    def reached(z: Floats) -> Floats:
        return tails(query.noise, query.rate, z + steps)

    if threshold is None:
        return float(reached(np.zeros(1))[0])
    return expectation(reached, threshold, scale=float(1 / query.rate))
