"""A worker as a process: its pages, its signals, its exit codes, and what it refuses to start with."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from stream_svt.errors import ConfigError
from stream_svt.service.config import parse_config
from tests.support.process import COMMAND, applied, free_port
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 4, "limit": 500}


def _launch(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, "run", "--apply", "-c", str(path)], stderr=subprocess.PIPE, text=True)


def _await_line(stream, text: str) -> None:
    for line in stream:
        if text in line:
            return
    pytest.fail(f"the worker ended before {text!r}")


async def test_a_stopped_worker_leaves_nothing_to_repeat_and_exits_with_zero(scene: Scene, tmp_path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(scene.text() + f"web: {{port: {free_port()}}}\n")
    process = _launch(path)
    assert process.stderr is not None
    await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
    await scene.send("a", HIGH)
    await asyncio.sleep(0.5)
    path.write_text(path.read_text().replace("threshold: 5000", "threshold: 700"))
    await asyncio.to_thread(applied, path)
    await asyncio.to_thread(_await_line, process.stderr, "event=configuration_read version=2")
    await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
    process.send_signal(signal.SIGTERM)
    _, said = await asyncio.to_thread(process.communicate, timeout=20)
    assert process.returncode == 0, said
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
            started.append((words, _launch(path)))
        for words, process in started:
            _, said = await asyncio.to_thread(process.communicate, timeout=30)
            assert process.returncode == ConfigError.exit_code
            assert words in said.splitlines()[-1]
            assert "Traceback" not in said


async def test_a_session_the_brokers_do_not_allow_ends_the_worker_with_the_reason(scene: Scene) -> None:
    text = scene.text().replace(
        "session_timeout: 2s, heartbeat_interval: 300ms", "session_timeout: 300ms, heartbeat_interval: 100ms"
    )
    worker = await scene.start(parse_config(text), ready=False)
    await until(lambda: not worker.alive)
    assert "kafka.session_timeout" in str(worker.failed.exception())
