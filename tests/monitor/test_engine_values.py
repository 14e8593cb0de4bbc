"""A value leaves no trace but through tops: what is no number is a low value, and clamping is never counted."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.errors import ConfigError
from stream_svt.mechanisms.grid import grid_floor
from stream_svt.monitor.plan import Grid
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, TOPIC, counts, spec_of, transcript

_LOW = [0, -5, -(10**18), None, Decimal("-0.5"), Decimal("-1e300"), Decimal("0.000001")]


def _released(play: Play) -> list[tuple[object, ...]]:
    return [
        (c.progress, c.events, c.rejects, c.views, c.tested, c.skipped, sorted(c.records))
        for c in play.commits
    ]


@pytest.mark.parametrize("form", ["plain", "adaptive", "fine", "coarse", "sweep by clock", "retry"])
@pytest.mark.parametrize("low", _LOW, ids=repr)
def test_whatever_stands_for_a_low_value_leaves_the_same_commits(form, low):
    """The records that hold values or what waits differ; sizes, keys, events, views and counts do not."""
    plays = []
    for value in (0, low):
        play = Play(spec_of(FORMS[form]))
        queries = [
            Query(k % 3, value if k % 4 else 10**7, f"s{k}", f"set{k // 90}", k % 90 == 89, 40 * k)
            for k in range(270)
        ]
        for last in (100, 200, 270):
            play.feed(TOPIC, queries, last)
            play.commit()
        plays.append(play)
    assert _released(plays[0]) == _released(plays[1])
    assert [
        {key: data for key, data in c.records.items() if not key.startswith(b"p/")} for c in plays[0].commits
    ] == [
        {key: data for key, data in c.records.items() if not key.startswith(b"p/")} for c in plays[1].commits
    ]
    assert [{k: len(v or b"") for k, v in c.records.items()} for c in plays[0].commits] == [
        {k: len(v or b"") for k, v in c.records.items()} for c in plays[1].commits
    ]
    assert plays[0].barriers == plays[1].barriers


@pytest.mark.parametrize("form", ["plain", "adaptive", "sweep", "retry", "fine", "laplace"])
def test_neighbouring_streams_with_the_same_outcomes_leave_the_same_commits(form):
    """Values far below the bar, moved by one: no test fires, and nothing released tells the streams apart."""
    plays = []
    for shift in (0, 1):
        play = Play(spec_of(FORMS[form]))
        queries = [
            Query(k % 3, 100 + 3 * (k % 7) + shift, f"s{k % 20}", f"set{k // 90}", k % 90 == 89)
            for k in range(270)
        ]
        for last in (150, 270):
            play.feed(TOPIC, queries, last)
            play.commit()
        plays.append(play)
    assert not any("ALERT" in line[0] for lines in transcript(plays[0]).values() for line in lines)
    assert _released(plays[0]) == _released(plays[1])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_counts_follow_from_public_facts_and_released_tops(form):
    """With outcomes fixed (all bottoms), no value changes what is counted."""
    totals = set()
    for values in ([0, 1, 2], [None, Decimal("3.5"), 90], [-7, 5, 10]):
        play = Play(spec_of(FORMS[form]))
        play.play(TOPIC, [Query(k % 3, values[k % len(values)], f"s{k % 9}", "set") for k in range(200)])
        totals.add(str(counts(play)))
    assert len(totals) == 1


@pytest.mark.parametrize(
    "granularity",
    ["1", "1/4", "5/2", "0.1", "1e-9", "65537/4", "100000", "1e-18", "3e-18", "0.12345", "1e15"],
)
def test_values_are_floored_to_the_grid_exactly_and_clamped(granularity):
    step = Fraction(granularity)
    low, high = (-7, 9) if step < Fraction(1, 2**40) else (grid_floor(-1000, step), grid_floor(10**6, step))
    if step > 10**6:
        low, high = -1999, 2100
    grid = Grid(step, low, high)
    numbers = [0, 1, -1, 7, -999, 1000, -1001, 999_999, 10**6, 10**6 + 1, 2**61, -(2**61), 3, 2**40 + 1]
    numbers += [Decimal(n) / 7 for n in range(-20, 20)] + [Decimal(n).scaleb(-18) for n in range(-20, 20)]
    values = grid.values(batch_of(TOPIC, [Query(0, n) for n in numbers], 0, len(numbers)), 0, len(numbers))
    assert values.tolist() == [min(max(grid_floor(Fraction(n), step), low), high) for n in numbers]


def test_bounds_beyond_what_the_arrays_hold_are_refused():
    wide = FORMS["plain"].replace(
        "bounds: [0, 100000]", "granularity: 65536.5, bounds: [0, 2000000000000000000]"
    )
    assert wide != FORMS["plain"]
    with pytest.raises(ConfigError, match="too far from 0"):
        spec_of(wide)


def test_part_of_a_batch_has_the_values_of_the_whole():
    numbers = [3, None, Decimal("2.75"), 9, Decimal(-4), 5]
    batch = batch_of(TOPIC, [Query(0, n) for n in numbers], 0, 6)
    grid = Grid(Fraction(1, 2), 0, 100)
    whole = grid.values(batch, 0, 6)
    assert whole.tolist() == [6, 0, 5, 18, 0, 10]
    for first in range(6):
        for last in range(first, 6):
            assert np.array_equal(grid.values(batch, first, last), whole[first:last])
    assert batch.whole.tolist() == [3, -(2**62), 2, 9, -4, 5], (
        "the batch itself must not change: monitors share it"
    )
