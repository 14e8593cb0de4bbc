"""The stack of docker-compose.yml as processes of this machine: its commands, configurations and health checks.

What images add (users, closed roots) is not seen here; `tests/kafka/test_image.py` sees it of ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka.admin import NewTopic

from stream_svt.demo.scenario import Setting
from stream_svt.demo.session import delete_topics
from stream_svt.kafka.clients import Cluster, started
from tests.support.http_server import receiving
from tests.support.process import COMMAND, Process, free_port

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
WORKERS = ("worker-1", "worker-2")
SERVED = {**dict.fromkeys(WORKERS, 6066), "forward": 6067}
COUNTER, COUNTER_PORT = "counter", 6068
"""Its port is that of the configuration plus 2."""
FASTER = {"window: 1m": "window: 3s"}
"""What the tests change in the mounted configuration, so that the demo's weeks pass within seconds."""


class Stack:
    """What docker-compose.yml starts from our image, with the addresses of this machine in place of its own."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self.started: list[Process] = []
        self.ports = {name: free_port() for name in (*SERVED, COUNTER)}
        subprocess.run([shutil.copy(ROOT / "deploy/compose/make-secrets", directory)], check=True)

    def start(self, name: str, **changed: str) -> Process:
        """Start a service's command; ``changed`` replaces what stands in the files that it mounts."""
        service = SERVICES[name]
        mounts = [volume.split(":") for volume in service["volumes"]]
        items = {"/etc/stream-svt/items.txt": str(ROOT / "deploy/compose/items.txt")}
        mounted = {target: self._moved(source, **changed, **items, **FASTER) for source, target, _ in mounts}
        port = self.ports.get(name, 6066)
        environment = os.environ | {
            "STREAM_SVT_CONFIG": mounted.get("/etc/stream-svt/monitors.yaml", ""),
            "STREAM_SVT_KAFKA_BOOTSTRAP_SERVERS": self._bootstrap,
            "STREAM_SVT_WEB_HOST": "127.0.0.1",
            "STREAM_SVT_WEB_PORT": str(port - 2 * (name == COUNTER)),
        }
        if "sealing_key" in service["secrets"]:
            environment["STREAM_SVT_SEALING_KEYS"] = str(self._directory / "secrets" / "sealing.key")
        arguments = [mounted.get(argument, argument) for argument in service["command"]]
        log = self._directory / f"{name}.log"
        self.started.append(Process([*COMMAND, *arguments], port, log, env=environment, cwd=self._directory))
        return self.started[-1]

    def healthy(self, name: str) -> bool:
        """Run a service's health check."""
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert (kind, command[0]) == ("CMD", "python")
        served = str(SERVED.get(name, COUNTER_PORT))
        command = [argument.replace(served, str(self.ports[name])) for argument in command]
        return (
            subprocess.run([sys.executable, *command[1:]], capture_output=True, check=False).returncode == 0
        )

    def _moved(self, source: str, **changed: str) -> str:
        """Return a copy of a mounted file with other addresses in it."""
        text = (ROOT / source).read_text()
        for before, after in changed.items():
            text = text.replace(before, after)
        copy = self._directory / Path(source).name
        copy.write_text(text)
        return str(copy)


@pytest.fixture
async def stack(broker, tmp_path) -> AsyncIterator[Stack]:
    setting = Setting(bootstrap=broker.bootstrap_servers)
    await delete_topics(setting)
    stack = Stack(broker.bootstrap_servers, tmp_path)
    yield stack
    for process in stack.started:
        await process.end()
    await delete_topics(setting)


async def create_raw_topic(bootstrap: str) -> None:
    """Do what the service `raw-topic` does with Kafka's own program."""
    arguments = SERVICES["raw-topic"]["command"][1:]
    given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments if "=" in argument)
    settings = dict([given["config"].split("=")])
    topic = NewTopic(given["topic"], int(given["partitions"]), 1, topic_configs=settings)
    async with started(Cluster({"bootstrap_servers": bootstrap}).admin(), "creating a topic") as admin:
        await admin.create_topics([topic])


async def test_the_stack_alerts_and_forwards_what_it_alerts(stack, broker):
    applying = stack.start("apply")
    assert await asyncio.to_thread(applying.process.wait, 60) == 0, applying.log
    await create_raw_topic(broker.bootstrap_servers)
    with receiving() as (address, received):  # in place of Alertmanager
        others = {"http://alertmanager:9093": address}
        running = {name: stack.start(name, **others) for name in (*SERVED, COUNTER)}
        for name, process in running.items():
            await process.until(partial(stack.healthy, name))
        feed = stack.start("feed")
        alerts = await asyncio.to_thread(_alerts, broker.bootstrap_servers, 3)
        weeks = {alert["dataset"] for alert in alerts}  # the first one, where the machine is fast enough
        assert all(name.startswith("retail-week-") for name in weeks)
        assert all(alert["gap"] >= 0 for alert in alerts)
        await running["forward"].until(lambda: sum(len(one.body) for one in received) >= len(alerts), 30)
        assert {request.path for request in received} == {"/api/v2/alerts"}
        assert weeks <= {alert["labels"]["dataset"] for one in received for alert in one.body}
        assert await feed.end() == 0, feed.log
        assert feed.said("line 4,900 of 88,162: a window of retail-week-1 is sent")
        for name, process in running.items():
            began = time.monotonic()
            assert await process.end() == 0, process.log
            assert time.monotonic() - began < int(SERVICES[name]["stop_grace_period"].removesuffix("s"))


def _alerts(bootstrap: str, count: int) -> list[dict[str, Any]]:
    """Return the first alerts, as anybody on this machine may read them from the published port."""
    command = ["watch", "--topic", "retail-demo.alerts", "--from-beginning", "--json", "--limit", str(count)]
    done = subprocess.run(
        [*COMMAND, *command, "--bootstrap-servers", bootstrap],
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    return [json.loads(line)["data"] for line in done.stdout.splitlines()]


async def test_a_worker_without_its_topics_waits_is_not_healthy_and_says_what_to_do(stack):
    worker = stack.start("worker-1")
    await worker.until(lambda: worker.said("'stream-svt apply -c FILE --create-topics' creates it"))
    assert worker.alive
    assert not stack.healthy("worker-1")
