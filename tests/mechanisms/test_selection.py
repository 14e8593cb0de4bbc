"""Noisy top-k and the hybrids: what they report, and what it costs; their proofs run in `tests/exact`."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms.contract import Noises, Top
from stream_svt.mechanisms.grid import GAP_LIMIT, NOISE_LIMIT, VALUE_LIMIT
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.numbers import loss_of
from stream_svt.mechanisms.selection.hybrids import HybridEstimates, HybridIdentity
from stream_svt.mechanisms.selection.top_k import LastGap, TopK

UNITS = 1_234_567_890
EPSILON = loss_of(UNITS)
SALT = (0, 0)


def integers(*numbers):
    return np.array(numbers, dtype=np.int64)


def quiet(answers):
    """No noise at all."""
    return Noises(0, np.zeros((1, answers), dtype=np.int64))


def released(mechanism, values, drawn):
    """Make the step of a new run with all noise given."""
    run = mechanism.open(drawn.threshold, SALT)
    return mechanism.step(run, np.asarray(values), lambda branch: drawn.queries[branch])


@pytest.mark.parametrize("last_gap", LastGap)
def test_a_hundred_thousand_answers_are_ranked_as_a_plain_sort_ranks_them(last_gap):
    chance = np.random.default_rng(5)
    values, noise = chance.integers(0, 3000, 100_000), chance.geometric(0.01, 100_000) - 1
    top = TopK(epsilon=EPSILON, k=40, monotonic=True, last_gap=last_gap)
    _, selection = released(top, values, Noises(0, noise[np.newaxis]))
    noisy = values + noise
    order = sorted(range(len(values)), key=lambda i: (-noisy[i], i))
    assert [one.row for one in selection.tops] == order[:40]
    gaps = [int(noisy[order[i]] - noisy[order[i + 1]]) for i in range(40)]
    if last_gap is LastGap.LEXICOGRAPHIC:
        gaps[-1] -= order[40] < order[39]
    assert [one.gap for one in selection.tops] == [*gaps[:-1], None if last_gap is LastGap.NONE else gaps[-1]]


@pytest.mark.parametrize(("monotonic", "half"), [(True, 1), (False, Fraction(1, 2))])
def test_identity_is_charged_for_what_it_released(monotonic, half):
    hybrid = HybridIdentity(epsilon=EPSILON, k=4, threshold=10, monotonic=monotonic)
    for answers in range(5):
        values = np.where(np.arange(6) < answers, 20, 0)
        run, selection = released(hybrid, values, quiet(6))
        assert len(selection.tops) == answers
        exact = UNITS if answers == 4 else Fraction(UNITS, 4) * (answers + half)
        assert selection.charge_units == math.ceil(exact) == UNITS - run.left_units
        assert hybrid.is_over(run)
    with_gap = replace(hybrid, threshold_gap=True)
    _, selection = released(with_gap, [30, 20, 7, 1, 0, 0], quiet(6))
    assert [one.gap for one in selection.tops] == [10, 10]
    assert (selection.threshold_gap, selection.charge_units) == (3, math.ceil(Fraction(3 * UNITS, 4)))
    _, selection = released(with_gap, [30], quiet(1))
    assert selection.threshold_gap is None  # nothing comes after the threshold


def test_estimates_goes_on_under_its_threshold_until_it_has_listed_all_it_can_pay():
    hybrid = HybridEstimates(epsilon=EPSILON, k=2, threshold=10, monotonic=True)
    run, first = hybrid.step(hybrid.open(0, SALT), integers(12, 3), lambda branch: integers(0, 0))
    assert (len(first.tops), hybrid.is_over(run)) == (1, False)
    run, second = hybrid.step(run, integers(13, 14, 15), lambda branch: integers(0, 0, 0))
    assert second.tops == (Top(row=2, gap=5),)
    assert hybrid.is_over(run)
    assert first.charge + second.charge + hybrid.threshold_charge == EPSILON


@pytest.mark.parametrize("noise", Noise)
def test_saturated_noise_neither_wraps_nor_leaves_the_gaps_of_the_grid(noise):
    values = integers(VALUE_LIMIT - 1, 0, 1 - VALUE_LIMIT)
    extreme = integers(NOISE_LIMIT, 0, -NOISE_LIMIT if noise is not Noise.EXPONENTIAL else 0)
    top = TopK(epsilon=EPSILON, k=2, monotonic=True, noise=noise)
    _, selection = released(top, values, Noises(0, extreme[np.newaxis]))
    assert [one.row for one in selection.tops] == [0, 1]
    assert selection.tops[0].gap == GAP_LIMIT
    assert 0 < selection.tops[1].gap <= GAP_LIMIT
