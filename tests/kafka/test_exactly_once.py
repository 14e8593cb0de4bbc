"""Crashes and restarts of the real process on a real broker, judged by a reader of the broker's own log."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from stream_svt.protocol.journal import Journal
from stream_svt.service.kafka import BrokerUnavailable
from tests.support.process import Service, free_port
from tests.support.topics import create_topics
from tests.support.verifier import Findings, verify
from tests.support.worker import Scene, until

pytestmark = pytest.mark.kafka

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: {partitions}}}
web: {{port: {port}}}
commit: {{interval: 200ms}}
datasets:
  - names: [{datasets}]
    limit: {{epsilon: 1000}}
    unit: one basket
monitors:
  - name: plain
    topic: {application}.counts
    epsilon: 2
    cutoff: 15
    sensitivity: 1
    monotonic: true
    bounds: [0, 100000]
    threshold: 5000
    expected_queries: 10000
    mute: none
  - name: adaptive
    topic: {application}.counts
    mechanism: adaptive
    epsilon: 2
    cutoff: 10
    sensitivity: 1
    monotonic: true
    bounds: [0, 100000]
    threshold: 5000
    expected_queries: 10000
    mute: run
"""
DATASETS = ("north", "south", "east", "west", "centre")
PARTITIONS = 2


class Stage:
    """The topics of one application, a stream of queries, and workers that come and go."""

    def __init__(self, broker, application: str, directory: Path) -> None:
        self.broker = broker
        self.application = application
        self.directory = directory
        self.services: list[Service] = []

    async def set_up(self) -> None:
        servers, clock = self.broker.bootstrap_servers, {"message.timestamp.type": "LogAppendTime"}
        names = [f"{self.application}.{name}" for name in ("counts", "alerts", "rejects", "control")]
        await create_topics(servers, dict.fromkeys(names, PARTITIONS), clock)
        await create_topics(
            servers,
            {f"{self.application}.state": PARTITIONS},
            clock | {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"},
        )

    def start(self) -> Service:
        port = free_port()
        config = self.directory / f"worker-{port}.yaml"
        config.write_text(
            SPEC.format(
                application=self.application,
                servers=self.broker.bootstrap_servers,
                partitions=PARTITIONS,
                port=port,
                datasets=", ".join(DATASETS),
            )
        )
        service = Service(config, port, self.directory / f"worker-{port}.log")
        self.services.append(service)
        return service

    async def feed(self, count: int, seconds: float, *, tops: float = 0.02) -> None:
        """Send queries over a while, some far above the threshold."""
        rng = random.Random(count)
        async with AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, acks="all") as producer:
            for number in range(count):
                dataset = rng.choice(DATASETS)
                value = 50_000 if rng.random() < tops else rng.randrange(100)
                query = {"id": f"q{number}", "value": value, "series": f"s{rng.randrange(50)}"}
                future = await producer.send(
                    f"{self.application}.counts", json.dumps(query).encode(), key=dataset.encode()
                )
                if number % 100 == 99:
                    await asyncio.sleep(seconds * 100 / count)
            await future
            await producer.flush()

    async def drain(self, service: Service) -> None:
        """Wait until every query is processed, and end the worker in order."""

        def done() -> bool:
            status = service.status()
            shards = (status or {}).get("shards", [])
            return len(shards) == PARTITIONS and all(
                shard["state"] == "running" and set(shard["lag"].values()) == {0} for shard in shards
            )

        await service.until(done)
        await asyncio.sleep(0.6)
        await service.until(done)
        assert await service.end() == 0

    async def findings(self) -> Findings:
        return await verify(self.broker.data_dir, self.application, PARTITIONS)

    async def stop(self) -> None:
        for service in self.services:
            await service.end(signal.SIGKILL)


@pytest.fixture
async def stage(broker, topics, tmp_path):
    stage = Stage(broker, topics.name("once"), tmp_path)
    await stage.set_up()
    yield stage
    await stage.stop()


async def test_alerts_are_exactly_once_across_kills_and_clean_restarts(stage: Stage) -> None:
    """Four kills and two clean restarts in the middle of the stream lose and double nothing."""
    feeding = asyncio.create_task(stage.feed(24_000, 14.0))
    service = stage.start()
    await service.ready()
    for number, sent in enumerate([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL] * 2):
        await asyncio.sleep(0.3 + 0.37 * number % 1.1)
        code = await service.end(sent)
        assert code == (0 if sent is signal.SIGTERM else -signal.SIGKILL)
        service = stage.start()
        await service.ready()
    await feeding
    await stage.drain(service)
    found = await stage.findings()
    assert found.violations == []
    assert len(found.alerts) > 300
    assert all(len(noises) == 1 for noises in found.threshold_noises.values()), "a threshold was drawn twice"
    assert len(found.threshold_noises) > 20


async def test_workers_that_join_and_leave_share_the_partitions(stage: Stage) -> None:
    """A second worker joins, the first leaves, another joins and the second is killed: nothing is lost."""
    feeding = asyncio.create_task(stage.feed(16_000, 12.0))
    first = stage.start()
    await first.ready()
    second = stage.start()
    await second.until(lambda: len(((second.status() or {}).get("shards")) or []) == 1)
    await second.ready()
    assert await first.end() == 0
    await second.until(lambda: len(((second.status() or {}).get("shards")) or []) == 2)
    third = stage.start()
    await third.until(lambda: len(((third.status() or {}).get("shards")) or []) == 1)
    await second.end(signal.SIGKILL)
    await third.until(lambda: len(((third.status() or {}).get("shards")) or []) == 2)
    await feeding
    await stage.drain(third)
    found = await stage.findings()
    assert found.violations == []
    assert len(found.alerts) > 150


class SameTransaction(Journal):
    """Broken on purpose: publishes an alert in the transaction that charges it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._log = Hasty(self, self._log)

    def _freeze(self, events):
        self.fresh = super()._freeze(events)
        return self.fresh


class Hasty:
    """A log to which everything charged is sent at once."""

    def __init__(self, journal, log):
        self._journal, self._log = journal, log

    def __getattr__(self, name):
        return getattr(self._log, name)

    async def transact(self, transaction):
        fresh = [(key, event) for _, key, event in self._journal.fresh]
        return await self._log.transact(replace(transaction, alerts=[*transaction.alerts, *fresh]))


class FailsBeforePublishing(Journal):
    """Loses every third transaction that would publish, before it begins; correct otherwise."""

    tries = 0

    async def flush(self):
        FailsBeforePublishing.tries += 1
        if self.pending and FailsBeforePublishing.tries % 3 == 0:
            raise BrokerUnavailable("the publishing transaction was lost on purpose")
        return await super().flush()


class ForgetsOutbox(FailsBeforePublishing):
    """Broken on purpose: a takeover ignores what was charged and not yet published."""

    def _restore(self, raw):
        restored = super()._restore(raw)
        self._outbox = []
        return restored


async def _play(broker, application: str, journal: type[Journal], monkeypatch) -> Findings:
    """Let a worker with another journal release some alerts, and verify what it left."""
    scene = Scene(broker.bootstrap_servers, application, limit=1000)
    monkeypatch.setattr("stream_svt.service.worker.Journal", journal)
    async with scene.on_stage():
        worker = await scene.start()
        for sent in range(1, 9):
            await scene.send("a", *[50_000] * 3)
            await scene.settled(worker, 3 * sent)
            await until(lambda: worker.ready)
        await scene.stop(worker)
    return await verify(broker.data_dir, scene.application, scene.partitions)


async def test_a_lost_publication_is_made_good_by_the_next_tenure(broker, topics, monkeypatch) -> None:
    """The outbox is part of the state: whoever takes over publishes it, once."""
    found = await _play(broker, topics.name("made-good"), FailsBeforePublishing, monkeypatch)
    assert found.violations == []
    assert len(found.alerts) == 24


@pytest.mark.parametrize(
    ("journal", "violation"), [(SameTransaction, "before its charge"), (ForgetsOutbox, "never published")]
)
async def test_the_verifier_catches_a_broken_protocol(
    broker, topics, journal, violation, monkeypatch
) -> None:
    """Negative controls: the checks above would have seen these mistakes."""
    found = await _play(broker, topics.name("broken"), journal, monkeypatch)
    assert any(violation in text for text in found.violations), found.violations
