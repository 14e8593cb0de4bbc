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

Intervals of the mechanisms, gaps included (e0 of the threshold, e1 of a query, B in all)::

    general answers, noisy top-k, exponential mechanism    [-B, B]
    monotone, c tops under one threshold                   [-(e0 + c e1), c e1]
    monotone, RESAMPLE                                     c times the price of [-(e0 + e1), e1]
    monotone, several branches                             [-B, B - e0]
    quantile A/B, add or remove (e1, e2 of Durfee 2023)    [-max((1 - A/B) e1, (A/B) e2), (A/B) e1 + e2]

Two closed forms are contained. For a = b = epsilon, all that pure differential privacy says, rho = epsilon
tanh(epsilon/2), at alpha = 1, which randomised response attains. Where only the range L = epsilon is known (the index
of the exponential mechanism without its gap), Harrison & Manurangsi 2025 give **rho = x - 1 - ln x,
x = epsilon/(1 - e^-epsilon)**. It is the largest K'(1) = x (1 - e^-a) - a, at a = ln x. That no alpha > 1 and no a
gives more is their theorem; the tests check it against sup_a K, which has a closed form, in eighty digits.

The ledger charges the bound of `stream_svt.privacy.loss`, which is never less (15.1 for 5.93 of five tops at
e0 = e1 = 1).

References:
    Bun & Steinke 2016 (zCDP; e^2/2). Cesar & Rogers 2021 (bounded range). Durfee 2023, Theorem 1. Harrison &
    Manurangsi, Exact zCDP Characterizations for Fundamental Differentially Private Mechanisms, 2025.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from functools import lru_cache

from stream_svt.privacy.loss import EPSILON_UNITS, RHO_UNITS

_DIGITS = 80
_TOLERANCE = Decimal(10) ** -30
_MAX_UNITS = 1000 * EPSILON_UNITS


@lru_cache(maxsize=4096)
def zcdp_of_range(below: int, above: int) -> int:
    """Return the least rho units of a run whose log-ratio lies in [-below, above], rounded up.

    The ends are in epsilon units, 0 to 1000 epsilon, for one order of the two datasets; the other order is taken care
    of.

    >>> zcdp_of_range(EPSILON_UNITS, EPSILON_UNITS) / RHO_UNITS  # tanh(1/2)
    0.462117157261
    >>> zcdp_of_range(6 * EPSILON_UNITS, 5 * EPSILON_UNITS) / RHO_UNITS  # five tops; the ledger's bound is 15.125
    5.92606506688

    Raises:
        ValueError: When an end is no whole number of units or out of range.
    """
    _check_units(below, "below")
    _check_units(above, "above")
    if below == 0 or above == 0:
        return 0  # a likelihood ratio that is never above 1, or never below, is always 1
    with decimal.localcontext(prec=_DIGITS):
        a, b = Decimal(below) / EPSILON_UNITS, Decimal(above) / EPSILON_UNITS
        return max(_TwoPoint(a, b).units(), _TwoPoint(b, a).units())


@lru_cache(maxsize=4096)
def exact_bounded_range(epsilon: int) -> int:
    """Return the rho units of the index of an exponential mechanism without gap, rounded up.

    Its log-ratio has range `epsilon` epsilon units: rho = x - 1 - ln x, x = epsilon/(1 - e^-epsilon). With
    the gap the range doubles, to [-epsilon, epsilon].

    >>> exact_bounded_range(EPSILON_UNITS) / RHO_UNITS  # the bound epsilon^2/8 is 0.125
    0.123301561483
    """
    if _check_units(epsilon, "epsilon") == 0:
        return 0
    with decimal.localcontext(prec=_DIGITS):
        loss = Decimal(epsilon) / EPSILON_UNITS
        x = loss / (1 - (-loss).exp())
        return _round_up(x - 1 - x.ln())


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
            if step <= _TOLERANCE * alpha:
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
            if below >= 0 or needed - rho < _TOLERANCE:
                break
            rho = needed
        units = _round_up(rho)
        while self.excess(Decimal(units) / RHO_UNITS)[0] < 0:
            units += 1
        return units


def _round_up(rho: Decimal) -> int:
    """Return rho in whole units, above it however its last digits were rounded."""
    return math.floor(rho * RHO_UNITS) + 1


def _check_units(units: int, name: str) -> int:
    """Return what is a number of epsilon units within reach."""
    if type(units) is not int or not 0 <= units <= _MAX_UNITS:
        raise ValueError(f"{name} must be a whole number of epsilon units, 0 to 1000 epsilon")
    return units
