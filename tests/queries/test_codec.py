"""Query records to batches: what is refused, what leaves no trace, and that both ways of decoding agree."""

from __future__ import annotations

import time
from fractions import Fraction

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns.query_batch import Grid, QueryBatch
from stream_svt.mechanisms.grid import PARTS
from stream_svt.queries import json_queries
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.queries.reasons import Reason
from stream_svt.settings.application import load_spec
from tests.support.engine_play import numbers
from tests.support.query_records import (
    ARROW,
    AT_HOME,
    AT_HOME_NAMES,
    ELSEWHERE,
    HOMES,
    NAMES,
    NO_NUMBER,
    OWN,
    TOO_LARGE,
    UNDECLARED,
    Record,
    arrow,
    columnar_batch,
    contents,
    decoder,
    fragments,
    one_by_one,
)


def decode(*values: bytes | None, key: bytes | None = AT_HOME) -> QueryBatch:
    return decoder().decode([Record(100 + i, key, value) for i, value in enumerate(values)])


def reason_of(value: bytes | None, key: bytes | None = AT_HOME) -> str:
    batch = decode(value, key=key)
    assert len(batch) == 0
    assert batch.rejects[0][0] == 100
    return batch.rejects[0][1]


def test_integers_arrive_with_their_place_time_and_series_and_unknown_fields_are_ignored():
    batch = decode(
        b'{"id":"a","value":7,"series":"milk","trace":{"x":[1,2,"}"]}}',
        b'{"id":"b","value":-3,"time":"2026-01-01T00:00:00Z"}',
    )
    found = contents(batch)
    assert (found["first"], found["end"], found["offset"], found["row"]) == (100, 102, [100, 101], [0, 0])
    assert (found["timestamp_ms"], found["dataset"]) == ([1_700_000_000_000] * 2, [0, 0])
    assert (found["id"], found["value"], found["series"]) == (["a", "b"], [7, -3], ["milk", None])
    assert not any(found[name] for name in ("set_id", "threshold", "monitor", "markers", "rejects"))


@pytest.mark.parametrize("value", NO_NUMBER, ids=lambda v: repr(v[:20]))
def test_what_is_no_number_is_accepted_without_a_trace(value):
    batch = decode(b'{"id":"q1","series":"s","value":%b,"time":1}' % value)
    assert batch.rejects == []
    assert numbers(batch) == [None]
    assert (batch.series[0], batch.query_id[0]) == ("s", "q1")


@pytest.mark.parametrize("value", TOO_LARGE, ids=lambda v: repr(v[:20]))
def test_a_number_that_overflows_goes_to_the_bound_on_its_side(value):
    grid = Grid(Fraction(1, 100), -500, 700)
    for text, bound in ((value, 700), (b"-" + value, -500)):
        batch = decode(b'{"id":"q1","value":%b}' % text)
        assert batch.rejects == []
        assert grid.values(batch, 0, 1).tolist() == [bound]


@pytest.mark.parametrize(
    "message",
    [b'{"value":NaN,"id":"x"}', b'{"id":"x","value":NaN}', b'{"id":"x","v\\u0061lue": NaN }', b'{"id":"x"}'],
)
def test_a_bad_value_is_accepted_wherever_it_stands_and_none_too(message):
    batch = decode(message)
    assert (numbers(batch), batch.rejects) == ([None], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0.1", Fraction("0.1")),
        (b"5.0", 5),
        (b"12e2", 1200),
        (b"%d" % (2**62 + 1), 2**62),
        (b"%d" % -(2**62 + 1), None),  # at the lower bound of every grid
        (b"%d" % 2**70, 2**62),
        (b"4." + b"9" * 5000, 5 - Fraction(1, PARTS)),
        (b"5." + b"0" * 5000 + b"1", 5),
        (b"1e-999999999", 0),
        (b"-1e-999999999999999999999", -1 + Fraction(PARTS - 1, PARTS)),
        (b"0e999999999999", 0),
        (b"0." + b"0" * 900_000 + b"1", 0),
        (b"-0." + b"0" * 900_000 + b"1", -1 + Fraction(PARTS - 1, PARTS)),
        (b"0" * 1 + b"." + b"0" * 900_000, 0),
        (b"7" * 900_000, 2**62),
        (b"1e" + b"9" * 900_000, 2**62),
        (b"1e-" + b"9" * 900_000, 0),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_numbers_are_exact_as_far_as_a_grid_goes_and_extreme_ones_cost_no_time(text, expected):
    start = time.perf_counter()
    batch = decode(b'{"id":"a","value":%b}' % text)
    assert time.perf_counter() - start < 5
    assert batch.rejects == []
    assert numbers(batch) == [expected]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, Reason.EMPTY),
        (b"", Reason.EMPTY),
        (b" ", Reason.NOT_JSON),
        (b"hello", Reason.NOT_JSON),
        (b'{"id":"a","value":1', Reason.NOT_JSON),
        (b'{"id":"a","value":1}{}', Reason.NOT_JSON),
        (b'{"id":"a","value":"1}', Reason.NOT_JSON),
        (b'{"id":"a","value":[1,', Reason.NOT_JSON),
        (b'{"id":"a","extra":NaN,"value":1}', Reason.NOT_JSON),
        (b'{"id":"\xff","value":1}', Reason.INVALID_UTF8),
        (b"\xff\xfe", Reason.NOT_JSON),
        (b"[1]", Reason.NOT_AN_OBJECT),
        (b"7", Reason.NOT_AN_OBJECT),
        (b'"text"', Reason.NOT_AN_OBJECT),
        (b"null", Reason.NOT_AN_OBJECT),
        (b"{}", Reason.MISSING_ID),
        (b'{"value":1}', Reason.MISSING_ID),
        (b'{"id":null,"value":1}', Reason.MISSING_ID),
        (b'{"id":"","value":1}', Reason.BAD_ID),
        (b'{"id":5,"value":1}', Reason.BAD_ID),
        (b'{"id":"%b","value":1}' % (b"x" * 257), Reason.BAD_ID),
        (b'{"id":5,"value":NaN}', Reason.BAD_ID),
        (b'{"id":"a","series":7}', Reason.BAD_SERIES),
        (b'{"id":"a","series":""}', Reason.BAD_SERIES),
        (b'{"id":"a","set":{}}', Reason.BAD_SET),
        (b'{"id":"a","closed":1}', Reason.BAD_SET),
        (b'{"closed":true}', Reason.BAD_SET),
        (b'{"id":"a","threshold":"high"}', Reason.BAD_THRESHOLD),
        (b'{"id":"a","threshold":"500"}', Reason.BAD_THRESHOLD),
        (b'{"id":"a","threshold":1e999}', Reason.BAD_THRESHOLD),
        (b'{"id":"a","threshold":1e-999999999}', Reason.BAD_THRESHOLD),
        (b'{"id":"a","threshold":%b}' % (b"1" * 65), Reason.BAD_THRESHOLD),
        (b'{"id":"a","monitor":"lukewarm"}', Reason.UNKNOWN_MONITOR),
        (b'{"id":"a","monitor":3}', Reason.UNKNOWN_MONITOR),
        (b'{"id":"a","time":[]}', Reason.BAD_TIME),
        (b'{"id":"a","value":"%b"}' % (b"x" * 2_000_000), Reason.TOO_LARGE),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_a_malformed_message_is_refused_for_its_reason(message, reason):
    assert reason_of(message) == reason
    good = [b'{"id":"g","value":1}'] * 3
    batch = decode(*good, message, *good)
    assert batch.rejects == [(103, reason.value)]
    assert batch.offset.tolist() == [100, 101, 102, 104, 105, 106]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, Reason.NO_KEY),
        (UNDECLARED, Reason.UNDECLARED),
        (b"\xff", Reason.MISROUTED),
        (ELSEWHERE, Reason.MISROUTED),
    ],
)
def test_a_record_not_at_home_is_refused_before_its_content_is_judged(key, reason):
    assert reason_of(b'{"id":"a","value":1}', key) == reason
    assert reason_of(b"garbage", key) == reason
    assert reason_of(None, key) == reason


def test_gaps_between_offsets_are_kept():
    batch = decoder().decode([Record(5, AT_HOME, b'{"id":"a"}'), Record(9, AT_HOME, b'{"id":"b"}')])
    assert (batch.first, batch.end, batch.offset.tolist()) == (5, 10, [5, 9])


@pytest.mark.parametrize(
    "values",
    [
        (b'{"id":"a"}{"id":"b"}', b" "),
        (b'{"id":"a"} {"id":"b"}', b""),
        (b'{"id":"a",', b'"value":1}{"id":"b"}'),
        (b'{"id":"a","x":"', b'"}'),
        (b'{"id":"a"}\n{"id":"b"}', b'{"id":"c"}'),
        (b'{"id":"a","x":{', b'}}{"id":"b"}'),
        (b'{"id":"a","x":{}', b'{"id":"b"}}', b'{"id":"c"}{"id":"d"}{"id":"e"}'),
        (b'{"id":"a","x":"}', b'{"}', b'{"id":"c"}{"id":"d"}'),
    ],
)
def test_no_message_reaches_into_another(values):
    records = [Record(i, AT_HOME, value) for i, value in enumerate(values)]
    assert contents(decoder().decode(records)) == contents(one_by_one(records))


messages = st.one_of(
    st.none(),
    st.binary(max_size=30),
    st.lists(fragments, max_size=12).map(b"".join),
    st.fixed_dictionaries(
        {"id": st.sampled_from(["a", "b}\n{"])},
        optional={
            "value": st.one_of(
                st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.none(), st.text()
            ),
            "series": st.one_of(st.sampled_from(["s", "t"]), st.none()),
            "set": st.sampled_from(["L1", "L2"]),
            "closed": st.booleans(),
            "threshold": st.one_of(st.integers(-5, 5), st.text(max_size=2)),
            "monitor": st.sampled_from(["hot", "cold", "none"]),
            "time": st.one_of(st.text(max_size=2), st.integers(0, 9)),
        },
    ).map(msgspec.json.encode),
    st.sampled_from(NO_NUMBER).map(lambda value: b'{"id":"n","value":%b}' % value),
)
keys = st.sampled_from([AT_HOME] * 8 + [None, b"?", ELSEWHERE])


@settings(max_examples=300)
@given(st.lists(st.tuples(messages, keys), min_size=1, max_size=8))
def test_both_ways_of_decoding_agree_on_any_bytes(pairs):
    records = [Record(i, key, value) for i, (value, key) in enumerate(pairs)]
    together = decoder().decode(records)
    assert contents(together) == contents(one_by_one(records))
    assert len(together) + len(together.rejects) == len(records)
    assert {reason for _, reason in together.rejects} <= {reason.value for reason in Reason}


@pytest.mark.parametrize("content", [b"application/json", b"application/json; charset=utf-8", b""])
def test_json_may_say_so(content):
    record = Record(1, AT_HOME, b'{"id":"a","value":1}', headers=(("trace", b"x"), ("content-type", content)))
    assert decoder().decode([record]).whole.tolist() == [1]


def test_other_content_is_refused_between_accepted_records():
    good = Record(1, AT_HOME, b'{"id":"a","value":1}')
    other = Record(2, AT_HOME, b"\x00", headers=(("content-type", b"application/avro"),))
    stray = Record(3, None, b"\x00", headers=(("content-type", b"application/avro"),))
    last = Record(4, AT_HOME, b'{"id":"b","value":2}')
    batch = decoder().decode([good, other, stray, last])
    assert batch.rejects == [(2, "unsupported-content-type"), (3, "no-key")]
    assert (batch.offset.tolist(), batch.first, batch.end) == ([1, 4], 1, 5)


QUERIES: list[dict[str, object]] = [
    {"id": "a", "value": 1, "series": "x", "set": "L1", "monitor": "hot", "closed": False},
    {"id": "b", "value": 2, "threshold": 2.5, "closed": False},
    {"set": "L1", "closed": True},
    {"id": "c", "value": 3, "series": "y", "closed": False, "threshold": None},
]
"""With each option, and a marker, which closes its set and is no query."""


def test_options_reach_their_rows_in_messages_and_in_the_numbered_rows_of_a_columnar_record():
    names = ("id", "value", "series", "set", "threshold", "monitor", "closed")
    message = arrow(**{name: [query.get(name) for query in QUERIES] for name in names})
    plain = Record(9, AT_HOME, b'{"id":"d","value":4}')
    batch = decoder().decode([Record(8, AT_HOME, message, headers=ARROW), plain])
    assert (batch.offset.tolist(), batch.row.tolist()) == ([8, 8, 8, 8, 9], [0, 1, 2, 3, 0])
    for found in (batch, decode(*map(msgspec.json.encode, QUERIES), plain.value)):
        assert (found.threshold, found.monitor, found.markers) == ({1: Fraction(5, 2)}, {0: "hot"}, {2: "L1"})
        assert (found.set_id, [*found.series]) == (
            ["L1", None, "L1", None, None],
            ["x", None, None, "y", None],
        )
        assert [found.query_id[row] for row in range(5)] == ["a", "b", None, "c", "d"]
        assert [numbers(found)[row] for row in (0, 1, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"value": [1]}, "missing-id"),
        ({"id": [None], "value": [1]}, "missing-id"),
        ({"id": [5]}, "bad-id"),
        ({"id": ["x" * 257]}, "bad-id"),
        ({"id": ["a"], "series": [""]}, "bad-series"),
        ({"id": ["a"], "set": [1]}, "bad-set"),
        ({"id": ["a"], "closed": [True]}, "bad-set"),
        ({"id": ["a"], "closed": ["x"]}, "bad-set"),
        ({"id": ["a"], "monitor": ["lukewarm"]}, "unknown-monitor"),
        ({"id": ["a"], "monitor": ["hot"], "threshold": ["x"]}, "bad-threshold"),
        ({"id": ["a"], "threshold": [float("nan")]}, "bad-threshold"),
        ({"id": ["a"], "threshold": [float("inf")]}, "bad-threshold"),
        ({"set": ["x"], "closed": [True], "threshold": [float("inf")]}, "bad-threshold"),
    ],
)
def test_a_malformed_columnar_record_is_refused_as_a_whole(columns, reason):
    batch = columnar_batch(arrow(**columns))
    assert batch.rejects == [(8, reason)]
    assert len(batch) == 0
    assert (batch.markers, batch.monitor, batch.threshold) == ({}, {}, {})


def test_a_threshold_of_a_dictionary_is_converted_once():
    thresholds = pa.array([0.1] * 3).dictionary_encode()
    found = columnar_batch(arrow(id=["a", "b", "c"], threshold=thresholds)).threshold
    assert found == dict.fromkeys(range(3), Fraction(0.1))
    assert found[0] is found[1] is found[2]


@pytest.fixture
def decoded(monkeypatch) -> list[bytes]:
    """Return the messages that are decoded one by one."""
    decoded, one = [], json_queries._decode_one
    monkeypatch.setattr(json_queries, "_decode_one", lambda value: (decoded.append(value), one(value))[1])
    return decoded


def test_a_message_whose_key_is_refused_is_not_decoded(decoded):
    rejects = decode(b"[", None, b'{"id":"a","value":NaN}', key=b"unknown").rejects
    assert rejects == [(100, "misrouted"), (101, "misrouted"), (102, "misrouted")]
    assert decoded == []


def _misrouted(*keys: bytes, caplog: pytest.LogCaptureFixture) -> tuple[bool, int]:
    """Return whether the other partitioner explains these keys on the own partition, and how often that was logged."""
    caplog.clear()
    spec = load_spec(SPEC.format(names=", ".join(NAMES)))
    index = DatasetIndex(AT_HOME_NAMES, partition=OWN, partitioning=HOMES, spec=spec)
    assert {index.number(key) for key in keys} == {-3}
    return index.follows_other_partitioner, len(caplog.records)


def test_misrouted_keys_show_the_other_partitioner_only_if_it_explains_all_that_are_declared(caplog) -> None:
    away = [name.encode() for name in NAMES if name not in AT_HOME_NAMES]
    explained = [key for key in away if HOMES.other.of(key) == OWN]
    others = [key for key in away if HOMES.other.of(key) != OWN]
    private = next(
        key
        for key in (b"private-%d" % number for number in range(999))
        if HOMES.of(key) != OWN and HOMES.other.of(key) == OWN
    )
    assert _misrouted(*explained, caplog=caplog) == (True, 1)
    assert _misrouted(*explained, *others, caplog=caplog) == (False, 1)
    assert _misrouted(*others, *explained, caplog=caplog) == (False, 0)
    assert _misrouted(private, caplog=caplog) == (False, 0)
    assert _misrouted(private, explained[0], private, caplog=caplog) == (True, 1)
    assert "private" not in caplog.text


SPEC = """
application: shop
datasets: [{{names: [{names}], limit: 4, unit: one basket}}]
monitors:
  - {{name: hot, topic: t, epsilon: 1, cutoff: 10, sensitivity: 1, bounds: [0, 9], threshold: 5, expected_queries: 9}}
"""
