"""Many runs of one mechanism at once, in law exactly those of `SparseVector.step`.

Rates, corrections, charges and noise families are read off the package's own mechanism; noise lives on the same
integer grid and comes from a seeded numpy generator. What makes it fast, without changing the law:

* Given the noisy threshold, a branch's fresh noises at all attempts matter only through the first attempt at which
  it reaches the bar. That attempt is a function of one uniform number per item and branch: it is reached by attempt
  j iff the uniform is at most 1 - prod(1 - P(noise >= bar)) over the attempts up to j.
* Items are tested in random order, so an item's place in a pass is a uniform number too.
* Uniforms above what could ever matter are not drawn: the items with small ones are found by skipping a geometric
  number of items at a time. Trials are grouped by noisy threshold, which makes that bound tight.
* The gap of a report is drawn afterwards, given that the noise reached the bar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream_svt.mechanisms import SparseVector
from stream_svt.mechanisms.noise import quantiles, tails

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_GROUP = 256
_LEAST_BOUND = 2.0**-50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What many runs reported; arrays of shape (reports,) are ordered by trial, then by time.

    Attributes:
        trial, item, attempt, branch: Which run, which value, after how many earlier tests, and by which
            branch.
        gap: Grid steps above the noisy threshold and correction, at least 0.
        threshold_noise: Grid steps, shape (trials,).
        left: Units that each run has left, shape (trials,).
    """

    trial: Integers
    item: Integers
    attempt: Integers
    branch: Integers
    gap: Integers
    threshold_noise: Integers
    left: Integers

    def per_trial(self, weights: NDArray[np.generic] | None = None) -> Floats:
        """Sum of the reports' weights in each trial (their number if None), shape (trials,)."""
        return np.bincount(self.trial, weights, minlength=len(self.left)).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniforms:
    """The uniform numbers of all items of all trials that are below their item's bound, shape (pairs,) each."""

    trial: Integers
    item: Integers
    uniform: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """First attempts at which branches reach the bar, ordered by trial, time and branch; shape (events,) each.

    Attributes:
        pair: The same number for the same item of the same trial.
    """

    trial: Integers
    item: Integers
    attempt: Integers
    branch: Integers
    pair: Integers


def simulate(
    mechanism: SparseVector,
    values: Integers,
    threshold: int | Integers,
    *,
    passes: int,
    trials: int,
    generator: np.random.Generator,
    lag: float = 1.0,
) -> Reports:
    """Run a mechanism `trials` times over the values in random order; bottoms are tested again in later passes.

    Args:
        values: In falling order, shape (items,).
        threshold: One for all trials or shape (trials,).
        passes: Tests an item gets at most.
        lag: Time between an item's attempts, where one pass over all items takes 1. At 1 or more, passes
            follow each other; below, retries mix with fresh queries, as in a stream with a retry queue.
    """
    rho = quantiles(
        mechanism.threshold_noise, mechanism.threshold_rate, 1.0 - generator.random(trials)
    )  # in (0, 1]
    levels = threshold + rho
    order = np.argsort(levels, kind="stable")
    rising = levels[order]
    left = np.empty(trials, dtype=np.int64)
    finest = max(float(branch.rate) for branch in mechanism.branches)
    parts: list[tuple[Integers, ...]] = []
    start = 0
    while start < trials:
        reach = rising[start] + 0.25 / finest
        stop = min(start + _GROUP, int(np.searchsorted(rising, reach, side="right")))
        group = order[start:stop]
        events = _events(mechanism, values, levels[group], passes=passes, generator=generator, lag=lag)
        reported, left[group] = decide(mechanism, events, len(group))
        part = tuple(
            column[reported] for column in (events.trial, events.item, events.attempt, events.branch)
        )
        gap = _gaps(mechanism, values, levels[group], part, generator)
        parts.append((group[part[0]], *part[1:], gap))
        start = stop
    trial, item, attempt, branch, gap = (np.concatenate(column) for column in zip(*parts, strict=True))
    by_trial = np.argsort(trial, kind="stable")
    return Reports(
        trial=trial[by_trial],
        item=item[by_trial],
        attempt=attempt[by_trial],
        branch=branch[by_trial],
        gap=gap[by_trial],
        threshold_noise=rho,
        left=left,
    )


def decide(mechanism: SparseVector, events: Events, trials: int) -> tuple[NDArray[np.bool_], Integers]:
    """Which events are reported, and the units left in each trial, shapes (events,) and (trials,).

    An event is passed over when its branch cannot be paid any more or its item was reported before.
    """
    charges = np.array([branch.charge_units for branch in mechanism.branches], dtype=np.int64)
    left = np.full(trials, mechanism.top_units, dtype=np.int64)
    reported = np.zeros(len(events.trial), dtype=np.bool_)
    gone = np.zeros(int(events.pair.max(initial=-1)) + 1, dtype=np.bool_)
    edges = np.searchsorted(events.trial, np.arange(trials + 1))
    place, ends = edges[:-1].copy(), edges[1:]
    active = np.flatnonzero(place < ends)
    while len(active):  # the next event of every trial at once
        at = place[active]
        charge = charges[events.branch[at]]
        paid = (charge <= left[active]) & ~gone[events.pair[at]]
        reported[at[paid]] = True
        gone[events.pair[at[paid]]] = True
        left[active[paid]] -= charge[paid]
        place[active] += 1
        active = active[(place[active] < ends[active]) & (left[active] >= mechanism.smallest_units)]
    return reported, left


def uniforms_below(bounds: Floats, trials: int, generator: np.random.Generator) -> Uniforms:
    """One uniform number per trial and item; only those below their item's bound are drawn.

    Args:
        bounds: In falling order, shape (items,).
    """
    limits = np.maximum(bounds, _LEAST_BOUND)
    sizes = np.floor(np.log2(limits))
    edges = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(bounds)]
    parts = []
    for first, last in pairwise(edges):
        width, limit = last - first, float(limits[first])
        if limit > 0.25:
            uniform = generator.random((trials, width))
            trial, item = np.nonzero(uniform < bounds[first:last])
            parts.append((trial, item + first, uniform[trial, item]))
            continue
        place = _successes(limit, trials * width, generator)
        uniform = limit * generator.random(len(place))
        trial, item = np.divmod(place, width)
        item += first
        low = uniform < bounds[item]
        parts.append((trial[low], item[low], uniform[low]))
    trial, item, uniform = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Uniforms(trial=trial, item=item, uniform=uniform)


def ample(number: int) -> float:
    """Mean of a sum of independent indicators that is below `number` with probability at most e^-40."""
    mean = number + 1.0
    while mean - number - number * math.log(mean / number) < 40:  # Chernoff's bound
        mean *= 1.05
    return mean


def _successes(probability: float, length: int, generator: np.random.Generator) -> Integers:
    """Places of the successes among so many independent trials."""
    expected = probability * length
    places = np.empty(0, dtype=np.int64)
    last = -1
    while last < length:
        skips = generator.geometric(probability, int(expected + 6 * math.sqrt(expected)) + 16)
        # A skip beyond the end is as good as any other, and does not overflow when added up.
        more = last + np.cumsum(np.minimum(skips, length + 1))
        places = np.concatenate([places, more])
        last = int(places[-1])
    return places[places < length]


def _events(
    mechanism: SparseVector,
    values: Integers,
    levels: Integers,
    *,
    passes: int,
    generator: np.random.Generator,
    lag: float,
) -> Events:
    """Events of a group of trials whose noisy thresholds rise from levels[0] to levels[-1]."""
    trials = len(levels)
    distinct, counts = np.unique(values, return_counts=True)
    kind = np.searchsorted(distinct, values)
    columns: list[tuple[Integers, Integers, Integers, Integers]] = []
    last, places = passes - 1, 1.0
    if len(mechanism.branches) == 1 and lag >= 1:
        # The run is over long before the passes in which far more items than it can pay have reached the bar.
        expected = _reached(mechanism, 0, distinct - levels[-1], passes) @ counts
        wanted = ample(mechanism.cutoff)
        last = min(last, int(np.searchsorted(expected, wanted)))
        if last == 0:
            places = min(1.0, wanted / expected[0])
    for number in range(len(mechanism.branches)):
        most = _reached(mechanism, number, distinct - levels[0], last + 1)[-1][kind]
        uniforms = uniforms_below(most * places, trials, generator)
        reached = _reached(mechanism, number, values[uniforms.item] - levels[uniforms.trial], last + 1)
        attempt = (uniforms.uniform / places > reached).sum(axis=0)
        soon = attempt <= last
        columns.append(
            (
                uniforms.trial[soon],
                uniforms.item[soon],
                attempt[soon],
                np.full(int(soon.sum()), number, dtype=np.int64),
            )
        )
    trial, item, attempt, branch = (np.concatenate(column) for column in zip(*columns, strict=True))
    pairs, pair = np.unique(trial * len(values) + item, return_inverse=True)
    time = generator.random(len(pairs))[pair] + lag * attempt
    order = np.lexsort((branch, time, trial))
    return Events(
        trial=trial[order],
        item=item[order],
        attempt=attempt[order],
        branch=branch[order],
        pair=pair[order],
    )


def _reached(mechanism: SparseVector, number: int, margins: Integers, passes: int) -> Floats:
    """Probability that a branch reached its bar by each attempt, shape (passes, margins).

    A margin is a value less its noisy threshold.
    """
    branch = mechanism.branches[number]
    stays = np.zeros(len(margins))
    result = np.empty((passes, len(margins)))
    for attempt in range(passes):
        with np.errstate(divide="ignore"):
            stays += np.log1p(
                -tails(mechanism.query_noise, branch.rate, branch.correction(attempt) - margins)
            )
        result[attempt] = -np.expm1(stays)
    return result


def _gaps(
    mechanism: SparseVector,
    values: Integers,
    levels: Integers,
    reports: tuple[Integers, ...],
    generator: np.random.Generator,
) -> Integers:
    """Gaps given that the noise reached the bar."""
    trial, item, attempt, branch = reports
    gap = np.empty(len(trial), dtype=np.int64)
    share = 1.0 - generator.random(len(trial))  # in (0, 1]
    for number, one in enumerate(mechanism.branches):
        mine = branch == number
        table = np.array(one.corrections, dtype=np.int64)
        bar = table[np.minimum(attempt[mine], len(table) - 1)] + levels[trial[mine]] - values[item[mine]]
        reach = quantiles(
            mechanism.query_noise, one.rate, share[mine] * tails(mechanism.query_noise, one.rate, bar)
        )
        gap[mine] = np.maximum(reach - bar, 0)  # rounding of the tail may cost the last step
    return gap
