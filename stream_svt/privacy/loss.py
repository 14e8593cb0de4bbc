"""Privacy loss in integer units: parsing, rounding, formatting, and zCDP prices.

One unit is 1e-9 of epsilon for pure differential privacy and 1e-12 of rho for zCDP, so sums are exact and rounding
never exceeds a limit. Declared limits and losses round down (noise is derived from the rounded number, so noise and
charge match); prices computed here round up.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from math import ceil, exp, expm1, floor, sqrt
from typing import Literal, Self

from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON

EPSILON_UNITS = UNITS_PER_EPSILON
"""Units in an epsilon of 1."""

RHO_UNITS = 10**12
"""Units in a rho of 1."""


class Kind(StrEnum):
    """The privacy measure of a ledger: ``units`` in a loss of 1, and ``measure``, the name of the loss."""

    PURE = "pure", EPSILON_UNITS, "epsilon"
    ZCDP = "zcdp", RHO_UNITS, "rho"

    units: int
    measure: Literal["epsilon", "rho"]

    def __new__(cls, value: str, units: int, measure: Literal["epsilon", "rho"]) -> Self:
        """Return a member with its attributes, which are read for every alert."""
        member = str.__new__(cls, value)
        member._value_, member.units, member.measure = value, units, measure
        return member


KINDS: dict[str, Kind] = {kind.measure: kind for kind in Kind}
"""Kinds by the name of their measure."""


def to_units(loss: Fraction, kind: Kind) -> int:
    """Return a declared loss in units, rounded down.

    >>> to_units(Fraction(1, 3), Kind.PURE)
    333333333
    """
    return floor(loss * kind.units)


def to_loss(units: int, kind: Kind) -> Fraction:
    """Return the exact loss of a number of units."""
    return Fraction(units, kind.units)


def to_float(units: int, kind: Kind) -> float:
    """Return the loss as a float for reports; ``round(result * kind.units)`` restores units up to 2**50."""
    return units / kind.units


def as_text(units: int, kind: Kind) -> str:
    """Return the loss as exact decimal text without trailing zeros.

    >>> as_text(250_000_000, Kind.PURE), as_text(4 * 10**12, Kind.ZCDP)
    ('0.25', '4')
    """
    integer, remainder = divmod(abs(units), kind.units)
    digits = len(str(kind.units)) - 1
    sign = "-" if units < 0 else ""
    return f"{sign}{integer}.{remainder:0{digits}d}".rstrip("0").rstrip(".")


def amount_text(units: int, kind: Kind) -> str:
    """Return a loss as text with its measure, such as epsilon 0.25."""
    return f"{kind.measure} {as_text(units, kind)}"


def best_guess(loss: float, kind: Kind) -> float:
    """Return the largest probability, 0.5 to 1, that an adversary guesses membership right after a loss of 0 or more.

    The adversary guesses whether one privacy unit is in the data, and knows all other data and all outputs. If both
    cases are equally likely, the guess is right with probability at most (1 + V) / 2, where V is the total variation
    distance of the outputs. Pure epsilon: V <= tanh(epsilon / 2). zCDP: the Kullback-Leibler divergence is at most
    rho, so V <= sqrt(rho / 2) (Pinsker) and V <= sqrt(1 - exp(-rho)) (Bretagnolle and Huber).

    `ValueError` for a negative loss.

    >>> best_guess(0, Kind.PURE), round(best_guess(1, Kind.PURE), 3), round(best_guess(0.5, Kind.ZCDP), 3)
    (0.5, 0.731, 0.75)
    """
    if loss < 0:
        raise ValueError("loss must be 0 or more")
    if kind is Kind.PURE:
        return 1 / (1 + exp(-loss))
    return (1 + min(sqrt(loss / 2), sqrt(-expm1(-loss)))) / 2


def zcdp_general(epsilon_units: int) -> int:
    """Return the rho units of a run of this many epsilon units on queries that are not monotonic, rounded up.

    The log-ratio lies in [-e, e], so rho = e**2 / 2 (Bun & Steinke 2016).

    >>> as_text(zcdp_general(EPSILON_UNITS), Kind.ZCDP)
    '0.5'
    """
    return _eighth_of_square(2 * _check_units(epsilon_units))


def zcdp_monotone(epsilon_units: int, threshold_units: int) -> int:
    """Return the rho units of a run on monotonic queries, rounded up, from its epsilon units B and e0 of the threshold.

    The log-ratio lies in [-B, B - e0], with gaps and any number of branches, so rho = (2 B - e0)**2 / 8, which is
    (e0 + 2 c e1)**2 / 8 for c tops at e1 (Cesar & Rogers 2021; Durfee 2023, Theorem 1). A new threshold after each of
    c tops (RESAMPLE) costs c times the price of a run with one top.

    >>> as_text(zcdp_monotone(2 * EPSILON_UNITS, EPSILON_UNITS), Kind.ZCDP)
    '1.125'
    """
    if threshold_units > epsilon_units:
        raise ValueError("the threshold's share cannot exceed the total")
    return _eighth_of_square(2 * _check_units(epsilon_units) - _check_units(threshold_units))


def _eighth_of_square(width: int) -> int:
    """Return (width in epsilon units)**2 / 8 in rho units, rounded up."""
    return ceil(Fraction(width * width * RHO_UNITS, 8 * EPSILON_UNITS**2))


def _check_units(units: int) -> int:
    if type(units) is not int or units < 0:
        raise ValueError("a price needs a whole number of epsilon units, 0 or more")
    return units
