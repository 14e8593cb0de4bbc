"""The accuracy benchmarks at few trials: figures are sane, and parts agree with plain computations."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks import accuracy, ladder, selective
from benchmarks.datasets import counts_of
from benchmarks.papers import exponential_noise
from benchmarks.simulation import simulate
from stream_svt.mechanisms.estimates import lower_bound


def test_the_annealed_default_is_near_the_upper_bound_and_above_the_papers(monkeypatch, measured):
    monkeypatch.setattr(exponential_noise, "EPSILONS", ("0.5",))
    found = measured(accuracy, "--trials 40")
    assert found["accuracy.worst_gap_to_upper_bound"] <= 0.035
    assert found["accuracy.worst_deficit_to_papers"] <= 0.005
    assert 0.5 < found["accuracy.zipf.epsilon_0.5.annealed"] < 0.7


def test_the_upper_bound_ranks_all_noisy_counts():
    counts, trials, scale = counts_of("t10i4d100k"), 20, 300.0
    found = exponential_noise.ranked(counts, scale, trials, np.random.default_rng(1))
    generator = np.random.default_rng(1)
    for trial in range(trials):
        noisy = counts + scale * generator.standard_exponential(len(counts))
        largest = np.argsort(-noisy)[: exponential_noise.CUTOFF]
        assert found.ncr[trial] == pytest.approx(np.maximum(50 - largest, 0).sum() / 1275)


def test_the_ladder_benchmark_prints_its_figures(measured):
    found = measured(ladder, "--trials 20")
    assert found["ladder.worst_gain_over_adaptive"] > 1.2
    assert found["ladder.worst_precision"] > 0.97
    rungs, passes = ladder.annealed_ladder(8, 17_034)
    assert passes == 13
    assert rungs.branches[0].corrections[0] * rungs.branches[0].rate == pytest.approx(
        math.log(17_034), rel=0.01
    )


def test_the_selective_benchmark_prints_its_figures(measured, monkeypatch):
    monkeypatch.setattr(selective, "CUTOFFS", (25,))
    monkeypatch.setattr(selective, "EPSILONS", (Fraction(1, 5),))
    found = measured(selective, "--trials 100 --reports 1000")
    coverages = [value for name, value in found.items() if name.endswith(".coverage")]
    assert len(coverages) == 4 * 3
    assert found["selective.worst_coverage"] == min(coverages) > 0.9
    certified = [value for name, value in found.items() if name.endswith(".certified")]
    assert 0 < min(certified) < max(certified) < 1


def test_coverage_is_that_of_the_package_s_bound():
    counts, cutoff = counts_of("retail"), 25
    correction, passes, lag = selective.schedule("stream", len(counts), cutoff)
    mechanism = selective.sparse_vector(epsilon="0.5", cutoff=cutoff, monotonic=True, correction=correction)
    generator, threshold = np.random.default_rng(2), int(counts[cutoff - 1])
    reports = simulate(mechanism, counts, threshold, passes=passes, trials=10, generator=generator, lag=lag)
    holds, certified = selective.covered(reports, mechanism, counts, threshold)
    assert len(holds) > 20
    for row in range(len(holds)):
        bound = lower_bound(
            threshold + mechanism.branches[0].correction(int(reports.attempt[row])),
            int(reports.gap[row]),
            query=mechanism.branch_laws[0],
            threshold=mechanism.threshold_law,
            beta=selective.BETA,
        )
        assert certified[row] == (bound is not None)
        assert holds[row] == (bound is None or bound <= counts[reports.item[row]])
