"""Queries that wait for another test: open sets (swept when they close) and retry queues.

What waits is secret: it holds true values. It is stored exactly, so that after a takeover it is what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.monitor.queue_journal import NOWHERE, Entry, Position, Queue
from stream_svt.monitor.snapshot import (
    BlockLine,
    CloseLine,
    DropLine,
    PlaceLine,
    QueueLine,
    RemoveLine,
    ReplaceLine,
    SetLine,
    SweepLine,
    TopsLine,
)

Integers = NDArray[np.int64]

_BLOCK_BYTES = 60_000
"""A block whose line is longer is stored in halves: it is written again as a whole."""
_PLACE_BYTES, _REPLACE_BYTES, _NUMBER_BYTES = 90, 55, 12
"""Bytes of a line beside its texts, and of a number in it, at most."""


def _text_bytes(text: str | None) -> int:
    """Return how many bytes a text has at most."""
    if text is None:
        return 0
    return len(text) if text.isascii() else 4 * len(text)


@dataclass(slots=True, repr=False, eq=False)
class Block(Entry):
    """Waiting queries as columns, in the order in which they came.

    ``owner`` is the number of the set, ``part`` the block's own among its blocks; both are given when it is stored.
    """

    offset: Integers
    row: Integers
    value: Integers
    threshold: Integers
    series: list[str | None]
    query_id: list[str]
    owner: int = 0
    part: int = 0

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


@dataclass(slots=True, repr=False, eq=False)
class OpenSet(Entry):
    """A finite set of queries that is still growing; its bottoms are kept until it closes.

    ``size`` is the number of queries that wait, ``unsaved`` the number of newest blocks that are not stored.
    """

    set_id: str
    opened_ms: int
    tops: int = 0
    number: int = 0
    saved_tops: int = 0
    size: int = 0
    blocks: list[Block] = field(default_factory=list)
    unsaved: int = 0
    parts: int = 0

    def __len__(self) -> int:
        """Return the number of waiting queries."""
        return self.size

    def add(self, block: Block) -> None:
        """Keep the bottoms of one batch."""
        self.blocks.append(block)
        self.unsaved += 1
        self.size += len(block)


@dataclass(slots=True, repr=False, eq=False)
class OpenSets(Queue):
    """The open sets of a monitor on a dataset, by name; each has a number that no other had."""

    open: dict[str, OpenSet] = field(default_factory=dict)
    next_number: int = 0
    touched: dict[int, OpenSet] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    loading: dict[int, tuple[OpenSet, dict[int, Block]]] = field(default_factory=dict)

    keeps_head: ClassVar[bool] = False

    def __len__(self) -> int:
        """Return the number of open sets."""
        return len(self.open)

    @property
    def waiting(self) -> int:
        """Return the number of queries that wait in open sets."""
        return sum(map(len, self.open.values()))

    def forget(self) -> None:
        """Close all sets."""
        for closing in list(self.open.values()):
            self.close(closing)

    def begin(self, set_id: str, opened_ms: int) -> OpenSet:
        """Open a set."""
        opened = self.open[set_id] = OpenSet(set_id, opened_ms, number=self.next_number)
        self.next_number += 1
        self.touch(opened, _text_bytes(set_id))
        return opened

    def touch(self, changed: OpenSet, size: int = 0) -> None:
        """Take note of a change of a set whose texts have at most ``size`` bytes."""
        self.touched[changed.number] = changed
        self.journal.note(self, _REPLACE_BYTES + size)

    def add(self, growing: OpenSet, block: Block) -> None:
        """Keep the bottoms of one batch."""
        growing.add(block)
        texts = sum(map(_text_bytes, block.series)) + sum(map(_text_bytes, block.query_id))
        self.touch(growing, texts + _REPLACE_BYTES * len(block))

    def close(self, closing: OpenSet) -> None:
        """Forget a set."""
        del self.open[closing.set_id]
        self.touched.pop(closing.number, None)
        if closing.home != NOWHERE:
            self.closed.append(closing.number)
        self.journal.note(self, _NUMBER_BYTES)
        for entry in (closing, *closing.blocks):
            self.journal.bury(entry)

    @property
    def head(self) -> int:
        """Return the number of the next set."""
        return self.next_number

    def changes(self, at: Position) -> Iterator[tuple[Entry | None, QueueLine]]:
        """See `Queue`."""
        if self.dropped:
            yield None, DropLine()
            return
        if self.closed:
            yield None, CloseLine(self.closed)
        for waiting in self.touched.values():
            if waiting.home == NOWHERE:
                yield waiting, self.line(waiting, at)
            elif waiting.tops != waiting.saved_tops:
                yield None, TopsLine(waiting.number, waiting.tops)
            waiting.saved_tops = waiting.tops
            new = waiting.blocks[len(waiting.blocks) - waiting.unsaved :]
            del waiting.blocks[len(waiting.blocks) - waiting.unsaved :]
            waiting.unsaved = 0
            for block in new:
                for part, line in _parts(block, waiting, at):
                    waiting.blocks.append(part)
                    waiting.parts += 1
                    yield part, line
        self.touched, self.closed = {}, []

    def line(self, entry: Entry, at: Position) -> QueueLine:
        """See `Queue`."""
        if isinstance(entry, Block):
            return _block_line(entry, at)
        if isinstance(entry, OpenSet):
            return SetLine(entry.number, entry.set_id, entry.opened_ms - at.clock_ms, entry.tops)
        message = "no entry of open sets"
        raise MisuseError(message)

    def entries(self) -> Iterator[Entry]:
        """See `Queue`."""
        for waiting in self.open.values():
            yield waiting
            yield from waiting.blocks

    def set_head(self, head: int) -> None:
        """See `Queue`."""
        self.next_number = head

    def take(self, line: QueueLine, at: Position, home: int, size: int) -> None:
        """See `Queue`."""
        if isinstance(line, BlockLine):
            found, blocks = self._found(line.number)
            block = _block(line, at)
            block.home, block.stored_bytes = home, size
            blocks[line.part] = block
        elif isinstance(line, SetLine):
            found, _ = self._found(line.number)
            found.set_id, found.opened_ms = line.set_id, line.opened_ms + at.clock_ms
            found.tops, found.home, found.stored_bytes = line.tops, home, size
        elif isinstance(line, TopsLine):
            if line.number in self.loading:
                self.loading[line.number][0].tops = line.tops
        elif isinstance(line, CloseLine):
            for number in line.numbers:
                self.loading.pop(number, None)
        else:
            raise ValueError("there is a line of a retry queue")  # noqa: TRY004 - the record is wrong

    def _found(self, number: int) -> tuple[OpenSet, dict[int, Block]]:
        if number not in self.loading:
            self.loading[number] = OpenSet("", 0, number=number), {}
        return self.loading[number]

    def settle(self) -> None:
        """See `Queue`."""
        for number, (found, blocks) in sorted(self.loading.items()):
            if found.home == NOWHERE:
                raise ValueError(f"there is no line of set {number}")
            found.saved_tops = found.tops
            found.blocks = [block for _, block in sorted(blocks.items())]
            found.size = sum(map(len, found.blocks))
            found.parts = max(blocks, default=-1) + 1
            self.open[found.set_id] = found
        self.loading = {}


@dataclass(slots=True, repr=False, eq=False)
class Waiting(Entry):
    """One place of a retry queue: the latest query of a series, and how often the series was tested.

    ``number`` is the queue's count when the place was entered: no other place of the queue has it.
    """

    offset: int
    row: int
    value: int
    threshold: int
    attempt: int
    entered: int
    entered_ms: int
    series: str | None
    query_id: str
    number: int = 0


PlaceName = str | tuple[int, int]


@dataclass(slots=True, repr=False, eq=False)
class RetryQueue(Queue):
    """Series whose last test was a bottom, oldest first. ``count`` is the number of queries seen.

    Of what changed since the last save it keeps which places are new or have a newer query (``touched``, by number),
    which stored ones were ``removed``, how many sweeps reached all of them and up to which number others came.
    """

    count: int = 0
    places: dict[PlaceName, Waiting] = field(default_factory=dict)
    touched: dict[int, Waiting] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)
    sweeps: int = 0
    partial: list[int] = field(default_factory=list)
    loading: _Loading | None = None

    keeps_head: ClassVar[bool] = True

    def __len__(self) -> int:
        """Return the number of series that wait."""
        return len(self.places)

    @property
    def waiting(self) -> int:
        """Return the number of series that wait."""
        return len(self.places)

    def enter(self, name: PlaceName, place: Waiting) -> None:
        """Let the query that was counted last wait, behind all others."""
        place.number = self.count
        self.places[name] = self.touched[place.number] = place
        size, series, query_id = _PLACE_BYTES, place.series, place.query_id
        if series is not None:  # as `_text_bytes`, without the calls
            size += len(series) if series.isascii() else 4 * len(series)
        size += len(query_id) if query_id.isascii() else 4 * len(query_id)
        self.journal.note(self, size)

    def replaced(self, place: Waiting) -> None:
        """Take note that a place has a newer query."""
        self.touched[place.number] = place
        self.journal.note(self, _REPLACE_BYTES + _text_bytes(place.query_id))

    def remove(self, name: PlaceName) -> None:
        """Take a place out."""
        place = self.places.pop(name)
        self.touched.pop(place.number, None)
        if place.home != NOWHERE:
            self.removed.append(place.number)
        self.journal.bury(place)
        self.journal.note(self, _NUMBER_BYTES)

    def forget(self) -> None:
        """Take all places out; the count stays."""
        for name in list(self.places):
            self.remove(name)

    def swept(self, last: int | None = None) -> None:
        """Take note that all places had one more attempt, or those up to a number."""
        if last is None:
            self.sweeps += 1
        else:
            self.partial.append(last)
        self.journal.note(self, _NUMBER_BYTES)

    @property
    def head(self) -> int:
        """Return the number of queries seen."""
        return self.count

    def changes(self, at: Position) -> Iterator[tuple[Entry | None, QueueLine]]:
        """See `Queue`."""
        if self.dropped:
            yield None, DropLine()
            return
        if self.removed:
            first = next(iter(self.places.values())).number if self.places else self.count + 1
            yield None, RemoveLine(first, [number for number in self.removed if number > first])
        if self.sweeps or self.partial:
            yield None, SweepLine(self.sweeps, self.partial)
        for place in self.touched.values():
            if place.home == NOWHERE:
                yield place, self.line(place, at)
            else:
                yield (
                    None,
                    ReplaceLine(
                        self.count - place.number,
                        place.offset - at.offset,
                        place.row,
                        _eight_bytes(place.value),
                        place.threshold,
                        place.query_id,
                    ),
                )
        self.touched, self.removed, self.sweeps, self.partial = {}, [], 0, []

    def line(self, entry: Entry, at: Position) -> QueueLine:
        """See `Queue`."""
        if not isinstance(entry, Waiting):
            message = "no place of a retry queue"
            raise MisuseError(message)
        return PlaceLine(
            self.count - entry.number,
            entry.offset - at.offset,
            entry.row,
            _eight_bytes(entry.value),
            entry.threshold,
            entry.attempt,
            entry.offset - entry.entered,
            entry.entered_ms - at.clock_ms,
            entry.series,
            entry.query_id,
        )

    def entries(self) -> Iterator[Entry]:
        """See `Queue`."""
        return iter(self.places.values())

    def set_head(self, head: int) -> None:
        """See `Queue`."""
        self.count = head
        if self.loading is None:
            self.loading = _Loading()

    def take(self, line: QueueLine, at: Position, home: int, size: int) -> None:
        """See `Queue`."""
        loading = self.loading
        if loading is None:
            message = "a queue takes no lines once it is loaded"
            raise MisuseError(message)
        if isinstance(line, PlaceLine):
            place = _place(line, at, self.count)
            place.home, place.stored_bytes = home, size
            place.attempt -= loading.sweeps
            loading.places[place.number] = place
        elif isinstance(line, ReplaceLine):
            known = loading.places.get(self.count - line.back)
            if known is not None:
                known.offset, known.row = line.offset + at.offset, line.row
                known.value, known.threshold = _number(line.value), line.threshold
                known.query_id = line.query_id
        elif isinstance(line, RemoveLine):
            loading.first = line.first
            for number in line.others:
                loading.places.pop(number, None)
        elif isinstance(line, SweepLine):
            loading.sweeps += line.whole
            for last in line.partial:
                for place in loading.places.values():
                    place.attempt += place.number <= last
        else:
            raise ValueError("there is a line of an open set")  # noqa: TRY004 - the record is wrong

    def settle(self) -> None:
        """See `Queue`."""
        loading, self.loading = self.loading, None
        if loading is None:
            return
        for number, place in sorted(loading.places.items()):
            if number >= loading.first:
                place.attempt += loading.sweeps
                self.places[place_name(place.series, place.offset, place.row)] = place


@dataclass(slots=True, repr=False, eq=False)
class _Loading:
    """A retry queue while it is read.

    ``places`` are those whose line was read, by number; those below ``first`` are gone. ``sweeps`` counts those that
    reached all places: attempts leave it out until the end.
    """

    places: dict[int, Waiting] = field(default_factory=dict)
    first: int = 0
    sweeps: int = 0


def place_name(series: str | None, offset: int, row: int) -> PlaceName:
    """Return what identifies a place in a retry queue; a query without series has a place of its own."""
    return series if series is not None else (offset, row)


def _eight_bytes(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _place(line: PlaceLine, at: Position, count: int) -> Waiting:
    offset = line.offset + at.offset
    return Waiting(
        offset,
        line.row,
        _number(line.value),
        line.threshold,
        line.attempt,
        offset - line.age,
        line.entered_ms + at.clock_ms,
        line.series,
        line.query_id,
        count - line.back,
    )


def _parts(block: Block, owner: OpenSet, at: Position) -> Iterator[tuple[Block, BlockLine]]:
    """Yield a new block and its line, in parts where it is long; each gets the owner's next number."""
    size = sum(map(_text_bytes, block.series)) + sum(map(_text_bytes, block.query_id)) + 20 * len(block)
    if size <= _BLOCK_BYTES or len(block) <= 1:
        block.owner, block.part = owner.number, owner.parts
        yield block, _block_line(block, at)
        return
    half = len(block) // 2
    yield from _parts(block.take(np.arange(half)), owner, at)
    yield from _parts(block.take(np.arange(half, len(block))), owner, at)


def _block_line(block: Block, at: Position) -> BlockLine:
    return BlockLine(
        block.owner,
        block.part,
        (block.offset - at.offset).tolist(),
        block.row.tolist(),
        block.value.astype("<i8").tobytes(),
        block.threshold.tolist(),
        block.series,
        block.query_id,
    )


def _block(line: BlockLine, at: Position) -> Block:
    columns: tuple[Sequence[object], ...] = line.offset, line.row, line.threshold, line.series
    if any(len(column) != len(line.query_id) for column in columns) or len(line.value) != 8 * len(
        line.query_id
    ):
        raise ValueError("its columns are not of one length")
    return Block(
        np.array(line.offset, dtype=np.int64) + at.offset,
        np.array(line.row, dtype=np.int64),
        np.frombuffer(line.value, dtype="<i8").astype(np.int64),
        np.array(line.threshold, dtype=np.int64),
        line.series,
        line.query_id,
        line.number,
        line.part,
    )
