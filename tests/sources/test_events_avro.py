"""Avro events: each is read as if it stood alone, by its schema; one without a schema waits, or is dropped for good."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from stream_svt.application.config import Files
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.registry import SchemaRegistry
from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.settings.fields import LAST_MS
from stream_svt.settings.sections import SchemaRegistryConfig
from stream_svt.sources.events import MOST_BYTES, MOST_BYTES_OF_ITEMS, EventReader, Fate
from tests.support.avro import AtHand, Registry, encode, record, varint
from tests.support.avro_writing import Writer, Written
from tests.support.events import TIME, Row, read, reader_of, records_of, rows_of, source

STAMP = {"type": "long", "logicalType": "timestamp-millis"}
PLAIN = record("Event", user="string", page="string", status="int", ms="long", ts=STAMP)
EVENT = {"user": "ann", "page": "/search", "status": 200, "ms": 12, "ts": TIME}
FOUND = Row(Fate.COUNTED, "ann", TIME, 2, 0, (True, False, False, True))
MANY = 150
"""More records than are located one by one."""


def reader_for(*schemas: Any, **changes: Any) -> EventReader:
    return reader_of(source(format="avro", **changes), AtHand(dict(enumerate(schemas, 1))))


def one(schema: Any, content: Any, **changes: Any) -> Row:
    """Return an event, alone and among many of its schema."""
    reader, value = reader_for(schema, **changes), encode(schema, content)
    (alone,) = read(reader, [value])
    assert {*read(reader, [value] * MANY)} == {alone}
    return alone


def test_an_event_is_read_by_the_paths_of_its_source():
    assert one(PLAIN, EVENT) == FOUND
    assert one(PLAIN, EVENT | {"status": 502, "ms": 2000}).measures == (True, True, True, True)
    values = [encode(PLAIN, EVENT | {"user": f"u{number}", "ms": number}) for number in range(3000)]
    rows = read(reader_for(PLAIN), values)
    assert [row.unit for row in rows] == [f"u{number}" for number in range(3000)]
    assert [row.measures[2] for row in rows] == [number >= 2000 for number in range(3000)]


@pytest.mark.parametrize(
    ("kind", "content", "unit"),
    [
        ("string", "ann", "ann"), ("string", "1", "1"), ("long", 1, "1"), ("long", -(2**63), str(-(2**63))),
        ("int", -17, "-17"), ("boolean", True, "true"), ("boolean", False, "false"), ("string", "é" * 256, "é" * 256),
        ("string", "\0", "\0"), ("string", "\U0001f600" * 256, "\U0001f600" * 256),
        ({"type": "string", "logicalType": "uuid"}, "b2e7ee6e-06fd-4b2e-a0d4", "b2e7ee6e-06fd-4b2e-a0d4"),
        ({"type": "enum", "name": "E", "symbols": ["ann", "bob"]}, "bob", "bob"), (["null", "string"], "ann", "ann"),
        (["null", "long", "string"], "1", "1"), (["null", "long", "string"], 1, "1"),
        (["double", "boolean"], True, "true"),
    ],
)  # fmt: skip
def test_units_are_texts_integers_booleans_and_enums(kind: Any, content: Any, unit: str):
    assert one(record("Event", user=kind, ts="long"), {"user": content, "ts": TIME}).unit == unit


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("string", ""), ("string", "x" * 257), ("string", "é" * 257), ("string", "x" * (MAX_BYTES - 100)),
        ("double", 1.0), ("float", 1.0), ("bytes", b"ann"), ({"type": "fixed", "name": "F", "size": 3}, b"ann"),
        (["null", "string"], None), ("null", None), ({"type": "array", "items": "string"}, ["ann"]),
        ({"type": "map", "values": "string"}, {"user": "ann"}), (record("Inner", user="string"), {"user": "ann"}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, b"\1"),
    ],
)  # fmt: skip
def test_an_event_without_a_unit_is_none(kind: Any, content: Any):
    assert one(record("Event", user=kind, ts="long"), {"user": content, "ts": TIME}) == Row(Fate.NO_UNIT)


def test_a_text_that_is_no_utf_8_is_no_unit():
    for text in (b"\xff", b"\xed\xa0\x80", b"ab\xc3"):
        value = b"\0\0\0\0\1" + varint(len(text)) + text + varint(TIME)
        assert read(reader_for(record("Event", user="string", ts="long")), [value]) == [Row(Fate.NO_UNIT)]


def test_a_schema_without_a_field_has_events_without_it():
    assert one(record("Event", page="string", ts="long"), EVENT) == Row(Fate.NO_UNIT)
    assert one(record("Event", user="string"), EVENT) == Row(Fate.NO_TIME)
    assert one(record("Event", user="string", ts="long"), EVENT) == FOUND._replace(
        series=-1, measures=(True, *[False] * 3)
    )
    assert one(record("Event"), {}) == Row(Fate.NO_UNIT)
    assert one(PLAIN, EVENT, where={"kind": "view"}) == Row(Fate.FILTERED)


def test_paths_lead_into_records_and_the_record_s_key_is_one():
    inner = record("Inner", user=["null", "string"])
    schema = record("Event", payload=["null", inner], ts="long")
    changes: dict[str, Any] = {"unit": "payload.user", "series": None, "measures": None}
    assert one(schema, {"payload": {"user": "ann"}, "ts": 5}, **changes).unit == "ann"
    assert one(schema, {"payload": {"user": None}, "ts": 5}, **changes) == Row(Fate.NO_UNIT)
    assert one(schema, {"payload": None, "ts": 5}, **changes) == Row(Fate.NO_UNIT)
    other = record("Other", ts="int")
    values = [encode(PLAIN, EVENT), encode(other, {"ts": 1}, 2), b"x", None, encode(PLAIN, EVENT)]
    rows = read(reader_for(PLAIN, other, unit="key"), values, [b"ann", "é".encode(), b"a", b"b", b"\xff"])
    assert [row.unit for row in rows] == ["ann", "é", "", "", ""]


NUMBERS = [
    ("long", 2000, True, True), ("long", 1999, False, True), ("long", 2001, True, False), ("int", -1, False, False),
    ("long", 2**63 - 1, True, False), ("long", -(2**63), False, False), ("long", 0, False, True),
    ("double", 2000.0, True, True), ("double", math.nextafter(2000, 0), False, True), ("double", 2000.25, True, False),
    ("double", math.nextafter(2000.25, 0), True, True), ("double", -0.5, False, True), ("double", -0.0, False, True),
    ("double", math.nextafter(-0.5, -1), False, False), ("double", math.nan, False, False),
    ("double", 5e-324, False, True),
    ("double", math.inf, False, False), ("double", -math.inf, False, False), ("double", 1e300, True, False),
    ("double", -1e300, False, False), ("double", -5e-324, False, True), ("float", 2000.0, True, True),
    ("float", math.nan, False, False), ("float", math.inf, False, False), ("string", "2000", False, False),
    ("boolean", True, False, False), (["null", "long"], None, False, False), (["null", "double"], 2000.0, True, True),
    (["null", "double", "long"], math.inf, False, False), (["null", "double", "long"], 2000, True, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "slow", "middle"), NUMBERS)
def test_numbers_of_a_condition_are_compared_exactly(kind: Any, content: Any, slow: bool, middle: bool):
    schema = record("Event", user="string", ms=kind, ts="long")
    assert one(schema, EVENT | {"ms": content}).measures[2:] == (slow, middle)


@pytest.mark.parametrize(
    ("unscaled", "slow", "middle"),
    [(200_000, True, True), (199_999, False, True), (200_025, True, False), (-51, False, False)],
)
def test_decimals_of_a_condition_are_compared_exactly(unscaled: int, slow: bool, middle: bool):
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 80, "scale": 2}
    for size in (4, 9, 30, 40):
        data = varint(size) + unscaled.to_bytes(size, "big", signed=True)
        value = b"\0\0\0\0\1" + varint(3) + b"ann" + data + varint(TIME)
        rows = read(reader_for(record("Event", user="string", ms=kind, ts="long")), [value] * MANY)
        assert {row.measures[2:] for row in rows} == {(slow, middle)}


@pytest.mark.parametrize(
    ("kind", "content", "errors"),
    [
        ("int", 500, True), ("string", "500", True), ("long", 503, False), ("boolean", True, True), ("int", 1, False),
        ("double", 500.0, False), ("string", "down", True), (["null", "int"], None, False),
        (["null", "int"], 502, True),
        ({"type": "enum", "name": "E", "symbols": ["up", "down"]}, "down", True), (["int", "string"], "down", True),
        (["int", "string"], 500, True), ("bytes", b"500", False),
    ],
)  # fmt: skip
def test_texts_of_a_condition_are_compared_like_units(kind: Any, content: Any, errors: bool):
    schema = record("Event", user="string", status=kind, ts="long")
    assert one(schema, EVENT | {"status": content}).measures[1] is errors


def test_integers_of_a_condition_are_compared_up_to_their_last_digit():
    wanted = [2**62, -(2**62), 2**63 - 1, -(2**63), 5, "05", "-0"]
    schema = record("Event", user="string", ms="long", ts="long")
    measures = [{"name": "all"}, {"name": "some", "where": {"ms": wanted}}]
    for number in (2**62, 2**62 + 1, -(2**62), -(2**62) - 1, 2**63 - 1, 2**63 - 2, -(2**63), 5, 0, -5):
        for conditions in (measures, [measures[0], {"name": "some", "where": {"ms": [5, 6]}}]):
            found = one(schema, EVENT | {"ms": number}, measures=conditions).measures[1]
            assert found is (number in conditions[1]["where"]["ms"])


@pytest.mark.parametrize(
    ("scale", "kind", "content", "ms"),
    [
        ("s", "long", 1_764_403_200, TIME - 250), ("s", "double", 1_764_403_200.25, TIME), ("s", "float", 0.5, 500),
        ("s", "double", math.nextafter(1.001, 0), 1000), ("s", "double", -1e-300, None),
        ("s", "double", math.nan, None),
        ("s", "double", math.inf, None), ("s", "double", 1e300, None), ("s", "long", 2**63 - 1, None),
        ("s", "string", "1764403200.25", TIME), ("s", "string", "x", None), ("s", ["null", "long"], None, None),
        ("s", ["string", "double"], 1_764_403_200.25, TIME), ("s", ["string", "long"], "7", 7000),
        ("ms", STAMP, TIME, TIME), ("ms", "long", LAST_MS, LAST_MS), ("ms", "long", LAST_MS + 1, None),
        ("ms", "long", -1, None), ("ms", "int", 0, 0), ("ms", "boolean", True, None), ("ms", "bytes", b"1", None),
        ("us", {"type": "long", "logicalType": "timestamp-micros"}, TIME * 1000 + 999, TIME), ("us", "long", -1, None),
        ("iso", "string", "2025-11-29T08:00:00.250Z", TIME), ("iso", "long", 20251129, None),
        ("iso", "string", "", None),
    ],
)  # fmt: skip
def test_times_are_floored_to_milliseconds_exactly(scale: str, kind: Any, content: Any, ms: int | None):
    schema = record("Event", user="string", page="string", status="int", ms="long", ts=kind)
    found = one(schema, EVENT | {"ts": content}, time={"field": "ts", "in": scale})
    assert found == (Row(Fate.NO_TIME) if ms is None else FOUND._replace(ms=ms))


def test_what_is_no_record_of_its_schema_is_unreadable():
    good = encode(PLAIN, EVENT)
    bad = [
        good[:-1],
        good + b"\0",
        b"\1" + good[1:],
        b"{}",
        b"\0",
        b"\0\0\0\0\1",
        b" " + good,
        good[:5] + b"\xff" * 40,
    ]
    bad += [good + bytes(MAX_BYTES), good[:5] + varint(-1) + good[6:], good[:5] + varint(2**40) + good[6:]]
    reader = reader_for(PLAIN)
    assert [read(reader, [value])[0].fate for value in bad] == [Fate.UNREADABLE] * len(bad)
    for others in ([good], [good] * MANY):
        rows = read(reader, [*others, *bad, *others])
        assert rows == [FOUND] * len(others) + [Row(Fate.UNREADABLE)] * len(bad) + [FOUND] * len(others)
    union = record("Event", user=["null", "string"], ts="long")
    wrong = b"\0\0\0\0\1" + varint(2) + varint(3) + b"ann" + varint(5)
    assert read(reader_for(union), [wrong]) == [Row(Fate.UNREADABLE)]
    assert read(reader, [None, b""]) == [Row(Fate.EMPTY)] * 2


# --- schemas


def test_reading_stops_at_a_schema_that_is_not_known_yet():
    schemas = AtHand({1: PLAIN})
    reader = reader_of(source(format="avro"), schemas)
    records = records_of([encode(PLAIN, EVENT, number) for number in (1, 1, 2, 1, 3, 2)])
    assert reader.lack(records) == (2, "schema 2 is missing")
    assert schemas.requested == [2, 3]
    assert rows_of(reader.read(records[:2])) == [FOUND] * 2
    schemas.schemas[2] = schemas.schemas[1]
    assert reader.lack(records) == (4, "schema 3 is missing")
    schemas.schemas[3] = schemas.schemas[1]
    assert reader.lack(records) == (6, "")
    assert rows_of(reader.read(records)) == [FOUND] * 6


def test_few_schemas_are_asked_for_at_a_time():
    schemas = AtHand({})
    reader = reader_of(source(format="avro"), schemas)
    records = records_of([encode(PLAIN, EVENT, number) for number in range(1000, 0, -1)])
    assert reader.lack(records) == (0, "schema 1000 is missing")
    assert schemas.requested == [*range(1000, 1000 - len(schemas.requested), -1)]
    assert len(schemas.requested) <= 32
    assert reader_of(source(format="avro")).lack(records)[0] == 0
    assert reader_of(source()).lack(records) == (1000, "")


UNUSABLE = ["", "{", '"string"', "7", record("Event", user={"type": "fixed", "name": "F"}), "[" * 5000]
UNUSABLE.append(
    {
        "type": "record",
        "name": "A",
        "fields": [{"name": "user", "type": ["null", "A"]}, {"name": "x", "type": "long"}],
    }
)


@pytest.mark.parametrize("schema", UNUSABLE)
def test_a_schema_that_cannot_be_used_drops_its_own_records_only(schema: Any):
    reader = reader_for(PLAIN, schema)
    values = [encode(PLAIN, EVENT), encode(PLAIN, EVENT, 2), b"\0\0\0\0\2", encode(PLAIN, EVENT)]
    assert read(reader, values) == [FOUND, *[Row(Fate.UNUSABLE_SCHEMA)] * 2, FOUND]
    assert read(reader, values[1:2]) == [Row(Fate.UNUSABLE_SCHEMA)]


def test_that_a_schema_was_absent_says_nothing_of_records_of_a_later_look():
    schemas = AtHand({1: PLAIN, 2: ""})
    reader = reader_of(source(format="avro"), schemas)
    early = encode(PLAIN, EVENT, 2)
    assert read(reader, [early]) == [Row(Fate.UNUSABLE_SCHEMA)]
    schemas.schemas[2] = schemas.schemas[1]
    assert read(reader, [early]) == [Row(Fate.UNUSABLE_SCHEMA)]
    reader.forget_absences()
    assert schemas.forgotten == 1
    assert read(reader, [early]) == [FOUND]


@pytest.mark.loopback
async def test_the_registry_s_answer_that_it_has_no_schema_is_definite_and_no_other_is():
    async with Registry(
        {7: PLAIN}, {8: 500, 10: b'{"error_code": 40403}', 11: b"<html>"}
    ).started() as server:
        config = SchemaRegistryConfig.model_validate({"url": server.url}, context=Files(Path()))
        schemas = SchemaRegistry(config, takes_absence=True)
        for number in (7, 8, 9, 10, 11):
            schemas.request(number)
        await schemas.wait()
        assert [schemas.get(number) is None for number in (7, 8, 9, 10, 11)] == [
            False,
            True,
            False,
            True,
            True,
        ]
        assert schemas.get(9) == ""
        server.schemas[9] = PLAIN
        schemas.forget_absences()
        assert schemas.get(9) is None
        schemas.request(9)
        await schemas.wait()
        assert "Event" in (schemas.get(9) or "")
        # A query's record waits.
        waiting = SchemaRegistry(config)
        waiting.request(12)
        await waiting.wait()
        assert waiting.get(12) is None


LONG = {"type": "enum", "name": "x", "symbols": [f"s{number:06}" for number in range(200_000)]}
OPEN = record("x", a="not.There")
BODIES = {2: b'{"schema": "{"}', 3: 500, 4: b'{"schema": 7}', 6: 403}


async def answered(schemas: SchemaRegistry, *numbers: int) -> list[str | None]:
    """Ask for schemas; return them."""
    for number in numbers:
        schemas.request(number)
    await schemas.wait()
    return [schemas.get(number) for number in numbers]


@pytest.mark.loopback
async def test_a_schema_that_cannot_be_used_is_none_for_raw_events_and_is_awaited_for_queries():
    many = {"many": OPEN} | {f"s{number}": OPEN for number in range(201)}
    references = {8: [f"s{number}" for number in range(201)], 9: ["gone"]}
    schemas = {0: LONG, 1: OPEN, 8: OPEN, 9: OPEN} | many
    async with Registry(schemas, BODIES, references).started() as server:
        config = SchemaRegistryConfig.model_validate({"url": server.url}, context=Files(Path()))
        raw, queries = SchemaRegistry(config, takes_absence=True), SchemaRegistry(config)
        numbers = 0, 1, 2, 3, 4, 6, 8, 9
        assert await answered(raw, *numbers) == ["", "", "", None, None, None, "", ""]
        assert await answered(queries, *numbers) == [None] * 8
        server.schemas[1] = PLAIN
        raw.forget_absences()
        [found] = await answered(raw, 1)
        assert "Event" in (found or "")


@pytest.mark.loopback
async def test_a_refused_schema_is_none_once_the_login_has_read_another_one_and_else_says_why():
    async with Registry(
        {7: PLAIN, 8: OPEN}, {6: 403, "page": 403, 5: 401}, {8: ["page"]}
    ).started() as server:
        config = SchemaRegistryConfig.model_validate({"url": server.url}, context=Files(Path()))
        schemas, queries = SchemaRegistry(config, takes_absence=True), SchemaRegistry(config)
        assert await answered(schemas, 6, 8, 5) == [None, None, None]
        assert "grant its user READ on the subject" in schemas.request(6)
        assert (await answered(schemas, 7))[0]
        assert await answered(schemas, 6, 8, 5) == [
            "",
            "",
            None,
        ]  # at once, although it was asked just before
        schemas.configure(config)
        schemas.forget_absences()
        assert await answered(schemas, 6) == [None]  # it is another login
        assert (await answered(queries, 7, 6))[1] is None


@pytest.mark.loopback
async def test_no_number_of_refused_schemas_hides_one_that_is_read(monkeypatch):
    monkeypatch.setattr("stream_svt.queries.avro.registry.BACKOFF", (60.0,))
    async with Registry({700: PLAIN}, dict.fromkeys(range(100), 403)).started() as server:
        config = SchemaRegistryConfig.model_validate({"url": server.url}, context=Files(Path()))
        schemas = SchemaRegistry(config, takes_absence=True)
        reader = reader_of(source(format="avro"), schemas)
        records = records_of([encode(PLAIN, EVENT, number) for number in (*range(100), 700)])
        for _ in range(40):
            count, _ = reader.lack(records)
            await schemas.wait()
        assert count == 101


@pytest.mark.loopback
async def test_few_requests_run_at_the_same_time(monkeypatch):
    monkeypatch.setattr("stream_svt.queries.avro.registry.MOST_TASKS", 3)
    async with Registry(dict.fromkeys(range(9), PLAIN), delay=0.05).started() as server:
        config = SchemaRegistryConfig.model_validate({"url": server.url}, context=Files(Path()))
        schemas = SchemaRegistry(config)
        await answered(schemas, *range(9))
        assert sorted(server.asked) == [0, 1, 2]
        assert None not in [(await answered(schemas, number))[0] for number in range(9)]


@pytest.mark.loopback
async def test_an_answer_to_a_question_of_before_a_look_is_asked_again():
    async with Registry(delay=0.1).started() as server:
        config = SchemaRegistryConfig.model_validate({"url": server.url}, context=Files(Path()))
        schemas = SchemaRegistry(config, takes_absence=True)
        schemas.request(9)
        schemas.forget_absences()
        await schemas.wait()
        assert schemas.get(9) is None
        schemas.request(9)
        await schemas.wait()
        assert schemas.get(9) == ""
        assert server.asked == [9, 9]


# --- as if alone, and against an independent reading

LIMIT = Fraction(3, 2)
MADE = {
    "unit": "a",
    "series": {"field": "b", "names": ["A", "true", "1", "é", "-300"]},
    "time": {"field": "c", "in": "s"},
    "measures": [
        {"name": "all"},
        {"name": "low", "where": {"d": {"below": "1.5"}}},
        {"name": "b", "where": {"b": [1, "A"]}},
    ],
}


def text_of(found: Written | None) -> str | None:
    kind = found and (found.type["type"] if isinstance(found.type, dict) else found.type)
    if found is None or kind not in {"boolean", "int", "long", "string", "enum"}:
        return None
    text = str(found.content).lower() if isinstance(found.content, bool) else str(found.content)
    return text if 1 <= len(text) <= 256 else None


def number_of(found: Written | None) -> Fraction | None:
    if found is None or isinstance(found.content, bool | str):
        return None
    if isinstance(found.content, bytes):
        if (
            found.type["type"] not in {"bytes", "fixed"}
            or found.type.get("logicalType") != "decimal"
            or not found.content
        ):
            return None
        return Fraction(int.from_bytes(found.content, "big", signed=True), 10 ** found.type.get("scale", 0))
    if isinstance(found.content, int):
        return Fraction(found.content)
    return (
        Fraction(found.content) if isinstance(found.content, float) and math.isfinite(found.content) else None
    )


def written_number(found: Written | None) -> Fraction | None:
    if found is not None and isinstance(found.content, str) and found.content.isdecimal():
        return Fraction(int(found.content))
    return number_of(found)


def expected(written: Written) -> Row:
    unit, series, time = (
        text_of(written.at(("a",))),
        text_of(written.at(("b",))),
        written_number(written.at(("c",))),
    )
    if unit is None:
        return Row(Fate.NO_UNIT)
    if time is None or not 0 <= math.floor(time * 1000) <= LAST_MS:
        return Row(Fate.NO_TIME)
    low = number_of(written.at(("d",)))
    code = {"A": 1, "true": 2, "1": 3, "é": 4, "-300": 5}.get(series or "", -1)
    return Row(
        Fate.COUNTED,
        unit,
        math.floor(time * 1000),
        code,
        0,
        (True, low is not None and low < LIMIT, series in {"1", "A"}),
    )


def test_events_of_any_schemas_are_read_alone_and_in_company_as_a_slow_reader_reads_them():
    chance = random.Random(11)
    counted = 0
    for _ in range(25):
        writer = Writer(chance)
        schemas = []
        for _ in range(3):
            schema = writer.record_type()
            likely = [("a", "string"), ("c", "long"), ("c", "double"), ("b", "int"), ("d", "double")]
            fields = {each["name"]: each for each in schema["fields"]}
            for name, kind in chance.sample(likely, 3):
                fields[name] = {"name": name, "type": kind}
            schemas.append(schema | {"fields": [*fields.values()]})
        reader = reader_for(*schemas, **MADE)
        values: list[bytes | None] = []
        wanted: list[Row | None] = []
        for _ in range(chance.choice((30, 400))):
            number = chance.randrange(3)
            written = writer.write(schemas[number])
            is_damaged = chance.random() < 0.2
            data = writer.damaged(written.data) if is_damaged else written.data
            values.append(b"\0" + (number + 1).to_bytes(4, "big") + data)
            wanted.append(None if is_damaged else expected(written))
        values += [None, b"", b"\0", b"\1\2\3\4\5\6"]
        wanted += [Row(Fate.EMPTY), Row(Fate.EMPTY), Row(Fate.UNREADABLE), Row(Fate.UNREADABLE)]
        alone = [read(reader, [value])[0] for value in values]
        assert [row for row, right in zip(alone, wanted, strict=True) if right] == [
            right for right in wanted if right
        ]
        counted += sum(row.fate is Fate.COUNTED for row in alone)
        order = [*range(len(values))]
        chance.shuffle(order)
        assert read(reader, [values[row] for row in order]) == [alone[row] for row in order]
    assert counted > 300


def test_fewer_events_with_arrays_are_read_in_a_step():
    schema = record("Event", user="string", tags={"type": "array", "items": "string"})
    flat, tagged = records_of([b"\0\0\0\0\1" + bytes(995)] * 1000), reader_for(PLAIN, schema)
    tagged.lack(flat)
    assert tagged.at_once(flat) == MOST_BYTES // (1000 + 32)
    tagged.lack(records_of([b"\0\0\0\0\2"]))
    assert tagged.at_once(flat) == MOST_BYTES_OF_ITEMS // (1000 + 32)


def test_parts_of_a_fetch_are_read_as_its_whole():
    values = [encode(PLAIN, EVENT | {"user": f"u{number}"}) for number in range(300)]
    records = records_of(values)
    reader = reader_for(PLAIN)
    reader.lack(records)
    parts = [rows_of(reader.read(records[first : first + 70])) for first in range(0, 300, 70)]
    assert [row for part in parts for row in part] == rows_of(reader.read(records))
    assert rows_of(reader.read(Records.of([]))) == []
