"""True alerts of the ladder against those of the papers' Adaptive SVT, from the same budget on item counts.

Epsilon 0.7 a run, 4,000 runs a cell, thresholds drawn from the counts of rank 2k to 8k. The peer is Adaptive SVT with
gap as published (Ding et al. 2023): Laplace noise, its theta, two standard deviations of margin, no correction, one
pass; it may spend its last units on its cheap branch, which the paper's stopping rule forgoes. The ladder has four
branches (shares 8, 4, 2, 1), exponential noise, upper branches at the larger of 9 and ln(items) of their own scales
and an annealed base that stops at 0. A true alert is an item whose count reaches the threshold.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from benchmarks.command import show
from benchmarks.datasets import DATASETS
from benchmarks.simulation import Reports, simulate
from stream_svt.mechanisms import (
    UNITS_PER_EPSILON,
    Annealed,
    Noise,
    SparseVector,
    Uncorrected,
    adaptive,
    ladder,
)

EPSILON = 7 * UNITS_PER_EPSILON // 10
CELLS = (("retail", 8), ("t10i4d100k", 8), ("t10i4d100k", 24), ("kosarak", 8))


def papers_adaptive(cutoff: int) -> SparseVector:
    """Adaptive SVT with gap as published."""
    return adaptive(
        epsilon=EPSILON,
        cutoff=cutoff,
        monotonic=True,
        correction=Uncorrected(),
        query_noise=Noise.LAPLACE,
        threshold_noise=Noise.LAPLACE,
    )


def annealed_ladder(cutoff: int, items: int) -> tuple[SparseVector, int]:
    """Return the ladder for so many items, and its passes."""
    upper = Fraction(max(9.0, math.log(items))).limit_denominator(1000)
    correction = Annealed(end=Fraction(0), upper=upper)
    return ladder(epsilon=EPSILON, cutoff=cutoff, monotonic=True, correction=correction), correction.passes


def figures(trials: int = 4000, seed: int = 1) -> dict[str, float]:
    """Gain in true alerts and precision of each cell, with standard errors, and the worst of both."""
    measured: dict[str, float] = {}
    gains, precisions = [], []
    for name, cutoff in CELLS:
        data, generator = DATASETS[name](), np.random.default_rng(seed)
        thresholds = data.counts[generator.integers(2 * cutoff, 8 * cutoff + 1, trials) - 1]
        rungs, passes = annealed_ladder(cutoff, len(data.counts))
        found = {}
        for method, mechanism, tests in (("adaptive", papers_adaptive(cutoff), 1), ("ladder", rungs, passes)):
            reports = simulate(
                mechanism, data.counts, thresholds, passes=tests, trials=trials, generator=generator
            )
            found[method] = true = _true(reports, data.counts, thresholds)
            alerts = reports.per_trial()
            precision = true.sum() / max(1.0, alerts.sum())
            cell = f"{name}_{cutoff}.{method}"
            measured[f"{cell}.true_alerts"] = true.mean()
            measured[f"{cell}.true_alerts_error"] = true.std() / math.sqrt(trials)
            measured[f"{cell}.precision"] = precision
            measured[f"{cell}.precision_error"] = (true - precision * alerts).std() / (
                math.sqrt(trials) * max(1.0, alerts.mean())
            )
        ours, theirs = found["ladder"], found["adaptive"]
        gain = ours.mean() / theirs.mean()
        measured[f"{name}_{cutoff}.gain"] = gain
        # Both saw the same thresholds: the error of a ratio of paired means.
        measured[f"{name}_{cutoff}.gain_error"] = (ours - gain * theirs).std() / (
            math.sqrt(trials) * theirs.mean()
        )
        gains.append(gain)
        precisions.append(measured[f"{name}_{cutoff}.ladder.precision"])
    return measured | {"worst_gain_over_adaptive": min(gains), "worst_precision": min(precisions)}


def _true(
    reports: Reports, counts: np.ndarray[tuple[int], np.dtype[np.int64]], thresholds: np.ndarray
) -> np.ndarray:
    """Reports whose count reaches the run's threshold, by run."""
    return reports.per_trial(counts[reports.item] >= thresholds[reports.trial])


if __name__ == "__main__":
    show(figures, digits=4)
