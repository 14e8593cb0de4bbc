"""The two noise families on the integers, their laws and moments.

With b = e^-rate::

    exponential   one-sided geometric    P(k) = (1 - b) b^k               k = 0, 1, ..
    laplace       discrete Laplace       P(k) = (1 - b)/(1 + b) b^|k|     k in Z

Both obey the one-sided Lipschitz condition P(k) <= e^(rate s) P(k + s) for s >= 0, which is all that the
sparse-vector proof needs. A rate is an epsilon per grid step; 1/rate is the scale in grid steps.
"""

from __future__ import annotations

import math
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from stream_svt.errors import MisuseError

Real = TypeVar("Real", float, Fraction)

_UNPROVED = {
    "gaussian": "its density falls faster than any exponential, so the alignment that makes gaps free "
    "does not exist: the exact loss with Gaussian query noise reaches 2.3 times the charge",
    "gumbel": "it is a baseline for comparisons only; there is no exact integer sampler for it here",
}


class Noise(StrEnum):
    """A family of integer noise."""

    EXPONENTIAL = "exponential"
    LAPLACE = "laplace"

    @classmethod
    def parse(cls, name: str) -> Noise:
        """Noise of that name; families without a proof are refused with the reason.

        Raises
        ------
        MisuseError
            For an unknown or unproved family.
        """
        try:
            return cls(name.lower())
        except ValueError:
            reason = _UNPROVED.get(name.lower(), "no such family is known")
            raise MisuseError(
                f"noise {name!r} cannot be used with gaps: {reason}. Use 'exponential' or 'laplace'."
            ) from None


def exact_pmf(noise: Noise, ratio: Real, k: int) -> Real:
    """P(noise = k) for b = `ratio` = e^-rate; exact when `ratio` is a Fraction."""
    if noise is Noise.LAPLACE:
        return (1 - ratio) / (1 + ratio) * ratio ** abs(k)
    return (1 - ratio) * ratio**k if k >= 0 else 0 * ratio


def exact_tail(noise: Noise, ratio: Real, k: int) -> Real:
    """P(noise >= k) for b = `ratio` = e^-rate; exact when `ratio` is a Fraction."""
    if noise is Noise.LAPLACE:
        return ratio**k / (1 + ratio) if k >= 0 else 1 - ratio ** (1 - k) / (1 + ratio)
    return ratio**k if k >= 0 else 1 + 0 * ratio


def pmf(noise: Noise, rate: Fraction | float, k: int) -> float:
    """P(noise = k), in floats that stay accurate for rates near 0."""
    rate = float(rate)
    if noise is Noise.LAPLACE:
        return -math.expm1(-rate) / (1 + math.exp(-rate)) * math.exp(-rate * abs(k))
    return -math.expm1(-rate) * math.exp(-rate * k) if k >= 0 else 0.0


def tail(noise: Noise, rate: Fraction | float, k: int) -> float:
    """P(noise >= k), in floats."""
    rate = float(rate)
    if noise is Noise.LAPLACE:
        if k < 0:
            return 1.0 - tail(noise, rate, 1 - k)
        return math.exp(-rate * k) / (1 + math.exp(-rate))
    return math.exp(-rate * k) if k >= 0 else 1.0


def mean(noise: Noise, rate: Fraction | float) -> float:
    """Mean in grid steps: 1/(e^rate - 1) for exponential (the support starts at 0), 0 for Laplace."""
    if noise is Noise.LAPLACE:
        return 0.0
    return _over_expm1(float(rate))


def variance(noise: Noise, rate: Fraction | float) -> float:
    """Variance in squared grid steps: b/(1-b)^2, twice that for Laplace."""
    rate = float(rate)
    once = _over_expm1(rate) / -math.expm1(-rate)
    return 2 * once if noise is Noise.LAPLACE else once


def _over_expm1(rate: float) -> float:
    """1/(e^rate - 1) without overflow for large rates."""
    return math.exp(-rate) / -math.expm1(-rate)
