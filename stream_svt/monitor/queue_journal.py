"""Journal of waiting queries: what changed in the queues of a shard since its last commit, in shared records.

A record ``w/<n>`` holds lines of many queues: appends, replacements, removals, sweeps. Reading all records in order
gives every queue as it was. Records are deleted oldest first; what still lives in the oldest one is first written
again, whole, to the newest. So a line may speak of something whose own line is gone: it is ignored, for either the
thing is gone, too, or its present state follows in a later record. Nothing depends on the rules of the monitor, and
no length on a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import msgspec

from stream_svt.errors import UnreadableState
from stream_svt.monitor.snapshot import VERSION, DropLine, QueueLine, QueueRecord, from_bytes

NOWHERE, GONE = -1, -2
"""Homes of what has no line yet, and of what needs none any more."""

RECORD_BYTES = 400_000
_OVERHEAD = 130
"""Bytes of a record beside its content: its frame, seal and key, and what Kafka adds."""
_FLOOR = 65_536
"""A journal up to this size is never compacted."""
_CREDIT = 65_536
"""Bytes that may be written again beyond what is appended at the same time; no line has more."""
SLACK = 2 * _CREDIT
"""Bytes that a save may have beyond what was announced."""
_SCAN = 4
"""Bytes that a look at an entry counts for."""
_DELETED = 500
"""Records that are deleted at once."""
_GROUP_BYTES, _SECTION_BYTES = 12, 24
"""Bytes of a queue's group of lines in a record, and of its monitor's section, beside the names."""

_ENCODER = msgspec.msgpack.Encoder()


class Position(NamedTuple):
    """Where a monitor stands: offsets and clocks of its lines count from here."""

    offset: int
    clock_ms: int


_START = Position(0, 0)


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Entry:
    """Something that lives in the journal: ``home`` is the record that holds its newest whole line."""

    home: int = NOWHERE
    stored_bytes: int = 0


@dataclass(slots=True, repr=False, eq=False)
class Queue(Entry, ABC):
    """What waits for a monitor on a dataset. The queue itself is an entry where its ``head`` has to be kept."""

    journal: QueueJournal
    monitor: str
    dataset: str
    changed: bool = field(default=False, kw_only=True)
    dropped: bool = field(default=False, kw_only=True)

    keeps_head: ClassVar[bool]

    @property
    def names_bytes(self) -> int:
        """Return how many bytes a group of the queue's lines has beside them, at most."""
        return _GROUP_BYTES + _SECTION_BYTES + 4 * (len(self.dataset) + len(self.monitor))

    @property
    @abstractmethod
    def head(self) -> int:
        """Return the number that stands before the queue's lines in every record."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Return the number of queries that wait."""

    @abstractmethod
    def forget(self) -> None:
        """Take out all that waits; the queue stays."""

    @abstractmethod
    def changes(self, at: Position) -> Iterator[tuple[Entry | None, QueueLine]]:
        """Yield the lines of what changed since the last call, each with the entry that it holds whole."""

    @abstractmethod
    def line(self, entry: Entry, at: Position) -> QueueLine:
        """Return the whole line of an entry."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield what lives, without the queue itself."""

    @abstractmethod
    def take(self, line: QueueLine, at: Position, home: int, size: int) -> None:
        """Take a line of record ``home`` in, while loading.

        Raises:
            ValueError: It is no line of such a queue.
        """

    @abstractmethod
    def set_head(self, head: int) -> None:
        """Take the number before the lines in, while loading."""

    @abstractmethod
    def settle(self) -> None:
        """End the loading.

        Raises:
            ValueError: Lines are missing.
        """

    def drop(self) -> None:
        """Forget the queue with everything in it."""
        for entry in self.entries():
            self.journal.bury(entry)
        self.journal.bury(self)
        self.dropped = True
        self.journal.note(self, 2)


@dataclass(slots=True, repr=False, eq=False)
class _Unknown(Queue):
    """A queue of a dataset or monitor that the shard has not: it goes.

    ``problem`` says why its lines cannot be taken in: then they must be followed by one that drops them.
    """

    problem: str = ""

    keeps_head = False
    waiting = 0

    def forget(self) -> None:
        """Nothing waits."""

    @property
    def head(self) -> int:
        return 0

    def changes(self, at: Position) -> Iterator[tuple[Entry | None, QueueLine]]:  # noqa: ARG002
        yield None, DropLine()

    def line(self, entry: Entry, at: Position) -> QueueLine:
        raise NotImplementedError

    def entries(self) -> Iterator[Entry]:
        return iter(())

    def take(self, line: QueueLine, at: Position, home: int, size: int) -> None:
        """Nothing of it is needed."""

    def set_head(self, head: int) -> None:
        """Nothing of it is needed."""

    def settle(self) -> None:
        if self.problem:
            raise ValueError(self.problem)
        self.drop()


@dataclass(slots=True, repr=False, eq=False)
class _Stored:
    """A record that was written: its size, how many entries live in it, and all that were written to it."""

    number: int
    size: int = 0
    alive: int = 0
    entries: list[tuple[Queue, Entry]] = field(default_factory=list)
    looked_at: int = 0


class QueueJournal:
    """Records of the queues of a shard.

    ``size`` is the number of bytes of its records, ``live`` about how many of them are needed.
    """

    def __init__(self) -> None:
        self.size = 0
        self.live = 0
        self._records: dict[int, _Stored] = {}
        self._oldest = self._next = 0
        self._changed: list[Queue] = []
        self._pending = 0
        self._credit = 0
        self._loading: dict[tuple[str, str], Queue] = {}

    @property
    def pending_bytes(self) -> int:
        """Bytes that the records of the next `save` have at most, `SLACK` aside; grows with every change until then.

        They are in records of at most `RECORD_BYTES`; at most 500 others are deleted.
        """
        return 2 * self._pending

    def changed_datasets(self) -> set[str]:
        """Return the names of the datasets whose queues changed since the last save."""
        return {queue.dataset for queue in self._changed}

    def note(self, queue: Queue, size: int) -> None:
        """Take note of a change whose line has at most ``size`` bytes."""
        if not queue.changed:
            queue.changed = True
            self._changed.append(queue)
            size += queue.names_bytes
        self._pending += size

    def bury(self, entry: Entry) -> None:
        """Take note that an entry lives no more."""
        if entry.home >= 0:
            self._leave(entry)
        entry.home = GONE

    def _leave(self, entry: Entry) -> None:
        self._records[entry.home].alive -= 1
        self.live -= entry.stored_bytes

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self, positions: Mapping[str, Position]) -> dict[bytes, bytes | None]:
        """Return the records of what changed since the last save, by key; None for those that go.

        ``positions`` are those of the monitors, now.
        """
        writer = _Writer(self, self._next, positions)
        for queue in self._changed:
            writer.add(queue, queue.changes(writer.position(queue)))
            queue.changed = False
        self._changed, self._pending = [], 0
        self._credit = min(self._credit, _CREDIT) + writer.written
        gone = self._compact(writer)
        records = writer.finish()
        self._next = writer.next
        return {key_of(number): data for number, data in records.items()} | dict.fromkeys(gone)

    def _compact(self, writer: _Writer) -> list[bytes]:
        """Write again what lives in the oldest records, while they are too large; return the keys of those that go."""
        gone: list[bytes] = []
        while self._oldest < self._next and len(gone) < _DELETED:
            oldest = self._records[self._oldest]
            if not oldest.alive:
                gone.append(key_of(oldest.number))
                self.size -= oldest.size
                del self._records[oldest.number]
                self._oldest += 1
                continue
            if self._credit <= 0 or self.size + writer.open_bytes <= max(2 * self.live, _FLOOR):
                break
            queue, entry = oldest.entries[oldest.looked_at]
            oldest.looked_at += 1
            self._credit -= _SCAN
            if entry.home == oldest.number:
                before = writer.written
                writer.again(queue, entry)
                self._credit -= writer.written - before
        return gone

    def settle_in(self, stored: _Stored, queue: Queue, entry: Entry, size: int) -> None:
        """Take note that an entry's whole line is in a record now."""
        if entry.home >= 0:
            self._leave(entry)
        entry.home, entry.stored_bytes = stored.number, size
        stored.alive += 1
        stored.entries.append((queue, entry))
        self.live += size

    def add_record(self, stored: _Stored) -> None:
        """Take a record in that is begun, or was read."""
        self._records[stored.number] = stored

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self, number: int, data: bytes, queue_of: Callable[[str, str], Queue | None]) -> None:
        """Take the next record in.

        Args:
            number, data: The record.
            queue_of: Makes the queue of a monitor and dataset, None where it has to go; ValueError where
                there can be none.

        Raises:
            UnreadableState: The record cannot be decoded, or does not follow the one before.
        """
        key = key_of(number).decode()
        if self._records and number != self._next:
            raise UnreadableState(f"state record {key_of(self._next).decode()} is missing, {key} is there")
        record = from_bytes(QueueRecord, data, key=key)
        if not self._records:
            self._oldest = number
        self._next = number + 1
        stored = _Stored(number, len(data) + _OVERHEAD)
        self.add_record(stored)
        self.size += stored.size
        groups = [(section, group) for section in record.sections for group in section.groups]
        share = len(data) // max(1, sum(1 + len(group.lines) for _, group in groups))
        for section, group in groups:
            names = section.monitor, group.dataset
            if any(isinstance(line, DropLine) for line in group.lines):
                # What comes next is another queue: its monitor may have come back with another form of append.
                self._loading.pop(names, None)
                continue
            queue = self._loading.get(names)
            if queue is None:
                queue = self._loading[names] = self._begun(names, queue_of)
            at = Position(section.offset, section.clock_ms)
            queue.set_head(group.head)
            if queue.keeps_head:
                queue.home, queue.stored_bytes = number, share
            try:
                for line in group.lines:
                    queue.take(line, at, number, share)
            except ValueError as error:
                self._loading[names] = _Unknown(self, *names, problem=f"{key}: {error}")

    def _begun(self, names: tuple[str, str], queue_of: Callable[[str, str], Queue | None]) -> Queue:
        try:
            made = queue_of(*names)
        except ValueError as error:
            return _Unknown(self, *names, problem=str(error))
        return _Unknown(self, *names) if made is None else made

    def loaded(self) -> Iterator[Queue]:
        """End the loading; yield the queues that were made, each once it is of use.

        Raises:
            UnreadableState: Lines are missing.
        """
        found, self._loading = list(self._loading.values()), {}
        for queue in found:
            try:
                queue.settle()
            except ValueError as error:
                names = f"of monitor {queue.monitor} on dataset {queue.dataset}"
                raise UnreadableState(f"state records w/* {names} are damaged: {error}") from None
            for entry in [queue, *queue.entries()]:
                if entry.home >= 0:
                    self._records[entry.home].alive += 1
                    self._records[entry.home].entries.append((queue, entry))
                    self.live += entry.stored_bytes
            if not queue.dropped:
                yield queue


class _Writer:
    """Puts lines into records of a bounded size. ``written`` counts the bytes so far."""

    def __init__(self, journal: QueueJournal, number: int, positions: Mapping[str, Position]) -> None:
        self.next = number
        self.written = 0
        self._journal = journal
        self._positions = positions
        self._records: dict[int, bytes] = {}
        self._stored: _Stored | None = None
        self._sections: dict[str, dict[Queue, list[msgspec.Raw]]] = {}
        self._heads: dict[Queue, int] = {}

    @property
    def open_bytes(self) -> int:
        """Bytes of the record that is not finished."""
        return 0 if self._stored is None else self._stored.size

    def position(self, queue: Queue) -> Position:
        """Return where the monitor of a queue stands."""
        return self._positions.get(queue.monitor, _START)

    def add(self, queue: Queue, lines: Iterable[tuple[Entry | None, QueueLine]]) -> None:
        """Write the head of a queue, and lines, each with the entry that it holds whole."""
        stored, group = self._open_group(queue, 0)
        for entry, line in lines:
            data = _ENCODER.encode(line)
            size = len(data)
            if stored.size + size > RECORD_BYTES:
                stored, group = self._open_group(queue, size)
            group.append(msgspec.Raw(data))
            stored.size += size
            self.written += size
            if entry is not None:
                self._journal.settle_in(stored, queue, entry, size)

    def again(self, queue: Queue, entry: Entry) -> None:
        """Write an entry again."""
        self.add(queue, () if entry is queue else ((entry, queue.line(entry, self.position(queue))),))

    def _open_group(self, queue: Queue, room: int) -> tuple[_Stored, list[msgspec.Raw]]:
        """Return the record in which the next line of a queue has room, and the queue's lines there."""
        stored = self._stored
        if stored is not None:
            lines = self._sections.get(queue.monitor, {}).get(queue)
            if lines is not None and stored.size + room <= RECORD_BYTES:
                return stored, lines
            if stored.size + room + queue.names_bytes > RECORD_BYTES:
                self._end_record()
                stored = None
        if stored is None:
            stored = self._stored = _Stored(self.next, _OVERHEAD)
            self.next += 1
            self._journal.add_record(stored)
            self.written += _OVERHEAD
        section = self._sections.get(queue.monitor)
        size = _GROUP_BYTES + len(queue.dataset)
        if section is None:
            section = self._sections[queue.monitor] = {}
            size += _SECTION_BYTES + len(queue.monitor)
        lines = section[queue] = []
        self._heads[queue] = queue.head
        stored.size += size
        self.written += size
        if queue.keeps_head and not queue.dropped:
            self._journal.settle_in(stored, queue, queue, size)
        return stored, lines

    def finish(self) -> dict[int, bytes]:
        """Return the records by number."""
        self._end_record()
        return self._records

    def _end_record(self) -> None:
        stored = self._stored
        if stored is None:
            return
        sections = [
            (
                monitor,
                *self._positions.get(monitor, _START),
                [(queue.dataset, self._heads[queue], lines) for queue, lines in groups.items()],
            )
            for monitor, groups in self._sections.items()
        ]
        data = _ENCODER.encode((VERSION, sections))
        stored.size = len(data) + _OVERHEAD
        self._journal.size += stored.size
        self._records[stored.number] = data
        self._stored, self._sections, self._heads = None, {}, {}


def key_of(number: int) -> bytes:
    """Return the key of a record."""
    return f"w/{number}".encode()
