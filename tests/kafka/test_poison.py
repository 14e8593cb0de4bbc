"""Records that were made to hurt, on a real broker: the worker goes on, so does the next, and neighbours are read."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

import stream_svt
from stream_svt.aiokafka_fixes import read_every_header_name
from stream_svt.service.audit import audit_topic
from stream_svt.service.worker import cluster_of
from tests.support.records import send_mixed
from tests.support.worker import HIGH, Scene

pytestmark = pytest.mark.kafka
MANY = 200
SCENE = {"partitions": 1, "limit": 50}


@pytest.mark.parametrize(("compression", "at_once"), [(None, None), ("zstd", 7)])
async def test_records_with_odd_header_names_are_read_in_order_with_their_neighbours(
    scene: Scene, compression: str | None, at_once: int | None
) -> None:
    read_every_header_name()
    topic = f"{scene.application}.rejects"
    sent = [(b"%d" % number, number % 50 == 49 or number in (0, 1)) for number in range(MANY)]
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=scene.servers, isolation_level="read_committed"
    ) as consumer:
        consumer.assign([place, TopicPartition(scene.queries, 0)])
        await consumer.seek_to_end(place)
        first = await consumer.position(place)
        await scene.send("a", 1, 2, 3)
        await send_mixed(scene.servers, topic, sent, key=b"a", compression=compression)
        found = []
        async with asyncio.timeout(20):
            while len(found) < MANY:
                for records in (await consumer.getmany(timeout_ms=200, max_records=at_once)).values():
                    found += [record for record in records if record.topic == topic]
    assert [record.value for record in found] == [value for value, _ in sent]
    assert [record.offset for record in found] == list(range(first, first + MANY))
    assert [name for name, _ in found[0].headers] == ["\ufffd\ufffd", "content-type"]
    assert found[0].headers[1] == ("content-type", b"application/json")
    assert found[2].headers == ()


async def pause(scene: Scene) -> bytes:
    """Return the next command to shard 0, a pause."""
    state, number = await scene.next_command(0)
    command = {"id": f"p{number}", "action": "pause", "dataset": "a", "state": state, "number": number}
    return json.dumps(command).encode()


async def test_workers_and_subscriptions_read_past_poison_on_every_topic(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    query = b'{"id":"odd","value":%d}' % HIGH
    await send_mixed(scene.servers, scene.queries, [(query, True), (query, False), (query, True)], key=b"a")
    paused = await pause(scene)
    control = f"{scene.application}.control"
    await send_mixed(scene.servers, control, [(b"x", True), (paused, True), (b"{}", False)], key=b"a")
    alerts = f"{scene.application}.alerts"
    forged = [(b'{"id":"\xff"}', True), (b"[" * 60_000, True)]
    await send_mixed(scene.servers, alerts, forged, key=b"a")
    await send_mixed(scene.servers, f"{scene.application}.state", [(b"x", True)], key=b"ob/7")
    await scene.send("b", HIGH)
    await scene.settled(worker, 5)
    await scene.rejected(2)
    assert worker.alive
    await scene.stop(worker)
    following = await scene.start()
    assert following.alive
    await scene.stop(following)
    subscription = stream_svt.subscribe(bootstrap_servers=scene.servers, topic=alerts, from_beginning=True)
    async with asyncio.timeout(20):
        async for event in subscription:
            if event.data.dataset == "b":
                break
    audit = await audit_topic(cluster_of(scene.config()), alerts)
    assert [told.partition(": ")[2] for told in audit.findings] == ["is no event of stream-svt"] * 2
    assert audit.alerts == 5
