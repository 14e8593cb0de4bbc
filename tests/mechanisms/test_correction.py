"""Corrections by attempt, and their default splits."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Annealed, Comparison, Explicit, Exposure, Mean, Noise, Optimal, Uncorrected
from stream_svt.mechanisms.correction import least_variance_split
from stream_svt.mechanisms.noise import mean, tail, variance

SCALE = Fraction(25, 2)


def table(correction, scale=SCALE, **comparison):
    return correction.table(Comparison(scale=scale, **comparison))


def test_exposure_tolerates_its_false_alerts_over_all_tests_that_the_budget_must_last_for():
    for branches, attempts in ((1, 1), (2, 1), (1, 5), (4, 5)):
        correction = Exposure(expected_queries=200_000, false_alerts=Fraction(1, 2), attempts=attempts)
        (r,) = table(correction, branches=branches)
        by_chance = 200_000 * branches * attempts * math.exp(-r / SCALE)
        assert 0.5 * math.exp(-1 / SCALE) < by_chance <= 0.5
    assert table(Exposure(expected_queries=3, false_alerts=Fraction(100))) == (0,)  # the bar is never lowered


def test_annealing_falls_by_one_scale_a_pass_from_twelve_to_minus_three():
    falling = table(Annealed())
    assert len(falling) == Annealed().passes == 16
    assert (falling[0], falling[-1]) == (150, math.ceil(-3 * SCALE))
    assert falling == tuple(sorted(falling, reverse=True))
    uneven = Annealed(start=Fraction(5), end=Fraction(0), step=Fraction(2))
    assert table(uneven, Fraction(10)) == (50, 30, 10)  # the step does not meet its end


def test_annealing_keeps_cheap_branches_at_nine_of_their_own_scales():
    assert table(Annealed(), Fraction(80), branches=4, base=False) == (720,)
    assert table(Annealed(upper=Fraction(21, 2)), Fraction(80), branches=4, base=False) == (840,)


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("k", [1.5, 20, 800, 10**6])
def test_the_optimum_lets_one_of_k_plus_one_answers_on_the_threshold_pass(noise, k):
    """Where noise is wide: there G(r)^k (1 - G(r)) is largest."""
    scale = Fraction(10**5)
    (steps,) = table(Optimal(queries=round(k * 10), cutoff=10), scale, noise=noise)
    below, best, above = (tail(noise, 1 / scale, steps + far) for far in (-5000, 0, 5000))
    assert best == pytest.approx(1 / (k + 1), rel=1e-4)
    found, *others = (k * math.log1p(-one) + math.log(one) for one in (best, below, above))
    assert found > max(others)


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


def test_the_other_corrections_are_what_they_say():
    (r,) = table(Mean(), Fraction(100), threshold_mean=30.0)
    assert r == math.ceil(mean(Noise.EXPONENTIAL, Fraction(1, 100)) - 30)
    assert table(Mean(), noise=Noise.LAPLACE) == table(Uncorrected()) == (0,)
    assert table(Explicit((5, 0, -2)), branches=2, base=False) == (5, 0, -2)


@pytest.mark.parametrize(
    ("correction", "monotonic", "general"),
    [
        (Exposure(expected_queries=10, false_alerts=Fraction(1)), 4, 8),
        (Annealed(), 8, 16),
        *(
            (other, 4, 16 ** (2 / 3))
            for other in (Optimal(queries=100, cutoff=8), Mean(), Uncorrected(), Explicit((1,)))
        ),
    ],
    ids=str,
)
def test_the_default_split_at_cutoff_eight(correction, monotonic, general):
    assert float(correction.default_split(8, monotonic=True)) == pytest.approx(monotonic, abs=1e-5)
    assert float(correction.default_split(8, monotonic=False)) == pytest.approx(general, abs=1e-5)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Annealed(start=Fraction(1), end=Fraction(2)), "end must be at most start"),
        (lambda: Annealed(step=Fraction(1, 100)), "256 attempts"),
        (lambda: table(Annealed(), Fraction(2**46)), "2\\^48"),
    ],
)
def test_settings_without_a_meaning_are_refused(build, reason):
    with pytest.raises(MisuseError, match=reason):
        build()
