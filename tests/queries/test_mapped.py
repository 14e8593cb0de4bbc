"""Records of a topic that was not made for this service: where the fields are, and what the value can never do."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.reasons import Reason
from stream_svt.settings.records import RecordLayout
from tests.support.engine_play import numbers
from tests.support.query_records import (
    AT_HOME,
    ELSEWHERE,
    HERE,
    NO_NUMBER,
    TOO_LARGE,
    Record,
    contents,
    decoder,
    fragments,
    one_by_one,
)

NESTED = RecordLayout(value="payload.count", series="payload.page", id="meta.id", set=r"w\.x")
FLAT = RecordLayout(value="count")


def decode(*values: bytes | None, layout: RecordLayout = NESTED) -> QueryBatch:
    return decoder(layout).decode([Record(100 + i, AT_HOME, value) for i, value in enumerate(values)])


def test_fields_are_found_at_their_paths_and_others_are_ignored():
    batch = decode(
        b'{"op":"c","payload":{"count":7.25,"page":"/a","x":[{"count":1}]},"meta":{"id":"q1"},"w.x":"s"}',
        b'{"meta":{"id":"q2"},"payload":{"page":"/b","count":-3},"count":9,"w":{"x":"t"},"id":5,"value":1}',
    )
    found = contents(batch)
    assert (found["id"], found["series"], found["value"]) == (
        ["q1", "q2"],
        ["/a", "/b"],
        [Fraction(29, 4), -3],
    )
    assert (found["set_id"], found["offset"], found["rejects"]) == (["s", None], [100, 101], [])
    assert not any(found[name] for name in ("threshold", "monitor", "markers"))


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
    assert ([*batch.series], numbers(batch), batch.rejects) == ([None], [None], [])


@pytest.mark.parametrize("value", NO_NUMBER, ids=lambda v: repr(v[:20]))
def test_what_is_no_number_is_accepted_without_a_trace_at_any_depth(value):
    batch = decode(b'{"x":{"payload":1},"payload":{"y":[],"count":%b,"page":"p"},"meta":{"id":"q"}}' % value)
    assert batch.rejects == []
    assert (numbers(batch), [*batch.series], batch.query_id[0]) == ([None], ["p"], "q")


@pytest.mark.parametrize(
    "value", [*TOO_LARGE, b"0.1", b"-1e-999999999", b"4." + b"9" * 5000], ids=lambda v: repr(v[:20])
)
def test_a_mapped_value_is_as_exact_as_a_plain_one(value):
    plain = QueryDecoder("t", HERE, []).decode([Record(1, AT_HOME, b'{"id":"a","value":%b}' % value)])
    assert numbers(decode(b'{"payload":{"count":%b},"meta":{"id":"a"}}' % value)) == numbers(plain)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, Reason.EMPTY),
        (b"hello", Reason.NOT_JSON),
        (b"[1]", Reason.NOT_AN_OBJECT),
        (b'{"payload":{"count":1},"meta":{"id":"a"}', Reason.NOT_JSON),
        (b'{"payload":{"count":[},"meta":{"id":"a"}}', Reason.NOT_JSON),
        (b'{"payload":NaN,"meta":{"id":"a"}}', Reason.NOT_JSON),
        (b'{"payload":{"count":1}}', Reason.MISSING_ID),
        (b'{"meta":5}', Reason.MISSING_ID),
        (b'{"meta":{"id":null}}', Reason.MISSING_ID),
        (b'{"meta":{"id":1.5}}', Reason.BAD_ID),
        (b'{"meta":{"id":{}}}', Reason.BAD_ID),
        (b'{"meta":{"id":"%b"}}' % (b"x" * 257), Reason.BAD_ID),
        (b'{"meta":{"id":%b}}' % (b"9" * 290), Reason.BAD_ID),
        (b'{"meta":{"id":"a"},"payload":{"page":""}}', Reason.BAD_SERIES),
        (b'{"meta":{"id":"a"},"payload":{"page":[]}}', Reason.BAD_SERIES),
        (b'{"meta":{"id":"a"},"w.x":2.5}', Reason.BAD_SET),
        (b'{"meta":{"id":"\xff"}}', Reason.INVALID_UTF8),
        (b'{"meta":{"id":"a"},"x":"%b"}' % (b"x" * 2_000_000), Reason.TOO_LARGE),
    ],
    ids=lambda v: repr(v)[:40],
)  # fmt: skip
def test_a_malformed_record_is_refused_for_its_reason(message, reason):
    good = [b'{"meta":{"id":"g"},"payload":{"count":5}}'] * 3
    batch = decode(*good, message, *good)
    assert batch.rejects == [(103, reason.value)]
    assert (batch.offset.tolist(), numbers(batch)) == ([100, 101, 102, 104, 105, 106], [5] * 6)


def test_keys_are_judged_before_content_and_headers_are_ignored():
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


names = st.sampled_from(["payload", "count", "page", "meta", "id", "w.x", "x"])
leaves = st.one_of(st.integers(), st.floats(allow_nan=False), st.none(), st.text(max_size=3), st.booleans())
documents = st.recursive(
    leaves,
    lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)
pieces = st.sampled_from([b'"payload"', b'"count"', b'"meta"', b'{"meta":{"id":"a"},"payload":{"count":'])
messages = st.one_of(
    st.none(),
    st.lists(fragments | pieces, max_size=12).map(b"".join),
    documents.map(msgspec.json.encode),
    st.fixed_dictionaries({"meta": st.just({"id": "a"}), "payload": documents}).map(msgspec.json.encode),
    st.sampled_from(NO_NUMBER).map(lambda value: b'{"meta":{"id":"n"},"payload":{"count":%b}}' % value),
)


@settings(max_examples=400)
@given(st.lists(messages, min_size=1, max_size=8), st.sampled_from([NESTED, FLAT]))
def test_both_ways_of_decoding_agree_on_any_bytes(values, layout):
    records = [Record(i, AT_HOME, value) for i, value in enumerate(values)]
    together = decoder(layout).decode(records)
    assert contents(together) == contents(one_by_one(records, layout))
    assert len(together) + len(together.rejects) == len(records)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([*NO_NUMBER, *TOO_LARGE, b"7", b"-1.5"]), min_size=2, max_size=2),
    documents.map(msgspec.json.encode),
    st.booleans(),
)
def test_only_the_number_depends_on_the_value(values, page, first):
    members = (b'"count":%b', b'"page":' + page.replace(b"%", b"%%"))
    inner = b",".join(members if first else members[::-1])
    one, other = (
        contents(decode(b'{"meta":{"id":"a"},"payload":{%b}}' % (inner % value))) for value in values
    )
    del one["value"], other["value"]
    assert one == other


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


def test_a_deep_value_is_the_lower_bound_even_before_another_value():
    deep = b"[" * 600 + b"]" * 600
    for beside in ([], [b"["]):
        batch = decode(b'{"count":%b,"count":5}' % deep, *beside, layout=FLAT)
        assert (numbers(batch), batch.offset.tolist()) == ([None], [100])


@pytest.mark.parametrize(
    "broken", [b'{"meta":{"id":"a"},"count":%b,"x":[}', b'{"count":%b,"x":"', b'{"x":"\t,"count":%b}']
)
def test_a_record_that_is_no_json_is_refused_for_one_reason_whatever_its_value_is(broken):
    found = {
        tuple(decode(broken % value, layout=FLAT).rejects) for value in (b"1", b'"a\xff"', b"\xff", b"nul")
    }
    assert found == {((100, "not-json"),)}
