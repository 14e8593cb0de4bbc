"""Merging gaps with measurements: against least squares done by matrices, and against the exact mechanisms' noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.estimates import certain_gap, estimate
from stream_svt.mechanisms.merging import (
    blue_error_ratio,
    blue_top_k,
    expected_reduction,
    inverse_variance,
    joint,
    reduction,
)
from stream_svt.mechanisms.noise import Law, Noise, variance


@pytest.fixture
def chance():
    return np.random.default_rng(17)


def least_squares(design, covariance, observed):
    """Generalised least squares: estimates and their covariance."""
    precision = np.linalg.inv(covariance)
    spread = np.linalg.inv(design.T @ precision @ design)
    return spread @ design.T @ precision @ observed, spread


def geometric(chance, rate, size):
    """Exponential noise on the grid."""
    return chance.geometric(-math.expm1(-float(rate)), size) - 1


def laplace(chance, rate, size):
    return geometric(chance, rate, size) - geometric(chance, rate, size)


def test_two_estimates_are_weighted_by_their_precision():
    x, y = np.array([3.0, 8.0]), np.array([5.0, 1.0])
    merged = inverse_variance(x, [1.0, 2.0], y, 4.0)
    for i, (a, b) in enumerate([(1.0, 4.0), (2.0, 4.0)]):
        value, spread = least_squares(np.ones((2, 1)), np.diag([a, b]), np.array([x[i], y[i]]))
        assert merged.values[i] == pytest.approx(value[0])
        assert merged.variances[i] == pytest.approx(spread[0, 0])


@pytest.mark.parametrize("k", [1, 2, 7])
def test_joint_estimates_are_least_squares_with_a_shared_threshold_noise(chance, k):
    gaps, measured = chance.normal(100, 20, k), chance.normal(100, 20, k)
    query, measurement, threshold = chance.uniform(1, 9, k), chance.uniform(1, 9, k), 13.0
    design = np.vstack((np.eye(k), np.eye(k)))
    covariance = np.zeros((2 * k, 2 * k))
    covariance[:k, :k] = np.diag(query) + threshold
    covariance[k:, k:] = np.diag(measurement)
    values, spread = least_squares(design, covariance, np.concatenate((gaps, measured)))
    found = joint(gaps, query, threshold, measured, measurement)
    np.testing.assert_allclose(found.values, values, rtol=1e-10)
    np.testing.assert_allclose(found.variances, np.diag(spread), rtol=1e-10)


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_blue_is_least_squares_over_measurements_and_gaps(chance, k, ratio):
    """Theorem 3 of Ding et al. 2019, and its matrices; Corollary 1 for its error."""
    measured, gaps = chance.normal(50, 10, k), chance.normal(5, 2, k - 1)
    differences = np.eye(k)[:-1] - np.eye(k)[1:]
    covariance = np.zeros((2 * k - 1, 2 * k - 1))
    covariance[:k, :k] = np.eye(k)
    covariance[k:, k:] = ratio * differences @ differences.T
    values, spread = least_squares(
        np.vstack((np.eye(k), differences)), covariance, np.concatenate((measured, gaps))
    )
    np.testing.assert_allclose(blue_top_k(measured, gaps, ratio), values, rtol=1e-10)
    assert blue_error_ratio(k, ratio) == pytest.approx(np.trace(spread) / k)
    x = np.ones((k, k)) + ratio * k * np.eye(k)
    y = np.array([[k * (i <= j) - (j + 1) for j in range(k - 1)] for i in range(k)])
    np.testing.assert_allclose((x @ measured + y @ gaps) / ((1 + ratio) * k), values, rtol=1e-10)


@pytest.mark.parametrize("monotonic", [True, False])
@pytest.mark.parametrize("noise", [Noise.LAPLACE, Noise.EXPONENTIAL])
def test_the_expected_reduction_is_that_of_the_grid_noises_at_small_rates(noise, monotonic):
    k, half, width = 12, 1e-4, 1 if monotonic else 2
    share = 1 / (1 + (k * width) ** (2 / 3))
    gap = variance(noise, half * share) + variance(noise, half * (1 - share) / k / width)
    assert reduction(gap, variance(Noise.LAPLACE, half / k)) == pytest.approx(
        expected_reduction(k, noise=noise, monotonic=monotonic), rel=1e-6
    )


def test_merging_reports_of_answers_below_the_threshold_is_worse_than_measuring_unless_they_are_certified(
    chance,
):
    """Selection bias: such reports have high noise. A certified report is one whose bound is not None."""
    l0, l1, trials, threshold = Fraction(1, 10), Fraction(1, 20), 200_000, 0
    truth = np.where(chance.random(trials) < 0.5, -120, 150)
    gaps = truth + geometric(chance, l1, trials) - geometric(chance, l0, trials)
    reported = gaps >= 0
    measured_rate = 1 / 60
    measured = truth + laplace(chance, measured_rate, trials)
    vx = variance(Noise.EXPONENTIAL, l0) + variance(Noise.EXPONENTIAL, l1)
    laws = {"query": Law(Noise.EXPONENTIAL, l1), "threshold": Law(Noise.EXPONENTIAL, l0)}
    offset = estimate(threshold, 0, **laws)
    merged = inverse_variance(gaps + offset, vx, measured, variance(Noise.LAPLACE, measured_rate)).values
    certified = gaps >= certain_gap(l1, Fraction(1, 1000))  # where `lower_bound` is not None

    def saved(chosen):
        errors = [np.mean((values[chosen] - truth[chosen]) ** 2) for values in (merged, measured)]
        return 1 - errors[0] / errors[1]

    false = reported & (truth < threshold)
    assert false.sum() > 30
    assert saved(false) < 0
    assert certified.sum() > 1000
    assert not (certified & false).sum() > 0.002 * certified.sum()
    assert saved(certified) > 0.5


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: inverse_variance(1.0, 0.0, 1.0, 1.0), "finite and greater"),
        (lambda: inverse_variance(1.0, 1.0, 1.0, math.inf), "finite and greater"),
        (lambda: joint([1.0, 2.0], 1.0, 1.0, [1.0], 1.0), "one measurement for each gap"),
        (lambda: joint([], 1.0, 1.0, [], 1.0), "at least one alert"),
        (lambda: joint([1.0], 1.0, -1.0, [1.0], 1.0), "finite and greater"),
        (lambda: blue_top_k([1.0, 2.0], [1.0, 2.0], 1.0), "k - 1 gaps"),
        (lambda: blue_top_k([1.0, 2.0], [1.0], 0.0), "finite and greater"),
        (lambda: blue_error_ratio(0, 1.0), "count"),
        (lambda: expected_reduction(0, noise=Noise.LAPLACE), "count"),
        (lambda: reduction(1.0, math.nan), "finite and greater"),
    ],
)
def test_what_cannot_be_estimated_is_refused(call, reason):
    with pytest.raises(MisuseError, match=reason):
        call()
