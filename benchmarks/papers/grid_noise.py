"""Noise of the package's families from a seeded generator, for simulations: fast and repeatable, not secret.

A draw is the floor of a continuous one. Floats are exact enough to count with, never to protect anyone.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stream_svt.mechanisms import Noise

Integers = NDArray[np.int64]


def draws(noise: Noise, rate: Fraction, count: int, rng: np.random.Generator) -> Integers:
    """Return independent draws in grid steps."""
    scale = float(1 / rate)
    if noise is Noise.GUMBEL:
        return np.floor(rng.gumbel(0.0, scale, count)).astype(np.int64)
    drawn = np.floor(rng.standard_exponential(count) * scale)
    if noise is Noise.LAPLACE:
        drawn -= np.floor(rng.standard_exponential(count) * scale)
    return drawn.astype(np.int64)
