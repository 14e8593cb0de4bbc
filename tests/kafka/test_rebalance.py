"""Workers come, go, die and freeze: shards that stay are not opened again, and every query counts once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from stream_svt.worker.worker import Worker
from tests.support.worker import HIGH, LOW, Scene, until

pytestmark = pytest.mark.kafka
SHARDS = 6
# A busy machine must not end a session: which shards move is counted.
SCENE = {"partitions": SHARDS, "limit": 500, "session": "6s"}


@pytest.fixture(autouse=True)
def log_of_information(caplog: pytest.LogCaptureFixture) -> None:
    """Keep what is logged about shards that open and move."""
    caplog.set_level(logging.INFO)


@contextlib.asynccontextmanager
async def fed(scene: Scene) -> AsyncIterator[None]:
    """Send queries of three datasets, one after the other, a known few of them far above the threshold."""

    async def feed() -> None:
        while True:
            for number in range(5):
                await scene.send("abc"[number % 3], HIGH if number % 5 == 2 else LOW)
            await asyncio.sleep(0.1)

    feeding = asyncio.create_task(feed())
    try:
        yield
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


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
    """Wait until every query was processed: one alert for each far above the threshold, and books that balance."""
    queries = await scene.read("counts")
    await until(
        lambda: sum(sum(s.offsets.values()) for worker in workers for s in worker.statuses()) >= len(queries),
        40,
    )
    await asyncio.sleep(0.5)
    expected = {(one.partition, one.offset) for one in queries if b'"value": 50000' in one.value}
    found = [(alert.position.partition, alert.position.offset) for alert in await scene.alerts()]
    assert len(found) == len(set(found))
    assert set(found) == expected
    await scene.audited()


async def test_a_join_and_a_leave_open_the_shards_that_move_and_no_other(scene: Scene, caplog) -> None:
    first = await scene.start()
    await shared(first)
    async with fed(scene):
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
    await everything(scene, second, third)
    assert "event=shard_retry" not in caplog.text
    assert "event=fenced" not in caplog.text


async def test_a_worker_killed_in_the_middle_of_a_rebalance_disturbs_no_shard_that_stays(scene, caplog):
    worker = await scene.start()
    await shared(worker)
    async with fed(scene):
        moved: Counter[int] = Counter()
        for moment in ("event=assigned", "event=shard_opened"):
            known = caplog.text.count("event=assigned")
            service = scene.serve()
            async with asyncio.timeout(40):
                while not service.said(moment):  # at once: it must not come to adopt its configuration
                    await asyncio.sleep(0.005)
            await service.end(signal.SIGKILL)
            # The brokers notice after the session's timeout; shards that were given away come back then.
            await until(lambda known=known: caplog.text.count("event=assigned") >= known + 2, 40)
            await until(lambda: worker.ready and len(owned(worker)) == SHARDS, 40)
            moved = opened(caplog.text) - Counter(range(SHARDS))
    await everything(scene, worker)
    stayed = set(range(SHARDS)) - set(moved)
    assert len(stayed) >= SHARDS // 2, moved
    assert "event=kept" in caplog.text
    assert "event=fenced" not in caplog.text
