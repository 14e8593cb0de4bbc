"""Query noise less threshold noise, against closed forms and plain sums."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream_svt.mechanisms import Noise, estimates
from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.difference import expectation, survival_of_difference, tails
from stream_svt.mechanisms.noise import mean, pmf, tail, variance

NARROW, WIDE = Fraction(1, 3), Fraction(1, 1_000_003)
RATIONAL = [Noise.EXPONENTIAL, Noise.LAPLACE]


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("rate", [Fraction(2), NARROW, WIDE])
def test_tails_on_arrays_are_those_of_single_steps(noise, rate):
    scale = math.ceil(1 / rate)
    steps = np.unique(
        np.concatenate([np.arange(-8, 9), np.linspace(-30 * scale, 30 * scale, 61).astype(int)])
    )
    expected = [tail(noise, rate, int(k)) for k in steps]
    assert tails(noise, rate, steps) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("rate", [Fraction(3), NARROW, Fraction(1, 700), WIDE, Fraction(1, 10**10)])
def test_the_expectations_of_powers_are_the_moments(noise, rate):
    law = Law(noise, rate)
    assert expectation(np.ones_like, law) == pytest.approx(1, rel=1e-12)
    average = expectation(lambda steps: steps, law)
    spread = expectation(lambda steps: (steps - mean(noise, rate)) ** 2, law)
    assert average == pytest.approx(mean(noise, rate), rel=1e-6, abs=1e-6 / float(rate))
    assert spread == pytest.approx(variance(noise, rate), rel=1e-5)


@pytest.mark.parametrize(("query", "threshold"), list(product(RATIONAL, RATIONAL)))
@pytest.mark.parametrize("rates", [(NARROW, Fraction(1, 2)), (WIDE, WIDE / 7), (WIDE * 30, WIDE)])
def test_the_survival_function_agrees_with_the_closed_form(query, threshold, rates):
    for scales in (-20, -3, -1, 0, 1, 2, 10):
        steps = round(scales / rates[0])
        closed = estimates.survival(query, rates[0], threshold, rates[1], steps)
        summed = survival_of_difference(Law(query, rates[0]), Law(threshold, rates[1]), steps)
        assert summed == pytest.approx(closed, rel=2e-6)


@pytest.mark.parametrize("noise", Noise)
def test_with_gumbel_noise_it_is_the_plain_sum(noise):
    query, threshold = Law(Noise.GUMBEL, NARROW), Law(noise, Fraction(1, 4))
    for steps in (-6, 0, 5, 40):
        plain = math.fsum(
            pmf(noise, threshold.rate, rho) * tail(Noise.GUMBEL, query.rate, rho + steps)
            for rho in range(-400, 400)
        )
        assert survival_of_difference(query, threshold, steps) == pytest.approx(plain, rel=1e-9)


def test_without_threshold_noise_it_is_the_tail():
    for noise in Noise:
        survival = survival_of_difference(Law(noise, NARROW), None, 4)
        assert survival == pytest.approx(tail(noise, NARROW, 4), rel=1e-12)
