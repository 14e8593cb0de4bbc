"""Records of counts: the queries of a window at a tick, as a worker reads them (see `queries/counts.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from stream_svt.columns.query_batch import Integers
from stream_svt.queries.codec import ARROW_STREAM
from stream_svt.queries.counts import (
    LIST_HEADER,
    MAX_BYTES,
    MAX_ROWS,
    MEASURE_HEADER,
    SOURCE_HEADER,
    query_id,
    set_id,
)
from stream_svt.settings.sources import HIGHEST, SourceSpec, WindowList

_Arrow: TypeAlias = Any  # pyarrow has no types

_ROW_BYTES: Final = 24
"""Bytes of a row, and of its entry in a dictionary, besides the name of its series."""
_OTHER_BYTES: Final = 10_000
"""Bytes of everything else of a record, at most."""


@dataclass(frozen=True, slots=True)
class CountsRecord:
    """A record of a topic of counts: key, headers, value (an Arrow stream) and timestamp, the end of its tick."""

    dataset: str
    headers: tuple[tuple[str, bytes], ...]
    content: bytes
    timestamp_ms: int


def records_of(
    source: SourceSpec, listed: WindowList, window: int, tick: int, values: Integers
) -> Iterator[CountsRecord]:
    """Yield the records of a window's list at a tick, zeros included, in declared order; ``values`` are by cell."""
    series = np.minimum(values, HIGHEST).reshape(len(listed.datasets), len(listed.measures), -1)
    has_set, identity = source.ask == "close", query_id(window, tick)
    parts = _parts(listed.series, has_set)
    of_source, of_list = _headers(source), (LIST_HEADER, listed.digest.encode())
    for name, of_dataset in zip(listed.datasets, series, strict=True):
        dataset = source.dataset_at(window, name)
        for measure, of_measure in zip(listed.measures, of_dataset, strict=True):
            headers = (*of_source, (MEASURE_HEADER, measure.name.encode()), of_list)
            whole = np.append(of_measure, 0) if has_set else of_measure  # the last row closes the set
            for first, end, names in parts:
                columns = {"id": _constant(identity, end - first), "value": pa.array(whole[first:end])}
                if source.series is not None:
                    columns["series"] = names
                if has_set:
                    columns["set"] = _constant(set_id(window, measure.name), end - first)
                    columns["closed"] = pa.array(np.arange(first, end) == len(listed.series))
                yield CountsRecord(dataset, headers, _stream(columns), tick)


Answer: TypeAlias = tuple[str, str | None, int]
"""An answer that is passed on: id, series, and value in units of 10^-18."""


def records_of_answers(
    source: SourceSpec, dataset: str, answers: Sequence[Answer], tick: int
) -> Iterator[CountsRecord]:
    """Yield the records of answers of one dataset, as they are, at a tick; cut by their ids and series alone."""
    headers = (*_headers(source), (MEASURE_HEADER, b""))
    sizes = (len(name.encode()) + len((series or "").encode()) + _ROW_BYTES for name, series, _ in answers)
    for first, end in cut_rows(sizes, MAX_BYTES - _OTHER_BYTES):
        ids, series, values = zip(*answers[first:end], strict=True)
        # The same bytes for any value: all have one type, and none is null.
        content = b"".join([value.to_bytes(16, "little", signed=True) for value in values])
        exact = pa.Array.from_buffers(pa.decimal128(38, 18), end - first, [None, pa.py_buffer(content)])
        columns = {"id": pa.array(ids, pa.utf8()), "value": exact}
        if source.answers is not None and source.answers.series is not None:
            columns["series"] = pa.array(series, pa.utf8())
        yield CountsRecord(dataset, headers, _stream(columns), tick)


def _headers(source: SourceSpec) -> tuple[tuple[str, bytes], ...]:
    return ("content-type", ARROW_STREAM.encode()), (SOURCE_HEADER, source.digest.encode())


def cut_rows(sizes: Iterable[int], most_bytes: int) -> list[tuple[int, int]]:
    """Return the rows of each record, from and to, given the bytes of each row; one row always has room."""
    ends, whole, first, row = list[int](), 0, 0, -1
    for row, size in enumerate(sizes):
        whole += size
        if row - first == MAX_ROWS or (whole > most_bytes and row > first):
            ends.append(row)
            whole, first = size, row
    return [*zip([0, *ends], [*ends, row + 1], strict=True)]


@lru_cache(maxsize=4)
def _parts(names: tuple[str, ...], has_set: bool) -> Sequence[tuple[int, int, _Arrow]]:
    """Return the rows of each record, from and to, with the column of their series: cut by the declared names alone."""
    rows = [*names, names[-1]] if has_set else names
    sizes = (len(name.encode()) + _ROW_BYTES for name in rows)
    cut = cut_rows(sizes, MAX_BYTES - _OTHER_BYTES)
    return [(first, end, _series(rows[first:end])) for first, end in cut]


def _series(names: Sequence[str]) -> _Arrow:
    """Return the column of the series of rows; the row that closes a set has the last one's, and it is not read."""
    known = {name: code for code, name in enumerate(dict.fromkeys(names))}
    codes = np.array([known[name] for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array([*known], pa.utf8()))


def _constant(text: str, rows: int) -> _Arrow:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text], pa.utf8()))


def _stream(columns: dict[str, _Arrow]) -> bytes:
    batch = pa.record_batch([*columns.values()], names=[*columns])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
