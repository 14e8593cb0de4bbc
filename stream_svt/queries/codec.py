"""Decodes records of a query topic into the arrays that the engine reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.query_batch import DECILES, NO_TEXTS, OF_DECILES, DecilesRequest, QueryBatch
from stream_svt.columns.strings import TextList, TextParts
from stream_svt.protocol.records import Headers, Integers, Record, Records
from stream_svt.queries import counts
from stream_svt.queries.avro.records import AvroRecords, NoSchemas, Schemas
from stream_svt.queries.dataset_index import KEY_REASONS, DatasetIndex
from stream_svt.queries.fast_json.columns import FastJson
from stream_svt.queries.fields import RecordDecoder
from stream_svt.queries.json_lines import bad_size
from stream_svt.queries.json_records import JsonRecords
from stream_svt.queries.reasons import Reason
from stream_svt.settings.questions import rows_of
from stream_svt.settings.records import RecordLayout
from stream_svt.settings.sources import SourceSpec

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"

ROWS_AT_ONCE: Final = 1 << 18
"""Rows of a batch from which no further columnar record is added to it: a few milliseconds of decoding, and 16 MB."""

COUNTS_AT_ONCE: Final = 1 << 12
"""The same for records of counts, and the most of these: steps end with each measure, and look at the whole batch."""

_UNKNOWN: Final = rows_of("")
"""Stands for the monitors that are not declared."""

_REQUEST: Final = msgspec.json.Decoder(DecilesRequest)

_KINDS: Final = {ARROW_STREAM.encode(): "arrow", b"": "json", b"application/json": "json"}


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

    With a ``layout``, the records hold its fields and no options; their headers are ignored. With a ``source``, they
    are its counts: columnar records with its digest, a measure of it, and a timestamp that is not the broker's; or
    answers to the questions of monitors, ``asked``: see `MonitorSpec.tested`.
    """

    def __init__(
        self,
        topic: str,
        index: DatasetIndex,
        monitors: Sequence[str],
        layout: RecordLayout | None = None,
        schemas: Schemas | None = None,
        source: SourceSpec | None = None,
        asked: Sequence[str] = (),
    ) -> None:
        self.topic = topic
        self._digest = None if source is None else source.digest.encode()
        asking = () if source is None or source.answers is not None else (*asked, _UNKNOWN, OF_DECILES)
        self._measures = () if source is None else (*source.measure_names, *asking)
        self._window_ms = 0 if source is None else source.every if source.answers else source.window
        self.dataset_index = index
        self._monitors = frozenset(monitors)
        self._has_layout = layout is not None
        self._known: Any = None  # see `stream_svt.queries.columnar.DictionaryCache`
        self._avro = None
        self._decoder: RecordDecoder
        if layout is not None and layout.format == "avro":
            self._avro = self._decoder = AvroRecords(topic, layout, schemas or NoSchemas())
        else:
            # FastJson serves speed alone: without it, JsonRecords decodes the same.
            self._decoder = FastJson(JsonRecords(layout, monitors))

    def lack(self, records: Sequence[Record]) -> tuple[int, str]:
        """Return how many records, from the first, can be decoded, and why the next one cannot yet, if there is one."""
        if self._avro is None:
            return len(records), ""
        return self._avro.lack(Records.of(records), self._datasets)

    def _datasets(self, records: Records) -> Integers:
        return self.dataset_index.numbers(records.buffer, records.key_start, records.key_length)

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        """Return the queries of the first of consecutive records, at least one, and why others of them are rejected.

        The batch ends with the last record, with a columnar one at which it has `ROWS_AT_ONCE` rows, or with one up to
        which Avro's arrays and maps take long enough.
        """
        records = Records.of(records)
        if self._digest is not None:
            return self._decode_counts(records)
        if self._avro is not None:
            records = self._avro.at_once(records)
        if self._has_layout or not records.headers:
            return self._decode_queries(records)
        parts: list[QueryBatch] = []
        rows = 0
        for kind, run in _runs(records):
            if kind == "json":
                part = self._decode_queries(run)
            else:
                reason = None if kind == "arrow" else Reason.UNSUPPORTED_CONTENT_TYPE
                part = self._decode_columnar(run, [reason] * len(run), ROWS_AT_ONCE)
            parts.append(part)
            rows += len(part)
            if rows >= ROWS_AT_ONCE or part.end <= run.offset[-1]:
                break
        return concatenate(parts)

    def _decode_queries(self, records: Records) -> QueryBatch:
        """Return a batch of records that have one query each."""
        batch = QueryBatch(self.topic, int(records.offset[0]), int(records.offset[-1]) + 1)
        dataset = self._datasets(records)
        if len(strays := np.flatnonzero(dataset < 0)):
            reasons = (KEY_REASONS[number].value for number in dataset[strays].tolist())
            batch.rejects = [*zip(records.offset[strays].tolist(), reasons, strict=True)]
            rows = np.flatnonzero(dataset >= 0)
            records, dataset = records.taken(rows), dataset[rows]
            if not len(rows):
                return batch
        (whole, fraction), texts, rejects, options = self._decoder.decode(records)
        columns = [records.offset, records.timestamp, dataset, whole, fraction]
        if rejects:
            refused = [(int(records.offset[row]), reason.value) for row, reason in rejects.items()]
            batch.rejects = sorted([*batch.rejects, *refused])
            rows = np.delete(np.arange(len(records)), list(rejects))
            columns = [column[rows] for column in columns]
            texts = {name: column.taken(rows) for name, column in texts.items()}
            options = options.of(rows)
        batch.offset, batch.timestamp_ms, batch.dataset, batch.whole, batch.fraction = columns
        batch.row = np.zeros(len(batch.offset), np.int64)
        batch.threshold, batch.monitor, batch.markers = options
        batch.series = texts.get("series", NO_TEXTS)
        batch.query_id = texts.get("id") or TextList(_Offsets(batch.offset))
        if (sets := texts.get("set")) is not None and any(each := [sets[row] for row in range(len(sets))]):
            batch.set_id = each
        return batch

    def _decode_counts(self, records: Records) -> QueryBatch:
        """Return the rows of records of counts, up to `COUNTS_AT_ONCE`, and the measure that each counts."""
        records = records[:COUNTS_AT_ONCE]
        stamped = records.stamped.tolist()
        requests = dict[int, DecilesRequest]()
        found = [
            self._measure(records.headers.get(row, ()), is_stamped, records.offset.item(row), requests)
            for row, is_stamped in enumerate(stamped)
        ]
        refusals = [one if isinstance(one, Reason) else None for one in found]
        batch = self._decode_columnar(records, refusals, COUNTS_AT_ONCE)
        if self._measures != ("",):  # answers have none
            measure = np.array([-1 if isinstance(one, Reason) else one for one in found])
            batch.measure = measure[records.offset.searchsorted(batch.offset)]
            batch.measures = self._measures
        # Answers are about the tick that ends at their timestamp.
        batch.window, batch.window_ms = batch.timestamp_ms - self._window_ms, self._window_ms
        for row, end in pairwise([*batch.heads.tolist(), len(batch)] if batch.measures else ()):
            if (begin := counts.window_of(batch.query_id[row] or "")) is not None:
                batch.window[row:end] = begin
            if requests and end - row == DECILES and (request := requests.get(batch.offset.item(row))):
                batch.requests[row] = request
        return batch

    def _measure(
        self, headers: Headers, by_broker: bool, offset: int, requests: dict[int, DecilesRequest]
    ) -> int | Reason:
        """Return the number of the measure of a record of counts, or why it is refused.

        A request for deciles is noted in ``requests``, by the offset.
        """
        given = dict(headers)
        if given.get(counts.SOURCE_HEADER) != self._digest or _content_type(headers) != "arrow":
            return Reason.NOT_COUNTS
        if OF_DECILES in self._measures and (request := given.get(counts.DECILES_HEADER)) is not None:
            try:
                requests[offset] = _REQUEST.decode(request)
            except msgspec.DecodeError:
                return Reason.NOT_COUNTS
            return Reason.BROKER_TIME if by_broker else self._measures.index(OF_DECILES)
        monitor = given.get(counts.MONITOR_HEADER)
        name = (given.get(counts.MEASURE_HEADER) or b"").decode(errors="replace")
        if monitor is not None:  # one that this version lacks tests nothing
            name = rows_of(monitor.decode(errors="replace"))
            name = name if name in self._measures else _UNKNOWN
        if name not in self._measures:
            return Reason.UNKNOWN_MEASURE
        return Reason.BROKER_TIME if by_broker else self._measures.index(name)

    def _decode_columnar(self, records: Records, refusals: Sequence[Reason | None], most: int) -> QueryBatch:
        """Return the rows of columnar records, up to about ``most``; reject the others, each for its reason."""
        datasets = self._datasets(records)
        parts: list[QueryBatch] = []
        rows = 0
        buffer, contents = memoryview(records.buffer), (records.value_start, records.value_length)
        columns = (column.tolist() for column in (records.offset, datasets, *contents))
        for offset, dataset, start, length, refusal in zip(*columns, refusals, strict=True):
            content = buffer[start : start + max(length, 0)]
            parts.append(self._columns(offset, content, KEY_REASONS.get(dataset) or refusal))
            rows += len(parts[-1].whole)
            if rows >= most:
                break
        batch, sizes = concatenate(parts), [len(part.whole) for part in parts]
        batch.offset, batch.timestamp_ms, batch.dataset = (
            np.repeat(column[: len(parts)], sizes) for column in (records.offset, records.timestamp, datasets)
        )
        numbers = np.arange(max(sizes), dtype=np.int64)
        batch.row = np.concatenate([numbers[:count] for count in sizes])
        return batch

    def _columns(self, offset: int, content: memoryview, reason: Reason | None) -> QueryBatch:
        """Return the columns of one record, or why it is rejected: for this ``reason`` of key or headers, if any."""
        from stream_svt.queries import columnar  # pyarrow is loaded only for columnar records

        self._known = columnar.DictionaryCache() if self._known is None else self._known
        batch = QueryBatch(self.topic, offset, offset + 1)
        reason = reason or bad_size(content)
        try:
            if reason is None:
                columnar.read(bytes(content), batch, self._monitors, self._known)
        except columnar.MalformedColumns as refused:
            reason = refused.args[0]
        if reason is not None:  # discard what was read
            return QueryBatch(self.topic, batch.first, batch.end, rejects=[(offset, reason.value)])
        return batch


def _runs(records: Records) -> Iterator[tuple[str, Records]]:
    """Yield consecutive records of one content type, with that type."""
    kinds = [_content_type(records.headers.get(row, ())) for row in range(len(records))]
    first = 0
    for kind, run in groupby(kinds):
        end = first + len([*run])
        yield kind, records[first:end]
        first = end


def _content_type(headers: Headers) -> str:
    """Return "json", "arrow" or "other"."""
    for name, content in headers:
        if name.lower() == "content-type":
            # Spring and others write headers as JSON: in quotes.
            kind = (content or b"").partition(b";")[0].strip(b' \t"').lower()
            return _KINDS.get(kind, "other")
    return "json"


def concatenate(parts: Sequence[QueryBatch]) -> QueryBatch:
    """Return consecutive batches of one topic as one."""
    if len(parts) == 1:
        return parts[0]
    rows = [len(part.whole) for part in parts]
    whole = QueryBatch(parts[0].topic, parts[0].first, parts[-1].end)
    for name in ("offset", "row", "timestamp_ms", "dataset", "whole"):
        setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
    if any(part.fraction is not None for part in parts):
        whole.fraction = np.concatenate(
            [np.zeros_like(part.whole) if part.fraction is None else part.fraction for part in parts]
        )
    if any(part.set_id is not None for part in parts):
        whole.set_id = [*chain.from_iterable(part.set_id or [None] * len(part.whole) for part in parts)]
    for name in ("series", "query_id"):
        if any(len(getattr(part, name)) for part in parts):
            setattr(whole, name, TextParts.of([getattr(part, name) for part in parts], rows))
    for part, start in zip(parts, accumulate(rows, initial=0), strict=False):
        for name in ("threshold", "monitor", "markers"):
            getattr(whole, name).update({start + row: value for row, value in getattr(part, name).items()})
        whole.rejects += part.rejects
    return whole
