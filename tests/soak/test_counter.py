"""The judge of counters, on raw records written by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from stream_svt.sources.log import Began, Look, Standing, encode
from tests.soak.counter import RULES, VISIT, History, difference, expected
from tests.support import avro
from tests.support.counting import Answer

BEGIN = 1_790_000_000_000


def history(*looks: tuple[int, int], floor: int = 0) -> History:
    """Return the history of a source that begins now; looks are a moment and the end of partition 0."""
    found = History()
    ends = {0: floor}
    found.take(encode(Began(Standing("id", BEGIN, BEGIN, BEGIN, ends, ends, ends))))
    for moment, end in looks:
        found.take(encode(Look(BEGIN + moment, {0: end}, {}, 0, by_broker=False)))
    return found


def event(appended: int, **fields: Any) -> Any:
    content = {"user": "u", "page": "a", "store": "n", "ms": 900, "at": BEGIN + appended} | fields
    return SimpleNamespace(timestamp=BEGIN + appended, value=json.dumps(content).encode())


def visit(at: int, offset: int, user: str) -> Any:
    value = avro.encode(VISIT, {"user": user, "page": "b"})
    return SimpleNamespace(partition=0, offset=offset, timestamp=BEGIN + at, value=value)


def values(answers: list[Answer], measure: str, series: str | None) -> list[int]:
    return [one.value for one in answers if (one.measure, one.series) == (measure, series)]


def test_each_unit_is_counted_once_and_its_events_up_to_three_times():
    raw = [*[event(10)] * 5, event(20, user="v"), event(1999, user="w"), event(30, page="x")]
    raw.append(SimpleNamespace(value=b"no json"))
    found = expected(RULES["web"], history(), raw, BEGIN + 3000)["shop"]
    assert values(found, "users", "a") == [2, 1]
    assert values(found, "events", "a") == [4, 1]
    assert values(found, "users", "b") == [0, 0]
    assert [(one.measure, one.series) for one in found[:6]] == [
        (m, s) for m in ("users", "events") for s in "abc"
    ]


@pytest.mark.parametrize(
    ("appended", "counts"),
    [(0, [1, 1, 1, 1, 1, 1]), (2999, [0, 0, 1, 1, 1, 1]), (5999, [0] * 5 + [1]), (6000, [0] * 6)],
)
def test_an_event_counts_from_the_tick_after_its_append_until_its_window_closes(appended, counts):
    late = event(appended, at=BEGIN + 1)
    found = expected(RULES["pulse"], history(), [late, event(0, ms=499)], BEGIN + 6000)
    first = [one for one in found["store-n"] if one.window == found["store-n"][0].window]
    assert values(first, "slow", None) == counts
    assert {one.value for one in found["store-s"]} == {0}


def test_an_event_too_far_ahead_counts_nothing():
    for ahead, count in (2000, 1), (2001, 0):
        found = expected(RULES["pulse"], history(), [event(4000 - ahead, at=BEGIN + 4000)], BEGIN + 5000)
        assert sum(one.value for one in found["store-n"]) == count


def test_without_brokers_timestamps_the_first_tick_decides_whose_look_covers_a_record():
    # The look at 5 s is also that of the ticks at 3 s and 4 s.
    looks = history((1000, 2), (2000, 3), (5000, 5), (6000, 6), floor=1)
    raw = [visit(0, number, f"u{number}") for number in range(7)]
    assert values(expected(RULES["app"], looks, raw, BEGIN + 5000)["app"], "users", "b") == [4, 0]


def test_a_difference_is_found_wherever_it_is():
    wanted = expected(RULES["web"], history(), [event(10)], BEGIN + 3000)["shop"]
    assert difference(wanted, wanted) is None
    for found in (
        wanted[:-1],
        wanted[1:],
        [*wanted, wanted[-1]],
        [wanted[1], wanted[0], *wanted[2:]],
        [*wanted[:2], wanted[2]._replace(value=1), *wanted[3:]],
    ):
        assert difference(found, wanted)
