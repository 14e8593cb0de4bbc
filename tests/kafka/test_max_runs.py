"""On a real broker a burst of high values spends half of a budget at most, whoever owns the shard."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import EventType, Lifecycle
from stream_svt.worker.worker import Worker
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka

FAR_MS = 4_070_908_800_000
"""The year 2099."""


def monitor_of(worker: Worker, dataset: str = "a") -> tuple[str, int, int]:
    """Return state, runs and the moment of the next run, as a worker shows them."""
    views = [
        view for status in worker.statuses() for view in status.views.values() if view.dataset == dataset
    ]
    (monitor,) = views[0].monitors
    return monitor.state, monitor.runs, monitor.until


async def limited_until(scene: Scene, dataset: str = "a") -> list[int]:
    events = await scene.contents(EventType.LIMITED)
    return [
        data.detail["until"] for data in events if isinstance(data, Lifecycle) and data.dataset == dataset
    ]


async def test_sixty_high_values_begin_the_runs_that_are_allowed_a_takeover_keeps_that_and_time_ends_it(
    scene, caplog
):
    caplog.set_level(logging.WARNING, "stream_svt")
    config = scene.config(max_runs="2 per 6s")
    worker = await scene.start(config)
    await scene.send("a", *[HIGH] * 60)
    await scene.settled(worker, 60)
    state, runs, next_run = monitor_of(worker)
    assert (state, runs, await limited_until(scene)) == ("limited", 2, [next_run])
    (line,) = [text for text in caplog.messages if "limited=1" in text]
    assert f" on=1 first='a/hot limited until {utc(next_run)}' " in line
    await scene.stop(worker)
    worker = await scene.start(config)
    await scene.send("a", HIGH)
    await scene.settled(worker, 61)
    if time.time() * 1000 < next_run - 500:
        assert monitor_of(worker) == ("limited", 2, next_run)
    await asyncio.sleep(max(next_run / 1000 - time.time() + 0.2, 0))
    await scene.send("a", HIGH)
    await scene.released(EventType.RUN_STARTED, 3)
    await until(lambda: monitor_of(worker)[:2] == ("running", 3))


async def test_timestamps_of_producers_will_do_and_one_far_ahead_limits_no_dataset_for_longer(scene):
    await scene.configure(
        "counts",
        {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "9223372036854775807"},
    )
    worker = await scene.start(scene.config(max_runs="1 per 1h"))
    home = scene.partitioning.of(b"a")
    query = b'{"id": "far", "value": 0, "series": "far"}'
    await scene.producer.send_and_wait(scene.queries, query, key=b"a", partition=home, timestamp_ms=FAR_MS)
    for dataset in "abc":
        await scene.send(dataset, *[HIGH] * 9)
    await scene.settled(worker, 28)
    for dataset in "abc":
        assert 0 < monitor_of(worker, dataset)[2] < time.time() * 1000 + 3_700_000
    await scene.command("resample", "a")
    await scene.released(EventType.COMMAND_REPLY)
    await scene.send("a", HIGH)
    await scene.released(EventType.RUN_STARTED, 4)
