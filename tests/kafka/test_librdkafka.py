"""A producer on librdkafka, whose default partitioner is CRC32, feeds a worker, or both learn why it does not."""

from __future__ import annotations

import asyncio
import json

import pytest

from stream_svt.web import about
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 3, "datasets": "a, b, c, d, e, f, g, h"}
SAID = (
    "these records were partitioned with CRC32, the default of librdkafka: set partitioner=murmur2_random in the "
    "producer, or topics.partitioner: crc32"
)


async def produce(scene: Scene, keys: list[str], **settings: str) -> None:
    """Send a query above the threshold for each key, as confluent-kafka's producer does by default."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": scene.servers, **settings})
    for key in keys:
        producer.produce(
            scene.queries, json.dumps({"id": key, "series": key, "value": HIGH}).encode(), key=key
        )
    assert await asyncio.to_thread(producer.flush, 20) == 0


@pytest.mark.parametrize(
    ("partitioner", "settings"), [("crc32", {}), ("murmur2", {"partitioner": "murmur2_random"})]
)
async def test_every_query_of_a_producer_that_fits_is_tested(scene, partitioner, settings):
    scene.partitioner = partitioner
    names = scene.datasets.split(", ")
    worker = await scene.start()
    await produce(scene, names, **settings)
    await scene.settled(worker, len(names))
    assert {alert.dataset for alert in await scene.alerts()} == set(names)
    assert not await scene.read("rejects")


async def test_a_producer_with_the_other_partitioner_is_told_by_log_status_lint_and_check(
    scene, stream_svt, caplog
):
    names = scene.datasets.split(", ")
    strays = [
        name
        for name in names
        if scene.partitioning.of(name.encode()) != scene.partitioning.other.of(name.encode())
    ]
    assert 2 <= len(strays) < len(names)
    worker = await scene.start()
    await produce(scene, ["nobody", "else"])
    await scene.rejected(1)
    await produce(scene, strays)
    rejects = await scene.rejected(len(strays))
    assert {json.loads(one.value)["reason"] for one in rejects} <= {"misrouted", "undeclared"}
    await until(lambda: about(worker).refused.remedy != "")
    assert SAID in about(worker).refused.remedy
    logged = [one.getMessage() for one in caplog.records if "event=misrouted" in one.getMessage()]
    assert 0 < len(logged) <= scene.partitions
    assert all(SAID in line and "nobody" not in line for line in logged)
    assert not await scene.alerts()

    file = scene.write()
    linted = await stream_svt("lint", "-c", file)
    assert linted.code == 1
    assert f"refused, {SAID}" in linted.out
    checked = await stream_svt("check", "-c", file)
    assert checked.code == 2
    assert "FAIL topics.partitioner: " in checked.out
    assert SAID in checked.out
    await produce(scene, names * 3, partitioner="murmur2_random")
    checked = await stream_svt("check", "-c", file)
    assert "FAIL topics.partitioner" not in checked.out
    assert "note topics.partitioner: " in checked.out  # the old records lie behind those that are right
    assert "producers partition with murmur2, the default of Kafka's Java client" in checked.out
