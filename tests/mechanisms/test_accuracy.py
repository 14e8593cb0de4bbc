"""Accuracy theorems against runs of the mechanism."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from benchmarks.simulation import simulate
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import (
    Explicit,
    Exposure,
    Noise,
    above_threshold,
    adaptive,
    ladder,
    numeric_sparse,
    sparse,
    sparse_vector,
)
from stream_svt.mechanisms.accuracy import (
    Accuracy,
    accuracy,
    alpha_accuracy,
    report_probability,
    silence_probability,
)
from stream_svt.mechanisms.noise import MONITORED, Law, pmf, quantiles, tail

ONE = Fraction(1)
QUERY = Law(Noise.EXPONENTIAL, Fraction(1, 20))
THRESHOLD = Law(Noise.EXPONENTIAL, Fraction(1, 15))
TABLE = (60, 40, 45, 30)
LAPLACE = {"query_noise": Noise.LAPLACE, "threshold_noise": Noise.LAPLACE}


@pytest.mark.parametrize("query", Noise)
@pytest.mark.parametrize("threshold", Noise)
def test_the_probability_of_a_report_is_the_plain_sum_over_the_threshold_noise(query, threshold):
    laws = {"query": Law(query, QUERY.rate), "threshold": Law(threshold, THRESHOLD.rate)}
    for margin in (-40, 0, 120):
        plain = math.fsum(
            pmf(threshold, THRESHOLD.rate, rho)
            * (1 - math.prod(1 - tail(query, QUERY.rate, r + rho - margin) for r in TABLE))
            for rho in range(-700, 900)
        )
        assert report_probability(margin, corrections=TABLE, **laws) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize(("query", "threshold"), list(product(MONITORED, MONITORED)))
def test_the_probability_of_a_report_is_its_frequency_and_not_the_sum_over_the_rounds(query, threshold):
    trials, rounds, margin = 20_000, 6, 12
    mechanism = sparse_vector(
        epsilon=ONE,
        cutoff=1,
        monotonic=True,
        correction=Explicit((30,) * rounds),
        sensitivity=10,
        query_noise=query,
        threshold_noise=threshold,
    )
    generator = np.random.default_rng(1)
    reports = simulate(mechanism, np.array([margin]), 0, passes=rounds, trials=trials, generator=generator)
    frequency = len(reports.trial) / trials
    laws = {"query": mechanism.branch_laws[0], "threshold": mechanism.threshold_law}
    exact = report_probability(margin, corrections=(30,) * rounds, **laws)
    assert abs(frequency - exact) <= 4 * math.sqrt(exact * (1 - exact) / trials)
    once = report_probability(margin, corrections=(30,), **laws)
    for wrong in (rounds * once, 1 - (1 - once) ** rounds):
        assert wrong > exact + 10 * math.sqrt(exact * (1 - exact) / trials)


@pytest.mark.parametrize(("query", "threshold"), list(product(MONITORED, MONITORED)))
@pytest.mark.parametrize("beta", [0.3, 0.02])
def test_beyond_the_margins_things_go_wrong_with_at_most_beta(query, threshold, beta):
    """Half of the queries lie above the threshold by the theorem's margin, half below; every attempt is made."""
    laws = {"query": Law(query, QUERY.rate), "threshold": Law(threshold, THRESHOLD.rate)}
    queries, trials = 12, 20_000
    limits = accuracy(queries=queries, corrections=TABLE, beta=beta, **laws)
    generator = np.random.default_rng(2)
    rho = quantiles(threshold, THRESHOLD.rate, 1 - generator.random((trials, 1)))
    margins = np.repeat([limits.above, -limits.below], queries // 2)
    reported = np.zeros((trials, queries), dtype=bool)
    for correction in TABLE:
        noise = quantiles(query, QUERY.rate, 1 - generator.random((trials, queries)))
        reported |= margins + noise >= correction + rho
    wrong = (reported != (margins > 0)).any(axis=1).mean()
    assert wrong <= beta + 4 * math.sqrt(beta / trials)
    if query is threshold is Noise.EXPONENTIAL:
        assert wrong > beta / 8  # otherwise the bound would be loose


def test_the_statement_for_exponential_noise_in_closed_form():
    limits = accuracy(queries=1000, corrections=(100,) * 5, query=QUERY, threshold=THRESHOLD, beta=0.1)
    assert limits.above == 100 + math.ceil(15 * math.log(20))
    assert limits.below == math.ceil(20 * math.log(1000 * 5 * 20)) - 100
    assert limits.alpha == max(limits.above, limits.below)
    high = accuracy(queries=1, corrections=(10_000,), query=QUERY, threshold=THRESHOLD, beta=0.1)
    assert high.below == -10_000 + max(0, math.ceil(20 * math.log(20)))  # however high its corrections


def failures(mechanism, bound, *, queries, correction=0, trials=20_000):
    """Share of runs with a wrong decision on an answer at one of the two margins."""
    chance = np.random.default_rng(8)
    laws = (mechanism.threshold_law, mechanism.branch_laws[0])
    rho, nu = (
        quantiles(law.noise, law.rate, 1 - chance.random((trials, number)))
        for law, number in zip(laws, (1, queries), strict=True)
    )
    excess = nu - rho - correction
    return float(((-bound.below + excess >= 0).any(1) | (bound.above + excess < 0).any(1)).mean())


@pytest.mark.parametrize("noises", list(product(Noise, Noise)), ids="-".join)
def test_the_accuracy_holds_with_every_noise_and_is_not_vacuous(noises):
    threshold_noise, query_noise = noises
    mechanism = above_threshold(
        epsilon=ONE / 10,
        monotonic=False,
        query_noise=query_noise,
        threshold_noise=threshold_noise,
        correction=Explicit((40,)),
    )
    bound = alpha_accuracy(mechanism, queries=30, beta=0.2)
    assert 0.02 < failures(mechanism, bound, queries=30, correction=40) <= 0.2
    closer = Accuracy(above=bound.above * 2 // 3, below=bound.below * 2 // 3)
    assert failures(mechanism, closer, queries=30, correction=40) > 0.2


@pytest.mark.parametrize(("build", "numeric"), [(sparse, False), (numeric_sparse, True)])
def test_the_accuracy_is_never_worse_than_the_lectures(build, numeric):
    """Dwork & Roth 2014, Theorems 3.24, 3.26 and 3.28; by more than rounding to the grid."""
    factor, share = (9, 4) if numeric else (8, 2)
    for cutoff, queries, beta in product((1, 10), (1, 1000), (0.05, 1e-6)):
        mechanism = build(epsilon=ONE / 10, cutoff=cutoff, monotonic=False, **LAPLACE)
        ours = alpha_accuracy(mechanism, queries=queries, beta=beta)
        theirs = factor * cutoff * math.log(queries * share * cutoff / beta) / 0.1
        assert ours.alpha <= theirs + 3


def test_numbers_are_within_their_accuracy_as_often_as_stated():
    mechanism = numeric_sparse(epsilon=ONE, cutoff=5, monotonic=True)
    bound = alpha_accuracy(mechanism, queries=50, beta=0.1)
    law = mechanism.answer_law
    noise = quantiles(law.noise, law.rate, 1 - np.random.default_rng(4).random((20_000, 5)))
    assert 0.01 < (np.abs(noise) > bound.answer).any(1).mean() <= 0.05


def test_neither_gumbel_noise_nor_several_branches_have_a_theorem():
    laws = {"query": Law(Noise.GUMBEL, ONE), "threshold": THRESHOLD}
    with pytest.raises(MisuseError, match="gumbel"):
        accuracy(queries=1, corrections=(1,), beta=0.1, **laws)
    several = adaptive(epsilon=ONE, cutoff=2, monotonic=True, correction=Explicit((0,)))
    with pytest.raises(MisuseError, match="branches"):
        alpha_accuracy(several, queries=3, beta=0.1)


def test_the_silence_of_windows_is_exact_for_one_branch_and_for_several():
    one = sparse_vector(
        epsilon="0.549", cutoff=10, monotonic=True, correction=Exposure(expected_queries=3600, false_alerts=1)
    )
    (query,), correction = one.branch_laws, one.branches[0].correction(0)
    chances = []
    for margin in (0, 50, 100, 200):
        attempts = {"corrections": [correction] * 3, "query": query, "threshold": one.threshold_law}
        chances.append(silence_probability(one, margin, windows=3))
        assert chances[-1] == pytest.approx(1 - report_probability(margin, **attempts), abs=1e-9)
    assert chances == sorted(chances, reverse=True)
    assert chances[2:] == pytest.approx([0.94, 0.016], abs=0.01)
    two = ladder(
        epsilon=4, cutoff=3, monotonic=True, correction=Exposure(expected_queries=20, false_alerts=1)
    )
    law, branches = two.threshold_law, [*zip(two.branches, two.branch_laws, strict=True)]
    for margin in (0, 5, 10):
        silent = sum(
            pmf(law.noise, law.rate, z)
            * math.prod(
                1 - tail(each.noise, each.rate, branch.correction(0) - margin + z)
                for branch, each in branches
                for _ in range(3)
            )
            for z in range(400)
        )
        assert silence_probability(two, margin, windows=3) == pytest.approx(silent, rel=1e-4)
