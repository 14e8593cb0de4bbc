"""What a gap says about its answer: closed forms against sums, and coverage computed exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Noise
from stream_svt.mechanisms.estimates import (
    certain_gap,
    estimate,
    exact_survival,
    lower_bound,
    marginal_lower_bound,
    selective_bounds,
    standard_deviation,
    survival,
)
from stream_svt.mechanisms.noise import MONITORED, pmf, tail
from tests.exact.enumeration import Kind, law

PAIRS = list(product(MONITORED, MONITORED))
BETA = 0.05
REACH = 400


def families(threshold_noise, query_noise, threshold_rate=Fraction(1, 5), query_rate=Fraction(1, 8)):
    return {
        "threshold_noise": threshold_noise,
        "query_noise": query_noise,
        "threshold_rate": threshold_rate,
        "query_rate": query_rate,
    }


def threshold_law(noise, rate):
    """Threshold noises and their probabilities."""
    points = np.arange(-REACH if noise is Noise.LAPLACE else 0, REACH + 1)
    return points, np.array([pmf(noise, rate, int(k)) for k in points])


def reach_probability(noise, rate, points):
    """P(nu >= k) for an array of k."""
    return np.array([tail(noise, rate, int(k)) for k in points])


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
@pytest.mark.parametrize("a", [Fraction(1, 3), Fraction(1, 2)], ids=str)
def test_survival_is_the_sum_over_the_threshold_noise(threshold_noise, query_noise, a):
    """Exactly: what a finite sum leaves out is at most the tail beyond it."""
    b = Fraction(1, 2)
    reach = 60
    start = -reach if threshold_noise is Noise.LAPLACE else 0
    for t in range(-7, 8):
        found = exact_survival(query_noise, b, threshold_noise, a, t)
        listed = sum(
            law(Kind.EQUAL, threshold_noise, a, rho) * law(Kind.AT_LEAST, query_noise, b, t + rho)
            for rho in range(start, reach)
        )
        assert 0 <= found - listed <= 2 * a**reach


def test_survival_in_rates_does_not_lose_its_digits():
    near = survival(Noise.LAPLACE, Fraction(1, 1000), Noise.LAPLACE, Fraction(1_000_001, 1_000_000_000), 500)
    equal = survival(Noise.LAPLACE, Fraction(1, 1000), Noise.LAPLACE, Fraction(1, 1000), 500)
    assert near == pytest.approx(equal, rel=1e-5)
    assert survival(Noise.EXPONENTIAL, Fraction(40), Noise.EXPONENTIAL, Fraction(40), 0) == pytest.approx(1)


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
def test_the_estimate_is_unbiased_before_selection(threshold_noise, query_noise):
    laws = families(threshold_noise, query_noise)
    points, weights = threshold_law(threshold_noise, laws["threshold_rate"])
    nu = np.arange(-REACH, REACH + 1)
    nu_law = np.array([pmf(query_noise, laws["query_rate"], int(k)) for k in nu])
    mean_gap = 50 + (nu * nu_law).sum() - 20 - 7 - (points * weights).sum()
    at_zero = estimate(threshold=20, correction=7, gap=0, **laws)
    assert at_zero + mean_gap == pytest.approx(50)
    variance = (nu**2 * nu_law).sum() - (nu * nu_law).sum() ** 2
    variance += (points**2 * weights).sum() - (points * weights).sum() ** 2
    assert standard_deviation(**laws) == pytest.approx(math.sqrt(variance), rel=1e-4)


def test_the_certain_gap_is_rounded_up():
    assert certain_gap(Fraction(1, 10), Fraction(1, 20)) == math.ceil(10 * math.log(20)) == 30
    assert certain_gap(Fraction(5), BETA) == 1


@pytest.mark.parametrize("query_noise", MONITORED)
@pytest.mark.parametrize("bottoms", [0, 1, 50])
def test_the_bound_covers_reported_answers_whatever_happened_before(query_noise, bottoms):
    """Bottoms of an answer at the threshold tilt the threshold noise up; the bound holds for every answer."""
    laws = families(Noise.EXPONENTIAL, query_noise)
    points, weights = threshold_law(Noise.EXPONENTIAL, laws["threshold_rate"])
    weights = weights * (1 - reach_probability(query_noise, laws["query_rate"], points)) ** bottoms
    for answer in range(-40, 41, 4):
        reported = reach_probability(query_noise, laws["query_rate"], points - answer)
        wrong = min(
            gap
            for gap in range(200)
            if (bound := bound_at(gap, laws, threshold_noise=Noise.EXPONENTIAL)) is not None
            and bound > answer
        )
        missed = reach_probability(query_noise, laws["query_rate"], points - answer + wrong)
        assert (weights * missed).sum() <= BETA * (weights * reported).sum() * (1 + 1e-9)


def bound_at(gap, laws, threshold_noise):
    """Bound of a report at threshold 0 without correction."""
    return lower_bound(
        threshold=0,
        correction=0,
        gap=gap,
        query_noise=laws["query_noise"],
        query_rate=laws["query_rate"],
        threshold_noise=threshold_noise,
        beta=BETA,
    )


def test_the_same_bound_under_laplace_threshold_noise_would_not_hold():
    laws = families(Noise.LAPLACE, Noise.EXPONENTIAL)
    points, weights = threshold_law(Noise.LAPLACE, laws["threshold_rate"])
    reported = reach_probability(Noise.EXPONENTIAL, laws["query_rate"], points)
    wrong = certain_gap(laws["query_rate"], BETA)  # the least gap whose bound would pass the answer 0
    missed = reach_probability(Noise.EXPONENTIAL, laws["query_rate"], points + wrong)
    assert (weights * missed).sum() > 1.2 * BETA * (weights * reported).sum()


def test_gumbel_query_noise_would_break_the_bound_and_no_function_states_one_for_it():
    laws = families(Noise.EXPONENTIAL, Noise.GUMBEL)
    points, weights = threshold_law(Noise.EXPONENTIAL, laws["threshold_rate"])
    reported = reach_probability(Noise.GUMBEL, laws["query_rate"], points)
    wrong = certain_gap(laws["query_rate"], BETA)
    missed = reach_probability(Noise.GUMBEL, laws["query_rate"], points + wrong)
    assert (weights * missed).sum() > 1.2 * BETA * (weights * reported).sum()
    for stated in (
        lambda: bound_at(wrong, laws, threshold_noise=Noise.EXPONENTIAL),
        lambda: survival(t=3, **laws),
        lambda: selective_bounds(threshold=0, correction=0, gap=9, beta=BETA, **laws),
        lambda: marginal_lower_bound(threshold=0, correction=0, gap=9, beta=BETA, **laws),
        lambda: survival(Noise.EXPONENTIAL, laws["query_rate"], Noise.GUMBEL, laws["threshold_rate"], 3),
    ):
        with pytest.raises(MisuseError, match="no bound is certified for gaps with gumbel noise"):
            stated()


def test_no_bound_is_stated_under_laplace_threshold_noise_or_for_a_small_gap():
    laws = families(Noise.EXPONENTIAL, Noise.EXPONENTIAL)
    least = certain_gap(laws["query_rate"], BETA)
    assert bound_at(1000, laws, threshold_noise=Noise.LAPLACE) is None
    assert bound_at(least - 1, laws, threshold_noise=Noise.EXPONENTIAL) is None
    assert bound_at(least, laws, threshold_noise=Noise.EXPONENTIAL) == 1


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
def test_selective_bounds_cover_a_first_report_wherever_the_answer_lies(threshold_noise, query_noise):
    laws = families(threshold_noise, query_noise)
    bounds = [selective_bounds(threshold=0, correction=0, gap=gap, beta=BETA, **laws) for gap in range(150)]
    points, weights = threshold_law(threshold_noise, laws["threshold_rate"])
    for answer in (-60, -20, -3, 0, 5, 30):
        tails = [
            (weights * reach_probability(query_noise, laws["query_rate"], points - answer + gap)).sum()
            for gap in range(151)
        ]
        chances = [(tails[gap] - tails[gap + 1]) / tails[0] for gap in range(150)]
        above = sum(
            p for p, (low, _) in zip(chances, bounds, strict=True) if low is not None and low > answer
        )
        below = sum(p for p, (_, up) in zip(chances, bounds, strict=True) if up is not None and up < answer)
        assert above <= BETA * (1 + 1e-6)
        assert below <= BETA * (1 + 1e-6)


def test_a_selective_bound_is_missing_where_the_gap_says_nothing():
    laws = families(Noise.EXPONENTIAL, Noise.EXPONENTIAL)
    assert selective_bounds(threshold=0, correction=0, gap=0, beta=0.05, **laws) == (
        None,
        pytest.approx(0, abs=60),
    )
    assert selective_bounds(threshold=0, correction=0, gap=0, beta=0.5, **laws)[1] is None


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
def test_the_marginal_bound_covers_before_selection_and_fails_among_reports(threshold_noise, query_noise):
    laws = families(threshold_noise, query_noise)
    points, weights = threshold_law(threshold_noise, laws["threshold_rate"])
    bound = marginal_lower_bound(threshold=0, correction=0, gap=0, beta=BETA, **laws)
    least = -bound  # gap - answer above this makes the bound pass the answer

    def exceeded(answer, above):
        return (weights * reach_probability(query_noise, laws["query_rate"], points - answer + above)).sum()

    assert exceeded(0, least + 1) <= BETA < exceeded(0, least)
    far_below = -60
    reported = exceeded(far_below, 0)
    assert exceeded(far_below, max(0, far_below + least + 1)) / reported > 0.9


@pytest.mark.parametrize("beta", [0, 1, -0.1])
def test_a_level_outside_zero_and_one_is_refused(beta):
    laws = families(Noise.EXPONENTIAL, Noise.EXPONENTIAL)
    with pytest.raises(MisuseError):
        certain_gap(Fraction(1), beta)
    with pytest.raises(MisuseError):
        marginal_lower_bound(threshold=0, correction=0, gap=0, beta=beta, **laws)
