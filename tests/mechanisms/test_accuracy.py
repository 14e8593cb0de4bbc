"""Accuracy theorems against runs of the mechanism."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.simulation import simulate
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import UNITS_PER_EPSILON, Explicit, Noise, sparse_vector
from stream_svt.mechanisms.accuracy import Accuracy, accuracy, attempts_for, report_probability
from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.noise import pmf, tail
from stream_svt.planning.model import quantiles

QUERY = Law(Noise.EXPONENTIAL, Fraction(1, 20))
THRESHOLD = Law(Noise.EXPONENTIAL, Fraction(1, 15))
FAMILIES = [(query, threshold) for query in list(Noise)[:2] for threshold in list(Noise)[:2]]
TABLE = (60, 40, 45, 30)


@pytest.mark.parametrize("query", Noise)
@pytest.mark.parametrize("threshold", Noise)
def test_the_probability_of_a_report_is_the_plain_sum_over_the_threshold_noise(query, threshold):
    laws = {"query": Law(query, QUERY.rate), "threshold": Law(threshold, THRESHOLD.rate)}
    for margin in (-40, 0, 33, 120):
        plain = math.fsum(
            pmf(threshold, THRESHOLD.rate, rho)
            * (1 - math.prod(1 - tail(query, QUERY.rate, r + rho - margin) for r in TABLE))
            for rho in range(-700, 900)
        )
        assert report_probability(margin, corrections=TABLE, **laws) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize(("query", "threshold"), FAMILIES)
def test_the_probability_of_a_report_is_its_frequency_and_not_the_sum_over_the_rounds(query, threshold):
    epsilon, trials, rounds, margin = 1_000_000_000, 20_000, 6, 12
    mechanism = sparse_vector(
        epsilon=epsilon,
        cutoff=1,
        monotonic=True,
        correction=Explicit((30,) * rounds),
        sensitivity=10,
        query_noise=query,
        threshold_noise=threshold,
    )
    reports = simulate(
        mechanism,
        np.array([margin]),
        0,
        passes=rounds,
        trials=trials,
        generator=np.random.default_rng(1),
    )
    frequency = len(reports.trial) / trials
    laws = {"query": mechanism.branch_laws[0], "threshold": mechanism.threshold_law}
    exact = report_probability(margin, corrections=(30,) * rounds, **laws)
    assert abs(frequency - exact) <= 4 * math.sqrt(exact * (1 - exact) / trials)
    once = report_probability(margin, corrections=(30,), **laws)
    for wrong in (rounds * once, 1 - (1 - once) ** rounds):
        assert wrong > exact + 10 * math.sqrt(exact * (1 - exact) / trials)


def test_the_attempts_for_a_probability_are_just_enough():
    for probability in (0.2, 0.5, 0.99):
        needed = attempts_for(0, correction=60, query=QUERY, probability=probability)
        reached = [
            report_probability(0, corrections=(60,) * number, query=QUERY)
            for number in (max(1, needed - 1), needed)
        ]
        assert needed > 1
        assert reached[0] < probability <= reached[1] + 1e-12
    assert attempts_for(60, correction=60, query=QUERY, probability=0.99) == 1


@pytest.mark.parametrize(("query", "threshold"), FAMILIES)
@pytest.mark.parametrize("beta", [0.3, 0.02])
def test_beyond_the_margins_things_go_wrong_with_at_most_beta(query, threshold, beta):
    """Half of the queries sit as far above as the theorem covers, half as far below; every attempt is made."""
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
        assert wrong > beta / 8  # a bound that never binds would say nothing


def test_the_statement_for_exponential_noise_in_closed_form():
    limits = accuracy(queries=1000, corrections=(100,) * 5, query=QUERY, threshold=THRESHOLD, beta=0.1)
    assert limits == Accuracy(
        above=100 + math.ceil(15 * math.log(20)), below=math.ceil(20 * math.log(1000 * 5 * 20)) - 100
    )
    assert limits.alpha == max(limits.above, limits.below)


def test_a_run_reports_nothing_below_however_high_its_corrections():
    limits = accuracy(queries=1, corrections=(10_000,), query=QUERY, threshold=THRESHOLD, beta=0.1)
    assert limits.below == -10_000 + max(0, math.ceil(20 * math.log(20)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: report_probability(0, corrections=(), query=QUERY),
        lambda: attempts_for(0, correction=0, query=QUERY, probability=1.0),
        lambda: attempts_for(0, correction=20_000, query=QUERY, probability=0.5),
        lambda: accuracy(queries=0, corrections=(1,), query=QUERY, threshold=THRESHOLD, beta=0.1),
        lambda: accuracy(queries=1, corrections=(), query=QUERY, threshold=THRESHOLD, beta=0.1),
        lambda: accuracy(queries=1, corrections=(1,), query=QUERY, threshold=THRESHOLD, beta=1),
        lambda: accuracy(
            queries=1, corrections=(1,), query=Law(Noise.GUMBEL, Fraction(1)), threshold=THRESHOLD, beta=0.1
        ),
    ],
)
def test_questions_without_a_meaning_are_refused(call):
    with pytest.raises(MisuseError):
        call()


def test_laws_of_a_mechanism_are_what_the_theorems_take():
    mechanism = sparse_vector(
        epsilon=UNITS_PER_EPSILON, cutoff=4, monotonic=False, correction=Explicit((7, 3))
    )
    limits = accuracy(
        queries=50,
        corrections=mechanism.branches[0].corrections,
        query=mechanism.branch_laws[0],
        threshold=mechanism.threshold_law,
        beta=Fraction(1, 20),
    )
    assert limits.above > 3
    assert limits.below > 0
