"""Messages of equal shape are read together as each would be alone, and a value changes no step of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns import byte_buffer, decimals
from stream_svt.columns.byte_buffer import MARGIN, ByteBuffer
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.protocol.records import Records
from stream_svt.queries import json_lines
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.fast_json import columns
from stream_svt.queries.fast_json.columns import JsonReader
from stream_svt.settings.records import RecordLayout
from tests.support.query_records import AT_HOME, ELSEWHERE, HERE, NO_NUMBER, Record, contents

LAYOUTS = {
    "own": None,
    "mapped": RecordLayout(value="value", id="id", series="series"),
    "nested": RecordLayout(value="p.value", id="p.id", series="series", set="p.q.set"),
    "offsets": RecordLayout(value="value"),
}


def decoded(records: list[Record], layout: RecordLayout | None) -> dict[str, object]:
    decoder = QueryDecoder("queries", HERE, ["hot", "cold"], layout)
    decoder.decode(records)  # it knows the shapes now
    return contents(decoder.decode(records))


def alone(records: list[Record], layout: RecordLayout | None) -> dict[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "FEW", 1 << 60)
        return decoded(records, layout)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Look for shapes among few messages, and begin another chunk soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "FEW", 2)
        patch.setattr(decimals, "CHUNK", 7)
        yield


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
def test_messages_are_read_together_as_each_is_alone(name, records):
    assert decoded(records, LAYOUTS[name]) == alone(records, LAYOUTS[name])


def row(number: int, value: bytes = b"") -> dict[bytes, bytes]:
    """Return plain fields."""
    texts = {b"id": b"q%d" % number, b"series": b"s%d" % number, b"number": b"17%d" % number}
    return texts | {b"value": value or b"%d.5" % number}


class Counting:
    """Row decoder that keeps what it is given."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.given = rows, list[bytes | None]()
        self.paths = rows.paths

    def decode(self, values: Any) -> columns.Columns:
        self.given += values
        return self.rows.decode(values)


def left_over(
    messages: list[bytes], layout: RecordLayout | None = None
) -> tuple[QueryBatch, list[bytes | None]]:
    """Return the batch of messages and those that no shape has, where the shapes were known before."""
    decoder = QueryDecoder("queries", HERE, ["hot", "cold"], layout)
    counting = Counting(decoder._json._rows)
    decoder._json = JsonReader(counting)
    records = [Record(row, AT_HOME, message) for row, message in enumerate(messages)]
    decoder.decode(records)
    counting.given.clear()
    return decoder.decode(records), counting.given


@pytest.mark.parametrize("shape", SHAPES[:7] + SHAPES[9:10])
def test_messages_of_a_shape_need_no_decoder_of_rows(shape):
    rows = [
        {b"id": b"q%d" % n, b"value": b"%d.5" % n, b"series": b"s%d" % n, b"number": b"17%d" % n}
        for n in range(30)
    ]
    batch, given = left_over([shape % row for row in rows])
    assert given == []
    assert batch.whole.tolist() == [*range(30)]
    assert [batch.query_id[row] for row in range(30)] == [f"q{n}" for n in range(30)]


def test_a_shape_of_nested_records_needs_no_decoder_of_rows():
    shape = SHAPES[11]
    rows = [
        {b"id": b"q%d" % n, b"value": b"%d" % n, b"series": b"s%d" % n, b"number": b"17%d" % n}
        for n in range(30)
    ]
    batch, given = left_over([shape % row for row in rows], LAYOUTS["nested"])
    assert (given, batch.whole.tolist()) == ([], [*range(30)])
    assert [batch.query_id[3], batch.series[3], batch.set_id[3]] == ["173", "s3", "173"]


@pytest.mark.parametrize("odd", ODD)
def test_a_value_of_another_form_takes_no_message_out_of_its_shape(odd):
    messages = [SHAPES[1] % row(n) for n in range(49)]
    messages[20] = SHAPES[1] % row(20, value=odd)
    _, given = left_over(messages)
    assert given == []


@pytest.mark.parametrize(
    ("shape", "without"),
    [
        (b'{"id":"%b","value":%b}', b'{"id":"%b"}'),
        (b'{"id":"%b", "value": %b, "series":"s"}', b'{"id":"%b", "series":"s"}'),
        (b'{ "id":"%b" , "value":%b , "series":"a"}', b'{ "id":"%b" , "series":"a"}'),
        (b'{\n  "id": "%b",\n  "value": %b\n}\n', b'{\n  "id": "%b"\n}\n'),
    ],
)
def test_a_message_without_a_value_has_the_shape_of_the_others(shape, without):
    messages = [shape % (b"q%d" % n, b"%d" % n) for n in range(40)]
    messages[20] = without % b"q20"
    batch, given = left_over(messages)
    assert given == []
    assert batch.whole[19:22].tolist() == [19, decimals.NO_NUMBER[0], 21]
    assert batch.query_id[20] == "q20"


@pytest.mark.parametrize("odd", [None, b'"' + b"x" * 40_000 + b'"', *ODD])
def test_a_shape_is_found_in_spite_of_many_values_that_are_odd_long_or_missing(monkeypatch, odd):
    def decoded_alone(plain: range) -> int:
        messages = [SHAPES[1] % row(n, value=b"7" if n in plain or odd is None else odd) for n in range(56)]
        if odd is None:
            messages = [m if n in plain else m.replace(b'"value":7,', b"") for n, m in enumerate(messages)]
        decoder = QueryDecoder("queries", HERE, ["hot"])
        counting = Counting(decoder._json._rows)
        decoder._json = JsonReader(counting)
        decoder.decode([Record(n, AT_HOME, message) for n, message in enumerate(messages)])
        return len(counting.given)

    monkeypatch.setattr(decimals, "CHUNK", 56)
    assert decoded_alone(range(45, 52)) == decoded_alone(range(56)) == 1, "the sample"


@pytest.mark.parametrize("member", [b'"value":%b', b'"value":%b,"other":"x"', b'"other":1,"value":%b'])
def test_a_value_at_either_end_of_its_object_may_be_missing(member):
    shape = b'{"p":{' + member + b'},"series":"%b"}'
    without = shape.replace(b'"value":%b,', b"").replace(b',"value":%b', b"").replace(b'"value":%b', b"")
    messages = [shape % (b"%d" % n, b"s%d" % n) for n in range(40)]
    messages[7] = without % b"s7"
    batch, given = left_over(messages, RecordLayout(value="p.value", series="series"))
    assert given == []
    assert (batch.whole[6:9].tolist(), batch.series[7]) == ([6, decimals.NO_NUMBER[0], 8], "s7")


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


def test_a_message_without_a_shape_is_decoded_alone_and_its_texts_are_its_own(monkeypatch):
    monkeypatch.setattr(columns, "FEW", 5)
    messages = [SHAPES[1] % row(n) for n in range(40)]
    messages[7] = b'{"id":"\\u0041","value":1,"series":"\\u00e9"}'
    messages[9] = b'{"id":"plain","value":2,"series":"\xc3\xa9","time":17}'
    batch, given = left_over(messages)
    assert given == [messages[7], messages[9]]
    expected = [f"q{n}" for n in range(40)]
    expected[7], expected[9] = "A", "plain"
    assert [batch.query_id[row] for row in range(40)] == expected
    assert (batch.series[7], batch.series[8], batch.series[9]) == ("é", "s8", "é")


@pytest.mark.parametrize("known", [0, 1])
def test_messages_with_more_members_behind_the_value_are_read_together_too(known):
    shapes = [b'{"id":"%(id)b","value":%(value)b}', SHAPES[1]]
    decoder = QueryDecoder("queries", HERE, ["hot"])
    counting = Counting(decoder._json._rows)
    decoder._json = JsonReader(counting)

    def decode(*kinds: int) -> QueryBatch:
        messages = [shapes[kinds[n % len(kinds)]] % row(n) for n in range(28)]
        counting.given.clear()
        return decoder.decode([Record(n, AT_HOME, message) for n, message in enumerate(messages)])

    for kinds in [(known,), (1 - known,), (0, 1), (1, 0), (1,), (0,)]:
        batch = decode(*kinds)
        assert len(counting.given) <= 6, "samples"
        assert batch.whole.tolist() == [*range(28)]
        series = [batch.series[n] if len(batch.series) else None for n in range(28)]
        assert series == [f"s{n}" if kinds[n % len(kinds)] else None for n in range(28)]


def test_options_of_a_shape_do_not_stay_with_messages_that_only_seemed_to_have_it():
    short = b'{"id":"%(id)b","monitor":"hot","threshold":5,"value":%(value)b}'
    more = [short[:-1] + b',"monitor":null,"threshold":null}', short[:-1] + b',"set":"x"}']
    messages = [short % row(n) for n in range(14)] + [more[n % 2] % row(n) for n in range(14)]
    records = [Record(n, AT_HOME, message) for n, message in enumerate(messages)]
    assert decoded(records, None) == alone(records, None)


def test_few_messages_are_decoded_by_rows(monkeypatch):
    monkeypatch.setattr(columns, "FEW", 5)
    messages = [SHAPES[1] % row(n) for n in range(4)]
    _, given = left_over(messages)
    assert given == messages


def test_messages_may_stand_anywhere_in_a_buffer():
    messages = [SHAPES[1] % row(n) for n in range(30)]
    records = Records.of([Record(n, AT_HOME, message) for n, message in enumerate(messages)])
    decoder = QueryDecoder("queries", HERE, ["hot"])
    assert contents(decoder.decode(records[5:20])) == contents(decoder.decode([*records][5:20]))
    tail = Records.concatenated([records[:3], records[25:]])
    assert decoder.decode(tail).whole.tolist() == [0, 1, 2, *range(25, 30)]


@given(st.lists(st.one_of(VALUES, NUMBERS), min_size=1, max_size=20))
def test_what_stands_beside_a_token_does_not_change_it(tokens):
    joined = b"1.5".join([b"", *tokens, b""])
    start = np.cumsum([0, *map(len, tokens)])[:-1] + 3 * np.arange(1, len(tokens) + 1)
    text = ByteBuffer(joined)
    first = start + text.text.index(joined)
    whole, fraction, odd = decimals.plain(text, first, first + np.array([*map(len, tokens)]))
    for row, token in enumerate(tokens):
        is_number = columns._NUMBER.fullmatch(token) is not None
        assert odd[row] or is_number
        if not odd[row]:
            assert (whole[row], fraction[row]) == decimals.split(decimals.number(token))


BYTES = b"a\x7f\x80\xbf\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf4\xf5\xff\x8f\x90\x9f\xa0"
CHARACTERS = [bytes([byte]) for byte in BYTES] + [text.encode() for text in "é日😀"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(CHARACTERS), max_size=8).map(b"".join))
def test_a_text_ends_before_what_is_no_utf8(text):
    text_and_end = ByteBuffer(text + b'"')
    length = int(text_and_end.distance(text_and_end.unicode_ends, np.array([MARGIN]))[0])
    assert text[:length].decode() is not None
    assert (length == len(text)) == (text.decode(errors="replace").encode() == text)


def test_texts_of_any_language_have_shapes():
    messages = [SHAPES[1] % row(n) for n in range(28)]
    messages += [SHAPES[1] % (row(n) | {b"series": "日本-é".encode()}) for n in range(28)]
    batch, given = left_over(messages)
    assert given == []
    assert (batch.series[0], batch.series[55]) == ("s0", "日本-é")


@pytest.mark.parametrize("whitespace", [b"\x0b", b"\x0c", b"\x0b1"])
def test_what_is_whitespace_for_python_alone_is_a_value_like_others(whitespace):
    records = [Record(n, AT_HOME, SHAPES[1] % row(n, value=whitespace)) for n in range(4)]
    assert alone(records, None)["rejects"] == decoded(records, None)["rejects"] == []


LONG = b"x" * 5000


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 71, 72, 500, 5000])
@pytest.mark.parametrize(
    "form", [b'{"id":"%b","note":"%b","value":%d}', b'{"id":"%b","value":%d,"note":"%b"}']
)
def test_messages_with_long_texts_have_shapes(size, form):
    notes = [b"x" * (size + n % 9) for n in range(30)]
    is_first = form.index(b"note") < form.index(b"value")
    messages = [
        form % ((b"q%d" % n, notes[n], n) if is_first else (b"q%d" % n, n, notes[n])) for n in range(30)
    ]
    batch, given = left_over(messages)
    assert given == []
    assert batch.whole.tolist() == [*range(30)]
    assert [batch.query_id[n] for n in range(30)] == [f"q{n}" for n in range(30)]


@pytest.mark.parametrize(
    "note", [b'"%b\\n"' % LONG, b"[%b1]" % (b"1," * 2000), b'{"a":[%b1]}' % (b"[]," * 400)], ids=range(3)
)
def test_long_messages_without_a_shape_are_decoded_together_and_shapes_are_seldom_looked_for(
    note, monkeypatch
):
    looked_for = []
    read = columns._Chunk
    monkeypatch.setattr(columns, "_Chunk", lambda *given: (looked_for.append(1), read(*given))[1])
    decoder = QueryDecoder("queries", HERE, ["hot"])
    calls: list[int] = []
    counting = Counting(decoder._json._rows)
    counting.decode = lambda values: (calls.append(len(values)), counting.rows.decode(values))[1]
    decoder._json = JsonReader(counting)
    messages = [b'{"id":"q%d","value":%d,"note":%b}' % (n, n, note) for n in range(700)]
    batch = decoder.decode([Record(n, AT_HOME, message) for n, message in enumerate(messages)])
    assert batch.whole.tolist() == [*range(700)]
    assert calls[-1] == 700
    assert len(looked_for) <= 8


def test_short_messages_among_long_ones_keep_their_shape():
    short = [SHAPES[1] % row(n) for n in range(40)]
    long = [b'{"id":"q%d","value":1,"note":["%b"]}' % (n, LONG) for n in range(40)]
    batch, given = left_over([message for pair in zip(short, long, strict=True) for message in pair])
    assert given[-40:] == long
    assert not {*given} & {*short}
    assert batch.whole.tolist()[::2] == [*range(40)]


def test_one_long_value_changes_no_chunk():
    lengths = np.full(500, 60)
    of_equal = columns._rows_at_once(lengths)
    lengths[17] = 1 << 20
    assert columns._rows_at_once(lengths) == of_equal


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.sampled_from([b'"', b"\\", b"\n"]))
def test_a_distance_is_counted_up_to_the_next_mark(lengths, mark):
    text = ByteBuffer(mark.join(b"x" * length for length in lengths))
    ends = np.cumsum(np.array(lengths) + 1) + MARGIN - 1
    starts = ends - lengths
    assert text.distance(text.text_ends, starts).tolist() == lengths
    assert text.distance(text.text_ends, ends, backwards=True).tolist() == lengths
    assert text.distance(text.unicode_ends, starts).tolist() == lengths


@settings(deadline=None)
@given(st.lists(st.sampled_from([*CHARACTERS, b"xxxxxxx", "日é".encode()]), max_size=40).map(b"".join))
def test_marks_are_the_same_however_many_bytes_are_looked_at_at_once(text):
    whole = ByteBuffer(text).unicode_ends
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_buffer, "_AT_ONCE", 5)
        assert ByteBuffer(text).unicode_ends.tolist() == whole.tolist()


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"{", b"}", b"[", b"]", b"}\n{", b"x"]), min_size=2, max_size=12).map(
        b"".join
    )
)
def test_many_lines_are_counted_as_few_are(lines):
    few = json_lines.counts(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_FEW_BYTES", 0)
        assert json_lines.counts(lines) == few
