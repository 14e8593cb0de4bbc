"""Shards change hands, workers die, brokers restart: every alert once, every charge kept."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stream_svt.errors import BrokerError, ConfigError
from stream_svt.monitor.released import Alert
from stream_svt.protocol.tenure import State
from stream_svt.service.config import parse_config
from stream_svt.service.embedded import EmbeddedKafka
from stream_svt.service.web import PAGES
from stream_svt.service.worker import Worker
from tests.support.permissions import allow
from tests.support.process import free_port
from tests.support.worker import HIGH, LOW, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka
SHORT = {"group.min.session.timeout.ms": "500"}
WORKER = """
import logging, sys
from stream_svt.service.app import run
from stream_svt.service.config import load_config
from stream_svt.service.reading import read_again
logging.basicConfig(level=logging.INFO)
sys.exit(run(load_config(sys.argv[1]), reread=lambda: read_again(sys.argv[1])))
"""


@pytest.fixture
async def scene(broker, topics) -> AsyncIterator[Scene]:
    async with Scene(
        broker.bootstrap_servers, topics.name("shop"), partitions=4, limit=500
    ).on_stage() as scene:
        yield scene


class Feed:
    """Queries of three datasets, one after the other, a known few of them far above the threshold."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.sent = 0
        self.tops = 0
        self._task: asyncio.Task[None] | None = None

    async def burst(self, count: int) -> None:
        for number in range(count):
            high = number % 5 == 2
            await self.scene.send("abc"[number % 3], HIGH if high else LOW)
            self.sent += 1
            self.tops += high

    def begin(self) -> None:
        async def run() -> None:
            while True:
                await self.burst(5)
                await asyncio.sleep(0.02)

        self._task = asyncio.create_task(run())

    async def end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _check(scene: Scene, alerts: list[Alert]) -> None:
    """Every query far above the threshold has one alert, and the books of every dataset are in order."""
    expected = {
        (record.partition, record.offset)
        for record in await scene.read("counts")
        if b'"value": 50000' in record.value
    }
    found = [(alert.position.partition, alert.position.offset) for alert in alerts]
    assert len(found) == len(set(found))
    assert set(found) == expected
    spent: dict[str, float] = {}
    for envelope, data in sorted(await scene.events(), key=lambda event: (event[0].shard, event[0].sequence)):
        account = data.account
        if account is not None:
            before = spent.get(data.dataset, 0.0)
            assert account.spent == pytest.approx(before + account.charge), envelope.id
            spent[data.dataset] = account.spent
    for shard in range(scene.partitions):
        sequences = [envelope.sequence for envelope, _ in await scene.events() if envelope.shard == shard]
        assert sequences == list(range(1, len(sequences) + 1))


async def test_workers_join_and_leave_without_losing_or_doubling_an_alert(scene: Scene) -> None:
    feed = Feed(scene)
    first = await scene.start()
    feed.begin()
    await asyncio.sleep(0.5)
    second = await scene.start()
    await until(lambda: len(first.statuses()) == 2 and len(second.statuses()) == 2)
    await until(lambda: first.ready and second.ready)
    await asyncio.sleep(0.5)
    await scene.stop(first)
    await until(lambda: len(second.statuses()) == 4 and second.ready)
    await asyncio.sleep(0.3)
    await feed.end()
    await scene.settled(second, len(await scene.read("counts")))
    await _check(scene, await scene.alerts())


async def test_a_worker_killed_at_any_moment_loses_and_doubles_nothing(scene: Scene, tmp_path) -> None:
    feed = Feed(scene)
    feed.begin()
    path = tmp_path / "shop.yaml"
    path.write_text(scene.text() + f"web: {{port: {free_port()}}}\n")
    for round_ in range(4):
        process = _launch(path)
        assert process.stderr is not None
        await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
        await asyncio.sleep(0.2 + 0.13 * round_)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    await feed.end()
    worker = await scene.start(ready=False)
    await until(lambda: worker.ready and len(worker.statuses()) == 4, 30)
    await scene.settled(worker, len(await scene.read("counts")))
    await _check(scene, await scene.alerts())
    published = {(a.dataset, a.run, a.top): a for a in await scene.alerts()}
    for alert in await scene.alerts("read_uncommitted"):
        assert published[alert.dataset, alert.run, alert.top] == alert


def _launch(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stderr=subprocess.PIPE, text=True)


def _check_pages(address: str) -> None:
    """Faust serves the worker's pages, and they can only be read."""
    code, kind, body = _request(address + "/metrics")
    assert (code, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert re.search(r'^stream_svt_tops_total\{application="[^"]+",monitor="hot"\} 1\.0$', body, re.MULTILINE)
    code, kind, body = _request(address + "/api/v1/status")
    assert (code, kind) == (200, "application/json")
    assert json.loads(body)["ready"] is True
    for path in PAGES:
        assert _request(address + path)[0] == 200
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert _request(address + path, method)[0] == 405
    for path in ("/router/", "/table/", "/performance/", "/graph/"):
        assert _request(address + path)[0] == 404


def _request(url: str, method: str = "GET") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, "", ""


def _await_line(stream, text: str) -> None:
    for line in stream:
        if text in line:
            return
    pytest.fail(f"the worker ended before {text!r}")


async def test_a_worker_that_was_frozen_steps_back_for_the_new_owner(scene: Scene, tmp_path) -> None:
    """Its producers are fenced, and it proves membership before it opens anything again."""
    feed = Feed(scene)
    path = tmp_path / "shop.yaml"
    path.write_text(scene.text() + f"web: {{port: {free_port()}}}\n")
    with _launch(path) as process:
        await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
        feed.begin()
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        worker = await scene.start(ready=False)
        await until(lambda: worker.ready and len(worker.statuses()) == 4, 30)
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        await until(lambda: worker.ready and len(worker.statuses()) == 2, 30)
        await asyncio.sleep(1.0)
        await feed.end()
        process.terminate()
        _, said = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 0, said
    await until(lambda: worker.ready and len(worker.statuses()) == 4, 30)
    await scene.settled(worker, len(await scene.read("counts")))
    await _check(scene, await scene.alerts())


async def test_a_stopped_worker_leaves_nothing_to_repeat_and_exits_with_zero(scene: Scene, tmp_path) -> None:
    path = tmp_path / "shop.yaml"
    port = free_port()
    path.write_text(scene.text() + f"web: {{port: {port}}}\n")
    process = _launch(path)
    assert process.stderr is not None
    await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
    await scene.send("a", HIGH)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(_check_pages, f"http://127.0.0.1:{port}")
    path.write_text(path.read_text().replace("threshold: 5000", "threshold: 700"))
    process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(_await_line, process.stderr, "event=reloaded")
    await asyncio.to_thread(_await_line, process.stderr, "shard_replayed")
    process.send_signal(signal.SIGTERM)
    _, said = await asyncio.to_thread(process.communicate, timeout=20)
    assert process.returncode == 0, said
    assert len(await scene.alerts()) == 1


async def test_a_worker_that_cannot_go_on_says_why_and_exits_with_the_errors_code(
    scene: Scene, tmp_path
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(
        scene.text().replace("partitions: 4", "partitions: 5") + f"web: {{port: {free_port()}}}\n"
    )
    process = _launch(path)
    _, said = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == ConfigError.exit_code
    assert "has 4 partitions, topics.partitions says 5" in said.splitlines()[-1]
    assert "Traceback" not in said


async def test_a_port_that_is_taken_is_named(scene: Scene, tmp_path) -> None:
    path = tmp_path / "shop.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path.write_text(scene.text() + f"web: {{port: {taken.getsockname()[1]}}}\n")
        process = _launch(path)
        _, said = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == ConfigError.exit_code
    assert "web.port: cannot listen on 127.0.0.1" in said


async def test_a_second_worker_with_another_specification_refuses_to_start(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW)
    await asyncio.sleep(3.5)
    with pytest.raises(ConfigError, match="running another specification"):
        await scene.start(scene.config(threshold=700))
    assert worker.ready
    await scene.stop(scene.workers[-1])
    await scene.stop(worker)
    await scene.start(scene.config(threshold=700))


async def test_a_broker_restart_is_survived(topics) -> None:
    async with (
        EmbeddedKafka(overrides=SHORT) as kafka,
        Scene(kafka.bootstrap_servers, "shop", limit=500).on_stage() as scene,
    ):
        worker = await scene.start()
        await scene.send("a", HIGH)
        await scene.settled(worker, 1)
        await asyncio.to_thread(kafka.restart, kill=True)
        await scene.send("a", HIGH)
        await until(
            lambda: worker.ready and sum(s.offsets.get(scene.queries, 0) for s in worker.statuses()) == 2,
            60,
        )
        await asyncio.sleep(0.5)
        assert len(await scene.alerts()) == 2
        await until(lambda: all(status.state is State.RUNNING for status in worker.statuses()))


async def test_a_session_the_brokers_do_not_allow_ends_the_worker_with_the_reason(scene: Scene) -> None:
    text = scene.text().replace(
        "session_timeout: 2s, heartbeat_interval: 300ms", "session_timeout: 300ms, heartbeat_interval: 100ms"
    )
    worker = await scene.start(parse_config(text), ready=False)
    await until(lambda: not worker.alive)
    assert "kafka.session_timeout" in str(worker.failed.exception())


GRANTS = [
    ("read", "group", "shop"),
    ("write", "transactional_id", "shop-"),
    ("write", "topic", "shop.rejects"),
    ("read", "topic", "shop.state"),
    ("read", "topic", "shop.alerts"),
    ("write", "topic", "shop.state"),
    ("write", "topic", "shop.alerts"),
    ("read", "topic", "shop.control"),
    ("read", "topic", "shop.counts"),
]


async def test_a_wrong_password_and_missing_permissions_are_named(tmp_path) -> None:
    async with (
        EmbeddedKafka(users={"svt": "secret"}, overrides=SHORT) as kafka,
        Scene(kafka.bootstrap_servers, "shop", partitions=1).on_stage() as scene,
    ):
        text = scene.text().replace(
            f'"{scene.servers}"',
            f'"{kafka.sasl_bootstrap_servers}", security_protocol: SASL_PLAINTEXT, sasl_mechanism: PLAIN, '
            "username: svt, password_file: password",
        )

        async def attempt(password: str) -> str:
            (tmp_path / "password").write_text(password)
            worker = Worker(parse_config(text, directory=tmp_path))
            try:
                await worker.start()
                await until(lambda: is_open(worker) or complaint(worker) != "")
                await asyncio.sleep(0.3)
                return complaint(worker)
            except BrokerError as error:
                return str(error)
            finally:
                await worker.stop()

        assert "refused the login" in await attempt("wrong")
        with pytest.raises(ConfigError, match="topics do not exist"):
            await attempt("secret")
        for topic in ("counts", "control", "alerts", "state", "rejects"):
            await allow(kafka.bootstrap_servers, "svt", "describe", "topic", f"shop.{topic}")

        async def says(*wanted: str) -> str:
            """Try until the broker's authorizer has taken in the last grant, which takes a moment."""
            for _ in range(6):
                said = await attempt("secret")
                if said and all(text in said for text in wanted):
                    break
                await asyncio.sleep(0.5)
            return said

        for operation, resource, name in GRANTS:
            # Topics to be written are asked for together, so any of those missing may be named.
            wanted = f"operation {operation.upper()} on resource {resource.upper()}"
            named = name if operation == "read" else "shop"
            said = await says(wanted, named)
            assert wanted in said
            assert named in said
            await allow(
                kafka.bootstrap_servers,
                "svt",
                operation,
                resource,
                name,
                prefixed=resource == "transactional_id",
            )
            await asyncio.sleep(0.5)
        for _ in range(6):
            if (said := await attempt("secret")) == "":
                break
        assert said == ""
