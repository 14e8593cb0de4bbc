"""Avro by columns: as fastavro reads it, each record as if it were alone, whatever stands beside it or at a path."""

from __future__ import annotations

import json
import math
import re
import struct
import time
import tracemalloc
import warnings
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from random import Random
from typing import Any

import numpy as np
import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns import decimals
from stream_svt.mechanisms.grid import PARTS
from stream_svt.mechanisms.grid import WHOLE_LIMIT as LIMIT
from stream_svt.queries.avro import columns
from stream_svt.queries.avro.columns import LeafKind, RecordSchema, Source, UnusableSchema
from tests.support.avro import record, varint
from tests.support.avro_writing import Writer, Written

PATHS = [("a",), ("b", "a"), ("c",), ("d", "b", "c"), ("a", "a")]
TEXT = 256
Row = tuple[bool, list[tuple[int, int]], list[str | bool | None]]
"""Whether a record is valid, numbers at its paths, and texts: False if they are no valid ones."""


def read(schema: RecordSchema, bodies: Sequence[bytes], slots: int = len(PATHS)) -> list[Row]:
    """Return the rows of records, decoded together."""
    length = np.array([len(one) for one in bodies], np.int64)
    source = Source(b"".join(bodies), np.cumsum(length) - length, length)
    found = schema.locate(source, np.arange(len(bodies)))
    numbers = [found.numbers(slot) for slot in range(slots)]
    texts = [found.texts(slot, TEXT) for slot in range(slots)]
    buffer = source.buffer
    return [
        (
            bool(found.is_valid[row]),
            [(int(whole[row]), int(fraction[row])) for whole, fraction in numbers],
            [
                False
                if bad[row]
                else None
                if size[row] < 0
                else buffer[at[row] : at[row] + size[row]].decode()
                for at, size, bad in texts
            ],
        )
        for row in range(len(bodies))
    ]


@pytest.fixture(params=[(0, 0), (0, 2), (100, 30)], ids=["together", "items in turn", "one by one"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few records take the steps of many."""
    monkeypatch.setattr(columns, "FEW", request.param[0])
    monkeypatch.setattr(columns, "FEW_ITEMS", request.param[1])


def expected(written: Written | None) -> tuple[tuple[int, int], str | bool | None]:
    """Return the number and the text that was written."""
    if written is None:
        return decimals.NO_NUMBER, None
    kind = written.type["type"] if isinstance(written.type, dict) else written.type
    content = written.content
    number, text = decimals.NO_NUMBER, False
    if kind in {"int", "long"}:
        number, text = (max(-LIMIT, min(LIMIT, content)), 0), str(content)
    elif kind in {"float", "double"}:
        [whole], [fraction] = decimals.doubles(np.array([content]))
        number = (int(whole), int(fraction)) if not math.isnan(content) else decimals.NO_NUMBER
    elif kind in {"bytes", "fixed"} and written.type != kind and "logicalType" in written.type:
        unscaled = Fraction(int.from_bytes(content, "big", signed=True), 10 ** written.type["scale"])
        whole = math.floor(unscaled)
        number = whole, math.floor((unscaled - whole) * PARTS)
        if abs(whole) >= LIMIT:
            number = (LIMIT if whole > 0 else -LIMIT), 0
    elif kind == "boolean":
        text = str(content).lower()
    elif kind in {"string", "enum"}:
        text = content if 0 < len(content) <= TEXT else False
    return number, text


def by_fastavro(schema: Any, body: bytes) -> Any:
    """Return what fastavro reads, or raise; a body that is too long or too short is an error."""
    data = BytesIO(body + bytes(16))
    found = schemaless_reader(
        data, parse_schema(schema), None, handle_unicode_errors="replace", return_record_name=True
    )
    if data.tell() != len(body):
        raise EOFError
    return found


def plain(schema: Any) -> Any:
    """Return a schema without logical types, which fastavro would convert, and precisions that it refuses."""
    if isinstance(schema, dict):
        return {
            key: plain(one) for key, one in schema.items() if key not in {"logicalType", "scale", "precision"}
        }
    return [plain(one) for one in schema] if isinstance(schema, list) else schema


def content(written: Written) -> Any:
    if isinstance(written.content, dict):
        return {name: content(one) for name, one in written.content.items()}
    return written.content


def same(found: Any, wanted: Any) -> bool:
    """Return whether fastavro has read what was written, up to items."""
    if isinstance(found, tuple):  # the record's name in a union
        found = found[1]
    if isinstance(wanted, dict):
        return all(same(found[name], one) for name, one in wanted.items())
    if wanted == [] or (isinstance(wanted, float) and math.isnan(wanted)):
        return isinstance(found, (list, dict, float))
    return type(found) is type(wanted) and found == wanted


@pytest.mark.usefixtures("ways")
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_was_written_is_read(seed: int):
    writer = Writer(chance := Random(seed))
    schema = writer.record_type()
    records = [writer.write(schema) for _ in range(chance.choice((1, 3, 12)))]
    assert all(same(by_fastavro(plain(schema), one.data), content(one)) for one in records)
    compiled = RecordSchema(json.dumps(schema), PATHS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = read(compiled, [one.data for one in records])
    for one, (is_valid, numbers, texts) in zip(records, rows, strict=True):
        wanted = [expected(one.at(path)) for path in PATHS]
        assert is_valid
        assert numbers == [number for number, _ in wanted]
        assert texts == [text for _, text in wanted]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_record_is_read_among_others_as_it_is_alone(seed: int):
    writer = Writer(chance := Random(seed))
    schema = writer.record_type()
    compiled = RecordSchema(json.dumps(schema), PATHS)
    bodies = []
    for _ in range(8):
        good = writer.write(schema).data
        bodies += [good, writer.damaged(good)]
    chance.shuffle(bodies)
    alone = [row for one in bodies for row in read(compiled, [one])]
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("error")
        for few, few_items in ((100, 30), (0, 0), (0, 3)):
            patched.setattr(columns, "FEW", few)
            patched.setattr(columns, "FEW_ITEMS", few_items)
            assert read(compiled, bodies) == alone
    for body, (is_valid, _, _) in zip(bodies, alone, strict=True):
        if not has_codes(schema) and not re.search(
            rb"[\x80-\xff]{9}", body
        ):  # fastavro takes some more codes
            assert is_valid == is_read(schema, body)


def has_codes(schema: Any) -> bool:
    """Return whether a schema has unions, arrays, maps or enums."""
    if isinstance(schema, dict):
        parts = [each["type"] for each in schema.get("fields", [])]
        kind = schema["type"]
        return kind in {"array", "map", "enum"} or isinstance(kind, list) or any(map(has_codes, parts))
    return isinstance(schema, list)


def is_read(schema: Any, body: bytes) -> bool:
    try:
        by_fastavro(plain(schema), body)
    except Exception:  # noqa: BLE001  whatever it raises
        return False
    return True


def one_at_a_time(schema: Any, *bodies: bytes, paths: Sequence[tuple[str, ...]] = (("n",),)) -> list[Row]:
    """Return the rows of records, which are the same in both ways of decoding."""
    compiled = RecordSchema(json.dumps(schema), paths)
    rows = read(compiled, bodies, len(paths))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "FEW", 0)
        patched.setattr(columns, "FEW_ITEMS", 0)
        assert read(compiled, bodies, len(paths)) == rows
    return rows


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"\xff" * 9 + b"\1", -(2**62)),
        (b"\xfe" + b"\xff" * 8 + b"\1", 2**62),
        (b"\x8a" + b"\x80" * 8 + b"\0", 5),
        (b"\x80" * 9 + b"\2", None),
        (b"\xff" * 10 + b"\1", None),
        (b"\x80" * 2_000 + b"\0", None),
    ],
)
@pytest.mark.parametrize("kind", ["int", "long"])
def test_an_integer_of_any_number_of_bytes_is_a_number_or_none(kind, data, number):
    [(is_valid, [(whole, _)], [text]), after] = one_at_a_time(
        record("r", n=kind, m="int"), data + b"\2", b"\2\2"
    )
    assert is_valid
    assert whole == (decimals.NO_NUMBER[0] if number is None else number)
    assert (text is False) == (number is None)
    assert after[:2] == (True, [(1, 0)])


def test_structure_alone_decides_about_a_record():
    schema = record("r", n=["null", "string", "long"], xs={"type": "array", "items": "string"}, s="string")
    good = [b"\0\0\2a", b"\2\4\xc3\x28\0\2a", b"\4\1\2\2b\0\2a", b"\4\1\1\4\2b\0\2a", b"\0\0\x82\x80\0a"]
    far = varint(2**62)
    bad = [
        b"", b"\0", b"\0\0\2", b"\0\0\2ab", b"\1\0\2a", b"\6\0\2a", b"\2" + far + b"a\0\2a", b"\2\1a\0\2a",
        b"\0" + far + b"\0\2a", b"\0\1" + far + b"\0\2a", b"\0\1\1\0\2a", b"\0\0\1a", b"\0\0" + b"\x80" * 9 + b"\2",
        b"\x80" * 10 + b"\0\0\2a", b"\4\x80", b"\0\2\4a", b"\0" + b"\x80" * 9 + b"\2\2a",
    ]  # fmt: skip
    rows = one_at_a_time(schema, *good, *bad, *good)
    assert [valid for valid, _, _ in rows] == [True] * 5 + [False] * len(bad) + [True] * 5
    assert all(one == (False, [decimals.NO_NUMBER], [None]) for one in rows[5:-5])


@pytest.mark.parametrize("number", [-(2**62), -(2**63), -9, 9, 2**62, 2**63 - 1])
@pytest.mark.parametrize("count", [1, 101])
def test_no_number_of_a_branch_that_a_union_lacks_stops_the_others(number, count):
    """A union of more than eight branches off all paths looks for those that were written."""
    branches = [{"type": "fixed", "name": f"f{size}", "size": size} for size in range(1, 10)]
    schema = RecordSchema(json.dumps(record("R", x=branches, a="long")), [("a",)])
    good, bad = bytes([0, 7, 4]), varint(number) + bytes(9)
    rows = read(schema, [good] * (count - 1) + [bad], 1)
    assert [row[0] for row in rows] == [True] * (count - 1) + [False]
    assert all(row[1] == [(2, 0)] for row in rows[:-1])


def test_data_of_a_text_that_is_none_is_known_as_such():
    schema = record("r", n={"type": "enum", "name": "e", "symbols": ["A", 7, "", "é" * 256, "é" * 257]})
    texts = [text for _, _, [text] in one_at_a_time(schema, *(varint(one) for one in (*range(6), -1, 2**62)))]
    assert texts == ["A", False, False, "é" * 256, *[False] * 4]
    assert [text for _, _, [text] in one_at_a_time(record("r", n="boolean"), b"\0", b"\1", b"\2")] == [
        "false", "true", False,
    ]  # fmt: skip
    contents = [
        b"\xff",
        b"a" * 7 + b"\xc3",
        b"\xed\xa0\x80",
        b"",
        "é".encode() * 256,
        b"b" * 257,
        b"b" * 1025,
    ]
    found = one_at_a_time(record("r", n="string"), *(varint(len(one)) + one for one in contents))
    assert [text for _, _, [text] in found] == [False] * 4 + ["é" * 256] + [False] * 2


DECIMALS = [
    ({"precision": 4, "scale": 0}, [-1, 0, 127, 128, 255, 256, 32767, -32768, 10**30, -(10**30)]),
    ({"precision": 38, "scale": 18}, [1, -1, 10**18, -(10**18) - 1, 2**120, -(2**120)]),
    (
        {"precision": 77, "scale": 40},
        [1, -1, 10**40, -(10**40) + 1, 10**57, 10**76, 2**250, -(2**260), 2**4000],
    ),
    ({"scale": 3}, [1234, -1234]),
    ({"precision": "many", "scale": 1000}, [10**999, -1, 10**1001, 10**1300]),
    ({"precision": 1 << 90, "scale": 2}, [128]),
]


@pytest.mark.parametrize(("more", "unscaled"), DECIMALS)
def test_decimals_are_exact_whatever_their_bytes(more, unscaled):
    kind = {"type": "bytes", "logicalType": "decimal", **more}
    bodies, wanted = [], []
    for one in unscaled:
        least = one.bit_length() // 8 + 1
        for size in {least, least + 1, least + 40}:
            bodies.append(varint(size) + one.to_bytes(size, "big", signed=True))
            whole = one // 10 ** more["scale"]
            fraction = (one - whole * 10 ** more["scale"]) * PARTS // 10 ** more["scale"]
            is_far = abs(whole) >= LIMIT
            wanted.append((LIMIT if whole > 0 else -LIMIT, 0) if is_far else (whole, fraction))
    rows = one_at_a_time(record("r", n=kind), *bodies)
    assert [numbers for _, [numbers], _ in rows] == wanted
    wide = [
        {"type": "fixed", "name": "f", "size": size, "logicalType": "decimal", **more} for size in (9, 600)
    ]
    for kind in wide:
        fits = [one for one in unscaled if one.bit_length() < 8 * kind["size"]]
        rows = one_at_a_time(
            record("r", n=kind), *(one.to_bytes(kind["size"], "big", signed=True) for one in fits)
        )
        expected = {
            one: wanted[at] for at, one in enumerate(np.repeat(np.array(unscaled, object), 3).tolist())
        }
        assert [numbers for _, [numbers], _ in rows] == [expected[one] for one in fits]


@pytest.mark.parametrize(
    "more", [{"scale": -1}, {"scale": 1001}, {"scale": 2.0}, {"scale": True}, {"scale": "2"}, {"scale": None}]
)
def test_a_decimal_with_an_absurd_scale_is_no_number(more):
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 9, **more}
    [(is_valid, [number], _)] = one_at_a_time(record("r", n=kind), b"\2\7")
    assert (is_valid, number) == (True, decimals.NO_NUMBER)
    assert RecordSchema(json.dumps(record("r", n=kind)), [("n",)]).leaves[0][0].kind is LeafKind.OTHER


def test_a_fixed_type_of_no_bytes_is_no_number_and_takes_none():
    kind = {"type": "fixed", "name": "f", "size": 0, "logicalType": "decimal", "precision": 1, "scale": 0}
    [(is_valid, [number], [text])] = one_at_a_time(record("r", n=kind, m="int"), b"\2")
    assert (is_valid, number, text) == (True, decimals.NO_NUMBER, False)


def test_work_is_bounded_by_the_bytes_whatever_a_record_claims():
    nulls = {"type": "array", "items": ["null", "long"]}
    deep = {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": "null"}}}
    schema = record("r", n="long", a=nulls, b={"type": "map", "values": record("e")}, c=deep, s=["null"])
    many = varint(2**62)
    claims = [
        b"\0" + many, b"\0" + many + b"\0" * 5000, b"\0\0" + many, b"\x80" * 5000, b"\0" * 5000,
        b"\0\0" + many + b"\0" * 5000, b"\0\0\0" + many * 500,
        b"\0\0\0" + (many + b"\2") * 500, b"\0\0\0" + b"\2" * 5000,
    ]  # fmt: skip
    zeros = record(
        "r",
        n="long",
        xs={"type": "array", "items": "null"},
        ys={"type": "array", "items": record("e", f="null")},
    )
    tracemalloc.start()
    start = time.process_time()
    rows = one_at_a_time(schema, *claims * 2)
    [free] = one_at_a_time(zeros, varint(1) + many * 3 + b"\0" + many + b"\0")
    assert time.process_time() - start < 20
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not any(valid for valid, _, _ in rows)
    assert free[:2] == (True, [(1, 0)])
    assert peak < 32 << 20


def test_named_types_mean_what_their_name_spaces_say():
    def point(**more: Any) -> dict[str, Any]:
        return {"type": "record", **more, "fields": [{"name": "n", "type": "long"}]}

    text = {"type": "record", "name": "P", "namespace": "", "fields": [{"name": "n", "type": "string"}]}
    for first, use in (
        (point(name="P"), "P"), (point(name="P"), "a.P"), (point(name="x.P"), "x.P"),
        (point(name="P", namespace="x"), "x.P"), (point(name="P", namespace=""), "P"),
        (point(name=".P"), "P"), (point(name="P", namespace=7), "a.P"),
    ):  # fmt: skip
        schema = {
            "type": "record", "name": "R", "namespace": "a",
            "fields": [{"name": "x", "type": first}, {"name": "y", "type": use}],
        }  # fmt: skip
        rows = one_at_a_time(schema, b"\2\4", paths=[("x", "n"), ("y", "n")])
        assert rows[0][:2] == (True, [(1, 0), (2, 0)])
    schema["fields"].append({"name": "z", "type": text})
    for use, is_known in (("x.P", True), ("nowhere.P", False), ("P", False)):
        schema["fields"][0]["type"] = point(name="x.P")
        schema["fields"][1]["type"] = use
        if is_known:
            RecordSchema(json.dumps(schema), [("y", "n")])
        else:
            with pytest.raises(UnusableSchema, match="does not define"):
                RecordSchema(json.dumps(schema), [("y", "n")])


def test_what_a_schema_has_at_a_path_is_told():
    inner = record("i", n=["null", "string", "long", {"type": "bytes", "logicalType": "decimal", "scale": 2}])
    schema = record("r", p=["null", inner, record("j", n="double")], xs={"type": "array", "items": "long"})
    leaves = RecordSchema(json.dumps(schema), [("p", "n"), ("xs",), ("xs", "n"), ("q",), ("p",)]).leaves
    assert [[leaf.kind for leaf in one] for one in leaves] == [
        [LeafKind.TEXT, LeafKind.INTEGER, LeafKind.DECIMAL, LeafKind.REAL], [LeafKind.OTHER],
        [], [], [LeafKind.OTHER, LeafKind.OTHER],
    ]  # fmt: skip


def test_a_count_whose_bytes_overflow_is_malformed():
    schema = record("r", xs={"type": "array", "items": "double"}, n="long")
    rows = one_at_a_time(schema, *(varint(count) + b"\0\2" for count in (2**61, 2**62, 2**63 - 1)))
    assert [valid for valid, _, _ in rows] == [False] * 3


TREE = record(
    "T", x="long", l=["T", "null"], r=["null", "string", "T"], more={"type": "map", "values": ["null", "T"]}
)
RECURSIVE = record("r", t=["null", TREE], n="long", u={"type": "array", "items": "T"})


def tree(chance: Random, depth: int) -> dict[str, Any]:
    def inner() -> dict[str, Any] | None:
        return tree(chance, depth - 1) if depth and chance.random() < 0.4 else None

    right = chance.choice((inner(), "text"))
    return {
        "x": chance.randrange(-(2**40), 2**40), "l": inner(), "r": right, "more": {f"k{n}": inner() for n in range(2)},
    }  # fmt: skip


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("seed", range(5))
def test_a_recursive_type_off_the_paths_is_skipped(seed: int):
    chance, bodies = Random(seed), []
    for _ in range(150):
        out = BytesIO()
        content = {
            "t": tree(chance, 9),
            "n": chance.randrange(99),
            "u": [tree(chance, 4)] * chance.randrange(3),
        }
        schemaless_writer(out, parse_schema(RECURSIVE), content)
        bodies += [out.getvalue(), Writer(chance).damaged(out.getvalue())]
    compiled = RecordSchema(json.dumps(RECURSIVE), [("n",), ("t", "r", "x"), ("t", "l", "x")])
    rows = read(compiled, bodies, 3)
    assert rows == [row for one in bodies for row in read(compiled, [one], 3)]
    for body, (is_valid, numbers, _) in zip(bodies[::2], rows[::2], strict=True):
        found = by_fastavro(RECURSIVE, body)
        left = found["t"][1]["l"]
        assert is_valid
        assert numbers[0] == (found["n"], 0)
        assert numbers[2] == ((left[1]["x"], 0) if left else decimals.NO_NUMBER)


def test_a_recursive_type_is_bounded_work():
    both = record("T", l=["T", "null"], r=["T", "null"])
    endless = record("T", l="T", r="T")
    chain = record("T", l=["null", {"type": "array", "items": ["T"]}])
    for kind, data in (
        (both, b"\0" * 5000),
        (both, b"\0\2" * 2500),
        (endless, b"\0" * 5000),
        (chain, b"\2\2\0" * 5000),
    ):
        rows = one_at_a_time(record("r", n="long", t=kind), *[b"\2" + data] * 101, b"\2\2\2")
        assert [valid for valid, _, _ in rows] == [False] * 101 + [kind is both]


def test_depth_is_limited_where_it_is_public_and_a_recursive_type_refused_where_it_is_not():
    chain = record("T", l=["null", "T"])
    deep = [b"\2" + b"\2" * size + b"\0" for size in (10, 42, 43, 5000)]
    rows = one_at_a_time(record("r", n="long", t=chain), *deep)
    assert [valid for valid, _, _ in rows] == [True, True, False, False]
    for kind in (
        ["null", chain],
        chain,
        {"type": "array", "items": chain},
        {"type": "map", "values": [chain]},
    ):
        with pytest.raises(UnusableSchema, match="recursive"):
            RecordSchema(json.dumps(record("r", n=kind)), [("n",)])


def test_a_union_of_records_is_read_by_the_one_that_was_written():
    schema = ["null", record("a", n="long"), record("b", x="string", n=["double", "null"])]
    rows = one_at_a_time(schema, b"\2\6", b"\4\2x\0" + struct.pack("<d", 0.5), b"\0", b"\6\6")
    assert [(valid, number) for valid, [number], _ in rows] == [
        (True, (3, 0)), (True, (0, PARTS // 2)), (True, decimals.NO_NUMBER), (False, decimals.NO_NUMBER),
    ]  # fmt: skip
