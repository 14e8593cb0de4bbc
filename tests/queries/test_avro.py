"""Avro records: which fields are found, what is refused, and what hostile records and schemas cannot do."""

from __future__ import annotations

import math
import random
import struct
import time
import warnings
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest

from stream_svt.columns import decimals
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.queries.avro.columns import MAX_DEPTH, RecordSchema, UnusableSchema
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.records import RecordLayout
from tests.support.avro import NESTED, AtHand, encode, record, varint
from tests.support.engine_play import numbers
from tests.support.query_records import AT_HOME, ELSEWHERE, HERE, Record, contents

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


def fixed(size: object) -> object:
    return {"type": "fixed", "name": "e", "size": size}


UNUSABLE = {
    "no JSON": "{",
    "an empty answer": "",
    "deep JSON": "[" * 100_000,
    "no record": "long",
    "an unknown type": record("r", n="longer"),
    "a recursive type": record("r", n=["null", "r"]),
    "a recursive type in a list": record("r", n={"type": "array", "items": "r"}),
    "many types": doubled(40),
    "many fields": record("r", **{f"f{number}": "long" for number in range(6_000)}),
    "deep types": nested(MAX_DEPTH + 2),
    "a fixed type without a size": record("r", n={"type": "fixed", "name": "f"}),
    "two fields of one name at the path": {
        "type": "record",
        "name": "r",
        "fields": record("r", n="long")["fields"] * 2,
    },
    "a negative size": record("r", n=fixed(-1)),
    "a size that is a boolean": record("r", n=fixed(True)),
    "no fields": {"type": "record", "name": "r"},
    "fields that are none": {"type": "record", "name": "r", "fields": [1]},
    "a number as a type": record("r", n=7),
    "a use of one of two types of a name": record("r", a=fixed(1), b=fixed(2), n="e"),
    "a protocol": {"protocol": "p"},
}


@pytest.mark.parametrize("schema", UNUSABLE.values(), ids=UNUSABLE)
def test_a_schema_that_cannot_be_bounded_or_read_refuses_its_records(schema, caplog):
    start = time.perf_counter()
    batch = decode(schema, b"\0\0\0\0\1\2\2", layout=FLAT)
    assert time.perf_counter() - start < 5
    assert batch.rejects == [(100, "unusable-schema")]
    assert "event=schema_unusable topic=pages schema=1" in caplog.text


USABLE = {
    "a field without a name": {
        "type": "record", "name": "r", "fields": [{"type": "int"}, *record("", n="int")["fields"]],
    },
    "types without names": {"type": "record", "fields": record("", x={"type": "enum"}, n="int")["fields"]},
    "a name that is none": {"type": "record", "name": 7, "fields": record("", x="int", n="int")["fields"]},
    "symbols that are none": record("r", x={"type": "enum", "name": "e", "symbols": 7}, n="int"),
    "symbols that are no names": record("r", x={"type": "enum", "name": "e", "symbols": ["a-b", "a-b", ""]}, n="int"),
    "two fields of one name": {
        "type": "record", "name": "r",
        "fields": [*record("", x="null", n="int")["fields"], *record("", x="int")["fields"]],
    },
    "two types of one name": record("r", x=fixed(0), y=fixed(1), n="int"),
    "a default and aliases": {
        "type": "record", "name": "r", "aliases": 7, "doc": 7,
        "fields": [{"name": "x", "type": ["null", "int"], "default": "z"}, {"name": "n", "type": "int", "order": 7}],
    },
    "types in types": record("r", x={"type": {"type": {"type": "int"}}}, n={"type": {"type": "int", "logicalType": 7}}),
    "a union in a union": record("r", x=[["null", "null", "int"]], n="int"),
    "branches of one type": record("r", x=["int", "int"], n=["int", "int"]),
    "absurd decimals": record(
        "r", x={"type": "bytes", "logicalType": "decimal", "scale": -1}, n={"type": "int", "logicalType": "decimal"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", USABLE)
def test_what_is_odd_beside_the_paths_does_not_matter(name):
    schema = USABLE[name]
    content = {
        "two fields of one name": varint(5) + b"\0",
        "two types of one name": b"\0" + varint(5),
        "a union in a union": b"\0\0" + varint(5),
        "branches of one type": b"\2\0\2" + varint(5),
        "symbols that are none": varint(-9) + varint(5),
    }.get(name, b"\0" + varint(5))
    batch = decode(schema, b"\0\0\0\0\1" + content, layout=FLAT)
    assert (numbers(batch), batch.rejects) == ([5], [])


def test_a_batch_ends_where_its_items_take_long_enough():
    schema = record("r", n="long", xs={"type": "array", "items": "boolean"})
    values = [varint(1) + varint(size) + b"\1" * size + varint(0) for size in (*[20_000] * 9, 200_000)]
    records = [Record(100 + at, AT_HOME, b"\0\0\0\0\1" + value) for at, value in enumerate(values)]
    one = decoder(AtHand({1: schema}), FLAT)
    assert one.lack(records) == (10, "")
    first = one.decode(records)
    assert 5 <= len(first) < 10
    rest = one.decode(records[len(first) :])
    assert (numbers(first) + numbers(rest), first.rejects + rest.rejects) == ([1] * 10, [])
    assert (first.end, rest.first, rest.end) == (rest.first, first.end, 110)


def test_no_error_and_no_log_repeats_what_is_in_a_record(caplog):
    schema = record("r", n="long", s="string")
    decode(schema, encode(schema, {"n": 4242424242, "s": "secret"})[:-2], layout=FLAT)
    assert "4242424242" not in caplog.text
    with pytest.raises(UnusableSchema) as error:
        RecordSchema('{"type": "secret"}', [("n",)])
    assert "secret" not in str(error.value)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
AT_THE_VALUE = ("null", "string", "bytes", DECIMAL, "int", "long", "float", "double", "boolean")


def data_of(kind: Any) -> list[bytes]:
    """Return data of a type that a correct writer may write, and that differ by little."""
    texts = [b"", b"\x7f", b"\x80", b"abc", b"abd", "é".encode(), b"a" * 300]
    numbers = [0, -1, 63, 64, 127, 128, 2**31 - 1]
    doubles = [0.0, 1.27, 1.28, -0.0, math.nan, math.inf, 1e300, 5e-324]
    if kind in ("string", "bytes", DECIMAL):
        return [
            varint(len(text)) + text
            for text in (*texts, *([] if kind == "string" else [b"\xc3", b"\xff\xfe"]))
        ]
    if kind in ("int", "long"):
        return [varint(one) for one in (*numbers, *([2**62, 2**63 - 1, -(2**63)] if kind == "long" else []))]
    if kind == "float":
        return [struct.pack("<f", one) for one in doubles if one != 1e300] + [b"\1\0\x80\x7f"]
    if kind == "double":
        return [struct.pack("<d", one) for one in doubles] + [b"\1\0\0\0\0\0\xf0\x7f"]
    return [b"\0", b"\1"] if kind == "boolean" else [b""]


def beside(kind: Any, tags: bool) -> Any:
    more = {"xs": {"type": "array", "items": "string"}} if tags else {}
    return record("r", page="string", n=kind, last="int", **more)


@pytest.mark.parametrize("tags", [False, True], ids=["plain", "with an array"])
def test_no_data_of_any_union_at_the_value_decides_about_its_record(tags):
    layout = RecordLayout(format="avro", value="n", series="page")
    good, end = varint(2) + b"/a", varint(-9) + b"\0" * tags
    chance = random.Random(1)
    for size in (1, 2, 3, 9):
        orders = list(permutations(AT_THE_VALUE, size))
        for order in orders if size < 3 else chance.sample(orders, 60):
            data = [varint(branch) + one for branch, kind in enumerate(order) for one in data_of(kind)]
            values = [b"\0\0\0\0\1" + good + one + end for one in data]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                batch = decode(beside(list(order), tags), *values, layout=layout)
            assert batch.rejects == []
            assert contents(batch)["series"] == ["/a"] * len(values)
            kinds = [kind for kind in order for _ in data_of(kind)]
            is_number = [whole != decimals.NO_NUMBER[0] for whole in batch.whole.tolist()]
            never = [kind in ("null", "string", "bytes", "boolean") for kind in kinds]
            assert not any(found and no for found, no in zip(is_number, never, strict=True))
            assert all(
                found for found, kind in zip(is_number, kinds, strict=True) if kind in ("int", DECIMAL)
            )


def test_a_branch_means_what_the_writer_wrote():
    cents = [Decimal("1.26"), Decimal("1.27"), Decimal("1.28"), Decimal("-1.28"), Decimal("638.21")]
    for order in permutations(("null", "string", DECIMAL, "double")):
        schema = record("r", n=list(order), xs={"type": "map", "values": "long"})
        at = order.index(DECIMAL)
        values = []
        for one in cents:
            unscaled = int(one * 100).to_bytes(int(one * 100).bit_length() // 8 + 1, "big", signed=True)
            values.append(b"\0\0\0\0\1" + varint(at) + varint(len(unscaled)) + unscaled + b"\0")
        values += [b"\0\0\0\0\1" + varint(order.index("string")) + varint(3) + b"abc" + b"\0"]
        batch = decode(schema, *values, layout=FLAT)
        assert (numbers(batch), batch.rejects) == ([*map(Fraction, cents), None], [])
