"""JSON events: each is read as if it stood alone, and as the rules of units, times and conditions say."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.settings.fields import LAST_MS
from stream_svt.sources.events import MOST_BYTES, MOST_RECORDS, Fate
from stream_svt.sources.json_values import JsonValues
from tests.support.events import MEASURES, TIME, Row, read, reader_of, records_of, rows_of, source

EVENT = {"user": "ann", "page": "/search", "status": 200, "ms": 12, "ts": TIME}


def line(**changes: Any) -> bytes:
    return json.dumps(EVENT | changes).encode()


def with_tokens(**tokens: str) -> bytes:
    """Return an event with fields as they are written."""
    written = {name: json.dumps(one) for name, one in EVENT.items()} | tokens
    return ("{" + ",".join(f'"{name}":{token}' for name, token in written.items()) + "}").encode()


def one(value: bytes | None, key: bytes | None = None, **changes: Any) -> Row:
    return read(reader_of(source(**changes)), [value], [key])[0]


def test_an_event_is_read_by_the_paths_of_its_source():
    assert one(line()) == Row(Fate.COUNTED, "ann", TIME, 2, 0, (True, False, False, True))
    slow = line(status=502, ms=2000)
    assert one(slow) == Row(Fate.COUNTED, "ann", TIME, 2, 0, (True, True, True, True))


@pytest.mark.parametrize(
    ("token", "unit"),
    [
        ('"ann"', "ann"),
        (r'"\u0061nn"', "ann"),
        (r'"\u0061\u006e\u006e"', "ann"),
        ('"1"', "1"),
        ("1", "1"),
        ("-0", "0"),
        ('"-0"', "-0"),
        ("-17", "-17"),
        ("9223372036854775808", "9223372036854775808"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("1" * 256, "1" * 256),
        ("-" + "1" * 255, "-" + "1" * 255),
        ("true", "true"),
        ("false", "false"),
        ('"true"', "true"),
        (r'"\u0000"', "\0"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ('"' + "é" * 256 + '"', "é" * 256),
        ('"' + "\U0001f600" * 256 + '"', "\U0001f600" * 256),
        ('" "', " "),
    ],
)
def test_units_are_compared_as_texts_after_decoding(token: str, unit: str):
    assert one(with_tokens(user=token)).unit == unit
    # Among others of every type, too.
    others = [line(user=other) for other in ("x", 1, True, None, "ä", 1.5)]
    assert read(reader_of(source()), [*others, with_tokens(user=token)])[-1].unit == unit


@pytest.mark.parametrize(
    "token",
    [
        "null", '""', "1.0", "1e3", "-0.0", "1e400", "{}", "[]", '["ann"]', '{"user":"ann"}',
        "1" * 257, "-" + "1" * 256, "1" * 5000, "-" + "1" * 5000, '"' + "x" * 257 + '"', '"' + "é" * 257 + '"',
        '"' + "x" * (MAX_BYTES - 200) + '"', "[" * 300 + "]" * 300,
    ],
)  # fmt: skip
def test_an_event_without_a_unit_is_none(token: str):
    event = with_tokens(user=token)
    assert one(event) == Row(Fate.NO_UNIT)
    assert [row.fate for row in read(reader_of(source()), [line(), event, line()])] == [0, Fate.NO_UNIT, 0]


def test_an_event_without_the_field_of_its_unit_is_none():
    assert one(b'{"page": "/", "ts": 5}') == Row(Fate.NO_UNIT)
    assert one(b"{}") == Row(Fate.NO_UNIT)
    assert one(line(), unit="user.id", series=None) == Row(Fate.NO_UNIT)


UNREADABLE = [
    b" ", b"null", b"1", b'"text"', b"[]", b"[{}]", b"{", b"}", b"{}}", b"{}{}", b"{}\n{}", b"{} x", b"{}\0", b"\0",
    b'{"user":}', b'{"user"}', b'{user:"ann"}', b'{"user":"ann",}', b"{'user':'ann'}", b'{"user":"ann"', b'{"user":01}',
    b'{"user":1.}', b'{"user":.5}', b'{"user":+1}', b'{"user":NaN}', b'{"ms":Infinity}', b'{"user":"a\nb"}',
    b'{"user":"\xff"}', b'{"user":"\xed\xa0\x80"}', rb'{"user":"\ud800"}', rb'{"user":"\udc00x"}', rb'{"user":"\x"}',
    b"\xef\xbb\xbf{}", line().decode().encode("utf-16"), line().decode().encode("utf-16-le"), b"/**/{}", b"\x0b{}",
    b'{"user":"ann"}' + b" " * MAX_BYTES, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"x":' * 100_000 + b"1" + b"}" * 100_000, b"[" * 100_000, b'{"x":' + b"[" * 100_000, b'{"x":"' + b"[" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("value", UNREADABLE)
def test_what_is_not_one_object_is_unreadable(value: bytes):
    assert one(value) == Row(Fate.UNREADABLE)
    together = read(reader_of(source()), [line(), value, value, line(user="bob")])
    assert [row.unit for row in together] == ["ann", "", "", "bob"]


def called_at(depth: int, value: bytes) -> Row:
    return called_at(depth - 1, value) if depth else one(value)


@pytest.mark.parametrize(
    "around", [b"%b", b"[%b]", b'{"x":%b}', b'["]",%b,"["]', rb'["\\",%b]', rb'["\"",%b]']
)
def test_how_deep_a_record_may_be_nested_does_not_depend_on_the_caller(around: bytes):
    for depth, fate in ((450, Fate.COUNTED), (520, Fate.UNREADABLE), (700, Fate.UNREADABLE)):
        content = around.replace(b"%b", b"[" * depth + b"]" * depth)
        assert {called_at(frames, line()[:-1] + b',"x":' + content + b"}").fate for frames in (0, 300)} == {
            fate
        }


@pytest.mark.parametrize("value", [None, b""])
def test_a_record_without_a_value_is_no_event(value: bytes | None):
    assert one(value) == Row(Fate.EMPTY)
    assert one(value, unit="key", time=None, series=None, measures=None) == Row(Fate.EMPTY)


def test_whitespace_order_and_other_fields_do_not_matter():
    values = [line(), line() + b"\n", b" \t\r\n" + line(), json.dumps(EVENT, indent=2).encode()]
    values += [json.dumps(dict(reversed(EVENT.items())) | {"x": {"user": [1, {"user": "b"}]}}).encode()]
    values += [line(x="[" * 1000), line(x=[[]] * 1000), line(x="y" * 100_000), line(x=10**4200, y="\0")]
    values += [with_tokens(x="1" * 5000), with_tokens(x=json.dumps("[" * 600 + '"\\' * 3))]
    values += [line(x="\\", y="[" * 600), line(x='\\"', y="[" * 600), line(x='"\\', y="{" * 600)]
    values += [with_tokens(x="[" * 400 + "]" * 400), with_tokens(x="[" + "{}," * 900 + "[]]")]
    assert {*read(reader_of(source()), values)} == {one(line())}


def test_the_last_of_two_fields_with_one_name_counts():
    twice = with_tokens(user=r'"bob","\u0075ser":"ann"')
    assert one(twice).unit == "ann"
    assert read(reader_of(source()), [line(user=5), twice])[1].unit == "ann"
    nested = b'{"payload":{"user":"bob"},"payload":{"x":1},"ts":1}'
    assert one(nested, unit="payload.user") == Row(Fate.NO_UNIT)
    assert one(b'{"payload":3,"payload":{"user":"bob"},"ts":1}', unit="payload.user").unit == "bob"


NESTED = [
    (b'{"payload":{"after":{"user":"ann"}},"ts":1}', "ann"),
    (b'{"payload":{"after":null},"ts":1}', None),
    (b'{"payload":null,"ts":1}', None),
    (b'{"payload":{"after":[{"user":"ann"}]},"ts":1}', None),
    (b'{"payload":"text","ts":1}', None),
    (b'{"payload":{"after":7,"user":"ann"},"ts":1}', None),
    (b'{"payload.after.user":"ann","ts":1}', None),
    (b'{"payload":{"after":{"user":' + b"9" * 5000 + b'}},"ts":1}', None),
]


@pytest.mark.parametrize("is_large", [False, True])
def test_what_stands_in_the_way_of_a_path_is_no_unit(is_large):
    events = [value for value, _ in NESTED]
    if is_large:
        events = [b'{"x":"' + b"x" * 70_000 + b'",' + value[1:] for value in events]
    reader = reader_of(source(unit="payload.after.user", series=None, measures=None))
    found = read(reader, events)
    assert [row.unit or None for row in found] == [unit for _, unit in NESTED]
    assert {row.fate for row in found[1:]} <= {Fate.NO_UNIT, Fate.UNREADABLE}
    assert found == [read(reader, [value])[0] for value in events]


@pytest.mark.parametrize(
    "name", ["a b", 'a"b', "a\\b", "é", "a\nb", "key", "f0", "\0", "__class__", "1", "self", "."]
)
def test_fields_have_any_names(name: str):
    path = name.replace("\\", "\\\\").replace(".", "\\.").replace("key", "\\key")
    spec = source().model_copy(update={"unit": path})  # the settings refuse invisible characters
    reader = reader_of(spec)
    event = {name: "bob"} | EVENT
    values = [
        json.dumps(event).encode(),
        json.dumps(event, ensure_ascii=False).encode(),
        b"{}",
        b"{",
        line(x=1),
    ]
    assert [row.unit for row in read(reader, values)] == ["bob", "bob", "", "", ""]


def test_one_path_that_is_blocked_leads_no_other_path_elsewhere():
    reader = reader_of(
        source(unit="payload.after.user", series={"field": "meta.page", "names": ["/"]}, time=None)
    )
    blocked = b'{"payload":{"user":"ann","after":{}},"user":"bob","meta":"/"}'
    assert read(reader, [blocked, b'{"payload":{"user":"ann"},"meta":"/"}']) == [Row(Fate.NO_UNIT)] * 2


def test_the_record_s_key_is_a_path():
    keys = [b"ann", b"", None, b"\xff", b"1", "é".encode(), b"x" * 257, b"\xed\xa0\x80", b'"ann"']
    rows = read(reader_of(source(unit="key")), [line()] * len(keys), keys)
    assert [row.unit for row in rows] == ["ann", "", "", "", "1", "é", "", "", '"ann"']
    assert {row.fate for row in rows if not row.unit} == {Fate.NO_UNIT}
    by_page = source(series={"field": "key", "names": ["/", "x"]}, where={"key": ["/", "x", "y"]})
    rows = read(reader_of(by_page), [line()] * 4, [b"x", b"y", b"z", None])
    assert [(row.fate, row.series) for row in rows] == [
        (0, 2),
        (0, -1),
        (Fate.FILTERED, 0),
        (Fate.FILTERED, 0),
    ]
    timed = source(time={"field": "key", "in": "s"})
    assert [row.ms for row in read(reader_of(timed), [line()] * 2, [b"1.5", b"x"])] == [1500, 0]


def test_series_and_datasets_have_the_codes_of_names_that_were_asked_for():
    spec = source(dataset={"pattern": "{name}-{date}", "field": "shop", "names": ["north", "1", "true"]})
    reader = reader_of(spec)
    pages = ["/", "/search", "7", 7, "/other", "", None, 7.0, True, "y" * 300, ["/"]]
    shops = ["north", 1, True, "true", "south", "", None, 1.0, "1", "NORTH", {}]
    rows = read(reader, [line(page=page, shop=shop) for page, shop in zip(pages, shops, strict=True)])
    names = {code: name for name, code in reader.names.items()}
    assert [names.get(row.series) for row in rows] == [
        "/",
        "/search",
        "7",
        "7",
        *[None] * 4,
        "true",
        None,
        None,
    ]
    assert [names.get(row.dataset) for row in rows] == [
        "north",
        "1",
        "true",
        "true",
        *[None] * 4,
        "1",
        None,
        None,
    ]
    assert reader.code("/other") == len(names)
    assert read(reader, [line(page="/other", shop="north")])[0].series == len(names)
    assert reader.code("/other") == len(names)
    assert reader.code("") == 0


@pytest.mark.parametrize(
    ("token", "errors"),
    [
        ("500", True), ('"500"', True), ("502", True), ("503", False), ("500.0", False), ("5e2", False), ("true", True),
        ('"true"', True), ("1", False), ('"down"', True), (r'"\u0064own"', True), ("null", False), ("[500]", False),
        ('"0500"', False), ("0", False), ("-500", False), ("500" + "0" * 4400, False), ('""', False), ("{}", False),
    ],
)  # fmt: skip
def test_texts_of_a_condition_are_compared_like_units(token: str, errors: bool):
    event = with_tokens(status=token)
    assert one(event).measures[1] is errors
    for others in ([500, 1], ["500"], [500, "x", True, None, 2.5]):
        rows = read(reader_of(source()), [event, *(line(status=other) for other in others)])
        assert rows[0].measures[1] is errors


@pytest.mark.parametrize(
    ("token", "slow", "middle"),
    [
        ("2000", True, True), ("2000.0", True, True), ("2e3", True, True), ("1999", False, True), ("2001", True, False),
        ("1999.9999999999999999999999", False, True), ("2000.2499999999999999999999", True, True),
        ("2000.25", True, False), ("-0.5", False, True), ("-0.50000000000000000001", False, False),
        ("20000e-1", True, True), ("0.2e4", True, True), ("1e400", True, False), ("-1e400", False, False),
        ("1e-400", False, True), ("-1e-400", False, True), ("1" * 5000, True, False), ("-" + "1" * 5000, False, False),
        ("1e99999999999999999999", True, False), ("-1e99999999999999999999", False, False), ("0e99", False, True),
        ("18446744073709551616", True, False), ("-9223372036854775808", False, False), ("-0", False, True),
        ('"2000"', False, False), ("null", False, False), ("true", False, False), ("[2000]", False, False),
        ("0." + "9" * 5000, False, True), ("2000." + "0" * 5000 + "1", True, True),
    ],
)  # fmt: skip
def test_numbers_of_a_condition_are_compared_exactly(token: str, slow: bool, middle: bool):
    event = with_tokens(ms=token)
    assert one(event).measures[2:] == (slow, middle)
    for others in ([1], [1.5], [None], ["x", True, 1.5, 10**30], [*range(50), 1.5]):
        rows = read(reader_of(source()), [event, *(line(ms=other) for other in others)])
        assert rows[0].measures[2:] == (slow, middle)


def test_all_conditions_of_the_source_and_of_a_measure_must_match():
    measures = [
        {"name": "a", "where": {"status": 500, "ms": {"below": 10}}},
        {"name": "b", "where": {"status": 404}},
    ]
    reader = reader_of(source(where={"kind": "view", "ms": {"at_least": 0}}, measures=measures))
    events = [
        line(kind="view", status=500, ms=5),
        line(kind="view", status=500, ms=10),
        line(kind="view", status=404),
    ]
    events += [
        line(kind="click", status=500, ms=5),
        line(kind="view", status=500, ms=-1),
        line(status=500, ms=5),
    ]
    rows = read(reader, events)
    assert [row.measures for row in rows[:3]] == [(True, False), (), (False, True)]
    assert [row.fate for row in rows[1:]] == [Fate.NO_MEASURE, Fate.COUNTED, *[Fate.FILTERED] * 3]


TIMES = [
    ("s", "1764403200.25", TIME), ("s", "1764403200", TIME - 250), ("s", "1764403200.2509999999999999999", TIME),
    ("s", "1.76440320025e9", TIME), ("s", "1764403200250e-3", TIME), ("s", "0", 0), ("s", "0.0009", 0),
    ("s", "0.001", 1), ("s", "-0.0001", None), ("s", "-1", None), ("s", "1e400", None), ("s", "-1e400", None),
    ("s", "-0", 0), ("s", "1e-400", 0), ("s", str(LAST_MS), None), ("s", str(LAST_MS // 1000), LAST_MS // 1000 * 1000),
    ("s", "9" * 5000, None), ("s", '"1764403200.25"', TIME), ("s", '"1764403200,25"', None), ("s", '" 1"', None),
    ("s", '"1e3"', 1_000_000), ("s", '"NaN"', None), ("s", '"1_0"', None), ("s", '"+1"', None), ("s", '""', None),
    ("s", "null", None), ("s", "true", None), ("s", "[1]", None), ("s", "{}", None),
    ("ms", str(TIME), TIME), ("ms", "1764403200250.999", TIME), ("ms", "32503680000000", 32_503_680_000_000),
    ("ms", "1e12", 10**12), ("ms", str(LAST_MS), LAST_MS), ("ms", str(LAST_MS + 1), None), ("ms", "1" * 30, None),
    ("ms", "9223372036854775807", None), ("ms", "-9223372036854775808", None), ("ms", "18446744073709551615", None),
    ("us", "1764403200250999", TIME), ("us", "1764403200250999.9", TIME), ("us", "999", 0), ("us", "-1", None),
    ("iso", '"2025-11-29T08:00:00.250Z"', TIME), ("iso", str(TIME), None), ("iso", '"1764403200250"', None),
    ("iso", r'"2025-11-29\u002009:00:00.25+01:00"', TIME), ("iso", "null", None), ("iso", "20251129", None),
]  # fmt: skip


@pytest.mark.parametrize(("scale", "token", "ms"), TIMES)
def test_times_are_floored_to_milliseconds_exactly(scale: str, token: str, ms: int | None):
    reader = reader_of(source(time={"field": "ts", "in": scale}))
    expected = (
        Row(Fate.NO_TIME) if ms is None else read(reader_of(source(time=None)), [line()])[0]._replace(ms=ms)
    )
    event = with_tokens(ts=token)
    for others in ([], [1], [1.5], ["1.5"], [None, True, "x", 10**30, 1], [*range(50), 0.5]):
        assert read(reader, [event, *(line(ts=other) for other in others)])[0] == expected


@pytest.mark.parametrize("timestamp", [0, 1, TIME, LAST_MS, -1, LAST_MS + 1, -(2**63), 2**63 - 1])
def test_without_a_field_of_time_the_record_s_timestamp_is_it(timestamp: int):
    reader = reader_of(source(time=None))
    (row,) = rows_of(reader.read(records_of([line(ts="x")], timestamp=timestamp)))
    assert row.fate is (Fate.COUNTED if 0 <= timestamp <= LAST_MS else Fate.NO_TIME)
    assert row.ms in {0, timestamp}


# --- as if alone

TOKENS = [
    "null", "true", "false", "0", "1", "-1", "-0", "7", "200", "500", "502", "1999", "2000", "2001", str(TIME), "1.5",
    "2000.0", "2000.2499999999999999999", "1e3", "1e400", "-1e-400", "9007199254740993", "18446744073709551616", '""',
    '"1"', '"500"', '"ann"', r'"\u0061nn"', '"é"', '"/"', '"/search"', r'"\/"', '"true"', "[]", "{}", '{"user":"x"}',
    "[[1]]", str(10**300), r'"\ud800"', r'"\ud83d\ude00"', '"' + "x" * 257 + '"', "1" * 5000, '"}"', '"{"', '"\\n"',
    "01", "NaN", "}", '"', "[" * 600 + "]" * 600, "[[],[]]", r'"\\"', r'"\""', '"2025-11-29T08:00:00Z"',
]  # fmt: skip
NAMES = ["user", "page", "status", "ms", "ts", r"u\u0073er", "x", "payload"]
WHOLE = [
    *UNREADABLE[:-8],
    None,
    b"",
    b'{"user":"x"}\n{"user":"y"}',
    b'{"page":"}',
    b'{"}',
    b'{"x":[{}',
    b'{"y":1}]}',
]
WHOLE += [b'{"user":"big","ts":1,"x":"' + b"x" * 70_000 + b'"}', b'{"user":"big","ts":1,"payload":3}']


def crafted(chance: random.Random) -> bytes | None:
    if chance.random() < 0.15:
        return chance.choice(WHOLE)
    names = [*NAMES[:5], *chance.choices(NAMES, k=2)] if chance.random() < 0.8 else chance.choices(NAMES, k=4)
    is_plain = chance.random() < 0.5
    members = [
        f'"{name}":{json.dumps(EVENT.get(name, 1)) if is_plain or chance.random() < 0.6 else chance.choice(TOKENS)}'
        for name in names
    ]
    text = bytearray(("{" + chance.choice((",", ", ", ",\n")).join(members) + "}").encode())
    for _ in range(chance.choice((0, 0, 0, 0, 1, 2))):
        at = chance.randrange(len(text) + 1)
        text[at : at + chance.randrange(3)] = chance.choice(
            (b"", b"{", b"}", b"\n", b'"', b"\\", b"\0", b"\xff", b"1")
        )
    return bytes(text)


SOURCES: list[tuple[dict[str, Any], bytes]] = [
    ({}, line()),
    ({"time": {"field": "ts", "in": "s"}}, line(ts=TIME / 1000)),
    ({"time": {"field": "ts", "in": "iso"}}, line(ts="2025-11-29T08:00:00Z")),
    ({"unit": "key", "time": None}, line()),
    (
        {"unit": "payload.user", "series": {"field": "payload.page", "names": ["/"]}, "time": None},
        line(payload=EVENT),
    ),
    (
        {"where": {"x": [1, True]}, "dataset": {"pattern": "d-{name}", "field": "page", "names": ["7"]}},
        line(x="1"),
    ),
]


@pytest.mark.parametrize(("changes", "fitting"), SOURCES)
def test_an_event_in_any_company_is_what_it_is_alone(changes: dict[str, Any], fitting: bytes):
    chance = random.Random(5)
    reader = reader_of(source(**changes))
    seen: dict[Fate, int] = {}
    for _ in range(12):
        values = [crafted(chance) for _ in range(chance.choice((2, 10, 150, 400)))]
        values += [fitting] * chance.choice((1, 300))  # with many that fit groups decode
        keys = [chance.choice((None, b"ann", b"1", b"\xff", "é".encode(), b"")) for _ in values]
        keys[-1] = b"bob"
        alone = [read(reader, [value], [key])[0] for value, key in zip(values, keys, strict=True)]
        for row in alone:
            seen[row.fate] = seen.get(row.fate, 0) + 1
        order = [*range(len(values))]
        for _ in range(3):
            chance.shuffle(order)
            company = read(reader, [values[row] for row in order], [keys[row] for row in order])
            assert company == [alone[row] for row in order]
    assert {Fate.COUNTED, Fate.EMPTY, Fate.UNREADABLE} <= {*seen}


def test_plain_records_decode_in_groups_as_they_stand_in_their_batches(monkeypatch):
    monkeypatch.setattr(JsonValues, "_alone", None)
    values = [line(user=f"user-{number}") for number in range(1000)]
    assert [row.unit for row in read(reader_of(source()), values)] == [f"user-{n}" for n in range(1000)]


TWO = b'{"user":"ann","ts":1}\n{"user":"bob","ts":1}'
"""Two objects: with two parts of one object there are as many objects as records."""


@pytest.mark.parametrize(
    "parts",
    [
        (b'{"user":"ann","x":[1,', b'{"y":2}],"ts":1}'),
        (b'{"user":"ann","x":[{}', b',{}],"ts":1}'),
        (b'{"user":"ann","x":[{}', b'{"y":2}],"ts":1}'),
        (b'{"user":"ann","x":"}', b'{","ts":1}'),
        (b'{"user":"ann","}', b'{":1,"ts":1}'),
        (b'{"user":"ann","ts":1', b"}"),
        (b"{", b'"user":"ann","ts":1}'),
        (b'{"user":"ann","ts":1}{"user":"bob","ts":1}', b" "),
    ],
)
def test_parts_of_objects_in_different_records_are_never_joined(parts: tuple[bytes, bytes]):
    reader = reader_of(source())
    for order in permutations([*parts, TWO]):
        found = read(reader, [line(), *order, line(user="bob")])
        assert [row.unit for row in found] == ["ann", "", "", "", "bob"]
        assert {row.fate for row in found[1:4]} == {Fate.UNREADABLE}


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([line(), b"{}", b'{"user":1}'])), max_size=30)
)
def test_bytes_of_any_kind_change_no_neighbour(values: list[bytes]):
    reader = reader_of(source())
    assert read(reader, values) == [read(reader, [value])[0] for value in values]


# --- against an independent reading


class Fraction64(str):
    """A number with a fraction or an exponent, as written."""

    __slots__ = ()


def text_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Fraction64) or not isinstance(value, int | str):
        return None
    return str(value) if 1 <= len(str(value)) <= 256 else None


def number_of(value: Any) -> Fraction | None:
    if isinstance(value, Fraction64):
        return Fraction(Decimal(value))
    return Fraction(value) if isinstance(value, int) and not isinstance(value, bool) else None


def expected(message: bytes) -> Row:
    """Return what a slow reader finds in valid JSON for the source of the tests."""
    found = json.loads(message, parse_float=Fraction64)
    status, ms = text_of(found.get("status")), number_of(found.get("ms"))
    slow = ms is not None and ms >= 2000
    middle = ms is not None and Fraction(-1, 2) <= ms < Fraction(8001, 4)
    measures = (True, status in {"500", "502", "true", "down"}, slow, middle)
    if (unit := text_of(found.get("user"))) is None:
        return Row(Fate.NO_UNIT)
    ts = number_of(found.get("ts"))
    if ts is None and isinstance(found.get("ts"), str) and found["ts"].isdecimal():
        ts = Fraction(int(found["ts"]))
    if ts is None or not 0 <= ts < LAST_MS + 1:
        return Row(Fate.NO_TIME)
    series = {"/": 1, "/search": 2, "7": 3}.get(text_of(found.get("page")) or "", -1)
    return Row(Fate.COUNTED, unit, int(ts), series, 0, measures)


def test_events_are_read_as_a_slow_reader_reads_them():
    chance = random.Random(7)
    tokens = [
        token for token in TOKENS if len(token) < 4000 and token not in {r'"\ud800"', "01", "NaN", "}", '"'}
    ]
    tokens.remove("[" * 600 + "]" * 600)
    values = []
    for _ in range(4000):
        chosen = {
            name: chance.choice(tokens) for name in chance.sample(NAMES[:5], chance.choice((1, 2, 2, 3, 5)))
        }
        values.append(with_tokens(**chosen))
    found = read(reader_of(source()), values)
    assert found == [expected(value) for value in values]
    assert sum(row.fate is Fate.COUNTED for row in found) > 1000
    assert {row.measures for row in found} >= {(True, True, True, False), (True, False, True, True)}
    assert len(MEASURES) == 4


# --- steps


def test_a_step_takes_at_least_one_record_and_a_bounded_number():
    reader = reader_of(source())
    assert reader.at_once(records_of([b"x" * MAX_BYTES] * 3)) == 1
    assert reader.at_once(records_of([line()])) == 1
    assert reader.at_once(records_of([b"{}"] * 2 * MOST_RECORDS)) == MOST_RECORDS
    assert reader.at_once(records_of([None, b"x" * (MOST_BYTES // 2), b"x" * (MOST_BYTES // 2)])) == 2
