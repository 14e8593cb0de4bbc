"""Estimates and bounds from gaps: closed forms against sums, exact coverage, least squares by matrices."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

from benchmarks.papers.gap_theory import (
    blue_error_ratio,
    expected_reduction,
    marginal_quantile,
    standard_deviation,
)
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Law, Noise
from stream_svt.mechanisms.estimates import (
    blue_top_k,
    certain_gap,
    estimate,
    exact_survival,
    inverse_variance,
    joint,
    lower_bound,
    survival,
)
from stream_svt.mechanisms.noise import MONITORED, tails, variance
from tests.exact.enumeration import Kind, law
from tests.support.noise import pmf

EXP, LAP, GUM = Noise
PAIRS = list(product(MONITORED, MONITORED))
BETA = 0.05
REACH = 400


def masses(of, reach=REACH):
    """Noises and their probabilities."""
    points = np.arange(-reach, reach + 1)
    return points, np.array([pmf(of.noise, of.rate, int(k)) for k in points])


class Reported:
    """Reports of a bar of 0, over the threshold noise."""

    def __init__(self, threshold_noise, query_noise, bottoms=0):
        self.laws = {
            "query": Law(query_noise, Fraction(1, 8)),
            "threshold": Law(threshold_noise, Fraction(1, 5)),
        }
        self.rho, self.weights = masses(self.laws["threshold"])
        self.weights = self.weights * (1 - self.reach(0)) ** bottoms

    def reach(self, answer):
        query = self.laws["query"]
        return tails(query.noise, query.rate, self.rho - answer)

    def chance(self, answer, gap):
        """Of a gap of at least that."""
        return float((self.weights * self.reach(answer - gap)).sum())

    def bound(self, gap):
        return lower_bound(0, gap, **self.laws, beta=BETA)


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
@pytest.mark.parametrize("a", [Fraction(1, 3), Fraction(1, 2)], ids=str)
def test_survival_is_the_sum_over_the_threshold_noise(threshold_noise, query_noise, a):
    """Exactly: the rest of a finite sum is at most the tail beyond it."""
    b, reach = Fraction(1, 2), 60
    for t in range(-7, 8):
        found = exact_survival(query_noise, b, threshold_noise, a, t)
        listed = sum(
            law(Kind.EQUAL, threshold_noise, a, rho) * law(Kind.AT_LEAST, query_noise, b, t + rho)
            for rho in range(-reach, reach)
        )
        assert 0 <= found - listed <= 2 * a**reach


def test_survival_in_rates_does_not_lose_its_digits():
    near, equal = (
        survival(Law(LAP, Fraction(1, 1000)), Law(LAP, rate), 500)
        for rate in (Fraction(1_000_001, 1_000_000_000), Fraction(1, 1000))
    )
    assert near == pytest.approx(equal, rel=1e-5)
    assert survival(Law(EXP, Fraction(40)), Law(EXP, Fraction(40)), 0) == pytest.approx(1)


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
def test_the_estimate_is_unbiased_before_selection(threshold_noise, query_noise):
    laws = Reported(threshold_noise, query_noise).laws
    found = {}
    for name, of in laws.items():
        points, weights = masses(of)
        mean = (points * weights).sum()
        found[name] = mean, ((points - mean) ** 2 * weights).sum()
    mean_gap = 50 + found["query"][0] - 27 - found["threshold"][0]
    assert estimate(27, 0, **laws) + mean_gap == pytest.approx(50)
    deviation = math.sqrt(found["query"][1] + found["threshold"][1])
    assert standard_deviation(**laws) == pytest.approx(deviation, rel=1e-4)


def test_the_certain_gap_is_rounded_up():
    assert certain_gap(Fraction(1, 10), Fraction(1, 20)) == math.ceil(10 * math.log(20)) == 30
    assert certain_gap(Fraction(5), BETA) == 1


@pytest.mark.parametrize("query_noise", MONITORED)
@pytest.mark.parametrize("bottoms", [0, 1, 50])
def test_the_bound_covers_reported_answers_whatever_happened_before(query_noise, bottoms):
    """Bottoms at the threshold make high threshold noise likelier; the bound holds for every answer."""
    reported = Reported(EXP, query_noise, bottoms)
    bounds = [reported.bound(gap) for gap in range(200)]
    for answer in range(-40, 41, 4):
        wrong = next(gap for gap, bound in enumerate(bounds) if bound is not None and bound > answer)
        assert reported.chance(answer, wrong) <= BETA * reported.chance(answer, 0) * (1 + 1e-9)


@pytest.mark.parametrize(("threshold_noise", "query_noise"), [(LAP, EXP), (EXP, GUM)])
def test_the_same_bound_under_other_noise_would_not_hold(threshold_noise, query_noise):
    reported = Reported(threshold_noise, query_noise)
    wrong = certain_gap(
        reported.laws["query"].rate, BETA
    )  # the least gap whose bound would pass the answer 0
    assert reported.chance(0, wrong) > 1.2 * BETA * reported.chance(0, 0)


def test_no_function_states_a_bound_with_gumbel_noise():
    reported = Reported(EXP, GUM)
    for stated in (
        partial(reported.bound, 9),
        partial(survival, *reported.laws.values(), 3),
        partial(survival, *reversed(reported.laws.values()), 3),
    ):
        with pytest.raises(MisuseError, match="no bound is certified for gaps with gumbel noise"):
            stated()


def test_no_bound_is_stated_under_laplace_threshold_noise_or_for_a_small_gap():
    least = certain_gap(Fraction(1, 8), BETA)
    assert Reported(LAP, EXP).bound(1000) is None
    assert [Reported(EXP, EXP).bound(gap) for gap in (least - 1, least)] == [None, 1]


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
def test_the_marginal_bound_covers_before_selection_and_fails_among_reports(threshold_noise, query_noise):
    reported = Reported(threshold_noise, query_noise)
    least = marginal_quantile(**reported.laws, beta=BETA)
    # A gap less an answer above this makes the bound pass the answer.
    assert reported.chance(0, least + 1) <= BETA < reported.chance(0, least)
    far_below = -60
    passed = reported.chance(far_below, max(0, far_below + least + 1))
    assert passed / reported.chance(far_below, 0) > 0.9


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
    measured = variance(Noise.LAPLACE, half / k)
    expected = expected_reduction(k, noise=noise, monotonic=monotonic)
    assert measured / (gap + measured) == pytest.approx(expected, rel=1e-6)


def test_merging_reports_below_the_threshold_is_worse_than_measuring_unless_they_are_certified(chance):
    """Selection bias: these reports have high noise. A certified report is one whose bound is not None."""
    l0, l1, trials, threshold = Fraction(1, 10), Fraction(1, 20), 200_000, 0
    truth = np.where(chance.random(trials) < 0.5, -120, 150)
    gaps = truth + geometric(chance, l1, trials) - geometric(chance, l0, trials)
    reported = gaps >= 0
    measured_rate = 1 / 60
    up, down = geometric(chance, measured_rate, (2, trials))
    measured = truth + up - down
    vx = variance(Noise.EXPONENTIAL, l0) + variance(Noise.EXPONENTIAL, l1)
    laws = {"query": Law(Noise.EXPONENTIAL, l1), "threshold": Law(Noise.EXPONENTIAL, l0)}
    offset = estimate(threshold, 0, **laws)
    merged = inverse_variance(gaps + offset, vx, measured, variance(Noise.LAPLACE, measured_rate)).values
    certified = gaps >= certain_gap(l1, Fraction(1, 1000))  # where `lower_bound` is not None

    def saved(rows):
        errors = [np.mean((values[rows] - truth[rows]) ** 2) for values in (merged, measured)]
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
        (lambda: inverse_variance(1.0, 0.0, 1.0, 1.0), "must be (finite and|a number) greater"),
        (lambda: inverse_variance(1.0, 1.0, 1.0, math.inf), "must be (finite and|a number) greater"),
        (lambda: joint([1.0, 2.0], 1.0, 1.0, [1.0], 1.0), "one measurement for each gap"),
        (lambda: joint([], 1.0, 1.0, [], 1.0), "at least one alert"),
        (lambda: joint([1.0], 1.0, -1.0, [1.0], 1.0), "must be (finite and|a number) greater"),
        (lambda: blue_top_k([1.0, 2.0], [1.0, 2.0], 1.0), "k - 1 gaps"),
        (lambda: blue_top_k([1.0, 2.0], [1.0], 0.0), "must be (finite and|a number) greater"),
    ],
)
def test_what_cannot_be_estimated_is_refused(call, reason):
    with pytest.raises(MisuseError, match=reason):
        call()
