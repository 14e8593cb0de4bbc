"""Topics that are created again, under a running worker and while none runs, on a real broker."""

from __future__ import annotations

import pytest

from stream_svt.application.config import load_config
from stream_svt.monitor.released import EventType
from stream_svt.operate.audit import audit_state
from stream_svt.operate.check import check_brokers
from stream_svt.protocol.shard_states import Cause
from stream_svt.worker import group
from tests.support.worker import HIGH, LOW, Scene, is_open, until

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch) -> None:
    monkeypatch.setattr(group, "TOPICS_INTERVAL", 0.5)


async def _problems(scene: Scene) -> str:
    """Return the problems that `check` finds."""
    config = scene.config()
    found = await check_brokers(config, config.cluster())
    wrong = [one.message for one in found if one.level == "problem" and "forgets events" not in one.message]
    return "\n".join(wrong)


@pytest.mark.parametrize("topic", ["alerts", "state"])
async def test_a_topic_that_workers_write_parks_its_shards_once_it_is_created_again(scene, topic) -> None:
    """Though nothing is written: its id is another one."""
    worker, shards = await scene.start(), [scene.partitioning.of(b"a")]
    await scene.send("a", HIGH, HIGH)
    await scene.alerted(2)
    await scene.make_anew(topic)
    causes = Cause.STATE_ROLLED_BACK, Cause.STATE_UNREADABLE
    reason = await scene.parked(worker, *causes, shards=shards)
    assert f"{scene.application}.{topic}" in reason
    assert "created again" in reason or "is empty" in reason
    assert f"topic '{scene.application}.{topic}' was created again after" in await _problems(scene)
    audited = await audit_state(scene.config(), scene.config().cluster())
    assert audited.findings or audited.unreadable
    await scene.stop(worker)
    await scene.parked(await scene.start(ready=False), *causes, shards=shards)


async def test_a_query_topic_that_is_created_again_and_filled_is_not_taken_for_the_old_one(scene) -> None:
    """While no worker runs, and under one; a run that was open is closed, and the next has other noise."""
    shard = scene.partitioning.of(b"a")
    worker = await scene.start()
    await scene.send("a", LOW, HIGH)
    await scene.alerted()
    await until(lambda: worker.statuses()[shard].offsets.get(scene.queries) == 2)
    await scene.stop(worker)
    await scene.make_anew("counts")
    await scene.send("a", *[LOW] * 5)
    assert "it was created again and now holds 0 to 5" in await _problems(scene)
    worker = await scene.start(ready=False)
    said = await scene.parked(worker, Cause.RECORDS_LOST, shards=[shard])
    assert "from offset 2" in said
    assert "created again and now holds 0 to 5" in said
    await scene.accept_losses(shard)
    await until(lambda: worker.statuses()[shard].offsets.get(scene.queries) == 5)
    await until(lambda: is_open(worker))

    await scene.delete("counts")
    await scene.parked(worker, Cause.TOPIC_MISSING)
    await scene.create("counts")
    await scene.send("a", *[LOW] * 9, HIGH)
    assert "created again" in await scene.parked(worker, Cause.RECORDS_LOST, shards=[shard])
    await scene.accept_losses(shard)
    await until(lambda: worker.statuses()[shard].offsets.get(scene.queries) == 10)
    assert [(one.run, one.position.offset) for one in await scene.alerted(2)] == [(1, 1), (3, 9)]
    assert await _problems(scene) == ""
    await scene.audited()


async def test_a_control_topic_that_is_created_again_gives_the_shards_back_and_is_read_from_its_beginning(
    scene,
):
    worker = await scene.start()
    shard = scene.partitioning.of(b"a")
    await scene.command("pause", "a", monitor="hot")
    await scene.released(EventType.PAUSED)
    await scene.delete("control")
    await until(lambda: not worker.ready and worker.statuses() == [])
    await scene.create("control")
    await until(lambda: is_open(worker), 60)
    await scene.command("resume", "a", monitor="hot")
    for _ in range(5):
        await scene.producer.send_and_wait(f"{scene.application}.control", b"{}", partition=shard)
    await scene.released(EventType.RESUMED)


async def test_check_says_which_shards_are_parked_and_what_the_topics_no_longer_hold(scene) -> None:
    shard = scene.partitioning.of(b"a")
    worker = await scene.start()
    await scene.send("a", LOW, LOW)
    await until(lambda: worker.statuses()[shard].offsets.get(scene.queries) == 2)
    assert await _problems(scene) == ""
    await scene.stop(worker)
    await scene.send("a", LOW)
    await scene.delete_before("counts", 3, shard)
    assert (
        f"shard {shard} reads topic {scene.queries!r} on from offset 2; it now holds 3 to 3"
        in await _problems(scene)
    )
    file = scene.write()
    service = scene.serve(file=file)
    await service.until(lambda: (status := service.status()) is not None and bool(status["shards"]))
    await service.until(lambda: any(one["state"] == "parked" for one in service.status()["shards"]))

    config = load_config(file)
    found = await check_brokers(config, config.cluster())
    assert any("is parked at worker" in one.message and "records-lost" in one.message for one in found)
