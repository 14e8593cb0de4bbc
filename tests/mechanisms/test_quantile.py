"""Quantiles without bounds: their candidates, charges, alignment and accuracy, and sums clipped at them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.numbers import loss_of
from stream_svt.mechanisms.selection.quantile import (
    Adjacency,
    ClippedSum,
    FullyUnboundedQuantile,
    UnboundedQuantile,
    multiple_quantiles,
)

ONE = Fraction(1)
SALT = (1, 2)
DOUBLING = Fraction(2)


def quantile(adjacency=Adjacency.SWAP, level=Fraction(3, 4), **options):
    return UnboundedQuantile(
        **{"epsilon": ONE, "level": level, "adjacency": adjacency, "base": DOUBLING} | options
    )


def reported_index(mechanism, data, *, tests=40, noise=0):
    """Return the index of the candidate that a run with constant query noise reports."""
    values = mechanism.answers(np.sort(data), 0, tests)
    _, outcomes = mechanism.step(mechanism.open(0, SALT), values, lambda _: np.full(tests, noise))
    return outcomes.tops[0].row


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("start", [0, 1000, -50])
def test_without_noise_the_candidate_is_the_first_with_enough_of_the_data_below(adjacency, start):
    data = start + np.random.default_rng(2).integers(0, 500, 41)
    mechanism = quantile(adjacency, start=start)
    candidate = mechanism.candidate(reported_index(mechanism, data))
    assert (data < candidate).sum() * 4 >= 3 * 41
    assert (data < start + (candidate - start + 1) / 2 - 1).sum() * 4 < 3 * 41
    assert mechanism.candidate(3) == start + 7  # b^k + l - 1, not b^k - l + 1


def test_charges_are_those_of_the_two_kinds_of_neighbours():
    swap = quantile()
    assert (swap.threshold_law.rate, swap.branch_laws[0].rate, swap.epsilon) == (
        Fraction(1, 2),
        Fraction(1, 2),
        ONE,
    )
    assert swap.rho == Fraction(9, 32)
    changed = quantile(Adjacency.ADD_REMOVE, Fraction(1, 4), split=Fraction(1, 4), epsilon=3 * ONE)
    assert (changed.e1_units, changed.e2_units) == (4 * 10**9, 10**9)  # max(4/4 + 1, 3/4 * 4) = 3
    assert (changed.threshold_law.rate, changed.branch_laws[0].rate) == (1, Fraction(1, 4))
    assert (changed.epsilon, changed.threshold_charge) == (3 * ONE, 3 * ONE)
    assert changed.rho == Fraction((2 + 3) ** 2, 8)
    other = quantile(Adjacency.ADD_REMOVE, split=Fraction(1), epsilon=7 * ONE)
    assert (other.e1_units, other.e2_units, other.threshold_charge) == (4 * 10**9, 4 * 10**9, 3)


@pytest.mark.parametrize(("records", "covered"), [(1, True), (2, False)])
def test_the_charge_of_swaps_covers_a_record_more_or_less_too_but_not_two_of_them(records, covered):
    """The rounded threshold moves by 0 or 1 for all tests, so answers minus threshold move one way by at most 1."""
    mechanism, chance, largest = (
        quantile(level=Fraction(2, 5), epsilon=840 * ONE),
        np.random.default_rng(6),
        0,
    )
    for _ in range(300):
        data = np.sort(chance.integers(0, 60, chance.integers(3, 9)))
        pair = [data, np.delete(data, chance.choice(len(data), records, replace=False))]
        first, second = (
            mechanism.answers(part, 0, 7) for part in chance.permutation(np.array(pair, dtype=object))
        )
        run, nu = mechanism.open(int(chance.integers(0, 9)), SALT), chance.integers(0, 9, 7)
        _, outcomes = mechanism.step(run, first, lambda _, nu=nu: nu)
        moved = mechanism.shifts(outcomes, first, second, Neighbours.MIXED)
        cost = (
            moved.threshold * mechanism.threshold_law.rate
            + int(moved.queries.sum()) * mechanism.branch_laws[0].rate
        )
        largest = max(largest, cost - mechanism.threshold_charge - outcomes.charge)
    assert (largest <= 0) is covered


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("centre", [300, -300, 0])
def test_two_runs_find_a_quantile_on_either_side_of_zero(adjacency, centre):
    data = centre + np.random.default_rng(4).integers(-40, 40, 999)
    both = FullyUnboundedQuantile(quantile=quantile(adjacency, Fraction(1, 4), base=Fraction(21, 20)))
    upper, lower = reported_index(both.upper, data, tests=200), reported_index(both.lower, -data, tests=200)
    assert abs(both.reported(upper, lower) - np.quantile(data, 0.25)) < 20
    assert both.upper.epsilon + both.lower.epsilon == ONE
    with pytest.raises(MisuseError, match="start at 0"):
        FullyUnboundedQuantile(quantile=quantile(adjacency, start=1))


def test_several_levels_share_epsilon():
    levels = tuple(Fraction(i, 10) for i in (1, 5, 9))
    runs = multiple_quantiles(quantile(Adjacency.ADD_REMOVE), levels)
    assert ONE - loss_of(3) <= sum(run.epsilon for run in runs) <= ONE
    data = np.arange(1000)
    assert [int(run.candidate(reported_index(run, data))) for run in runs] == [127, 511, 1023]
    with pytest.raises(MisuseError, match="rise strictly"):
        multiple_quantiles(quantile(), levels[::-1])


def test_a_clipped_sum_is_exact_and_priced():
    mechanism = ClippedSum(quantile=quantile(Adjacency.ADD_REMOVE), charge=ONE / 2)
    assert mechanism.epsilon == mechanism.quantile.epsilon + ONE / 2
    assert (mechanism.bound(0), mechanism.bound(7)) == (1, 127)
    assert mechanism.release(np.array([3, 500, 90, 2**61]), 127, -4) == 3 + 127 + 90 + 127 - 4
    with pytest.raises(MisuseError, match="wider than the grid"):
        ClippedSum(quantile=quantile(), charge="1e-9").law(2**40)


def test_more_records_than_the_grid_holds_are_refused_and_negative_records_are_not_clipped_sums():
    with pytest.raises(MisuseError, match="beyond the grid"):
        quantile(Adjacency.ADD_REMOVE, Fraction(1, 2**46), epsilon=2**13).answers(np.arange(2), 0, 1)
    with pytest.raises(MisuseError, match="at least 0"):
        ClippedSum(quantile=quantile(start=-3), charge=5)
