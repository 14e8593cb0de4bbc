"""Two interleaved runs, of alerts and of their ends: the exact loss of all outputs of a small instance.

Which run tests a window follows from what was released: the series is open after an alert, and not after an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product

import pytest

from stream_svt.mechanisms import Noise
from tests.exact.enumeration import Factor, Kind, X, exceeds, expectation

PAIRS = [*product((Noise.EXPONENTIAL, Noise.LAPLACE), repeat=2)]
CUTOFF, LARGEST_GAP = 2, 1
Windows = Sequence[tuple[int, int]]
"""For each window the value that an alert tests, and that of its end, each less its threshold."""
Found = dict[tuple[tuple[str, int], ...], tuple[Fraction, int]]
"""Probability and charge of each output: which run tested each window, and the gap of its top, -1 for none."""


def released(windows: Windows, noises: tuple[Noise, Noise], distance: int, broken: str = "") -> Found:
    """Return all outputs of a pair of runs with rates of one unit, and values that move by ``distance`` at most."""
    found: Found = {}
    price = distance - (broken == "pays for less")

    def go(number: int, outcome: tuple[tuple[str, int], ...], factors: dict[str, tuple[Factor, ...]]) -> None:
        if number == len(windows):
            tops = [name for name, gap in outcome if gap >= 0]
            paid = len(tops) - (tops.count("end") if broken == "ends are free" else 0)
            runs = [one for one in factors.values() if one]
            probability = Fraction(1)
            for one in runs:
                probability *= expectation(one, noises[0], 1)
            found[outcome] = probability, price * (len(runs) + paid)
            return
        is_open = sum(gap >= 0 for _, gap in outcome) % 2 == 1
        if broken == "a value decides":
            is_open = windows[number][0] < 0
        name = "end" if is_open else "alert"
        run = "alert" if broken == "one run for both" else name
        if sum(one == name and gap >= 0 for one, gap in outcome) == CUTOFF:  # this run is over
            go(number + 1, (*outcome, ("none", -1)), factors)
            return
        value = windows[number][is_open]
        for gap in range(-1, LARGEST_GAP + 2):
            kind = Kind.BELOW if gap < 0 else Kind.AT_LEAST if gap > LARGEST_GAP else Kind.EQUAL
            factor = Factor(kind, noises[1], 1, max(gap, 0) - value)
            go(number + 1, (*outcome, (name, gap)), factors | {run: (*factors[run], factor)})

    go(0, (), {"alert": (), "end": ()})
    return found


def neighbours(count: int, down: int, up: int) -> Iterator[tuple[Windows, Windows]]:
    """Yield windows and those with a unit more, in both orders: values rise by -down to up, and negative ones fall."""
    moves = (-down, up)
    for values in product((-1, 1), repeat=count):
        for alert, end in product(product(moves, repeat=count), product(moves, repeat=count)):
            first = [(value, -value) for value in values]
            second = [
                (value + one, -value - other) for value, one, other in zip(values, alert, end, strict=True)
            ]
            yield first, second
            yield second, first


def witness(down: int, up: int) -> tuple[Windows, Windows]:
    """Return windows, and those with a unit more, that cost most: bottoms rise, and tops fall."""
    rise, fall = (up, -up), (-down, down)  # of an alert's value, and of its end's
    moves = (rise[0], fall[0], 0, 0, fall[0], 0), (0, 0, fall[1], rise[1], 0, rise[1])
    return [(0, 0)] * len(moves[0]), [*zip(*moves, strict=True)]


def violations(
    noises: tuple[Noise, Noise],
    distance: int,
    pairs: Iterable[tuple[Windows, Windows]],
    broken: str = "",
) -> int:
    """Return how many outputs are likelier than their charge allows."""
    found, known = 0, dict[tuple[tuple[int, int], ...], Found]()
    for pair in pairs:
        first, second = map(tuple, pair)
        for windows in (first, second):
            if windows not in known:
                known[windows] = released(windows, noises, distance, broken)
        for outcome, (probability, charge) in known[first].items():
            found += exceeds(probability, known[second].get(outcome, (Fraction(0), 0))[0], charge)
    return found


@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
@pytest.mark.parametrize(("down", "up"), [(0, 1), (1, 1)])
def test_two_runs_lose_no_more_than_both_charges(noises, down, up):
    assert sum(one for one, _ in released([(1, -1), (0, 0), (-1, 1)], noises, down + up).values()) == 1
    assert violations(noises, down + up, neighbours(3, down, up)) == 0


def test_a_pair_of_runs_loses_all_that_it_charged_but_one_threshold():
    """A unit that moves one value up moves the other one down: of both thresholds one moves."""
    first, second = (released(one, (Noise.EXPONENTIAL, Noise.EXPONENTIAL), 1) for one in witness(0, 1))
    whole = [one for one in first if [name for name, gap in one if gap >= 0] == ["alert", "end"] * CUTOFF]
    assert max(first[one][0] * X ** first[one][1] / second[one][0] for one in whole) == X


@pytest.mark.parametrize(
    ("broken", "down"),
    [("one run for both", 0), ("ends are free", 0), ("pays for less", 1), ("a value decides", 0)],
)
def test_a_broken_rule_loses_more(broken, down):
    noises, pairs = (Noise.EXPONENTIAL, Noise.EXPONENTIAL), [witness(down, 1)]
    assert violations(noises, down + 1, pairs) == 0
    pairs = [*neighbours(2, down, 1)] if broken == "a value decides" else pairs
    assert violations(noises, down + 1, pairs, broken) > 0
