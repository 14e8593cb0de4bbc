"""The named peers that figures are ratios against, and the query streams that feed both sides.

Peers that are whole programs in real life (a worker, an agent, a relay) run in a process of their own here
too: neither side of a ratio shares its event loop or its interpreter lock with the measuring one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiokafka.producer.sender
import faust
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from stream_svt.kafka.aiokafka_fixes import wait_for_brokers
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.worker.event_loop import collect_rarely

# What the service sets too: how often an idle sender looks again (s), how long the broker holds a fetch (ms).
SENDER_BACKOFF = 0.002
FETCH_MAX_WAIT_MS = 500
_IN_FLIGHT = 32  # batches
MARK = b"9000000"
"""Part of the queries that raise an alert, and of no other."""
TICK = 0.01
"""Seconds between two batches of a steady stream, for each partition."""
_BEHIND, _VARIANTS = 5.0, 16


@dataclass(frozen=True)
class Reading:
    """What a program reads: messages (or rows) a second, and the processor time for each in nanoseconds."""

    rate: float
    cpu_ns: float

    def times(self, rows: int) -> Reading:
        """Return the reading in rows, of which each message holds so many."""
        return Reading(self.rate * rows, self.cpu_ns / rows)

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s ({self.cpu_ns:,.1f} ns)"


async def create_topics(
    bootstrap_servers: str, topics: Sequence[str], partitions: int, configs: dict[str, str] | None = None
) -> None:
    """Create topics that do not exist yet, all alike."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        await wait_for_brokers(admin, controller=True)
        response = await admin.create_topics(
            [NewTopic(topic, partitions, 1, topic_configs=configs or {}) for topic in topics]
        )
        assert all(error[1] == 0 for error in response.topic_errors), response.topic_errors
    finally:
        await admin.close()


def home(dataset: bytes, partitions: int) -> int:
    """Return the partition that a dataset's queries belong to, as Kafka's default partitioner does."""
    return Partitioning(partitions, "murmur2").of(dataset)


async def write_queries(
    bootstrap_servers: str,
    topic: str,
    *,
    partitions: int,
    datasets: Sequence[str],
    values: Sequence[bytes],
    series: int = 1000,
) -> float:
    """Write one JSON query per value, a number as text, dataset after dataset in turn, each to its home.

    Returns:
        Messages a second.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers, acks=1, linger_ms=0, max_batch_size=256 * 1024
    )
    await producer.start()
    try:
        start = time.perf_counter()
        keys = [dataset.encode() for dataset in datasets]
        homes = [home(key, partitions) for key in keys]
        batches = [producer.create_batch() for _ in range(partitions)]
        pending: list[asyncio.Future[object]] = []
        many = len(keys)
        for index, value in enumerate(values):
            which = index % many
            place = homes[which]
            text = b'{"id":"q%d","value":%b,"series":"s%d"}' % (index, value, index // many % series)
            if batches[place].append(key=keys[which], value=text, timestamp=None) is None:
                pending.append(await producer.send_batch(batches[place], topic, partition=place))
                batches[place] = producer.create_batch()
                batches[place].append(key=keys[which], value=text, timestamp=None)
                if len(pending) >= _IN_FLIGHT:
                    await pending.pop(0)
        for place, batch in enumerate(batches):
            if batch.record_count():
                pending.append(await producer.send_batch(batch, topic, partition=place))
        await asyncio.gather(*pending)
        return len(values) / (time.perf_counter() - start)
    finally:
        await producer.stop()


async def write_records(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[tuple[bytes, bytes]],
    *,
    partitions: int,
    headers: Sequence[tuple[str, bytes]],
) -> None:
    """Write large records, key and value, each to its key's home."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks=1)
    await producer.start()
    try:
        pending: list[asyncio.Future[object]] = []
        for key, value in records:
            place = home(key, partitions)
            pending.append(await producer.send(topic, value, key=key, partition=place, headers=list(headers)))
            if len(pending) >= _IN_FLIGHT:
                await pending.pop(0)
        await asyncio.gather(*pending)
    finally:
        await producer.stop()


def getmany_reading(bootstrap_servers: str, topic: str, *, tuned: bool = False) -> Reading:
    """Return what a bare aiokafka ``getmany`` loop reads of the whole topic.

    Args:
        tuned: Whether its garbage collector is set as the worker's.
    """
    return _reading("_getmany", bootstrap_servers, topic, "tuned" if tuned else "")


def value_column_reading(bootstrap_servers: str, topic: str) -> Reading:
    """Return what a ``getmany`` loop reads of a topic of columnar records, in rows; it adds up the values."""
    return _reading("_value_column", bootstrap_servers, topic)


def quix_reading(bootstrap_servers: str, topic: str, count: int) -> Reading:
    """Return what a Quix Streams dataframe that does nothing reads, over so many of a topic's messages."""
    return _reading("_quix", bootstrap_servers, topic, str(count))


def faust_agent_reading(bootstrap_servers: str, topic: str, count: int) -> Reading:
    """Return what a Faust agent that does nothing reads, over so many of a topic's messages."""
    return _reading("_faust_agent", bootstrap_servers, topic, str(count))


@contextlib.contextmanager
def bare_relay(
    bootstrap_servers: str, queries: str, state: str, alerts: str, partition: int = 0
) -> Iterator[None]:
    """Run the least that can publish exactly once after a charge: two transactions for what a fetch brings.

    The first writes a state record, the second publishes one alert for each query that holds `MARK`, tuned like the
    service. Others are read and left.
    """
    with _running("_relay", bootstrap_servers, queries, state, alerts, str(partition)):
        yield


@contextlib.contextmanager
def steady_stream(bootstrap_servers: str, topic: str, datasets: Sequence[str], rate: float) -> Iterator[None]:
    """Write so many JSON queries a second, of small values, evenly to the partitions of ``datasets`` in turn.

    They are encoded before: the stream itself takes little of the processor. It is running when the context opens.
    """
    with _running("_steady_stream", bootstrap_servers, topic, ",".join(datasets), str(rate)) as child:
        yield
        assert child.poll() is None, "the stream could not be kept up"


@contextlib.contextmanager
def _running(peer: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a peer that prints a line once it is ready."""
    with subprocess.Popen(_command(peer, *arguments), stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", f"{peer} did not start"
            yield child
        finally:
            child.terminate()


async def alert_latencies(
    bootstrap_servers: str,
    queries: str,
    alerts: str,
    *,
    query: Callable[[int], tuple[bytes, bytes]],
    is_alert: Callable[[ConsumerRecord[bytes, bytes]], bool] = lambda _: True,
    partitions: int,
    count: int,
    pause: float = 0.02,
) -> list[float]:
    """Send queries one at a time, each certain to raise one alert, and time each until it can be read.

    Args:
        query: Key and value of the query of this number; it goes to its key's home.
        is_alert: Tells alerts from whatever else the topic carries.
        pause: Seconds between an alert and the next query.

    Returns:
        Seconds from the call that sends the query to the alert in a read_committed consumer's hands.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
        auto_offset_reset="latest",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
    async with contextlib.AsyncExitStack() as stack:
        for client in (consumer, producer):
            await client.start()
            stack.push_async_callback(client.stop)
        places = [TopicPartition(alerts, partition) for partition in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        for place in places:
            await consumer.position(place)
        records = _records(consumer)
        latencies = []
        for number in range(count):
            key, value = query(number)
            start = time.perf_counter()
            await producer.send(queries, value, key=key, partition=home(key, partitions))
            async with asyncio.timeout(30):
                while not is_alert(await anext(records)):
                    pass
            latencies.append(time.perf_counter() - start)
            await asyncio.sleep(pause)
        return latencies


async def _records(consumer: AIOKafkaConsumer) -> AsyncIterator[ConsumerRecord[bytes, bytes]]:
    while True:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            for record in records:
                yield record


def _command(peer: str, *arguments: str) -> list[str]:
    program = f"import sys; from benchmarks import peers; peers.{peer}(*sys.argv[1:])"
    return [sys.executable, "-c", program, *arguments]


def _reading(peer: str, *arguments: str) -> Reading:
    done = subprocess.run(_command(peer, *arguments), stdout=subprocess.PIPE, text=True, check=True)
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


class _Clock:
    """Time and processor time since now."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    def print(self, count: int) -> None:
        """Print what was read since, a `Reading` in JSON."""
        used, took = time.process_time() - self._used, time.perf_counter() - self._began
        print(json.dumps(asdict(Reading(count / took, 1e9 * used / count))))


def _getmany(bootstrap_servers: str, topic: str, tuned: str) -> None:
    if tuned:
        collect_rarely()
    asyncio.run(_read_all(bootstrap_servers, topic, len))


def _value_column(bootstrap_servers: str, topic: str) -> None:
    asyncio.run(_read_all(bootstrap_servers, topic, _read_values))


def _read_values(records: Sequence[ConsumerRecord[bytes, bytes]]) -> int:
    """Add up the column `value` of columnar records; return how many rows they have."""
    rows = total = 0
    for record in records:
        with pa.ipc.open_stream(record.value) as stream:
            for part in stream:
                rows += part.num_rows
                total += int(part.column("value").to_numpy().sum())
    assert total > 0
    return rows


async def _read_all(bootstrap_servers: str, topic: str, read: Callable[[Sequence[Any]], int]) -> None:
    """Read a whole topic and print how fast; ``read`` returns how much the records hold."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        places = consumer.assignment()
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning()
        for place in places:
            await consumer.position(place)
        seen = 0
        clock = _Clock()
        unread = {place for place in places if ends[place]}
        while unread:
            for place, records in (await consumer.getmany(timeout_ms=1000)).items():
                seen += read(records)
                if await consumer.position(place) >= ends[place]:
                    unread.discard(place)
        clock.print(seen)
    finally:
        await consumer.stop()


def _quix(bootstrap_servers: str, topic: str, count: str) -> None:
    with warnings.catch_warnings():  # of its dependencies
        warnings.simplefilter("ignore")
        from quixstreams import Application

    clock: _Clock | None = None
    left = int(count)

    def processed(*_: object) -> None:
        nonlocal clock, left
        clock = clock or _Clock()
        left -= 1
        if not left:
            clock.print(int(count))
            app.stop()

    with tempfile.TemporaryDirectory() as directory:
        app = Application(
            bootstrap_servers,
            consumer_group=f"idle-quix-{uuid.uuid4().hex[:8]}",
            auto_offset_reset="earliest",
            consumer_extra_config={"isolation.level": "read_committed"},
            auto_create_topics=False,
            state_dir=directory,
            on_message_processed=processed,
            loglevel=None,
        )
        app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="bytes"))
        app.run()


class _App(faust.App):  # type: ignore[misc]  # faust is taken as Any
    """An app that leaves no directory behind."""

    def _create_directories(self) -> None:
        pass


def _faust_agent(bootstrap_servers: str, topic: str, count: str) -> None:
    asyncio.run(_idle_agent(bootstrap_servers, topic, int(count)))


async def _idle_agent(bootstrap_servers: str, topic: str, count: int) -> None:
    app = _App(
        f"idle-agent-{uuid.uuid4().hex[:8]}",
        broker=f"kafka://{bootstrap_servers}",
        value_serializer="raw",
        key_serializer="raw",
        consumer_auto_offset_reset="earliest",
        topic_disable_leader=True,
        topic_allow_declare=False,
        autodiscover=False,
        store="memory://",
        web_enabled=False,
    )
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @app.agent(app.topic(topic))  # type: ignore[untyped-decorator]
    async def idle(stream: faust.Stream[bytes]) -> None:
        clock = None
        seen = 0
        async for _ in stream:
            clock = clock or _Clock()
            seen += 1
            if seen == count:
                clock.print(count)
                ended.set_result(None)

    app.finalize()
    await app.start()
    try:
        await ended
    finally:
        await app.stop()


def _steady_stream(bootstrap_servers: str, topic: str, datasets: str, rate: str) -> None:
    asyncio.run(_stream_for_ever(bootstrap_servers, topic, datasets.split(","), float(rate)))


async def _stream_for_ever(bootstrap_servers: str, topic: str, datasets: Sequence[str], rate: float) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers, acks=1, linger_ms=0, max_batch_size=1 << 20
    )
    await producer.start()
    partitions = len(await producer.partitions_for(topic))
    by_partition: list[list[bytes]] = [[] for _ in range(partitions)]
    for dataset in datasets:
        by_partition[home(dataset.encode(), partitions)].append(dataset.encode())
    each = max(round(rate * TICK / partitions), 1)
    variants = [
        [_queries_batch(producer, keys, each, first) for keys in by_partition] for first in range(_VARIANTS)
    ]
    began = time.monotonic()
    for tick in itertools.count():
        pending = [
            await producer.send_batch(batch, topic, partition=partition)
            for partition, batch in enumerate(variants[tick % _VARIANTS])
        ]
        await asyncio.gather(*pending)
        if tick == 1 / TICK:
            print("ready", flush=True)
        early = began + tick * TICK - time.monotonic()
        assert early > -_BEHIND, "the stream is behind"
        await asyncio.sleep(max(early, 0))


def _queries_batch(producer: AIOKafkaProducer, keys: Sequence[bytes], count: int, first: int) -> Any:  # noqa: ANN401
    """Return an encoded batch, which can be sent again and again."""
    batch = producer.create_batch()
    for number in range(count):
        value = b'{"id":"q%d","value":%d,"series":"s%d"}' % (
            first * count + number,
            number % 100,
            number % 1000,
        )
        fits = batch.append(key=keys[number % len(keys)], value=value, timestamp=None)
        assert fits is not None, "the rate needs shorter ticks"
    batch.close()
    return batch


def _relay(bootstrap_servers: str, queries: str, state: str, alerts: str, partition: str) -> None:
    asyncio.run(_relay_for_ever(bootstrap_servers, queries, state, alerts, int(partition)))


async def _relay_for_ever(
    bootstrap_servers: str, queries: str, state: str, alerts: str, partition: int
) -> None:
    collect_rarely()
    aiokafka.producer.sender.BACKOFF_OVERRIDE = SENDER_BACKOFF
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        transactional_id=f"relay-{uuid.uuid4().hex[:8]}",
        acks="all",
        max_batch_size=256 * 1024,
    )
    async with contextlib.AsyncExitStack() as stack:
        for client in (consumer, producer):
            await client.start()
            stack.push_async_callback(client.stop)
        places = [TopicPartition(queries, each) for each in await producer.partitions_for(queries)]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        for place in places:
            await consumer.position(place)

        async def transaction(topic: str, key: bytes, values: Sequence[bytes]) -> None:
            await producer.begin_transaction()
            sent = [await producer.send(topic, value, key=key, partition=partition) for value in values]
            await asyncio.gather(*sent)
            await producer.commit_transaction()

        # The first transactions find the coordinator and the partitions; they are nobody's to wait for.
        await transaction(state, b"meta", [bytes(200)])
        print("ready", flush=True)
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                if tops := sum(MARK in record.value for record in records):
                    await transaction(state, b"meta", [bytes(200)])
                    await transaction(alerts, b"dataset", [bytes(800)] * tops)
