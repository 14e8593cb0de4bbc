"""A shard's part of the log on Kafka: one transactional producer, readers for what it and others wrote."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from aiokafka import TopicPartition
from aiokafka.errors import IllegalOperation, InvalidTxnState

from stream_svt import aiokafka_fixes
from stream_svt.monitor import released
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Record, Transaction
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.state_records import JournalSettings, Topics, keep_going
from stream_svt.service.config import Config
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    Cluster,
    deadline,
    read_partition,
    started,
    stop_quietly,
)

_T = TypeVar("_T")
FETCH_WAIT = 10
"""Milliseconds that a fetch waits: what is read here ends at an offset that is known."""


class Reject(msgspec.Struct):
    """A refused record by its place; its content stays where it is."""

    topic: str
    partition: int
    offset: int
    reason: str


class ShardLog:
    """The state, alert and reject partitions of one shard (see `stream_svt.protocol.ports.Log`).

    Args:
        cluster: How to reach the brokers.
        application, shard: Name the producers that fence one another.
        topics: Topics written.
        tell_time: Told of the brokers' time, in seconds since 1970, with a transaction that they stamp.
    """

    def __init__(
        self,
        cluster: Cluster,
        application: str,
        shard: int,
        topics: Topics,
        tell_time: Callable[[float], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._tell_time = tell_time
        self._shard = shard
        self._topics = topics
        self._transactional_id = f"{application}-{shard}"
        self._producer: Any = None

    async def fence(self) -> None:
        """Start a producer; see the port."""
        await self.close()
        doing = f"shard {self._shard}: starting producer {self._transactional_id!r}"
        self._producer = self._cluster.producer(self._transactional_id)
        async with deadline(START_DEADLINE, doing, "WRITE"):
            await self._producer.start()

    async def close(self) -> None:
        """Discard the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_quietly(producer)

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the live records."""
        raw: dict[bytes, bytes] = {}
        doing = f"shard {self._shard}: reading state topic {self._topics.state!r}"
        isolation = "read_committed" if committed else "read_uncommitted"
        async with started(self._cluster.reader(isolation, fetch_wait_ms=FETCH_WAIT), doing) as reader:
            async for records in read_partition(reader, self._topics.state, self._shard, None, doing):
                for record in records:
                    if record.key is None:
                        continue
                    if record.value is None:
                        raw.pop(record.key, None)
                    else:
                        raw[record.key] = record.value
        return raw

    async def read_alerts(
        self, start: int | None, take: Callable[[Record], None], *, committed: bool = False
    ) -> tuple[int, int]:
        """Show the alert partition; see the port."""
        isolation = "read_committed" if committed else "read_uncommitted"
        topic = self._topics.alerts
        doing = f"shard {self._shard}: reading alert topic {topic!r}"
        async with started(self._cluster.reader(isolation, fetch_wait_ms=FETCH_WAIT), doing) as reader:
            async for records in read_partition(reader, topic, self._shard, start, doing):
                for record in records:
                    take(record)
            place = TopicPartition(topic, self._shard)
            async with deadline(CALL_DEADLINE, doing):
                first = (await reader.beginning_offsets([place]))[place]
                end = (await reader.end_offsets([place]))[place]
        return int(first), int(end)

    async def transact(self, transaction: Transaction) -> int | None:
        """See the port."""
        return await self._bounded(self._transact(transaction))

    async def prove(self) -> None:
        """Commit a transaction that joins the reject partition and writes nothing; see the port.

        A mark on the alert partition would be one that no state explains.
        """
        await self._bounded(self._prove())

    async def _prove(self) -> None:
        await self._producer.begin_transaction()
        self._join(self._topics.rejects)
        await self._producer.commit_transaction()

    def _join(self, topic: str) -> None:
        aiokafka_fixes.join_transaction(self._producer, TopicPartition(topic, self._shard))

    async def _bounded(self, transaction: Coroutine[Any, Any, _T]) -> _T:
        doing = f"shard {self._shard}: transaction"
        async with deadline(self._cluster.commit_deadline, doing, "WRITE"):
            try:
                return await transaction
            except (IllegalOperation, InvalidTxnState) as error:
                # A partition could not be added: the transaction failed while records were still being sent, or on
                # their way.
                if (cause := aiokafka_fixes.transaction_error(self._producer)) is not None:
                    raise cause from error
                raise

    async def _transact(self, transaction: Transaction) -> int | None:
        producer, shard, topics = self._producer, self._shard, self._topics
        headers = [("content-type", released.CONTENT_TYPE.encode())]
        await producer.begin_transaction()
        if transaction.claim:
            self._join(topics.alerts)
            self._join(topics.rejects)
        alerts = [
            await producer.send(topics.alerts, event, key=key, partition=shard, headers=headers)
            for key, event in transaction.alerts
        ]
        others = [
            await producer.send(
                topics.rejects,
                msgspec.json.encode(Reject(topic, shard, offset, reason)),
                key=f"{topic}/{offset}".encode(),
                partition=shard,
            )
            for topic, offset, reason in transaction.rejects
        ]
        others += [
            await producer.send(topics.state, record, key=key, partition=shard)
            for key, record in transaction.records.items()
        ]
        # A refused record does not fail the commit by itself: every future is looked at first.
        results: list[Any] = await asyncio.gather(*alerts, *others, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await producer.commit_transaction()
        if self._tell_time is not None and results[-1].timestamp_type == 1:
            self._tell_time(results[-1].timestamp / 1000)
        return max((result.offset for result in results[: len(alerts)]), default=None)


def masters(config: Config) -> tuple[bytes, ...]:
    """Return the master keys, the one that seals first."""
    return () if config.master_key is None else (config.master_key, *config.previous_keys)


def place_of(config: Config, cluster_id: str, shard: int) -> RecordContext:
    """Return what the records of a shard's state are bound to."""
    return RecordContext(cluster_id, config.spec.application, config.topics.state, shard)


def sealing_of(config: Config, cluster_id: str, shard: int) -> Sealing:
    """Return what seals and opens the records of a shard."""
    return Sealing(place_of(config, cluster_id, shard), masters(config), os.urandom)


def written_topics(config: Config) -> Topics:
    """Return the topics that a journal writes."""
    return Topics(config.topics.state, config.topics.alerts, config.topics.rejects)


def journal_of(
    config: Config,
    cluster: Cluster,
    cluster_id: str,
    shard: int,
    *,
    tell_time: Callable[[float], None] | None = None,
    give_way: Callable[[], Awaitable[None]] = keep_going,
) -> Journal:
    """Return a shard's journal, not opened: to hold the shard with, or only to `look` at its state."""
    written, place = written_topics(config), place_of(config, cluster_id, shard)
    settings = JournalSettings(
        place=place,
        topics=written,
        partitions=config.topics.partitions,
        masters=masters(config),
        adopt_plain=config.sealing.adopt_plain,
        entropy=os.urandom,
        epoch=time.time,
        give_way=give_way,
    )
    return Journal(ShardLog(cluster, place.application, shard, written, tell_time), settings)
