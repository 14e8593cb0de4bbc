"""Journal of queues: records, shared by all queues of a shard, with the changes of each commit.

Reading all records in order restores every queue. Records are deleted oldest first, after their live entries have been
written again. Nothing depends on a monitor's rules, and no length on a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from stream_svt.errors import UnreadableState
from stream_svt.monitor.state.snapshot import VERSION, Entry, Name, QueueRecord, from_bytes

RECORD_BYTES = 100_000
_OVERHEAD = 130
"""Bytes of a record besides its content: frame, seal, key and Kafka's overhead."""
_FLOOR = 65_536
"""A journal up to this size is never compacted."""
SLACK = 2 * RECORD_BYTES
"""Bytes by which a save may exceed `QueueJournal.pending_bytes`: of the last record written again."""
_DELETED = 100
"""Maximum number of records that one save deletes."""
_NUMBER_BYTES, _GROUP_BYTES, _NUMBERS_AT_ONCE = 9, 50, 5_000
_LEAST_GROUP_BYTES = 12
"""Bytes of a queue's group in a record, without names and entries."""
_WRITTEN_AT_ONCE = 10_000
"""Most bytes of entries that are written together, into one record."""

_ENCODER = msgspec.msgpack.Encoder()

E = TypeVar("E", bound=Entry)


@dataclass(slots=True, repr=False, eq=False)
class Queue(Generic[E]):
    """Entries of a monitor on a dataset, oldest first. A subclass sets its ``kind`` and the ``entry_types`` it holds.

    ``count`` numbers the entries: an entry's number is the count when it came. ``sweeps`` counts rounds of tests of all
    entries. ``unsaved`` has the sizes of the entries that changed since the last save, ``gone`` the numbers of removed
    ones; ``newest_record`` is the number of the last record with the queue's counts, -1 where it needs none.
    """

    kind: ClassVar[int] = -1
    entry_types: ClassVar[tuple[type, ...]] = ()

    journal: QueueJournal
    monitor: str
    dataset: str
    count: int = 0
    sweeps: int = 0
    entries: dict[Name, E] = field(default_factory=dict)
    changed: bool = False
    unsaved: dict[Name, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    newest_record: int = -1
    dropped: bool = False

    @property
    def group_bytes(self) -> int:
        """Return the size of the queue's group in a record, without entries."""
        return _LEAST_GROUP_BYTES + len(self.monitor) + len(self.dataset)

    @property
    def waiting(self) -> int:
        """Return the number of queries that wait."""
        return len(self.entries)

    def put(self, entry: E) -> None:
        """Store an entry; it replaces the entry of the same name."""
        name, size = entry.name, size_of(entry)
        previous = self.entries.get(name)
        self.journal.live += self.group_bytes if previous is None else -size_of(previous)
        self.journal.live += size
        self.entries[name] = entry
        self.unsaved[name] = size
        self.journal.mark_changed(self, size)

    def remove(self, name: Name) -> E:
        """Remove an entry, and return it."""
        entry = self.entries.pop(name)
        self.unsaved.pop(name, None)
        self.gone.append(entry.number)
        self.journal.live -= size_of(entry) + self.group_bytes
        self.journal.mark_changed(self, _NUMBER_BYTES)
        return entry

    def clear(self) -> None:
        """Remove all entries; the count stays."""
        for name in list(self.entries):
            self.remove(name)

    def drop(self) -> None:
        """Remove the queue with all its entries."""
        self.clear()
        if self.newest_record >= 0:
            self.journal.live -= self.group_bytes
        self.gone, self.newest_record, self.dropped = [], -1, True
        self.journal.mark_changed(self)

    def finish_loading(self) -> None:
        """Prepare loaded entries for use; `ValueError` if entries are missing or damaged."""


def size_of(entry: Entry) -> int:
    """Return the size of an entry in a record."""
    return len(_ENCODER.encode(entry))


@dataclass(slots=True, repr=False, eq=False)
class _Stored:
    """A written record with its queues and entries; entries that changed later live in a newer record."""

    size: int = _OVERHEAD
    queues: list[Queue[Any]] = field(default_factory=list)
    entries: list[tuple[Queue[Any], Entry]] = field(default_factory=list)


class QueueJournal:
    """Records of the queues of a shard: ``size`` bytes, of which at most about ``live`` are needed.

    That counts a group for each entry and for the counts of each queue: those of many queues seldom meet in a record,
    however often it is written.
    ``changed`` are the queues with changes since the last `save`; the next one writes at most ``pending_bytes`` +
    `SLACK`.
    """

    def __init__(self) -> None:
        self.size = 0
        self.live = 0
        self.changed: list[Queue[Any]] = []
        self.pending_bytes = 0
        self._records: dict[int, _Stored] = {}
        self._next = 0
        self._open = _Stored()
        self._groups: dict[Queue[Any], tuple[list[int], list[Entry]]] = {}
        self._written: dict[bytes, bytes | None] = {}
        self._written_bytes = 0
        self._loading: dict[tuple[int, str, str], tuple[Queue[Any], dict[int, Entry]]] = {}

    def mark_changed(self, queue: Queue[Any], size: int = 0) -> None:
        """Note that a queue has changed, by at most ``size`` bytes."""
        if not queue.changed:
            queue.changed = True
            self.changed.append(queue)
            size += _GROUP_BYTES + 4 * (len(queue.dataset) + len(queue.monitor))
        self.pending_bytes += 2 * size

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self) -> dict[bytes, bytes | None]:
        """Return the records with the changes since the last save, by key; None deletes a record."""
        first, self._written_bytes = self._next, 0
        for queue in self.changed:
            for start in range(_NUMBERS_AT_ONCE, len(queue.gone), _NUMBERS_AT_ONCE):
                self._write(queue, gone=queue.gone[start : start + _NUMBERS_AT_ONCE])
            gone, size = queue.gone[:_NUMBERS_AT_ONCE], sum(queue.unsaved.values())
            entries = [queue.entries[name] for name in queue.unsaved]
            if size <= _WRITTEN_AT_ONCE:
                self._write(queue, entries, size, gone)
            else:
                self._write(queue, gone=gone)
                for entry in entries:
                    self._write(queue, [entry], size_of(entry))
            queue.gone, queue.unsaved, queue.changed = [], {}, False
        self.changed, self.pending_bytes = [], 0
        deleted = list(self._compact(first))
        self._end_record()
        written, self._written = self._written, {}
        return written | dict.fromkeys(deleted)

    @property
    def _is_compact(self) -> bool:
        return self.size + self._open.size <= max(2 * self.live, _FLOOR)

    def _compact(self, first: int) -> Iterator[bytes]:
        """Delete the oldest records, none from ``first`` on, after writing their live entries again.

        That writes at most about as much as changed.
        """
        most = 2 * self._written_bytes
        older = () if self._is_compact else [*islice(self._records.items(), _DELETED)]
        for number, oldest in older:
            if number >= first or self._is_compact or self._written_bytes > most:
                break
            for queue in oldest.queues:
                if queue.newest_record == number:
                    self._write(queue)
            for queue, entry in oldest.entries:
                if queue.entries.get(entry.name) is entry:
                    self._write(queue, [entry], size_of(entry))
            del self._records[number]
            self.size -= oldest.size
            yield record_key(number)

    def _write(
        self, queue: Queue[Any], entries: Sequence[Entry] = (), size: int = 0, gone: Sequence[int] = ()
    ) -> None:
        """Write entries of a queue, of so many bytes, or numbers of removed ones, and always the queue's counts."""
        size += _NUMBER_BYTES * len(gone)
        if self._open.size + size > RECORD_BYTES:
            self._end_record()
        group, stored = self._groups.get(queue), self._open
        if group is None:
            group = self._groups[queue] = [], []
            size += _GROUP_BYTES + len(queue.monitor) + len(queue.dataset)
            stored.queues.append(queue)
            if queue.newest_record < 0 and not queue.dropped:
                self.live += queue.group_bytes
            queue.newest_record = -1 if queue.dropped else self._next
        group[0].extend(gone)
        group[1].extend(entries)
        stored.entries.extend([(queue, entry) for entry in entries])
        stored.size += size
        self._written_bytes += size

    def _end_record(self) -> None:
        """Finish the open record."""
        if not self._groups:
            return
        groups = [
            (q.kind, q.monitor, q.dataset, q.count, q.sweeps, None if q.dropped else gone, entries)
            for q, (gone, entries) in self._groups.items()
        ]
        data = self._written[record_key(self._next)] = _ENCODER.encode((VERSION, groups))
        self._open.size = len(data) + _OVERHEAD
        self._written_bytes += _OVERHEAD
        self._records[self._next] = self._open
        self.size += self._open.size
        self._next += 1
        self._open, self._groups = _Stored(), {}

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self, number: int, data: bytes, kinds: Mapping[int, type[Queue[Any]]]) -> None:
        """Load the next record; `UnreadableState` if it cannot be decoded or does not follow the previous one."""
        key = record_key(number).decode()
        if self._records and number != self._next:
            raise UnreadableState(
                f"state record {record_key(self._next).decode()} is missing, {key} is there"
            )
        record = from_bytes(QueueRecord, data, key=key)
        self._next = number + 1
        stored = self._records[number] = _Stored(len(data) + _OVERHEAD)
        self.size += stored.size
        for group in record.groups:
            names = group.kind, group.monitor, group.dataset
            queue, entries = self._loading.get(names) or (kinds[group.kind](self, *names[1:]), {})
            self._loading[names] = queue, entries
            queue.count, queue.sweeps, queue.newest_record = group.count, group.sweeps, number
            stored.queues.append(queue)
            if group.gone is None:
                del self._loading[names]
                queue.newest_record = -1
            for gone in group.gone or ():
                entries.pop(gone, None)
            for entry in group.entries:
                if not isinstance(entry, queue.entry_types):
                    raise UnreadableState(f"state record {key} holds an entry of another kind of queue")
                entries[entry.number] = entry
                stored.entries.append((queue, entry))

    def loaded(self) -> Iterator[Queue[Any]]:
        """End loading: prepare and yield each queue; `UnreadableState` if entries are missing or damaged."""
        queues, self._loading = list(self._loading.values()), {}
        for queue, entries in queues:
            queue.entries = {entry.name: entry for _, entry in sorted(entries.items())}
            self.live += sum(map(size_of, entries.values())) + (1 + len(entries)) * queue.group_bytes
            try:
                queue.finish_loading()
            except ValueError as error:
                names = f"of monitor {queue.monitor} on dataset {queue.dataset}"
                raise UnreadableState(f"state records w/* {names} are damaged: {error}") from None
            yield queue


def record_key(number: int) -> bytes:
    """Return the key of a record."""
    return f"w/{number}".encode()


def record_number(rest: str) -> int:
    """Return the number of a record from the rest of its key; `UnreadableState` if that is not a number."""
    if not (rest.isascii() and rest.isdigit() and len(rest) <= 18):
        raise UnreadableState(f"state record {f'w/{rest}'.encode()!r} has a key that no release writes")
    return int(rest)
