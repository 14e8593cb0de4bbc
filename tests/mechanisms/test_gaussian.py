"""The Gaussian baseline: its sampler, its delta, and why it releases no gap."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms import Run
from stream_svt.mechanisms.baselines.gaussian import (
    discrete_gaussian_delta,
    draw_discrete_gaussian,
    gaussian,
    least_variance,
)
from tests.support.gaussian import gaussian_delta


def law(variance, reach=400):
    points = np.arange(-reach, reach + 1)
    weights = np.exp(-(points**2) / (2 * float(variance)))
    return points, weights / weights.sum()


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(4), Fraction(250, 7)], ids=str)
def test_draws_have_the_law_and_not_that_of_another_variance(variance):
    entropy = random.Random(7).randbytes
    draws = np.array([draw_discrete_gaussian(variance, entropy) for _ in range(6000)])

    def misfit(assumed):
        points, chances = law(assumed)
        kept = chances * len(draws) > 5
        seen = np.array([(draws == k).sum() for k in points[kept]])
        expected = chances[kept] * len(draws)
        return (((seen - expected) ** 2 / expected).sum() - kept.sum()) / math.sqrt(2 * kept.sum())

    assert misfit(variance) < 4
    assert misfit(variance * Fraction(5, 4)) > 6


def test_delta_is_what_the_likelihoods_of_two_neighbours_leave_over():
    for variance, shift, epsilon in ((3.0, 1, 0.4), (50.0, 2, 0.1), (0.4, 3, 2.0)):
        _, here = law(variance)
        there = np.roll(here, -shift)
        assert discrete_gaussian_delta(variance, shift, epsilon) == pytest.approx(
            np.maximum(here - math.exp(epsilon) * there, 0).sum(), rel=1e-9
        )


def test_wide_noise_has_the_delta_of_the_continuous_one():
    continuous = gaussian_delta(300.0, 0.01)
    assert discrete_gaussian_delta(300.0**2, 1, 0.01) == pytest.approx(continuous, rel=1e-3)


def test_the_variance_is_the_least_that_will_do():
    variance = least_variance(epsilon=0.3, delta=1e-5, shift=2)
    assert (
        discrete_gaussian_delta(variance, 2, 0.3) <= 1e-5 < discrete_gaussian_delta(variance * 0.99, 2, 0.3)
    )
    assert discrete_gaussian_delta(variance, 1, 0.3) < 1e-5


def test_a_run_tells_rows_only_and_ends_at_its_cutoff():
    mechanism = gaussian(
        epsilon=1.0, delta=1e-3, cutoff=2, monotonic=True, correction=5, tests=None, as_published=True
    )
    run = mechanism.open(3, (1, 2))
    run, reports = mechanism.step(run, np.array([10, 20, 18, 40]), 10, np.array([0, 0, 0, -30]))
    assert (reports.rows.tolist(), reports.consumed, run.left) == ([1, 2], 3, 0)
    assert mechanism.is_over(Run.from_bytes(run.to_bytes()))
    with pytest.raises(RunExhausted):
        mechanism.step(run, np.array([1]), 0, np.array([0]))
    assert not hasattr(mechanism, "shifts")
    assert mechanism.epsilon == pytest.approx(1)
    assert mechanism.proved_delta(4) > 1e-3


@pytest.mark.parametrize(("tests", "releases"), [(9, 10), (None, 5)])
def test_threshold_and_queries_get_their_share_of_epsilon_and_delta(tests, releases):
    """That each has the variance for its own shift is checked in `tests/exact`."""
    options = {"epsilon": 3.0, "delta": 1e-3, "cutoff": 4, "monotonic": False, "split": 2.0}
    mechanism = gaussian(**options, tests=tests, as_published=tests is None)
    assert (mechanism.threshold_epsilon, mechanism.query_epsilon) == (1.0, 0.5)
    assert mechanism.delta == 1e-3 / releases
    assert mechanism.proved_delta(9) == pytest.approx(1e-2 / releases)


def test_noise_without_a_meaning_or_wider_than_is_added_up_is_refused():
    with pytest.raises(MisuseError, match="coarser granularity"):
        least_variance(epsilon=1e-7, delta=1e-8, shift=1)
    with pytest.raises(MisuseError, match="greater than 0"):
        draw_discrete_gaussian(Fraction(0), bytes)
