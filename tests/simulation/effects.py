"""What a process wants done on the modelled log, as effects that a scheduler carries out; the log's port in them."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from typing import Any

from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Transaction
from stream_svt.protocol.sealing import RecordContext
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.state_records import JournalSettings, Topics
from tests.simulation.log import Broker, Entry


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

    async def transact(self, transaction: Transaction) -> int | None:
        newest = None
        for key, event in transaction.alerts:
            newest = await self._append("alerts", key, event)
        for topic, offset, reason in transaction.rejects:
            await self._append("rejects", f"{topic}/{offset}".encode(), reason.encode())
        for key, record in transaction.records.items():
            await self._append("state", key, record)
        epoch = self._epoch
        await Effect("end", lambda: self._broker.end(self._producer, epoch))
        return newest

    async def prove(self) -> None:
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


PLACE = RecordContext("cluster", "app", "state", 0)


def holding(records: Mapping[bytes, bytes]) -> Broker:
    broker = Broker(now_ms=lambda: 0)
    for key, record in records.items():
        broker.write("state", key, record)
    return broker


def journal_of(
    broker: Broker, kind: Callable[..., Any] = Journal, place: RecordContext = PLACE, **options: Any
) -> Any:
    """Return a journal of a shard, the only one unless told, not opened."""
    wanted = {"log": ModelLog(broker), "partitions": 1, "epoch": lambda: 0.0} | options
    wanted.setdefault("entropy", random.Random(1).randbytes)
    log = wanted.pop("log")
    return kind(log, JournalSettings(place=place, topics=Topics("state", "alerts", "rejects"), **wanted))
