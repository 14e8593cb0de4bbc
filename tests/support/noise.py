"""The probabilities of single noises, against which the package's tails and sums are tested."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import assert_never

from stream_svt.mechanisms.noise import Noise, tail

_MAX_EXPONENT = 700.0


def pmf(noise: Noise, rate: Fraction | float, k: int) -> float:
    """Return P(noise = k), accurate for rates near 0 too."""
    noise, rate = Noise.of(noise), float(rate)
    if noise is Noise.LAPLACE:
        return -math.expm1(-rate) / (1 + math.exp(-rate)) * math.exp(-rate * abs(k))
    if noise is Noise.GUMBEL:
        if -rate * k > _MAX_EXPONENT:
            return 1.0 - tail(noise, rate, k + 1)
        power = math.exp(-rate * k)  # b^k; P(k) = exp(-b^(k + 1)) - exp(-b^k)
        return math.exp(-power * math.exp(-rate)) * -math.expm1(power * math.expm1(-rate))
    if noise is Noise.EXPONENTIAL:
        return -math.expm1(-rate) * math.exp(-rate * k) if k >= 0 else 0.0
    assert_never(noise)
