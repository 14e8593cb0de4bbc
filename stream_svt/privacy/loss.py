"""Privacy loss in whole units: exact parsing, rounding, text for people, and zCDP prices.

A ledger counts integers. One unit is 1e-9 of epsilon for pure differential privacy and 1e-12 of rho for zCDP,
so sums are exact and a limit is never passed by rounding. Limits and losses that somebody declares round down
(the noise is derived from the rounded figure, so noise and charge agree); prices computed here round up.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil, exp, expm1, floor, sqrt
from typing import Literal

EPSILON_UNITS = 10**9
"""Units in an epsilon of 1."""

RHO_UNITS = 10**12
"""Units in a rho of 1."""

# A longer exponent would make Fraction build a number of as many digits as it says.
_NUMBER = re.compile(r"[-+]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})(?:[eE][-+]?\d{1,2})?", re.ASCII)
_RATIO = re.compile(r"([-+]?\d{1,60}) ?/ ?(\d{1,60})", re.ASCII)


class Kind(StrEnum):
    """The privacy measure a ledger counts in."""

    PURE = "pure"
    ZCDP = "zcdp"

    @property
    def units(self) -> int:
        """Ledger units in a loss of 1."""
        return EPSILON_UNITS if self is _PURE else RHO_UNITS

    @property
    def measure(self) -> Literal["epsilon", "rho"]:
        """Name of the loss: "epsilon" or "rho"."""
        return "epsilon" if self is _PURE else "rho"


_PURE = Kind.PURE
"""For what is asked with every amount: a look-up of an enumeration's member takes Python longer than the rest."""

KINDS: dict[str, Kind] = {kind.measure: kind for kind in Kind}
"""By the name of the measure."""


def exact(number: int | str | Decimal | Fraction) -> Fraction:
    """Return the rational number that an integer, a decimal or a text ("0.25", "1e-3", "1/3") denotes.

    Binary floats are refused: 0.1 as a float is not one tenth.

    >>> exact("0.1") + exact("1/5")
    Fraction(3, 10)

    Raises:
        ValueError: The text is no finite number, or has more than 60 digits or an exponent of more than two.
        TypeError: A float, a bool or anything else that does not denote an exact number.
    """
    if isinstance(number, bool) or not isinstance(number, int | str | Decimal | Fraction):
        raise TypeError("expected an integer, a decimal or a text such as '0.25' or '1/3'")
    if isinstance(number, int | Fraction):
        return Fraction(number)
    text = str(number).strip()
    if _NUMBER.fullmatch(text):
        return Fraction(text)
    ratio = _RATIO.fullmatch(text)
    if ratio is None:
        raise ValueError("not a number: expected something like 4, 0.25, 1e-3 or 1/3")
    if int(ratio[2]) == 0:
        raise ValueError("not a number: it divides by zero")
    return Fraction(int(ratio[1]), int(ratio[2]))


def to_units(loss: Fraction, kind: Kind) -> int:
    """Return a declared loss in ledger units, rounded down.

    >>> to_units(exact("1/3"), Kind.PURE)
    333333333
    """
    return floor(loss * kind.units)


def to_loss(units: int, kind: Kind) -> Fraction:
    """Return the exact loss that a number of ledger units stands for."""
    return Fraction(units, kind.units)


def to_float(units: int, kind: Kind) -> float:
    """Return the loss as a float for reports; ``round(result * kind.units)`` is the units up to 2**50."""
    return units / kind.units


def as_text(units: int, kind: Kind) -> str:
    """Return the loss as exact decimal text without trailing zeros.

    >>> as_text(250_000_000, Kind.PURE), as_text(4 * 10**12, Kind.ZCDP)
    ('0.25', '4')
    """
    whole, rest = divmod(abs(units), kind.units)
    digits = len(str(kind.units)) - 1
    decimals = f"{rest:0{digits}d}".rstrip("0")
    sign = "-" if units < 0 else ""
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"


def best_guess(loss: float, kind: Kind) -> float:
    """Return the most often, as a share from 0.5 to 1, that a guess can be right after a loss of 0 or more.

    Somebody wonders whether one privacy unit was in the data, and knows all the other data and all that was released.

    A guess between two equally likely worlds is right with probability (1 + V) / 2 at most, where V is the total
    variation distance of what is released in them. Pure epsilon: V <= tanh(epsilon / 2). zCDP: the Kullback-Leibler
    divergence is at most rho, so V <= sqrt(rho / 2) (Pinsker) and V <= sqrt(1 - exp(-rho)) (Bretagnolle and Huber).

    >>> best_guess(0, Kind.PURE), round(best_guess(1, Kind.PURE), 3), round(best_guess(0.5, Kind.ZCDP), 3)
    (0.5, 0.731, 0.75)
    """
    if loss < 0:
        raise ValueError("a loss is 0 or more")
    if kind is Kind.PURE:
        return 1 / (1 + exp(-loss))
    return (1 + min(sqrt(loss / 2), sqrt(-expm1(-loss)))) / 2


def zcdp_general(total: int) -> int:
    """Return the rho units of a run of ``total`` epsilon units on queries that may move in any direction.

    The log-ratio lies in [-e, e]: rho = e**2 / 2. Also the price of noisy top-k and of the exponential
    mechanism when gaps are released.

    >>> as_text(zcdp_general(EPSILON_UNITS), Kind.ZCDP)
    '0.5'
    """
    return _eighth_of_square(2 * _check_units(total))


def zcdp_monotone(total: int, threshold: int) -> int:
    """Return the rho units of a monotone run of ``total`` epsilon units B, of which the threshold's are e0.

    The log-ratio lies in [-B, B - e0], gaps included and for any number of branches: rho = (2 B - e0)**2 / 8, which
    is (e0 + 2 c e1)**2 / 8 for c tops at e1. A new threshold after each of c tops (RESAMPLE) costs c times as much as
    one with one top.

    >>> as_text(zcdp_monotone(2 * EPSILON_UNITS, EPSILON_UNITS), Kind.ZCDP)
    '1.125'
    """
    if threshold > total:
        raise ValueError("the threshold's share cannot exceed the total")
    return _eighth_of_square(2 * _check_units(total) - _check_units(threshold))


def _eighth_of_square(width: int) -> int:
    """Return (width in epsilon units)**2 / 8 in rho units, rounded up."""
    return ceil(Fraction(width * width * RHO_UNITS, 8 * EPSILON_UNITS**2))


def _check_units(units: int) -> int:
    if type(units) is not int or units < 0:
        raise ValueError("a price takes a whole number of epsilon units, 0 or more")
    return units
