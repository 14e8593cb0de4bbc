"""A worker and a forwarder that log JSON write nothing else to standard error."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stream_svt.errors import ConfigError
from tests.support.process import COMMAND, Process, free_port
from tests.support.worker import HIGH, Scene

pytestmark = pytest.mark.kafka
FORMAT = {"STREAM_SVT_LOG_FORMAT": "json"}


def objects(log: str) -> list[dict[str, Any]]:
    """Parse every line of a log."""
    found = [json.loads(line) for line in log.splitlines()]
    for one in found:
        assert datetime.fromisoformat(one["time"]).utcoffset() == timedelta()
        assert one.keys() >= {"level", "logger", "message"}
    return found


async def test_every_line_of_a_workers_life_is_an_object(scene: Scene) -> None:
    """It is stopped until another one has taken its shards over, and goes on."""
    first = scene.serve("--log-format", "json")
    await first.ready()
    await scene.send("a", HIGH)
    await scene.producer.send_and_wait(scene.queries, b"no JSON", key=b"a")
    await scene.command("pause", "nobody")
    second = scene.serve(env=FORMAT)
    await second.ready()
    first.process.send_signal(signal.SIGSTOP)
    await second.until(lambda: len(second.shards()) == scene.partitions)
    first.process.send_signal(signal.SIGCONT)
    await first.until(lambda: first.said("generation") > 0 or first.said("not recognized") > 0)
    await first.ready()
    for service in (first, second):
        assert await service.end() == 0
        found = objects(service.output)
        events = {one["event"]: one for one in found if "event" in one}
        assert events.keys() >= {"started", "shard_opened", "assigned", "stopped"}
        assert isinstance(events["shard_opened"]["shard"], int)
        assert events["started"]["application"] == scene.application
        assert events["started"]["logger"] == "stream_svt.worker.worker"
    assert any(one["logger"].startswith("aiokafka") for one in objects(first.output))
    assert {one["event"] for one in objects(first.output) if "event" in one} >= {"configuration_applied"}


async def test_a_process_that_ends_by_an_error_says_so_in_an_object(scene: Scene, tmp_path: Path) -> None:
    wrong = scene.serve(file=scene.write(partitions=5), env=FORMAT)
    away = scene.write(servers=f"127.0.0.1:{free_port()}")
    outside = scene.serve(file=away, env=FORMAT, applies=False)
    forwarding = tmp_path / "forward.yaml"
    forwarding.write_text(
        f"topic: {scene.application}.nothing\nkafka: {{bootstrap_servers: '{scene.servers}'}}\n"
        "destinations: [{name: hook, webhook: {url: 'http://127.0.0.1:9/'}}]\n"
    )
    forwarder = Process(
        [*COMMAND, "forward", "-c", str(forwarding)], 0, tmp_path / "log", env=os.environ | FORMAT
    )
    for process in (wrong, forwarder):
        code = await process.ended()
        *_, last = objects(process.output)
        assert (code, last["event"], last["exit_code"]) == (ConfigError.exit_code, "ended", code)
    await outside.until(lambda: outside.said("aiokafka") > 0)
    assert await outside.end() == 0
    assert "configuration_unread" in {one.get("event") for one in objects(outside.output)}
