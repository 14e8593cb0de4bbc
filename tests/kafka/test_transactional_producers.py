"""Queries of exactly-once producers on a real broker: each transaction ends with a marker, which takes an offset.

A worker passes markers and aborted records: its lag returns to zero on an idle topic, nothing parks where retention
deletes them, and periods end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from signal import SIGKILL

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from stream_svt.application.config import parse_config
from stream_svt.monitor.released import EventType
from stream_svt.protocol import session
from stream_svt.settings.datasets import DAY_MS
from stream_svt.worker.worker import Worker
from tests.support.process import Service
from tests.support.topics import CLOCK
from tests.support.worker import HIGH, LOW, Scene, complaint, until

pytestmark = pytest.mark.kafka


class Shop(Scene):
    """An application whose queries a transactional producer writes."""

    @contextlib.asynccontextmanager
    async def transaction(self, *values: int, dataset: str = "a") -> AsyncIterator[AIOKafkaProducer]:
        """Begin a transaction of a producer of its own, and write queries."""
        shop = AIOKafkaProducer(bootstrap_servers=self.servers, transactional_id=f"{self.application}-shop")
        home = self.partitioning.of(dataset.encode())
        async with shop:
            await shop.begin_transaction()
            for value in values:
                query = json.dumps({"id": f"q{time.monotonic_ns()}", "value": value}).encode()
                await shop.send_and_wait(self.queries, query, key=dataset.encode(), partition=home)
            yield shop

    async def commit(self, *values: int, dataset: str = "a") -> None:
        async with self.transaction(*values, dataset=dataset) as producer:
            await producer.commit_transaction()

    async def abort(self, *values: int, dataset: str = "a") -> None:
        async with self.transaction(*values, dataset=dataset) as producer:
            await producer.abort_transaction()

    @property
    def shard(self) -> int:
        return self.partitioning.of(b"a")

    async def end(self, shard: int | None = None) -> int:
        shard = self.shard if shard is None else shard
        return (await self.ends("counts"))[TopicPartition(self.queries, shard)]

    async def reaches_the_end(self, worker: Worker, shard: int | None = None) -> None:
        """The committed position is the end of the partition, and the lag is zero."""
        end = await self.end(shard)
        status = worker.statuses()[self.shard if shard is None else shard]

        def there() -> bool:
            return status.offsets.get(self.queries) == end and status.lag.get(self.queries) == 0

        await until(there)
        assert complaint(worker) == ""

    async def served_to_the_end(self, service: Service) -> None:
        """The same of a worker that is a process of its own."""
        end = await self.end()

        def there() -> bool:
            shard = service.shards().get(self.shard)
            return (
                shard is not None
                and shard["offsets"] == {self.queries: end}
                and not any(shard["lag"].values())
            )

        await service.until(there)

    async def alerted(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(await self.alerts()) < count:
                await asyncio.sleep(0.1)

    async def emptied(self) -> int:
        """Delete all records; return the end of the partition, which is its beginning now."""
        end = await self.end()
        await self.delete_before("counts", end, self.shard)
        return end


@pytest.fixture
async def shop(broker, topics, tmp_path) -> AsyncIterator[Shop]:
    shop = Shop(broker.bootstrap_servers, topics.name("shop"), directory=tmp_path, limit=20)
    async with shop.on_stage():
        yield shop


async def test_an_idle_topic_has_no_lag_and_emptied_it_parks_nobody(shop: Shop) -> None:
    """After commits, aborts of one and of many records, and an open transaction; across a restart and a kill."""
    worker = await shop.start()
    await shop.commit(LOW, HIGH)
    await shop.alerted(1)
    await shop.reaches_the_end(worker)
    await shop.abort(*[HIGH] * 50)
    await shop.abort(HIGH)
    await shop.reaches_the_end(worker)

    async with shop.transaction(HIGH) as producer:
        await shop.send("a", HIGH)  # behind the open transaction
        status = worker.statuses()[shop.shard]
        await until(lambda: status.lag[shop.queries] == 2)
        assert len(await shop.alerts()) == 1
        await producer.commit_transaction()
    await shop.alerted(3)
    await shop.reaches_the_end(worker)

    await shop.stop(worker)
    await shop.emptied()
    worker = await shop.start()
    await shop.reaches_the_end(worker)
    await shop.commit(HIGH)
    await shop.alerted(4)
    await shop.stop(worker)

    service = shop.serve()
    await service.ready()
    await shop.commit(HIGH)
    await shop.alerted(5)
    await shop.abort(HIGH)
    await shop.served_to_the_end(service)
    await service.end(SIGKILL)
    await shop.emptied()
    next_owner = shop.serve()
    await next_owner.ready()
    await shop.served_to_the_end(next_owner)
    await shop.commit(HIGH)
    await shop.alerted(6)
    kinds = [event.type for event in await shop.events()]
    assert EventType.LOSS_ACCEPTED not in kinds


async def test_where_retention_deletes_all_that_a_topic_holds_nobody_parks(
    retaining_broker, topics, tmp_path
) -> None:
    """By the retention of the topic, under a worker that runs and before the next one."""
    shop = Shop(retaining_broker.bootstrap_servers, topics.name("retained"), directory=tmp_path)
    async with shop.on_stage():
        worker = await shop.start()
        await shop.commit(LOW, HIGH)
        await shop.abort(LOW)
        await shop.reaches_the_end(worker)
        await shop.configure("counts", CLOCK | {"retention.ms": "1"})
        async with asyncio.timeout(60):
            while not await _is_empty(shop):
                await asyncio.sleep(0.2)
        await shop.configure("counts", CLOCK)
        await shop.reaches_the_end(worker)
        await shop.stop(worker)
        worker = await shop.start()
        await shop.commit(HIGH)
        await shop.alerted(2)
        await shop.reaches_the_end(worker)


async def _is_empty(shop: Shop) -> bool:
    place = TopicPartition(shop.queries, shop.shard)
    async with AIOKafkaConsumer(bootstrap_servers=shop.servers) as consumer:
        first = (await consumer.beginning_offsets([place]))[place]
        return first == (await consumer.end_offsets([place]))[place]


async def test_a_period_ends_though_its_topic_ends_with_markers(shop: Shop, monkeypatch) -> None:
    """And though the next ones come between two sessions of its shard."""
    today = datetime.now(UTC).date().isoformat()
    generated = f"generate: 'shop-{{date}}'\n    from: {today}\n    lateness: 1h"
    config = parse_config(shop.text().replace("names: [a, b, c]", generated), directory=shop.directory)
    worker = await shop.start(config)
    await shop.commit(HIGH, dataset=f"shop-{today}")
    await shop.alerted(1)
    monkeypatch.setattr(session, "IDLE_MARGIN", -3 * DAY_MS / 1000)
    for _ in range(2):
        await shop.stop(worker)
        await shop.abort(LOW, dataset=f"shop-{today}")
        worker = await shop.start(config)
        await shop.reaches_the_end(worker, config.home(f"shop-{today}"))
    kinds = await shop.released(EventType.RETIRED)
    assert kinds.count(EventType.RETIRED) == 1
