"""Journal of queues: what changed in the queues of a shard since its last commit, in records that they share.

A record ``w/<n>`` holds lines of many queues: entries, and what is gone. Reading all records in order gives every queue
as it was. Records are deleted oldest first; what still lives in the oldest one is first written again. So a line may
speak of an entry whose own line is gone: it is ignored. Nothing depends on the rules of a monitor, and no length on a
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from stream_svt.errors import UnreadableState
from stream_svt.monitor.snapshot import (
    VERSION,
    Entry,
    Gone,
    Line,
    Name,
    QueueRecord,
    Swept,
    Waiting,
    from_bytes,
)

RECORD_BYTES = 100_000
_OVERHEAD = 130
"""Bytes of a record beside its content: its frame, seal and key, and what Kafka adds."""
_FLOOR = 65_536
"""A journal up to this size is never compacted."""
SLACK = 2 * RECORD_BYTES
"""Bytes that a save may have beyond what was announced: of the last record that it writes again."""
_DELETED = 100
"""Records that one save deletes at most."""
NUMBER_BYTES = 12
_GROUP_BYTES, _NUMBERS_OF_LINE = 40, 5_000

_ENCODER = msgspec.msgpack.Encoder()


E = TypeVar("E", bound=Entry)


@dataclass(slots=True, repr=False, eq=False)
class Queue(Generic[E]):
    """Entries that belong to a monitor on a dataset, oldest first. A subclass is a ``kind`` and what ``holds`` it.

    ``count`` numbers the entries: one has the count at which it came. ``sweeps`` counts rounds of tests of all entries;
    ``cut`` are those since the last save that ended early, after the place of a number.
    """

    kind: ClassVar[int] = -1
    holds: ClassVar[tuple[type, ...]] = ()

    journal: QueueJournal
    monitor: str
    dataset: str
    count: int = 0
    sweeps: int = 0
    entries: dict[Name, E] = field(default_factory=dict)
    changed: bool = False
    touched: dict[Name, None] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    home: int = -1
    dropped: bool = False

    @property
    def waiting(self) -> int:
        """Return the number of queries that wait."""
        return len(self.entries)

    def put(self, name: Name, entry: E) -> None:
        """Keep an entry, in the place of the one of this name if there is one."""
        size = entry.size
        known = self.entries.get(name)
        if known is not None:
            self.journal.live -= known.size
        self.entries[name] = entry
        self.touched[name] = None
        self.journal.live += size
        self.journal.note(self, size)

    def remove(self, name: Name) -> E:
        """Take an entry out, and return it."""
        entry = self.entries.pop(name)
        self.touched.pop(name, None)
        self.gone.append(entry.number)
        self.journal.live -= entry.size
        self.journal.note(self, NUMBER_BYTES)
        return entry

    def forget(self) -> None:
        """Take all entries out; the count stays."""
        for name in list(self.entries):
            self.remove(name)

    def drop(self) -> None:
        """Forget the queue with everything in it."""
        self.journal.live -= sum(entry.size for entry in self.entries.values())
        self.entries, self.touched = {}, {}
        self.home, self.dropped = -1, True
        self.journal.note(self, NUMBER_BYTES)

    def settle(self) -> None:
        """Make ready for use what was loaded.

        Raises:
            ValueError: Entries are missing, or damaged.
        """

    def changes(self) -> Iterator[Line]:
        """Yield the lines of what changed since the last call."""
        if self.dropped:
            yield Gone(None, [])
        elif self.gone:
            first = next((entry.number for entry in self.entries.values()), self.count + 1)
            numbers = [number for number in self.gone if number > first]
            for at in range(0, max(1, len(numbers)), _NUMBERS_OF_LINE):
                yield Gone(first, numbers[at : at + _NUMBERS_OF_LINE])
        if self.cut:
            yield Swept(self.cut)
        yield from [self.entries[name] for name in self.touched]
        self.gone, self.cut, self.touched, self.changed = [], [], {}, False


@dataclass(slots=True, repr=False, eq=False)
class _Stored:
    """A record that was written, with the entries that were written to it: those that changed later live elsewhere."""

    size: int = _OVERHEAD
    queues: list[Queue[Any]] = field(default_factory=list)
    entries: list[tuple[Queue[Any], Entry]] = field(default_factory=list)


class QueueJournal:
    """Records of the queues of a shard.

    ``size`` is the number of bytes of its records, ``live`` about how many of them are needed.
    """

    def __init__(self) -> None:
        self.size = 0
        self.live = 0
        self._records: dict[int, _Stored] = {}
        self._next = 0
        self._changed: list[Queue[Any]] = []
        self._pending = 0
        self._loading: dict[tuple[int, str, str], tuple[Queue[Any], dict[int, Entry]]] = {}

    @property
    def pending_bytes(self) -> int:
        """Bytes that the records of the next `save` have at most, `SLACK` aside; grows with every change until then."""
        return 2 * self._pending

    def changed_datasets(self) -> set[str]:
        """Return the names of the datasets whose queues changed since the last save."""
        return {queue.dataset for queue in self._changed}

    def note(self, queue: Queue[Any], size: int) -> None:
        """Take note of a change whose line has at most ``size`` bytes."""
        if not queue.changed:
            queue.changed = True
            self._changed.append(queue)
            size += _GROUP_BYTES + 4 * (len(queue.dataset) + len(queue.monitor))
        self._pending += size

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self) -> dict[bytes, bytes | None]:
        """Return the records of what changed since the last save, by key; None for those that go."""
        writer = _Writer(self._next)
        for queue in self._changed:
            writer.write(queue, ())
            for line in queue.changes():
                writer.write(queue, (line,))
        self._changed, self._pending = [], 0
        gone = self._compact(writer)
        writer.end_record()
        self._records |= writer.stored
        self.size += sum(stored.size for stored in writer.stored.values())
        self._next = writer.number
        return writer.records | dict.fromkeys(gone)

    def _compact(self, writer: _Writer) -> list[bytes]:
        """Write again what lives in the oldest records, while all are too large; return the keys of those that go.

        About as much is written again as was written for the first time: so no commit is much larger than its changes.
        """
        gone: list[bytes] = []
        most = 2 * writer.size
        for number, oldest in list(self._records.items())[:_DELETED]:
            if self.size + writer.size <= max(2 * self.live, _FLOOR) or writer.size > most:
                break
            for queue in oldest.queues:
                if queue.home == number:
                    writer.write(queue, ())
            for queue, entry in oldest.entries:
                if queue.entries.get(entry.name) is entry:
                    writer.write(queue, (entry,))
            del self._records[number]
            self.size -= oldest.size
            gone.append(key_of(number))
        return gone

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self, number: int, data: bytes, kinds: Mapping[int, type[Queue[Any]]]) -> None:
        """Take the next record in; ``kinds`` has the queues by their ``kind``.

        Raises:
            UnreadableState: The record cannot be decoded, or does not follow the one before.
        """
        key = key_of(number).decode()
        if self._records and number != self._next:
            raise UnreadableState(f"state record {key_of(self._next).decode()} is missing, {key} is there")
        record = from_bytes(QueueRecord, data, key=key)
        self._next = number + 1
        stored = self._records[number] = _Stored(len(data) + _OVERHEAD)
        self.size += stored.size
        for group in record.groups:
            names = group.kind, group.monitor, group.dataset
            queue, entries = self._loading.get(names) or (kinds[group.kind](self, *names[1:]), {})
            self._loading[names] = queue, entries
            queue.count, queue.sweeps, queue.home = group.count, group.sweeps, number
            stored.queues.append(queue)
            for line in group.lines:
                if isinstance(line, Gone):
                    if line.first is None:
                        self._loading.pop(names)
                        queue.home = -1
                    else:
                        queue.gone.append(line.first)
                        for gone in line.numbers:
                            entries.pop(gone, None)
                elif isinstance(line, Swept):
                    for last in line.numbers:
                        sweep_up_to(last, entries.values())
                elif isinstance(line, queue.holds):
                    entries[line.number] = line
                    stored.entries.append((queue, line))
                else:
                    raise UnreadableState(f"state record {key} holds a line of another kind of queue")

    def loaded(self) -> Iterator[Queue[Any]]:
        """End the loading; yield the queues, each once it is of use.

        Raises:
            UnreadableState: Entries are missing, or damaged.
        """
        found, self._loading = list(self._loading.values()), {}
        for queue, entries in found:
            first, queue.gone = max(queue.gone, default=0), []
            kept = sorted((number, entry) for number, entry in entries.items() if number >= first)
            queue.entries = {entry.name: entry for _, entry in kept}
            self.live += sum(entry.size for entry in queue.entries.values())
            try:
                queue.settle()
            except ValueError as error:
                names = f"of monitor {queue.monitor} on dataset {queue.dataset}"
                raise UnreadableState(f"state records w/* {names} are damaged: {error}") from None
            yield queue


class _Writer:
    """Puts lines into records of a bounded size; ``size`` is that of all."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        self.records: dict[bytes, bytes | None] = {}
        self.stored: dict[int, _Stored] = {}
        self._open = _Stored()
        self._groups: dict[Queue[Any], list[msgspec.Raw]] = {}

    def write(self, queue: Queue[Any], lines: tuple[Line, ...]) -> None:
        """Write lines of a queue, after its count."""
        encoded = [_ENCODER.encode(line) for line in lines]
        size = sum(map(len, encoded))
        if self._open.size + size > RECORD_BYTES:
            self.end_record()
        group = self._groups.get(queue)
        if group is None:
            group = self._groups[queue] = []
            size += _GROUP_BYTES + len(queue.monitor) + len(queue.dataset)
            self._open.queues.append(queue)
            queue.home = -1 if queue.dropped else self.number
        group += map(msgspec.Raw, encoded)
        self._open.entries += [(queue, line) for line in lines if isinstance(line, Entry)]
        self._open.size += size
        self.size += size

    def end_record(self) -> None:
        """Finish the record that lines are written to."""
        if not self._groups:
            return
        groups = [
            (q.kind, q.monitor, q.dataset, q.count, q.sweeps, lines) for q, lines in self._groups.items()
        ]
        data = _ENCODER.encode((VERSION, groups))
        self._open.size = len(data) + _OVERHEAD
        self.size += _OVERHEAD
        self.records[key_of(self.number)] = data
        self.stored[self.number] = self._open
        self.number += 1
        self._open, self._groups = _Stored(), {}


def sweep_up_to(last: int, entries: Iterable[Entry]) -> None:
    """Count one more round of tests for the places up to a number."""
    for entry in entries:
        if isinstance(entry, Waiting) and entry.number <= last:
            entry.begun -= 1


def key_of(number: int) -> bytes:
    """Return the key of a record."""
    return f"w/{number}".encode()


def number_of(rest: str) -> int:
    """Return the number of a record by the rest of its key.

    Raises:
        UnreadableState: It is no number.
    """
    if not (rest.isascii() and rest.isdigit() and len(rest) <= 18):
        raise UnreadableState(f"state record {f'w/{rest}'.encode()!r} has a key that no release writes")
    return int(rest)
