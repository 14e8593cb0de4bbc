"""One partition of the event log, owned by a counter: fenced, replayed, written in transactions, and shortened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from stream_svt.errors import ConfigError, Problem
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.aiokafka_fixes import wait_for_brokers
from stream_svt.kafka.clients import Cluster
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.kafka.transactions import Appended, NewRecords
from stream_svt.settings.sources import LOG_PARTITIONS, SourceSpec, log_topic
from stream_svt.sources.counts import CountsRecord, closed_record
from stream_svt.sources.log import Entry, decode, encode
from stream_svt.sources.questions import ClosedCounts
from stream_svt.sources.ticks import TickClock

FETCH_WAIT_MS: Final = 10
"""Milliseconds that a fetch of the log waits at the brokers: its end is known, so no record is awaited."""
HOMES: Final = Partitioning(LOG_PARTITIONS, "murmur2")
"""The partition of each source, by its name."""


class LogBroken(Exception):
    """A transaction failed, and its outcome is not known: fence the partition and replay it."""


class EventLog:
    """A partition of an application's event log, and the topics of counts that its sources write.

    ``written`` counts transactions; ``broken`` is done after the first one with an unknown outcome, with its error.
    """

    def __init__(self, cluster: Cluster, application: str, partition: int, counts: Partitioning) -> None:
        self.partition, self.written = partition, 0
        self.broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._cluster, self._application, self._counts = cluster, application, counts
        self._place = TopicPartition(log_topic(application), partition)
        self._turn = asyncio.Lock()
        self._producer: Any = None

    async def fence(self) -> None:
        """Start the producer; an earlier owner of the partition cannot write from now on."""
        name = f"{self._application}-sources-{self.partition}"
        doing = f"starting producer {name!r}"
        self._producer = self._cluster.producer(name)
        async with kafka.deadline(kafka.START_DEADLINE, doing, "WRITE"):
            await self._producer.start()

    async def close(self) -> None:
        """Wait for the transaction in progress, and discard the producer."""
        async with self._turn:
            producer, self._producer = self._producer, None
        if producer is not None:
            await kafka.stop_quietly(producer)

    async def replay(self, source: str, take: Callable[[int, Entry], None]) -> None:
        """Pass the durable entries of a source to ``take``, with their offsets."""
        doing, key = f"reading the event log of source {source!r}", source.encode()
        # A transaction of an earlier loop may be in progress, or committed and without its marks: readers would not see
        # it yet. The next transaction begins once they are written.
        await self.brokers_time()
        reader = self._cluster.reader(fetch_wait_ms=FETCH_WAIT_MS)
        async with kafka.started(reader, doing):
            async for record in kafka.read_partition(reader, self._place, None, doing):
                if record.key == key and record.value is not None:
                    take(record.offset, decode(record.value))
                    await asyncio.sleep(0)

    async def recall(self, source: SourceSpec, closed: ClosedCounts) -> None:
        """Add the durable counts of a source's closed windows."""
        topic, clock = source.counts_topic(self._application), TickClock.of(source)
        doing = f"reading topic {topic!r}"
        await self.brokers_time()  # as in `replay`: the counts of the last tick may be without their marks
        places = [TopicPartition(topic, number) for number in range(self._counts.partitions)]
        async with kafka.started(self._cluster.reader(fetch_wait_ms=FETCH_WAIT_MS), doing) as reader:
            async with kafka.deadline(kafka.CALL_DEADLINE, doing, "READ"):
                # The timestamp is the end of a tick, after the window's begin.
                starts = await reader.offsets_for_times(dict.fromkeys(places, max(closed.since, 0)))
            for place in (one for one in places if starts.get(one) is not None):
                async for record in kafka.read_partition(reader, place, starts[place].offset, doing):
                    # Of windows that are asked at each tick most records are of no close: they are not decoded.
                    is_close = clock.window_at(begin := record.timestamp - clock.closes_after_ms) == begin
                    if is_close and (
                        found := closed_record(source, record.key, record.value, dict(record.headers))
                    ):
                        closed.add(*found)
                    await asyncio.sleep(0)

    async def write(
        self, source: SourceSpec, entries: Sequence[Entry], counts: Iterable[CountsRecord]
    ) -> list[int]:
        """Write entries of a source, with their counts, in one transaction; return the offsets of the entries.

        Raises:
            BrokerError: Its topic of counts does not exist; nothing was written.
            LogBroken: The transaction failed.
        """
        topic, key = source.counts_topic(self._application), source.name.encode()
        appends, now_ms = [NewRecords(self._place, [(key, encode(entry)) for entry in entries])], _now_ms()
        for record in counts:
            dataset, now_ms = record.dataset.encode(), record.timestamp_ms
            place = TopicPartition(topic, self._counts.of(dataset))
            appends.append(NewRecords(place, [(dataset, record.content)], record.headers))
            await asyncio.sleep(0)
        if len(appends) > 1:
            doing = f"looking for topic {topic!r}"
            async with kafka.deadline(kafka.CALL_DEADLINE, doing, "WRITE"):
                await self._producer.require([topic])
        written = await self._transact(appends, now_ms)
        # Nobody else writes to the partition, and the entries of a transaction follow each other.
        return list(range(written.offset + 1 - len(entries), written.offset + 1))

    async def brokers_time(self) -> int:
        """Return the brokers' time, in ms since 1970, of a record in a transaction that is aborted."""
        probe = [NewRecords(self._place, [(b"", b"")])]
        sent = await self._transact(probe, _now_ms(), commit=False)
        if sent.time_ms is None:
            message = "needs message.timestamp.type=LogAppendTime: its records tell the brokers' time"
            raise ConfigError([Problem(0, "", message)], f"topic {self._place.topic!r}")
        return sent.time_ms

    async def delete_before(self, offset: int) -> None:
        """Delete the entries below an offset."""
        doing = f"deleting old entries of topic {self._place.topic!r}"
        async with (
            kafka.started(self._cluster.admin(), doing, "DELETE") as admin,
            kafka.deadline(kafka.CALL_DEADLINE, doing, "DELETE"),
        ):
            await wait_for_brokers(admin, controller=True)
            await admin.delete_records({self._place: RecordsToDelete(offset)})

    async def _transact(self, appends: Sequence[NewRecords], now_ms: int, *, commit: bool = True) -> Appended:
        """Write a transaction to its end, whatever becomes of the caller; return the newest record of the log."""
        writing = asyncio.create_task(self._write_now(appends, now_ms, commit=commit))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
        return await asyncio.shield(writing)

    async def _write_now(self, appends: Sequence[NewRecords], now_ms: int, *, commit: bool) -> Appended:
        doing = f"event log, partition {self.partition}: transaction"
        async with self._turn:
            if self.broken.done() or self._producer is None:
                raise LogBroken
            try:
                async with kafka.deadline(self._cluster.commit_deadline, doing, "WRITE"):
                    written: dict[TopicPartition, Appended] = await self._producer.transact(
                        appends, now_ms, commit=commit
                    )
            except Exception as error:
                self.broken.set_result(error)
                raise LogBroken from error
            self.written += 1
            return written[self._place]


def _now_ms() -> int:
    return int(time.time() * 1000)
