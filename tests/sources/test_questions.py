"""Questions: their values against a slow reading of the rules, and how far one unit moves them."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import floor

import msgspec
import numpy as np
import pytest

from stream_svt.settings.questions import Question, Visits
from stream_svt.sources.questions import Asked, ClosedCounts

HOUR = 3_600_000
WINDOWS = 16
"""More than a question of `random_question` reads."""
ALL, PART = "all", "errors"
Counts = Mapping[tuple[int, str], int]
"""Counts of one series, by window and measure."""


def question(**keys: object) -> Question:
    return msgspec.structs.replace(Question("m", "m", ALL, 1), **keys)


def random_question(rng: random.Random) -> Question:
    most = rng.choice((1, 1, 2, 3))
    return question(
        at_most=most,
        thresholds=rng.choice(((), (rng.randrange(4),))),
        share=rng.choice((None, (PART, 1, 4), (PART, 2, 3))),
        usual=rng.choice((None, (2, 1, 1, 1), (3, 2, 3, 2), (2, 2, 1, 4))),
        mean=rng.choice((1, 1, 2, 3)),
        over=rng.choice(((1, 1), (1, 1), (1, 2), (2, 3))),
        excess=rng.choice(((0, 1), (0, 1), (1, 2), (2, 3))),
        holds=rng.choice(((1, 1), (1, 1), (2, 2), (3, 2))),
        ends=rng.random() < 0.3,
    )


def reading(asked: Question, counts: Counts, window: int, period: int = 0) -> Fraction | None:
    """Return the value about a window by the rules, in counts; windows before ``period`` are of another dataset."""
    steps = asked.parts

    def down(value: Fraction) -> Fraction:
        return Fraction(floor(value * steps), steps)

    def share(at: int) -> Fraction | None:
        if (at, ALL) not in counts:
            return None
        taken = asked.thresholds[0] if asked.thresholds else 0
        if asked.share is None:
            return Fraction(counts[at, ALL] - taken)
        measure, part, whole = asked.share
        return counts[at, measure] - taken - Fraction(part, whole) * counts[at, ALL]

    def compared(at: int) -> Fraction | None:
        value = share(at)
        if asked.usual is None or value is None:
            return value
        every, times, factor, per = asked.usual
        earlier = [share(at - every * number) for number in range(1, times + 1)]
        if None in earlier:
            return None
        coarse = asked.share[2] if asked.share else 1
        mean = Fraction(floor(sum(earlier) / times * coarse), coarse)
        return value - Fraction(factor, per) * mean

    def last(of: Callable[[int], Fraction | None], at: int, count: int) -> list[Fraction] | None:
        found = [of(one) if one >= period else None for one in range(at, at - count, -1)]
        return None if None in found else found

    def mean(of: Callable[[int], Fraction | None], count: int) -> Callable[[int], Fraction | None]:
        if count == 1:
            return of
        return lambda at: down(sum(found) / count) if (found := last(of, at, count)) else None

    averaged = mean(compared, asked.mean)

    def burning(at: int) -> Fraction | None:
        short, long = (mean(averaged, count)(at) for count in asked.over)
        return None if short is None or long is None else (max if asked.ends else min)(short, long)

    def excess(at: int) -> Fraction | None:
        usual, most = asked.excess
        if most == 1:
            return burning(at)
        first = period + asked.mean + max(asked.over) - 2  # the first window that has a value in its period
        found = last(burning, at, min(most, at - first + 1)) if at >= first else None
        if found is None:
            return None
        return max(sum(found[:n]) - n * Fraction(usual, steps) for n in range(1, len(found) + 1))

    found = last(excess, window, asked.holds[0])
    value = None if found is None else sorted(found)[asked.holds[0] - asked.holds[1]]
    return -value if asked.ends and value is not None else value


def value_of(asked: Question, counts: Counts, window: int, period: int = 0) -> Fraction | None:
    closed = ClosedCounts(measures=(ALL, PART))
    for (at, measure), count in counts.items():
        name = "new" if at >= period else "old"
        closed.add(at * HOUR, name, measure, ("/",), np.array([count]))
    names = lambda at: ("new" if at >= period * HOUR else "old",)  # noqa: E731
    found = Asked(asked, closed, names, ("/",), HOUR).about(window * HOUR)
    return Fraction(int(found.steps[0, 0]), asked.parts) if found.known[0, 0] else None


def others(rng: random.Random, windows: int) -> dict[tuple[int, str], int]:
    counts = {}
    for at in range(windows):
        counts[at, ALL] = rng.randrange(12)
        counts[at, PART] = rng.randrange(counts[at, ALL] + 1)
    return counts


def test_values_are_those_of_a_slow_reading():
    rng, known = random.Random(1), 0
    for _ in range(3000):
        asked = random_question(rng)
        counts = others(rng, 14)
        if rng.random() < 0.3:
            at = rng.randrange(14)
            del counts[at, ALL], counts[at, PART]
        period = rng.choice((0, 0, 3, 7))
        window = rng.randrange(max(6, period), 14)
        expected = reading(asked, counts, window, period)
        assert value_of(asked, counts, window, period) == expected, asked
        known += expected is not None
    assert known > 1000


def moved(asked: Question, rng: random.Random) -> Fraction:
    """Return by how much a random set of one unit's events moves a value, compared with a random part of it."""
    base, most = others(rng, WINDOWS), asked.at_most
    more, fewer = dict(base), dict(base)
    extreme = rng.random() < 0.7
    for at in range(WINDOWS):
        events = rng.choice((0, most, 2 * most)) if extreme else rng.randrange(2 * most)
        errors = rng.choice((0, min(most, events))) if extreme else rng.randrange(events + 1)
        kept_errors = rng.choice((0, errors)) if extreme else rng.randrange(errors + 1)
        rest = events - errors
        kept = kept_errors + (rng.choice((0, rest)) if extreme else rng.randrange(rest + 1))
        for counts, all_events, of_errors in ((more, events, errors), (fewer, kept, kept_errors)):
            counts[at, ALL] += min(all_events, most)
            counts[at, PART] += min(of_errors, most)
    return value_of(asked, more, WINDOWS - 1) - value_of(asked, fewer, WINDOWS - 1)


def test_one_unit_moves_a_value_by_no_more_than_it_says():
    rng = random.Random(2)
    for _ in range(6000):
        asked = random_question(rng)
        down, up = (Fraction(one, asked.parts) for one in asked.moves)
        assert -down <= moved(asked, rng) <= up, asked


EACH = [
    question(),
    question(at_most=3),
    question(thresholds=(2,)),
    question(share=(PART, 1, 4)),
    question(share=(PART, 2, 3), at_most=2),
    question(usual=(2, 1, 1, 1)),
    question(usual=(3, 2, 3, 2)),
    question(mean=3),
    question(over=(1, 3)),
    question(excess=(1, 3)),
    question(share=(PART, 1, 4), excess=(0, 2)),
    question(holds=(3, 2)),
    question(share=(PART, 1, 2), usual=(2, 1, 1, 2), holds=(2, 2)),
    question(at_most=2, holds=(3, 3)).ending(),
    question(share=(PART, 1, 4), over=(1, 2)).ending(),
]


@pytest.mark.parametrize("asked", EACH, ids=lambda one: str(EACH.index(one)))
def test_some_unit_moves_a_value_as_far_as_it_says(asked: Question):
    """A smaller interval, such as (1 - r) k of a share, would be false."""
    rng, least, largest = random.Random(3), Fraction(0), Fraction(0)
    bounds = [Fraction(one, asked.parts) for one in asked.moves]
    for _ in range(20_000):
        by = moved(asked, rng)
        least, largest = min(least, by), max(largest, by)
        if [-least, largest] == bounds:
            return
    pytest.fail(f"moved by {least} to {largest} only, of -{bounds[0]} to {bounds[1]}")


@pytest.mark.parametrize("asked", [(1, 3, 3), (1, 3, 5), (2, 4, 3), (2, 3, 6), (1, 2, 4)], ids=str)
def test_visits_move_sums_by_as_much_as_they_say_and_no_more(asked: tuple[int, int, int]):
    """All sets of windows in which a unit comes, and all their subsets."""
    at_most, among, windows = asked
    rule = question(excess=(0, windows), visits=Visits(ALL, at_most, among))
    length = windows + among

    def sums(comes: int) -> list[int]:
        counts: list[int] = []
        for window in range(length):
            before = counts[max(window - among + 1, 0) :]
            counts.append(int(bool(comes >> window & 1) and sum(before) < at_most))
        return [sum(counts[length - number :]) for number in range(1, windows + 1)]

    found = [sums(comes) for comes in range(1 << length)]
    moved = set[int]()
    for more in range(1 << length):
        fewer = more
        while True:  # all subsets
            moved |= {one - other for one, other in zip(found[more], found[fewer], strict=True)}
            if not fewer:
                break
            fewer = (fewer - 1) & more
    down, up = rule.moves
    assert max(moved) == up
    assert -down <= min(moved) < 0
    if windows <= among:
        assert min(moved) == -down


def test_a_series_is_asked_where_every_window_has_it():
    closed = ClosedCounts(measures=(ALL, PART))
    closed.add(0, "d", ALL, ("/a", "/b"), np.array([5, 7]))
    closed.add(HOUR, "d", ALL, ("/b", "/c"), np.array([8, 9]))
    found = Asked(question(mean=2), closed, lambda _: ("d",), ("/b", "/c"), HOUR).about(HOUR)
    assert found.known.tolist() == [[True, False]]
    assert found.steps[0, 0] == 7
    closed.forget_before(HOUR)
    assert not Asked(question(mean=2), closed, lambda _: ("d",), ("/b",), HOUR).about(HOUR).known.any()


def test_counts_in_several_records_are_one_list():
    closed = ClosedCounts(measures=(ALL, PART))
    closed.add(0, "d", ALL, ("/a",), np.array([5]))
    closed.add(0, "d", ALL, ("/b",), np.array([7]))
    assert closed.of(0, ("d",), ALL, ("/a", "/b")).steps.tolist() == [[5, 7]]


def test_long_questions_take_memory_for_the_windows_that_they_read_once():
    asked, series = question(mean=200, over=(1, 200), excess=(0, 50)), tuple(map(str, range(500)))
    closed = ClosedCounts(0, (ALL,))
    for at in range(448):
        closed.add(at * HOUR, "d", ALL, series, np.full(500, 3))
    about = Asked(asked, closed, lambda _: ("d",), series, HOUR)
    tracemalloc.start()
    found = about.about(447 * HOUR)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.known.all()
    assert found.steps[0].tolist() == [150] * 500
    assert most < 3 * 448 * 500 * 9
