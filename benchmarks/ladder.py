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
from benchmarks.datasets import counts_of
from benchmarks.simulation import Floats, simulate
from stream_svt.mechanisms import Annealed, Noise, SparseVector, Uncorrected, adaptive, ladder

EPSILON = 0.7
CELLS = (("retail", 8), ("t10i4d100k", 8), ("t10i4d100k", 24), ("kosarak", 8))


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
        counts, generator = counts_of(name), np.random.default_rng(seed)
        thresholds = counts[generator.integers(2 * cutoff, 8 * cutoff + 1, trials) - 1]
        # Adaptive SVT with gap as published.
        published = adaptive(
            epsilon=EPSILON,
            cutoff=cutoff,
            monotonic=True,
            correction=Uncorrected(),
            query_noise=Noise.LAPLACE,
            threshold_noise=Noise.LAPLACE,
        )
        ways = {"adaptive": (published, 1), "ladder": annealed_ladder(cutoff, len(counts))}
        found = {}
        for method, (mechanism, passes) in ways.items():
            reports = simulate(
                mechanism, counts, thresholds, passes=passes, trials=trials, generator=generator
            )
            found[method] = true = reports.per_trial(counts[reports.item] >= thresholds[reports.trial])
            _put(measured, f"{name}_{cutoff}.{method}.true_alerts", true, np.ones(trials))
            _put(measured, f"{name}_{cutoff}.{method}.precision", true, reports.per_trial())
        _put(measured, f"{name}_{cutoff}.gain", found["ladder"], found["adaptive"])
        gains.append(measured[f"{name}_{cutoff}.gain"])
        precisions.append(measured[f"{name}_{cutoff}.ladder.precision"])
    return measured | {"worst_gain_over_adaptive": min(gains), "worst_precision": min(precisions)}


def _put(measured: dict[str, float], name: str, ours: Floats, theirs: Floats) -> None:
    """Add the ratio of paired means, and its standard error."""
    mean = max(1.0 / len(theirs), theirs.mean())
    measured[name] = ratio = ours.mean() / mean
    measured[f"{name}_error"] = (ours - ratio * theirs).std() / (math.sqrt(len(ours)) * mean)


if __name__ == "__main__":
    show(figures, digits=4)
