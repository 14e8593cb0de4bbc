"""Corrections: how far the bar is raised, by attempt, and the split each works best with."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Annealed, Explicit, Exposure, Mean, Noise, Optimal, Uncorrected
from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.correction import least_variance_split, optimal_steps
from stream_svt.mechanisms.noise import mean, pmf, tail, variance

SCALE = Fraction(25, 2)


def test_exposure_tolerates_its_false_alerts_over_all_tests_that_the_budget_must_last_for():
    for branches, attempts in ((1, 1), (2, 1), (1, 5), (4, 5)):
        correction = Exposure(expected_queries=200_000, false_alerts=Fraction(1, 2), attempts=attempts)
        (r,) = correction.table(SCALE, branches=branches)
        by_chance = 200_000 * branches * attempts * math.exp(-r / SCALE)
        assert 0.5 * math.exp(-1 / SCALE) < by_chance <= 0.5


def test_exposure_never_lowers_the_bar():
    assert Exposure(expected_queries=3, false_alerts=Fraction(100)).table(SCALE) == (0,)


def test_annealing_falls_by_one_scale_a_pass_from_twelve_to_minus_three():
    table = Annealed().table(SCALE)
    assert len(table) == Annealed().passes == 16
    assert table[0] == 150
    assert table[-1] == math.ceil(-3 * SCALE)
    assert table == tuple(sorted(table, reverse=True))


def test_annealing_stops_at_its_end_even_if_the_step_does_not_meet_it():
    correction = Annealed(start=Fraction(5), end=Fraction(0), step=Fraction(2))
    assert correction.table(Fraction(10)) == (50, 30, 10)


def test_annealing_keeps_cheap_branches_at_nine_of_their_own_scales():
    assert Annealed().table(Fraction(80), branches=4, base=False) == (720,)
    assert Annealed(upper=Fraction(21, 2)).table(Fraction(80), branches=4, base=False) == (840,)


@pytest.mark.parametrize("noise", Noise)
def test_the_optimal_correction_is_where_one_miss_and_one_false_alert_balance(noise):
    """Compare with the definition: argmax of G(r)^k (1 - G(r)), on a fine grid."""
    k = 800
    (r,) = Optimal(queries=k * 25, cutoff=25).table(Fraction(10**4), noise=noise)

    def logarithm(x):
        tail = {
            Noise.EXPONENTIAL: math.exp(-x),
            Noise.LAPLACE: math.exp(-x) / 2,
            Noise.GUMBEL: -math.expm1(-math.exp(-x)),
        }[noise]
        return k * math.log1p(-tail) + math.log(tail)

    best = max((i / 1000 for i in range(1, 20_000)), key=logarithm)
    assert r / 10**4 == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("k", [1.5, 20, 10**6])
def test_the_optimum_on_the_grid_is_the_closed_form_where_noise_is_wide(noise, k):
    scale = Fraction(10**5)
    (closed,) = Optimal(queries=round(k * 10), cutoff=10).table(scale, noise=noise)
    searched = optimal_steps(k, Law(noise, 1 / scale))
    assert searched == pytest.approx(closed, abs=2)


@pytest.mark.parametrize("threshold_noise", [None, *Noise])
@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize(("rate", "k"), [(Fraction(2, 3), 7.0), (Fraction(2), 0.4), (Fraction(1, 5), 300.0)])
def test_the_optimum_on_the_grid_is_the_best_of_all_steps(noise, threshold_noise, rate, k):
    """Against plain sums over both noises at every step."""
    span = range(-160, 161)
    other = Fraction(1, 4)
    mass = {0: 1.0} if threshold_noise is None else {rho: pmf(threshold_noise, other, rho) for rho in span}

    def product(r):
        reported = math.fsum(chance * tail(noise, rate, r + rho) for rho, chance in mass.items())
        return k * math.log1p(-reported) + math.log(reported) if 0 < reported < 1 else -math.inf

    threshold = None if threshold_noise is None else Law(threshold_noise, other)
    chosen = optimal_steps(k, Law(noise, rate), threshold)
    assert product(chosen) == pytest.approx(max(product(r) for r in range(-60, 61)), rel=1e-9)


def test_taking_in_the_threshold_noise_raises_the_optimum_for_symmetric_noise():
    law = Law(Noise.LAPLACE, Fraction(1, 100))
    assert optimal_steps(50, law, law) > optimal_steps(50, law) + 30


def test_an_optimum_without_queries_or_beyond_the_grid_is_refused():
    with pytest.raises(MisuseError, match="greater than 0"):
        optimal_steps(0, Law(Noise.LAPLACE, Fraction(1)))
    with pytest.raises(MisuseError, match="2\\^48"):
        optimal_steps(1e60, Law(Noise.LAPLACE, Fraction(1, 2**45)))


def test_the_split_of_the_papers_for_each_query_noise_under_laplace_threshold_noise():
    expected = {
        Noise.LAPLACE: 50 ** (2 / 3),
        Noise.EXPONENTIAL: (50 / math.sqrt(2)) ** (2 / 3),
        Noise.GUMBEL: (math.pi * 50 / math.sqrt(12)) ** (2 / 3),
    }
    for noise, split in expected.items():
        assert float(least_variance_split(50, monotonic=True, query_noise=noise)) == pytest.approx(split)


@pytest.mark.parametrize("threshold_noise", Noise)
@pytest.mark.parametrize("query_noise", Noise)
@pytest.mark.parametrize("monotonic", [True, False])
def test_the_split_of_the_papers_has_the_least_variance(query_noise, threshold_noise, monotonic):
    families = {"query_noise": query_noise, "threshold_noise": threshold_noise}
    best = float(least_variance_split(8, monotonic=monotonic, **families))
    epsilon, queries = 1e-3, 8 if monotonic else 16

    def spread(split):
        threshold, query = epsilon / (1 + split), epsilon * split / (1 + split) / queries
        return variance(threshold_noise, threshold) + variance(query_noise, query)

    assert spread(best) < min(spread(best * 1.03), spread(best / 1.03))


def test_a_split_without_tops_is_refused():
    with pytest.raises(MisuseError, match="cutoff"):
        least_variance_split(0, monotonic=True)


def test_the_mean_correction_takes_both_means_away():
    (r,) = Mean().table(Fraction(100), threshold_mean=30.0)
    assert r == math.ceil(mean(Noise.EXPONENTIAL, Fraction(1, 100)) - 30)
    assert Mean().table(Fraction(100), noise=Noise.LAPLACE) == (0,)


def test_no_correction_and_an_explicit_one_are_taken_as_they_are():
    assert Uncorrected().table(SCALE) == (0,)
    assert Explicit((5, 0, -2)).table(SCALE, branches=2, base=False) == (5, 0, -2)


@pytest.mark.parametrize(
    ("correction", "monotonic", "general"),
    [
        (Exposure(expected_queries=10, false_alerts=Fraction(1)), 4, 8),
        (Annealed(), 8, 16),
        (Optimal(queries=100, cutoff=8), 4, 16 ** (2 / 3)),
        (Mean(), 4, 16 ** (2 / 3)),
        (Uncorrected(), 4, 16 ** (2 / 3)),
        (Explicit((1,)), 4, 16 ** (2 / 3)),
    ],
    ids=str,
)
def test_the_default_split_at_cutoff_eight(correction, monotonic, general):
    assert float(correction.default_split(8, monotonic=True)) == pytest.approx(monotonic, abs=1e-5)
    assert float(correction.default_split(8, monotonic=False)) == pytest.approx(general, abs=1e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Exposure(expected_queries=0, false_alerts=Fraction(1)),
        lambda: Exposure(expected_queries=1, false_alerts=Fraction(0)),
        lambda: Exposure(expected_queries=1, false_alerts=Fraction(1), attempts=0),
        lambda: Annealed(start=Fraction(1), end=Fraction(2)),
        lambda: Annealed(step=Fraction(0)),
        lambda: Annealed(upper=Fraction(-1)),
        lambda: Annealed(step=Fraction(1, 100)),
        lambda: Optimal(queries=0, cutoff=1),
        lambda: Explicit(()),
        lambda: Explicit((2**48,)),
        lambda: Exposure(expected_queries=10**9, false_alerts=Fraction(1)).table(Fraction(2**46)),
    ],
)
def test_settings_without_a_meaning_are_refused(build):
    with pytest.raises(MisuseError):
        build()
