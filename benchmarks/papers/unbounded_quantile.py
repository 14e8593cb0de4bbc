"""Durfee (NeurIPS 2023): quantiles and clipped sums without an upper bound on the data.

Set-up as in the paper: 1,000 records drawn at random, swap neighbours, epsilon 1 for a quantile, halved between
threshold and query. The candidates grow by 0.1 % from one test to the next. The peer is the exponential mechanism for
quantiles (Smith 2011), which needs an upper bound: one close to the data's, and ones 10 and 100 times as large. All
data are whole numbers, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial

import numpy as np

from benchmarks.datasets import counts_of
from benchmarks.papers.effort import Effort, progress
from benchmarks.papers.grid_noise import Integers, draws
from benchmarks.papers.table import Row, Table, cell, measured, middle
from stream_svt.demo.scenario import load_baskets
from stream_svt.mechanisms import Noise
from stream_svt.mechanisms.selection.quantile import Adjacency, ClippedSum, UnboundedQuantile

RECORDS = 1000
LEVELS = ("0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99", "0.999")
CLIP_LEVELS = ("0.9", "0.95", "0.99", "0.999")
GROWTH = 1.001
BOUNDS = {"tight": 1, "10 times": 10, "100 times": 100}
FAMILIES = {"Laplace": Noise.LAPLACE, "Gumbel": Noise.GUMBEL, "exponential": Noise.EXPONENTIAL}


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from.

    Attributes:
        title: For people.
        bound: An upper bound that somebody who knows the field might give.
        draw: Returns `RECORDS` records.
    """

    title: str
    bound: int
    draw: Callable[[np.random.Generator], Integers]


@cache
def _basket_sizes() -> Integers:
    return np.diff(load_baskets().start)


def _baskets(rng: np.random.Generator) -> Integers:
    return rng.choice(_basket_sizes(), RECORDS, replace=False)


def _sales(rng: np.random.Generator) -> Integers:
    return rng.choice(counts_of("retail"), RECORDS, replace=False)


def _uniform(rng: np.random.Generator) -> Integers:
    return rng.integers(0, 1000, RECORDS)


def _lognormal(rng: np.random.Generator) -> Integers:
    return np.floor(np.exp(rng.normal(6.0, 1.0, RECORDS))).astype(np.int64)


SOURCES = {
    "baskets": Source("Items in a basket", 100, _baskets),
    "sales": Source("Sales of an item", 100_000, _sales),
    "uniform": Source("Uniform to 1,000", 1000, _uniform),
    "lognormal": Source("Lognormal, median 403", 100_000, _lognormal),
}

CANDIDATES = GROWTH ** np.arange(math.ceil(math.log(10**8) / math.log(GROWTH))) - 1
"""The public candidates up to 10^8, in floats: exact fractions of so high powers would take the time of the runs."""

_BELOW = np.ceil(CANDIDATES).astype(
    np.int64
)  # a whole number is below a candidate iff it is below its ceiling
_CHUNK = 2048


def answers(data: Integers, level: Fraction, first: int, tests: int) -> Integers:
    """Records below each candidate less the threshold, as `UnboundedQuantile.answers`."""
    below: Integers = np.searchsorted(data, _BELOW[first : first + tests], side="left")
    return below - math.ceil(level * len(data))


def _given(drawn: Integers, _branch: int) -> Integers:
    return drawn


def unbounded(
    data: Integers, level: Fraction, epsilon: Fraction, rng: np.random.Generator, noise: Noise
) -> float:
    """Return the first candidate below which a noisy number of records reaches a noisy level of all records."""
    mechanism = quantile_mechanism(level, epsilon, noise)
    threshold, (query,) = mechanism.threshold_law, mechanism.branch_laws
    run = mechanism.open(int(draws(noise, threshold.rate, 1, rng)[0]), (0, 0))
    for first in range(0, len(CANDIDATES), _CHUNK):
        values = answers(data, level, first, _CHUNK)
        drawn = draws(noise, query.rate, len(values), rng)
        run, outcomes = mechanism.step(run, values, partial(_given, drawn))
        if outcomes.tops:
            return float(CANDIDATES[first + outcomes.tops[0].row])
    return float(CANDIDATES[-1])


@cache
def quantile_mechanism(level: Fraction, epsilon: Fraction, noise: Noise) -> UnboundedQuantile:
    """Return the mechanism for swap neighbours, epsilon halved between threshold and query."""
    return UnboundedQuantile(
        epsilon=epsilon,
        level=level,
        adjacency=Adjacency.SWAP,
        base=Fraction(str(GROWTH)),
        threshold_noise=noise,
        query_noise=noise,
    )


def bounded(
    data: Integers, level: Fraction, epsilon: Fraction, rng: np.random.Generator, bound: int
) -> float:
    """Return a whole number from 0 to the bound by the exponential mechanism.

    The utility of a number is minus the distance of the level from its ranks, those of the records up to it; swapping a
    record changes it by at most 1. Numbers without a record between two that have some are drawn together.
    """
    clipped = np.minimum(data, bound)
    points, counts = np.unique(clipped, return_counts=True)
    last = np.cumsum(counts)
    first = last - counts
    target = float(level * len(data))
    edges = np.concatenate([[-1], points, [bound + 1]])
    widths = np.diff(edges) - 1
    ranks = np.concatenate([[0], last])
    utility = np.concatenate(
        [-np.abs(ranks - target), -np.maximum(np.maximum(first - target, target - last), 0.0)]
    )
    many = np.concatenate([widths, np.ones(len(points), dtype=np.int64)])
    with np.errstate(divide="ignore"):
        weight = np.log(many) + float(epsilon) / 2 * utility + rng.gumbel(size=len(many))
    best = int(np.argmax(weight))
    if best >= len(widths):
        return float(points[best - len(widths)])
    return float(edges[best] + 1 + rng.integers(widths[best]))


def bounded_by_intervals(
    data: Integers, level: Fraction, epsilon: Fraction, rng: np.random.Generator, bound: int
) -> float:
    """Return a real number from 0 to the bound by the exponential mechanism, as the papers have it.

    Intervals between neighbouring records are drawn by their lengths: equal records have none, and the answer is
    never a record.
    """
    edges = np.concatenate([[0], np.minimum(data, bound), [bound]])
    widths = np.diff(edges)
    utility = -np.abs(np.arange(len(widths)) - float(level * len(data)))
    with np.errstate(divide="ignore"):
        weight = np.log(widths) + float(epsilon) / 2 * utility + rng.gumbel(size=len(widths))
    best = int(np.argmax(weight))
    return float(edges[best] + widths[best] * rng.random())


Estimator = Callable[[Integers, Fraction, Fraction, np.random.Generator], float]


def estimators(source: Source) -> dict[str, Estimator]:
    """Return the ways to estimate a quantile, by name."""
    return {
        **{f"unbounded, {name}": partial(unbounded, noise=noise) for name, noise in FAMILIES.items()},
        "intervals, tight": partial(bounded_by_intervals, bound=source.bound),
        **{f"bounded, {name}": partial(bounded, bound=each * source.bound) for name, each in BOUNDS.items()},
    }


def _bound(*_: object, bound: int) -> float:
    return float(bound)


def quantile_of(data: Integers, level: Fraction) -> float:
    """Return the record of rank ceil(level n) among sorted ones."""
    return float(data[math.ceil(level * len(data)) - 1])


def measure_quantiles(effort: Effort) -> Table:
    """Absolute error of one quantile at epsilon 1; the scale is the data's own unit."""
    rows = list[Row]()
    trials = effort.trials(500)
    for name, source in SOURCES.items():
        progress(f"quantiles of {name}")
        for method, estimate in estimators(source).items():
            for text in LEVELS:
                level = Fraction(text)
                rng = effort.generator("quantile", name, method, text)
                errors, ranks = np.empty(trials), np.empty(trials)
                for trial in range(trials):
                    data = np.sort(source.draw(rng))
                    answer = estimate(data, level, Fraction(1), rng)
                    errors[trial] = abs(answer - quantile_of(data, level))
                    ranks[trial] = _rank_error(data, answer, level)
                rows.append(
                    cell(data=name, level=float(level), method=method, trials=trials)
                    | middle("error", errors)
                    | measured("mean_error", errors)
                    | measured("rank_error", ranks)
                )
    return Table("durfee-quantiles", tuple(rows))


def _rank_error(data: Integers, answer: float, level: Fraction) -> float:
    """Return how many records lie between the answer and the level."""
    low, high = np.searchsorted(data, answer, side="left"), np.searchsorted(data, answer, side="right")
    target = float(level * len(data))
    return float(max(low - target, target - high, 0.0))


def measure_sums(effort: Effort) -> Table:
    """Relative error of a sum clipped at a private quantile: half of epsilon 1 for either."""
    rows = list[Row]()
    trials = effort.trials(500)
    half = Fraction(1, 2)
    for name, source in SOURCES.items():
        progress(f"clipped sums of {name}")
        ways = estimators(source)
        for factor_name, factor in BOUNDS.items():
            ways[f"the bound itself, {factor_name}"] = partial(_bound, bound=factor * source.bound)
        for method, estimate in ways.items():
            for text in CLIP_LEVELS:
                level = Fraction(text)
                sums = ClippedSum(
                    quantile=quantile_mechanism(level, half, Noise.EXPONENTIAL),
                    charge=half,
                )
                rng = effort.generator("sum", name, method, text)
                errors = np.empty(trials)
                for trial in range(trials):
                    data = np.sort(source.draw(rng))
                    clip = max(1, math.floor(estimate(data, level, half, rng)))
                    law = sums.law(clip)
                    noisy = sums.release(data, clip, int(draws(law.noise, law.rate, 1, rng)[0]))
                    errors[trial] = abs(noisy - data.sum()) / data.sum()
                rows.append(
                    cell(data=name, level=float(text), method=method, trials=trials)
                    | middle("error", errors)
                    | measured("mean_error", errors)
                )
    return Table("durfee-sums", tuple(rows))


MEASUREMENTS = {"durfee-quantiles": measure_quantiles, "durfee-sums": measure_sums}
