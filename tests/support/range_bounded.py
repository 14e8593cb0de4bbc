"""The exact least zCDP price of a run whose privacy loss lies in a known interval.

If the log-ratio of the outputs of two neighbouring datasets lies in [-a, b], their Rényi divergence is largest for
the law with two points, at log-ratios b and -a, since e^(alpha x) is convex. Let L = a + b, and let p = (e^a - 1)/
(e^L - 1) be the probability of the first point under the second dataset. Then::

    K(alpha)   = ln(1 - p + p e^(alpha L)) - alpha a        D_alpha = K(alpha)/(alpha - 1)
    rho(a, b)  = sup over alpha > 1 of K(alpha) / (alpha (alpha - 1))

and a run costs max(rho(a, b), rho(b, a)), since either dataset may be the first. This has no closed form in general;
the ledger's bound L^2/8 (Cesar & Rogers 2021, Lemma 3.4) follows from it by K'' <= L^2/4.

Computation of the supremum. rho is valid if g(alpha) = rho alpha (alpha - 1) - K(alpha) >= 0 for alpha >= 1. K'' =
L^2 s (1 - s), where s, the logistic function of alpha L + ln(p/(1 - p)), increases. So g is convex, then concave
(while s (1 - s) > 2 rho/L^2), then convex, and g(1) = 0. If rho >= K'(1), the limit at alpha = 1 (the Kullback-Leibler
divergence), g increases in the first part, is at least the lesser of its end values in the second, and has one minimum
in the third, found by Newton's method. If this minimum is negative, rho is raised to K/(alpha (alpha - 1)) there and
the search repeats (Dinkelbach's iteration, which converges quadratically). Finally rho is rounded up to an integer
number of units, and g is checked for the result, in eighty digits.

Intervals of the mechanisms, gaps included (e0 of the threshold, e1 of a query, B in all)::

    general answers, noisy top-k, exponential mechanism    [-B, B]
    monotone, c tops under one threshold                   [-(e0 + c e1), c e1]
    monotone, RESAMPLE                                     c times the price of [-(e0 + e1), e1]
    monotone, several branches                             [-B, B - e0]
    quantile A/B, add or remove (e1, e2 of Durfee 2023)    [-max((1 - A/B) e1, (A/B) e2), (A/B) e1 + e2]

Two cases have closed forms. For a = b = epsilon, the interval of pure differential privacy, rho = epsilon
tanh(epsilon/2), at alpha = 1; randomised response attains it. If only the range L = epsilon is known, as for the index
of the exponential mechanism without gap, Harrison & Manurangsi 2025 give **rho = x - 1 - ln x,
x = epsilon/(1 - e^-epsilon)**. This is the largest K'(1) = x (1 - e^-a) - a, at a = ln x. By their theorem no
alpha > 1 and no a give more; the tests check this against sup_a K, which has a closed form, in eighty digits.

The ledger charges the bound of `stream_svt.privacy.loss`, which is never less.

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

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.noise import to_decimal
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON, Number, loss_of, number_of, shown
from stream_svt.privacy.loss import RHO_UNITS, Kind, to_loss

_DIGITS = 80
_TOLERANCE = Decimal(10) ** -30
_LARGEST = 1000


def zcdp_of_range(below: Number, above: Number) -> Fraction:
    """Return the least rho of a run whose log-ratio lies in [-below, above], rounded up to a multiple of 10^-12.

    Both ends are in epsilon, 0 to 1000, for one order of the two datasets; the result covers both orders.
    `MisuseError` for other numbers.

    >>> float(zcdp_of_range(1, 1))  # tanh(1/2)
    0.462117157261
    >>> float(zcdp_of_range(6, 5))  # five tops; the ledger's bound is 15.125
    5.92606506688
    """
    first, second = _checked(below, "below"), _checked(above, "above")
    if first == 0 or second == 0:
        return Fraction(0)  # a likelihood ratio that is never above 1, or never below 1, is always 1
    return to_loss(max(_units(first, second), _units(second, first)), Kind.ZCDP)


def exact_bounded_range(epsilon: Number) -> Fraction:
    """Return the rho of an exponential mechanism without gap, rounded up (Harrison & Manurangsi 2025).

    Its log-ratio has range `epsilon`: rho = x - 1 - ln x, x = epsilon/(1 - e^-epsilon). With gap, the log-ratio lies in
    [-epsilon, epsilon]. `MisuseError` unless epsilon is a number from 0 to 1000.

    >>> float(exact_bounded_range(1))  # the bound epsilon^2/8 is 0.125
    0.123301561483
    """
    width = _checked(epsilon, "epsilon")
    if width == 0:
        return Fraction(0)
    with decimal.localcontext(prec=_DIGITS):
        loss = to_decimal(width)
        x = loss / (1 - (-loss).exp())
        return to_loss(_round_up(x - 1 - x.ln()), Kind.ZCDP)


@lru_cache(maxsize=4096)
def _units(below: Fraction, above: Fraction) -> int:
    """Return the rho units of one order of the two datasets."""
    with decimal.localcontext(prec=_DIGITS):
        return _TwoPoint(to_decimal(below), to_decimal(above)).units()


class _TwoPoint:
    """The law on log-ratios -a and b, both a, b > 0, in the precision of the current context."""

    def __init__(self, a: Decimal, b: Decimal) -> None:
        self.a, self.b, self.range = a, b, a + b
        self.p = (a.exp() - 1) / (self.range.exp() - 1)
        self.logit = (self.p / (1 - self.p)).ln()

    def slope(self, alpha: Decimal) -> Decimal:
        """Return K'(alpha)."""
        return self.range * self.share(alpha) - self.a

    def share(self, alpha: Decimal) -> Decimal:
        """Return s, the logistic function of alpha L + ln(p/(1 - p))."""
        return 1 / (1 + (-alpha * self.range - self.logit).exp())

    def worst_order(self, rho: Decimal) -> Decimal | None:
        """Return the order above 1 that minimises g for `rho` >= K'(1), or None if g is nowhere below g(1) = 0."""
        inner = Decimal("0.25") - 2 * rho / self.range**2
        if inner <= 0:
            return None
        root = inner.sqrt()
        bend = (((1 + 2 * root) / (1 - 2 * root)).ln() - self.logit) / self.range
        low = max(Decimal(1), bend)
        if rho * (2 * low - 1) >= self.slope(low):
            return None
        # g' is convex beyond the bend, so Newton's steps from the right, where K' < b, stay right of the zero.
        alpha = low + self.b / rho
        while True:
            share = self.share(alpha)
            step = (rho * (2 * alpha - 1) - self.range * share + self.a) / (
                2 * rho - self.range**2 * share * (1 - share)
            )
            alpha -= step
            if step <= _TOLERANCE * alpha:
                return alpha

    def needed(self, rho: Decimal) -> Decimal:
        """Return K/(alpha (alpha - 1)) at the order that minimises g for `rho` >= K'(1); above `rho` if g < 0 there."""
        alpha = self.worst_order(rho)
        if alpha is None:
            return rho
        z = alpha * self.range + self.logit
        tail = ((-z).exp() + 1).ln() + z if z > 0 else (z.exp() + 1).ln()  # avoids overflow of the power
        return ((1 - self.p).ln() + tail - alpha * self.a) / (alpha * (alpha - 1))

    def units(self) -> int:
        """Return the supremum in rho units, rounded up and checked."""
        rho = self.slope(Decimal(1))
        while (needed := self.needed(rho)) - rho >= _TOLERANCE:
            rho = needed
        units = _round_up(rho)
        while self.needed(Decimal(units) / RHO_UNITS) > Decimal(units) / RHO_UNITS:
            units += 1
        return units


def _round_up(rho: Decimal) -> int:
    """Return rho in integer units, strictly rounded up to allow for rounding of its last digits."""
    return math.floor(rho * RHO_UNITS) + 1


def _checked(epsilon: Number, name: str) -> Fraction:
    """Return a loss rounded up to units of the ledger, since smaller ones would need more digits."""
    loss = number_of(epsilon, name, least=0)
    require(loss <= _LARGEST, f"{name} must be at most {_LARGEST}; found {shown(epsilon)}")
    return loss_of(math.ceil(loss * UNITS_PER_EPSILON))
