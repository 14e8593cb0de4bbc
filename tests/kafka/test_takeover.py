"""A worker as a process: its pages, its signals, its exit codes, and what it refuses to start with."""

from __future__ import annotations

import asyncio
import socket

import pytest

from stream_svt.errors import ConfigError
from stream_svt.service.config import parse_config
from tests.support.process import Service, applied, free_port
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 4, "limit": 500}


async def test_a_stopped_worker_leaves_nothing_to_repeat_and_exits_with_zero(scene: Scene, tmp_path) -> None:
    path = tmp_path / "shop.yaml"
    port = free_port()
    path.write_text(scene.text() + f"web: {{port: {port}}}\n")
    service = Service(path, port, tmp_path / "log")
    await service.ready()
    await scene.send("a", HIGH)
    await asyncio.sleep(0.5)
    path.write_text(path.read_text().replace("threshold: 5000", "threshold: 700"))
    replayed = service.said("shard_replayed")
    await asyncio.to_thread(applied, path)
    await service.until(lambda: service.said("event=configuration_read version=2"))
    await service.until(lambda: service.said("shard_replayed") > replayed)
    assert await service.end() == 0, service.log
    assert len(await scene.alerts()) == 1


async def test_a_worker_that_cannot_start_says_why_and_exits_with_the_errors_code(
    scene: Scene, tmp_path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        files = {
            "has 4 partitions, topics.partitions says 5": (
                scene.text().replace("partitions: 4", "partitions: 5") + f"web: {{port: {free_port()}}}\n"
            ),
            "web.port: cannot listen on 127.0.0.1": (
                scene.text() + f"web: {{port: {taken.getsockname()[1]}}}\n"
            ),
        }
        started = []
        for number, (words, text) in enumerate(files.items()):
            path = tmp_path / f"shop-{number}.yaml"
            path.write_text(text)
            started.append((words, Service(path, 0, tmp_path / f"{number}.log")))
        for words, service in started:
            assert await asyncio.to_thread(service.process.wait, 30) == ConfigError.exit_code
            assert words in service.log.splitlines()[-1]
            assert "Traceback" not in service.log


async def test_a_session_the_brokers_do_not_allow_ends_the_worker_with_the_reason(scene: Scene) -> None:
    text = scene.text().replace(
        "session_timeout: 2s, heartbeat_interval: 300ms", "session_timeout: 300ms, heartbeat_interval: 100ms"
    )
    worker = await scene.start(parse_config(text), ready=False)
    await until(lambda: not worker.alive)
    assert "kafka.session_timeout" in str(worker.failed.exception())
