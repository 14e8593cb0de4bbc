"""A value has no effect except through tops: not a number counts as a low value, and clamping is never counted."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest

from stream_svt.columns.query_batch import Grid, QueryBatch
from stream_svt.errors import ConfigError
from stream_svt.mechanisms.grid import GUARD, VALUE_LIMIT, grid_floor
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, TOPIC, spec_of

_LOW = [0, -5, -(10**18), None, *map(Decimal, ("-0.5", "-1e300", "0.000001", "3.5")), 90, 119]


@pytest.mark.parametrize("form", FORMS)
def test_streams_with_the_same_outcomes_leave_the_same_commits(form):
    """The records that hold values or what waits differ; sizes, keys, events, views and counts do not."""
    plays = []
    for low in ([0], _LOW):
        play = Play(spec_of(FORMS[form]))
        values = [low[k % len(low)] if k % 4 < 3 else 10**7 for k in range(270)]
        queries = [
            Query(k % 3, value, f"s{k % 70}", f"set{k // 90}", k % 90 == 89, 40 * k)
            for k, value in enumerate(values)
        ]
        for last in (101, 207, 270):
            play.feed(TOPIC, queries, last)
            play.commit()
        plays.append(play)
    assert plays[0].barriers == plays[1].barriers
    for one, other in zip(plays[0].commits, plays[1].commits, strict=True):
        for name in ("progress", "events", "rejects", "views", "tested", "skipped"):
            assert getattr(one, name) == getattr(other, name), name
        sizes = ({key: len(data or b"") for key, data in commit.records.items()} for commit in (one, other))
        assert next(sizes) == next(sizes)
        for key in one.records:
            assert key.startswith((b"p/", b"w/")) or one.records[key] == other.records[key]


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
    assert values.tolist() == [
        min(max(math.floor(Fraction(n) / step + Fraction(1, GUARD)), low), high) for n in numbers
    ]


def test_thresholds_of_queries_are_rounded_up_to_the_grid_of_each_monitor():
    rng = random.Random(1)
    limits = [Fraction(rng.randrange(-(10**9), 10**9), 10 ** rng.randrange(12)) for _ in range(20)]
    limits += [Fraction(1), Fraction(1), Fraction(-(10**64)), Fraction(10**64), Fraction(1, 10**64)]
    rows = rng.sample(range(500), 300)
    batch = QueryBatch(TOPIC, 0, 500, threshold={row: rng.choice(limits) for row in rows})
    for step in (Fraction(1), Fraction(5, 2), Fraction("0.1"), Fraction(1, 10**18), Fraction(65537, 4)):
        found, steps = batch.thresholds(Grid(step, -7, 9))
        assert found.tolist() == sorted(rows)
        exact = [math.ceil(batch.threshold[row] / step - Fraction(1, GUARD)) for row in sorted(rows)]
        assert steps.tolist() == [min(max(one, 1 - VALUE_LIMIT), VALUE_LIMIT - 1) for one in exact]


def test_bounds_beyond_what_the_arrays_hold_are_refused():
    wide = FORMS["plain"].replace(
        "bounds: [0, 100000]", "granularity: 65536.5, bounds: [0, 2000000000000000000]"
    )
    assert wide != FORMS["plain"]
    with pytest.raises(ConfigError, match="too far from 0"):
        spec_of(wide)
