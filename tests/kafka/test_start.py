"""A worker that cannot start says why and ends; no client creates the topic that it asks for."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient

from stream_svt.application.config import parse_config
from stream_svt.errors import BrokerError, ConfigError
from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.clients import Cluster, cluster_id_of, partition_counts, spans, stop_quietly
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.kafka.transactions import NewRecords
from stream_svt.monitor.released import CONTENT_TYPE
from stream_svt.operate.check import create_missing
from stream_svt.protocol.ports import Transaction
from stream_svt.protocol.records import Record
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.sections import TopicsConfig
from stream_svt.worker.ports import Requests, ShardFeed, ShardLog
from tests.support.topics import Topics, administrator
from tests.support.worker import Scene, is_open, until

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 4, "limit": 500}


async def test_a_worker_that_cannot_start_says_why_and_exits_with_the_errors_code(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = scene.write()
        busy.write_text(re.sub(r"port: \d+", f"port: {taken.getsockname()[1]}", busy.read_text()))
        files = {
            "has 4 partitions, topics.partitions says 5": scene.write(partitions=5),
            "web.port: cannot listen on 127.0.0.1": busy,
        }
        started = {words: scene.serve(file=file) for words, file in files.items()}
        for words, service in started.items():
            assert await service.ended() == ConfigError.exit_code
            assert words in service.log.splitlines()[-1]
            assert "Traceback" not in service.log


async def test_a_session_the_brokers_do_not_allow_ends_the_worker_with_the_reason(scene: Scene) -> None:
    text = scene.text().replace(
        "session_timeout: 2s, heartbeat_interval: 300ms", "session_timeout: 300ms, heartbeat_interval: 100ms"
    )
    worker = await scene.start(parse_config(text), ready=False)
    await until(lambda: not worker.alive)
    assert "kafka.session_timeout" in str(worker.running.exception())


async def test_a_worker_writes_nothing_on_another_cluster_than_at_its_start(
    scene: Scene, scenes, lax_broker, monkeypatch
) -> None:
    """Its versions are of the first cluster, and state written on another would name the first in its seals."""
    other = await scenes(on=lax_broker, partitions=scene.partitions)
    worker = await scene.start()
    first, second = [await cluster_id_of(one.config().cluster()) for one in (scene, other)]
    monkeypatch.setattr(type(worker.config), "cluster", lambda _: worker._parts.cluster)
    brokers = worker._parts.cluster.arguments
    before, brokers["bootstrap_servers"] = brokers["bootstrap_servers"], [other.servers]
    for shard in worker._group.shards.values():
        shard.configure()  # the next sessions meet the other brokers
    await until(lambda: worker.fault is not None)
    assert worker.fault.cause is Cause.OTHER_CLUSTER
    assert all(words in worker.fault.reason for words in (first, second, "nothing was written", "restart"))
    assert not worker.ready
    assert worker.alive
    topics = ("state", "alerts", "rejects")
    assert set((await other.ends(*topics, isolation="read_committed")).values()) == {0}
    brokers["bootstrap_servers"] = before
    await until(lambda: is_open(worker))


async def test_no_client_creates_the_topic_that_it_asks_for(lax_broker, monkeypatch):
    # Brokers create whatever topic a client asks for by default.
    monkeypatch.setattr("stream_svt.kafka.clients.CALL_DEADLINE", 2.0)
    apply_fixes()
    cluster = Cluster({"bootstrap_servers": lax_broker.bootstrap_servers})
    partition = TopicPartition("wanted", 0)
    with pytest.raises(BrokerError):
        await spans(cluster, [partition], "looking")

    feed = ShardFeed(cluster, 0, 1, Requests())
    feed.seek(partition.topic, 0)
    with pytest.raises(BrokerError):  # noqa: PT012  some fetch, not the first
        async with asyncio.timeout(20):
            while True:
                await feed.fetch([partition.topic], 0.5)
    await feed.close()

    member = cluster.member("wanted")
    await member.start()
    member.subscribe([partition.topic])
    await asyncio.sleep(1.0)
    await member.stop()

    producer = cluster.producer("wanted-0")
    await producer.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.transact([NewRecords(partition, [(b"k", b"x")])], 0), 1.0)
    await stop_quietly(producer)

    async with AIOKafkaProducer(bootstrap_servers=lax_broker.bootstrap_servers) as of_a_program:
        await of_a_program.send_and_wait("of-a-program", b"x")
    async with administrator(lax_broker.bootstrap_servers) as admin:
        topics = await admin.list_topics()
        assert partition.topic not in topics
        assert "of-a-program" in topics


async def test_what_is_asked_while_every_broker_is_fenced_is_answered_once_one_is_back(scenes) -> None:
    """As after a pause of the machine: metadata names neither brokers nor a controller."""
    late = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "3000"}
    with EmbeddedKafka(overrides=late) as kafka:
        scene = await scenes(on=kafka, create=False)
        config, cluster = scene.config(), Cluster({"bootstrap_servers": kafka.bootstrap_servers})
        questions: list[Callable[[], Awaitable[object]]] = [
            lambda: cluster_id_of(cluster),
            lambda: create_missing(config, cluster),
            lambda: partition_counts(cluster, "looking"),
            lambda: spans(cluster, [TopicPartition(config.topics.alerts, 0)], "looking"),
        ]
        for question in questions:
            await until_fenced(kafka.bootstrap_servers)
            assert await question()


async def until_fenced(servers: str) -> None:
    while True:
        client = AIOKafkaClient(bootstrap_servers=servers)
        await client.bootstrap()
        known = client.cluster.brokers()
        await client.close()
        if not known:
            return
        await asyncio.sleep(0.05)


async def test_no_fetch_waits_for_a_quiet_topic_while_records_of_another_are_unread(topics: Topics) -> None:
    """A shard that is busy for a tenth of a second would not get its next queries for half a second, or more."""
    quiet, busy = await topics("quiet"), await topics("busy")
    feed = ShardFeed(Cluster({"bootstrap_servers": topics.bootstrap_servers}), 0, 1, Requests())
    feed.seek(quiet, 0)
    feed.seek(busy, 0)
    async with AIOKafkaProducer(bootstrap_servers=topics.bootstrap_servers) as producer:
        await producer.send_and_wait(busy, b"first", partition=0)
        assert await feed.fetch([quiet, busy], 20.0)
        await producer.send_and_wait(busy, b"second", partition=0)
        fetcher = feed._client._fetcher
        await until(lambda: fetcher._records)
        await asyncio.sleep(0.4)
        assert not fetcher._in_flight
        assert await feed.fetch([quiet, busy], 20.0)
        await until(lambda: fetcher._in_flight)
    await feed.close()


async def test_a_transaction_larger_than_a_batch_has_its_records_in_order_and_its_time(
    topics: Topics,
) -> None:
    names = TopicsConfig(
        alerts=await topics("alerts"), rejects=await topics("rejects"), state=await topics("state")
    )
    cluster = Cluster({"bootstrap_servers": topics.bootstrap_servers})
    log = ShardLog(cluster, names.alerts, 0, names, await cluster_id_of(cluster))
    alerts = [(b"a", bytes([number]) * 5_000) for number in range(120)]
    state: dict[bytes, bytes | None] = {b"%d" % number: bytes([number]) * 5_000 for number in range(120)}
    before = time.time() * 1000 - 1
    try:
        await log.fence()
        written = await log.transact(Transaction(alerts, [("counts", 7, "reason")], state | {b"gone": None}))
        # It begins once the marker of the one before is written.
        assert (await log.transact(Transaction([], [], {b"gone": None}))).alert_offset is None
        seen = list[Record]()
        await log.read_alerts(None, seen.append, committed=True)
        assert [(record.key, record.value) for record in seen] == alerts
        assert all(record.headers == (("content-type", CONTENT_TYPE.encode()),) for record in seen)
        assert written.alert_offset == seen[-1].offset
        assert before <= written.time_ms == seen[0].timestamp <= time.time() * 1000
        assert await log.read_state() == state
    finally:
        await log.close()
