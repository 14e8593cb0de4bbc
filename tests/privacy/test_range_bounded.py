"""Exact zCDP prices of range-bounded runs, against the definition, closed forms and the mechanisms themselves."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from stream_svt.mechanisms.numbers import loss_of
from stream_svt.privacy.loss import EPSILON_UNITS, RHO_UNITS, zcdp_general, zcdp_monotone
from tests.support import range_bounded

ONE = EPSILON_UNITS
losses = integers(1, 8 * ONE)


def zcdp_of_range(below, above):
    """Price in units, of ends in units."""
    return int(range_bounded.zcdp_of_range(loss_of(below), loss_of(above)) * RHO_UNITS)


def exact_bounded_range(epsilon):
    """Price in units, of a loss in units."""
    return int(range_bounded.exact_bounded_range(loss_of(epsilon)) * RHO_UNITS)


ORDERS = 1 + np.logspace(-2, 11, 40_000)


def divergence_over_order(a, b, orders):
    """D_alpha / alpha of the two-point law, in floats good to 1e-9 for orders from 1.01 on."""
    p = math.expm1(a) / math.expm1(a + b)
    cumulant = np.logaddexp(math.log(p) + orders * b, math.log1p(-p) - orders * a)
    return cumulant / (orders * (orders - 1))


def kullback_leibler(a, b):
    p = math.expm1(a) / math.expm1(a + b)
    return p * math.exp(b) * b - (1 - p) * math.exp(-a) * a


@settings(max_examples=30)
@given(losses, losses)
def test_the_price_is_the_supremum_over_all_orders_in_both_directions(below, above):
    price = zcdp_of_range(below, above) / RHO_UNITS
    ends = (below / ONE, above / ONE)
    largest = max(
        max(divergence_over_order(a, b, ORDERS).max(), kullback_leibler(a, b)) for a, b in (ends, ends[::-1])
    )
    assert largest <= price + 1e-9
    assert price <= largest * (1 + 2e-4) + 1e-9  # the grid of orders is that fine
    assert zcdp_of_range(above, below) == zcdp_of_range(below, above)


def test_some_suprema_lie_above_order_one():
    """Otherwise the Kullback-Leibler divergence would suffice: at e0 = e1 = 1 the worst order is 1.0095."""
    assert zcdp_of_range(2 * ONE, ONE) / RHO_UNITS > kullback_leibler(1, 2) + 3e-5


@settings(max_examples=30)
@given(losses, losses, integers(1, ONE))
def test_a_wider_interval_costs_no_less_and_none_more_than_an_eighth_of_its_square(below, above, more):
    price = zcdp_of_range(below, above)
    assert price <= min(zcdp_of_range(below + more, above), zcdp_of_range(below, above + more))
    assert price <= math.ceil(Fraction((below + above) ** 2 * RHO_UNITS, 8 * ONE**2))


@pytest.mark.parametrize(
    ("cutoff", "exact", "bound"), [(1, 0.99575, 1.125), (5, 5.92607, 15.125)], ids=["one top", "five tops"]
)
def test_monotone_runs_at_equal_charges_of_one(cutoff, exact, bound):
    assert round(zcdp_of_range((1 + cutoff) * ONE, cutoff * ONE) / RHO_UNITS, 5) == exact
    assert zcdp_monotone((1 + cutoff) * ONE, ONE) / RHO_UNITS == bound


@settings(max_examples=30)
@given(losses)
def test_pure_differential_privacy_alone_costs_epsilon_tanh_half_epsilon(total):
    epsilon = total / ONE
    price = zcdp_of_range(total, total)
    assert price / RHO_UNITS == pytest.approx(epsilon * math.tanh(epsilon / 2), rel=1e-12, abs=2e-12)
    assert exact_bounded_range(total) <= price <= zcdp_general(total)  # the gap is paid for


@settings(max_examples=30)
@given(losses, losses)
def test_every_run_costs_at_most_what_the_ledger_charges(e0, e1):
    assert zcdp_of_range(e0 + 7 * e1, 7 * e1) <= zcdp_monotone(e0 + 7 * e1, e0)


def worst_cumulant(alpha, epsilon):
    """Supremum over a of K(alpha) for intervals [-a, epsilon - a], in closed form."""
    c = ((alpha * epsilon).exp() - 1) / (epsilon.exp() - 1)
    lift = alpha * (c - 1) / ((alpha - 1) * c)  # e^a
    return (1 + (lift - 1) * c).ln() - alpha * lift.ln()


@pytest.mark.parametrize("epsilon", ["0.001", "0.03", "0.3", "1", "2", "5", "10", "30", "100"])
def test_the_closed_form_for_a_bounded_range_agrees_with_the_two_point_laws(epsilon):
    """Harrison & Manurangsi 2025: no order and no interval of this range give more, and order 1 attains it."""
    with decimal.localcontext(prec=80):
        loss = Decimal(epsilon)
        x = loss / (1 - (-loss).exp())
        rho = x - 1 - x.ln()
        steps = [Decimal(10) ** -n for n in range(12, 0, -1)] + [Decimal(n) / 10 for n in range(2, 300, 7)]
        ratios = [worst_cumulant(1 + h, loss) / (h * (1 + h)) for h in steps]
        assert max(ratios) <= rho
        assert ratios[0] == pytest.approx(rho, rel=Decimal("1e-9"))
    units = exact_bounded_range(int(loss * ONE))
    assert 0 < units - rho * RHO_UNITS <= 1
    end = round(float(x.ln()) * ONE)
    for below in (end - ONE // 5000, end, end + ONE // 5000):
        if 0 < below < loss * ONE:
            assert zcdp_of_range(below, int(loss * ONE) - below) <= units + 1
    assert zcdp_of_range(end, int(loss * ONE) - end) == pytest.approx(units, rel=1e-8, abs=2)


def test_one_noisy_answer_of_a_monotone_run_stays_below_its_price():
    """AboveThreshold on one counting query, exponential noises with e0 = e1 = ln 2, both orders, exactly enumerated."""
    numbers = np.arange(60)

    def exponential(k):
        return np.where(k >= 0, 0.5 ** (k + 1.0), 0.0)

    def law(value):
        noise = numbers[:, np.newaxis] + numbers - value  # by gap and threshold noise
        gaps = exponential(noise) @ exponential(numbers)
        return np.append(gaps, 1 - gaps.sum())

    charge = int(math.log(2) * ONE)
    price = zcdp_of_range(2 * charge, charge) / RHO_UNITS
    worst = 0.0
    for value in range(-6, 4):
        for p, q in ((law(value), law(value + 1)), (law(value + 1), law(value))):
            both = (p > 0) & (q > 0)
            assert not p[~both].any()
            for alpha in (1.01, 1.1, 1.5, 2, 4, 10):
                cumulant = math.log(np.sum(q[both] * (p[both] / q[both]) ** alpha))
                worst = max(worst, cumulant / (alpha * (alpha - 1)))
    assert 0.1 * price < worst <= price


def test_a_ratio_that_never_rises_above_one_is_no_loss():
    assert zcdp_of_range(0, ONE) == zcdp_of_range(ONE, 0) == exact_bounded_range(0) == 0
