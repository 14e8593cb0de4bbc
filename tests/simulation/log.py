"""A model of Kafka's log: partitions, transactional producers with epochs, markers, and what readers may see.

Modelled after the broker's own rules: a new producer of a transactional id raises the epoch, completes a commit
that was decided and aborts what was not; requests of older epochs are refused; the end of a transaction is decided
first and its marker reaches each partition later, so that read_committed readers of different partitions see it at
different times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stream_svt.service.kafka import Fenced


class Fate(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class Txn:
    """One transaction: what was decided, and which partitions have its marker."""

    fate: Fate = Fate.OPEN
    entries: list[Entry] = field(default_factory=list)
    unmarked: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Entry:
    """A record of a partition; fits `stream_svt.protocol.ports.Record`."""

    partition: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    txn: Txn | None = None
    marker: bool = False

    @property
    def stable(self) -> bool:
        """Whether read_committed readers may read past it."""
        return self.txn is None or (
            self.txn.fate is not Fate.OPEN and self.partition not in self.txn.unmarked
        )

    @property
    def visible(self) -> bool:
        """Whether a read_committed reader that gets here is shown it."""
        return not self.marker and (self.txn is None or self.txn.fate is Fate.COMMITTED)


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    txn: Txn | None = None


class Broker:
    """All partitions of one shard and the coordinator of its producers."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.partitions: dict[str, list[Entry]] = {}
        self.first: dict[str, int] = {}
        self._producers: dict[str, _Producer] = {}
        self._stable: dict[str, tuple[list[Entry], int]] = {}
        self.appended: Callable[[Entry], None] = lambda entry: None
        self.decided: Callable[[Txn], None] = lambda txn: None

    @property
    def producers(self) -> list[str]:
        return sorted(self._producers)

    @property
    def writing(self) -> bool:
        return any(producer.txn is not None for producer in self._producers.values())

    # Writing

    def fence(self, name: str) -> int:
        """Return the epoch of a new producer; the older ones are done for."""
        producer = self._producers.setdefault(name, _Producer())
        if producer.txn is not None and producer.txn.fate is Fate.OPEN:
            self._decide(producer, Fate.ABORTED)
        self.mark(name, everything=True)
        producer.epoch += 1
        return producer.epoch

    def write(self, partition: str, key: bytes | None, value: bytes | None) -> Entry:
        return self._append(Entry(partition, 0, 0, key, value))

    def append(self, name: str, epoch: int, partition: str, key: bytes | None, value: bytes | None) -> int:
        """Append within the producer's transaction, beginning one if there is none."""
        producer = self._current(name, epoch)
        if producer.txn is not None and producer.txn.fate is not Fate.OPEN:
            self.mark(name, everything=True)
        if producer.txn is None:
            producer.txn = Txn()
        entry = self._append(Entry(partition, 0, 0, key, value, txn=producer.txn))
        producer.txn.entries.append(entry)
        producer.txn.unmarked.add(partition)
        return entry.offset

    def end(self, name: str, epoch: int) -> None:
        producer = self._current(name, epoch)
        if producer.txn is not None and producer.txn.fate is Fate.OPEN:
            self._decide(producer, Fate.COMMITTED)

    def time_out(self, name: str) -> bool:
        """Give up an open transaction as the coordinator does, which fences its producer; say whether one was open."""
        producer = self._producers.get(name)
        if producer is None or producer.txn is None or producer.txn.fate is not Fate.OPEN:
            return False
        self._decide(producer, Fate.ABORTED)
        producer.epoch += 1
        return True

    def mark(self, name: str, *, everything: bool = False) -> None:
        """Write the next marker of a decided transaction, or all of them."""
        producer = self._producers.get(name)
        if producer is None or producer.txn is None or producer.txn.fate is Fate.OPEN:
            return
        txn = producer.txn
        for partition in sorted(txn.unmarked):
            self._append(Entry(partition, 0, 0, None, None, txn=txn, marker=True))
            txn.unmarked.discard(partition)
            if not everything:
                break
        if not txn.unmarked:
            producer.txn = None

    def settle(self, *, abandoned: bool = False) -> None:
        """Write every marker that is due; where all producers are gone, give up what they left open."""
        for name in self.producers:
            if abandoned:
                self.time_out(name)
            self.mark(name, everything=True)

    def _current(self, name: str, epoch: int) -> _Producer:
        producer = self._producers.get(name)
        if producer is None or producer.epoch != epoch:
            raise Fenced(f"producer {name!r} of epoch {epoch} was replaced")
        return producer

    def _decide(self, producer: _Producer, fate: Fate) -> None:
        assert producer.txn is not None
        producer.txn.fate = fate
        self.decided(producer.txn)

    def _append(self, entry: Entry) -> Entry:
        entries = self.partitions.setdefault(entry.partition, [])
        entry.offset, entry.timestamp = len(entries), self._now_ms()
        entries.append(entry)
        self.appended(entry)
        return entry

    # Reading

    def span(self, partition: str, *, committed: bool = True) -> tuple[int, int]:
        """Return first and end offset for readers of either kind."""
        entries = self.partitions.get(partition, [])
        end = self._stable_end(partition, entries) if committed else len(entries)
        return self.first.get(partition, 0), end

    def _stable_end(self, partition: str, entries: list[Entry]) -> int:
        """Return where read_committed readers must stop; what was stable stays so."""
        known, end = self._stable.get(partition, (entries, 0))
        if known is not entries or end > len(entries):  # made anew, or cut short
            end = 0
        while end < len(entries) and entries[end].stable:
            end += 1
        self._stable[partition] = entries, end
        return end

    def read(self, partition: str, start: int = 0, *, committed: bool = True) -> Iterator[Entry]:
        """Return what a reader is shown from an offset to the end."""
        first, end = self.span(partition, committed=committed)
        entries = self.partitions.get(partition, [])
        found = entries[max(start, first) : end]
        return iter([entry for entry in found if (entry.visible if committed else not entry.marker)])
