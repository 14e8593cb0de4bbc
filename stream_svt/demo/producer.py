"""The demo's query producer. It belongs to the trusted zone: it reads the baskets and writes true counts.

What it says, and when it sends, depends on the public clock alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer

from stream_svt.demo.clock import Clock
from stream_svt.demo.data import Baskets
from stream_svt.demo.queries import Writer, running_counts
from stream_svt.service.codec import home

BATCH_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Progress:
    """One closed set: how far the public clock has come."""

    dataset: str
    set_id: str
    queries: int
    line: int


async def produce(
    baskets: Baskets, clock: Clock, *, kafka: Mapping[str, Any], topic: str, partitions: int
) -> AsyncGenerator[Progress, None]:
    """Send each checkpoint, its queries and then the marker that closes their set; yield once all are stored.

    The next set is begun when the next item is asked for. ``kafka`` is what every client takes as keywords.

    Raises:
        aiokafka.errors.KafkaError: A record was refused or the broker is out of reach.
    """
    producer = AIOKafkaProducer(**kafka, acks="all", enable_idempotence=True, max_batch_size=BATCH_BYTES)
    await producer.start()
    try:
        writer, sent = Writer(), 0
        for point, counts in running_counts(baskets, clock):
            records = await asyncio.to_thread(writer.records, point, counts)
            key = point.dataset.encode("utf-8")
            # The set is announced only when it can be read: what was announced is judged in the summary.
            await asyncio.gather(*await _send(producer, topic, home(key, partitions), key, records))
            sent += len(records) - 1
            yield Progress(point.dataset, point.set_id, sent, point.end)
    finally:
        await producer.stop()


async def _send(
    producer: AIOKafkaProducer, topic: str, partition: int, key: bytes, records: list[bytes]
) -> list[asyncio.Future[object]]:
    """Hand records over in batches of our own: a call of ``send`` for each would take most of the time."""
    batch, stored = producer.create_batch(), []
    for record in records:
        if batch.append(timestamp=None, key=key, value=record) is None:
            batch.close()
            stored.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(timestamp=None, key=key, value=record)
    batch.close()
    stored.append(await producer.send_batch(batch, topic, partition=partition))
    return stored
