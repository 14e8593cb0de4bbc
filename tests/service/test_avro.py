"""Avro records: which fields are found, what is refused, and what hostile records and schemas cannot do."""

from __future__ import annotations

import json
import math
import random
import time
import tracemalloc
from decimal import Decimal
from fractions import Fraction

import pytest

from stream_svt.monitor.batch import QueryBatch
from stream_svt.service import exact
from stream_svt.service.avro import MAX_DEPTH, Schema, UnusableSchema
from stream_svt.service.codec import QueryDecoder
from stream_svt.settings.records import RecordLayout
from tests.service.test_codec import AT_HOME, ELSEWHERE, HERE, Record, contents
from tests.support.avro import NESTED, AtHand, encode, record, varint
from tests.support.engine_play import numbers

pytest.importorskip("fastavro")

LAYOUT = RecordLayout(format="avro", value="payload.count", series="payload.page", id="meta.id")
FLAT = RecordLayout(format="avro", value="n")
GOOD = {"op": "c", "meta": {"id": "q1"}, "payload": {"count": 7, "page": "/a"}}


def decoder(schemas: AtHand, layout: RecordLayout = LAYOUT) -> QueryDecoder:
    return QueryDecoder("pages", HERE, [], layout, schemas)


def decode(schema: object, *values: bytes | None, layout: RecordLayout = LAYOUT) -> QueryBatch:
    one = decoder(AtHand({1: schema}), layout)
    records = [Record(100 + i, AT_HOME, value) for i, value in enumerate(values)]
    assert one.lack(records) == (len(records), "")
    return one.decode(records)


def test_fields_are_found_at_their_paths_in_unions_and_records():
    other = {"op": "d", "meta": {"id": "q2"}, "payload": None}
    third = {"op": "c", "meta": {"id": "q3"}, "payload": {"count": -(2**63), "page": None}}
    found = contents(decode(NESTED, *(encode(NESTED, one) for one in (GOOD, other, third))))
    assert (found["id"], found["series"]) == (["q1", "q2", "q3"], ["/a", None, None])
    assert (found["value"], found["rejects"]) == ([7, None, None], [])


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
VALUES = [
    ("int", -3, -3),
    ("long", 2**62 + 5, 2**62),
    ("double", 0.1, Fraction(math.floor(Fraction(0.1) * 10**18), 10**18)),
    ("double", math.inf, 2**62),
    ("double", -math.inf, None),
    ("double", math.nan, None),
    ("float", 2.5, Fraction(5, 2)),
    (["null", "long"], None, None),
    (["null", "long"], 12, 12),
    ("string", "12", None),
    ("boolean", True, None),
    ("bytes", b"\x07", None),
    ({"type": "enum", "name": "e", "symbols": ["A"]}, "A", None),
    ({"type": "array", "items": "long"}, [1, 2], None),
    (record("inner", a="long"), {"a": 1}, None),
    (CENTS, Decimal("12345.67"), Fraction("12345.67")),
    (CENTS, Decimal("-0.01"), Fraction("-0.01")),
    (
        {"type": "fixed", "size": 8, "name": "f", "logicalType": "decimal", "precision": 18, "scale": 4},
        Decimal("-7.0001"),
        Fraction("-7.0001"),
    ),
    (
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 90, "scale": 0}],
        Decimal(10**80),
        2**62,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=lambda one: repr(one)[:30])
def test_numbers_are_exact_and_anything_else_is_the_lower_bound(kind, value, expected):
    schema = record("r", n=kind, tags={"type": "array", "items": "string"})
    for one, content in ((record("r", n=kind), {"n": value}), (schema, {"n": value, "tags": ["a", "b"]})):
        batch = decode(one, encode(one, content), layout=FLAT)
        assert (numbers(batch), batch.rejects) == ([expected], [])


@pytest.mark.parametrize("kind", [one for one, _, _ in VALUES], ids=lambda one: repr(one)[:30])
def test_a_field_beside_the_value_never_depends_on_it(kind):
    mine = [value for one, value, _ in VALUES if one == kind]
    schema = record("r", n=kind, page="string")
    layout = RecordLayout(format="avro", value="n", series="page")
    found = [contents(decode(schema, encode(schema, {"n": one, "page": "p"}), layout=layout)) for one in mine]
    assert all(one["series"] == ["p"] and one["rejects"] == [] for one in found)


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        ("string", "a", "a"),
        ("long", -7, "-7"),
        ("boolean", True, "true"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "B"),
        (["null", "int"], None, None),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**60, str(2**60)),
        ("string", "", "bad-series"),
        ("string", "x" * 257, "bad-series"),
        ("double", 1.5, "bad-series"),
        ("bytes", b"a", "bad-series"),
    ],
)
def test_texts_integers_and_booleans_are_a_series(kind, content, text):
    schema = record("r", n="long", page=kind)
    plain = json.loads(json.dumps(schema).replace("timestamp-millis", "none"))
    batch = decode(
        schema,
        encode(plain, {"n": 1, "page": content}),
        layout=RecordLayout(format="avro", value="n", series="page"),
    )
    assert ([*batch.series] or [reason for _, reason in batch.rejects]) == [text]


def test_named_types_are_found_in_their_name_spaces_wherever_they_are_used_again():
    point = {"type": "record", "name": "P", "fields": [{"name": "n", "type": "long"}]}
    schema = {
        "type": "record",
        "name": "R",
        "namespace": "a.b",
        "fields": [{"name": "x", "type": point}, {"name": "y", "type": "P"}, {"name": "z", "type": "a.b.P"}],
    }
    content = {"x": {"n": 1}, "y": {"n": 2}, "z": {"n": 3}}
    for name, number in (("x", 1), ("y", 2), ("z", 3)):
        layout = RecordLayout(format="avro", value=f"{name}.n")
        assert numbers(decode(schema, encode(schema, content), layout=layout)) == [number]


def test_what_is_not_in_the_wire_format_is_refused_and_good_records_beside_it_are_read():
    good = encode(NESTED, GOOD)
    damaged = (b"\1" + good[1:], b'{"n":1}', good[:-1], good + b"\0", good[:5])
    bad = [None, b"", b"\0\0\0", *damaged, b"\0" * 2_000_000]
    batch = decode(NESTED, good, *bad, good)
    assert batch.rejects == [
        (101, "empty"), (102, "empty"), (103, "not-avro"), (104, "not-avro"), (105, "not-avro"),
        (106, "not-avro"), (107, "not-avro"), (108, "not-avro"), (109, "too-large"),
    ]  # fmt: skip
    assert numbers(batch) == [7, 7]


def test_a_record_waits_for_its_schema_unless_its_key_is_refused():
    schemas = AtHand({1: NESTED})
    one = decoder(schemas)
    good, later = encode(NESTED, GOOD), encode(NESTED, GOOD, 2)
    records = [
        Record(0, AT_HOME, good),
        Record(1, ELSEWHERE, encode(NESTED, GOOD, 9)),
        Record(2, AT_HOME, later),
        Record(3, AT_HOME, good),
    ]
    assert one.lack(records) == (2, "schema 2 is missing")
    assert schemas.requested == [2]
    schemas.schemas[2] = schemas.schemas[1]
    assert one.lack(records) == (4, "")
    assert contents(one.decode(records))["rejects"] == [(1, "misrouted")]


def test_a_schema_without_a_field_is_logged_and_its_records_have_the_lower_bound(caplog):
    schema = record("r", other="long")
    batch = decode(schema, encode(schema, {"other": 1}), layout=FLAT)
    assert (numbers(batch), batch.rejects) == ([None], [])
    assert "event=schema_lacks_fields topic=pages schema=1 fields=n" in caplog.text


def nested(depth: int) -> object:
    schema: object = "long"
    for level in range(depth):
        schema = record(f"r{level}", n=schema)
    return schema


def doubled(levels: int) -> object:
    """A schema whose types double at each level: "a billion laughs"."""
    schema: object = record("r0", n="long", m="long")
    for level in range(1, levels):
        schema = record(f"r{level}", n=schema, m=f"r{level - 1}")
    return schema


UNUSABLE = {
    "no JSON": "{",
    "an empty answer": "",
    "deep JSON": "[" * 100_000,
    "no record": "long",
    "a union": ["null", record("r", n="long")],
    "an unknown type": record("r", n="longer"),
    "a recursive type": record("r", n=["null", "r"]),
    "a recursive type in a list": record("r", n={"type": "array", "items": "r"}),
    "many types": doubled(40),
    "many fields": record("r", **{f"f{number}": "long" for number in range(6_000)}),
    "deep types": nested(MAX_DEPTH + 2),
    "items without bytes": record("r", n={"type": "array", "items": "null"}),
    "empty items": record("r", n={"type": "array", "items": record("e")}),
    "values without bytes": record(
        "r", n={"type": "map", "values": {"type": "fixed", "name": "f", "size": 0}}
    ),
    "a field without bytes": record("r", n="null"),
    "a fixed type without a size": record("r", n={"type": "fixed", "name": "f"}),
    "a field without a name": {"type": "record", "name": "r", "fields": [{"type": "long"}]},
    "a type without a name": {"type": "record", "fields": []},
    "two fields of one name": {"type": "record", "name": "r", "fields": record("r", n="long")["fields"] * 2},
    "no fields": {"type": "record", "name": "r"},
    "fields that are none": {"type": "record", "name": "r", "fields": [1]},
    "symbols that are none": record("r", n={"type": "enum", "name": "e", "symbols": 7}),
    "a number as a type": record("r", n=7),
    "a protocol": {"protocol": "p"},
}


@pytest.mark.parametrize("schema", UNUSABLE.values(), ids=UNUSABLE)
def test_a_schema_that_cannot_be_bounded_or_read_refuses_its_records(schema, caplog):
    start = time.perf_counter()
    batch = decode(schema, b"\0\0\0\0\1\2\2", layout=FLAT)
    assert time.perf_counter() - start < 5
    assert batch.rejects == [(100, "unusable-schema")]
    assert "event=schema_unusable topic=pages schema=1" in caplog.text


def test_huge_counts_and_lengths_take_neither_time_nor_memory():
    lists = record("r", n="long", xs={"type": "array", "items": record("i", a="boolean")}, s="string")
    huge = [varint(1) + varint(count) + rest for count in (2**62, -(2**62), -(2**63), -1) for rest in (
        b"", varint(2**62), varint(-2), varint(-(2**63)), b"\1" * 1000,
    )]  # fmt: skip
    huge += [varint(1) + varint(0) + varint(size) + b"ab" for size in (2**62, -1, -(2**63), 3)]
    full = varint(1) + varint(130_000) + b"\1" * 130_000 + varint(0) + varint(1) + b"a"
    tracemalloc.start()
    start = time.perf_counter()
    batch = decode(lists, *(b"\0\0\0\0\1" + one for one in (*huge, full)), layout=FLAT)
    assert time.perf_counter() - start < 20
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {reason for _, reason in batch.rejects} == {"not-avro"}
    assert numbers(batch) == [1]
    assert peak < 16 << 20


def test_no_record_and_no_batch_takes_long_between_two_yields():
    schema = record("r", n="long", xs={"type": "array", "items": "boolean"})
    values = [varint(1) + varint(size) + b"\1" * size + varint(0) for size in (*[20_000] * 9, 200_000)]
    records = [Record(100 + at, AT_HOME, b"\0\0\0\0\1" + value) for at, value in enumerate(values)]
    one = decoder(AtHand({1: schema}), FLAT)
    assert one.lack(records) == (10, "")
    assert len(list(one.read(records))) >= 5
    batch = one.decode(records)
    assert (numbers(batch), batch.rejects) == ([1] * 9, [(109, "too-large")])
    assert contents(one.decode(records)) == contents(batch)


def test_no_error_and_no_log_repeats_what_is_in_a_record(caplog):
    schema = record("r", n="long", s="string")
    decode(schema, encode(schema, {"n": 4242424242, "s": "secret"})[:-2], layout=FLAT)
    assert "4242424242" not in caplog.text
    with pytest.raises(UnusableSchema) as error:
        Schema('{"type": "secret"}', FLAT)
    assert "secret" not in str(error.value)


def test_mutated_records_are_read_or_refused_and_disturb_no_neighbour():
    chance = random.Random(3)
    schema = record(
        "r", n=["null", "long", "double"], s="string", xs={"type": "array", "items": ["null", "string"]},
        m={"type": "map", "values": "bytes"}, e={"type": "enum", "name": "e", "symbols": ["A", "B"]}, b="boolean",
    )  # fmt: skip
    good = encode(
        schema, {"n": 77, "s": "text", "xs": ["a", None] * 3, "m": {"k": b"v"}, "e": "A", "b": True}
    )
    for one in (schema, record("r", n=["null", "long"], s="string", b="boolean")):
        plain = good if one is schema else encode(one, {"n": 77, "s": "text", "b": True})
        for _ in range(300):
            values = [plain]
            for _ in range(10):
                changed = bytearray(plain)
                for _ in range(chance.randint(1, 4)):
                    changed[chance.randrange(5, len(changed))] = chance.randrange(256)
                values.append(bytes(changed[: chance.randrange(5, len(changed) + 1)]))
            batch = decode(one, *values, plain, layout=FLAT)
            assert len(batch) + len(batch.rejects) == 12
            assert {reason for _, reason in batch.rejects} <= {"not-avro"}
            assert (batch.offset[0], batch.offset[-1], batch.whole[0], batch.whole[-1]) == (100, 111, 77, 77)
    assert exact.NO_NUMBER[0] < 0
