"""One long-lived append run and one Adaptive run over more than a million queries, with three restarts."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

import stream_svt
from stream_svt.monitor.released import Alert, EventType, Lifecycle
from tests.support.process import Service, free_port
from tests.support.topics import create_topics
from tests.support.verifier import verify

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: 1}}
web: {{port: {port}}}
datasets:
  - {{name: long, limit: 5, unit: one event}}
monitors:
  - name: append
    topic: {application}.counts
    epsilon: 1
    cutoff: 4
    sensitivity: 1
    monotonic: true
    bounds: [0, 1000000]
    threshold: 10000
    expected_queries: 2000000
    append: {{retry: {{attempts: 3, lifetime: 20000, capacity: 300, every: 5000}}}}
    mute: none
  - name: adaptive
    topic: {application}.counts
    mechanism: adaptive
    epsilon: 1
    cutoff: 3
    sensitivity: 1
    monotonic: true
    bounds: [0, 1000000]
    threshold: 10000
    expected_queries: 2000000
    mute: none
"""
PART = 262_144
SERIES = 250
HIGH = 500_000


class Mission:
    """The application's topics, its queries, and whatever process serves it now."""

    def __init__(self, broker, application: str, directory: Path) -> None:
        self.broker = broker
        self.application = application
        self.sent = 0
        self.port = free_port()
        self.log = directory / "worker.log"
        self.config = directory / "mission.yaml"
        self.config.write_text(
            SPEC.format(application=application, servers=broker.bootstrap_servers, port=self.port)
        )
        self.service = Service(self.config, self.port, self.log)

    async def send(self, values: Sequence[int]) -> None:
        """Send queries, in batches that are formatted once."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self.broker.bootstrap_servers, acks=1, max_batch_size=2**18
        )
        await producer.start()
        try:
            batch = producer.create_batch()
            for value in values:
                # What is far above the threshold is news: a series that is not waiting for another test.
                series = b"s%d" % (self.sent % SERIES) if value < HIGH else b"news%d" % self.sent
                text = b'{"id":"q%d","value":%d,"series":"%s"}' % (self.sent, value, series)
                while batch.append(key=b"long", value=text, timestamp=None) is None:
                    await producer.send_batch(batch, f"{self.application}.counts", partition=0)
                    batch = producer.create_batch()
                self.sent += 1
            await producer.send_batch(batch, f"{self.application}.counts", partition=0)
            await producer.flush()
        finally:
            await producer.stop()

    async def served(self) -> None:
        """Wait until every query sent so far is processed and committed."""
        topic = f"{self.application}.counts"

        def done() -> bool:
            shards = (self.service.status() or {}).get("shards") or [{}]
            return shards[0].get("offsets", {}).get(topic, 0) >= self.sent

        await self.service.until(done, 120)

    async def restart(self, sent: signal.Signals) -> None:
        """End the process and start another."""
        await self.service.end(sent)
        self.service = Service(self.config, self.port, self.log)
        await self.service.ready()

    def monitor(self, name: str) -> dict:
        """Return a monitor's released state from the status API."""
        status = self.service.status()
        (dataset,) = [found for found in status["datasets"] if found["dataset"] == "long"]
        (monitor,) = [found for found in dataset["monitors"] if found["monitor"] == name]
        return monitor

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample of the Prometheus text."""
        found = []
        for line in self.service.fetch("/metrics").splitlines():
            match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                found.append(float(match[2]))
        assert found, f"no sample {name} {labels}"
        return sum(found)


@pytest.fixture
async def mission(broker, topics, tmp_path):
    application, clock = topics.name("mission"), {"message.timestamp.type": "LogAppendTime"}
    names = [f"{application}.{name}" for name in ("counts", "alerts", "rejects", "control")]
    await create_topics(broker.bootstrap_servers, dict.fromkeys(names, 1), clock)
    # The verifier wants to see every version of a record: compaction waits until the test is over.
    kept = clock | {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    await create_topics(broker.bootstrap_servers, {f"{application}.state": 1}, kept)
    mission = Mission(broker, application, tmp_path)
    yield mission
    await mission.service.end(signal.SIGKILL)


async def test_a_million_queries_three_restarts_and_the_end_of_a_budget(mission: Mission) -> None:
    """Runs outlive restarts; their end, the next run and exhaustion are seen by all who may look."""
    await mission.service.ready()
    for number, sent in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
        values = [index % 100 for index in range(PART)]
        values[PART // 2 + number] = 500_000
        await mission.send(values)
        await mission.served()
        await mission.restart(sent)
    await mission.send([index % 100 for index in range(PART)])
    await mission.served()
    assert mission.sent > 1_000_000
    append, adaptive = mission.monitor("append"), mission.monitor("adaptive")
    assert (append["state"], append["run"], append["runs"], append["halts"]) == ("running", 1, 1, 0)
    assert append["run_tops"] == 3

    # The Adaptive run has found three by its cheap branch; two more leave it enough for that branch alone.
    assert (adaptive["run"], adaptive["run_tops"]) == (1, 3)
    await mission.send([HIGH])
    await mission.served()
    await mission.service.until(lambda: mission.monitor("append")["halts"] == 1)
    await mission.send([HIGH])
    await mission.served()
    await mission.service.until(lambda: mission.monitor("adaptive")["top_branch_only"])
    assert mission.monitor("append")["run"] == 2

    await mission.send([HIGH] * 60)
    await mission.served()
    await mission.service.until(
        lambda: {mission.monitor(name)["state"] for name in ("append", "adaptive")} == {"exhausted"}
    )
    await mission.send([HIGH] * 3)
    await mission.served()

    assert mission.metric("stream_svt_budget_limit_epsilon", dataset="long") == 5
    assert 4.9 < mission.metric("stream_svt_budget_spent_epsilon", dataset="long") <= 5
    assert await mission.service.end() == 0

    received = await _subscriber(mission)
    alerts = [event.data for event in received if isinstance(event.data, Alert)]
    assert {alert.run for alert in alerts if alert.monitor == "append"} >= {1, 2}
    first = [alert for alert in alerts if alert.monitor == "adaptive" and alert.run == 1]
    assert [alert.branch for alert in first] == ["top"] * 6, "six tops at half the price of three"
    kinds = {(event.type, event.data.monitor) for event in received}
    for monitor in ("append", "adaptive"):
        for kind in (EventType.RUN_STARTED, EventType.RUN_HALTED, EventType.EXHAUSTED):
            assert (kind.value, monitor) in kinds
    found = await verify(mission.broker.data_dir, mission.application, 1)
    assert found.violations == []
    assert len(received) == len(found.events)
    runs = {run: len(noises) for run, noises in found.threshold_noises.items()}
    assert set(runs.values()) == {1}, "one threshold noise a run, whatever happened to the process"
    assert {("long", "append", 1), ("long", "append", 2), ("long", "adaptive", 1)} <= set(runs)
    assert found.spent["long"] <= 5 * 10**9


async def _subscriber(mission: Mission) -> list[stream_svt.Event[Alert | Lifecycle]]:
    """Return all that a subscriber gets, up to the last event on the books."""
    written = await verify(mission.broker.data_dir, mission.application, 1)
    received: list[stream_svt.Event[Alert | Lifecycle]] = []
    async with stream_svt.subscribe(
        bootstrap_servers=mission.broker.bootstrap_servers,
        topic=f"{mission.application}.alerts",
        from_beginning=True,
        lifecycle=True,
    ) as events:
        async for event in events:
            received.append(event)
            if event.sequence == len(written.events):
                return received
    return received
