"""Records of topics, read and written from outside the service, and the positions of groups."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from tests.support.partitioning import partition_of
from tests.support.topics import administrator

Written = tuple[int | None, bytes | None, bytes | None]
"""Partition, key and value of a record; without a partition the key decides."""


async def each(
    servers: str, topic: str, partitions: Iterable[int] = (0,), isolation: str = "read_committed"
) -> AsyncIterator[Any]:
    """Yield the records that these partitions hold now."""
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level=isolation, auto_offset_reset="earliest"
    ) as consumer:
        places = [TopicPartition(topic, number) for number in partitions]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < ends[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    yield record


async def read(
    servers: str, topic: str, partitions: Iterable[int] = (0,), isolation: str = "read_committed"
) -> list[Any]:
    return [record async for record in each(servers, topic, partitions, isolation)]


async def send(servers: str, topic: str, *records: Written, **options: Any) -> None:
    """Write records one after the other; options are those of the producer."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", **options)
    try:
        await producer.start()
        for partition, key, value in records:
            await producer.send_and_wait(topic, value, key=key, partition=partition)
    finally:
        await producer.stop()


async def send_queries(
    servers: str, topic: str, *queries: tuple[str, Mapping[str, object]], partitions: int
) -> None:
    """Write queries, each to the home of its dataset."""
    keys = [(dataset.encode(), json.dumps(query).encode()) for dataset, query in queries]
    await send(servers, topic, *((partition_of(key, partitions), key, value) for key, value in keys))


async def publish(
    servers: str, topic: str, *records: Written, commit: bool = True, timestamp_ms: int | None = None
) -> None:
    """Write records in one transaction, as a shard does."""
    name = f"{topic}-{uuid.uuid4().hex}"
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        for partition, key, value in records:
            await producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms)
        await producer.flush()
        await (producer.commit_transaction() if commit else producer.abort_transaction())


async def committed(servers: str, group: str) -> dict[int, int]:
    """Return the positions of a group by partition."""
    async with administrator(servers) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
        return {place.partition: one.offset for place, one in offsets.items()}


class Odd(str):
    """A header's name that is encoded as bytes which are no UTF-8: Kafka takes any."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        del encoding, errors
        return b"\xff\xfe"


async def send_mixed(servers: str, topic: str, records: list[tuple[bytes, bool]], *, key: bytes) -> None:
    """Send records to partition 0, in batches; those marked have an odd header."""
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", max_batch_size=1 << 20) as producer:
        for start in range(0, len(records), 50):
            batch: Any = producer.create_batch()
            # The compiled one takes no text that is none.
            batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, 0, 1 << 20)
            for value, odd in records[start : start + 50]:
                headers = [(Odd("x"), b"1"), ("content-type", b"application/json")] if odd else []
                assert batch.append(timestamp=None, key=key, value=value, headers=headers) is not None
            batch.close()
            await (await producer.send_batch(batch, topic, partition=0))
