"""Accuracy on a synthetic workload against independently simulated figures (Zipf counts, 10000/rank).

Keys and permutations are fixed, so the outcome is always the same; the tolerances are about four standard
errors.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms import (
    Annealed,
    KeyedSampler,
    Noise,
    SparseVector,
    Uncorrected,
    adaptive,
    draw_threshold,
    sparse_vector,
)

ITEMS = 10_000
COUNTS = 10_000 // np.arange(1, ITEMS + 1)
HALF_EPSILON = 5 * 10**8


def secrets(label):
    """Entropy of one trial, always the same."""
    state = hashlib.sha256(label.encode()).digest()

    def entropy(size):
        nonlocal state
        state = hashlib.sha256(state).digest()
        return state[:size]

    return entropy


def tops_of_passes(mechanism: SparseVector, threshold: int, passes: int, trial: int) -> list[tuple[int, int]]:
    """Test all items in random order, then the bottoms again, pass after pass.

    Returns the item of each top, and the units left after it.
    """
    entropy = secrets(f"{trial}")
    keyed = KeyedSampler(entropy(32))
    salt = (trial, 5)
    run = mechanism.open(draw_threshold(mechanism.threshold_noise, mechanism.threshold_rate, entropy), salt)
    order = np.random.default_rng(trial).permutation(ITEMS)
    found: list[tuple[int, int]] = []
    for attempt in range(passes):
        values = COUNTS[order]

        def noise(number, order=order, attempt=attempt, values=values):
            return keyed.draw(
                mechanism.query_noise,
                mechanism.branches[number].rate,
                salt=salt,
                offset=order,
                row=0,
                attempt=attempt,
                branch=number,
                value=values,
            )

        run, outcomes = mechanism.step(run, values, threshold, attempt, noise)
        rows = [top.row for top in outcomes.tops]
        found += zip(order[rows].tolist(), [top.left for top in outcomes.tops], strict=True)
        if mechanism.is_over(run):
            break
        order = np.delete(order, rows)
    return found


@pytest.mark.parametrize(("threshold_noise", "end"), [(Noise.LAPLACE, -2), (Noise.EXPONENTIAL, -5)])
def test_the_annealed_sweep_ranks_as_well_as_simulated(threshold_noise, end):
    """Top 50 at epsilon 0.5: normalised cumulative rank 0.615."""
    correction = Annealed(end=Fraction(end))
    mechanism = sparse_vector(
        epsilon=HALF_EPSILON,
        cutoff=50,
        monotonic=True,
        correction=correction,
        threshold_noise=threshold_noise,
    )
    scores = []
    for trial in range(60):
        found = tops_of_passes(mechanism, int(COUNTS[49]), correction.passes, trial)
        scores.append(sum(max(0, 50 - item) for item, _ in found) / (50 * 51 / 2))
    assert np.mean(scores) == pytest.approx(0.615, abs=0.03)


def test_adaptive_reports_half_as_many_answers_more_than_its_cutoff():
    """Cutoff 8 at epsilon 0.7, thresholds among the counts of rank 16 to 64, Laplace noise: 12.30 answers.

    The figure is for the published stop, when the middle branch cannot be paid; the top branch goes on here.
    """
    mechanism = adaptive(
        epsilon=7 * 10**8,
        cutoff=8,
        monotonic=True,
        correction=Uncorrected(),
        query_noise=Noise.LAPLACE,
        threshold_noise=Noise.LAPLACE,
    )
    middle = mechanism.branches[1].charge
    chance = np.random.default_rng(8)
    published, ours = [], []
    for trial in range(300):
        found = tops_of_passes(mechanism, int(COUNTS[chance.integers(16, 64)]), 1, trial)
        left_before = [mechanism.epsilon - mechanism.threshold_charge, *(left for _, left in found)][:-1]
        published.append(sum(left >= middle for left in left_before))
        ours.append(len(found))
    assert np.mean(published) == pytest.approx(12.30, abs=0.4)
    assert np.mean(ours) > np.mean(published)
