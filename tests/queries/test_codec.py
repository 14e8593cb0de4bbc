"""From the records of a topic to batches: content types, options, and messages that stay apart."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pyarrow as pa
import pytest

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.queries.json_records import JsonRecords
from tests.support.engine_play import numbers
from tests.support.query_records import (
    ARROW,
    AT_HOME,
    Record,
    arrow,
    columnar_batch,
    contents,
    decoder,
    one_by_one,
)


def decode(*values: bytes | None, key: bytes | None = AT_HOME) -> QueryBatch:
    return decoder().decode([Record(100 + i, key, value) for i, value in enumerate(values)])


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
        (b'{"id":"a","x":', b'{"y":1}}', b'{"id":"b"}\n{"id":"c"}'),
        (b'{"id":"a","x":[{"y":1}', b'{"id":"b"}]}', b'{"id":"c"}\n{"id":"d"}'),
        (b'{"id":"a","x":{}', b',"value":1}', b'{"id":"b"}\n{"id":"c"}'),
        (b'{"id":"a"}\n{"id":"b"}', b'{"id":"c"}{', b'"id":"d"}'),
        (b'{\n"id":"a",\n"value":1}', b'{"id":"b"}'),
    ],
)
def test_no_message_reaches_into_another(values):
    records = [Record(i, AT_HOME, value) for i, value in enumerate(values)]
    assert contents(decoder().decode(records)) == contents(one_by_one(records))


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


def test_a_threshold_of_a_dictionary_is_converted_once():
    thresholds = pa.array([0.1] * 3).dictionary_encode()
    found = columnar_batch(arrow(id=["a", "b", "c"], threshold=thresholds)).threshold
    assert found == dict.fromkeys(range(3), Fraction(0.1))
    assert found[0] is found[1] is found[2]


def test_a_message_whose_key_is_refused_is_not_decoded(monkeypatch):
    monkeypatch.setattr(JsonRecords, "fields", lambda *_: pytest.fail("it was"))
    rejects = decode(b"[", None, b'{"id":"a","value":NaN}', key=b"unknown").rejects
    assert rejects == [(100, "misrouted"), (101, "misrouted"), (102, "misrouted")]
