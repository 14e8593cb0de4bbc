"""What a gap says about its answer: closed forms against sums, and coverage computed exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Law, Noise
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
from stream_svt.mechanisms.noise import MONITORED, pmf, tails
from tests.exact.enumeration import Kind, law

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

    def bound(self, gap, of=lower_bound):
        return of(0, gap, **self.laws, beta=BETA)


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
@pytest.mark.parametrize("a", [Fraction(1, 3), Fraction(1, 2)], ids=str)
def test_survival_is_the_sum_over_the_threshold_noise(threshold_noise, query_noise, a):
    """Exactly: what a finite sum leaves out is at most the tail beyond it."""
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
    """Bottoms of an answer at the threshold tilt the threshold noise up; the bound holds for every answer."""
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
        *(partial(reported.bound, 9, of) for of in (lower_bound, selective_bounds, marginal_lower_bound)),
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
def test_selective_bounds_cover_a_first_report_wherever_the_answer_lies(threshold_noise, query_noise):
    reported = Reported(threshold_noise, query_noise)
    bounds = [reported.bound(gap, selective_bounds) for gap in range(150)]
    for answer in (-60, -20, -3, 0, 5, 30):
        chances = [reported.chance(answer, gap) for gap in range(151)]
        shares = [(chances[gap] - chances[gap + 1]) / chances[0] for gap in range(150)]
        pairs = list(zip(shares, bounds, strict=True))
        assert sum(p for p, (low, _) in pairs if low is not None and low > answer) <= BETA * (1 + 1e-6)
        assert sum(p for p, (_, up) in pairs if up is not None and up < answer) <= BETA * (1 + 1e-6)


def test_a_selective_bound_is_missing_where_the_gap_says_nothing():
    laws = Reported(EXP, EXP).laws
    assert selective_bounds(0, 0, beta=0.05, **laws) == (None, pytest.approx(0, abs=60))
    assert selective_bounds(0, 0, beta=0.5, **laws)[1] is None


@pytest.mark.parametrize(("threshold_noise", "query_noise"), PAIRS)
def test_the_marginal_bound_covers_before_selection_and_fails_among_reports(threshold_noise, query_noise):
    reported = Reported(threshold_noise, query_noise)
    least = -reported.bound(
        0, marginal_lower_bound
    )  # gap - answer above this makes the bound pass the answer
    assert reported.chance(0, least + 1) <= BETA < reported.chance(0, least)
    far_below = -60
    passed = reported.chance(far_below, max(0, far_below + least + 1))
    assert passed / reported.chance(far_below, 0) > 0.9


@pytest.mark.parametrize("beta", [0, 1, -0.1])
def test_a_level_outside_zero_and_one_is_refused(beta):
    for call in (
        partial(certain_gap, Fraction(1), beta),
        partial(marginal_lower_bound, 0, 0, **Reported(EXP, EXP).laws, beta=beta),
    ):
        with pytest.raises(MisuseError, match="strictly between"):
            call()
