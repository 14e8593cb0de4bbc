"""Query records by hand: whose dataset is at home on the partition, and whose is not; and numbers that are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.queries.codec import QueryDecoder, concatenate
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.records import RecordLayout
from tests.support.engine_play import numbers

NAMES = [f"shop-{number}" for number in range(12)]
PARTITIONS = 4
HOMES = Partitioning(PARTITIONS, "murmur2")
OWN = HOMES.of(b"shop-0")
AT_HOME_NAMES = [name for name in NAMES if HOMES.of(name.encode()) == OWN]
HERE = DatasetIndex(AT_HOME_NAMES, partition=OWN, partitioning=HOMES)
AT_HOME = b"shop-0"
UNDECLARED = next(key for key in (b"other-%d" % k for k in range(99)) if HOMES.of(key) == OWN)
ELSEWHERE = next(name.encode() for name in NAMES if name not in AT_HOME_NAMES)

NO_NUMBER = [
    b'"5"', b'"text"', b'"a\xff"', b'"\\ud800"', b"null", b"true", b"{}", b'{"a":[1,{}]}', b"[1,2]", b"NaN",
    b"nan", b"Infinity", b"-Infinity", b"inf", b"abc", b"01", b"+5", b".5", b"1.", b"1e", b"1_0", b"0x1F",
    b"", b" ", b"'5'", b"tru", b"[" * 5000 + b"]" * 5000, b"1 2",
]  # fmt: skip

TOO_LARGE = [b"1e999", b"1e99999999999999999999", b"9" * 400, b"7" * 2000, b"0." + b"1" * 2000 + b"e2000"]

fragments = st.sampled_from(
    [*b'{ } [ ] , : " \\ "id" "value" "a" 1 NaN {"id":"a"}'.split(), b"\n", b" ", b"\xff"]
)
"""Pieces of JSON that are put together at random."""

ARROW = (("Content-Type", b"application/vnd.apache.arrow.stream"),)


@dataclass
class Record:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes], ...] = ()


def decoder(layout: RecordLayout | None = None) -> QueryDecoder:
    return QueryDecoder("queries", HERE, ["hot", "cold"], layout)


def one_by_one(records: Sequence[Record], layout: RecordLayout | None = None) -> QueryBatch:
    """Decode so that no message can share a call with another."""
    return concatenate([decoder(layout).decode([record]) for record in records])


def contents(batch: QueryBatch) -> dict[str, object]:
    """Return what a batch holds, in Python objects."""
    plain = ("first", "end", "set_id", "threshold", "monitor", "markers", "rejects")
    found = {name: getattr(batch, name) for name in plain}
    found |= {name: getattr(batch, name).tolist() for name in ("offset", "row", "timestamp_ms", "dataset")}
    rows = range(len(batch))
    series = [batch.series[row] if batch.series else None for row in rows]
    return found | {"value": numbers(batch), "id": [batch.query_id[row] for row in rows], "series": series}


def arrow(compression: str | None = None, **columns: object) -> bytes:
    table, sink = pa.table(columns), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def columnar_batch(message: bytes) -> QueryBatch:
    return decoder().decode([Record(8, AT_HOME, message, headers=ARROW)])


def odd_columns() -> dict[str, Any]:
    """Columns of one row that could stand at `value`."""
    decimal = pa.decimal128(38, 2_000_000_000)
    return {
        "list": pa.array([[1, 2]]),
        "struct": pa.array([{"a": 1}]),
        "dictionary of list": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[1, 2]])),
        "dictionary of struct": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([{"a": 1}])),
        "dictionary of text": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["7"])),
        "dictionary of nothing": pa.DictionaryArray.from_arrays(pa.array([0]), pa.nulls(1)),
        "dictionary, index beyond": pa.DictionaryArray.from_arrays(
            pa.array([5], pa.int8()), pa.array([7]), safe=False
        ),
        "text that is no UTF-8": pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xff\xfe")]
        ),
        "decimal of no scale": pa.Array.from_buffers(
            decimal, 1, [None, pa.py_buffer((7).to_bytes(16, "little"))]
        ),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "time": pa.array([1], pa.time64("ns")),
        "null": pa.nulls(1),
        "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([3])),
        "not a number": pa.array([float("nan")]),
    }
