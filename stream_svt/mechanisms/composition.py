"""What several runs on the same data cost together, as (epsilon, delta).

* Pure: charges add up, delta = 0.
* Advanced composition (Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20): k runs of charge e are
  (sqrt(2 k ln(1/delta)) e + k e (exp(e) - 1), delta)-private, for every delta > 0.
* zCDP (Bun & Steinke 2016): rho adds up and is converted once. For every alpha > 1 a rho-zCDP release is
  (epsilon, delta)-private with delta = exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)
  (Canonne, Kamath & Steinke 2020, Proposition 12); any alpha gives a true bound, the search only makes it small.

Both hold for runs chosen adaptively from what earlier ones told, as long as their number and charges are fixed at
the start. Figures here are floats, computed with a margin of 10^-9 to the safe side.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from enum import StrEnum

from stream_svt.errors import MisuseError

_SAFETY = 1e-9


class Composition(StrEnum):
    """How the loss of several runs is added up."""

    PURE = "pure"
    ADVANCED = "advanced"
    ZCDP = "zcdp"


def advanced_epsilon(charge: float, runs: int, delta: float) -> float:
    """Epsilon of so many runs, each of this charge under pure differential privacy, by advanced composition."""
    _require_delta(delta)
    total = math.sqrt(2 * runs * math.log(1 / delta)) * charge + runs * charge * math.expm1(charge)
    return total * (1 + _SAFETY)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Delta for which a rho-zCDP release is (epsilon, delta)-private."""
    from scipy.optimize import minimize_scalar

    if rho < 0 or epsilon < 0:
        raise MisuseError("rho and epsilon are 0 or more")
    if rho == 0:
        return 0.0

    def logarithm(t: float) -> float:
        above = math.exp(t)  # alpha - 1
        alpha = 1 + above
        return above * (alpha * rho - epsilon) - alpha * math.log1p(1 / above) - t

    most = math.log((epsilon / rho + 2) * 2 + 2)
    best = float(
        minimize_scalar(logarithm, bounds=(-25.0, most), method="bounded", options={"xatol": 1e-9}).fun
    )
    return min(1.0, math.exp(min(0.0, best)) * (1 + _SAFETY))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon for which a rho-zCDP release is (epsilon, delta)-private; at most rho + 2 sqrt(rho ln(1/delta))."""
    _require_delta(delta)
    low, high = 0.0, rho + 2 * math.sqrt(rho * math.log(1 / delta))
    while high - low > _SAFETY / 10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if zcdp_delta(rho, middle) <= delta else (middle, high)
    return high * (1 + _SAFETY)


def largest_charge(limit: int, fits: Callable[[int], bool]) -> int:
    """Most units, at most `limit`, that fit; what fits still does with fewer units.

    Raises:
        MisuseError: When not even one unit fits.
    """
    most = bisect_left(range(1, limit + 1), True, key=lambda units: not fits(units))
    if most == 0:
        raise MisuseError("epsilon is too small to be divided among so many runs")
    return most


def _require_delta(delta: float) -> None:
    """Refuse a delta that is not a small probability."""
    if not 0 < delta < 1:
        raise MisuseError("delta lies strictly between 0 and 1; smaller than 1 / the number of people")
