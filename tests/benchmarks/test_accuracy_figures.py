"""The accuracy benchmarks at few trials: figures are sane, and parts agree with plain computations."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks import accuracy, ladder, selective
from benchmarks.datasets import DATASETS
from benchmarks.simulation import Uniforms, simulate
from stream_svt.mechanisms import Noise
from stream_svt.mechanisms.estimates import lower_bound


def printed(capsys) -> dict[str, float]:
    lines = capsys.readouterr().out.splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines)}


def test_the_annealed_default_is_near_the_upper_bound_and_above_the_papers(monkeypatch):
    monkeypatch.setattr(accuracy, "EPSILONS", (Fraction(1, 2),))
    measured = accuracy.grid(40, 1)
    assert measured["worst_gap_to_upper_bound"] <= 0.035
    assert measured["worst_deficit_to_papers"] <= 0.005
    assert 0.5 < measured["zipf.epsilon_0.5.annealed"] < 0.7


def test_the_reference_numbers_are_met_within_the_noise_of_few_trials():
    measured = accuracy.references(40, 2, 1)
    for name, difference in measured.items():
        if name.endswith(".difference") and f"{name.removesuffix('.difference')}.error" in measured:
            error = measured[f"{name.removesuffix('.difference')}.error"]
            scale = accuracy.ANSWERS.get(name.split(".")[-2], 1) if "answers" in name else 1
            assert difference * scale <= 0.015 * scale + 5 * error, name
    assert measured["reference.merge_reduction.laplace.difference"] < 0.001


def test_the_upper_bound_ranks_all_noisy_counts():
    """Against dense noise: every uniform handed in, the c largest noisy counts found by sorting."""
    counts, trials, scale = DATASETS["t10i4d100k"]().counts, 20, 300.0
    uniform = 1 - np.random.default_rng(1).random((trials, len(counts)))
    trial, item = np.indices(uniform.shape).reshape(2, -1)
    found = accuracy.ranked(counts, scale, Uniforms(trial=trial, item=item, uniform=uniform.ravel()), trials)
    noisy = counts - scale * np.log(uniform)
    for one in range(trials):
        largest = np.argsort(-noisy[one])[: accuracy.CUTOFF]
        assert found[one] == pytest.approx(np.maximum(50 - largest, 0).sum() / 1275)


def test_candidates_of_the_upper_bound_are_ample_and_few():
    counts = DATASETS["kosarak"]().counts
    for scale in (10.0, 1000.0):
        bounds = accuracy.bounds_of_candidates(counts, scale)
        assert 100 < bounds.sum() < 250
        assert (np.diff(bounds) <= 0).all()


def test_the_ladder_benchmark_prints_its_figures(capsys):
    ladder.main(["--trials", "20"])
    measured = printed(capsys)
    assert measured["ladder.worst_gain_over_adaptive"] > 1.2
    assert measured["ladder.worst_precision"] > 0.97
    rungs, passes = ladder.annealed_ladder(8, 17_034)
    assert passes == 13
    assert rungs.branches[0].corrections[0] * rungs.branches[0].rate == pytest.approx(
        math.log(17_034), rel=0.01
    )


def test_the_selective_benchmark_prints_its_figures(capsys, monkeypatch):
    monkeypatch.setattr(selective, "CUTOFFS", (25,))
    monkeypatch.setattr(selective, "EPSILONS", (Fraction(1, 5),))
    selective.main(["--trials", "100", "--reports", "1000"])
    measured = printed(capsys)
    coverages = [value for name, value in measured.items() if name.endswith(".coverage")]
    assert len(coverages) == 4 * 3
    assert measured["selective.worst_coverage"] == min(coverages) > 0.9
    certified = [value for name, value in measured.items() if name.endswith(".certified")]
    assert 0 < min(certified) < max(certified) < 1


def test_coverage_is_that_of_the_package_s_bound():
    data, cutoff = DATASETS["retail"](), 25
    correction, passes, lag = selective.schedule("stream", len(data.counts), cutoff)
    mechanism = selective.sparse_vector(
        epsilon=500_000_000, cutoff=cutoff, monotonic=True, correction=correction
    )
    generator, threshold = np.random.default_rng(2), data.threshold(cutoff)
    reports = simulate(
        mechanism, data.counts, threshold, passes=passes, trials=10, generator=generator, lag=lag
    )
    holds, certified = selective.covered(reports, mechanism, data.counts, threshold)
    assert len(holds) > 20
    for row in range(len(holds)):
        bound = lower_bound(
            threshold=threshold,
            correction=mechanism.branches[0].correction(int(reports.attempt[row])),
            gap=int(reports.gap[row]),
            query_noise=Noise.EXPONENTIAL,
            query_rate=mechanism.branches[0].rate,
            threshold_noise=Noise.EXPONENTIAL,
            beta=selective.BETA,
        )
        assert certified[row] == (bound is not None)
        assert holds[row] == (bound is None or bound <= data.counts[reports.item[row]])
