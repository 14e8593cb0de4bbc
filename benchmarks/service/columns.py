"""A worker on columnar records against a loop that fetches the same bytes and reads their values.

Arrow IPC streams of 10,000 rows with the columns id (text), value (int64) and series (a dictionary of texts), each
record of one dataset. The peer is a bare aiokafka ``getmany`` loop that opens each record with pyarrow and adds up its
values. Rates are in rows.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.application import PARTITIONS
from benchmarks.command import median_ratio, say
from benchmarks.peers import Reading
from benchmarks.service.reading import DATASETS_EACH, SERIES, TOP, datasets, drawn_values, worker_reading
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.queries.codec import ARROW_STREAM

TOPIC = "columns"
HEADERS = (("content-type", ARROW_STREAM.encode()),)
_SERIES = pa.array([f"s{number}" for number in range(SERIES)])


def record(first: int, values: NDArray[np.int64]) -> bytes:
    """Return a columnar record; its ids and series follow from the number of its first query."""
    numbers = np.arange(first, first + len(values))
    ids = pc.binary_join_element_wise("q", pa.array(numbers).cast(pa.string()), "")
    series = pa.DictionaryArray.from_arrays(pa.array(numbers % SERIES, pa.int32()), _SERIES)
    rows = pa.record_batch({"id": ids, "value": pa.array(values), "series": series})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    written: Any = sink.getvalue()
    return bytes(written)


def records(names: Sequence[str], values: NDArray[np.int64], rows: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of records of so many rows, dataset after dataset in turn."""
    for number, first in enumerate(range(0, len(values), rows)):
        yield names[number % len(names)].encode(), record(first, values[first : first + rows])


def figures(
    messages: int = 2_400,
    rows: int = 10_000,
    repetitions: int = 5,
    commit_records: int = 20_000,
    look_every: int = 200,
) -> dict[str, float]:
    """Return `columnar_vs_fetch` and `columnar_mrows`, the worker's millions of rows a second.

    A turn is over so many ``messages`` of so many ``rows``; ``look_every`` is in milliseconds.
    """
    names = datasets(DATASETS_EACH)
    values = drawn_values(messages * rows)
    tops = int((values == TOP).sum())
    ours: list[Reading] = []
    theirs: list[Reading] = []
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, [TOPIC], PARTITIONS))
        written = records(names, values, rows)
        asyncio.run(peers.write_records(servers, TOPIC, written, partitions=PARTITIONS, headers=HEADERS))
        peers.value_column_reading(servers, TOPIC)  # the first reader warms the broker up
        for _ in range(repetitions):
            theirs.append(peers.value_column_reading(servers, TOPIC))
            commit = {"look_every": look_every, "max_records": commit_records}
            read = worker_reading(servers, names, TOPIC, messages, tops=tops, **commit)
            ours.append(read.times(rows))
            say(f"worker {ours[-1]}, fetch and values {theirs[-1]}")
    rates = [reading.rate for reading in ours]
    return {
        "columnar_vs_fetch": median_ratio("fetch", rates, [reading.rate for reading in theirs]),
        "columnar_mrows": statistics.median(rates) / 1e6,
    }
