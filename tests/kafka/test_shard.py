"""A worker's shards on a real broker: what goes in, what comes out, and what cannot stop them."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.service.config import parse_config
from tests.support.process import applied
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, HIGH, LOW, Scene, until

pytestmark = pytest.mark.kafka


async def test_a_pause_skips_the_queries_of_its_dataset_and_nothing_else(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW)
    await scene.settled(worker, 1)
    await scene.command("pause", "a")
    await scene.released(EventType.PAUSED)
    for restart in (False, True):
        if restart:
            worker = await _restarted(scene, worker)
        await scene.send("a", HIGH)
        # The partition goes on; nothing of the paused dataset is tested.
        await scene.settled(worker, 2 + restart)
        assert await scene.alerts() == []
    await scene.command("resume", "a")
    await scene.released(EventType.RESUMED)
    await scene.send("a", HIGH)
    await scene.settled(worker, 4)
    assert len(await scene.alerts()) == 1


async def _restarted(scene: Scene, worker):
    await scene.stop(worker)
    return await scene.start()


@pytest.mark.parametrize(
    ("topic", "policy", "expected"),
    [
        ("state", "delete", "compact"),
        # Compaction keeps the newest query of a dataset: a takeover would miss those an owner before it tested.
        ("counts", "compact,delete", "delete"),
    ],
)
async def test_topics_that_do_not_fit_are_refused_at_start(
    scene: Scene, topic: str, policy: str, expected: str
) -> None:
    await scene.delete(topic)
    name = f"{scene.application}.{topic}"
    await create_topics(scene.servers, {name: scene.partitions}, CLOCK | {"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=rf"\.{topic}' has cleanup.policy={policy}, expected {expected}"):
        await scene.start()


SCENE = {"partitions": 4, "limit": 500}


async def test_a_stopped_worker_leaves_nothing_to_repeat_and_exits_with_zero(scene: Scene) -> None:
    service = scene.serve()
    await service.ready()
    await scene.send("a", HIGH)
    await asyncio.sleep(0.5)
    service.config.write_text(service.config.read_text().replace("threshold: 5000", "threshold: 700"))
    replayed = service.said("shard_replayed")
    await asyncio.to_thread(applied, service.config)
    await service.until(lambda: service.said("event=configuration_read version=2"))
    await service.until(lambda: service.said("shard_replayed") > replayed)
    assert await service.end() == 0, service.log
    assert len(await scene.alerts()) == 1


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
            assert await asyncio.to_thread(service.process.wait, 30) == ConfigError.exit_code
            assert words in service.log.splitlines()[-1]
            assert "Traceback" not in service.log


async def test_a_session_the_brokers_do_not_allow_ends_the_worker_with_the_reason(scene: Scene) -> None:
    text = scene.text().replace(
        "session_timeout: 2s, heartbeat_interval: 300ms", "session_timeout: 300ms, heartbeat_interval: 100ms"
    )
    worker = await scene.start(parse_config(text), ready=False)
    await until(lambda: not worker.alive)
    assert "kafka.session_timeout" in str(worker.running.exception())
