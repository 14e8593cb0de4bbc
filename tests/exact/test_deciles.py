"""The exact loss of nine deciles, each with its own noise, and what neighbours may do to them."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream_svt.columns.query_batch import DECILES
from stream_svt.mechanisms import Law, Noise
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.monitor.deciles import law_of
from stream_svt.sources.deciles import ValueCounts
from tests.exact.enumeration import Factor, Kind, X, expectation

UNIT = Law(Noise.LAPLACE, UNITS_PER_EPSILON)
WIDE = 40


def chance(noise: int) -> Fraction:
    """Return the probability of a value of two-sided geometric noise whose rate is one unit."""
    return expectation((Factor(Kind.EQUAL, Noise.LAPLACE, 1, noise),), None, 1)


@pytest.mark.parametrize(("down", "up"), [(0, 1), (0, 3), (2, 3), (4, 1), (5, 5)])
def test_nine_moved_deciles_cost_the_charge_at_most_and_reach_it(down, up):
    """The probabilities are rational in x = e^-rate; a ratio of x^-n is a loss of n rates."""
    most = max(down, up)
    charge = DECILES * most  # rates
    ratios = {}
    for move in range(-down, up + 1):
        pairs = [(chance(noise), chance(noise - move)) for noise in range(-WIDE, WIDE + 1)]
        ratios[move] = max(max(one / other, other / one) for one, other in pairs)
        assert ratios[move] == X ** -abs(move)
    # The deciles move each in its own way: the worst is the product, for their noises are independent.
    worst = max(ratios.values()) ** DECILES
    assert worst == X**-charge
    law = law_of(UNITS_PER_EPSILON, most)
    assert (law.noise, law.rate * charge) == (Noise.LAPLACE, 1)


def with_unit(rng: np.random.Generator, counts: np.ndarray, most: int) -> np.ndarray:
    """Return counts with a part of a unit's events: 0 to ``most`` more anywhere."""
    share = rng.choice([0.02, 0.5, 1.0])
    return counts + rng.integers(0, most + 1, len(counts)) * (rng.random(len(counts)) < share)


def deciles(counts: np.ndarray) -> list[int]:
    values = ValueCounts()
    for part in np.array_split(counts, 3):
        values.add(part)
    return [*values.deciles()]


def of_those_above_zero(counts: np.ndarray) -> list[int]:
    return deciles(counts[counts > 0]) if (counts > 0).any() else [0] * DECILES


def of_different_ones(counts: np.ndarray) -> list[int]:
    return deciles(np.unique(counts))


def moves(of, most: int) -> set[int]:
    rng, seen = np.random.default_rng(3), set[int]()
    for size, high in product((1, 9, 10, 57, 400), (2, 9, 100)):
        for _ in range(20):
            counts = rng.integers(0, high, size) * (rng.random(size) < 0.6)
            pairs = zip(of(counts), of(with_unit(rng, counts, most)), strict=True)
            seen |= {after - before for before, after in pairs}
    return seen


@pytest.mark.parametrize("most", [1, 3])
def test_one_unit_moves_a_decile_by_no_more_than_a_count(most):
    assert moves(deciles, most) == {*range(most + 1)}


@pytest.mark.parametrize("broken", [of_those_above_zero, of_different_ones])
def test_deciles_of_values_that_values_choose_move_further(broken):
    assert not moves(broken, 1) <= {0, 1}
