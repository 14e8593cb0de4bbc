"""A shard's part of the log on Kafka: one transactional producer, readers for what it and others wrote."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalOperation, InvalidTxnState

from stream_svt import aiokafka_fixes
from stream_svt.monitor import released
from stream_svt.protocol.controls import Verify, trust_the_topic
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Record, Transaction
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.state_records import META, JournalSettings, Topics, keep_going
from stream_svt.service import kafka
from stream_svt.service.config import Config
from stream_svt.service.kafka import Cluster
from stream_svt.service.signatures import Verifier

_T = TypeVar("_T")
FETCH_WAIT = 10
"""Milliseconds that a fetch waits: what is read here ends at an offset that is known."""


class Reject(msgspec.Struct):
    """A refused record by its place; its content stays where it is."""

    topic: str
    partition: int
    offset: int
    reason: str


@dataclass(eq=False)
class ShardLog:
    """The state, alert and reject partitions of one shard (see `stream_svt.protocol.ports.Log`).

    ``tell_time`` is told of the brokers' time, in seconds since 1970, with a transaction that they stamp.
    """

    cluster: Cluster
    application: str
    shard: int
    topics: Topics
    tell_time: Callable[[float], None] | None = None
    _producer: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.transactional_id = f"{self.application}-{self.shard}"

    async def fence(self) -> None:
        """Start a producer; see the port."""
        await self.close()
        doing = f"shard {self.shard}: starting producer {self.transactional_id!r}"
        self._producer = self.cluster.producer(self.transactional_id)
        async with kafka.deadline(kafka.START_DEADLINE, doing, "WRITE"):
            await self._producer.start()

    async def close(self) -> None:
        """Discard the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await kafka.stop_quietly(producer)

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the live records."""
        raw: dict[bytes, bytes] = {}
        async with self._reader(self.topics.state, committed) as (reader, doing):
            async for records in kafka.read_partition(reader, self.topics.state, self.shard, None, doing):
                for record in records:
                    if record.value is not None and record.key is not None:
                        raw[record.key] = record.value
                    elif record.key is not None:
                        raw.pop(record.key, None)
        return raw

    async def read_alerts(
        self, start: int | None, take: Callable[[Record], None], *, committed: bool = False
    ) -> tuple[int, int]:
        """Show the alert partition; see the port."""
        place = TopicPartition(self.topics.alerts, self.shard)
        async with self._reader(place.topic, committed) as (reader, doing):
            async for records in kafka.read_partition(reader, place.topic, self.shard, start, doing):
                for record in records:
                    take(record)
            return (await kafka.edges(reader, [place], doing))[place]

    @asynccontextmanager
    async def _reader(self, topic: str, committed: bool) -> AsyncIterator[tuple[AIOKafkaConsumer, str]]:
        """Yield a reader, and the words for what it does."""
        isolation = "read_committed" if committed else "read_uncommitted"
        doing = f"shard {self.shard}: reading topic {topic!r}"
        async with kafka.started(self.cluster.reader(isolation, fetch_wait_ms=FETCH_WAIT), doing) as reader:
            yield reader, doing

    async def transact(self, transaction: Transaction) -> int | None:
        """See the port."""
        return await self._bounded(self._transact(transaction))

    async def prove(self) -> None:
        """Commit a transaction that joins a partition and writes nothing; see the port."""
        await self._bounded(self._prove())

    async def _bounded(self, transaction: Coroutine[Any, Any, _T]) -> _T:
        async with kafka.deadline(self.cluster.commit_deadline, f"shard {self.shard}: transaction", "WRITE"):
            try:
                return await transaction
            except (IllegalOperation, InvalidTxnState) as error:
                # A partition could not be added: the transaction failed while records were still being sent, or on
                # their way.
                if (cause := aiokafka_fixes.transaction_error(self._producer)) is not None:
                    raise cause from error
                raise

    async def _prove(self) -> None:
        await self._producer.begin_transaction()
        self._join(self.topics.rejects)  # a mark on the alert partition would be one that no state explains
        await self._producer.commit_transaction()

    def _join(self, topic: str) -> None:
        aiokafka_fixes.join_transaction(self._producer, TopicPartition(topic, self.shard))

    async def _transact(self, transaction: Transaction) -> int | None:
        producer, shard, topics = self._producer, self.shard, self.topics
        headers = [("content-type", released.CONTENT_TYPE.encode())]
        await producer.begin_transaction()
        if transaction.claim:
            self._join(topics.alerts)
            self._join(topics.rejects)
        sent = [
            await producer.send(topics.alerts, event, key=key, partition=shard, headers=headers)
            for key, event in transaction.alerts
        ]
        for topic, offset, reason in transaction.rejects:
            reject = msgspec.json.encode(Reject(topic, shard, offset, reason))
            key = f"{topic}/{offset}".encode()
            sent.append(await producer.send(topics.rejects, reject, key=key, partition=shard))
        for key, record in transaction.records.items():
            sent.append(await producer.send(topics.state, record, key=key, partition=shard))
        results = await kafka.all_sent(sent)
        await producer.commit_transaction()
        if self.tell_time is not None and results[-1].timestamp_type == 1:
            self.tell_time(results[-1].timestamp / 1000)
        return max((result.offset for result in results[: len(transaction.alerts)]), default=None)


def masters(config: Config) -> tuple[bytes, ...]:
    """Return the master keys, the one that seals first."""
    return () if config.master_key is None else (config.master_key, *config.previous_keys)


def place_of(config: Config, cluster_id: str, topic: str, partition: int) -> RecordContext:
    """Return what the records of a partition are bound to by their seals and signatures."""
    return RecordContext(cluster_id, config.spec.application, topic, partition)


def sealing_of(config: Config, cluster_id: str, shard: int) -> Sealing:
    """Return what seals and opens the records of a shard."""
    return Sealing(place_of(config, cluster_id, config.topics.state, shard), masters(config), os.urandom)


def verifier_of(config: Config, cluster_id: str, topic: str, partition: int) -> Verify:
    """Return what tells which records to hear: the signed ones, where commands must be signed."""
    if not config.control.required:
        return trust_the_topic
    return Verifier(place_of(config, cluster_id, topic, partition), config.command_keys)


async def stored_metas(config: Config, cluster: Cluster) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield each shard that has stored something, and its newest record `meta`, which every transaction writes."""
    own, doing = config.topics, f"reading topic {config.topics.state!r}"
    async with kafka.started(cluster.reader(), doing) as reader:
        for shard in range(own.partitions):
            place = TopicPartition(own.state, shard)
            found = await kafka.newest(
                reader, place, lambda one: one.value if one.key == META else None, doing
            )
            if found is not None:
                yield shard, found


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
    own = config.topics
    written = Topics(own.state, own.alerts, own.rejects)
    settings = JournalSettings(
        place=place_of(config, cluster_id, own.state, shard),
        topics=written,
        partitions=own.partitions,
        masters=masters(config),
        adopt_plain=config.sealing.adopt_plain,
        entropy=os.urandom,
        epoch=time.time,
        give_way=give_way,
    )
    return Journal(ShardLog(cluster, config.spec.application, shard, written, tell_time), settings)
