"""A shard's log and feed on Kafka, the ports of the protocol, and what its records are bound to.

Each shard reads with a client of its own, outside any group: a rebalance takes no position from it, and what comes,
goes or fails for one shard disturbs no other. Offsets are the feed's, never the client's: what a fetch took out of the
client and did not deliver is read again.

Brokers bring news to many shards at once. So each takes its turn before it takes records out of its client, and again
after every `RECORDS_PER_TURN` of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    IllegalOperation,
    InvalidTxnState,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from stream_svt import aiokafka_fixes
from stream_svt.errors import ConfigError, Problem, RecordsLost
from stream_svt.monitor import released
from stream_svt.protocol.controls import Verify, trust_the_topic
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Record, Stopped, Transaction
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.state_records import META, JournalSettings, keep_going
from stream_svt.service import kafka
from stream_svt.service.config import Config
from stream_svt.service.event_loop import pause, wait_first
from stream_svt.service.kafka import BrokerUnavailable, Cluster
from stream_svt.service.signatures import Verifier
from stream_svt.service.topology import another_count, unseen
from stream_svt.settings.sections import TopicsConfig

LOG_WAIT_MS = 10
"""Milliseconds that a fetch of the log waits: what is read there ends at an offset that is known."""
FETCH_WAIT_MS, IDLE_WAIT_MS = 500, 2_500
"""Milliseconds a fetch waits at the brokers, and once a fetch found nothing; a resumed partition waits behind it."""
MISSING_TIMEOUT = 1.0
"""Seconds that the brokers may not know a partition: those of a client that was just assigned are still asked for."""
RECORDS_PER_TURN = 2_000
"""Records taken out of the client in one turn: some ten milliseconds of decoding."""
MAX_RECORDS = 20_000
"""Most records of a fetch that names no number."""


class Reject(msgspec.Struct):
    """The position of a refused record, and why it was refused; the event does not carry its content."""

    topic: str
    partition: int
    offset: int
    reason: str


@dataclass(eq=False)
class ShardLog:
    """The state, alert and reject partitions of one shard (see `stream_svt.protocol.ports.Log`).

    ``on_broker_time`` is told of the brokers' time, in seconds since 1970, with a transaction that they stamp.
    """

    cluster: Cluster
    application: str
    shard: int
    topics: TopicsConfig
    on_broker_time: Callable[[float], None] | None = None
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
        partition = TopicPartition(self.topics.alerts, self.shard)
        async with self._reader(partition.topic, committed) as (reader, doing):
            async for records in kafka.read_partition(reader, partition.topic, self.shard, start, doing):
                for record in records:
                    take(record)
            return (await kafka.edges(reader, [partition], doing))[partition]

    @asynccontextmanager
    async def _reader(self, topic: str, committed: bool) -> AsyncIterator[tuple[AIOKafkaConsumer, str]]:
        """Yield a reader, and the words for what it does."""
        isolation = "read_committed" if committed else "read_uncommitted"
        doing = f"shard {self.shard}: reading topic {topic!r}"
        made = self.cluster.reader(isolation, fetch_wait_ms=LOG_WAIT_MS)
        async with kafka.started(made, doing) as reader:
            yield reader, doing

    async def prove(self) -> None:
        """Commit a transaction that joins a partition and writes nothing; see the port."""
        async with self._transaction():
            self._join(
                self.topics.rejects
            )  # a mark on the alert partition would be one that no state explains

    async def transact(self, transaction: Transaction) -> int | None:
        """See the port."""
        shard, topics = self.shard, self.topics
        headers = [("content-type", released.CONTENT_TYPE.encode())]
        async with self._transaction() as producer:
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
        if self.on_broker_time is not None and results[-1].timestamp_type == 1:
            self.on_broker_time(results[-1].timestamp / 1000)
        return max((result.offset for result in results[: len(transaction.alerts)]), default=None)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        """Yield the producer, in a transaction that is committed at the end of the body."""
        async with kafka.deadline(self.cluster.commit_deadline, f"shard {self.shard}: transaction", "WRITE"):
            try:
                await self._producer.begin_transaction()
                yield self._producer
                await self._producer.commit_transaction()
            except (IllegalOperation, InvalidTxnState) as error:
                # A partition could not be added: the transaction failed while records were still being sent, or on
                # their way.
                if (cause := aiokafka_fixes.transaction_error(self._producer)) is not None:
                    raise cause from error
                raise

    def _join(self, topic: str) -> None:
        aiokafka_fixes.join_transaction(self._producer, TopicPartition(topic, self.shard))


class Requests:
    """What one shard is told: to ``stop`` its session, or to stand by while its partition may go elsewhere or stay.

    ``held`` is set from the revocation of a rebalance to its assignment, and ``free`` else; ``quiet`` while the shard
    steps nothing: it is not open, or its session stands by.
    """

    def __init__(self) -> None:
        self.stop, self.held, self.free, self.quiet = (asyncio.Event() for _ in range(4))
        self.free.set()
        self.quiet.set()

    def ask(self) -> None:
        """Ask the shard to hold."""
        self.free.clear()
        self.held.set()

    def release(self) -> None:
        """Go on: the partition stays."""
        self.held.clear()
        self.free.set()

    async def wait(self, *events: Any, seconds: float | None = None) -> None:  # noqa: ANN401
        """Wait for the first of several events, or to be told to stop, at most so long."""
        await wait_first(*events, self.stop.wait(), seconds=seconds)


@dataclass(eq=False)
class ShardFeed:
    """The partitions of one shard (see `stream_svt.protocol.ports.Feed`); every topic has as many ``partitions``."""

    cluster: Cluster
    shard: int
    partitions: int
    requests: Requests
    _client: Any = field(default=None, init=False)
    _next: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    _reading: set[TopicPartition] = field(default_factory=set, init=False)
    _missing: dict[TopicPartition, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Or the fetches of all shards would end together, again and again.
        self._spread = 1 - self.shard * 0.618 % 1 / 2

    @property
    def stopping(self) -> bool:
        """Whether the shard was told to stop."""
        return self.requests.stop.is_set()

    @property
    def held(self) -> bool:
        """Whether a rebalance is under way."""
        return self.requests.held.is_set()

    async def settled(self) -> None:
        """Stand by until the group has decided; see the port."""
        self.requests.quiet.set()
        try:
            await self.requests.wait(self.requests.free.wait())
        finally:
            self.requests.quiet.clear()
        if self.stopping:
            raise Stopped

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return first and end offset by topic, asked on a connection where no fetch is waiting."""
        doing = f"shard {self.shard}: reading the offsets of its topics"
        found = await kafka.spans(self.cluster, [self._partition(topic) for topic in topics], doing)
        return {partition.topic: span for partition, span in found.items()}

    async def fetch(
        self, topics: Iterable[str], patience: float, max_records: int | None = None
    ) -> Mapping[str, Sequence[Any]]:
        """Await records, the stop signal or a rebalance; see the port."""
        if self.held:  # whoever only waits for a command
            await self.requests.wait(self.requests.free.wait(), seconds=patience)
            if self.stopping:
                raise Stopped
            return {}
        await asyncio.sleep(0)  # buffered records come without a pause, and heartbeats need the loop
        partitions = [self._partition(topic) for topic in topics]
        changed, self._reading = self._reading.symmetric_difference(partitions), set(partitions)
        self._position_client(changed)
        read = asyncio.ensure_future(self._read(partitions, patience, max_records or MAX_RECORDS))
        delivered = False
        try:
            await self.requests.wait(read, self.requests.held.wait())
            if not read.done():
                if self.stopping:
                    raise Stopped
                return {}
            # No await from here on: what is noted is what is returned.
            found, position = read.result()
            self._next |= position
            delivered = True
        except OffsetOutOfRangeError as error:
            gone = ", ".join(sorted(partition.topic for partition in error.args[0]))
            raise RecordsLost(f"shard {self.shard}: offsets are out of range on {gone}") from error
        finally:
            if not delivered:
                read.cancel()
                await asyncio.gather(read, return_exceptions=True)
                self._position_client(partitions)
        return {partition.topic: records for partition, records in found.items()}

    async def position(self, topic: str) -> int:
        """Return the offset that the next fetch reads from."""
        return self._next[self._partition(topic)]

    def seek(self, topic: str, offset: int) -> None:
        """Read on from this offset."""
        partition = self._partition(topic)
        self._next[partition] = offset
        self._position_client([partition])

    def high_water(self, topic: str) -> int | None:
        """Return the end of the topic as of the last fetch, None where it is not read."""
        partition = self._partition(topic)
        if partition not in self._reading or not self._is_assigned(partition):
            return None
        high: int | None = self._client.highwater(partition)
        return high

    async def close(self) -> None:
        """Read nothing any more."""
        client, self._client = self._client, None
        if client is not None:
            await kafka.stop_quietly(client)

    async def _read(
        self, partitions: Sequence[TopicPartition], seconds: float, most: int
    ) -> tuple[dict[TopicPartition, list[Any]], dict[TopicPartition, int]]:
        """Return what there is to read, and where to read on."""
        client = await self._assigned()
        found = await _take(client, partitions, seconds * self._spread, most)
        aiokafka_fixes.wait_at_brokers(client, FETCH_WAIT_MS if found else int(IDLE_WAIT_MS * self._spread))
        if not found:
            self._check_topics(partitions)
        return found, {partition: await client.position(partition) for partition in partitions}

    async def _assigned(self) -> Any:  # noqa: ANN401  aiokafka has no types
        """Return the client, started and assigned to what was sought."""
        doing = f"shard {self.shard}: starting the consumer of its topics"
        if self._client is None:
            await pause()  # making a client takes milliseconds, and 64 shards may do so at once
            client = self.cluster.reader(reset="none", fetch_wait_ms=FETCH_WAIT_MS)
            try:
                async with kafka.deadline(kafka.START_DEADLINE, doing):
                    await client.start()
            except BaseException:
                await kafka.stop_quietly(client)
                raise
            self._client = client
        if aiokafka_fixes.has_failed(self._client):
            raise BrokerUnavailable(f"shard {self.shard}: the client's fetch loop ended")
        if self._client.assignment() != self._next.keys():
            # No await in between: a partition without an offset would be asked for one.
            self._client.assign(list(self._next))
            self._position_client(self._next)
            self._missing.clear()
        return self._client

    def _position_client(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the client read these partitions from where the shard is, and pause those that it does not read."""
        for partition in filter(self._is_assigned, partitions):
            self._client.seek(partition, self._next[partition])
            (self._client.resume if partition in self._reading else self._client.pause)(partition)

    def _is_assigned(self, partition: TopicPartition) -> bool:
        return self._client is not None and partition in self._client.assignment()

    def _check_topics(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise where topics are not as they were: the client waits for ever for one that is gone."""
        now = time.monotonic()
        for tp in partitions:
            known = self._client.partitions_for_topic(tp.topic) or ()
            if tp.partition in known:
                self._missing.pop(tp, None)
                if len(known) > self.partitions:
                    message = another_count(tp.topic, len(known), self.partitions)
                    problem = Problem(0, "topics.partitions", message)
                    raise ConfigError([problem], "the topics as they are now")
            elif now - self._missing.setdefault(tp, now) > MISSING_TIMEOUT:
                if aiokafka_fixes.is_denied(self._client, tp.topic):
                    raise TopicAuthorizationFailedError(tp.topic)
                raise BrokerUnavailable(unseen(tp.topic, "READ"))

    def _partition(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self.shard)


async def _take(
    client: Any,  # noqa: ANN401  aiokafka has no types
    partitions: Sequence[TopicPartition],
    seconds: float,
    most: int,
) -> dict[TopicPartition, list[Any]]:
    """Take what there is of these partitions out of the client, a bite in each turn; wait for the first one so long."""
    taken: dict[TopicPartition, list[Any]] = {}
    end = time.monotonic() + seconds
    while True:
        await aiokafka_fixes.news(client, *partitions, seconds=end - time.monotonic())
        await pause()
        bite = await client.getmany(*partitions, max_records=min(RECORDS_PER_TURN, most))
        for partition, records in bite.items():
            taken.setdefault(partition, []).extend(records)
            most -= len(records)
        if taken:
            if most <= 0 or not aiokafka_fixes.at_hand(client, *partitions):
                return taken
        elif time.monotonic() >= end:
            return taken


def place_of(config: Config, cluster_id: str, topic: str, partition: int) -> RecordContext:
    """Return what the records of a partition are bound to by their seals and signatures."""
    return RecordContext(cluster_id, config.spec.application, topic, partition)


def sealing_of(config: Config, cluster_id: str, shard: int) -> Sealing:
    """Return what seals and opens the records of a shard."""
    return Sealing(place_of(config, cluster_id, config.topics.state, shard), config.master_keys, os.urandom)


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
            partition = TopicPartition(own.state, shard)
            found = await kafka.newest(
                reader, partition, lambda one: one.value if one.key == META else None, doing
            )
            if found is not None:
                yield shard, found


def journal_of(
    config: Config,
    cluster: Cluster,
    cluster_id: str,
    shard: int,
    *,
    on_broker_time: Callable[[float], None] | None = None,
    give_way: Callable[[], Awaitable[None]] = keep_going,
) -> Journal:
    """Return a shard's journal, not opened: to hold the shard with, or only to `look` at its state."""
    own = config.topics
    settings = JournalSettings(
        place=place_of(config, cluster_id, own.state, shard),
        topics=own,
        masters=config.master_keys,
        adopt_plain=config.sealing.adopt_plain,
        entropy=os.urandom,
        epoch=time.time,
        give_way=give_way,
    )
    return Journal(ShardLog(cluster, config.spec.application, shard, own, on_broker_time), settings)
