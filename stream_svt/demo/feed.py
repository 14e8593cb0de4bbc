"""The demo's queries on their way to Kafka; alone too, for a service that runs elsewhere.

The producer belongs to the trusted zone: it reads the baskets and writes true counts. What it says, and when it
sends, depends on the public clock alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from stream_svt.demo.config import APPEND
from stream_svt.demo.queries import Baskets, Checkpoint, WeekClock, load, records_of, running_counts
from stream_svt.errors import ConfigError, Problem
from stream_svt.service.codec import home
from stream_svt.service.config import Config
from stream_svt.service.kafka import explain
from stream_svt.service.topology import require
from stream_svt.service.worker import cluster_of


async def produce(
    baskets: Baskets, clock: WeekClock, *, kafka: Mapping[str, Any], topic: str, partitions: int
) -> AsyncGenerator[tuple[Checkpoint, int], None]:
    """Send each checkpoint: its queries, then the marker that closes their set.

    Yields the checkpoint, and the number of queries so far, once all are stored; the next one is begun when the next
    item is asked for. ``kafka`` is what every client takes as keywords.
    """
    producer = AIOKafkaProducer(**kafka, acks="all", enable_idempotence=True, max_batch_size=512 * 1024)
    await producer.start()
    try:
        sent = 0
        for point, counts in running_counts(baskets, clock):
            records = await asyncio.to_thread(records_of, point, counts)
            key = point.dataset.encode("utf-8")
            await _send(producer, topic, home(key, partitions), key, records)
            sent += len(records) - 1
            yield point, sent
    finally:
        await producer.stop()


async def _send(
    producer: AIOKafkaProducer, topic: str, partition: int, key: bytes, records: list[bytes]
) -> None:
    """Store records, in batches of our own: a call of ``send`` for each would take most of the time."""
    batch, stored = producer.create_batch(), []
    for record in records:
        if batch.append(timestamp=None, key=key, value=record) is None:
            batch.close()
            stored.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(timestamp=None, key=key, value=record)
    batch.close()
    stored.append(await producer.send_batch(batch, topic, partition=partition))
    await asyncio.gather(*stored)


async def feed(
    config: Config,
    *,
    seconds: float = 2.0,
    duration: float | None = None,
    say: Callable[[str], None] = print,
    clock: WeekClock | None = None,
) -> int:
    """Send the demo's queries to the brokers of a service's configuration until they end or a signal comes; return 0.

    A set is sent every so many ``seconds``, and none begun after ``duration``; ``say`` is told a line for each.
    """
    clock = clock or WeekClock()
    topics = {monitor.name: monitor.topic for monitor in config.spec.monitors}
    declared = {dataset.name for dataset in config.spec.datasets}
    if APPEND not in topics or not declared.issuperset(clock.weeks()):
        message = (
            "these are not the demo's: its queries fit the monitors and datasets that 'stream-svt demo "
            "--show-config' prints"
        )
        raise ConfigError([Problem(0, "monitors", message)], config.source)
    await require(config, cluster_of(config))
    stopped, began = asyncio.Event(), time.monotonic()
    on_signals(stopped.set)
    topic, partitions = topics[APPEND], config.topics.partitions
    sets = produce(load(), clock, kafka=config.kafka_arguments(), topic=topic, partitions=partitions)
    try:
        async with contextlib.aclosing(sets):
            async for point, sent in sets:
                closed = f"set {point.set_id} of {point.dataset} is closed"
                say(f"line {point.end:,} of {clock.lines:,}: {closed}, {sent:,} queries so far")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), seconds)
                if stopped.is_set() or (duration is not None and time.monotonic() - began >= duration):
                    break
    except KafkaError as error:
        raise explain(error, f"sending to topic {topic!r}", "WRITE") from error
    return 0


def on_signals(end: Callable[[], object]) -> None:
    """Have SIGINT and SIGTERM call a function, where this is the main thread; no other gets signals."""
    with contextlib.suppress(ValueError, RuntimeError):
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)
