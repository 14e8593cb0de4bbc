"""A worker that cannot start on a real broker says why, and ends."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from stream_svt.errors import ConfigError
from stream_svt.service.config import parse_config
from tests.support.worker import Scene, until

pytestmark = pytest.mark.kafka


SCENE = {"partitions": 4, "limit": 500}


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
