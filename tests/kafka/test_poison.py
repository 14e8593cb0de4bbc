"""Records that were made to hurt, on a real broker: the worker goes on, so does the next, and neighbours are read."""

from __future__ import annotations

import asyncio

import pytest

import stream_svt
from stream_svt.operate.audit import audit_topic
from tests.support.records import send_mixed
from tests.support.worker import HIGH, Scene

pytestmark = pytest.mark.kafka
CONTROL = [(value, True) for value in (b"x", b"[" * 100_000, b'{"id":"' + b"x" * 100_000, b'{"id":1e400}')]
SCENE = {"partitions": 1, "limit": 50}


async def test_workers_and_subscriptions_read_past_poison_on_every_topic(scene: Scene) -> None:
    worker = await scene.begun(HIGH)
    query = b'{"id":"odd","value":%d}' % HIGH
    await send_mixed(scene.servers, scene.queries, [(query, True), (query, False), (query, True)], key=b"a")
    paused = await scene.next_command(0, "pause", dataset="a")
    control = f"{scene.application}.control"
    await send_mixed(scene.servers, control, [*CONTROL, (paused, True), (b"{}", False)], key=b"a")
    alerts = f"{scene.application}.alerts"
    forged = [(b'{"id":"\xff"}', True), (b"[" * 60_000, True)]
    await send_mixed(scene.servers, alerts, forged, key=b"a")
    await send_mixed(scene.servers, f"{scene.application}.state", [(b"x", True)], key=b"ob/7")
    await scene.send("b", HIGH)
    await scene.settled(worker, 5)
    await scene.rejected(len(CONTROL) + 1)
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
    audit = await audit_topic(scene.config().cluster(), alerts)
    assert [told.partition(": ")[2] for told in audit.findings] == ["is no event of stream-svt"] * 2
    assert audit.alerts == 5
