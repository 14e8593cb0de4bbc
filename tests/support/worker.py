"""A worker in this process on a broker of the tests: topics, queries in, events out."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream_svt.application.config import Config, parse_config
from stream_svt.application.signatures import SigningKey
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import Alert, AnyEvent, EventType, decode
from stream_svt.operate.audit import audit_state, audit_topic
from stream_svt.operate.control import Reply, for_datasets, send
from stream_svt.protocol.history.audit import Audit
from stream_svt.protocol.sealing import _CHECKED
from stream_svt.protocol.shard_states import OPEN, Cause, ShardState, ShardStatus
from stream_svt.protocol.state_records import META, Meta
from stream_svt.settings.sections import Partitioner
from stream_svt.worker.worker import Worker, WorkerState
from stream_svt.worker.workload import AppliedWorkload
from tests.support import records
from tests.support.process import Process, Service, free_port
from tests.support.topics import (
    CLOCK,
    COMPACTED,
    administrator,
    create_application,
    create_topics,
    delete_before,
)
from tests.support.verifier import Certain, Findings, Terms, verify

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: {session}, heartbeat_interval: 300ms}}
topics: {{partitions: {partitions}, partitioner: {partitioner}}}
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
    sensitivity: {sensitivity}
    monotonic: true
    bounds: [0, {most}]
    threshold: {threshold}
    expected_queries: 10000
    max_runs: {max_runs}
    mute: {mute}
{more}"""
WANTED = re.compile(r"--topic (\S+) --offset (\d+)")
HIGH, LOW = 50_000, 0
PRICES = {("hot", "start"): 400_000_000, ("hot", "top"): 200_000_000}
"""In billionths of epsilon."""


@dataclass(eq=False)
class Scene:
    """The topics of one application, its workers, what is sent to them and what comes out.

    Attributes:
        directory: Where files of the configuration are, and where those of processes go.
        more: More sections of the configuration.
    """

    servers: str
    application: str
    _: KW_ONLY
    partitions: int = 2
    partitioner: Partitioner = "murmur2"
    datasets: str = "a, b, c"
    limit: int = 4
    session: str = "2s"
    directory: Path = Path()
    more: str = ""

    def __post_init__(self) -> None:
        self.queries = f"{self.application}.counts"
        self.producer: AIOKafkaProducer
        self.workers: list[Worker] = []
        self.services: list[Process] = []
        self.ports: dict[Path, int] = {}

    @property
    def partitioning(self) -> Partitioning:
        return Partitioning(self.partitions, self.partitioner)

    @contextlib.asynccontextmanager
    async def on_stage(self, *, create: bool = True) -> AsyncIterator[Self]:
        if create:
            await create_application(self.servers, self.application, self.partitions)
        self.producer = AIOKafkaProducer(bootstrap_servers=self.servers, acks="all")
        await self.producer.start()
        try:
            yield self
        finally:
            for worker in list(self.workers):
                await worker.stop()
            for service in self.services:
                await service.end(SIGKILL)
            await self.producer.stop()

    def text(self, **changes: object) -> str:
        """Return the configuration; ``changes`` replace what `SPEC` is given by default."""
        usual = asdict(self) | {
            "threshold": 5000,
            "most": 100_000,
            "sensitivity": 1,
            "mute": "none",
            "max_runs": "off",
        }
        assert changes.keys() <= usual.keys(), changes
        return SPEC.format(**usual | changes)

    def config(self, **changes: object) -> Config:
        return parse_config(self.text(**changes), directory=self.directory)

    def write(self, **changes: object) -> Path:
        """Write the configuration of one more worker to a file; its pages have a port of their own."""
        file = self.directory / f"{self.application}-{len(self.ports)}.yaml"
        self.ports[file] = free_port()
        file.write_text(self.text(**changes) + f"web: {{port: {self.ports[file]}}}\n")
        return file

    def serve(self, *options: str, file: Path | None = None, **settings: Any) -> Service:
        """Start a worker as a process of its own; ``settings`` are those of `Service`."""
        file = file or self.write()
        service = Service(file, self.ports[file], file.with_suffix(".log"), *options, **settings)
        self.services.append(service)
        return service

    async def start(self, config: Config | None = None, *, ready: bool = True) -> Worker:
        worker = Worker(config or self.config())
        self.workers.append(worker)
        running = worker.start()
        await until(lambda: running.done() or worker.state is not WorkerState.JOINING)
        if running.done():
            await running
        if ready:
            await until(lambda: is_open(worker))
        return worker

    async def begun(self, *values: object, of: str = "a", config: Config | None = None) -> Worker:
        """Start a worker that has answered these queries of each dataset, and published what came of them."""
        worker = await self.start(config)
        for dataset in of:
            await self.send(dataset, *values)
        await self.settled(worker, len(of) * len(values))
        return worker

    async def apply(self, worker: Worker, config: Config, number: int = 0) -> None:
        """Have a worker adopt a version, by default the next one."""
        version = (number or worker.workload.version[0] + 1, config.spec.hash())
        await worker.adopt(AppliedWorkload(config.spec, config.partitioning, version))

    async def stop(self, worker: Worker) -> None:
        self.workers.remove(worker)
        await worker.stop()

    async def send(self, dataset: str, *values: object, topic: str = "", series: str = "") -> None:
        """Send queries of one dataset, each with an id and, unless told, a series of its own."""
        for value in values:
            number = time.monotonic_ns()
            query = json.dumps({"id": f"q{number}", "value": value, "series": series or f"s{number}"})
            key, home = dataset.encode(), self.partitioning.of(dataset.encode())
            await self.producer.send(topic or self.queries, query.encode(), key=key, partition=home)
        await self.producer.flush()

    async def command(
        self, action: str, dataset: str = "", partition: int | None = None, **fields: object
    ) -> None:
        """Give the next command to a shard that keeps its state without a key."""
        shard = self.partitioning.of(dataset.encode()) if partition is None else partition
        text = await self.next_command(shard, action, dataset=dataset, **fields)
        control, key = f"{self.application}.control", dataset.encode() or None
        await self.producer.send_and_wait(control, text, key=key, partition=shard)

    async def operate(self, action: Action, *datasets: str, key: SigningKey | None = None) -> Reply:
        """Give a command to datasets of one shard as operators do; return the answer."""
        config = self.config()
        commands = for_datasets(config, datasets, Command("", action))
        (reply,) = await send(config, config.cluster(), commands, timeout=30, signing_key=key)
        return reply

    async def accept_losses(self, shard: int) -> None:
        """Give the commands that a shard which lost records names."""
        named: set[tuple[str, str]] = set()
        async with asyncio.timeout(30):
            while not named or any(status.cause is Cause.RECORDS_LOST for status in self.statuses(shard)):
                reasons = " ".join(status.reason for status in self.statuses(shard))
                for topic, offset in set(WANTED.findall(reasons)) - named:
                    named.add((topic, offset))
                    await self.command("accept-loss", partition=shard, topic=topic, offset=int(offset))
                await asyncio.sleep(0.05)

    def statuses(self, shard: int) -> list[ShardStatus]:
        return [one for worker in self.workers for one in worker.statuses() if one.shard == shard]

    async def parked(self, worker: Worker, *causes: Cause, shards: Collection[int] | None = None) -> str:
        """Wait until these shards of a worker, or all, are parked for one of these causes; return what it says."""
        wanted = set(range(self.partitions) if shards is None else shards)

        def done() -> bool:
            parked = {one.shard: one.cause for one in worker.statuses() if one.state is ShardState.PARKED}
            return all(parked.get(shard) in causes for shard in wanted)

        await until(done, 60)
        return complaint(worker)

    async def next_command(self, shard: int, action: str, **fields: object) -> bytes:
        """Return the text of the next command to a shard, which names what its stored state says."""
        newest = [
            record.value
            for record in await self.read("state")
            if record.partition == shard and record.key == META
        ]
        state, number = "none", 1
        if newest and newest[-1] is not None:
            # What a plain record has before its content does not depend on where it stands.
            meta = msgspec.msgpack.decode(newest[-1][_CHECKED:], type=Meta)
            state, number = meta.state_id.hex(), meta.commands.number + 1
        named = {"state": state, "number": number, "expires": int(time.time() * 1000) + 60_000}
        return msgspec.json.encode({"id": f"c{time.monotonic_ns()}", "action": action} | named | fields)

    async def make_anew(self, name: str) -> None:
        await self.delete(name)
        await self.create(name)

    async def delete(self, name: str) -> None:
        """Delete one of the application's topics, and wait until it is gone."""
        topic = f"{self.application}.{name}"
        async with administrator(self.servers) as admin, asyncio.timeout(20):
            await admin.delete_topics([topic])
            while topic in await admin.list_topics():
                await asyncio.sleep(0.05)

    async def create(self, name: str) -> None:
        compacted = COMPACTED if name == "state" else {}
        await create_topics(self.servers, {f"{self.application}.{name}": self.partitions}, CLOCK | compacted)
        await self.producer.client.force_metadata_update()

    async def delete_before(self, name: str, offset: int, partition: int = 0) -> None:
        await delete_before(self.servers, f"{self.application}.{name}", offset, partition)

    async def configure(self, name: str, settings: dict[str, str]) -> None:
        """Give one of the application's topics these settings, and its defaults for all others."""
        topic = f"{self.application}.{name}"
        async with administrator(self.servers) as admin:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])

    async def read(self, topic: str, isolation: str = "read_committed") -> list:
        """Return all records of one of the application's topics."""
        partitions = range(self.partitions)
        return await records.read(self.servers, f"{self.application}.{topic}", partitions, isolation)

    async def live(self) -> dict[tuple[int, bytes], bytes]:
        latest = {(record.partition, record.key): record.value for record in await self.read("state")}
        return {place: value for place, value in latest.items() if value is not None}

    async def events(self, isolation: str = "read_committed") -> list[AnyEvent]:
        return [decode(record.value) for record in await self.read("alerts", isolation)]

    async def told(self, kind: EventType) -> list:
        """Return the contents of the events of a type."""
        return [event.data for event in await self.events() if event.type == kind]

    async def alerts(self, isolation: str = "read_committed") -> list[Alert]:
        return [one.data for one in await self.events(isolation) if isinstance(one.data, Alert)]

    async def alerted(self, count: int = 1) -> list[Alert]:
        """Wait until so many alerts are released, and return all."""
        return await grown(self.alerts, count)

    async def released(self, kind: EventType, count: int = 1) -> list[EventType]:
        """Wait until so many events of a kind are released, and return the kinds of all."""
        await grown(lambda: self.told(kind), count)
        return [event.type for event in await self.events()]

    async def rejected(self, count: int = 1) -> list:
        """Wait until so many records are rejected, and return all of them."""
        return await grown(lambda: self.read("rejects"), count)

    async def settled(self, worker: Worker, count: int) -> None:
        """Wait until a worker's committed positions add up to so many records and nothing waits to be published."""

        def done() -> bool:
            offsets = [offset for status in worker.statuses() for offset in status.offsets.values()]
            return sum(offsets) >= count and not any(status.outbox for status in worker.statuses())

        await until(done)
        # A commit returns before its marks are written, and only then is it seen.
        written = ("state", "alerts", "rejects")

        async def seen() -> bool:
            return await self.ends(*written, isolation="read_committed") == await self.ends(*written)

        await until(seen)

    async def ends(self, *topics: str, isolation: str = "read_uncommitted") -> dict[TopicPartition, int]:
        """Return how far a reader sees these topics of the application."""
        numbers = range(self.partitions)
        places = [TopicPartition(f"{self.application}.{topic}", n) for topic in topics for n in numbers]
        async with AIOKafkaConsumer(bootstrap_servers=self.servers, isolation_level=isolation) as consumer:
            return await consumer.end_offsets(places)

    async def audited(self) -> Audit:
        """Return the operator's audit, after neither form of it found a problem."""
        config = self.config()
        public = await audit_topic(config.cluster(), config.topics.alerts, config.spec.monitors)
        operator = await audit_state(config, config.cluster())
        assert public.problems + operator.problems == []
        return operator

    async def judged(self, broker: EmbeddedKafka) -> Findings:
        """Return what the judge of the soaks finds in the broker's logs; all workers have stopped."""
        certain = Certain(self.queries, "hot", HIGH, LOW)
        terms = Terms(dict.fromkeys(self.datasets.split(", "), self.limit * 10**9), PRICES)
        return await verify(broker.data_dir, self.application, self.partitions, certain, terms)


def is_open(worker: Worker) -> bool:
    """Tell whether a worker has joined its group and every shard it owns is open."""
    return worker.ready and all(status.state in OPEN for status in worker.statuses())


def complaint(worker: Worker) -> str:
    """Return what a worker says that cannot work, or cannot work on a shard; nothing of one that can."""
    if worker.running is not None and worker.running.done():
        return str(worker.running.exception())
    if worker.fault is not None:
        return worker.fault.reason
    return "; ".join(status.reason for status in worker.statuses() if status.state is ShardState.PARKED)


async def until(condition: Callable[[], Any], seconds: float = 40.0) -> Any:
    """Wait until a condition, which may be asynchronous, gives something true, and return that."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        found = await found if (asks := inspect.isawaitable(found)) else found
        if found:
            return found
        assert time.monotonic() < end, "the condition was not met in time"
        await asyncio.sleep(0.1 if asks else 0.02)


async def grown(read: Callable[[], Awaitable[list]], count: int) -> list:
    """Read again and again until there are so many, and return them."""
    found: list = []

    async def enough() -> bool:
        found[:] = await read()
        return len(found) >= count

    await until(enough)
    return found
