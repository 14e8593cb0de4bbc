"""Ding et al. (PVLDB 2019; JPC 2023): what Adaptive SVT saves, and what free gaps are worth.

Set-up as in the papers: epsilon 0.7, counting queries in random order, the threshold a count of rank 2k to 8k, budget
for k answers. Where gaps are merged with measurements, half of epsilon selects and half measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from benchmarks.datasets import COUNTS, counts_of
from benchmarks.papers.effort import Effort, progress
from benchmarks.papers.gap_theory import (
    blue_error_ratio,
    expected_reduction,
    marginal_quantile,
    standard_deviation,
)
from benchmarks.papers.grid_noise import Integers, draws
from benchmarks.papers.table import ERROR, Row, Table, cell, measured, paired_ratio
from benchmarks.simulation import Floats
from stream_svt.mechanisms import Mean, Noise, SparseVector, Top, adaptive, sparse_vector
from stream_svt.mechanisms.estimates import blue_top_k, certain_gap, estimate, inverse_variance, joint
from stream_svt.mechanisms.noise import variance
from stream_svt.mechanisms.selection.top_k import TopK

EPSILON = Fraction(7, 10)
GRID = 1000
"""Grid steps of one count: fine enough for geometric noise to be exponential."""

ANSWERS = (2, 4, 8, 12, 16, 20, 24)
FAMILIES = {
    "Laplace": (Noise.LAPLACE, GRID),
    "exponential": (Noise.EXPONENTIAL, GRID),
    "geometric": (Noise.EXPONENTIAL, 1),
}

MERGED_ANSWERS = (2, 5, 10, 15, 20, 25, 50, 100)
MERGED_FAMILIES = {"Laplace": Noise.LAPLACE, "exponential": Noise.EXPONENTIAL}
BOUND_ANSWERS = (10, 25, 50)
BETA = Fraction(1, 20)

_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Pass:
    """One run over all queries.

    Attributes:
        tops: In the order of the answers; their rows index `values`.
        values: Answers in the order in which they were asked, in grid steps.
        threshold: In grid steps.
    """

    tops: tuple[Top, ...]
    values: Integers
    threshold: int

    @property
    def true(self) -> int:
        """Reported answers that reach the threshold."""
        return sum(int(self.values[top.row] >= self.threshold) for top in self.tops)

    @property
    def precision(self) -> float:
        """Share of the reported answers that reach the threshold; NaN where there are none."""
        return self.true / len(self.tops) if self.tops else float("nan")

    @property
    def f_measure(self) -> float:
        """Harmonic mean of precision and recall."""
        positives = int(np.count_nonzero(self.values >= self.threshold))
        return 2 * self.true / (len(self.tops) + positives)

    def stopped_early(self, charge: Fraction) -> Pass:
        """Return the run as the papers stop it: when a top of the last branch cannot be paid any more."""
        return replace(self, tops=tuple(top for top in self.tops if top.left + top.charge >= charge))


def one_pass(mechanism: SparseVector, counts: Integers, rank: int, rng: np.random.Generator) -> Pass:
    """Test all counts once in random order, against the count of a rank, until nothing can be paid."""
    values = rng.permutation(counts) * mechanism.sensitivity
    threshold = int(counts[rank - 1]) * mechanism.sensitivity
    rho = draws(mechanism.threshold_noise, mechanism.threshold_rate, 1, rng)
    run = mechanism.open(int(rho[0]), (0, 0))
    tops = list[Top]()
    for first in range(0, len(values), _CHUNK):
        part = values[first : first + _CHUNK]

        def noise(branch: int, size: int = len(part)) -> Integers:
            return draws(mechanism.query_noise, mechanism.branches[branch].rate, size, rng)

        run, outcomes = mechanism.step(run, part, threshold, np.zeros(len(part), dtype=np.int64), noise)
        tops += [replace(top, row=first + top.row) for top in outcomes.tops]
        if mechanism.is_over(run):
            break
    return Pass(tuple(tops), values, threshold)


def plain(k: int, noise: Noise, epsilon: Fraction) -> SparseVector:
    """SVT with gap as in the papers: split 1 : k^(2/3), the means of the noise taken away."""
    return _published(sparse_vector, k, noise, epsilon, GRID)


def two_branches(k: int, noise: Noise, grid: int) -> SparseVector:
    """Adaptive SVT as in the papers: theta of least variance, the top branch two standard deviations up."""
    return _published(adaptive, k, noise, EPSILON, grid)


def _published(
    form: Callable[..., SparseVector], k: int, noise: Noise, epsilon: Fraction, grid: int
) -> SparseVector:
    return form(
        epsilon=epsilon,
        cutoff=k,
        monotonic=True,
        sensitivity=grid,
        correction=Mean(),
        query_noise=noise,
        threshold_noise=noise,
    )


def measure_adaptive(effort: Effort) -> Table:
    """Adaptive SVT with Laplace, exponential and geometric noise beside SVT with Laplace noise."""
    rows = list[Row]()
    trials = effort.trials(3000)
    for data in COUNTS:
        progress(f"adaptive SVT on {data}")
        counts = counts_of(data)
        for k in ANSWERS:
            rng = effort.generator("adaptive", data, k)
            ranks = rng.integers(2 * k, 8 * k, trials, endpoint=True).tolist()
            svt = [one_pass(plain(k, Noise.LAPLACE, EPSILON), counts, rank, rng) for rank in ranks]
            for name, (noise, grid) in FAMILIES.items():
                mechanism = two_branches(k, noise, grid)
                ours = [one_pass(mechanism, counts, rank, rng) for rank in ranks]
                paper = [each.stopped_early(mechanism.branches[-1].charge) for each in ours]
                left = [float(each.tops[k - 1].left / EPSILON) for each in paper if len(each.tops) >= k]
                rows.append(
                    cell(data=data, k=k, noise=name, trials=trials)
                    | {"ceiling": float(1 - mechanism.threshold_charge / EPSILON) / 2}
                    | measured("left", left)
                    | measured("extra", [len(each.tops) - k for each in paper])
                    | measured("extra_to_the_end", [len(each.tops) - k for each in ours])
                    | _f_ratio(paper, svt)
                    | measured("true", [each.true for each in paper])
                    | measured("precision", [each.precision for each in paper])
                    | measured("svt_true", [each.true for each in svt])
                    | measured("svt_precision", [each.precision for each in svt])
                )
    return Table("ding-adaptive", tuple(rows))


def _f_ratio(adaptive_runs: Sequence[Pass], svt_runs: Sequence[Pass]) -> Row:
    """F-measure of one over that of the other, at the same thresholds."""
    return paired_ratio(
        "f_ratio", [each.f_measure for each in adaptive_runs], [each.f_measure for each in svt_runs]
    )


Squares = Floats
"""Squared errors of one run, summed over some of its answers: measured, merged one by one, and jointly."""


def measure_merges(effort: Effort) -> Table:
    """Mean squared error of measurements merged with gaps, against the measurements alone.

    Half of epsilon selects, half measures all that was selected, with Laplace noise. `reduction` is over all answers,
    `clear` over those that lie at least three scales of both noises above the threshold.
    """
    rows = list[Row]()
    trials = effort.trials(2000)
    for data in COUNTS:
        progress(f"gaps merged with measurements on {data}")
        counts = counts_of(data)
        for k in MERGED_ANSWERS:
            for name, noise in MERGED_FAMILIES.items():
                rng = effort.generator("merge", data, k, name)
                ranks = rng.integers(2 * k, min(8 * k, len(counts)), trials, endpoint=True).tolist()
                svt = plain(k, noise, EPSILON / 2)
                runs = [_merged_svt(svt, one_pass(svt, counts, rank, rng), k, rng) for rank in ranks]
                cell: Row = {"data": data, "k": k, "noise": name, "trials": trials}
                rows.append(
                    cell
                    | {"selection": "SVT", "theory": expected_reduction(k, noise=noise)}
                    | _reduction("reduction", [all_answers for all_answers, _ in runs], "merged")
                    | _reduction("jointly", [all_answers for all_answers, _ in runs], "jointly")
                    | _reduction("clear", [clear for _, clear in runs], "merged")
                )
                top = TopK(epsilon=EPSILON / 2, k=k, monotonic=True, sensitivity=GRID, noise=noise)
                chosen = [_merged_top_k(top, counts * GRID, rng) for _ in range(trials)]
                together = _reduction("reduction", chosen, "jointly")
                rows.append(
                    cell
                    | {"selection": "top-k", "theory": 1 - blue_error_ratio(k, _ratio(top))}
                    | together
                    | {"jointly": together["reduction"], "jointly_se": together["reduction_se"]}
                    | {"clear": float("nan"), "clear_se": float("nan")}
                )
    return Table("ding-merges", tuple(rows))


def _merged_svt(svt: SparseVector, run: Pass, k: int, rng: np.random.Generator) -> tuple[Squares, Squares]:
    """Return the squared errors over all answers of a run, and over those far above the threshold."""
    branch = svt.branches[0]
    truth = run.values[[top.row for top in run.tops]].astype(np.float64)
    laws = {"query": svt.branch_laws[0], "threshold": svt.threshold_law}
    base = estimate(run.threshold + branch.corrections[0], 0, **laws)
    from_gaps = base + np.array([top.gap for top in run.tops], dtype=np.float64)
    rate = measuring_rate(k)
    spread = variance(Noise.LAPLACE, rate)
    measurements = truth + draws(Noise.LAPLACE, rate, len(truth), rng)
    alone = inverse_variance(measurements, spread, from_gaps, standard_deviation(**laws) ** 2).values
    together = joint(
        from_gaps,
        variance(svt.query_noise, branch.rate),
        variance(svt.threshold_noise, svt.threshold_rate),
        measurements,
        spread,
    ).values
    clear = truth > run.threshold + 3 * float(1 / branch.rate + 1 / svt.threshold_rate)
    return (
        _squares(truth, measurements, alone, together),
        _squares(truth[clear], measurements[clear], alone[clear], together[clear]),
    )


def _merged_top_k(top: TopK, values: Integers, rng: np.random.Generator) -> Squares:
    """Return the squared errors over the k largest noisy values."""
    _, selection = top.step(
        top.open(0, (0, 0)), values, lambda _branch: draws(top.noise, top.rate, len(values), rng)
    )
    truth = values[[chosen.row for chosen in selection.tops]].astype(np.float64)
    measurements = truth + draws(Noise.LAPLACE, measuring_rate(top.k), top.k, rng)
    gaps = [float(chosen.gap or 0) for chosen in selection.tops[:-1]]
    merged = blue_top_k(measurements, gaps, _ratio(top))
    return _squares(truth, measurements, merged, merged)


def _ratio(top: TopK) -> float:
    """Variance of the selection's noise / variance of the measurements' noise."""
    return variance(top.noise, top.rate) / variance(Noise.LAPLACE, measuring_rate(top.k))


def measuring_rate(k: int) -> Fraction:
    """Rate of the noise of k measurements that share half of epsilon."""
    return EPSILON / (2 * k * GRID)


def _squares(truth: Floats, *answers: Floats) -> Squares:
    squares: Squares = ((np.array(answers) - truth) ** 2).sum(axis=1)
    return squares


def _reduction(name: str, runs: Sequence[Squares], kind: str) -> Row:
    """Return the share of the mean squared error that merging takes away."""
    alone, *merged = np.array(runs).T
    kept = paired_ratio(name, merged[("merged", "jointly").index(kind)], alone)
    return {name: 1 - float(kept[name]), name + ERROR: kept[name + ERROR]}


def measure_bounds(effort: Effort) -> Table:
    """Coverage of 95 % lower bounds: the paper's over all tests and over alerts, ours over alerts.

    The paper's bound is a quantile of the noise (its Lemma 3, with the rate of the noise in use); both families of
    noise are run with it. Ours, the certain gap, says nothing of alerts that are not certified.
    """
    rows = list[Row]()
    trials = effort.trials(1000)
    for data in COUNTS:
        progress(f"bounds on {data}")
        counts = counts_of(data)
        for k in BOUND_ANSWERS:
            for name, noise in MERGED_FAMILIES.items():
                rng = effort.generator("bounds", data, k, name)
                ranks = rng.integers(2 * k, min(8 * k, len(counts)), trials, endpoint=True).tolist()
                svt = plain(k, noise, EPSILON)
                branch = svt.branches[0]
                laws = {"query": svt.branch_laws[0], "threshold": svt.threshold_law}
                least = marginal_quantile(**laws, beta=float(BETA))
                errors = draws(noise, branch.rate, 100 * trials, rng) - draws(
                    noise, svt.threshold_rate, 100 * trials, rng
                )
                covered, certified, ours = list[float](), list[float](), list[float]()
                for rank in ranks:
                    run = one_pass(svt, counts, rank, rng)
                    gaps = np.array([top.gap for top in run.tops])
                    bar = run.threshold + branch.corrections[0]
                    truth = run.values[[top.row for top in run.tops]]
                    covered.append(float(np.mean(truth >= bar + gaps - least)))
                    if noise is Noise.EXPONENTIAL:
                        certain = certain_gap(branch.rate, BETA)
                        holds = (gaps < certain) | (truth >= bar + gaps - certain + 1)
                        certified.append(float(np.mean(gaps >= certain)))
                        ours.append(float(np.mean(holds)))
                rows.append(
                    cell(data=data, k=k, noise=name, trials=trials)
                    | measured("paper_all_tests", errors <= least)
                    | measured("paper_alerts", covered)
                    | measured("ours_alerts", ours)
                    | measured("certified", certified)
                )
    return Table("ding-bounds", tuple(rows))


MEASUREMENTS = {
    "ding-adaptive": measure_adaptive,
    "ding-merges": measure_merges,
    "ding-bounds": measure_bounds,
}
