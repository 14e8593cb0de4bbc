"""A multiple of the granularity is its step, however it was computed; `test_one_value` has each format of numbers."""

from __future__ import annotations

import functools
import math
import operator
import random
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from stream_svt.columns.query_batch import Grid, QueryBatch
from stream_svt.mechanisms.grid import GUARD, VALUE_LIMIT, grid_ceil, grid_floor
from stream_svt.mechanisms.numbers import grid_steps
from tests.support.formats import DOUBLES, Format

DECIMAL = ["0.1", "0.01", "0.05", "0.001", "0.3", "0.125", "1", "2.5", "7", "12.6", "4096.4"]
"""Granularities of monitors."""
ALL = [*DECIMAL, "1/3", "1/7", "100/3"]
"""Granularities of the library."""


def numbers_of_steps(most: int = 2**38, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    far = [rng.randrange(-most, most) for _ in range(300)]
    return [*range(-300, 300), *far]


def steps_of(batch: QueryBatch, granularity: str | Fraction) -> list[int]:
    grid = Grid(Fraction(granularity), 1 - VALUE_LIMIT, VALUE_LIMIT - 1)
    return grid.values(batch, 0, len(batch)).tolist()


@cache
def summed(granularity: Fraction) -> tuple[list[int], list[float]]:
    """Return steps, and each as the sum of up to 300 multiples of the granularity in random order."""
    rng, steps, totals = random.Random(7), [], []
    for _ in range(200):
        pieces = [rng.randrange(-3, 40) for _ in range(rng.randrange(1, 300))]
        addends = [float(piece * granularity) for piece in pieces]
        rng.shuffle(addends)
        steps.append(sum(pieces))
        totals.append(functools.reduce(operator.add, addends, 0.0))
    return steps, totals


@pytest.mark.parametrize("granularity", DECIMAL)
@pytest.mark.parametrize("form", DOUBLES.values(), ids=DOUBLES)
def test_doubles_are_on_their_step_however_they_were_computed(form: Format, granularity: str):
    step = Fraction(granularity)
    for few in (False, True):  # a few JSON messages are decoded one by one
        steps = numbers_of_steps()[290:310] if few else numbers_of_steps()
        computed = {
            "product": (steps, [one * float(step) for one in steps]),
            "quotient": (steps, [one / float(1 / step) for one in steps]),
            "nearest": (steps, [float(one * step) for one in steps]),
            "sum": tuple(part[: len(steps)] for part in summed(step)),
        }
        for how, (expected, values) in computed.items():
            assert steps_of(form.batch(values), step) == expected, how


def test_a_sum_of_a_million_equal_doubles_is_on_its_step():
    for granularity, addend in (("0.1", 0.7), ("0.05", -0.05), ("0.05", 0.95), ("0.01", 0.07)):
        total = float(np.cumsum(np.full(10**6, addend))[-1])  # one after another
        expected = round(Fraction(str(addend)) * 10**6 / Fraction(granularity))
        for form in DOUBLES.values():
            assert steps_of(form.batch([total]), granularity) == [expected]


class Series:
    """What is an array to numpy, as a series of pandas is."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.array(self.values)


ARRAYS = {
    "list": list,
    "array": np.array,
    "series": Series,
    "decimals": lambda values: [Decimal(str(one)) for one in values],
    "every digit": lambda values: [Decimal(one) for one in values],
    "texts": lambda values: [repr(one) for one in values],
    "objects": lambda values: np.array(values, dtype=object),
    "fractions": lambda values: [Fraction(one) for one in values],
}


@pytest.mark.parametrize("granularity", ALL)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_the_library_are_on_their_step(kind: str, granularity: str):
    step = Fraction(granularity)
    steps = numbers_of_steps()
    for expected, values in (
        (steps, [one * float(step) for one in steps]),
        (steps, [float(one * step) for one in steps]),
        summed(step),
    ):
        for up in (False, True):
            assert grid_steps(ARRAYS[kind](values), step, "values", up=up).tolist() == expected


@pytest.mark.parametrize("granularity", ALL)
def test_numpy_floats_of_32_bits_are_on_their_step(granularity: str):
    step = Fraction(granularity)
    steps = [one for one in numbers_of_steps(2**13) if abs(one) < 2**13]
    values = np.array([float(one * step) for one in steps], np.float32)
    assert grid_steps(values, step, "values").tolist() == steps
    assert grid_steps([*values], step, "values").tolist() == steps


@pytest.mark.parametrize("granularity", ALL)
def test_the_rule_is_increasing_and_moves_by_one_with_each_granularity(granularity: str):
    step, rng = Fraction(granularity), random.Random(3)
    for _ in range(300):
        value = step * rng.randrange(-(10**12), 10**12) / rng.choice((1, 7, 1024, 10**6))
        distance = step * rng.randrange(0, 10**6) / rng.choice((1, 3, 10**3))
        one, other = grid_floor(value, step), grid_floor(value + distance, step)
        assert 0 <= other - one <= math.ceil(distance / step)
        assert grid_floor(value + step, step) == one + 1
        assert grid_ceil(value, step) - one == (one * step < value - step / GUARD)
        guarded = one * step
        for form, lowered in ((grid_floor, guarded - step / GUARD), (grid_ceil, guarded + step / GUARD)):
            assert form(lowered, step) == one
        assert grid_floor(guarded - step / GUARD - Fraction(1, 10**30), step) == one - 1
        assert grid_ceil(guarded + step / GUARD + Fraction(1, 10**30), step) == one + 1


@pytest.mark.parametrize("granularity", ["0.1", "0.01", "0.05", "0.3"])
@pytest.mark.parametrize("form", DOUBLES.values(), ids=DOUBLES)
def test_neighbours_one_step_apart_move_by_one(form: Format, granularity: str):
    step, rng = Fraction(granularity), random.Random(11)
    lower = [rng.randrange(0, 10**6) for _ in range(2000)]
    first = steps_of(form.batch([one * float(step) for one in lower]), step)
    second = steps_of(form.batch([(one + 1) * float(step) for one in lower]), step)
    assert {b - a for a, b in zip(first, second, strict=True)} == {1}


def test_a_share_summed_in_floats_moves_by_its_sensitivity():
    """Errors above 5 % of the requests: the sum of 0.95 and -0.05 in any order, 19 steps of 0.05 up, 1 down."""
    rng = random.Random(2)
    for _ in range(10):
        requests = [rng.random() < 0.05 for _ in range(rng.randrange(100, 3000))]
        steps = []
        for errors in (requests, [*requests, True], [*requests, False]):
            addends = [0.95 if one else -0.05 for one in errors]
            rng.shuffle(addends)
            total = functools.reduce(operator.add, addends, 0.0)  # `sum` compensates
            steps.append([steps_of(form.batch([total]), "0.05")[0] for form in DOUBLES.values()])
        plain, error, request = map(set, steps)
        (one,) = plain
        assert (error, request) == ({one + 19}, {one - 1})
