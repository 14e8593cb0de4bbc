"""Queries that wait for another test: open sets (swept when they close) and retry queues.

What waits is secret: it holds true values. It is stored exactly, so that after a takeover it is what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import UnreadableState
from stream_svt.monitor.snapshot import VERSION, PendingRecord, from_bytes, to_bytes

Integers = NDArray[np.int64]

_RECORD_BYTES = 400_000


@dataclass(slots=True, repr=False)
class Block:
    """Waiting queries as columns, in the order in which they came."""

    offset: Integers
    row: Integers
    value: Integers
    threshold: Integers
    series: list[str | None]
    query_id: list[str]

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.offset)

    def take(self, index: Integers) -> Block:
        """Return the queries at ``index``."""
        chosen = index.tolist()
        return Block(
            self.offset[index],
            self.row[index],
            self.value[index],
            self.threshold[index],
            [self.series[k] for k in chosen],
            [self.query_id[k] for k in chosen],
        )

    @staticmethod
    def concatenate(blocks: Sequence[Block]) -> Block:
        """Return the blocks as one; there must be at least one."""
        return Block(
            np.concatenate([block.offset for block in blocks]),
            np.concatenate([block.row for block in blocks]),
            np.concatenate([block.value for block in blocks]),
            np.concatenate([block.threshold for block in blocks]),
            [series for block in blocks for series in block.series],
            [query_id for block in blocks for query_id in block.query_id],
        )


@dataclass(slots=True, repr=False)
class OpenSet:
    """A finite set of queries that is still growing; its bottoms are kept until it closes.

    ``stored`` holds the numbers of the state records written so far, ``unsaved`` the blocks added since, ``size``
    the number of queries that wait.
    """

    set_id: str
    opened_ms: int
    tops: int = 0
    saved_tops: int = 0
    size: int = 0
    blocks: list[Block] = field(default_factory=list)
    unsaved: list[Block] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of waiting queries."""
        return self.size

    def add(self, block: Block) -> None:
        """Keep the bottoms of one batch."""
        self.blocks.append(block)
        self.unsaved.append(block)
        self.size += len(block)

    def save(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield (record number, record) for what was added since the last save; numbers start at ``number``."""
        if self.unsaved or self.tops != self.saved_tops:
            block = Block.concatenate(self.unsaved or [_EMPTY])
            for data in _encode_block(self.set_id, self.tops, self.opened_ms, block):
                self.stored.append(number)
                yield number, data
                number += 1
        self.unsaved = []
        self.saved_tops = self.tops

    @staticmethod
    def restore(records: Sequence[tuple[int, PendingRecord]]) -> OpenSet:
        """Return the set that wrote the records, given in order of their numbers."""
        first = records[0][1]
        restored = OpenSet(set_id=first.set_id or "", opened_ms=first.opened_ms)
        for number, record in records:
            restored.stored.append(number)
            restored.tops = restored.saved_tops = max(restored.tops, record.count)
            if record.series:
                restored.blocks.append(_block(record))
                restored.size += len(record.series)
        return restored


@dataclass(slots=True, repr=False)
class Waiting:
    """One place of a retry queue: the latest query of a series, and how often the series was tested."""

    offset: int
    row: int
    value: int
    threshold: int
    attempt: int
    entered: int
    entered_ms: int
    series: str | None
    query_id: str


@dataclass(slots=True, repr=False)
class RetryQueue:
    """Series whose last test was a bottom, oldest first. ``count`` is the number of queries seen."""

    count: int = 0
    places: dict[str | tuple[int, int], Waiting] = field(default_factory=dict)
    changed: bool = False
    stored: int = 0

    def __len__(self) -> int:
        """Return the number of series that wait."""
        return len(self.places)

    def save(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield (record number, record) for the whole queue, and None for records no longer needed."""
        places = list(self.places.values())
        records = list(_encode_places(self.count, places)) if places or self.count else []
        yield from enumerate(records)
        for number in range(len(records), self.stored):
            yield number, None
        self.stored = len(records)
        self.changed = False

    @staticmethod
    def restore(records: Sequence[tuple[int, PendingRecord]]) -> RetryQueue:
        """Return the queue that wrote the records, given in order of their numbers."""
        queue = RetryQueue(count=records[0][1].count, stored=len(records))
        for _, record in records:
            columns = zip(
                _numbers(record.offset).tolist(),
                _numbers(record.row).tolist(),
                _numbers(record.value).tolist(),
                _numbers(record.threshold).tolist(),
                _numbers(record.attempt).tolist(),
                _numbers(record.entered).tolist(),
                _numbers(record.entered_ms).tolist(),
                record.series,
                record.query_id,
                strict=True,
            )
            for column in columns:
                place = Waiting(*column)
                queue.places[place_name(place.series, place.offset, place.row)] = place
        return queue


def place_name(series: str | None, offset: int, row: int) -> str | tuple[int, int]:
    """Return what identifies a place in a retry queue; a query without series has a place of its own."""
    return series if series is not None else (offset, row)


def read(data: bytes, key: str) -> PendingRecord:
    """Return a stored record.

    Raises
    ------
    UnreadableState
        It cannot be decoded, or its columns are not of one length.
    """
    record = from_bytes(PendingRecord, data, key=key)
    size = _STEP * len(record.query_id)
    always = (record.offset, record.row, record.value, record.threshold)
    of_queues = (record.attempt, record.entered, record.entered_ms)
    if (
        len(record.series) != len(record.query_id)
        or any(len(column) != size for column in always)
        or any(len(column) != (size if record.set_id is None else 0) for column in of_queues)
    ):
        raise UnreadableState(f"state record {key} is damaged: its columns are not of one length")
    return record


_STEP = 8
"""Bytes of a number in a column."""


def _column(numbers: Integers) -> bytes:
    return numbers.astype("<i8").tobytes()


_NONE = np.zeros(0, dtype=np.int64)
_EMPTY = Block(_NONE, _NONE, _NONE, _NONE, [], [])


def _numbers(column: bytes) -> Integers:
    return np.frombuffer(column, dtype="<i8").astype(np.int64)


def _block(record: PendingRecord) -> Block:
    return Block(
        offset=_numbers(record.offset),
        row=_numbers(record.row),
        value=_numbers(record.value),
        threshold=_numbers(record.threshold),
        series=record.series,
        query_id=record.query_id,
    )


def _encode_block(set_id: str, tops: int, opened_ms: int, block: Block) -> Iterator[bytes]:
    record = PendingRecord(
        version=VERSION,
        set_id=set_id,
        count=tops,
        opened_ms=opened_ms,
        offset=_column(block.offset),
        row=_column(block.row),
        value=_column(block.value),
        threshold=_column(block.threshold),
        attempt=b"",
        entered=b"",
        entered_ms=b"",
        series=block.series,
        query_id=block.query_id,
    )
    data = to_bytes(record)
    if len(data) <= _RECORD_BYTES or len(block) <= 1:
        yield data
        return
    half = len(block) // 2
    yield from _encode_block(set_id, tops, opened_ms, block.take(np.arange(half)))
    yield from _encode_block(set_id, tops, opened_ms, block.take(np.arange(half, len(block))))


def _encode_places(count: int, places: list[Waiting]) -> Iterator[bytes]:
    columns = np.array(
        [(p.offset, p.row, p.value, p.threshold, p.attempt, p.entered, p.entered_ms) for p in places],
        dtype=np.int64,
    ).reshape(len(places), 7)
    offset, row, value, threshold, attempt, entered, entered_ms = (_column(columns[:, k]) for k in range(7))
    record = PendingRecord(
        version=VERSION,
        set_id=None,
        count=count,
        opened_ms=0,
        offset=offset,
        row=row,
        value=value,
        threshold=threshold,
        attempt=attempt,
        entered=entered,
        entered_ms=entered_ms,
        series=[place.series for place in places],
        query_id=[place.query_id for place in places],
    )
    data = to_bytes(record)
    if len(data) <= _RECORD_BYTES or len(places) <= 1:
        yield data
        return
    half = len(places) // 2
    yield from _encode_places(count, places[:half])
    yield from _encode_places(count, places[half:])
