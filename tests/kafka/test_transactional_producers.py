"""Queries of exactly-once producers on a real broker: each transaction ends with a marker, which takes an offset.

What follows for positions, and for the ends of periods, is in `tests/protocol/test_positions.py`.
"""

from __future__ import annotations

import json
import time

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from stream_svt.monitor.released import EventType
from stream_svt.worker.worker import Worker
from tests.support import records
from tests.support.worker import HIGH, LOW, Scene, complaint, until

pytestmark = pytest.mark.kafka
SCENE = {"limit": 20}


def query(value: int) -> bytes:
    return json.dumps({"id": f"q{time.monotonic_ns()}", "value": value}).encode()


async def produce(scene: Scene, *values: int, commit: bool = True) -> None:
    """Write queries of dataset a in one transaction."""
    home = scene.partitioning.of(b"a")
    written = [(home, b"a", query(value)) for value in values]
    await records.publish(scene.servers, scene.queries, *written, commit=commit)


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
    await produce(scene, LOW, HIGH)
    await scene.alerted(1)
    await reaches_the_end(scene, worker)
    await produce(scene, *[HIGH] * 50, commit=False)
    await produce(scene, HIGH, commit=False)
    await reaches_the_end(scene, worker)

    name, home = f"{scene.application}-open", scene.partitioning.of(b"a")
    async with AIOKafkaProducer(bootstrap_servers=scene.servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(scene.queries, query(HIGH), key=b"a", partition=home)
        await scene.send("a", HIGH)  # behind the open transaction
        status = worker.statuses()[home]
        await until(lambda: status.lag[scene.queries] == 2)
        assert len(await scene.alerts()) == 1
        await producer.commit_transaction()
    await scene.alerted(3)
    await reaches_the_end(scene, worker)

    await scene.stop(worker)
    await scene.delete_before("counts", await end(scene), home)
    worker = await scene.start()
    await reaches_the_end(scene, worker)
    await produce(scene, HIGH)
    await scene.alerted(4)
    assert EventType.LOSS_ACCEPTED not in [event.type for event in await scene.events()]
