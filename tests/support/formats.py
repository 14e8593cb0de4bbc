"""Values of queries in every format of records that a worker decodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.queries.codec import ARROW_STREAM, QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.records import RecordLayout
from tests.support.avro import AtHand, encode, record

KEY = b"shop"
HOMES = Partitioning(1, "murmur2")
INDEX = DatasetIndex([KEY.decode()], partition=0, partitioning=HOMES)
ARROW_HEADER = (("content-type", ARROW_STREAM.encode()),)
NESTED = RecordLayout(value="payload.count", series="payload.page")
IN_AVRO = RecordLayout(format="avro", value="payload.count")


@dataclass(frozen=True)
class Record:
    """A record of a partition."""

    offset: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes = KEY
    timestamp: int = 1_700_000_000_000


@dataclass(frozen=True)
class Format:
    """A format: how records are made of values, and what a topic of it declares."""

    records: Callable[[Sequence[Any]], list[Record]]
    layout: RecordLayout | None = None
    schema: Any = None

    def decoder(self) -> QueryDecoder:
        schemas = None if self.schema is None else AtHand({1: self.schema})
        return QueryDecoder("queries", INDEX, ["hot"], self.layout, schemas)

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
        Record(n, b'{"id":"q%d","value":%b}' % (n, text_of(one).encode())) for n, one in enumerate(values)
    ]


def _mapped(values: Sequence[Any]) -> list[Record]:
    form = b'{"payload":{"count":%b,"page":"p"}}'
    return [Record(n, form % text_of(one).encode()) for n, one in enumerate(values)]


def arrow(kind: Any, *, coded: bool = False) -> Format:
    """Return a format of columns of a type, as entries of a dictionary if ``coded``."""

    def records(values: Sequence[Any]) -> list[Record]:
        column = values if isinstance(values, pa.Array) else pa.array(values, kind)
        column = column.dictionary_encode() if coded else column
        ids = pa.array([f"q{n}" for n in range(len(column))])
        batch, sink = pa.record_batch({"id": ids, "value": column}), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return [Record(0, sink.getvalue().to_pybytes(), ARROW_HEADER)]

    return Format(records)


def avro(kind: Any, branch: Any = None) -> Format:
    """Return a format of Avro records whose value has a type; ``branch`` writes a value of a union."""
    schema = record("r", payload=record("p", count=kind))

    def records(values: Sequence[Any]) -> list[Record]:
        counts = values if branch is None else [branch(one) for one in values]
        return [Record(n, encode(schema, {"payload": {"count": one}})) for n, one in enumerate(counts)]

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
