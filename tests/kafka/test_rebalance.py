"""Workers come, go, die and freeze: shards that stay are not opened again, and every query counts once."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from stream_svt.service.worker import Worker
from tests.kafka.test_takeover import Feed, _await_line, _check, _launch
from tests.support.process import free_port
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, Scene, until

pytestmark = pytest.mark.kafka
SHARDS = 6


@pytest.fixture
async def scene(broker, topics, caplog) -> AsyncIterator[Scene]:
    caplog.set_level(logging.INFO)
    async with Scene(
        broker.bootstrap_servers, topics.name("shop"), partitions=SHARDS, limit=500
    ).on_stage() as scene:
        yield scene


def opened(text: str) -> Counter[int]:
    """How often each shard was opened, by what the log says."""
    return Counter(map(int, re.findall(r"event=shard_opened shard=(\d+)", text)))


def owned(worker: Worker) -> set[int]:
    return {status.shard for status in worker.statuses()}


async def shared(*workers: Worker) -> None:
    """Wait until the workers share all shards evenly and each is ready."""
    least, more = divmod(SHARDS, len(workers))
    wanted = sorted([least + 1] * more + [least] * (len(workers) - more))
    await until(
        lambda: (
            sorted(len(owned(worker)) for worker in workers) == wanted
            and all(worker.ready for worker in workers)
            and set().union(*map(owned, workers)) == set(range(SHARDS))
        ),
        40,
    )


async def everything(scene: Scene, *workers: Worker) -> None:
    """Wait until every query was processed, then check alerts and books."""
    count = len(await scene.read("counts"))
    await until(
        lambda: sum(sum(s.offsets.values()) for worker in workers for s in worker.statuses()) >= count, 40
    )
    await asyncio.sleep(0.5)
    await _check(scene, await scene.alerts())


async def test_a_join_and_a_leave_open_the_shards_that_move_and_no_other(scene: Scene, caplog) -> None:
    feed = Feed(scene)
    first = await scene.start()
    await shared(first)
    feed.begin()
    await asyncio.sleep(0.5)
    second = await scene.start()
    await shared(first, second)
    moved = owned(second)
    assert opened(caplog.text) == Counter({shard: 1 + (shard in moved) for shard in range(SHARDS)})
    third = await scene.start()
    await shared(first, second, third)
    again = Counter(range(SHARDS)) + Counter(moved) + Counter(owned(third))
    assert opened(caplog.text) == again
    kept, left = owned(second), owned(first)
    await scene.stop(first)
    await shared(second, third)
    assert kept <= owned(second)
    assert opened(caplog.text) == again + Counter(left)
    assert f"event=kept shards={','.join(map(str, sorted(kept)))}" in caplog.text
    await feed.end()
    await everything(scene, second, third)
    assert "event=shard_retry" not in caplog.text
    assert "event=fenced" not in caplog.text


async def test_a_worker_killed_in_the_middle_of_a_rebalance_disturbs_no_shard_that_stays(
    scene: Scene, tmp_path, caplog
) -> None:
    feed = Feed(scene)
    path = tmp_path / "shop.yaml"
    worker = await scene.start()
    await shared(worker)
    feed.begin()
    moved: Counter[int] = Counter()
    for moment in ("event=started", "event=assigned", "event=shard_opened"):
        path.write_text(scene.text() + f"web: {{port: {free_port()}}}\n")
        with _launch(path) as process:
            await asyncio.to_thread(_await_line, process.stderr, moment)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        # The brokers notice after the session's timeout; shards that were given away come back then.
        await asyncio.sleep(3.0)
        await until(lambda: worker.ready and len(owned(worker)) == SHARDS, 40)
        moved = opened(caplog.text) - Counter(range(SHARDS))
    await feed.end()
    await everything(scene, worker)
    stayed = set(range(SHARDS)) - set(moved)
    assert len(stayed) >= SHARDS // 2, moved
    assert "event=kept" in caplog.text
    assert "event=fenced" not in caplog.text


async def test_a_worker_frozen_while_it_stands_by_gives_way_and_opens_anew(
    scene: Scene, tmp_path, caplog
) -> None:
    feed = Feed(scene)
    path = tmp_path / "shop.yaml"
    path.write_text(scene.text() + f"web: {{port: {free_port()}}}\n")
    with _launch(path) as process:
        for _ in range(SHARDS):
            await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
        feed.begin()
        starting = asyncio.create_task(scene.start(ready=False))
        await asyncio.to_thread(_await_line, process.stderr, "event=revoked")
        process.send_signal(signal.SIGSTOP)
        worker = await starting
        await until(lambda: worker.ready and len(owned(worker)) == SHARDS, 60)
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        await until(lambda: worker.ready and len(owned(worker)) == SHARDS // 2, 60)
        await asyncio.sleep(2.0)
        await feed.end()
        process.terminate()
        _, rest = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 0, rest
    # Nothing that it held was its own any more, whatever the group gave back.
    assert len(opened(rest)) >= SHARDS // 2
    await until(lambda: worker.ready and len(owned(worker)) == SHARDS, 40)
    await everything(scene, worker)


async def test_a_reload_and_a_stop_in_the_middle_of_a_rebalance_are_served(scene: Scene, caplog) -> None:
    feed = Feed(scene)
    first = await scene.start()
    await shared(first)
    feed.begin()
    joining = asyncio.create_task(scene.start(ready=False))
    await until(lambda: "event=revoked" in caplog.text)
    await first.reload(scene.config(threshold=4000))
    second = await joining
    await second.reload(scene.config(threshold=4000))
    await until(lambda: first.ready and len(owned(first)) == SHARDS // 2, 40)
    await scene.stop(second)
    joining = asyncio.create_task(scene.start(scene.config(threshold=4000), ready=False))
    count = caplog.text.count("event=revoked")
    await until(lambda: caplog.text.count("event=revoked") > count)
    await scene.stop(first)
    third = await joining
    await shared(third)
    await feed.end()
    await everything(scene, third)


async def test_a_control_topic_that_is_deleted_takes_the_shards_and_brings_them_back(scene: Scene) -> None:
    feed = Feed(scene)
    worker = await scene.start()
    await shared(worker)
    feed.begin()
    topic = f"{scene.application}.control"
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.servers)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()
    await until(lambda: not worker.ready and worker.statuses() == [], 40)
    assert worker.alive
    await create_topics(scene.servers, {topic: SHARDS}, CLOCK)
    await shared(worker)
    await feed.end()
    await everything(scene, worker)


@pytest.mark.parametrize(
    ("step", "error"),
    [("_do_heartbeat", KafkaError("UnknownError()")), ("_on_join_prepare", ValueError("x"))],
    ids=["heartbeat", "coordination"],
)
async def test_a_worker_whose_client_gives_the_membership_up_leaves_and_joins_again(
    scene: Scene, step: str, error: Exception
) -> None:
    """An answer that the client trips over ends its heartbeat, or its coordination, for good."""
    feed = Feed(scene)
    worker = await scene.start()
    other = await scene.start(ready=False)
    await shared(worker, other)
    feed.begin()
    group = worker._group

    async def trips(*_: object) -> None:
        raise error

    coordinator = group._consumer._coordinator
    setattr(coordinator, step, trips)
    coordinator.request_rejoin()
    await until(lambda: worker._group is not group, 40)
    await shared(worker, other)
    assert worker.alive
    await feed.end()
    await everything(scene, worker, other)
