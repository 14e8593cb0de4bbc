"""Noise families on the integers, with their laws and moments.

With b = e^-rate::

    exponential   one-sided geometric    P(k) = (1 - b) b^k               k = 0, 1, ..
    laplace       discrete Laplace       P(k) = (1 - b)/(1 + b) b^|k|     k in Z
    gumbel        discretised Gumbel     P(G >= k) = 1 - exp(-b^k)        k in Z

A rate is an epsilon per grid step; 1/rate is the scale in grid steps. The Gumbel family is the floor of a
continuous Gumbel variable X of location 0 and scale 1/rate.

All satisfy the **one-sided Lipschitz condition** P(k) <= e^(rate s) P(k + s) for integers s >= 0, which suffices
for the sparse-vector proof. For the first two families it follows from the formula. For Gumbel, X has the density
f(x) = rate e^(-rate x) exp(-e^(-rate x)), so that

    f(x + s) = e^(-rate s) rate e^(-rate x) exp(-e^(-rate x) e^(-rate s)) >= e^(-rate s) f(x)

because e^(-rate s) <= 1 makes the last exponent smaller; integrate over [k, k + 1). The reverse inequality fails:
f(x - s)/f(x) = e^(rate s) exp(-e^(-rate x) (e^(rate s) - 1)) tends to 0 as x falls. So an alignment may move
exponential and Gumbel noise up only, and Laplace noise both ways.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum, nonmember
from fractions import Fraction
from typing import Literal, assert_never

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.arguments import parse_choice, require
from stream_svt.mechanisms.grid import Floats, Integers
from stream_svt.mechanisms.numbers import number_of, shown

_EULER = 0.5772156649015329
_WIDE_RATE = 0.25
_MAX_EXPONENT = 700.0  # close to the largest exponent of e in a float; exp(-e^700) is 0
_POINTS_PER_SCALE = 512
_MAX_BLOCKS = 2**20
_REACH = 45.0  # scales beyond which a noise has probability less than 10^-19


class Noise(StrEnum):
    """A family of integer noise; see the module for the laws."""

    EXPONENTIAL = "exponential"
    LAPLACE = "laplace"
    GUMBEL = "gumbel"

    refused = nonmember(
        {
            "gaussian": "its density falls faster than any exponential, so the alignment that makes gaps free "
            "does not exist: the exact loss with Gaussian query noise reaches 2.3 times the charge"
        }
    )

    @property
    def draw(self) -> Literal["geometric", "difference", "gumbel"]:
        """How it is drawn: as a geometric variable, the difference of two, or the floor of a Gumbel variable."""
        match self:
            case Noise.EXPONENTIAL:
                return "geometric"
            case Noise.LAPLACE:
                return "difference"
            case Noise.GUMBEL:
                return "gumbel"

    @property
    def may_move_down(self) -> bool:
        """Whether moving the noise down by s costs at most rate * s, as moving it up does for every family."""
        return self.draw == "difference"

    @property
    def is_one_sided(self) -> bool:
        """Whether the noise is never negative, which certified bounds require of threshold noise."""
        return self.draw == "geometric"

    @classmethod
    def of(cls, given: Noise | str, name: str = "noise") -> Noise:
        """Return a family given as itself or by name; `MisuseError` for anything else, see `parse_choice`."""
        return parse_choice(cls, given, name)

    @classmethod
    def parse(cls, name: str) -> Noise:
        """Return the family of this name for a monitor; `MisuseError` with the reason if not in `MONITORED`."""
        for noise in MONITORED:
            if noise.value == name.lower():
                return noise
        reason = _NOT_MONITORED.get(name.lower(), "no such family is known")
        raise MisuseError(
            f"noise {name!r} cannot be used with gaps: {reason}. Use 'exponential' or 'laplace'."
        )


MONITORED = (Noise.EXPONENTIAL, Noise.LAPLACE)
"""Families that monitors may use. Bounds of their gaps have closed forms, rational in e^-rate, and corrections and
accuracy rely on P(noise >= k) <= e^(-rate k) for k >= 0."""

_NOT_MONITORED = Noise.refused | {
    "gumbel": "it is a baseline, in the library only: no bound is certified for its gaps, and it is no more "
    "accurate than exponential noise"
}


@dataclass(frozen=True, slots=True)
class Law:
    """Family of a noise, also accepted by name, and its rate in epsilon per grid step, a number above 0."""

    noise: Noise
    rate: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", Noise.of(self.noise))
        if type(self.rate) is not Fraction:
            object.__setattr__(self, "rate", number_of(self.rate, "rate", above=0))


def require_laws(**given: object) -> None:
    """Raise `MisuseError`, which names the argument, unless each is a `Law`."""
    for name, law in given.items():
        require(
            isinstance(law, Law),
            f"{name} must be a Law, such as Law('exponential', '0.1'); found {shown(law)}",
        )


RELATIVE_VARIANCE = {Noise.EXPONENTIAL: 1.0, Noise.LAPLACE: 2.0, Noise.GUMBEL: math.pi**2 / 6}
"""Variance in squared scales, for small rates."""


def tails(noise: Noise, rate: Fraction | float, steps: Integers | Floats) -> Floats:
    """Return P(noise >= steps), elementwise; non-integer `steps` use the same formulas."""
    noise, rate = Noise.of(noise), float(rate)
    steps = steps.astype(np.float64)
    if noise is Noise.LAPLACE:
        outer = np.exp(-rate * np.where(steps >= 0, steps, 1 - steps)) / (1 + math.exp(-rate))
        return np.where(steps >= 0, outer, 1 - outer)
    if noise is Noise.GUMBEL:
        return -np.expm1(-np.exp(np.minimum(-rate * steps, _MAX_EXPONENT)))
    if noise is Noise.EXPONENTIAL:
        return np.exp(-rate * np.maximum(steps, 0.0))
    assert_never(noise)


def heads(noise: Noise, rate: Fraction | float, steps: Integers | Floats) -> Floats:
    """Return P(noise <= steps), elementwise, accurate also for small probabilities."""
    noise, rate = Noise.of(noise), float(rate)
    if noise is Noise.LAPLACE:
        return tails(noise, rate, -steps)
    if noise is Noise.GUMBEL:
        return np.exp(-np.exp(np.minimum(-rate * (steps + 1.0), _MAX_EXPONENT)))
    if noise is Noise.EXPONENTIAL:
        return -np.expm1(-rate * np.maximum(steps + 1.0, 0.0))
    assert_never(noise)


def tail(noise: Noise, rate: Fraction | float, k: int) -> float:
    """Return P(noise >= k)."""
    return float(tails(noise, rate, np.array(float(k))))


def head(noise: Noise, rate: Fraction | float, k: int) -> float:
    """Return P(noise <= k), accurate also for small probabilities."""
    return float(heads(noise, rate, np.array(float(k))))


def quantiles(noise: Noise, rate: Fraction | float, chances: Floats) -> Integers:
    """Return the largest k with P(noise >= k) >= chance, elementwise, for chances in (0, 1]; inverse of `tails`."""
    noise, rate = Noise.of(noise), float(rate)
    with np.errstate(divide="ignore"):
        if noise is Noise.LAPLACE:
            spread = 1 + math.exp(-rate)
            left = 1 + np.log(spread * (1 - chances)) / rate
            steps = np.where(chances * spread <= 1, -np.log(chances * spread) / rate, left)
        elif noise is Noise.GUMBEL:
            steps = -np.log(-np.log1p(-chances)) / rate
        elif noise is Noise.EXPONENTIAL:
            steps = -np.log(chances) / rate
        else:
            assert_never(noise)
    return np.floor(np.maximum(steps, -(2.0**60))).astype(np.int64)


def scales_at_odds(noise: Noise, odds: Fraction) -> float:
    """Return the scales that noise of a small rate reaches with probability 1/(odds + 1)."""
    if noise is Noise.GUMBEL:
        return -math.log(math.log1p(1 / odds))
    if noise is Noise.LAPLACE:
        return math.log((odds + 1) / 2)
    if noise is Noise.EXPONENTIAL:
        return math.log(odds + 1)
    assert_never(noise)


def mean(noise: Noise, rate: Fraction | float) -> float:
    """Return the mean in grid steps: 1/(e^rate - 1) or, for Laplace, 0 or, for Gumbel, about 0.577/rate - 1/2."""
    noise, rate = Noise.of(noise), float(rate)
    if noise is Noise.GUMBEL:
        return _gumbel_moments(rate)[0]
    if noise is Noise.LAPLACE:
        return 0.0
    if noise is Noise.EXPONENTIAL:
        return _over_expm1(rate)
    assert_never(noise)


def variance(noise: Noise, rate: Fraction | float) -> float:
    """Return the variance in squared grid steps: b/(1-b)^2, twice that for Laplace, about (pi/rate)^2/6 for Gumbel."""
    noise, rate = Noise.of(noise), float(rate)
    if noise is Noise.GUMBEL:
        return _gumbel_moments(rate)[1]
    once = _over_expm1(rate) / -math.expm1(-rate)
    if noise is Noise.LAPLACE:
        return 2 * once
    if noise is Noise.EXPONENTIAL:
        return once
    assert_never(noise)


def _gumbel_moments(rate: float) -> tuple[float, float]:
    """Return mean and variance of the discretised Gumbel law; narrow noise has few points, which are summed.

    For wide noise the fraction that the floor removes is uniform on [0, 1) and uncorrelated with the rest, up to the
    characteristic function at 2 pi, |Gamma(1 - 2 pi i/rate)| < 10^-16 for rates up to 1/4. So the mean falls by 1/2
    and the variance grows by 1/12.
    """
    if rate <= _WIDE_RATE:
        return _EULER / rate - 0.5, (math.pi / rate) ** 2 / 6 + 1 / 12
    law = Law(Noise.GUMBEL, Fraction(rate))
    average = expectation(lambda steps: steps, law)
    return average, expectation(lambda steps: (steps - average) ** 2, law)


def _over_expm1(rate: float) -> float:
    """Return 1/(e^rate - 1), without overflow for large rates."""
    return math.exp(-rate) / -math.expm1(-rate)


def expectation(function: Callable[[Floats], Floats], law: Law, *, scale: float = math.inf) -> float:
    """Return the mean of a function of a noise, for predictions.

    Narrow noise is summed point by point, exact up to rounding. Wide noise is summed by the midpoint rule over blocks
    of equal width, at most 1/512 of either scale if 2^20 blocks cover the law; the relative error is about
    (1/512)^2 / 24. The function maps grid steps elementwise; `scale` is the number of steps over which it changes by a
    factor of about e, if that is less than the scale of the noise.
    """
    wide = float(1 / law.rate)
    reach = math.ceil(_REACH * wide) + 1
    first = -reach if head(law.noise, law.rate, -1) else 0
    block = max(1, int(min(wide, scale) / _POINTS_PER_SCALE), (reach - first) // _MAX_BLOCKS)
    edges = np.arange(first, reach + block, block, dtype=np.float64)
    low, high = edges[:-1], edges[1:]
    # Differences of small probabilities keep their digits, so each side uses its own tail.
    mass = np.where(
        high <= 0,
        heads(law.noise, law.rate, high - 1) - heads(law.noise, law.rate, low - 1),
        tails(law.noise, law.rate, low) - tails(law.noise, law.rate, high),
    )
    return float(mass @ function((low + high - 1) / 2))


def least_integer(holds: Callable[[int], bool]) -> int:
    """Return the least integer at which a monotone predicate, false below and true from there on, holds."""
    high = 1
    while not holds(high):
        high *= 2
    low = -1
    while holds(low):
        low *= 2
    return bisect_left(range(low + 1, high), True, key=holds) + low + 1


def to_decimal(number: Fraction | int) -> Decimal:
    """Return a rational as a decimal in the precision of the current context."""
    return Decimal(number.numerator) / Decimal(number.denominator)
