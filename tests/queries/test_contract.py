"""The contract of every format: what a record means, why one is refused, and what a value can never do."""

from __future__ import annotations

import json
import math
import random
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.mechanisms.grid import PARTS
from stream_svt.protocol.records import Records
from stream_svt.queries.codec import QueryDecoder, concatenate
from stream_svt.queries.counts import MEASURE_HEADER, SOURCE_HEADER
from stream_svt.queries.reasons import Reason
from stream_svt.settings.records import RecordLayout
from stream_svt.settings.sources import SourceSpec
from tests.support.avro import AtHand, encode, varint
from tests.support.avro import record as schema_of
from tests.support.counts import VISITORS, counting
from tests.support.engine_play import numbers
from tests.support.odd_values import AVRO_DATA, COLUMNS, TOKENS
from tests.support.query_records import (
    ARROW,
    AT_HOME,
    ELSEWHERE,
    HERE,
    NO_NUMBER,
    TOO_LARGE,
    UNDECLARED,
    Record,
    arrow,
    contents,
    fragments,
    odd_columns,
)  # fmt: skip
from tests.support.silence import silence

LIMIT = 2**62
ANY: Any = object()
"""Any number, or none."""
Texts = Mapping[str, str | None]
TEXTS: Texts = {"id": "q", "series": "s", "set": "L"}


@dataclass(frozen=True)
class Form:
    """A format.

    Attributes:
        write: Makes a record of a content at the place of the value, and of texts.
        seven: A content that is the number 7.
        accepted: Records with `TEXTS`, and the numbers of their rows: None for the lower bound.
        malformed: Records, and why they are refused.
    """

    write: Callable[[Any, Texts], bytes]
    seven: Any
    accepted: Sequence[tuple[bytes, Sequence[Any]]]
    malformed: Sequence[tuple[bytes, Reason]]
    layout: RecordLayout | None = None
    schemas: Mapping[int, Any] = field(default_factory=dict)
    headers: tuple[tuple[str, bytes], ...] = ()
    source: SourceSpec | None = None
    fixed: int = 0
    """Bytes at the beginning that are not to be damaged."""

    def good(self, **texts: str | None) -> bytes:
        return self.write(self.seven, {**TEXTS, **texts})

    def record(self, offset: int, value: bytes | None, key: bytes | None = AT_HOME) -> Record:
        return Record(offset, key, value, headers=self.headers)

    @cached_property
    def decoder(self) -> QueryDecoder:
        named = ["hot", "cold"], self.layout, AtHand(self.schemas), self.source
        return QueryDecoder("queries", HERE, *named)

    def decode(self, records: Sequence[Any]) -> QueryBatch:
        assert self.decoder.lack(records) == (len(records), "")
        parts: list[QueryBatch] = []
        while len(records):  # a batch may end before them
            parts.append(self.decoder.decode(records))
            records = records[sum(one.offset < parts[-1].end for one in records) :]
        return concatenate(parts)

    def batch(self, *values: bytes | None) -> QueryBatch:
        return self.decode([self.record(100 + at, value) for at, value in enumerate(values)])


def refused(reason: Reason, *values: bytes) -> Iterator[tuple[bytes, Reason]]:
    """Yield records with a reason."""
    yield from ((value, reason) for value in values)


# JSON


def members(texts: Texts, names: Mapping[str, str]) -> bytes:
    return ",".join(f'"{names[name]}":{json.dumps(text)}' for name, text in texts.items()).encode()


def own(value: bytes, texts: Texts) -> bytes:
    return b'{"trace":{"value":[1,"}"]},"value":%b,%b}' % (
        value,
        members(texts, {name: name for name in texts}),
    )


def mapped(value: bytes, texts: Texts) -> bytes:
    meta = members({"id": texts["id"]}, {"id": "id"})
    rest = members({"set": texts["set"]}, {"set": "w.x"})
    page = json.dumps(texts["series"]).encode()
    form = b'{"id":5,"payload":{"count":%b,"page":%b,"x":[{"count":1}]},"meta":{%b},%b,"w":{"x":"t"}}'
    return form % (value, page, meta, rest)


NUMBERS = [
    (b"7.25", Fraction(29, 4)), (b"-3", -3), (b"0.1", Fraction("0.1")), (b"5.0", 5), (b"12e2", 1200), (b"-0.0", 0),
    (b"%d" % (LIMIT + 1), LIMIT), (b"%d" % -(LIMIT + 1), None), (b"%d" % 2**70, LIMIT),
    (b"4." + b"9" * 5000, 5 - Fraction(1, PARTS)), (b"5." + b"0" * 5000 + b"1", 5), (b"1e-999999999", 0),
    (b"-1e-999999999999999999999", -Fraction(1, PARTS)), (b"0e999999999999", 0),
    (b"0." + b"0" * 900_000 + b"1", 0), (b"-0." + b"0" * 900_000 + b"1", -Fraction(1, PARTS)),
    (b"0." + b"0" * 900_000, 0), (b"7" * 900_000, LIMIT), (b"1e" + b"9" * 900_000, LIMIT), (b"1e-" + b"9" * 900_000, 0),
    *((token, LIMIT) for token in TOO_LARGE), *((b"-" + token, None) for token in TOO_LARGE),
    *((token, None) for token in NO_NUMBER), *((token.encode(), ANY) for token in TOKENS),
]  # fmt: skip
ANY_VALUES = (b"1", b'"a\xff"', b"\xff", b"nul")
NO_THRESHOLDS = (b'"high"', b'"500"', b"1e999", b"1e-999999999", b"1" * 65)
DEEP = b"[" * 600 + b"]" * 600
OWN = Form(
    own,
    b"7",
    [
        *((own(token, TEXTS), [number]) for token, number in NUMBERS),
        (b'{"value":NaN,"set":"L","id":"q","series":"s"}', [None]),
        (b'{"id":"q","set":"L","series":"s","v\\u0061lue": NaN }', [None]),
        (b'{"id":"q","set":"L","series":"s","value":1,"value":NaN}', [None]),
        (b'{"id":"q","set":"L","series":"s","value":%b,"value":5}' % DEEP, [None]),
        (b'{"id":"q","set":"L","series":"s"}', [None]),
        (b'{"id":"q","set":"L","series":"s","value":8,"time":"2026-01-01T00:00:00Z","threshold":null}', [8]),
    ],
    [
        *refused(Reason.NOT_JSON, b" ", b"hello", b'{"id":"a","value":1', b'{"id":"a","value":1}{}', b"\xff\xfe"),
        *refused(Reason.NOT_JSON, b'{"id":"a","value":"1}', b'{"id":"a","value":[1,', b'{"id":"a","extra":NaN}'),
        *refused(Reason.NOT_JSON, *(b'{"id":"a","value":%b,"x":[}' % value for value in ANY_VALUES)),
        *refused(Reason.NOT_JSON, b'{"id":"\xff","value":1}'),
        *refused(Reason.NOT_AN_OBJECT, b"[1]", b"7", b'"text"', b"null"),
        *refused(Reason.MISSING_ID, b"{}", b'{"value":1}', b'{"id":null,"value":1}'),
        *refused(Reason.BAD_ID, b'{"id":5,"value":1}', b'{"id":5,"value":NaN}'),
        *refused(Reason.BAD_SERIES, b'{"id":"a","series":7}'),
        *refused(Reason.BAD_SET, b'{"id":"a","set":{}}', b'{"id":"a","closed":1}', b'{"closed":true}'),
        *refused(Reason.BAD_THRESHOLD, *(b'{"id":"a","threshold":%b}' % limit for limit in NO_THRESHOLDS)),
        *refused(Reason.UNKNOWN_MONITOR, b'{"id":"a","monitor":"lukewarm"}', b'{"id":"a","monitor":3}'),
        *refused(Reason.BAD_TIME, b'{"id":"a","time":[]}'),
    ],
)  # fmt: skip
MAPPED = Form(
    mapped,
    b"7",
    [
        *((mapped(token, TEXTS), [number]) for token, number in NUMBERS),
        (b'{"payload":{"page":"s"},"meta":{"id":"q"},"w.x":"L"}', [None]),
        (b'{"payload":{"page":"s","count":%b,"count":5},"meta":{"id":"q"},"w.x":"L"}' % DEEP, [None]),
        (mapped(b'8,"closed":true,"set":"x","monitor":"none","threshold":"x"', TEXTS), [8]),
    ],
    [
        *refused(Reason.NOT_JSON, b"hello", b'{"payload":{"count":1},"meta":{"id":"a"}'),
        *refused(Reason.NOT_JSON, b'{"payload":NaN,"meta":{"id":"a"}}', b'{"payload":{"count":[},"meta":{"id":"a"}}'),
        *refused(Reason.NOT_JSON, *(b'{"payload":{"count":%b},"x":"' % value for value in ANY_VALUES)),
        *refused(Reason.NOT_JSON, *(b'{"x":"\t,"payload":{"count":%b}}' % value for value in ANY_VALUES)),
        *refused(Reason.NOT_AN_OBJECT, b"[1]"),
        *refused(Reason.MISSING_ID, b'{"payload":{"count":1}}', b'{"meta":5}', b'{"meta":{"id":null}}'),
        *refused(Reason.BAD_ID, *(b'{"meta":{"id":%b}}' % found for found in (b"1.5", b"{}", b"9" * 290))),
        *refused(Reason.BAD_SERIES, b'{"meta":{"id":"a"},"payload":{"page":[]}}'),
        *refused(Reason.BAD_SET, b'{"meta":{"id":"a"},"w.x":2.5}'),
        *refused(Reason.NOT_JSON, b'{"meta":{"id":"\xff"}}'),
    ],
    RecordLayout(value="payload.count", series="payload.page", id="meta.id", set=r"w\.x"),
)  # fmt: skip


# Avro

CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
FIXED = {"type": "fixed", "size": 8, "name": "f", "logicalType": "decimal", "precision": 18, "scale": 4}
HUGE = {"type": "bytes", "logicalType": "decimal", "precision": 90, "scale": 0}
TENTH = Fraction(math.floor(Fraction(0.1) * PARTS), PARTS)
AVRO_VALUES: list[tuple[Any, Any, Any]] = [
    ("long", 7, 7), ("int", -3, -3), ("long", LIMIT + 5, LIMIT), ("long", -(2**63), None),
    ("double", 0.1, TENTH), ("double", math.inf, LIMIT), ("double", -math.inf, None), ("double", math.nan, None),
    ("float", 2.5, Fraction(5, 2)), (["null", "long"], None, None), (["null", "long"], 12, 12),
    ("string", "12", None), ("boolean", True, None), ("bytes", b"\7", None),
    ({"type": "enum", "name": "e", "symbols": ["A"]}, "A", None),
    ({"type": "array", "items": "long"}, [1, 2], None), (schema_of("inner", a="long"), {"a": 1}, None),
    (CENTS, Decimal("12345.67"), Fraction("12345.67")), (CENTS, Decimal("-0.01"), Fraction("-0.01")),
    (FIXED, Decimal("-7.0001"), Fraction("-7.0001")), (["null", HUGE], Decimal(10**80), LIMIT),
]  # fmt: skip
KINDS = [*(kind for kind, _, _ in AVRO_VALUES), *(kind for kind, _ in AVRO_DATA)]
OPTIONAL = ["null", "string"]


def with_value(kind: Any, **more: Any) -> Any:
    return schema_of(
        "r", id="string", p=schema_of("p", n=kind), page=OPTIONAL, set=OPTIONAL, last="int", **more
    )


TAGS = {"type": "array", "items": "string"}
SCHEMAS = {number: with_value(kind) for number, kind in enumerate(KINDS)}
SCHEMAS |= {1000 + number: with_value(kind, tags=TAGS) for number, kind in enumerate(KINDS)}
SCHEMAS |= {
    2001: "unusable",
    2002: schema_of("r", id=["null", "long"], n="long", page="double"),
}


def sized(text: str) -> bytes:
    return varint(len(text.encode())) + text.encode()


def avro(content: tuple[int, bytes], texts: Texts) -> bytes:
    """Return a record of a schema, by its number; those from 1000 on have an array."""
    number, data = content
    series, set_id = (
        b"\0" if text is None else b"\2" + sized(text) for text in (texts["series"], texts["set"])
    )
    head = b"\0" + number.to_bytes(4, "big") + sized(texts["id"] or "")
    return head + data + series + set_id + varint(-9) + (b"\4\2a\2b\0" if number >= 1000 else b"")


def _avro_records() -> Iterator[tuple[bytes, Sequence[Any]]]:
    for number, (kind, value, found) in enumerate(AVRO_VALUES):
        for more in (0, 1000):
            yield avro((number + more, encode(kind, value)[5:]), TEXTS), [found]
    for number, (kind, contents_of_kind) in enumerate(AVRO_DATA, len(AVRO_VALUES)):
        form = {"float": "<f", "double": "<d"}.get(str(kind))
        for data in contents_of_kind:
            is_nan = form is not None and math.isnan(*struct.unpack(form, data))
            yield avro((number, data), TEXTS), [None if is_nan else ANY]


AVRO_GOOD = avro((0, varint(7)), TEXTS)
AVRO = Form(
    avro,
    (0, varint(7)),
    [*_avro_records()],
    [
        *refused(Reason.NOT_AVRO, b"\1" + AVRO_GOOD[1:], b'{"n":1}', b"\0\0\0"),
        *refused(Reason.NOT_AVRO, AVRO_GOOD[:-1], AVRO_GOOD + b"\0", AVRO_GOOD[:5]),
        *refused(Reason.UNUSABLE_SCHEMA, b"\0" + (2001).to_bytes(4, "big") + b"\0"),
        *refused(Reason.MISSING_ID, b"\0" + (2002).to_bytes(4, "big") + b"\0\0" + bytes(8)),
        *refused(Reason.BAD_SERIES, b"\0" + (2002).to_bytes(4, "big") + b"\2\2\0" + bytes(8)),
    ],
    RecordLayout(format="avro", value="p.n", id="id", series="page", set="set"),
    SCHEMAS,
    fixed=5,
)  # fmt: skip


# Columns


def columns(value: Any, texts: Texts) -> bytes:
    rows = len(value)
    given = {name: pa.array([text] * rows, pa.string()) for name, text in texts.items()}
    return arrow(**given, value=value, other=pa.array([1] * rows))


COLUMN_TYPES = ["list", "struct", "dictionary of list", "dictionary of struct", "run ends", "map"]
COLUMN_REASONS = {
    "id": Reason.BAD_ID, "series": Reason.BAD_SERIES, "set": Reason.BAD_SET, "monitor": Reason.UNKNOWN_MONITOR,
    "threshold": Reason.BAD_THRESHOLD, "closed": Reason.BAD_SET,
}  # fmt: skip
ARROW_COLUMNS = Form(
    columns,
    pa.array([7]),
    [
        *((columns(column, TEXTS), [None]) for column in odd_columns().values()),
        *((columns(column, TEXTS), [ANY] * len(column)) for column in COLUMNS.values()),
        (arrow(id=["q"], series=["s"], set=["L"]), [None]),
        (columns(pa.array([1, None, 3]), TEXTS), [1, None, 3]),
        (columns(pa.array([0.1]), TEXTS), [TENTH]),
        (columns(pa.array([Decimal("-7.0001")]), TEXTS), [Fraction("-7.0001")]),
    ],
    [
        *refused(Reason.NOT_ARROW, b"no arrow"),
        *refused(Reason.MISSING_ID, arrow(value=[1]), arrow(id=[None], value=[1]), arrow(id=["a", None], value=[1, 2])),
        *refused(Reason.BAD_ID, arrow(id=[5])),
        *refused(Reason.BAD_SET, arrow(id=["a"], set=[1])),
        *refused(Reason.BAD_SET, arrow(id=["a"], closed=[True]), arrow(id=["a"], closed=["x"])),
        *refused(Reason.UNKNOWN_MONITOR, arrow(id=["a"], monitor=["lukewarm"])),
        *refused(Reason.BAD_THRESHOLD, arrow(id=["a"], monitor=["hot"], threshold=["x"])),
        *refused(Reason.BAD_THRESHOLD, *(arrow(id=["a"], threshold=[float(limit)]) for limit in ("nan", "inf"))),
        *refused(Reason.BAD_THRESHOLD, arrow(set=["x"], closed=[True], threshold=[float("inf")])),
        *(
            (arrow(**{"id": pa.array(["x"]), "value": pa.array([1])} | {name: odd_columns()[kind]}), reason)
            for name, reason in COLUMN_REASONS.items()
            for kind in COLUMN_TYPES
        ),
    ],
    headers=ARROW,
)  # fmt: skip
(REQUESTS,) = counting(VISITORS).sources
OF_SOURCE = ((SOURCE_HEADER, REQUESTS.digest.encode()), (MEASURE_HEADER, b"errors"))
COUNTS = replace(ARROW_COLUMNS, headers=(*ARROW, *OF_SOURCE), source=REQUESTS)
FORMS = {"own JSON": OWN, "mapped JSON": MAPPED, "Avro": AVRO, "columns": ARROW_COLUMNS, "counts": COUNTS}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@each_form
def test_a_query_arrives_with_its_place_time_and_texts_and_other_fields_are_ignored(form):
    plain = form.good(id="a", series=None, set=None)
    found = contents(form.decode([form.record(5, form.good(series="milk")), form.record(9, plain)]))
    assert (found["first"], found["end"], found["offset"], found["row"]) == (5, 10, [5, 9], [0, 0])
    assert (found["timestamp_ms"], found["dataset"]) == ([1_700_000_000_000] * 2, [0, 0])
    assert (found["id"], found["value"], found["series"]) == (["q", "a"], [7, 7], ["milk", None])
    assert found["set_id"] == ["L", None]
    assert not any(found[name] for name in ("threshold", "monitor", "markers", "rejects"))


@each_form
def test_a_value_is_exact_or_the_lower_bound_and_decides_and_shows_nothing_else(form, capfd, caplog):
    pairs = [(form.good(), [7])]
    with silence(capfd, caplog):
        for value, expected in form.accepted:
            start = time.perf_counter()
            check(form.batch(value), expected)
            assert time.perf_counter() - start < 5
            pairs += [(value, expected), (form.good(), [7])]
        check(form.batch(*(value for value, _ in pairs)), [one for _, expected in pairs for one in expected])


def check(batch: QueryBatch, expected: Sequence[Any]) -> None:
    assert batch.rejects == []
    texts = [*batch.series], [batch.query_id[row] for row in range(len(batch))], batch.set_id
    assert texts == tuple([text] * len(expected) for text in ("s", "q", "L"))
    assert all(wanted in (ANY, found) for found, wanted in zip(numbers(batch), expected, strict=True)), (
        expected
    )


@each_form
def test_a_malformed_record_is_refused_for_its_reason_and_disturbs_no_neighbour(form):
    good = [form.good()] * 3
    sizes = [(None, Reason.EMPTY), (b"", Reason.EMPTY), (form.good(id="x" * 2_000_000), Reason.TOO_LARGE)]
    for value, reason in (*sizes, *form.malformed):
        alone, batch = form.batch(value), form.batch(*good, value, *good)
        assert (len(alone), alone.rejects) == (0, [(100, reason.value)]), value and value[:100]
        assert (alone.markers, alone.monitor, alone.threshold) == ({}, {}, {})
        assert batch.rejects == [(103, reason.value)]
        assert (batch.offset.tolist(), numbers(batch)) == ([100, 101, 102, 104, 105, 106], [7] * 6)


@each_form
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_1_to_256_characters(form, name):
    for text in ("x", "x" * 256, "é" * 256, "日" * 256):
        assert form.batch(form.good(**{name: text})).rejects == []
    for text in ("", "x" * 257, "é" * 257):
        assert form.batch(form.good(**{name: text})).rejects == [(100, f"bad-{name}")]


@each_form
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, Reason.NO_KEY),
        (UNDECLARED, Reason.UNDECLARED),
        (b"\xff", Reason.MISROUTED),
        (ELSEWHERE, Reason.MISROUTED),
    ],
)
def test_a_record_not_at_home_is_refused_before_its_content_is_judged(form, key, reason):
    unknown_schema = b"\0\0\1\0\0"
    for value in (form.good(), b"garbage", None, unknown_schema):
        assert form.decode([form.record(100, value, key)]).rejects == [(100, reason.value)]


@each_form
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), pieces=st.lists(st.lists(fragments, max_size=12).map(b"".join), max_size=3)
)
def test_records_are_read_together_as_each_is_alone_however_they_are_given(form, seed, pieces):
    chance = random.Random(seed)
    pool = [value for value, _ in (*form.accepted, *form.malformed) if len(value) < 5000]
    values: list[bytes | None] = [*pieces] * (not form.fixed)
    for _ in range(chance.randrange(1, 12)):
        changed = bytearray(chance.choice([form.good(), chance.choice(pool)]))
        for _ in range(chance.choice((0, 0, 1, 3))):
            if len(changed) > form.fixed:
                changed[chance.randrange(form.fixed, len(changed))] = chance.choice(
                    (0, 1, 0x7F, 0xFF, 0x22, 0x7D)
                )
        cut = chance.choice((None, None, None, chance.randrange(len(changed) + 1)))
        values.append(chance.choice([bytes(changed[:cut])] * 19 + [None]))
    chance.shuffle(values)
    keys = [AT_HOME] * 8 + [None, b"?", ELSEWHERE]
    records = [form.record(2 * at, value, chance.choice(keys)) for at, value in enumerate(values)]
    together = contents(form.decode(records))
    assert together == contents(concatenate([form.decode([one]) for one in records]))
    around = [form.record(at, form.good()) for at in (-2, -1)]
    assert together == contents(form.decode(Records.of([*around, *records, *around])[2:-2]))
    assert {reason for _, reason in together["rejects"]} <= {reason.value for reason in Reason}
