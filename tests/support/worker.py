"""A worker in this process on a broker of the tests: topics, queries in, events out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream_svt.monitor.released import Alert, Envelope, Lifecycle, decode
from stream_svt.protocol.shard_states import OPEN, State
from stream_svt.service.config import Config, parse_config
from stream_svt.service.worker import Worker
from tests.support.topics import create_topics

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: {partitions}}}
commit: {{interval: 100ms}}
datasets:
  - names: [{datasets}]
    limit: {{epsilon: {limit}}}
    unit: one basket
monitors:
  - name: hot
    topic: {application}.counts
    epsilon: 1
    cutoff: 3
    sensitivity: 1
    monotonic: true
    bounds: [0, 100000]
    threshold: {threshold}
    expected_queries: 10000
    mute: none
"""
HIGH, LOW = 50_000, 0
CLOCK = {"message.timestamp.type": "LogAppendTime"}
COMPACTED = {"cleanup.policy": "compact"}


class Scene:
    """The topics of one application, what is sent to them and what comes out."""

    def __init__(
        self,
        servers: str,
        application: str,
        *,
        partitions: int = 2,
        datasets: str = "a, b, c",
        limit: int = 4,
    ):
        self.servers = servers
        self.application = application
        self.partitions = partitions
        self.datasets = datasets
        self.limit = limit
        self.queries = f"{application}.counts"
        self.producer: AIOKafkaProducer
        self.workers: list[Worker] = []

    @contextlib.asynccontextmanager
    async def on_stage(self) -> AsyncIterator[Scene]:
        own = {
            f"{self.application}.{name}": self.partitions
            for name in ("counts", "alerts", "rejects", "control")
        }
        await create_topics(self.servers, own, CLOCK)
        state = {f"{self.application}.state": self.partitions}
        await create_topics(self.servers, state, CLOCK | COMPACTED)
        self.producer = AIOKafkaProducer(bootstrap_servers=self.servers, acks="all")
        await self.producer.start()
        try:
            yield self
        finally:
            for worker in list(self.workers):
                await worker.stop()
            await self.producer.stop()

    def text(self, *, threshold: int = 5000, limit: int | None = None, datasets: str | None = None) -> str:
        return SPEC.format(
            application=self.application,
            servers=self.servers,
            partitions=self.partitions,
            datasets=datasets or self.datasets,
            limit=limit or self.limit,
            threshold=threshold,
        )

    def config(self, **changes) -> Config:
        return parse_config(self.text(**changes), directory=Path())

    async def start(self, config: Config | None = None, *, ready: bool = True) -> Worker:
        worker = Worker(config or self.config())
        self.workers.append(worker)
        await worker.start()
        if ready:
            await until(lambda: is_open(worker))
        return worker

    async def stop(self, worker: Worker) -> None:
        self.workers.remove(worker)
        await worker.stop()

    async def send(
        self, dataset: str, *values: object, topic: str = "", partition: int | None = None
    ) -> None:
        """Send queries of one dataset, each with an id of its own."""
        for value in values:
            query = json.dumps(
                {"id": f"q{time.monotonic_ns()}", "value": value, "series": f"s{time.monotonic_ns()}"}
            )
            await self.producer.send(
                topic or self.queries, query.encode(), key=dataset.encode(), partition=partition
            )
        await self.producer.flush()

    async def command(
        self, action: str, dataset: str = "", partition: int | None = None, **fields: str
    ) -> None:
        text = json.dumps({"id": f"c{time.monotonic_ns()}", "action": action, "dataset": dataset, **fields})
        await self.producer.send_and_wait(
            f"{self.application}.control", text.encode(), key=dataset.encode() or None, partition=partition
        )

    async def make_anew(self, name: str) -> None:
        """Delete one of the application's topics and create one of the same name, as it was."""
        await self.delete(name)
        await self.create(name)

    async def delete(self, name: str) -> None:
        """Delete one of the application's topics."""
        topic = f"{self.application}.{name}"
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            await admin.delete_topics([topic])
            async with asyncio.timeout(20):
                while topic in await admin.list_topics():
                    await asyncio.sleep(0.05)
        finally:
            await admin.close()

    async def create(self, name: str) -> None:
        """Create one of the application's topics."""
        compacted = COMPACTED if name == "state" else {}
        await create_topics(self.servers, {f"{self.application}.{name}": self.partitions}, CLOCK | compacted)
        await self.producer.client.force_metadata_update()

    async def delete_before(self, name: str, offset: int) -> None:
        """Do what retention does, on partition 0."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            place = TopicPartition(f"{self.application}.{name}", 0)
            await admin.delete_records({place: RecordsToDelete(offset)})
        finally:
            await admin.close()

    async def configure(self, name: str, settings: dict[str, str]) -> None:
        """Give one of the application's topics these settings, and its defaults for all others."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            topic = f"{self.application}.{name}"
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
        finally:
            await admin.close()

    async def read(self, topic: str, isolation: str = "read_committed") -> list:
        """Return all records of one of the application's topics."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers, isolation_level=isolation, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            places = [
                TopicPartition(f"{self.application}.{topic}", number) for number in range(self.partitions)
            ]
            consumer.assign(places)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(places)
            found = []
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += records
            return found
        finally:
            await consumer.stop()

    async def events(self, isolation: str = "read_committed") -> list[tuple[Envelope, Alert | Lifecycle]]:
        return [decode(record.value) for record in await self.read("alerts", isolation)]

    async def alerts(self, isolation: str = "read_committed") -> list[Alert]:
        return [data for _, data in await self.events(isolation) if isinstance(data, Alert)]

    async def settled(self, worker: Worker, records: int) -> None:
        """Wait until a worker's committed positions add up to so many records and nothing waits to be published."""

        def done() -> bool:
            offsets = [offset for status in worker.statuses() for offset in status.offsets.values()]
            return sum(offsets) >= records

        await until(done)
        await asyncio.sleep(0.3)


def is_open(worker: Worker) -> bool:
    """Tell whether a worker has joined its group and every shard it owns is open."""
    return worker.ready and all(status.state in OPEN for status in worker.statuses())


def complaint(worker: Worker) -> str:
    """Return what a worker says that cannot work, or cannot work on a shard; nothing of one that can."""
    if worker.failed is not None and worker.failed.done():
        return str(worker.failed.exception())
    if worker.fault is not None:
        return worker.fault.reason
    return "; ".join(status.reason for status in worker.statuses() if status.state is State.PARKED)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; a test fails that never sees it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        await asyncio.sleep(0.02)
