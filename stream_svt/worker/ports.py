"""Implements the protocol's ports on Kafka: a shard's log (`ShardLog`) and feed (`ShardFeed`).

Each shard reads with a separate consumer, outside any group: a rebalance does not change its positions, and an error
of one shard does not affect the others. The feed keeps the offsets itself: it reads records again that a fetch took
from the consumer but did not deliver. Records for many shards arrive at once. So a shard waits for its turn before
it takes batches from its consumer, at most `BATCHES_PER_TURN`, and reads at most ``max_records`` of their records.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from stream_svt.application.config import Config
from stream_svt.application.signatures import Verifier
from stream_svt.application.topology import another_count, unseen
from stream_svt.errors import ConfigError, Problem, RecordsLost, RecordsUnreadable, UnreadableState
from stream_svt.kafka import aiokafka_fixes
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.batches import Unread, why_unreadable
from stream_svt.kafka.clients import BrokerUnavailable, Cluster, OtherCluster
from stream_svt.kafka.transactions import Appended, NewRecords
from stream_svt.monitor import released
from stream_svt.protocol.controls import Verify, accept_all
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Stopped, Transaction, Written
from stream_svt.protocol.records import Record, Records
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.state_records import META, JournalSettings, Meta, no_yield
from stream_svt.settings.sections import TopicsConfig
from stream_svt.worker.event_loop import pause, wait_first

LOG_WAIT_MS = 10
"""Milliseconds that a fetch of the log waits at the brokers: the end offset is known, so no record is awaited."""
FETCH_WAIT_MS, IDLE_WAIT_MS = 500, 15_000
"""Milliseconds that a fetch waits at the brokers, and after an empty one that read every partition: a partition that is
resumed waits for the fetch to end."""
UNREAD_WAIT = 2.0
"""Seconds that records of one topic may be unread before the shard's other topics are fetched without it."""
MISSING_TIMEOUT = 1.0
"""Seconds for which a partition may be missing from the metadata: a new assignment has to fetch them first."""
BATCHES_PER_TURN = 2_000
"""Batches, or records, taken from the consumer in one turn: some ten milliseconds of work."""
FEW_BATCHES = 100
"""Batches, or records, that are taken and read in one turn."""
MAX_RECORDS = 20_000
"""Default of ``max_records`` of a fetch."""
ALERT_HEADERS = (("content-type", released.CONTENT_TYPE.encode()),)


class Reject(msgspec.Struct):
    """The position of a refused record and the reason; the content stays in the query topic only."""

    topic: str
    partition: int
    offset: int
    reason: str


@dataclass(eq=False)
class ShardLog:
    """The state, alert and reject partitions of one shard (see `stream_svt.protocol.ports.Log`).

    ``fence`` raises `OtherCluster` on another cluster than ``cluster_id``, which seals and signatures name.
    ``on_broker_time`` gets the brokers' time, in seconds since 1970, of each transaction with log append time.
    """

    cluster: Cluster
    application: str
    shard: int
    topics: TopicsConfig
    cluster_id: str
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
            found = await self._producer.cluster_id()
        if found != self.cluster_id:
            raise OtherCluster(doing, found, self.cluster_id)

    async def close(self) -> None:
        """Discard the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await kafka.stop_quietly(producer)

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the live records."""
        raw: dict[bytes, bytes] = {}
        async with self._reader(self.topics.state, committed) as (reader, doing):
            partition = TopicPartition(self.topics.state, self.shard)
            async for record in kafka.read_partition(reader, partition, None, doing):
                if record.value is not None and record.key is not None:
                    raw[record.key] = record.value
                elif record.key is not None:
                    raw.pop(record.key, None)
        return raw

    async def read_alerts(
        self, start: int | None, take: Callable[[Record], None], *, committed: bool = False
    ) -> tuple[int, int]:
        """Pass the records of the alert partition to ``take``; see the port."""
        partition = TopicPartition(self.topics.alerts, self.shard)
        async with self._reader(partition.topic, committed) as (reader, doing):
            async for record in kafka.read_partition(reader, partition, start, doing):
                take(record)
            return (await kafka.edges(reader, [partition], doing))[partition]

    @asynccontextmanager
    async def _reader(self, topic: str, committed: bool) -> AsyncIterator[tuple[AIOKafkaConsumer, str]]:
        """Yield a reader, and the description of its work for error messages."""
        isolation = "read_committed" if committed else "read_uncommitted"
        doing = f"shard {self.shard}: reading topic {topic!r}"
        consumer = self.cluster.reader(isolation, fetch_wait_ms=LOG_WAIT_MS)
        async with kafka.started(consumer, doing) as reader:
            yield reader, doing

    async def topic_ids(self) -> dict[str, str]:
        """Return the ids of the state topic and the alert topic; see the port."""
        doing = f"shard {self.shard}: reading the ids of its topics"
        return await kafka.read_topic_ids(self.cluster, [self.topics.state, self.topics.alerts], doing)

    async def check_fenced(self) -> None:
        """Commit a transaction that joins a partition and writes nothing; see the port."""
        # A commit marker on the alert partition would have an offset that no state includes.
        await self._transact([], 0, [TopicPartition(self.topics.rejects, self.shard)])

    async def transact(self, transaction: Transaction) -> Written:
        """See the port."""
        topics, now_ms = self.topics, int(time.time() * 1000)
        alerts, state = (TopicPartition(topic, self.shard) for topic in (topics.alerts, topics.state))
        rejects = TopicPartition(topics.rejects, self.shard)
        appends = [NewRecords(state, transaction.records.items())]
        if transaction.alerts:
            appends.append(NewRecords(alerts, transaction.alerts, ALERT_HEADERS))
        if transaction.rejects:
            appends.append(NewRecords(rejects, map(self._encoded, transaction.rejects)))
        written = await self._transact(appends, now_ms, [alerts, rejects] if transaction.claim else [])
        newest = written[alerts].offset if transaction.alerts else None
        if (time_ms := written[state].time_ms) is not None and self.on_broker_time is not None:
            self.on_broker_time(time_ms / 1000)
        return Written(newest, now_ms if time_ms is None else time_ms, written[state].offset)

    async def _transact(
        self, appends: Sequence[NewRecords], now_ms: int, joined: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, Appended]:
        async with kafka.deadline(self.cluster.commit_deadline, f"shard {self.shard}: transaction", "WRITE"):
            written: Mapping[TopicPartition, Appended] = await self._producer.transact(
                appends, now_ms, joined
            )
        return written

    def _encoded(self, reject: tuple[str, int, str]) -> tuple[bytes, bytes]:
        """Return key and value of a reject."""
        topic, offset, reason = reject
        return f"{topic}/{offset}".encode(), msgspec.json.encode(Reject(topic, self.shard, offset, reason))


class Requests:
    """Requests to one shard: ``stop`` its session, or hold it while a rebalance decides about its partition.

    ``held`` is set from the revocation of a rebalance to its assignment, and ``released`` otherwise. The shard sets
    ``paused`` while it steps no query: it is not open, or its session is paused.
    """

    def __init__(self) -> None:
        self.stop, self.held, self.released, self.paused = (asyncio.Event() for _ in range(4))
        self._interruption: asyncio.Future[None] | None = None
        self.released.set()
        self.paused.set()

    def end(self) -> None:
        """Ask the session to stop."""
        self.stop.set()
        self._interrupt()

    def hold(self) -> None:
        """Begin the hold."""
        self.released.clear()
        self.held.set()
        self._interrupt()

    def release(self) -> None:
        """End the hold: the partition stays."""
        self.held.clear()
        self.released.set()

    def interruption(self) -> asyncio.Future[None]:
        """Return a future that is done at the next stop request or hold; many fetches share one."""
        if self._interruption is None or self._interruption.done():
            self._interruption = asyncio.get_running_loop().create_future()
            if self.stop.is_set() or self.held.is_set():
                self._interrupt()
        return self._interruption

    def _interrupt(self) -> None:
        if self._interruption is not None and not self._interruption.done():
            self._interruption.set_result(None)

    async def wait(self, *events: Any, seconds: float | None = None) -> None:  # noqa: ANN401
        """Wait for the first of several events or a stop request, at most ``seconds``."""
        await wait_first(*events, self.stop.wait(), seconds=seconds)


@dataclass(eq=False)
class ShardFeed:
    """The partitions of one shard (see `stream_svt.protocol.ports.Feed`); every topic has as many ``partitions``.

    ``columns`` names the topics whose batches are read as columns, and whether their records are text without zero
    bytes. The client reads the records of other topics. No message shows an offset of a topic of ``counts``.
    """

    cluster: Cluster
    shard: int
    partitions: int
    requests: Requests
    columns: Mapping[str, bool] = field(default_factory=dict)
    counts: frozenset[str] = frozenset()
    _client: Any = field(default=None, init=False)
    _next: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    _reading: set[TopicPartition] = field(default_factory=set, init=False)
    _missing: dict[TopicPartition, float] = field(default_factory=dict, init=False)
    _unread: dict[TopicPartition, Unread] = field(default_factory=dict, init=False)
    """Records that the client has returned and the feed has not, by partition; the longest wait comes first."""
    _singly: set[TopicPartition] = field(default_factory=set, init=False)
    """Partitions whose batches are taken one by one, up to a batch that cannot be read."""

    def __post_init__(self) -> None:
        # Different waits for each shard: otherwise the fetches of all shards would end together each time.
        self._spread = 1 - self.shard * 0.618 % 1 / 2
        # What cuts silent connections would also cut a fetch that waits as long.
        self._idle_wait_ms = int(min(IDLE_WAIT_MS, self.cluster.config.connections_max_idle) * self._spread)

    @property
    def stopping(self) -> bool:
        """Whether the shard was asked to stop."""
        return self.requests.stop.is_set()

    @property
    def held(self) -> bool:
        """Whether a rebalance is in progress."""
        return self.requests.held.is_set()

    async def wait_for_rebalance(self) -> None:
        """Pause until the rebalance ends; see the port."""
        self.requests.paused.set()
        try:
            await self.requests.wait(self.requests.released.wait())
        finally:
            self.requests.paused.clear()
        if self.stopping:
            raise Stopped

    async def spans_and_ids(self, topics: Sequence[str]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """Look topics up with a separate client, so that no fetch delays the answer; see the port."""
        doing = f"shard {self.shard}: reading the offsets of its topics"
        spans, ids = await kafka.spans_and_ids(self.cluster, [*map(self._partition, topics)], doing)
        return {partition.topic: span for partition, span in spans.items()}, ids

    async def scan(self, topic: str, start: int, take: Callable[[Record], None]) -> None:
        """Read with a separate client; see the port."""
        doing = f"shard {self.shard}: reading topic {topic!r}"
        async with kafka.started(self.cluster.reader(fetch_wait_ms=LOG_WAIT_MS), doing) as reader:
            taken = 0
            async for record in kafka.read_partition(reader, self._partition(topic), start, doing):
                take(record)
                taken += 1
                if taken % 256 == 0:  # a writer may have written many
                    await pause()

    async def fetch(
        self, topics: Iterable[str], max_wait: float, max_records: int | None = None
    ) -> Mapping[str, Records]:
        """Wait for records, a stop request or a rebalance; see the port."""
        if self.held:  # a shard that waits only for a command
            await self.requests.wait(self.requests.released.wait(), seconds=max_wait)
            if self.stopping:
                raise Stopped
            return {}
        await asyncio.sleep(0)  # buffered records arrive without a wait, and heartbeats need the loop
        partitions = [self._partition(topic) for topic in topics]
        changed, self._reading = self._reading.symmetric_difference(partitions), set(partitions)
        self._position_client(changed)
        delivered = False
        try:
            records, positions = await self._read(partitions, max_wait, max_records or MAX_RECORDS)
            # No await from here on, so that positions and returned records agree.
            self._next |= positions
            delivered = True
        except OffsetOutOfRangeError as error:
            gone = ", ".join(sorted(partition.topic for partition in error.args[0]))
            raise RecordsLost(f"shard {self.shard}: offsets are out of range on {gone}") from error
        finally:
            if not delivered:
                self._position_client(partitions)
        if not records and self.stopping:
            raise Stopped
        return {partition.topic: batch for partition, batch in records.items()}

    def position(self, topic: str) -> int | None:
        """Return the offset that the next fetch reads from; see the port."""
        return self._next.get(self._partition(topic))

    def seek(self, topic: str, offset: int) -> None:
        """Continue reading at this offset."""
        partition = self._partition(topic)
        self._next[partition] = offset
        self._position_client([partition])

    def high_water(self, topic: str) -> int | None:
        """Return the end offset of the topic as of the last fetch; None if it is not read."""
        partition = self._partition(topic)
        known = partition in self._reading and self._is_assigned(partition)
        return self._client.highwater(partition) if known else None

    async def close(self) -> None:
        """Close the consumer."""
        client, self._client = self._client, None
        if client is not None:
            await kafka.stop_quietly(client)

    async def _read(
        self, partitions: Sequence[TopicPartition], seconds: float, max_records: int
    ) -> tuple[dict[TopicPartition, Records], dict[TopicPartition, int]]:
        """Read records taken from the consumer before, or now; wait ``seconds`` for the first ones.

        A stop request or a hold ends the wait. Also returns the next position of each partition.
        """
        interruption = self.requests.interruption()
        if (client := await self._assigned()) is None:
            return {}, {}
        taken: dict[TopicPartition, list[Records]] = {}
        failures: dict[TopicPartition, RecordsUnreadable] = {}
        if self._missing:
            seconds = min(seconds, MISSING_TIMEOUT)
        end, left = time.monotonic() + seconds * self._spread, max_records
        while True:
            if failures or self._unread.keys().isdisjoint(partitions):
                others = self._idle(partitions, failures)
                seconds = end - time.monotonic()
                await aiokafka_fixes.wait_for_records(client, others, seconds, until=interruption)
            goes_on = await self._take(client, partitions, failures)
            left = await self._read_unread(partitions, left, taken, failures, goes_on=goes_on)
            more = bool(left and aiokafka_fixes.buffered(client, self._idle(partitions, failures)))
            if interruption.done() or (not more and (taken or time.monotonic() >= end)):
                break
        if failures and not taken and not interruption.done():
            raise next(iter(failures.values()))
        idle = not taken and len(self._reading) == len(self._next)
        aiokafka_fixes.set_fetch_wait(client, self._idle_wait_ms if idle else FETCH_WAIT_MS)
        if not taken:
            self._check_topics(partitions)
        positions = {partition: await client.position(partition) for partition in partitions}
        positions |= {partition: unread.position for partition, unread in self._unread.items()}
        return {partition: Records.concatenated(parts) for partition, parts in taken.items()}, positions

    def _idle(
        self, partitions: Sequence[TopicPartition], failures: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions of which all taken records were read, without failed partitions."""
        return [one for one in partitions if one not in self._unread and one not in failures]

    async def _take(
        self,
        client: Any,  # noqa: ANN401
        partitions: Sequence[TopicPartition],
        failures: dict[TopicPartition, RecordsUnreadable],
    ) -> bool:
        """Take batches from the consumer, of partitions of which all records were read.

        Returns whether the shard's turn continues, because it took few. Adds why a partition's batches cannot be
        taken.
        """
        idle = self._idle(partitions, failures)
        if not aiokafka_fixes.buffered(client, idle):
            return False
        await pause()
        left = BATCHES_PER_TURN
        for partition in aiokafka_fixes.buffered(client, idle):
            position, text = await client.position(partition), self.columns.get(partition.topic)
            most = 1 if partition in self._singly else left
            try:
                batches = await aiokafka_fixes.take(client, partition, whole=text is not None, most=most)
            except CorruptRecordException as error:
                # The batches before it are dropped with it: they are fetched again and taken one by one up to it.
                self._singly ^= {partition}
                if partition not in self._singly:
                    failures[partition] = self._unreadable(partition, position, error)
                continue
            if not batches:
                self._singly.discard(partition)  # all fetched records were taken
            else:
                self._unread[partition] = Unread(position, text=bool(text))
                self._unread[partition].add(batches)
                left -= len(batches)
            if not left:
                break
        return BATCHES_PER_TURN - left <= FEW_BATCHES

    async def _read_unread(
        self,
        partitions: Sequence[TopicPartition],
        most: int,
        taken: dict[TopicPartition, list[Records]],
        failures: dict[TopicPartition, RecordsUnreadable],
        *,
        goes_on: bool,
    ) -> int:
        """Read each partition further in one turn, the first one in this turn if it ``goes_on``.

        Returns how many more records may be read. Adds why a partition's records cannot be read.
        """
        for partition in [one for one in self._unread if one in partitions and one not in failures]:
            if not goes_on:
                await pause()
            goes_on = False
            try:
                records = self._read_on(partition, most)
            except RecordsUnreadable as error:
                failures[partition] = error
                continue
            if len(records):
                taken.setdefault(partition, []).append(records)
                most -= len(records)
            if not most:
                break
        return most

    def _read_on(self, partition: TopicPartition, most: int) -> Records:
        """Read records of a partition; its next turn comes after the turns of the others."""
        unread = self._unread.pop(partition)
        try:
            records = unread.read(most)
        except Exception as error:
            self._unread[partition] = unread  # until no other topic has records
            raise self._unreadable(partition, unread.position, error) from error
        if unread:
            self._unread[partition] = unread
        return records

    def _unreadable(self, partition: TopicPartition, position: int, error: Exception) -> RecordsUnreadable:
        place, why = f" from offset {position} on", f": {why_unreadable(error)}"
        if partition.topic in self.counts:
            place = why = ""
        return RecordsUnreadable(
            f"shard {self.shard}: records of topic {partition.topic!r}{place} cannot be read{why}. If this stays, "
            "delete the records up to there (kafka-delete-records), and accept their loss with "
            "'stream-svt control accept-loss'"
        )

    async def _assigned(self) -> Any:  # noqa: ANN401  aiokafka has no types
        """Return the started consumer with every partition that `seek` has named; None if interrupted."""
        if self._client is None:
            starting = asyncio.ensure_future(self._start())
            try:
                await asyncio.wait(
                    [starting, self.requests.interruption()], return_when=asyncio.FIRST_COMPLETED
                )
                if not starting.done():
                    return None
                self._client = starting.result()
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
        if aiokafka_fixes.has_failed(self._client):
            raise BrokerUnavailable(f"shard {self.shard}: the client's fetch loop ended")
        if self._client.assignment() != self._next.keys():
            # No await in between: the consumer would look up an offset for a partition without one.
            self._client.assign(list(self._next))
            self._position_client(self._next)
            self._missing.clear()
        return self._client

    async def _start(self) -> Any:  # noqa: ANN401
        doing = f"shard {self.shard}: starting the consumer of its topics"
        await pause()  # making a client takes milliseconds, and 64 shards may do so at once
        fetched = kafka.QUERY_FETCH
        client = self.cluster.reader(
            reset="none", fetch_wait_ms=FETCH_WAIT_MS, longest_wait_ms=IDLE_WAIT_MS, fetch_bytes=fetched
        )
        try:
            async with kafka.deadline(kafka.START_DEADLINE, doing):
                await client.start()
        except BaseException:
            await kafka.stop_quietly(client)
            raise
        aiokafka_fixes.fetch_together(client, UNREAD_WAIT)
        return client

    def _position_client(self, partitions: Iterable[TopicPartition]) -> None:
        """Move the consumer to the feed's positions, and pause the partitions that it does not read."""
        for partition in filter(self._is_assigned, partitions):
            self._unread.pop(partition, None)
            self._client.seek(partition, self._next[partition])
            (self._client.resume if partition in self._reading else self._client.pause)(partition)

    def _is_assigned(self, partition: TopicPartition) -> bool:
        return self._client is not None and partition in self._client.assignment()

    def _check_topics(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise if topics were deleted or have more partitions: the consumer reports neither."""
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
                raise BrokerUnavailable(f"partition {tp.partition}: {unseen(tp.topic, 'READ')}")

    def _partition(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self.shard)


def context_of(config: Config, cluster_id: str, topic: str, partition: int) -> RecordContext:
    """Return the context that seals and signatures bind the records of a partition to."""
    return RecordContext(cluster_id, config.spec.application, topic, partition)


def sealing_of(config: Config, cluster_id: str, shard: int) -> Sealing:
    """Return the sealing of a shard's state records."""
    return Sealing(
        context_of(config, cluster_id, config.topics.state, shard), config.sealing.master_keys, os.urandom
    )


def verifier_of(config: Config, cluster_id: str, topic: str, partition: int) -> Verify:
    """Return the check of a partition's records: of signatures if commands must be signed."""
    if not config.control.keys:
        return accept_all
    return Verifier(context_of(config, cluster_id, topic, partition), config.command_keys)


def open_meta(config: Config, cluster_id: str, shard: int, record: bytes) -> Meta:
    """Return a shard's record `meta`, without comparing the other records; raises `UnreadableState`."""
    opened = sealing_of(config, cluster_id, shard).open(META, record)
    try:
        return msgspec.msgpack.decode(opened.content, type=Meta)
    except msgspec.DecodeError:
        raise UnreadableState(f"shard {shard}: record 'meta' is damaged") from None


async def stored_metas(config: Config, cluster: Cluster) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield each shard that has state, and its newest record `meta`, which every transaction writes."""
    own, doing = config.topics, f"reading topic {config.topics.state!r}"
    async with kafka.started(cluster.reader(), doing) as reader:
        for shard in range(own.partitions):
            partition = TopicPartition(own.state, shard)
            meta = await kafka.newest(
                reader, partition, lambda record: record.value if record.key == META else None, doing
            )
            if meta is not None:
                yield shard, meta


def journal_of(
    config: Config,
    cluster: Cluster,
    cluster_id: str,
    shard: int,
    *,
    on_broker_time: Callable[[float], None] | None = None,
    yield_to_loop: Callable[[], Awaitable[None]] = no_yield,
) -> Journal:
    """Return a shard's journal, not opened yet: to own the shard, or only to `inspect` its state."""
    own = config.topics
    settings = JournalSettings(
        context=context_of(config, cluster_id, own.state, shard),
        topics=own,
        masters=config.sealing.master_keys,
        adopt_plain=config.sealing.adopt_plain,
        entropy=os.urandom,
        epoch=time.time,
        yield_to_loop=yield_to_loop,
    )
    log = ShardLog(cluster, config.spec.application, shard, own, cluster_id, on_broker_time)
    return Journal(log, settings)
