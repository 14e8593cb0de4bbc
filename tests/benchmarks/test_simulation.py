"""The vectorised simulation decides as `SparseVector.step` does and draws from the same law."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from benchmarks import simulation
from benchmarks.datasets import counts_of
from stream_svt.mechanisms import Annealed, Noise, SparseVector, Uncorrected, adaptive, ladder, sparse_vector
from stream_svt.mechanisms.noise import quantiles

VALUES = np.array([95, 60, 58, 41, 40, 40, 33, 30, 30, 30, 21, 12, 5, 5, 0, 0], dtype=np.int64)
THRESHOLD = 35
PASSES = 4
CORRECTION = Annealed(start=Fraction(2), end=Fraction(-1))
SETTING = {"epsilon": 1, "cutoff": 3, "monotonic": True}
MECHANISMS = {
    "annealed": sparse_vector(**SETTING, correction=CORRECTION),
    "laplace": sparse_vector(
        **SETTING, correction=CORRECTION, query_noise=Noise.LAPLACE, threshold_noise=Noise.LAPLACE
    ),
    "adaptive": adaptive(**SETTING, correction=Uncorrected(), query_noise=Noise.LAPLACE),
    "ladder": ladder(**SETTING, correction=Uncorrected(), margin_scales=2),
}


def dense_noise(mechanism: SparseVector, generator: np.random.Generator) -> np.ndarray:
    """Query noise of every pass, branch and item, shape (passes, branches, items)."""
    shape = (PASSES, len(VALUES))
    return np.stack(
        [
            quantiles(mechanism.query_noise, branch.rate, 1 - generator.random(shape))
            for branch in mechanism.branches
        ],
        axis=1,
    )


def step_by_step(mechanism: SparseVector, rho: int, order: np.ndarray, noise: np.ndarray):
    """Tops of one run as (item, attempt, branch, gap), and the units left; passes over items in that order."""
    run, waiting, tops = mechanism.open(threshold_noise=rho, salt=(0, 0)), order, []
    for attempt in range(PASSES):
        if mechanism.is_over(run):
            break
        drawn = noise[attempt][:, waiting]
        attempts = np.full(len(waiting), attempt)
        run, outcomes = mechanism.step(run, VALUES[waiting], THRESHOLD, attempts, lambda b, x=drawn: x[b])
        tops += [(int(waiting[top.row]), attempt, top.branch, top.gap) for top in outcomes.tops]
        waiting = np.delete(waiting, [top.row for top in outcomes.tops])
    return tops, run.left_units


def events_of(mechanism: SparseVector, rho: int, order: np.ndarray, noise: np.ndarray) -> simulation.Events:
    """First attempts at which each branch reaches its bar, by time, from the same noise."""
    place = np.argsort(order)
    found = []
    for branch, one in enumerate(mechanism.branches):
        bars = THRESHOLD + rho + np.array([one.correction(attempt) for attempt in range(PASSES)])
        reached = VALUES + noise[:, branch] >= bars[:, None]
        found += [
            (int(reached[:, item].argmax()), int(place[item]), branch, item)
            for item in np.flatnonzero(reached.any(axis=0)).tolist()
        ]
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 4)
    return simulation.Events(
        trial=np.zeros(len(found), dtype=np.int64),
        item=columns[:, 3],
        attempt=columns[:, 0],
        branch=columns[:, 2],
        pair=columns[:, 3],
    )


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_same_noise_gives_the_reports_of_step(name):
    mechanism, generator = MECHANISMS[name], np.random.default_rng(3)
    reports = 0
    for _ in range(150):
        noise, order = dense_noise(mechanism, generator), generator.permutation(len(VALUES))
        rho = int(generator.integers(-5, 15))
        events = events_of(mechanism, rho, order, noise)
        reported, left = simulation.decide(mechanism, events, 1)
        tops, stepped_left = step_by_step(mechanism, rho, order, noise)
        columns = (events.item, events.attempt, events.branch)
        assert list(zip(*(column[reported].tolist() for column in columns), strict=True)) == [
            top[:3] for top in tops
        ]
        assert left[0] == stepped_left
        reports += len(tops)
    assert reports > 300


@pytest.mark.parametrize("name", MECHANISMS)
def test_reports_follow_the_law_of_step(name):
    """Compare every item's frequency, and means of what is reported, within five standard errors."""
    mechanism, generator = MECHANISMS[name], np.random.default_rng(4)
    runs = 1200
    stepped: list[tuple[int, ...]] = []
    for trial in range(runs):
        noise, order = dense_noise(mechanism, generator), generator.permutation(len(VALUES))
        uniform = 1 - generator.random(1)
        rho = int(quantiles(mechanism.threshold_noise, mechanism.threshold_rate, uniform)[0])
        tops, left = step_by_step(mechanism, rho, order, noise)
        stepped += [(trial, *top, left) for top in tops]
    columns = np.array(stepped, dtype=np.int64).T
    trials = 40_000
    simulated = simulation.simulate(
        mechanism, VALUES, THRESHOLD, passes=PASSES, trials=trials, generator=generator
    )

    def statistics(trial, item, attempt, branch, gap, left, number):
        """Sums over each trial's reports; items after the seventh are rare and counted together."""
        small = np.minimum(gap, 40)
        quantities = [item == kind for kind in range(7)]
        quantities += [item >= 7, attempt, branch, small, small**2, left, small * attempt]
        return np.array([np.bincount(trial, quantity, minlength=number) for quantity in quantities])

    dense = statistics(*columns, runs)
    fast = statistics(
        simulated.trial,
        simulated.item,
        simulated.attempt,
        simulated.branch,
        simulated.gap,
        simulated.left[simulated.trial],
        trials,
    )
    error = np.sqrt(fast.var(axis=1) * (1 / runs + 1 / trials))
    assert (np.abs(dense.mean(axis=1) - fast.mean(axis=1)) <= 5 * error + 1e-12).all()


def test_fewer_than_wanted_is_impossible_in_practice_where_the_mean_is_ample():
    counts = np.random.default_rng(6).poisson(simulation.ample(8), 100_000)
    assert counts.min() >= 8
    assert simulation.ample(8) < 90


def test_retries_that_mix_with_fresh_queries_come_later_but_not_after_the_whole_set():
    """With a short lag a second attempt often precedes another item's first; with passes it never does."""
    mechanism = sparse_vector(**SETTING, correction=Uncorrected())
    values = np.full(400, THRESHOLD - 25, dtype=np.int64)
    setting = {"passes": 4, "trials": 400, "generator": np.random.default_rng(7)}
    passes = simulation.simulate(mechanism, values, THRESHOLD, **setting)
    mixed = simulation.simulate(mechanism, values, THRESHOLD, lag=0.01, **setting)
    same = passes.trial[1:] == passes.trial[:-1]
    assert (np.diff(passes.attempt)[same] >= 0).all()
    same = mixed.trial[1:] == mixed.trial[:-1]
    assert (np.diff(mixed.attempt)[same] < 0).any()


def test_the_item_counts_have_the_items_and_fiftieth_counts_their_readme_states():
    counts = {name: counts_of(name) for name in ("zipf", "retail", "t10i4d100k", "kosarak")}
    assert [len(one) for one in counts.values()] == [10_000, 16_470, 870, 17_034]
    assert [one[49] for one in counts.values()] == [200, 1_102, 3_134, 393]
    assert all((np.diff(one) <= 0).all() for one in counts.values())
