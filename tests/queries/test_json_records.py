"""JSON records: fields at paths, texts that are none, depth, and whatever else stands in a message."""

from __future__ import annotations

import pytest

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.records import RecordLayout
from tests.support.engine_play import numbers
from tests.support.query_records import (
    AT_HOME,
    ELSEWHERE,
    HERE,
    Record,
    contents,
    decoder,
)

NESTED = RecordLayout(value="payload.count", series="payload.page", id="meta.id", set=r"w\.x")
FLAT = RecordLayout(value="count")


def decode(*values: bytes | None, layout: RecordLayout = NESTED) -> QueryBatch:
    return decoder(layout).decode([Record(100 + i, AT_HOME, value) for i, value in enumerate(values)])


def test_without_a_path_the_offset_is_the_id_and_options_have_no_meaning():
    batch = decode(b'{"count":1,"closed":true,"set":"x","monitor":"none","threshold":"x"}', layout=FLAT)
    found = contents(batch)
    assert (found["id"], found["series"], found["set_id"], found["markers"]) == (["100"], [None], None, {})


def test_a_field_named_offset_is_written_with_a_backslash():
    for path, found in (("offset", "100"), (r"\offset", "mine")):
        batch = decode(b'{"offset":"mine","count":1}', layout=RecordLayout(value="count", id=path))
        assert batch.query_id[0] == found


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"7", "7"),
        (b"-12", "-12"),
        (b"true", "true"),
        (b"false", "false"),
        (b'"7"', "7"),
        (b"9" * 25, "9" * 25),
    ],
)
def test_integers_and_booleans_are_texts(content, text):
    message = b'{"count":1,"page":%b,"n":%b}' % (content, content)
    for values in ([message], [message, b"[", message]):
        batch = decode(*values, layout=RecordLayout(value="count", series="page", id="n"))
        assert (batch.series[0], batch.query_id[0]) == (text, text)


@pytest.mark.parametrize(
    "message", [b"{}", b'{"payload":{}}', b'{"payload":null}', b'{"payload":7}', b'{"payload":{"page":null}}']
)
def test_a_missing_series_is_none_and_a_missing_value_the_lower_bound(message):
    layout = RecordLayout(value="payload.count", series="payload.page")
    batch = decode(message, layout=layout)
    assert ([*batch.series], numbers(batch), batch.rejects) == ([], [None], [])


def test_headers_of_mapped_records_are_ignored():
    headers = (("content-type", b"application/vnd.apache.arrow.stream"),)
    message = b'{"meta":{"id":"g"},"payload":{"count":5}}'
    records = [
        Record(1, ELSEWHERE, b"["),
        Record(2, AT_HOME, message, headers=headers),
        Record(4, None, message),
    ]
    batch = decoder(NESTED).decode(records)
    assert (batch.rejects, numbers(batch)) == ([(1, "misrouted"), (4, "no-key")], [5])
    assert (batch.first, batch.end, batch.offset.tolist()) == (1, 5, [2])


@pytest.mark.parametrize("layout", [NESTED, None], ids=["mapped", "plain"])
@pytest.mark.parametrize(("depth", "reasons"), [(498, []), (501, ["not-json"]), (990, ["not-json"])])
def test_whether_a_record_is_nested_too_deep_does_not_depend_on_its_batch_or_its_reader(
    layout, depth, reasons
):
    one = QueryDecoder("pages", HERE, ["hot"], layout)
    good = b'{"id":"a","value":1,"meta":{"id":"a"},"payload":{"count":5}}'
    deep = good[:-1] + b',"x":%b}' % (b"[" * depth + b"]" * depth)

    def found(frames: int, *values: bytes) -> list[str]:
        if frames:
            return found(frames - 1, *values)
        records = [Record(at, AT_HOME, value) for at, value in enumerate(values)]
        return [reason for offset, reason in one.decode(records).rejects if offset == 0]

    for frames in (0, 200):
        for beside in ([], [good], [b"["]):
            assert found(frames, deep, *beside) == reasons
