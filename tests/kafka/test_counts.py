"""Records of counts on a real broker, written as a counter writes them: alerts, takeovers, and no offset is shown."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from signal import SIGKILL

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from stream_svt.kafka import clients as kafka
from stream_svt.monitor.operations import Action
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.sources import SourceSpec
from stream_svt.web import OVERVIEW, PAGES, status
from stream_svt.worker.worker import Worker
from tests.support.counts import ERRORS, HOUR_MS, SOURCE, VISITORS, Counts
from tests.support.topics import create_topics, delete_before
from tests.support.worker import Scene, grown, until

pytestmark = pytest.mark.kafka
ABORTED = 23_000
"""Records of transactions that were aborted: the offsets behind them are numbers that nothing else here is."""
BEGIN_MS = int(time.time() * 1000) // HOUR_MS * HOUR_MS - 100 * HOUR_MS


@dataclass(eq=False)
class AskedByHand(Scene):
    """An application with a source, whose counter is this test."""

    partitions: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counts = f"{self.application}.requests.counts"

    def text(self, **changes: object) -> str:
        assert not changes
        monitors = "".join(
            f"  - {{name: m{number}, {one}, mute: none, max_runs: off}}\n"
            for number, one in enumerate((VISITORS, ERRORS))
        )
        return (
            f"application: {self.application}\n"
            f'kafka: {{bootstrap_servers: "{self.servers}", session_timeout: 2s, heartbeat_interval: 300ms}}\n'
            f"topics: {{partitions: {self.partitions}}}\ncommit: {{interval: 100ms}}\n"
            f"sources:\n  - {{{SOURCE}}}\ndatasets:\n  - {{names: [a, b, c], limit: 500}}\nmonitors:\n{monitors}"
        )

    @property
    def source(self) -> SourceSpec:
        return self.config().spec.sources[0]

    async def prepare(self, aborted: int = ABORTED) -> None:
        """Create the topic of counts, and leave an aborted transaction on each of its partitions."""
        await create_topics(
            self.servers, {self.counts: self.partitions}, {"message.timestamp.type": "CreateTime"}
        )
        await self.producer.client.force_metadata_update()
        name = f"counter-{self.application}"
        self.counter = AIOKafkaProducer(bootstrap_servers=self.servers, transactional_id=name, linger_ms=5)
        await self.counter.start()
        await self.counter.begin_transaction()
        for number in range(aborted):
            for partition in range(self.partitions):
                await self.counter.send(self.counts, b"%d" % number, key=b"a", partition=partition)
        await self.counter.flush()
        await self.counter.abort_transaction()

    async def ask(self, *hours: int, values: tuple[int, ...] = (90_000,)) -> int:
        """Ask about windows, one tick after the other, each in its transaction; return the newest tick."""
        tick = 0
        for hour in hours:
            begin = BEGIN_MS + hour * HOUR_MS
            tick = begin + HOUR_MS + self.source.lateness
            async with self.counter.transaction():
                for dataset in self.source.dataset_names:
                    for measure in self.source.measures:
                        row = [*values, *[0] * (7 - len(values))]
                        one = Counts(self.source, measure.name, dataset, row, begin, tick)
                        await self.counter.send(
                            self.counts,
                            one.value,
                            key=one.key,
                            partition=self.partitioning.of(one.key),
                            timestamp_ms=one.tick,
                            headers=[*one.headers],
                        )
        return tick

    def homes(self) -> set[int]:
        return {self.partitioning.of(name.encode()) for name in self.source.dataset_names}

    async def tested(self, tick: int, *workers: Worker) -> None:
        """Wait until the workers have tested a tick on each partition with datasets, and published what came of it."""

        def done() -> bool:
            shards = [one for worker in workers for one in worker.statuses()]
            ticks = {one.shard: one.ticks.get(self.counts, 0) for one in shards}
            waits = any(one.outbox for one in shards)
            return not waits and all(ticks.get(shard, 0) >= tick for shard in self.homes())

        await until(done)
        await asyncio.sleep(0.3)

    async def windows(self) -> Counter[tuple[str, str, str]]:
        """Return how often each monitor alerted on a dataset about a window."""
        alerts = await self.alerts()
        assert all(one.position.offset == -1 and one.position.window == one.query_id for one in alerts)
        return Counter((one.monitor, one.dataset, one.query_id[:13]) for one in alerts)

    def expected(self, *hours: int) -> Counter[tuple[str, str, str]]:
        begins = [time.gmtime((BEGIN_MS + hour * HOUR_MS) / 1000) for hour in hours]
        return Counter(
            (monitor, dataset, time.strftime("%Y-%m-%dT%H", begin))
            for begin in begins
            for monitor in ("m0", "m1")
            for dataset in self.source.dataset_names
        )

    async def shown(self, *workers: Worker) -> str:
        """Return all that is released: events, refused records, metrics, and the status of workers."""
        events = [record.value.decode() for record in await self.read("alerts")]
        rejects = [f"{record.key} {record.value}" for record in await self.read("rejects")]
        pages = [
            worker.metrics.rendering()().decode() + msgspec.json.encode(status(worker)).decode()
            for worker in workers
        ]
        return "\n".join([*events, *rejects, *pages])

    async def offsets(self) -> set[str]:
        """Return the offsets of the topic of counts behind what was aborted, as text."""
        places = [TopicPartition(self.counts, partition) for partition in range(self.partitions)]
        spans = await kafka.spans(self.config().cluster(), places, "looking", "read_uncommitted")
        return {str(offset) for _, end in spans.values() for offset in range(ABORTED, end + 2)}


def numbers_in(text: str) -> set[str]:
    """Return the whole numbers that a text shows by themselves."""
    return set(re.findall(r"(?<![\w.])\d+(?![\w.])", text))


@pytest.fixture
async def scene(scenes) -> AskedByHand:
    found: AskedByHand = await scenes(AskedByHand)
    await found.prepare()
    try:
        yield found
    finally:
        await found.counter.stop()


async def test_counts_alert_once_over_restarts_and_takeovers_and_no_offset_of_them_shows(scene, caplog):
    caplog.set_level("INFO")
    await scene.ask(0)  # before the first worker: a new topic of counts is read from its begin
    worker = await scene.start()
    await scene.tested(await scene.ask(1), worker)
    assert await scene.windows() == scene.expected(0, 1)
    await scene.stop(worker)
    await scene.ask(2)
    worker = await scene.start()
    await scene.tested(await scene.ask(3), worker)
    other = await scene.start()
    await until(lambda: len(other.statuses()) == 1 and other.ready and worker.ready)
    await scene.tested(await scene.ask(4), worker, other)
    await scene.stop(worker)
    tick = await scene.ask(5, 6)
    await scene.tested(tick, other)
    assert await scene.windows() == scene.expected(*range(7))

    broken = scene.counter.transaction()
    async with broken:  # what is refused is shown nowhere
        for partition in range(scene.partitions):
            await scene.counter.send(scene.counts, b"no counts", key=b"a", partition=partition)
    tick = await scene.ask(7)
    await scene.tested(tick, other)
    shown, offsets = await scene.shown(other), await scene.offsets()
    assert len(offsets) > 20
    assert not numbers_in(shown) & offsets
    assert not numbers_in(caplog.text) & offsets
    assert await scene.read("rejects") == []
    page = json.loads(msgspec.json.encode(status(other)))
    for shard in page["shards"]:
        assert (shard["offsets"], shard["lag"]) == ({}, {})
        assert shard["ticks"] == ({scene.counts: tick} if shard["shard"] in scene.homes() else {})
    assert page["refused"]["reasons"] == {}
    metrics = other.metrics.rendering()().decode()
    named = [line.partition("{")[0] for line in metrics.splitlines() if f'topic="{scene.counts}"' in line]
    assert set(named) == {
        "stream_svt_records_total",
        "stream_svt_topic_read_timestamp_seconds",
        "stream_svt_source_due_seconds",
    }
    assert f"{tick / 1000:.10g}" in {
        f"{float(line.split()[-1]):.10g}"
        for line in metrics.splitlines()
        if "topic_read" in line and "{" in line
    }
    await scene.audited()


async def test_a_worker_that_is_killed_leaves_every_window_to_the_next_one_and_none_twice(scene):
    service = scene.serve()
    await service.ready()
    asked, hours = [], iter(range(100))
    for _ in range(4):
        asked += [next(hours) for _ in range(5)]
        asking = asyncio.create_task(scene.ask(*asked[-5:]))
        await asyncio.sleep(0.05)
        await service.end(SIGKILL)
        await asking
        service = scene.serve(file=scene.write())
        await service.ready()
    asked.append(next(hours))
    tick = await scene.ask(asked[-1])

    def tested() -> bool:
        ticks = {number: shard["ticks"].get(scene.counts, 0) for number, shard in service.shards().items()}
        return all(ticks.get(shard, 0) >= tick for shard in scene.homes())

    await service.until(tested)
    await grown(scene.alerts, scene.expected(*asked).total())
    assert await scene.windows() == scene.expected(*asked)
    pages = [service.fetch(page) or "" for page in (*PAGES, OVERVIEW)]
    assert all(pages)
    offsets = await scene.offsets()
    assert not numbers_in("\n".join([*pages, service.output, await scene.shown()])) & offsets
    await scene.audited()


async def test_lost_counts_wait_for_an_acceptance_that_names_no_offset(scene, stream_svt):
    worker = await scene.start()
    await scene.tested(await scene.ask(0), worker)
    await scene.stop(worker)
    await scene.ask(1)
    for partition, (_, end) in (await spans(scene)).items():
        await delete_before(scene.servers, scene.counts, end, partition)
    checked = (await stream_svt("check", "-c", scene.write())).out
    assert f"reads counts of '{scene.counts}', which lacks the next ones" in checked
    assert not numbers_in(checked) & await scene.offsets()
    worker = await scene.start(ready=False)
    reason = await scene.parked(worker, Cause.RECORDS_LOST, shards=scene.homes())
    assert f"--topic {scene.counts}'" in reason
    assert not numbers_in(reason) & await scene.offsets()
    for shard in scene.homes():
        await scene.command(Action.ACCEPT_LOSS, partition=shard, topic=scene.counts)
    await scene.tested(await scene.ask(2), worker)
    assert await scene.windows() == scene.expected(0, 2)
    assert not numbers_in(await scene.shown(worker)) & await scene.offsets()


async def spans(scene: AskedByHand) -> dict[int, tuple[int, int]]:
    places = [TopicPartition(scene.counts, partition) for partition in sorted(scene.homes())]
    found = await kafka.spans(scene.config().cluster(), places, "looking", "read_uncommitted")
    return {place.partition: span for place, span in found.items()}
