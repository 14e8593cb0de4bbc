"""Coverage of the 95 % lower bound of reported alerts, on item counts, by data, cutoff, epsilon and schedule.

The bound is `estimates.lower_bound`; all reports count, certified or not (a report without a bound claims nothing
and cannot be wrong). Beside the coverage stand the share certified and how many of the bounds that were given hold:
where most reports are false, few of the bounds shown are right, since one report in twenty gets a wrong one and few
get any. No procedure that is right for each report can do otherwise. Each cell pools at least 40,000 reports
of runs whose threshold is the c-th largest count, with exponential noise throughout:

* one pass: the optimal correction, every item tested once;
* annealed: the default for finite sets, 12 to -3 scales;
* stream: exposure for one false alert in ten of the cutoff, five attempts that mix with fresh queries.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np

from benchmarks.command import show
from benchmarks.datasets import COUNTS, counts_of
from benchmarks.simulation import Reports, simulate
from stream_svt.mechanisms import Annealed, Exposure, Optimal, SparseVector, sparse_vector
from stream_svt.mechanisms.correction import Correction
from stream_svt.mechanisms.estimates import certain_gap

BETA = Fraction(1, 20)
CUTOFFS = (10, 25, 50)
EPSILONS = (Fraction(1, 20), Fraction(1, 5), Fraction(7, 10))
SCHEDULES = ("one_pass", "annealed", "stream")
SEED = 1
LAG = 0.05
"""Time between attempts in a stream, of the time in which all items come once."""


def schedule(name: str, items: int, cutoff: int) -> tuple[Correction, int, float]:
    """Correction, tests of an item, and time between them."""
    if name == "one_pass":
        return Optimal(queries=items, cutoff=cutoff), 1, 1.0
    if name == "annealed":
        return Annealed(), Annealed().passes, 1.0
    return Exposure(expected_queries=items, false_alerts=Fraction(cutoff, 10), attempts=5), 5, LAG


def covered(
    reports: Reports, mechanism: SparseVector, counts: np.ndarray, threshold: int
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each report's bound holds, and whether there is one; `estimates.lower_bound`, all at once."""
    (branch,) = mechanism.branches
    least = certain_gap(branch.rate, BETA)
    table = np.array(branch.corrections)
    correction = table[np.minimum(reports.attempt, len(table) - 1)]
    certified = reports.gap >= least
    bound = threshold + correction + reports.gap - least + 1
    return ~certified | (counts[reports.item] >= bound), certified


def cell(
    counts: np.ndarray,
    cutoff: int,
    mechanism: SparseVector,
    passes: int,
    lag: float,
    trials: int,
    reports: int,
) -> dict[str, float]:
    """Coverage, its standard error, the share certified, and the share of the bounds given that hold."""
    generator, threshold = np.random.default_rng(SEED), int(counts[cutoff - 1])
    batches: list[tuple[np.ndarray, ...]] = []
    while sum(number.sum() for number, *_ in batches) < reports and len(batches) < 40:
        batch = simulate(
            mechanism, counts, threshold, passes=passes, trials=trials, generator=generator, lag=lag
        )
        holds, certified = covered(batch, mechanism, counts, threshold)
        batches.append((batch.per_trial(), batch.per_trial(~holds), batch.per_trial(certified)))
    number, missed, certain = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    total = max(1.0, number.sum())
    error = (missed - missed.sum() / total * number).std() * math.sqrt(len(number)) / total
    return {
        "coverage": 1 - missed.sum() / total,
        "coverage_error": error,
        "certified": certain.sum() / total,
        "held_where_certified": 1 - missed.sum() / max(1.0, certain.sum()),
    }


def figures(trials: int = 2000, reports: int = 40_000) -> dict[str, float]:
    """Coverage, standard error and share certified of every cell, and the worst coverage."""
    measured: dict[str, float] = {}
    for data, cutoff, epsilon, way in product(COUNTS, CUTOFFS, EPSILONS, SCHEDULES):
        counts = counts_of(data)
        correction, passes, lag = schedule(way, len(counts), cutoff)
        mechanism = sparse_vector(epsilon=epsilon, cutoff=cutoff, monotonic=True, correction=correction)
        label = f"{data}.cutoff_{cutoff}.epsilon_{float(epsilon):g}.{way}"
        found = cell(counts, cutoff, mechanism, passes, lag, trials, reports)
        measured |= {f"{label}.{name}": value for name, value in found.items()}
    worst = {
        f"worst_{name}": min(value for label, value in measured.items() if label.endswith(f".{name}"))
        for name in ("held_where_certified", "coverage")
    }
    return measured | worst


if __name__ == "__main__":
    show(figures, digits=4)
