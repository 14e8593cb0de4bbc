"""Decodes records of a query topic into the arrays that the engine reads.

A batch of messages is decoded in one call if each line holds exactly one message, else message by message. A `value`
never leads to a rejection: what is not a number becomes the monitor's lower bound, and is not counted or logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct
from numpy.typing import NDArray

from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.texts import TextList
from stream_svt.protocol.records import Record, Records
from stream_svt.service import exact
from stream_svt.service.avro import AvroRecords, NoSchemas, Schemas
from stream_svt.service.homes import Homes
from stream_svt.service.json_lines import UNDECODABLE, bad_size, decode_lines, decode_one, reason_of
from stream_svt.service.mapped import MappedJson
from stream_svt.service.reasons import MAX_TEXT, Reason
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.records import RecordLayout

log = logging.getLogger(__name__)

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"

NAMES_AT_ONCE: Final = 10_000
"""Names added to a dataset index between two yields: a few milliseconds of work."""


_KEY_REASONS: Final = {-1: Reason.NO_KEY, -2: Reason.UNDECLARED, -3: Reason.MISROUTED}


class DatasetIndex(dict[bytes | None, int]):
    """Numbers of a shard's datasets by record key; negative for any other key.

    With a ``spec``, it counts the misrouted keys of declared datasets: only those are public.
    """

    def __init__(
        self, names: Iterable[str], *, partition: int, homes: Homes, spec: ApplicationSpec | None = None
    ) -> None:
        super().__init__()
        self._partition, self._homes, self._spec = partition, homes, spec
        self._other = homes.other
        self._misrouted = {True: 0, False: 0}  # by whether the partition is that of the other partitioner
        for _ in self.fill_in_slices(names):
            pass

    def __missing__(self, key: bytes | None) -> int:
        if key is None:
            return -1
        if self._homes.of(key) == self._partition:
            return -2
        if self._spec is not None and not self._misrouted[False]:
            self._count_misrouted(key, self._spec)
        return -3

    @property
    def follows_other_partitioner(self) -> bool:
        """Whether every misrouted key of a declared dataset, if any, is where the other partitioner puts it."""
        return self._misrouted[True] > 0 and not self._misrouted[False]

    def _count_misrouted(self, key: bytes, spec: ApplicationSpec) -> None:
        try:
            dataset = spec.find(key.decode())
        except UnicodeDecodeError:
            return
        if dataset is None:
            return
        self._misrouted[self._other.of(key) == self._partition] += 1
        if self.follows_other_partitioner and self._misrouted[True] == 1:
            shown = (self._partition, dataset.name, self._homes.misrouted())
            log.warning("event=misrouted partition=%d dataset=%s error=%r", *shown)

    def fill_in_slices(self, names: Iterable[str]) -> Iterator[None]:
        """Add datasets, yielding between slices."""
        for name in names:
            self[name.encode()] = len(self)
            if len(self) % NAMES_AT_ONCE == 0:
                yield

    def reason(self, key: bytes | None) -> Reason | None:
        """Return why this shard rejects a key, None for the key of one of its datasets."""
        return _KEY_REASONS.get(self[key])


_Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
_NOTHING: Final = Raw(b"")
_NO_THRESHOLD: Final = (_NOTHING, Raw(b"null"))
_Time = str | int | float | None


class _Plain(Struct, gc=False, forbid_unknown_fields=True):
    """A query without options."""

    id: _Text
    value: Raw = _NOTHING
    series: _Text | None = None
    time: _Time = None


class _Query(Struct, gc=False):
    """A query with options, or the marker that closes a set."""

    id: _Text | None = None
    value: Raw = _NOTHING
    series: _Text | None = None
    set: _Text | None = None
    closed: bool = False
    threshold: Raw = _NOTHING
    monitor: str | None = None
    time: _Time = None


_PLAIN = msgspec.json.Decoder(_Plain)
_QUERY = msgspec.json.Decoder(_Query)
_FIELD_REASONS: Final = {
    "id": Reason.BAD_ID,
    "series": Reason.BAD_SERIES,
    "set": Reason.BAD_SET,
    "closed": Reason.BAD_SET,
    "monitor": Reason.UNKNOWN_MONITOR,
    "time": Reason.BAD_TIME,
}

_BLANK: Final = _Query()
_UNREAD: Final = b'{"id":"-"}'
"""Replaces a message whose key is refused."""
_GROUP: Final = 256
_VALUE: Final = ("value",)


class _Offsets(Sequence[str]):
    """Ids of the rows, which are their offsets."""

    def __init__(self, offset: NDArray[np.int64]) -> None:
        self._offset = offset

    def __len__(self) -> int:
        return len(self._offset)

    def __getitem__(self, row: int, /) -> str:  # type: ignore[override]  # no slices
        return str(self._offset[row])


class _Places(NamedTuple):
    """Offsets, timestamps and datasets of records; a negative dataset is an index of `_KEY_REASONS`, of ``strays``."""

    offset: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    dataset: NDArray[np.int64]
    strays: list[int]

    def values(self, records: Records, blank: bytes | None) -> list[bytes | None]:
        """Return the contents of records, ``blank`` where the key is refused."""
        values = records.values()
        for stray in self.strays:
            values[stray] = blank
        return values


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
        self._avro = self._mapped = None
        if layout is not None and layout.format == "avro":
            self._avro = AvroRecords(topic, layout, schemas or NoSchemas())
        elif layout is not None:
            self._mapped = MappedJson(layout)

    def lack(self, records: Sequence[Record]) -> tuple[int, str]:
        """Return how many records, from the first, can be decoded, and why the next one cannot yet, if there is one."""
        if self._avro is not None:
            for count, record in enumerate(records):
                if self.dataset_index[record.key] >= 0 and (why := self._avro.lack(record.value)):
                    return count, why
        return len(records), ""

    def read(self, records: Sequence[Record]) -> Iterator[None]:
        """Do in slices what would take the next `decode`, of the same records, too long: read Avro."""
        if self._avro is not None:
            index = self.dataset_index
            yield from self._avro.read([one.value if index[one.key] >= 0 else None for one in records])

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        """Return the queries of consecutive records, at least one, in offset order, and why others are rejected."""
        records = Records.of(records)
        if (mapped := self._mapped or self._avro) is not None:
            return self._decode_mapped(records, mapped)
        if not records.headers:
            return self._decode_json(records)
        parts: list[QueryBatch] = []
        for kind, run in groupby(records, _content_type):
            if kind == "json":
                parts.append(self._decode_json(Records.of(run)))
            else:
                parts += [self._decode_columnar(record, readable=kind == "arrow") for record in run]
        return parts[0] if len(parts) == 1 else concatenate(parts)

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
        batch.dataset = np.full(rows, self.dataset_index[record.key], np.int64)
        return batch

    def _decode_mapped(self, records: Records, mapped: MappedJson | AvroRecords) -> QueryBatch:
        places = self._places(records)
        (whole, fraction), texts, rejects = mapped.decode(places.values(records, mapped.blank))
        batch, kept = self._batch(records, places, rejects)
        if kept is not None:
            whole, fraction = whole[kept], fraction[kept]
            texts = {name: [column[index] for index in kept] for name, column in texts.items()}
        batch.whole, batch.fraction = whole, fraction
        batch.series = TextList(texts.get("series", ()))
        batch.set_id = sets if any(sets := texts.get("set", [])) else None
        batch.query_id = TextList(texts.get("id", _Offsets(batch.offset)))
        return batch

    def _decode_json(self, records: Records) -> QueryBatch:
        places = self._places(records)
        values = places.values(records, _UNREAD)
        queries: Sequence[_Plain | _Query]
        plain = decode_lines(values, _PLAIN)
        queries, rejects = self._with_options(values) if plain is None else (plain, {})
        batch, kept = self._batch(records, places, rejects)
        if kept is not None:
            queries = [queries[index] for index in kept]
        batch.whole, batch.fraction = exact.columns([query.value for query in queries])
        if plain is None:
            _add_options(batch, queries)  # type: ignore[arg-type]
        batch.series = TextList([query.series for query in queries])
        batch.query_id = TextList([query.id for query in queries])
        return batch

    def _places(self, records: Records) -> _Places:
        dataset = np.fromiter(map(self.dataset_index.__getitem__, records.keys()), np.int64, len(records))
        return _Places(records.offset, records.timestamp, dataset, np.flatnonzero(dataset < 0).tolist())

    def _batch(
        self, records: Records, places: _Places, rejects: dict[int, Reason]
    ) -> tuple[QueryBatch, list[int] | None]:
        """Return a batch of the records that are not rejected, without their fields; and their rows, None for all."""
        offset, timestamp, dataset, strays = places
        rejects |= {stray: _KEY_REASONS[int(dataset[stray])] for stray in strays}
        rejected = [(int(offset[index]), rejects[index].value) for index in sorted(rejects)]
        kept = [index for index in range(len(records)) if index not in rejects] if rejects else None
        if kept is not None:
            rows = np.array(kept, np.int64)
            offset, timestamp, dataset = offset[rows], timestamp[rows], dataset[rows]
        batch = QueryBatch(
            topic=self.topic,
            first=int(records.offset[0]),
            end=int(records.offset[-1]) + 1,
            offset=offset,
            row=np.zeros(len(offset), np.int64),
            timestamp_ms=timestamp,
            dataset=dataset,
            rejects=rejected,
        )
        return batch, kept

    def _with_options(self, values: list[bytes | None]) -> tuple[list[_Query], dict[int, Reason]]:
        """Decode messages in groups, one by one in a group with an invalid message; return queries and rejects."""
        queries: list[_Query] = []
        rejects: dict[int, Reason] = {}
        for start in range(0, len(values), _GROUP):
            group = values[start : start + _GROUP]
            decoded = decode_lines(group, _QUERY)
            if decoded is None:
                results = [_decode_one(value or b"") for value in group]
                malformed = {row: found for row, found in enumerate(results) if isinstance(found, Reason)}
                rejects |= {start + row: reason for row, reason in malformed.items()}
                decoded = [_BLANK if isinstance(found, Reason) else found for found in results]
            for index, query in enumerate(decoded, start):
                if (reason := self._fault(query)) is not None:
                    rejects.setdefault(index, reason)
            queries += decoded
        return queries, rejects

    def _fault(self, query: _Query) -> Reason | None:
        if query.closed:
            return Reason.BAD_SET if query.set is None else None
        if query.id is None:
            return Reason.MISSING_ID
        if query.threshold not in _NO_THRESHOLD and exact.threshold(bytes(query.threshold)) is None:
            return Reason.BAD_THRESHOLD
        if query.monitor is not None and query.monitor not in self._monitors:
            return Reason.UNKNOWN_MONITOR
        return None


def _decode_one(value: bytes) -> _Query | Reason:
    if (reason := bad_size(value)) is not None:
        return reason
    try:
        return decode_one(value, _QUERY, _VALUE)
    except UNDECODABLE as error:
        return reason_of(error, _FIELD_REASONS)


def _add_options(batch: QueryBatch, queries: list[_Query]) -> None:
    sets = [query.set for query in queries]
    if sets.count(None) != len(sets):
        batch.set_id = sets
    for row, query in enumerate(queries):
        if query.closed and query.set is not None:
            batch.markers[row] = query.set
            batch.whole[row] = 0
            query.series = None
            continue
        if query.monitor is not None:
            batch.monitor[row] = query.monitor
        limit = None if query.threshold is _NOTHING else exact.threshold(bytes(query.threshold))
        if limit is not None:
            batch.threshold[row] = limit


def _content_type(record: Record) -> str:
    """Return "json", "arrow" or "other"."""
    for name, content in record.headers:
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
