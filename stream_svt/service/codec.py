"""Decodes records of a query topic into the arrays that the engine reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.batch import NO_TEXTS, QueryBatch
from stream_svt.monitor.texts import TextList
from stream_svt.protocol.records import Headers, Integers, Record, Records
from stream_svt.service.avro import AvroRecords, NoSchemas, Schemas
from stream_svt.service.dataset_index import KEY_REASONS, DatasetIndex
from stream_svt.service.json_columns import Columns, JsonReader
from stream_svt.service.json_lines import bad_size
from stream_svt.service.json_queries import JsonQueries
from stream_svt.service.mapped import MappedJson
from stream_svt.service.reasons import Reason
from stream_svt.settings.records import RecordLayout

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"


class _Offsets(Sequence[str]):
    """Ids of the rows, which are their offsets."""

    def __init__(self, offset: NDArray[np.int64]) -> None:
        self._offset = offset

    def __len__(self) -> int:
        return len(self._offset)

    def __getitem__(self, row: int, /) -> str:  # type: ignore[override]  # no slices
        return str(self._offset[row])


class QueryDecoder:
    """Decodes the records of one partition of a query topic, for the monitors that read it.

    With a ``layout``, the records hold its fields and no options; their headers are ignored.
    """

    def __init__(
        self,
        topic: str,
        index: DatasetIndex,
        monitors: Sequence[str],
        layout: RecordLayout | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        self.topic = topic
        self.dataset_index = index
        self._monitors = frozenset(monitors)
        self._has_layout = layout is not None
        self._avro = None
        if layout is not None and layout.format == "avro":
            self._avro = AvroRecords(topic, layout, schemas or NoSchemas())
        self._json = JsonReader(JsonQueries(monitors) if layout is None else MappedJson(layout))

    def lack(self, records: Sequence[Record]) -> tuple[int, str]:
        """Return how many records, from the first, can be decoded, and why the next one cannot yet, if there is one."""
        if self._avro is not None:
            for count, value in enumerate(self._contents(Records.of(records))):
                if value is not None and (why := self._avro.lack(value)):
                    return count, why
        return len(records), ""

    def read(self, records: Sequence[Record]) -> Iterator[None]:
        """Do in slices what would take the next `decode`, of the same records, too long: read Avro."""
        if self._avro is not None:
            yield from self._avro.read(self._contents(Records.of(records)))

    def _contents(self, records: Records) -> list[bytes | None]:
        """Return the contents of records, None where the key is refused."""
        values = records.values()
        for row in np.flatnonzero(self._datasets(records) < 0).tolist():
            values[row] = None
        return values

    def _datasets(self, records: Records) -> Integers:
        return self.dataset_index.numbers(records.buffer, records.key_start, records.key_length)

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        """Return the queries of consecutive records, at least one, in offset order, and why others are rejected."""
        records = Records.of(records)
        if self._avro is not None:
            return self._batch(records, self._datasets(records), self._avro.decode(self._contents(records)))
        kinds = {} if self._has_layout else _other_kinds(records)
        parts, first = [], 0
        for row, kind in kinds.items():
            parts += [self._decode_json(records[first:row])] if first < row else []
            parts.append(self._decode_columnar(records[row], readable=kind == "arrow"))
            first = row + 1
        if first < len(records):
            parts.append(self._decode_json(records[first:] if first else records))
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def _decode_json(self, records: Records) -> QueryBatch:
        dataset = self._datasets(records)
        found = self._json.read(records.buffer, records.value_start, records.value_length, dataset < 0)
        return self._batch(records, dataset, found)

    def _decode_columnar(self, record: Record, *, readable: bool) -> QueryBatch:
        """Return the rows of a columnar record; reject any other content type."""
        from stream_svt.service import columnar  # pyarrow is loaded only for columnar records

        batch, value = QueryBatch(self.topic, record.offset, record.offset + 1), record.value or b""
        unreadable = bad_size(value) if readable else Reason.UNSUPPORTED_CONTENT_TYPE
        reason = self.dataset_index.reason(record.key) or unreadable
        try:
            if reason is None:
                columnar.read(value, batch, self._monitors)
        except columnar.MalformedColumns as refused:
            reason = refused.args[0]
        if reason is not None:  # discard what was read
            batch = QueryBatch(self.topic, batch.first, batch.end, rejects=[(record.offset, reason.value)])
            batch.fraction = batch.whole
            return batch
        rows = len(batch.whole)
        batch.offset = np.full(rows, record.offset, np.int64)
        batch.row = np.arange(rows, dtype=np.int64)
        batch.timestamp_ms = np.full(rows, record.timestamp, np.int64)
        batch.dataset = np.full(rows, self.dataset_index.number(record.key), np.int64)
        return batch

    def _batch(self, records: Records, dataset: Integers, found: Columns) -> QueryBatch:
        """Return a batch of the records that are not rejected."""
        (whole, fraction), texts, rejects, options = found
        rejects |= {row: KEY_REASONS[int(dataset[row])] for row in np.flatnonzero(dataset < 0).tolist()}
        offset, timestamp = records.offset, records.timestamp
        columns = [offset, timestamp, dataset, whole, fraction]
        rejected = [(int(offset[row]), rejects[row].value) for row in sorted(rejects)]
        if rejects:
            rows = np.delete(np.arange(len(records)), list(rejects))
            columns = [column[rows] for column in columns]
            texts = {name: column.taken(rows) for name, column in texts.items()}
            options = options.of(rows)
        batch = QueryBatch(self.topic, int(offset[0]), int(offset[-1]) + 1, rejects=rejected)
        batch.offset, batch.timestamp_ms, batch.dataset, batch.whole, batch.fraction = columns
        batch.row = np.zeros(len(batch.offset), np.int64)
        batch.threshold, batch.monitor, batch.markers = options
        batch.series = texts.get("series", NO_TEXTS)
        batch.query_id = texts.get("id") or TextList(_Offsets(batch.offset))
        if (sets := texts.get("set")) is not None and any(each := [sets[row] for row in range(len(sets))]):
            batch.set_id = each
        return batch


def _other_kinds(records: Records) -> dict[int, str]:
    """Return the content types of the records that are not JSON."""
    kinds = {row: _content_type(headers) for row, headers in sorted(records.headers.items())}
    return {row: kind for row, kind in kinds.items() if kind != "json"}


def _content_type(headers: Headers) -> str:
    """Return "json", "arrow" or "other"."""
    for name, content in headers:
        if name.lower() == "content-type":
            kind = (content or b"").partition(b";")[0].strip().lower()
            if kind == ARROW_STREAM.encode():
                return "arrow"
            return "json" if kind in (b"", b"application/json") else "other"
    return "json"


def concatenate(parts: Sequence[QueryBatch]) -> QueryBatch:
    """Return consecutive batches of one topic as one."""
    whole = QueryBatch(parts[0].topic, parts[0].first, parts[-1].end)
    for name in ("offset", "row", "timestamp_ms", "dataset", "whole", "fraction"):
        setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
    sets: list[str | None] = []
    ids: list[str | None] = []
    series: list[str | None] = []
    for part in parts:
        start, rows = len(ids), len(part)
        for name in ("threshold", "monitor", "markers"):
            getattr(whole, name).update({start + row: value for row, value in getattr(part, name).items()})
        series += [part.series[row] for row in range(rows)] if part.series else [None] * rows
        sets += part.set_id or [None] * rows
        ids += [part.query_id[row] for row in range(rows)]
        whole.rejects += part.rejects
    whole.set_id = sets if sets.count(None) != len(sets) else None
    whole.series, whole.query_id = TextList(series), TextList(ids)
    return whole
