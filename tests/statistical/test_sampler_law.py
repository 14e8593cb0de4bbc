"""The sampler's law on the lattice: accepted at its rate, rejected at rates thirty per cent off.

Keys and positions are fixed, so the outcome is always the same.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from itertools import count, product

import numpy as np
import pytest

from stream_svt.mechanisms import KeyedSampler, Noise, draw_threshold
from stream_svt.mechanisms.noise import mean, pmf, tail, variance

RATES = [Fraction(5, 2), Fraction(1, 2), Fraction(1, 10), Fraction(1, 300)]
COUNT = 200_000


def draw(noise, rate, number=COUNT):
    return KeyedSampler(hashlib.sha256(b"law").digest()).draw(
        noise,
        rate,
        salt=(3, 4),
        offset=np.arange(number),
        row=0,
        attempt=0,
        branch=0,
        value=np.arange(number) % 977 - 400,
    )


def misfit(draws, noise, rate):
    """Chi-square statistic against the law at a rate, in standard deviations from its mean."""
    width = max(1, round(0.2 / rate))
    reach = round(6 / rate)
    edges = list(range(-reach if noise is Noise.LAPLACE else 0, reach + width, width))
    # Cells [edge, next edge), with the tails at both ends.
    tails = [1.0, *(tail(noise, rate, edge) for edge in edges[1:-1]), 0.0]
    expected = -np.diff(tails) * len(draws)
    seen = np.bincount(np.searchsorted(edges[1:-1], draws, side="right"), minlength=len(expected))
    wanted = expected > 5
    expected = np.append(expected[wanted], expected[~wanted].sum())
    seen = np.append(seen[wanted], seen[~wanted].sum())
    kept = expected > 0
    freedom = kept.sum() - 1
    statistic = ((seen[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize(("noise", "rate"), list(product(Noise, RATES)), ids=str)
def test_the_law_is_accepted_at_its_rate_and_rejected_thirty_per_cent_off(noise, rate):
    draws = draw(noise, rate)
    assert misfit(draws, noise, rate) < 5
    for wrong in (rate * Fraction(7, 10), rate * Fraction(13, 10)):
        assert misfit(draws, noise, wrong) > 100


@pytest.mark.parametrize(("noise", "rate"), list(product(Noise, RATES)), ids=str)
def test_mean_and_variance_are_those_of_the_law(noise, rate):
    draws = draw(noise, rate)
    spread = math.sqrt(variance(noise, rate) / COUNT)
    assert abs(draws.mean() - mean(noise, rate)) < 5 * spread
    assert draws.var() == pytest.approx(variance(noise, rate), rel=0.03)


def test_the_power_of_the_test_is_that_of_a_shift_by_one_step_too():
    """Geometric noise that starts at one instead of zero, a classic mistake, is rejected."""
    rate = Fraction(1, 10)
    assert misfit(draw(Noise.EXPONENTIAL, rate) + 1, Noise.EXPONENTIAL, rate) > 100


@pytest.mark.parametrize("noise", Noise)
def test_threshold_noise_follows_the_same_law(noise):
    numbers = count()

    def entropy(size):
        return hashlib.sha256(next(numbers).to_bytes(8, "big")).digest()[:size]

    rate = Fraction(1, 4)
    draws = np.array([draw_threshold(noise, rate, entropy) for _ in range(3000)])
    assert misfit(draws, noise, rate) < 5
    assert misfit(draws, noise, rate * Fraction(13, 10)) > 8
    assert misfit(draws, noise, rate * Fraction(7, 10)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("noise", Noise)
def test_millions_of_draws_still_fit_the_law(noise):
    rate = Fraction(1, 7)
    draws = draw(noise, rate, 8_000_000)
    assert misfit(draws, noise, rate) < 5
    assert misfit(draws, noise, rate * Fraction(101, 100)) > 8
    zero = (draws == 0).mean()
    assert zero == pytest.approx(pmf(noise, rate, 0), abs=5 * math.sqrt(pmf(noise, rate, 0) / len(draws)))
