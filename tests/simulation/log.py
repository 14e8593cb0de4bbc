"""A model of Kafka's log: partitions, transactional producers with epochs, markers, and what readers may see.

Modelled after the broker's own rules: a new producer of a transactional id raises the epoch, completes a commit
that was decided and aborts what was not; requests of older epochs are refused; the end of a transaction is decided
first and its marker reaches each partition later, so that read_committed readers of different partitions see it at
different times. What a process wants done on it are effects that a scheduler carries out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stream_svt.kafka.clients import Fenced
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Transaction, Written
from stream_svt.protocol.sealing import RecordContext
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.state_records import JournalSettings
from stream_svt.settings.sections import TopicsConfig


class Fate(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


Headers = Sequence[tuple[str, bytes | None]]


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
    headers: Headers = ()
    txn: Txn | None = None
    marker: bool = False
    compacted: bool = False

    @property
    def stable(self) -> bool:
        """Whether read_committed readers may read past it."""
        return self.txn is None or (
            self.txn.fate is not Fate.OPEN and self.partition not in self.txn.unmarked
        )

    @property
    def visible(self) -> bool:
        """Whether a read_committed reader that gets here is shown it."""
        return self.held and (self.txn is None or self.txn.fate is Fate.COMMITTED)

    @property
    def held(self) -> bool:
        """Whether it is a record, committed or not, that the log still holds."""
        return not self.marker and not self.compacted


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    txn: Txn | None = None


class Broker:
    """All partitions of one shard and the coordinator of its producers."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.partitions: dict[str, list[Entry]] = {}
        self.first: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        self._producers: dict[str, _Producer] = {}
        self._stable: dict[str, tuple[list[Entry], int]] = {}
        self.appended: Callable[[Entry], None] = lambda entry: None
        self.decided: Callable[[Txn], None] = lambda txn: None

    @property
    def producers(self) -> list[str]:
        return sorted(self._producers)

    @property
    def writing(self) -> bool:
        """Whether an owner of the shard has a transaction that has not ended."""
        owners = [one for name, one in self._producers.items() if name.startswith("app")]
        return any(producer.txn is not None for producer in owners)

    # Writing

    def fence(self, name: str) -> int:
        """Return the epoch of a new producer; the older ones are done for."""
        producer = self._producers.setdefault(name, _Producer())
        if producer.txn is not None and producer.txn.fate is Fate.OPEN:
            self._decide(producer, Fate.ABORTED)
        self.mark(name, everything=True)
        producer.epoch += 1
        return producer.epoch

    def write(
        self,
        partition: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> Entry:
        """Append a record with its own timestamp, or that of now."""
        return self._append(Entry(partition, 0, timestamp or 0, key, value, headers))

    def append(
        self,
        name: str,
        epoch: int,
        partition: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> int:
        """Append within the producer's transaction, beginning one if there is none; see `write`."""
        producer = self._current(name, epoch)
        if producer.txn is not None and producer.txn.fate is not Fate.OPEN:
            self.mark(name, everything=True)
        if producer.txn is None:
            producer.txn = Txn()
        entry = self._append(Entry(partition, 0, timestamp or 0, key, value, headers, producer.txn))
        producer.txn.entries.append(entry)
        producer.txn.unmarked.add(partition)
        return entry.offset

    def end(self, name: str, epoch: int, fate: Fate = Fate.COMMITTED) -> None:
        producer = self._current(name, epoch)
        if producer.txn is not None and producer.txn.fate is Fate.OPEN:
            self._decide(producer, fate)

    def produce(self, name: str, partition: str, records: Iterable[tuple[Any, ...]], fate: Fate) -> None:
        """Write records in a transaction, after the end of the producer's last one, and end it unless it stays open."""
        epoch = self.fence(name)
        for record in records:
            self.append(name, epoch, partition, *record)
        if fate is not Fate.OPEN:
            self.end(name, epoch, fate)
            self.mark(name, everything=True)

    def compact(self, partition: str, *offsets: int) -> None:
        """Remove records as compaction does: their offsets stay unused."""
        for offset in offsets:
            self.partitions[partition][offset].compacted = True

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
        entry.offset, entry.timestamp = len(entries), entry.timestamp or self.now_ms()
        entries.append(entry)
        self.appended(entry)
        return entry

    def make_anew(self, partition: str) -> None:
        """Delete a topic and create it again."""
        self.partitions[partition] = []
        self.first.pop(partition, None)
        self.topic_ids[partition] = f"{self.topic_ids.get(partition, '')}+"

    # Reading

    def ids(self, partitions: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics."""
        return {partition: self.topic_ids.get(partition, "") for partition in partitions}

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
        return iter([entry for entry in found if (entry.visible if committed else entry.held)])


class Effect:
    """What a process wants done; awaiting it gives the result or raises."""

    __slots__ = ("act", "kind")

    def __init__(self, kind: str, act: Callable[[], Any]) -> None:
        self.kind = kind
        self.act = act

    def __await__(self) -> Generator[Effect, Any, Any]:
        return (yield self)


class ModelLog:
    """A process's writer and reader of the shard's books; see `stream_svt.protocol.ports.Log`."""

    def __init__(self, broker: Broker, producer: str = "app-0") -> None:
        self._broker = broker
        self._producer = producer
        self._epoch = 0

    async def fence(self) -> None:
        def fence() -> None:
            self._epoch = self._broker.fence(self._producer)

        await Effect("fence", fence)

    async def transact(self, transaction: Transaction) -> Written:
        newest = last = None
        for key, event in transaction.alerts:
            newest = await self._append("alerts", key, event)
        for topic, offset, reason in transaction.rejects:
            await self._append("rejects", f"{topic}/{offset}".encode(), reason.encode())
        for key, record in transaction.records.items():
            last = await self._append("state", key, record)
        epoch = self._epoch
        await Effect("end", lambda: self._broker.end(self._producer, epoch))
        return Written(newest, self._broker.now_ms(), last)

    async def topic_ids(self) -> dict[str, str]:
        return self._broker.ids(["state", "alerts"])

    async def check_fenced(self) -> None:
        await self.transact(Transaction((), (), {}))

    async def _append(self, partition: str, key: bytes, value: bytes | None) -> int:
        epoch = self._epoch
        return await Effect(
            "append", lambda: self._broker.append(self._producer, epoch, partition, key, value)
        )

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        def read() -> dict[bytes, bytes]:
            live: dict[bytes, bytes] = {}
            for entry in self._broker.read("state", committed=committed):
                if entry.key is not None:
                    live.pop(entry.key, None)
                    if entry.value is not None:
                        live[entry.key] = entry.value
            return live

        return await Effect("read", read)

    async def read_alerts(
        self, start: int | None, take: Callable[[Any], None], *, committed: bool = False
    ) -> tuple[int, int]:
        def read() -> tuple[list[Entry], tuple[int, int]]:
            shown = list(self._broker.read("alerts", start or 0, committed=committed))
            return shown, self._broker.span("alerts", committed=False)

        entries, span = await Effect("read", read)
        for entry in entries:
            take(entry)
        return span

    async def close(self) -> None:
        self._epoch = -1


async def lived(session: ShardSession) -> None:
    await session.open()
    await session.run()


def finish(work: Any, *, crash: int | None = None, after: bool = False) -> Any:
    """Run a coroutine, carrying its effects out; stop at an effect where that is wanted."""
    outcome, count = None, 0
    try:
        while True:
            effect = work.send(outcome)
            count += 1
            if count == crash:
                if after:
                    effect.act()
                work.close()
                return None
            outcome = effect.act()
    except StopIteration as ended:
        return ended.value


CONTEXT = RecordContext("cluster", "app", "state", 0)
TOPICS = TopicsConfig(state="state", alerts="alerts", rejects="rejects", partitions=1)


def holding(records: Mapping[bytes, bytes]) -> Broker:
    broker = Broker(now_ms=lambda: 0)
    for key, record in records.items():
        broker.write("state", key, record)
    return broker


def journal_of(
    broker: Broker, kind: Callable[..., Any] = Journal, context: RecordContext = CONTEXT, **options: Any
) -> Any:
    """Return a journal of a shard, the only one unless told, not opened."""
    wanted = {"log": ModelLog(broker), "epoch": lambda: 0.0} | options
    wanted.setdefault("entropy", random.Random(1).randbytes)
    log = wanted.pop("log")
    return kind(log, JournalSettings(context=context, topics=TOPICS, **wanted))
