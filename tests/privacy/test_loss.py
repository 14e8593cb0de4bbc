"""Exact units of privacy loss, zCDP prices, and the best guess that a loss allows."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from math import erf, exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, fractions, integers

from stream_svt.mechanisms.numbers import exact
from stream_svt.privacy.loss import (
    EPSILON_UNITS,
    RHO_UNITS,
    Kind,
    as_text,
    best_guess,
    to_float,
    to_loss,
    to_units,
    zcdp_general,
    zcdp_monotone,
)

charges = integers(1, 50 * EPSILON_UNITS)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (4, Fraction(4)),
        ("0.1", Fraction(1, 10)),
        ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
        ("1/3", Fraction(1, 3)),
        ("-2 / 4", Fraction(-1, 2)),
        (Decimal("0.7"), Fraction(7, 10)),
        (Fraction(5, 7), Fraction(5, 7)),
        (0.1, Fraction(1, 10)),
        (1e-300, Fraction(1, 10**300)),
        (np.float32(0.1), Fraction(1, 10)),
        (np.int64(-3), Fraction(-3)),
    ],
)
def test_a_number_is_read_exactly_from_its_text(written, number):
    assert exact(written) == number


@pytest.mark.parametrize(
    "text", ["", "abc", "1/0", "nan", "inf", "1e9999", "0x10", "1_000", "1/2/3", "٣", "1." + "0" * 99]
)
def test_a_text_that_is_no_finite_number_is_refused(text):
    with pytest.raises(ValueError, match="not a number"):
        exact(text)


@given(floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_the_decimal_that_its_author_wrote(number):
    """Its shortest decimal text; one rule for floats of Python and numpy."""
    assert exact(number) == exact(np.float64(number)) == Fraction(repr(number))
    assert float(exact(number)) == number


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan"), Decimal("inf")])
def test_what_is_not_finite_is_no_number(number):
    with pytest.raises(ValueError, match="not a number"):
        exact(number)


@pytest.mark.parametrize("number", [True, np.True_, None, b"1"])
def test_other_types_are_refused(number):
    with pytest.raises(TypeError, match="expected an integer"):
        exact(number)


@given(fractions(0, 1000), integers(0, 1))
def test_a_declared_loss_never_rounds_up(loss, kind):
    kind = list(Kind)[kind]
    assert 0 <= loss - to_loss(to_units(loss, kind), kind) < Fraction(1, kind.units)


@given(integers(0, 2**50))
def test_a_float_report_gives_its_units_back(units):
    for kind in Kind:
        assert round(to_float(units, kind) * kind.units) == units


@given(integers(-(10**20), 10**20))
def test_text_of_a_loss_is_exact(units):
    for kind in Kind:
        assert exact(as_text(units, kind)) == to_loss(units, kind)


@given(charges, charges, integers(1, 100))
def test_prices_are_the_formulas_rounded_up(threshold, query, cutoff):
    e0, e1 = to_loss(threshold, Kind.PURE), to_loss(query, Kind.PURE)
    total = threshold + cutoff * query
    prices = {
        zcdp_general(total): (e0 + cutoff * e1) ** 2 / 2,
        zcdp_monotone(total, threshold): (e0 + 2 * cutoff * e1) ** 2 / 8,
    }
    for units, rho in prices.items():
        assert 0 <= Fraction(units, RHO_UNITS) - rho < Fraction(1, RHO_UNITS)


@pytest.mark.parametrize("wrong", [-1, 1.5, True])
def test_a_price_takes_whole_units_only(wrong):
    with pytest.raises(ValueError, match="whole number"):
        zcdp_general(wrong)


def test_the_share_of_a_threshold_is_within_the_total():
    with pytest.raises(ValueError, match="share"):
        zcdp_monotone(1, 2)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_randomised_response_reaches_the_best_guess_of_its_epsilon(epsilon: float) -> None:
    """It gives the true answer with probability e / (1 + e), the most for any mechanism of this epsilon."""
    assert best_guess(epsilon, Kind.PURE) == pytest.approx(exp(epsilon) / (1 + exp(epsilon)))


@pytest.mark.parametrize("rho", [0.001, 0.1, 0.5, 2.0, 10.0])
def test_the_gaussian_mechanism_stays_below_the_best_guess_of_its_rho(rho: float) -> None:
    """A shift of one against noise of deviation 1 / sqrt(2 rho): the best test is right Phi(shift / 2 deviations)."""
    right = (1 + erf(sqrt(2 * rho) / 2 / sqrt(2))) / 2
    assert right < best_guess(rho, Kind.ZCDP) <= 1.0


@pytest.mark.parametrize("kind", list(Kind))
def test_no_loss_is_a_coin_and_more_loss_is_a_better_guess(kind: Kind) -> None:
    guesses = [best_guess(loss, kind) for loss in (0.0, 0.05, 0.5, 1.0, 5.0)]
    assert guesses[0] == 0.5
    assert guesses == sorted(set(guesses))


def test_a_negative_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        best_guess(-0.1, Kind.PURE)
