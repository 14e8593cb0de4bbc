"""Liu et al. (PVLDB 2024, SVT-Exp): which c of m items are the largest, by noise, correction and passes.

Set-up as in the paper: counting queries, monotonic, c = 50, the threshold the 50th largest count, all items tested in
random order, pass after pass, until c are found. The paper's methods have Laplace threshold noise (Gaussian for
SVT-Gau) and the splits of its Table 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from benchmarks.datasets import COUNTS, counts_of
from benchmarks.papers.effort import Effort, progress
from benchmarks.papers.table import Row, Table, cell, measured
from benchmarks.simulation import Floats, Integers, simulate
from stream_svt.mechanisms import (
    Annealed,
    Correction,
    Mean,
    Noise,
    Optimal,
    SparseVector,
    Uncorrected,
    sparse_vector,
)
from stream_svt.mechanisms.baselines.gaussian import GaussianSparseVector, gaussian
from stream_svt.mechanisms.correction import least_variance_split

CUTOFF = 50
EPSILONS = ("0.05", "0.1", "0.2", "0.5", "1")
PASSES = (5, 20)
MORE_PASSES = (1, 2, 3, 5, 8, 12, 20, 30, 40)
ANNEALED = Annealed()

Corrected = Callable[[int], Correction]
"""A correction by number of items."""

ATTEMPTS = (1, 2, 3, 5, 10, 20)
STREAM_QUERIES, STREAM_CUTOFF, STREAM_POSITIVES = 200_000, 250, 200
STREAM_QUEUE = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """What many runs found, shape (trials,) each."""

    ncr: Floats
    f1: Floats
    precision: Floats
    recall: Floats
    found: Floats

    def row(self) -> Row:
        """Return all five with their standard errors."""
        return {
            key: value
            for name in self.__slots__
            for key, value in measured(name, getattr(self, name)).items()
        }


def found(per_trial: Floats, true: Floats, score: Floats, positives: int) -> Found:
    """Return the measures from the numbers reported, those at the threshold or above, and their scores."""
    precision = np.divide(true, per_trial, out=np.full(len(true), np.nan), where=per_trial > 0)
    return Found(
        ncr=score / (CUTOFF * (CUTOFF + 1) / 2),
        f1=2 * true / (per_trial + positives),
        precision=precision,
        recall=true / positives,
        found=per_trial,
    )


def scores(items: int) -> Floats:
    """Return what an item counts for in the normalised cumulative rank: c for the first, 1 for the c-th, then 0."""
    return np.maximum(CUTOFF - np.arange(items, dtype=np.float64), 0.0)


@dataclass(frozen=True, slots=True)
class Method:
    """One way to run sparse vector over a finite set.

    Attributes:
        noise, threshold: Families of the query and of the threshold noise.
        correction: By number of items.
        split: Epsilon of all queries / epsilon of the threshold; None for the correction's own.
    """

    noise: Noise
    threshold: Noise
    correction: Corrected
    split: Fraction | None

    def mechanism(self, epsilon: str, items: int) -> SparseVector:
        """Return the mechanism for so many items."""
        return sparse_vector(
            epsilon=epsilon,
            cutoff=CUTOFF,
            monotonic=True,
            correction=self.correction(items),
            query_noise=self.noise,
            threshold_noise=self.threshold,
            split=self.split,
        )


_CORRECTIONS: dict[str, Corrected] = {
    "none": lambda _: Uncorrected(),
    "mean": lambda _: Mean(),
    "optimal": lambda items: Optimal(queries=items, cutoff=CUTOFF),
}

PAPER = {
    f"{noise.value}, {name}": Method(
        noise, Noise.LAPLACE, correction, least_variance_split(CUTOFF, monotonic=True, query_noise=noise)
    )
    for noise in (Noise.LAPLACE, Noise.GUMBEL, Noise.EXPONENTIAL)
    for name, correction in _CORRECTIONS.items()
    if (noise, name) != (Noise.LAPLACE, "mean")
}
"""The paper's methods without delta; a mean correction of symmetric noise is none."""

GAUSSIAN_RECORDS = {"zipf": 100_000, "retail": 88_162, "t10i4d100k": 100_000, "kosarak": 36_683}
"""Numbers of records; delta is their inverse. Zipf's scores have none, and get those that they add up to, roughly."""

OURS = Method(Noise.EXPONENTIAL, Noise.EXPONENTIAL, lambda _: ANNEALED, None)


def run(
    mechanism: SparseVector, counts: Integers, passes: int, trials: int, generator: np.random.Generator
) -> Found:
    """Judge what many runs report of items in falling order."""
    threshold = int(counts[CUTOFF - 1])
    reports = simulate(mechanism, counts, threshold, passes=passes, trials=trials, generator=generator)
    return found(
        reports.per_trial(),
        reports.per_trial(counts[reports.item] >= threshold),
        reports.per_trial(scores(len(counts))[reports.item]),
        int(np.count_nonzero(counts >= threshold)),
    )


def with_gaussian_noise(epsilon: float, delta: float, correction: float) -> GaussianSparseVector:
    """Return SVT-Gau as in the paper: delta for the threshold and c tops; the correction in standard deviations."""
    mechanism = gaussian(
        epsilon=epsilon,
        delta=delta,
        cutoff=CUTOFF,
        monotonic=True,
        split=CUTOFF ** (2 / 3),
        tests=None,
        as_published=True,
    )
    steps = math.ceil(correction * math.sqrt(mechanism.query_variance))
    return replace(mechanism, correction=steps)


def measure_gaussian(
    counts: Integers, mechanism: GaussianSparseVector, trials: int, generator: np.random.Generator
) -> dict[int, Found]:
    """Judge SVT-Gau after each number of passes in `PASSES`.

    A draw is a normal one rounded to the grid; the standard deviations are hundreds of grid steps.
    """
    score, threshold = scores(len(counts)), int(counts[CUTOFF - 1])
    spreads = math.sqrt(mechanism.threshold_variance), math.sqrt(mechanism.query_variance)
    sums = {passes: np.zeros((3, trials)) for passes in PASSES}
    for trial in range(trials):
        rho = generator.normal(0.0, spreads[0])
        run = mechanism.open(round(rho), (0, 0))
        waiting = generator.permutation(len(counts))
        reported = np.empty(0, dtype=np.int64)
        for number in range(1, max(PASSES) + 1):
            if not mechanism.is_over(run):
                noise = np.rint(generator.normal(0.0, spreads[1], len(waiting))).astype(np.int64)
                run, reports = mechanism.step(run, counts[waiting], threshold, noise)
                rows = list(reports.rows)
                reported = np.concatenate([reported, waiting[rows]])
                waiting = np.delete(waiting, rows)
            if number in sums:
                true = np.count_nonzero(counts[reported] >= threshold)
                sums[number][:, trial] = len(reported), true, score[reported].sum()
    positives = int(np.count_nonzero(counts >= threshold))
    return {passes: found(columns[0], columns[1], columns[2], positives) for passes, columns in sums.items()}


def ranked(counts: Integers, scale: float, trials: int, generator: np.random.Generator) -> Found:
    """Judge the c largest of all counts with exponential noise of that scale."""
    score, threshold = scores(len(counts)), counts[CUTOFF - 1]
    sums, true = np.empty(trials), np.empty(trials)
    for trial in range(trials):
        noisy = counts + scale * generator.standard_exponential(len(counts))
        largest = np.argpartition(noisy, -CUTOFF)[-CUTOFF:]
        sums[trial] = score[largest].sum()
        true[trial] = np.count_nonzero(counts[largest] >= threshold)
    positives = int(np.count_nonzero(counts >= threshold))
    return found(np.full(trials, float(CUTOFF)), true, sums, positives)


Cell = tuple[str, int, int, Found]
"""Method, passes, trials, and what was found."""


def papers_methods(effort: Effort, data: str, epsilon: str) -> Iterator[Cell]:
    """Yield the paper's methods without delta after each number of passes."""
    counts, trials = counts_of(data), effort.trials(1500)
    for name, method in PAPER.items():
        mechanism = method.mechanism(epsilon, len(counts))
        for passes in PASSES:
            generator = effort.generator("batch", data, epsilon, name, passes)
            yield name, passes, trials, run(mechanism, counts, passes, trials, generator)


def gaussian_methods(effort: Effort, data: str, epsilon: str) -> Iterator[Cell]:
    """Yield SVT-Gau without and with the optimal correction."""
    counts, trials = counts_of(data), effort.trials(300)
    odds = 1 / (len(counts) / CUTOFF + 1)  # that an answer on the bar passes the optimal correction
    for name, correction in {"none": 0.0, "optimal": NormalDist().inv_cdf(1 - odds)}.items():
        mechanism = with_gaussian_noise(float(epsilon), 1 / GAUSSIAN_RECORDS[data], correction)
        generator = effort.generator("batch", data, epsilon, f"gaussian, {name}")
        for passes, runs in measure_gaussian(counts, mechanism, trials, generator).items():
            yield f"gaussian, {name}", passes, trials, runs


def ours_and_rankings(effort: Effort, data: str, epsilon: str) -> Iterator[Cell]:
    """Yield the annealed default, the upper bound, and the one-shot ranking."""
    counts, trials = counts_of(data), effort.trials(1500)
    mechanism = OURS.mechanism(epsilon, len(counts))
    generator = effort.generator("batch", data, epsilon, "annealed")
    yield "annealed", ANNEALED.passes, trials, run(mechanism, counts, ANNEALED.passes, trials, generator)
    bound = PAPER["exponential, optimal"].mechanism(epsilon, len(counts))
    scales = {"upper bound": float(1 / bound.branches[0].rate), "one-shot": CUTOFF / float(epsilon)}
    for name, scale in scales.items():
        yield name, 1, trials, ranked(counts, scale, trials, effort.generator("batch", data, epsilon, name))


def measure_batch(effort: Effort) -> Table:
    """All methods over all data and epsilons."""
    rows = list[Row]()
    for data in COUNTS:
        progress(f"top {CUTOFF} of {data}")
        for epsilon in EPSILONS:
            for part in (papers_methods, gaussian_methods, ours_and_rankings):
                rows += [
                    cell(data=data, epsilon=float(epsilon), method=method, passes=passes, trials=trials)
                    | runs.row()
                    for method, passes, trials, runs in part(effort, data, epsilon)
                ]
    return Table("liu-batch", tuple(rows))


def _always(correction: Annealed) -> Corrected:
    return lambda _: correction


def measure_passes(effort: Effort) -> Table:
    """What more passes at a fixed correction do, as APPEND makes them, beside annealing in the same number."""
    rows = list[Row]()
    trials = effort.trials(1500)
    epsilon = "0.5"
    for data in COUNTS:
        progress(f"passes over {data}")
        counts = counts_of(data)
        fixed = PAPER["exponential, optimal"].mechanism(epsilon, len(counts))
        for passes in MORE_PASSES:
            mechanisms = {"optimal, kept": fixed}
            if passes > 1:
                falling = replace(ANNEALED, step=(ANNEALED.start - ANNEALED.end) / (passes - 1))
                ours = replace(OURS, correction=_always(falling))
                mechanisms["annealed"] = ours.mechanism(epsilon, len(counts))
            for name, mechanism in mechanisms.items():
                generator = effort.generator("passes", data, name, passes)
                runs = run(mechanism, counts, passes, trials, generator)
                place = cell(data=data, epsilon=float(epsilon), correction=name, passes=passes, trials=trials)
                rows.append(place | runs.row())
    return Table("liu-passes", tuple(rows))


def measure_append(effort: Effort) -> Table:
    """APPEND on a stream: the optimal correction kept through all attempts, and one of equal exposure.

    200,000 queries of which 200 are positives, margins of either kind exponential and many near the threshold; bottoms
    wait in a queue of 1,000 and are tested again while new queries arrive. Equal exposure means the same
    probability that a query exactly on the noisy threshold is ever reported: r grows by s ln(attempts).
    """
    rows = list[Row]()
    trials = effort.trials(60)
    plain = sparse_vector(
        epsilon=1,
        cutoff=STREAM_CUTOFF,
        monotonic=True,
        sensitivity=4,  # makes the query-noise scale about 1,000 grid steps
        correction=Uncorrected(),
        split=Fraction(STREAM_CUTOFF, 2),
    )
    scale = float(1 / plain.branches[0].rate)
    once = math.log(STREAM_QUERIES / STREAM_CUTOFF + 1)
    generator = effort.generator("append", "margins")
    margins = np.concatenate(
        [
            generator.exponential(6.0, STREAM_POSITIVES),
            -generator.exponential(8.0, STREAM_QUERIES - STREAM_POSITIVES),
        ]
    )
    values = np.sort(np.floor(margins * scale).astype(np.int64))[::-1].copy()
    progress("append on a stream")
    for attempts in ATTEMPTS:
        for name, corrected in {"optimal, kept": once, "equal exposure": once + math.log(attempts)}.items():
            bar = (math.ceil(corrected * scale),)
            reports = simulate(
                replace(plain, branches=(replace(plain.branches[0], corrections=bar),)),
                values,
                0,
                passes=attempts,
                trials=trials,
                generator=effort.generator("append", name, attempts),
                lag=STREAM_QUEUE / max(1, attempts - 1) / STREAM_QUERIES,
            )
            reported = reports.per_trial()
            true = reports.per_trial(values[reports.item] >= 0)
            rows.append(
                cell(correction=name, attempts=attempts, trials=trials)
                | measured("precision", true / reported)
                | measured("recall", true / STREAM_POSITIVES)
                | measured("false", reported - true)
            )
    return Table("liu-append", tuple(rows))


MEASUREMENTS = {
    "liu-batch": measure_batch,
    "liu-passes": measure_passes,
    "liu-append": measure_append,
}
