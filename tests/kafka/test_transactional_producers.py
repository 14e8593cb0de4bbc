"""Queries of exactly-once producers on a real broker: each transaction ends with a marker, which takes an offset.

What follows for positions, and for the ends of periods, is in `tests/protocol/test_positions.py`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from stream_svt.monitor.released import EventType
from stream_svt.worker.worker import Worker
from tests.support.worker import HIGH, LOW, Scene, complaint, until

pytestmark = pytest.mark.kafka
SCENE = {"limit": 20}


@contextlib.asynccontextmanager
async def transaction(scene: Scene, *values: int) -> AsyncIterator[AIOKafkaProducer]:
    """Begin a transaction of a producer of its own, and write queries of dataset a."""
    name, home = f"{scene.application}-shop", scene.partitioning.of(b"a")
    async with AIOKafkaProducer(bootstrap_servers=scene.servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        for value in values:
            query = json.dumps({"id": f"q{time.monotonic_ns()}", "value": value}).encode()
            await producer.send_and_wait(scene.queries, query, key=b"a", partition=home)
        yield producer


async def commit(scene: Scene, *values: int) -> None:
    async with transaction(scene, *values) as producer:
        await producer.commit_transaction()


async def abort(scene: Scene, *values: int) -> None:
    async with transaction(scene, *values) as producer:
        await producer.abort_transaction()


async def end(scene: Scene) -> int:
    return (await scene.ends("counts"))[TopicPartition(scene.queries, scene.partitioning.of(b"a"))]


async def reaches_the_end(scene: Scene, worker: Worker) -> None:
    """The committed position is the end of the partition, and the lag is zero."""
    wanted, status = await end(scene), worker.statuses()[scene.partitioning.of(b"a")]
    await until(lambda: (status.offsets.get(scene.queries), status.lag.get(scene.queries)) == (wanted, 0))
    assert complaint(worker) == ""


async def test_an_idle_topic_has_no_lag_and_emptied_it_parks_nobody(scene: Scene) -> None:
    """After commits, aborts of one and of many records, and an open transaction; across a restart."""
    worker = await scene.start()
    await commit(scene, LOW, HIGH)
    await scene.alerted(1)
    await reaches_the_end(scene, worker)
    await abort(scene, *[HIGH] * 50)
    await abort(scene, HIGH)
    await reaches_the_end(scene, worker)

    async with transaction(scene, HIGH) as producer:
        await scene.send("a", HIGH)  # behind the open transaction
        status = worker.statuses()[scene.partitioning.of(b"a")]
        await until(lambda: status.lag[scene.queries] == 2)
        assert len(await scene.alerts()) == 1
        await producer.commit_transaction()
    await scene.alerted(3)
    await reaches_the_end(scene, worker)

    await scene.stop(worker)
    await scene.delete_before("counts", await end(scene), scene.partitioning.of(b"a"))
    worker = await scene.start()
    await reaches_the_end(scene, worker)
    await commit(scene, HIGH)
    await scene.alerted(4)
    assert EventType.LOSS_ACCEPTED not in [event.type for event in await scene.events()]
