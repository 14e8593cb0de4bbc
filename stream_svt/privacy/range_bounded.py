"""The least zCDP price of a run whose privacy loss is known to lie in an interval, exactly.

If the log-ratio of the outputs of two neighbouring datasets lies in [-a, b], their Rényi divergence is largest
for the law with two points, of log-ratios b and -a (e^(alpha x) is convex). With L = a + b, p = (e^a - 1)/(e^L - 1)
the probability of the first point under the second dataset::

    K(alpha)   = ln(1 - p + p e^(alpha L)) - alpha a        D_alpha = K(alpha)/(alpha - 1)
    rho(a, b)  = sup over alpha > 1 of K(alpha) / (alpha (alpha - 1))

and a run costs max(rho(a, b), rho(b, a)), for either dataset may be the first. It is a number, not a closed form; the
ledger's bound L^2/8 (Cesar & Rogers 2021, Lemma 3.4) follows from it by K'' <= L^2/4.

How the supremum is found and why it is one. rho is valid if g(alpha) = rho alpha (alpha - 1) - K(alpha) >= 0 from 1
on. K'' = L^2 s (1 - s), s the logistic function of alpha L + ln(p/(1 - p)), which rises. So g is convex, then
concave (while s (1 - s) > 2 rho/L^2), then convex, and g(1) = 0. If rho >= K'(1), the limit at alpha = 1 (the
Kullback-Leibler divergence), g rises in the first part, in the second it is no less than at its ends, and in
the third it has one least value, found by Newton's method. If that is negative, rho is raised to
K/(alpha (alpha - 1)) there, and so on (Dinkelbach's iteration, which converges quadratically). In the end rho is
rounded up to a whole unit and g is checked again for that figure, in eighty digits.

Closed forms that this contains:

* a = b = epsilon (all that pure differential privacy says): rho = epsilon tanh(epsilon/2), at alpha = 1, which
  randomised response attains.
* Only the range L = epsilon is known (the index of the exponential mechanism): Harrison & Manurangsi 2025 give
  **rho = x - 1 - ln x, x = epsilon/(1 - e^-epsilon)**. It is the largest K'(1) = x (1 - e^-a) - a, at a = ln x.
  That no alpha > 1 and no a gives more is their theorem; here it was checked against sup_a K, which has a closed form
  (a = ln[alpha (C - 1)/((alpha - 1) C)], C = (e^(alpha L) - 1)/(e^L - 1)), in eighty digits for epsilon from 0.001
  to 100: it agrees everywhere, and so `exact_bounded_range` uses it.

The ledger:
    Today it charges the bound of `stream_svt.privacy.loss`, L^2/8 and epsilon^2/2, which is never less. To
    charge the figures here instead would be safe: they bound the same divergence of the same runs at every
    order, compose in the same way, and are rounded up; like those they must be charged in full before a run
    starts, refunds by output being valid under pure differential privacy only. What was charged already keeps
    its price. The gain is small for epsilon below 1 (1.125 falls to 0.996 for one top at e0 = e1 = 1) and large
    for many tops (15.1 falls to 5.93 for five).

References:
    Bun & Steinke 2016 (zCDP; e^2/2). Cesar & Rogers 2021 (bounded range). Durfee 2023, Theorem 1. Harrison &
    Manurangsi, Exact zCDP Characterizations for Fundamental Differentially Private Mechanisms, 2025.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from stream_svt.privacy.loss import EPSILON_UNITS, RHO_UNITS

_DIGITS = 80
_SETTLED = Decimal(10) ** -30
_MOST = 1000 * EPSILON_UNITS


@lru_cache(maxsize=4096)
def zcdp_of_range(below: int, above: int) -> int:
    """Return the least rho units of a run whose log-ratio lies in [-below, above], rounded up.

    Args:
        below, above: Ends of the interval in epsilon units, 0 to 1000 epsilon, for one order of the two
            datasets; the other order is taken care of.

    Raises:
        ValueError: When an end is no whole number of units or out of range.

    Examples:
        >>> zcdp_of_range(EPSILON_UNITS, EPSILON_UNITS) / RHO_UNITS  # tanh(1/2)
        0.462117157261
    """
    _require(below, "below")
    _require(above, "above")
    if below == 0 or above == 0:
        return 0  # a likelihood ratio that is never above 1, or never below, is always 1
    with decimal.localcontext(prec=_DIGITS):
        a, b = Decimal(below) / EPSILON_UNITS, Decimal(above) / EPSILON_UNITS
        return max(_TwoPoint(a, b).units(), _TwoPoint(b, a).units())


def exact_general(total: int) -> int:
    """Return the rho units of a run of `total` epsilon units in all, on queries that may move either way.

    Also the price of noisy top-k and of the exponential mechanism when gaps are released. The log-ratio lies in
    [-e, e]: rho = e tanh(e/2).
    """
    return zcdp_of_range(total, total)


def exact_monotone(threshold: int, query: int, cutoff: int) -> int:
    """Return the rho units of a monotone run with one shared threshold and up to `cutoff` tops with gaps.

    The log-ratio lies in [-(e0 + c e1), c e1]. With cutoff 1 it is AboveThreshold.

    >>> exact_monotone(EPSILON_UNITS, EPSILON_UNITS, 1) / RHO_UNITS  # the ledger's bound is 1.125
    0.995753336205
    >>> exact_monotone(EPSILON_UNITS, EPSILON_UNITS, 5) / RHO_UNITS  # 15.125
    5.92606506688
    """
    if cutoff < 1:
        raise ValueError("cutoff must be at least 1")
    tops = cutoff * _require(query, "query")
    return zcdp_of_range(_require(threshold, "threshold") + tops, tops)


def exact_resample(threshold: int, query: int) -> int:
    """Return the rho units of each threshold drawn when every top is followed by a new threshold, monotone.

    The log-ratio of one threshold and its top lies in [-(e0 + e1), e1]; `c` tops cost `c` times as much.
    """
    return exact_monotone(threshold, query, 1)


def exact_adaptive(total: int, threshold: int) -> int:
    """Return the rho units of a monotone run with several branches and `total` epsilon units, [-B, B - e0].

    >>> exact_adaptive(2 * EPSILON_UNITS, EPSILON_UNITS) == exact_resample(EPSILON_UNITS, EPSILON_UNITS)
    True
    """
    if _require(threshold, "threshold") > total:
        raise ValueError("the threshold's share cannot exceed the total")
    return zcdp_of_range(_require(total, "total"), total - threshold)


def exact_quantile(threshold: int, query: int, level: Fraction) -> int:
    """Return the rho units of the unbounded quantile of level A/B under add or remove, gap included.

    With e1, e2 of Durfee 2023 (Lemma B.1, confirmed with gap) the log-ratio of n + 1 records over n lies in
    [-max((1 - A/B) e1, (A/B) e2), (A/B) e1 + e2].

    Args:
        threshold, query: e1 and e2 in epsilon units.
        level: A/B, strictly between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError("the level of a quantile lies strictly between 0 and 1")
    e1, e2 = _require(threshold, "threshold"), _require(query, "query")
    return zcdp_of_range(math.ceil(max((1 - level) * e1, level * e2)), math.ceil(level * e1 + e2))


@lru_cache(maxsize=4096)
def exact_bounded_range(epsilon: int) -> int:
    """Return the rho units of the index of an exponential mechanism without gap, rounded up.

    Its log-ratio has range `epsilon` epsilon units: rho = x - 1 - ln x, x = epsilon/(1 - e^-epsilon). With
    the gap the range doubles: `exact_general`.

    >>> exact_bounded_range(EPSILON_UNITS) / RHO_UNITS  # the bound epsilon^2/8 is 0.125
    0.123301561483
    """
    if _require(epsilon, "epsilon") == 0:
        return 0
    with decimal.localcontext(prec=_DIGITS):
        loss = Decimal(epsilon) / EPSILON_UNITS
        x = loss / (1 - (-loss).exp())
        return _up(x - 1 - x.ln())


def exact_exponential(epsilon: int, *, gap: bool) -> int:
    """Return the rho units of an exponential mechanism of `epsilon` epsilon units, rounded up.

    The log-ratio of the index alone has range epsilon (bound epsilon^2/8); with the gap it lies in [-epsilon, epsilon]
    (bound epsilon^2/2), for the gap doubles its range.

    >>> [exact_exponential(EPSILON_UNITS, gap=gap) / RHO_UNITS for gap in (False, True)]
    [0.123301561483, 0.462117157261]
    """
    return exact_general(epsilon) if gap else exact_bounded_range(epsilon)


class _TwoPoint:
    """The extremal law of log-ratios -a and b, a, b > 0, in the precision of the context."""

    def __init__(self, a: Decimal, b: Decimal) -> None:
        self.a, self.b, self.range = a, b, a + b
        self.p = (a.exp() - 1) / (self.range.exp() - 1)
        self.logit = (self.p / (1 - self.p)).ln()

    def cumulant(self, alpha: Decimal) -> Decimal:
        """K(alpha)."""
        z = alpha * self.range + self.logit
        tail = (
            ((-z).exp() + 1).ln() + z if z > 0 else (z.exp() + 1).ln()
        )  # the power may be beyond all numbers
        return (1 - self.p).ln() + tail - alpha * self.a

    def slope(self, alpha: Decimal) -> Decimal:
        """K'(alpha)."""
        return self.range * self.share(alpha) - self.a

    def share(self, alpha: Decimal) -> Decimal:
        """s, the logistic function of alpha L + ln(p/(1 - p))."""
        return 1 / (1 + (-alpha * self.range - self.logit).exp())

    def worst_order(self, rho: Decimal) -> Decimal | None:
        """Order above 1 at which g for `rho` >= K'(1) is least; None where g is nowhere less than g(1) = 0."""
        inner = Decimal("0.25") - 2 * rho / self.range**2
        if inner <= 0:
            return None
        root = inner.sqrt()
        bend = (((1 + 2 * root) / (1 - 2 * root)).ln() - self.logit) / self.range
        low = max(Decimal(1), bend)
        if rho * (2 * low - 1) >= self.slope(low):
            return None
        # g' is convex beyond the bend, so that Newton's steps from the right, where K' < b, never pass the zero.
        alpha = low + self.b / rho
        while True:
            share = self.share(alpha)
            step = (rho * (2 * alpha - 1) - self.range * share + self.a) / (
                2 * rho - self.range**2 * share * (1 - share)
            )
            alpha -= step
            if step <= _SETTLED * alpha:
                return alpha

    def excess(self, rho: Decimal) -> tuple[Decimal, Decimal]:
        """Return the least value of g for `rho` >= K'(1), or 0, and the rho that would make it 0."""
        alpha = self.worst_order(rho)
        if alpha is None:
            return Decimal(0), rho
        cumulant, scale = self.cumulant(alpha), alpha * (alpha - 1)
        return rho * scale - cumulant, cumulant / scale

    def units(self) -> int:
        """Return the supremum in rho units, rounded up and checked."""
        rho = self.slope(Decimal(1))
        while True:
            below, needed = self.excess(rho)
            if below >= 0 or needed - rho < _SETTLED:
                break
            rho = needed
        units = _up(rho)
        while self.excess(Decimal(units) / RHO_UNITS)[0] < 0:
            units += 1
        return units


def _up(rho: Decimal) -> int:
    """Return rho in whole units, above it however its last digits were rounded."""
    return math.floor(rho * RHO_UNITS) + 1


def _require(units: int, name: str) -> int:
    """Return what is a number of epsilon units within reach."""
    if type(units) is not int or not 0 <= units <= _MOST:
        raise ValueError(f"{name} must be a whole number of epsilon units, 0 to 1000 epsilon")
    return units
