"""What would become of events: as a counter would decide, and what is probably wrong where none counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream_svt.protocol.records import OneRecord, Records
from stream_svt.sources.events import Fate
from stream_svt.sources.sampling import remedies, sampled
from tests.support.avro import AtHand, encode, record
from tests.support.events import TIME, source

HOUR = 3_600_000
EVENT = {"user": "ann", "page": "/", "status": 200, "ms": 12, "ts": TIME}


def records(*events: dict[str, Any] | bytes | None, timestamp: int = TIME) -> Records:
    values = [json.dumps(one).encode() if isinstance(one, dict) else one for one in events]
    return Records.of(OneRecord(offset, timestamp, None, value) for offset, value in enumerate(values))


def test_each_event_has_one_fate():
    spec = source(
        where={"status": [200, 500]}, dataset={"pattern": "{name}-{date}", "field": "shop", "names": ["a"]}
    )
    good = EVENT | {"shop": "a"}
    events = records(
        *[good] * 3, None, b"x", good | {"status": 404}, good | {"user": None}, good | {"ts": "x"},
        good | {"ts": TIME - 2 * HOUR}, good | {"ts": TIME + 2 * HOUR}, good | {"page": "/x"}, good | {"shop": "b"},
    )  # fmt: skip
    wanted = [Fate.EMPTY, Fate.UNREADABLE, Fate.FILTERED, Fate.NO_UNIT, Fate.NO_TIME, Fate.LATE, Fate.EARLY]
    wanted += [Fate.OTHER_SERIES, Fate.OTHER_DATASET]
    assert sampled(spec, events, TIME).fates == {Fate.COUNTED: 3} | dict.fromkeys(wanted, 1)
    assert sampled(spec, records(), TIME).fates == {}


def test_an_event_is_late_or_early_by_its_own_append():
    spec = source(lateness="1m", ahead="10m")
    window = TIME // HOUR * HOUR
    for appended, fate in (
        (window + HOUR + 59_999, Fate.COUNTED), (window + HOUR + 60_000, Fate.LATE),
        (window - 600_000, Fate.COUNTED), (window - 600_001, Fate.EARLY),
    ):  # fmt: skip
        assert sampled(spec, records(EVENT, timestamp=appended), TIME + 5 * HOUR).fates == {fate: 1}
    # A producer's timestamp says nothing later than the moment of the look.
    assert sampled(spec, records(EVENT, timestamp=TIME + 9 * HOUR), TIME).fates == {Fate.COUNTED: 1}


def test_many_events_are_sampled_in_steps():
    assert sampled(source(), records(*[EVENT] * 9000, b"x"), TIME).fates == {
        Fate.COUNTED: 9000,
        Fate.UNREADABLE: 1,
    }


@pytest.mark.parametrize(
    ("scale", "value", "right"),
    [
        ("ms", TIME // 1000, "s"), ("ms", TIME / 1000, "s"), ("ms", TIME * 1000, "us"), ("s", TIME, "ms"),
        ("us", TIME, "ms"), ("ms", "2025-11-29T08:00:00Z", "iso"), ("iso", TIME, "ms"), ("iso", TIME / 1000, "s"),
    ],
)  # fmt: skip
def test_times_in_another_unit_are_told(scale: str, value: float | str, right: str):
    spec = source(time={"field": "ts", "in": scale})
    [said] = remedies(spec, records(*[EVENT | {"ts": value}] * 5), TIME)
    assert said.startswith("'ts' seems to be in ")
    assert said.endswith(f"with time.in {right}, 5 of 5 events would count")


def test_times_that_nothing_makes_right_are_not_guessed():
    assert [*remedies(source(), records(EVENT | {"ts": 5}, EVENT | {"ts": None}), TIME)] == []
    assert [*remedies(source(), records(EVENT, EVENT, EVENT | {"ts": TIME // 1000}), TIME)] == []


def test_a_field_that_no_event_has_is_named_with_the_one_that_is_meant():
    events = records(*[{"usr": "ann", "pages": {"name": "/"}, "a.b": 1, "ts": TIME}] * 3, b"x", b"[1]", None)
    spec = source(
        unit="user", series={"field": "pages.nam", "names": ["/"]}, measures=None, where={r"a\.c": 1}
    )
    assert [*remedies(spec, events, TIME)] == [
        "no event of the sample has a field 'user'; did you mean 'usr'?",
        "no event of the sample has a field 'pages.nam'; did you mean 'pages.name'?",
        r"no event of the sample has a field 'a\.c'; did you mean 'a\.b'?",
    ]
    late = records(*[EVENT] * 200, EVENT | {"kind": 1})
    assert [*remedies(source(where={"kind": 1}), late, TIME)] == []
    by_key = source(unit="key", time=None, series=None, measures=None)
    assert [*remedies(by_key, events, TIME)] == []
    assert [*remedies(source(), records(b"x", None), TIME)] == []


def test_a_misspelt_field_of_a_measure_is_named_though_every_event_counts():
    measures = [{"name": "visitors"}, {"name": "errors", "where": {"staus": [500]}}]
    spec, events = source(measures=measures, where={"ms": {"below": 50}}), records(*[EVENT] * 3)
    assert sampled(spec, events, TIME).fates == {Fate.COUNTED: 3}
    assert [*remedies(spec, events, TIME)] == [
        "no event of the sample has a field 'staus'; did you mean 'status'?"
    ]


def test_the_events_that_count_are_counted_for_each_measure():
    slow, failed = EVENT | {"ms": 2000}, EVENT | {"status": 500}
    late = failed | {"ts": TIME - 2 * HOUR}
    events = records(*[EVENT] * 9000, *[slow] * 3, *[late] * 4, b"x")
    assert sampled(source(), events, TIME).matches == {
        "visitors": 9003,
        "errors": 0,
        "slow": 3,
        "middle": 9003,
    }
    assert sampled(source(), records(failed, late), TIME).matches["errors"] == 1
    assert not sampled(source(), records(), TIME).matches


def test_avro_events_are_sampled_and_fields_that_their_schema_lacks_are_named():
    inner = record("Inner", user=["null", "string"])
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    schema = record(
        "Event", payload=["null", inner], before="Inner", pages="string", ts="long", node=["null", node]
    )
    content = {
        "payload": {"user": "ann"},
        "before": {"user": None},
        "pages": "/",
        "ts": TIME // 1000,
        "node": None,
    }
    schemas = AtHand({1: schema, 2: "", 3: "{"})
    values = [
        *[encode(schema, content)] * 4,
        encode(schema, content, 2),
        encode(schema, content, 3),
        b"x",
        None,
    ]
    events = records(*values)
    spec = source(format="avro", unit="payload.usr", series=None, where={"before.user": ["x"]}, measures=None)
    [field] = remedies(spec, events, TIME, schemas)
    assert field == "no event of the sample has a field 'payload.usr'; did you mean 'payload.user'?"
    right = source(
        format="avro", unit="payload.user", series={"field": "pages", "names": ["/"]}, measures=None
    )
    assert sampled(right, events, TIME, schemas).fates == {
        Fate.LATE: 4, Fate.UNUSABLE_SCHEMA: 2, Fate.UNREADABLE: 1, Fate.EMPTY: 1,
    }  # fmt: skip
    [unit] = remedies(right, events, TIME, schemas)
    assert unit == "'ts' seems to be in seconds: with time.in s, 4 of 8 events would count"
