"""The shipped baskets, and the demo's neighbour relation executed: one line's basket emptied, the lines stay."""

from __future__ import annotations

import json
import random
from importlib import resources
from itertools import pairwise

import numpy as np
import pytest

from stream_svt.demo.queries import (
    ACKNOWLEDGEMENT,
    DIGITS,
    FILE,
    LAST_ITEM,
    LINES,
    Baskets,
    WeekClock,
    records_of,
    running_counts,
)

EMPTIED = [0, 299, 300, 14_699, 14_700, 88_161, *random.Random(7).sample(range(88_162), 6)]


def emptied(baskets: Baskets, line: int) -> Baskets:
    """Return the neighbour: the basket of one line emptied, all lines still there."""
    low, high = int(baskets.start[line]), int(baskets.start[line + 1])
    start = baskets.start.copy()
    start[line + 1 :] -= high - low
    return Baskets(start, np.delete(baskets.items, slice(low, high)))


def test_the_shipped_copy_has_every_line_and_item_of_the_source(baskets):
    assert len(baskets.start) - 1 == LINES == 88_162
    assert len(baskets.items) == 908_576
    assert np.array_equal(np.unique(baskets.items), np.arange(1, LAST_ITEM + 1))
    counts = np.bincount(baskets.items)
    assert (counts[40], counts[49]) == (50_675, 42_135)
    place = resources.files("stream_svt.demo").joinpath("data", FILE)
    with place.open("rb") as stored, np.load(stored) as packed:
        assert str(packed["source"]) == ACKNOWLEDGEMENT
    assert "39" not in repr(baskets)


def test_a_basket_holds_an_item_once_so_that_it_changes_a_count_by_at_most_one(baskets):
    line = np.repeat(np.arange(LINES), np.diff(baskets.start))
    assert (np.diff(line * (LAST_ITEM + 1) + baskets.items) > 0).all()


@pytest.mark.parametrize("line", EMPTIED)
def test_emptying_one_basket_lowers_answers_of_its_week_alone_by_at_most_one(baskets, clock, stream, line):
    neighbour = running_counts(emptied(baskets, line), clock)
    changed_weeks, changed = set(), 0
    for (point, counts), (other, lower) in zip(stream, neighbour, strict=True):
        assert point == other
        difference = counts - lower
        assert difference.min() >= 0
        assert difference.max() <= 1
        if difference.any():
            changed_weeks.add(point.dataset)
            changed += 1
            assert point.end > line
    assert changed_weeks == {clock.week_of(line)}
    assert changed >= 1


@pytest.mark.parametrize("line", EMPTIED[::4])
def test_what_is_public_of_the_records_does_not_depend_on_a_basket(baskets, clock, stream, line):
    for (point, counts), (_, lower) in zip(
        stream, running_counts(emptied(baskets, line), clock), strict=True
    ):
        if np.array_equal(counts, lower):
            continue
        with_it, without = records_of(point, counts), records_of(point, lower)
        assert [len(record) for record in with_it] == [len(record) for record in without]
        for one, other in zip(with_it[:200], without[:200], strict=True):
            assert json.loads(one) | {"value": 0} == json.loads(other) | {"value": 0}
        break
    else:
        pytest.fail("emptying the basket changed no record")


def test_records_are_the_same_in_number_order_and_length_whatever_the_counts(clock):
    point = next(clock.checkpoints())
    low = records_of(point, np.zeros(LAST_ITEM, dtype=np.int64))
    high = records_of(point, np.full(LAST_ITEM, clock.week_lines, dtype=np.int64))
    assert list(map(len, low)) == list(map(len, high))
    assert json.loads(low[38]) == {
        "id": "line-00300/39",
        "series": "item-39",
        "set": "line-00300",
        "value": 0,
    }
    assert json.loads(high[38])["value"] == clock.week_lines
    assert json.loads(low[-1]) == {"set": "line-00300", "closed": True}


def test_counts_grow_within_a_week_and_begin_anew_with_the_next(stream):
    for (point, counts), (later, more) in pairwise(stream):
        if point.dataset == later.dataset:
            assert (more >= counts).all()
        else:
            assert more.max() <= later.end - later.first


def test_the_clock_cuts_weeks_by_line_number_and_covers_every_line_once(clock):
    points = list(clock.checkpoints())
    assert [point.first for point in points][1:] == [point.end for point in points][:-1]
    assert (points[0].first, points[-1].end) == (0, clock.lines)
    assert list(dict.fromkeys(point.dataset for point in points)) == clock.weeks()
    assert len({point.set_id for point in points}) == len(points)
    assert len(points) * LAST_ITEM > 1_000_000


def test_a_week_too_long_for_the_padding_is_refused(baskets):
    with pytest.raises(ValueError, match="week_lines"):
        next(running_counts(baskets, WeekClock(week_lines=10**DIGITS)))
