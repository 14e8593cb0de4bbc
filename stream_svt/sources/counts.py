"""Records of counts: the queries of a window at a tick, as a worker reads them (see `queries/counts.py`)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from stream_svt.columns.query_batch import DecilesRequest, Integers
from stream_svt.mechanisms.grid import PARTS
from stream_svt.queries.codec import ARROW_STREAM
from stream_svt.queries.counts import (
    DECILES_HEADER,
    LIST_HEADER,
    MAX_BYTES,
    MAX_ROWS,
    MEASURE_HEADER,
    MONITOR_HEADER,
    SOURCE_HEADER,
    moment_ms,
    query_id,
    set_id,
)
from stream_svt.settings.questions import HIGHEST, Question, rows_of
from stream_svt.settings.sources import SourceSpec, WindowList
from stream_svt.sources.questions import Values
from stream_svt.sources.ticks import TickClock

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
    writer = _WindowWriter(source, listed, window, tick)
    counts = np.minimum(values, HIGHEST).reshape(len(listed.datasets), len(listed.measures), -1)
    for name, of_dataset in zip(listed.datasets, counts, strict=True):
        for measure, of_measure in zip(listed.measures, of_dataset, strict=True):
            rows = pa.array(np.append(of_measure, 0) if source.ask == "close" else of_measure)
            yield from writer.records(name, (MEASURE_HEADER, measure.name), listed.series, rows)


def records_of_question(
    source: SourceSpec, listed: WindowList, question: Question, window: int, tick: int, values: Values
) -> Iterator[CountsRecord]:
    """Yield the records of the answers to a question about a closed window: of the series that were asked, in order."""
    writer, unit = _WindowWriter(source, listed, window, tick), PARTS // question.parts
    for name, steps, known in zip(listed.datasets, values.steps, values.known, strict=True):
        if known.any():
            asked = tuple(
                one for one, is_asked in zip(listed.series, known.tolist(), strict=True) if is_asked
            )
            exact = [step * unit for step in steps[known].tolist()]
            rows = _decimals([*exact, 0] if source.ask == "close" else exact)
            yield from writer.records(name, (MONITOR_HEADER, question.rows), asked, rows)


class _WindowWriter:
    """Makes records of a window at a tick; what all of them share is computed once."""

    def __init__(self, source: SourceSpec, listed: WindowList, window: int, tick: int) -> None:
        self._source, self._window, self._tick = source, window, tick
        self._of_source, self._of_list = _headers(source), (LIST_HEADER, listed.digest.encode())

    def records(
        self, name: str, header: tuple[str, str], series: tuple[str, ...], rows: _Arrow
    ) -> Iterator[CountsRecord]:
        """Yield the records of the values of some series; ``header`` says what they are, and names their set."""
        source, window = self._source, self._window
        dataset, identity = source.dataset_at(window, name), query_id(window, self._tick)
        headers = (*self._of_source, (header[0], header[1].encode()), self._of_list)
        has_set = source.ask == "close"
        for first, end, names in _parts(series, has_set):
            columns = {"id": _constant(identity, end - first), "value": rows[first:end]}
            if source.series is not None:
                columns["series"] = names
            if has_set:
                columns["set"] = _constant(set_id(window, header[1].partition(" ")[0]), end - first)
                columns["closed"] = pa.array(np.arange(first, end) == len(series))
            yield CountsRecord(dataset, headers, _stream(columns), self._tick)


def _decimals(values: Sequence[int]) -> _Arrow:
    """Return exact values, in units of 10^-18: the same bytes for any values, as all have one type and none is null."""
    content = b"".join([value.to_bytes(16, "little", signed=True) for value in values])
    return pa.Array.from_buffers(pa.decimal128(38, 18), len(values), [None, pa.py_buffer(content)])


def record_of_deciles(
    source: SourceSpec, dataset: str, request: DecilesRequest, values: Sequence[int], tick: int
) -> CountsRecord:
    """Return the record of a request, with the true deciles in units of 10^-18; ``tick`` is one that was counted."""
    headers = (*_headers(source), (DECILES_HEADER, msgspec.json.encode(request)))
    content = _stream({"id": _constant(request.id, len(values)), "value": _decimals(values)})
    return CountsRecord(dataset, headers, content, tick)


class ClosedRecord(NamedTuple):
    """Counts of a closed window, of a dataset and a measure: those of some series."""

    window: int
    dataset: str
    measure: str
    series: tuple[str, ...]
    counts: Integers


def closed_record(
    source: SourceSpec,
    key: bytes | None,
    content: bytes | None,
    headers: Mapping[str, bytes | None],
    rows: Container[str] = (),
    parts: int = 1,
) -> ClosedRecord | None:
    """Return what a record of `records_of` says of a closed window, in steps of 1 / ``parts``; None for another record.

    With ``rows`` of questions, whose answers are multiples of such a step, also what a record of these answers says.
    """
    measure = (headers.get(MEASURE_HEADER) or b"").decode()
    if (asked := (headers.get(MONITOR_HEADER) or b"").decode()) in rows:
        measure = rows_of(asked)
    if headers.get(SOURCE_HEADER) != source.digest.encode() or not (measure and key and content):
        return None
    table = pa.ipc.open_stream(content).read_all()
    window, tick = map(moment_ms, table["id"][0].as_py().split("/"))
    if window is None or tick != TickClock.of(source).close_of(window):
        return None
    last = table.num_rows - 1
    if "closed" in table.column_names and table["closed"][last].as_py():
        table = table.slice(0, last)
    series: tuple[str, ...] = ("",)
    if source.series:
        column = table["series"].combine_chunks()
        names = column.dictionary.to_pylist()
        series = tuple(names[code] for code in column.indices.to_pylist())
    values = table["value"]
    if parts > 1 and pa.types.is_decimal(values.type):
        # As many digits as 2^46 steps of 12 places have.
        values = pa.compute.multiply(
            values.cast(pa.decimal128(28, 12)), pa.scalar(parts, pa.decimal128(5, 0))
        )
    counts = values.cast(pa.int64()).to_numpy()
    return ClosedRecord(window, key.decode(), measure, series, counts)


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
        columns = {"id": pa.array(ids, pa.utf8()), "value": _decimals(values)}
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
