"""Values of queries in every format of records that a worker decodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.records import RecordLayout
from tests.support.avro import AtHand, encode, record
from tests.support.query_records import ARROW, AT_HOME, HERE, Record
from tests.support.query_records import arrow as columnar

NESTED = RecordLayout(value="payload.count", series="payload.page")
IN_AVRO = RecordLayout(format="avro", value="payload.count")


@dataclass(frozen=True)
class Format:
    """A format: how records are made of values, and what a topic of it declares."""

    records: Callable[[Sequence[Any]], list[Record]]
    layout: RecordLayout | None = None
    schema: Any = None

    def decoder(self) -> QueryDecoder:
        schemas = None if self.schema is None else AtHand({1: self.schema})
        return QueryDecoder("queries", HERE, ["hot"], self.layout, schemas)

    def batch(self, values: Sequence[Any]) -> QueryBatch:
        """Return the batch of records with values, in their order."""
        decoder, records = self.decoder(), self.records(values)
        assert decoder.lack(records) == (len(records), "")
        batch = decoder.decode(records)
        assert batch.end == records[-1].offset + 1
        return batch


def text_of(value: Any) -> str:
    """Return a number as JSON that a program writes: floats as the shortest text, decimals with all digits."""
    if value is None or isinstance(value, str):
        return value or "null"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)


def _plain(values: Sequence[Any]) -> list[Record]:
    return [
        Record(n, AT_HOME, b'{"id":"q%d","value":%b}' % (n, text_of(one).encode()))
        for n, one in enumerate(values)
    ]


def _mapped(values: Sequence[Any]) -> list[Record]:
    form = b'{"payload":{"count":%b,"page":"p"}}'
    return [Record(n, AT_HOME, form % text_of(one).encode()) for n, one in enumerate(values)]


def arrow(kind: Any, *, coded: bool = False) -> Format:
    """Return a format of columns of a type, as entries of a dictionary if ``coded``."""

    def records(values: Sequence[Any]) -> list[Record]:
        column = values if isinstance(values, pa.Array) else pa.array(values, kind)
        column = column.dictionary_encode() if coded else column
        message = columnar(id=[f"q{n}" for n in range(len(column))], value=column)
        return [Record(0, AT_HOME, message, headers=ARROW)]

    return Format(records)


def avro(kind: Any) -> Format:
    """Return a format of Avro records whose value has a type."""
    schema = record("r", payload=record("p", count=kind))

    def records(values: Sequence[Any]) -> list[Record]:
        return [
            Record(n, AT_HOME, encode(schema, {"payload": {"count": one}})) for n, one in enumerate(values)
        ]

    return Format(records, IN_AVRO, schema)


JSON, MAPPED = Format(_plain), Format(_mapped, NESTED)
DOUBLES = {
    "JSON": JSON,
    "mapped JSON": MAPPED,
    "Arrow": arrow(pa.float64()),
    "Arrow dictionary": arrow(pa.float64(), coded=True),
    "Avro": avro("double"),
    "Avro union": avro(["null", "string", "double"]),
}
"""Formats of doubles."""
