"""The sampler's law on the grid: accepted at its rate, rejected at rates thirty per cent off.

Keys and positions are fixed, so the outcome is always the same.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from functools import partial
from itertools import count, product

import numpy as np
import pytest

from stream_svt.mechanisms import Identity, KeyedSampler, Law, Noise, draw_threshold
from stream_svt.mechanisms.noise import mean, tail, variance

RATES = [Fraction(5, 2), Fraction(1, 2), Fraction(1, 10), Fraction(1, 300)]
COUNT = 200_000


def draw(noise, rate, number=COUNT, **other):
    tests = np.arange(number)
    identity = Identity((3, 4), offset=tests, row=0, attempt=0, branch=0, value=tests % 977 - 400)
    return KeyedSampler(hashlib.sha256(b"law").digest()).draw(Law(noise, rate), identity._replace(**other))


def misfit(draws, noise, rate, width=None):
    """Chi-square statistic against the law at a rate, in standard deviations from its mean.

    Cells are `width` steps wide, by default a fifth of a scale; with 1 each point of the grid is a cell.
    """
    width = width or max(1, round(0.2 / rate))
    reach = round(6 / rate)
    edges = list(range(0 if noise is Noise.EXPONENTIAL else -reach, reach + width, width))
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
def test_the_law_mean_and_variance_are_accepted_at_their_rate_and_rejected_thirty_per_cent_off(noise, rate):
    draws = draw(noise, rate)
    assert misfit(draws, noise, rate) < 5
    for wrong in (rate * Fraction(7, 10), rate * Fraction(13, 10)):
        assert misfit(draws, noise, wrong) > 100
    spread = math.sqrt(variance(noise, rate) / COUNT)
    assert abs(draws.mean() - mean(noise, rate)) < 5 * spread
    assert draws.var() == pytest.approx(variance(noise, rate), rel=0.03)


def test_the_power_of_the_test_is_that_of_a_shift_by_one_step_too():
    """Geometric noise that starts at one instead of zero, a common mistake, is rejected."""
    rate = Fraction(1, 10)
    assert misfit(draw(Noise.EXPONENTIAL, rate) + 1, Noise.EXPONENTIAL, rate) > 100


def dependence(first, second, cells=8):
    """Chi-square statistic of independence in standard deviations from its mean, over cells of equal probability."""
    from scipy.stats import chi2_contingency

    cut = [np.quantile(x, np.linspace(0, 1, cells + 1)[1:-1]) for x in (first, second)]
    rows, columns = (np.searchsorted(c, x) for c, x in zip(cut, (first, second), strict=True))
    table = np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)
    result = chi2_contingency(table)
    return (result.statistic - result.dof) / math.sqrt(2 * result.dof)


@pytest.mark.parametrize(
    "other", [{"salt": (3, 5)}, {"salt": (2, 4)}, {"attempt": 1}, {"branch": 1}, {"row": 1}], ids=str
)
@pytest.mark.parametrize("noise", Noise)
def test_runs_attempts_branches_and_rows_meet_independent_noise(other, noise):
    """Two monitors on one query have independent noise."""
    drawn = partial(draw, noise, Fraction(1, 1000), 60_000)
    assert dependence(drawn(), drawn(**other)) < 5
    assert dependence(drawn(), drawn()) > 1000  # shared bits would be detected


@pytest.mark.parametrize("noise", Noise)
def test_threshold_noise_follows_the_same_law(noise):
    numbers = count()

    def entropy(size):
        return hashlib.sha256(next(numbers).to_bytes(8, "big")).digest()[:size]

    rate = Fraction(1, 4)
    draws = np.array([draw_threshold(Law(noise, rate), entropy) for _ in range(3000)])
    assert misfit(draws, noise, rate) < 5
    assert misfit(draws, noise, rate * Fraction(13, 10)) > 8
    assert misfit(draws, noise, rate * Fraction(7, 10)) > 8


@pytest.mark.parametrize("number", [2 * 10**6, pytest.param(10**7, marks=pytest.mark.soak)])
@pytest.mark.parametrize("noise", Noise)
def test_millions_of_draws_fit_the_law_on_every_point_of_the_grid_and_far_out(noise, number):
    rate = Fraction(1, 7)
    draws = draw(noise, rate, number)
    assert misfit(draws, noise, rate, width=1) < 5
    assert misfit(draws, noise, rate * Fraction(101, 100), width=1) > 8
    counted = np.bincount(draws - draws.min())
    above = counted[::-1].cumsum()[::-1]
    for share in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        t = next(k for k in count() if tail(noise, rate, k) < share)
        expected = number * tail(noise, rate, t)
        assert abs(above[t - draws.min()] - expected) < 5 * math.sqrt(expected)
        if noise is not Noise.EXPONENTIAL:
            t = -next(k for k in count() if 1 - tail(noise, rate, 1 - k) < share)
            expected = number * (1 - tail(noise, rate, 1 + t))
            below = number - above[max(0, 1 + t - draws.min())]
            assert abs(below - expected) < 5 * math.sqrt(expected) + 1
