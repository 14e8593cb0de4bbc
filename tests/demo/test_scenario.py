"""The shipped baskets, and the demo's neighbour relation executed: the events of one basket left out."""

from __future__ import annotations

import json
import random
from collections import Counter
from importlib import resources

import numpy as np
import pytest

from stream_svt.demo.scenario import (
    ACKNOWLEDGEMENT,
    ASKED,
    FILE,
    LAST_ITEM,
    LIMITS,
    LINES,
    WINDOW_LINES,
    WINDOW_MS,
    Baskets,
    counts_of,
    events_of,
    windows,
)

BEGIN_MS = 1_795_694_400_000

EMPTIED = [0, 299, 300, 14_699, 14_700, 88_161, *random.Random(7).sample(range(88_162), 6)]


def emptied(baskets: Baskets, line: int) -> Baskets:
    """Return the baskets with that of one line emptied, which has no events."""
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
    path = resources.files("stream_svt.demo").joinpath("data", FILE)
    with path.open("rb") as stored, np.load(stored) as packed:
        assert str(packed["source"]) == ACKNOWLEDGEMENT
    assert "39" not in repr(baskets)


def test_a_basket_holds_an_item_once_so_that_it_changes_a_count_by_at_most_one(baskets):
    line = np.repeat(np.arange(LINES), np.diff(baskets.start))
    assert (np.diff(line * (LAST_ITEM + 1) + baskets.items) > 0).all()


# Raw events


@pytest.fixture(scope="module")
def played(baskets: Baskets) -> list:
    """Every window with its counts."""
    return played_by(baskets)


def played_by(baskets: Baskets) -> list:
    return [(window, counts_of(baskets, window)) for window in windows(BEGIN_MS)]


def test_the_clock_cuts_weeks_by_line_number_and_covers_every_line_once():
    found = list(windows(BEGIN_MS))
    assert [window.first for window in found][1:] == [window.end for window in found][:-1]
    assert (found[0].first, found[-1].end) == (0, LINES)
    assert list(dict.fromkeys(window.dataset for window in found)) == list(LIMITS)
    assert len({window.set_id for window in found}) == len(found)
    assert len(found) * ASKED > 1_000_000


def test_windows_count_the_different_baskets_of_each_item_that_their_events_have(baskets, played):
    assert sum(counts.sum() for _, counts in played) == len(baskets.items)
    assert len(played) == 18
    for number in (0, 4, 17):
        point, counts = played[number]
        begin = BEGIN_MS + number * WINDOW_MS
        events = [json.loads(event) for event in events_of(baskets, point.first, point.end, BEGIN_MS)]
        assert {begin <= event["ts"] < begin + WINDOW_MS for event in events} == {True}
        assert {f"retail-week-{event['week']}" for event in events} == {point.dataset}
        seen = Counter(item for _, item in {(event["basket"], event["item"]) for event in events})
        assert seen == {f"item-{item}": count for item, count in enumerate(counts.tolist(), 1) if count}
    assert [point.set_id for point, _ in played[:2]] == [
        "2026-11-26T12:00:00Z/units",
        "2026-11-26T12:00:03Z/units",
    ]


@pytest.mark.parametrize("line", EMPTIED)
def test_without_the_events_of_one_basket_all_others_stay_and_counts_of_one_window_fall_by_one_at_most(
    baskets, played, line
):
    other = emptied(baskets, line)
    first = max(line - 5, 0)
    before, after = (events_of(each, first, min(line + 5, LINES), BEGIN_MS) for each in (baskets, other))
    assert after == [event for event in before if json.loads(event)["basket"] != line]
    changed = []
    for (point, counts), (same, lower) in zip(played, played_by(other), strict=True):
        assert point == same
        difference = counts - lower
        assert 0 <= difference.min() <= difference.max() <= 1
        changed += [point.first] if difference.any() else []
    assert changed == [line // WINDOW_LINES * WINDOW_LINES]
