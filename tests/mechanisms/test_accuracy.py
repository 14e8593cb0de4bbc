"""Chances of reports against sums over the noise and runs of the mechanism."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from benchmarks.simulation import simulate
from stream_svt.mechanisms import (
    Explicit,
    Exposure,
    Noise,
    ladder,
    sparse_vector,
)
from stream_svt.mechanisms.accuracy import report_probability, silence_probability
from stream_svt.mechanisms.noise import MONITORED, Law, tail
from tests.support.noise import pmf

ONE = Fraction(1)
QUERY = Law(Noise.EXPONENTIAL, Fraction(1, 20))
THRESHOLD = Law(Noise.EXPONENTIAL, Fraction(1, 15))
TABLE = (60, 40, 45, 30)


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
