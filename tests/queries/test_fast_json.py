"""Messages of equal shape are read together as each would be alone, and a value changes no step of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import ByteBuffer
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.fast_json import columns
from stream_svt.queries.fast_json.columns import FastJson
from stream_svt.queries.json_records import JsonRecords
from stream_svt.settings.records import RecordLayout
from tests.support.query_records import AT_HOME, ELSEWHERE, HERE, NO_NUMBER, Record, contents

MONITORS = ["hot", "cold"]

LAYOUTS = {
    "own": None,
    "mapped": RecordLayout(value="value", id="id", series="series"),
    "nested": RecordLayout(value="p.value", id="p.id", series="series", set="p.q.set"),
    "offsets": RecordLayout(value="value"),
}


class Counting(JsonRecords):
    """The plain reader; it keeps what it is given."""

    def __init__(self, layout: RecordLayout | None) -> None:
        super().__init__(layout, MONITORS)
        self.given: list[bytes | None] = []

    def fields(self, values: Sequence[bytes | None]) -> Any:
        self.given += values
        return super().fields(values)


def decoder(layout: RecordLayout | None = None, *, fast: bool = True) -> tuple[QueryDecoder, Counting]:
    """Return a decoder, and its plain reader."""
    plain, found = Counting(layout), QueryDecoder("queries", HERE, MONITORS, layout)
    assert isinstance(found._decoder, FastJson)
    found._decoder = FastJson(plain) if fast else plain
    return found, plain


def decoded(records: list[Record], layout: RecordLayout | None, *, fast: bool) -> dict[str, object]:
    one, _ = decoder(layout, fast=fast)
    one.decode(records)  # it knows the shapes now
    return contents(one.decode(records))


def left_over(
    messages: list[bytes], layout: RecordLayout | None = None
) -> tuple[QueryBatch, list[bytes | None]]:
    """Return the batch of messages and those that no shape has, where the shapes were known before."""
    one, plain = decoder(layout)
    records = [Record(row, AT_HOME, message) for row, message in enumerate(messages)]
    one.decode(records)
    plain.given.clear()
    return one.decode(records), plain.given


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for shapes among few messages, and begin another chunk soon."""
    monkeypatch.setattr(columns, "FEW", 2)
    monkeypatch.setattr(decimals, "CHUNK", 7)


SHAPES = [
    b'{"id":"%(id)b","value":%(value)b}',
    b'{"id":"%(id)b","value":%(value)b,"series":"%(series)b"}',
    b'{"series":"%(series)b","id":"%(id)b","value":%(value)b}',
    b'{"value":%(value)b,"id":"%(id)b","time":%(number)b}',
    b'{ "id": "%(id)b", "value": %(value)b, "series": "%(series)b", "time": "%(series)b" }\n',
    b'{"id":"%(id)b","time":%(number)b,"value":%(value)b,"set":"%(series)b","series":null}',
    b'{"id":"%(id)b","monitor":"hot","value":%(value)b,"threshold":50,"closed":false}',
    b'{"id":"%(id)b","monitor":"%(series)b","value":%(value)b,"threshold":%(number)b}',
    b'{"id":"%(id)b","value":%(value)b,"closed":true,"set":"%(series)b"}',
    b'{"id":"%(id)b","trace":{"value":1,"a":"%(series)b"},"value":%(value)b,"n":{"m":%(number)b}}',
    b'{"p":{"id":"%(id)b","value":%(value)b,"q":{"set":"%(series)b"}},"series":%(number)b}',
    b'{"p":{"q":{"set":%(number)b},"id":%(number)b,"value":%(value)b},"series":"%(series)b","other":"%(id)b"}',
    b'{"id":"%(id)b","value":%(value)b,"id":"%(series)b"}',
    b'{"id":"%(id)b","value":1,"value":%(value)b}',
    b'{"id":"%(id)b","v\\u0061lue":%(value)b}',
    b'{"id":"%(id)b","value":{"value":%(value)b,"series":"%(series)b"}}',
    b'[{"id":"%(id)b","value":%(value)b}]',
    b'{"id":"%(id)b","series":"%(series)b"}',
    b'{"id":"%(id)b"}',
    b'{ "id": "%(id)b", "series": "%(series)b", "time": "%(series)b" }\n',
    b'{"id":"%(id)b","time":%(number)b}',
    b'{"p":{"id":"%(id)b","q":{"set":"%(series)b"}},"series":%(number)b}',
    b'{"p":{"value":%(value)b},"value" : %(value)b}',
    b'{"p":{}}',
    b'{"id":"%(id)b","tags":["%(series)b"],"value":%(value)b}',
]
ODD = [
    b"1e3", b"null", b"9" * 19, b'"text"', b'"a\xff"', b"NaN", b"{}", b"[1,2]", b'{"a":"b"}', b"01", b"-", b"true",
]  # fmt: skip
HOSTILE_VALUES = [
    *NO_NUMBER, *ODD, b"-0.0", b"0." + b"1" * 30, b'1,"series":"x"', b'"a,\\"series\\":\\"x"', b'"a","id":"b"', b"1}",
    b'1,"monitor":null', b'1,"monitor":"cold"', b'1,"threshold":null', b'1,"closed":true,"set":"x"',
    b'{"a":1', b'1,"x":{"y":2}', b'"abc', b" 7", b"7 ", b'"\\', b"\xc3\xa9", b"1\n", b'""', b"--1", b'"value":2',
    b"[1}", b"{]", b'"\n"', b"1e5\\", b"7,", b",7", b"7:8", b"'", b"0e0", b"1E+2", b"\x00", b"1e99999", b"0.0000001",
    b"\x0b", b"\x0c", b"\x0b1",
]  # fmt: skip
VALUES = st.one_of(
    st.integers(-(10**6), 10**6).map(b"%d".__mod__),
    st.decimals(-1000, 1000, places=3, allow_nan=False).map(lambda d: f"{d:f}".encode()),
    st.sampled_from(HOSTILE_VALUES),
    st.binary(max_size=6),
)
HOSTILE_TEXTS = [
    b"", b"a" * 256, b"a" * 257, b"a" * 600, b'\\"', b"\\u00e9", b"\\", b"\xff", b"\x7f", b"\x1f", b"\t", b"x\x00",
    "ä€".encode(), "ä".encode() * 256, "ä".encode() * 200, b'a","value":3,"x":"', b"}", b"{", b"1", b"hot",
    b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x82", b"\xf0\x9f\x98\x80",
]  # fmt: skip
TEXTS = st.one_of(
    st.text("abcdefghij", min_size=1, max_size=20).map(str.encode),
    st.sampled_from(HOSTILE_TEXTS),
    st.integers(0, 600).map(b"b".__mul__),
)
NUMBERS = st.sampled_from(
    [*b"0 1 17 1700000000000 012 -1 1.5 1e3 true null".split(), b"", b"9" * 18, b"9" * 19, b"9" * 300]
)


@st.composite
def batches(draw: Any) -> list[Record]:
    """Draw records of a few shapes, hostile fields among plain ones, and some bytes changed."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    letter = draw(st.sampled_from(["", "", "é", "日"])).encode()
    records = []
    for row in range(draw(st.integers(2, 15))):
        plain = {
            "id": b"q%d" % row,
            "value": b"%d" % (row * 1000),
            "series": letter + b"s%d" % (row % 3),
            "number": b"17",
        }
        hostile = {"id": TEXTS, "value": VALUES, "series": TEXTS, "number": NUMBERS}
        for name in draw(st.sets(st.sampled_from([*hostile, "value"]), max_size=2)):
            plain[name] = draw(hostile[name])
        message = draw(st.sampled_from(shapes)) % {name.encode(): found for name, found in plain.items()}
        if draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(message)))
            message = message[:at] + draw(st.binary(max_size=2)) + message[at + draw(st.integers(0, 2)) :]
        key = draw(st.sampled_from([AT_HOME] * 9 + [None, b"?", ELSEWHERE]))
        records.append(Record(row, key, draw(st.sampled_from([message] * 19 + [None]))))
    return records


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=60)
@given(records=batches())
def test_messages_are_read_together_as_each_is_by_the_plain_reader(name, records):
    layout = LAYOUTS[name]
    assert decoded(records, layout, fast=True) == decoded(records, layout, fast=False)


def row(number: int, value: bytes = b"") -> dict[bytes, bytes]:
    """Return plain fields."""
    texts = {b"id": b"q%d" % number, b"series": b"s%d" % number, b"number": b"17%d" % number}
    return texts | {b"value": value or b"%d.5" % number, b"long": b"x" * (5000 + number % 9)}


IN_OTHERS = RecordLayout(value="p.value", id="id", series="series")
WITH_SHAPES = [
    *((shape, None) for shape in (*SHAPES[:7], SHAPES[9])),
    (SHAPES[11].replace(b"value)b", b"value)b"), LAYOUTS["nested"]),
    *(
        (b'{"id":"%(id)b","note":"' + b"x" * size + b'%(id)b","value":%(value)b}', None)
        for size in (0, 15, 16, 64, 72)
    ),
    (b'{"id":"%(id)b","note":"%(long)b","value":%(value)b}', None),
    (b'{"id":"%(id)b","value":%(value)b,"note":"%(long)b"}', None),
    ('{"id":"%(id)b","value":%(value)b,"note":"日本-é"}'.encode(), None),
]


@pytest.mark.parametrize(("shape", "layout"), WITH_SHAPES)
@pytest.mark.parametrize("odd", [None, *ODD])
def test_messages_of_a_shape_need_no_plain_reader_whatever_form_a_value_has(shape, layout, odd):
    rows = [row(n) for n in range(30)]
    if odd is not None:
        rows[20][b"value"] = odd
    batch, given = left_over([shape % each for each in rows], layout)
    assert given == []
    assert [one for n, one in enumerate(batch.whole.tolist()) if n != 20] == [n for n in range(30) if n != 20]
    ids = [batch.query_id[n] for n in range(30)]
    assert ids == [f"17{n}" if layout else f"q{n}" for n in range(30)]


@pytest.mark.parametrize(
    ("shape", "without"),
    [
        (b'{"id":"%b","value":%b}', b'{"id":"%b"}'),
        (b'{"id":"%b", "value": %b, "series":"s"}', b'{"id":"%b", "series":"s"}'),
        (b'{ "id":"%b" , "value":%b , "series":"a"}', b'{ "id":"%b" , "series":"a"}'),
        (b'{\n  "id": "%b",\n  "value": %b\n}\n', b'{\n  "id": "%b"\n}\n'),
        (b'{"id":"%b","p":{"value":%b}}', b'{"id":"%b","p":{}}'),
        (b'{"id":"%b","p":{"value":%b,"other":"x"}}', b'{"id":"%b","p":{"other":"x"}}'),
        (b'{"id":"%b","p":{"other":1,"value":%b}}', b'{"id":"%b","p":{"other":1}}'),
    ],
)
def test_a_message_without_a_value_has_the_shape_of_the_others(shape, without):
    messages = [shape % (b"q%d" % n, b"%d" % n) for n in range(40)]
    messages[20] = without % b"q20"
    batch, given = left_over(messages, IN_OTHERS if b'"p"' in shape else None)
    assert given == []
    assert batch.whole[19:22].tolist() == [19, decimals.NO_NUMBER[0], 21]
    assert batch.query_id[20] == "q20"


@pytest.mark.parametrize("odd", [None, b'"' + b"x" * 40_000 + b'"', *ODD])
def test_a_shape_is_found_in_spite_of_many_values_that_are_odd_long_or_missing(monkeypatch, odd):
    def samples(plain: range) -> int:
        messages = [SHAPES[1] % row(n, value=b"7" if n in plain or odd is None else odd) for n in range(56)]
        if odd is None:
            messages = [m if n in plain else m.replace(b'"value":7,', b"") for n, m in enumerate(messages)]
        one, plain_reader = decoder()
        one.decode([Record(n, AT_HOME, message) for n, message in enumerate(messages)])
        return len(plain_reader.given)

    monkeypatch.setattr(decimals, "CHUNK", 56)
    assert samples(range(45, 52)) == samples(range(56)) == 1


def test_what_stands_in_the_place_of_a_value_may_hold_other_options(monkeypatch):
    monkeypatch.setattr(columns, "FEW", 5)

    def message(value: bytes) -> bytes:
        return b'{"id":"q","monitor":"hot","threshold":5,"value":%b}' % value

    odd = [b'1,"monitor":null', b'1,"threshold":null', b'1,"monitor":"cold"', b'1,"closed":true,"set":"x"']
    batch, given = left_over([*map(message, [b"7"] * 10 + odd)])
    assert given == [message(value) for value in odd]
    assert [batch.monitor.get(row) for row in range(9, 14)] == ["hot", None, "hot", "cold", None]
    assert [batch.threshold.get(row) for row in range(9, 14)] == [5, 5, None, 5, None]
    assert batch.markers == {13: "x"}


def test_every_step_is_the_same_whatever_the_values_are(monkeypatch):
    steps: list[tuple[int, ...]] = []
    near = ByteBuffer.near
    monkeypatch.setattr(
        ByteBuffer,
        "near",
        staticmethod(lambda marks, at, **k: (steps.append(at.shape), near(marks, at, **k))[1]),
    )

    def seen(value: bytes) -> list[tuple[int, ...]]:
        messages = [SHAPES[1] % row(n, value=value if n == 20 else b"7") for n in range(49)]
        left_over([message.replace(b'"value":absent,', b"") for message in messages])
        found = steps[:]
        steps.clear()
        return found

    assert len(seen(b"7")) > 10
    for value in (*ODD, b"absent", b"1.5", b"-7", b"0." + b"3" * 24, b"x" * 5000):
        assert seen(value) == seen(b"7")


def test_a_message_without_a_shape_is_read_alone_and_its_texts_are_its_own(monkeypatch):
    monkeypatch.setattr(columns, "FEW", 5)
    messages = [SHAPES[1] % row(n) for n in range(40)]
    messages[7] = b'{"id":"\\u0041","value":1,"series":"\\u00e9"}'
    messages[9] = b'{"id":"plain","value":2,"series":"\xc3\xa9","time":17}'
    batch, given = left_over(messages)
    assert given == [messages[7], messages[9]]
    assert [batch.query_id[row] for row in range(6, 11)] == ["q6", "A", "q8", "plain", "q10"]
    assert [batch.series[row] for row in range(6, 11)] == ["s6", "é", "s8", "é", "s10"]


@pytest.mark.parametrize("known", [0, 1])
def test_messages_with_more_members_behind_the_value_are_read_together_too(known):
    shapes = [b'{"id":"%(id)b","value":%(value)b}', SHAPES[1]]
    one, plain = decoder()
    for kinds in [(known,), (1 - known,), (0, 1), (1, 0), (1,), (0,)]:
        messages = [shapes[kinds[n % len(kinds)]] % row(n) for n in range(28)]
        plain.given.clear()
        batch = one.decode([Record(n, AT_HOME, message) for n, message in enumerate(messages)])
        assert len(plain.given) <= 6, "samples"
        assert batch.whole.tolist() == [*range(28)]
        series = [batch.series[n] if len(batch.series) else None for n in range(28)]
        assert series == [f"s{n}" if kinds[n % len(kinds)] else None for n in range(28)]


def test_few_messages_are_left_to_the_plain_reader(monkeypatch):
    monkeypatch.setattr(columns, "FEW", 5)
    messages = [SHAPES[1] % row(n) for n in range(4)]
    assert left_over(messages)[1] == messages


LONG = b"x" * 5000


@pytest.mark.parametrize(
    "note", [b'"%b\\n"' % LONG, b"[%b1]" % (b"1," * 2000), b'{"a":[%b1]}' % (b"[]," * 400)], ids=range(3)
)
def test_messages_without_a_shape_are_read_together_and_shapes_are_seldom_looked_for(note, monkeypatch):
    looked_for = []
    one, plain = decoder()
    find = one._decoder._shape
    monkeypatch.setattr(one._decoder, "_shape", lambda chunk: (looked_for.append(1), find(chunk))[1])
    messages = [b'{"id":"q%d","value":%d,"note":%b}' % (n, n, note) for n in range(700)]
    batch = one.decode([Record(n, AT_HOME, message) for n, message in enumerate(messages)])
    assert batch.whole.tolist() == [*range(700)]
    assert plain.given[-700:] == messages
    assert len(looked_for) <= 8
