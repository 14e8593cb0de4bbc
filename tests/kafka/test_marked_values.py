"""Marked values go through every path of a worker, crash included; afterwards no mark is in anything it released."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import COMMAND, Service, applied, free_port
from tests.support.worker import Scene

pytestmark = pytest.mark.kafka

PAGES = ("/", "/metrics", "/health/live", "/health/ready", "/api/v1/status")
THRESHOLD = 50_000_000_000_000
SENSITIVITY = 1_000_000
"""Noise is some multiples of it, so that the last six digits of a top say nothing by themselves."""
SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: 1}}
commit: {{interval: 100ms}}
web: {{port: {port}}}
datasets:
  - {{names: [a, b], limit: {{epsilon: 7}}, unit: one basket}}
monitors:
  - {{name: hot, cutoff: 2, {common}}}
  - {{name: adaptive, mechanism: adaptive, cutoff: 2, {common}}}
  - {{name: patient, cutoff: 2, append: {{retry: {{attempts: 3, lifetime: 100, capacity: 50, every: 5}}}}, {common}}}
"""
COMMON = (
    "topic: {application}.counts, epsilon: 1, sensitivity: {sensitivity}, monotonic: true, mute: none, "
    "bounds: [0, 99999999999999], threshold: {threshold}, expected_queries: 10000"
)


class Marks:
    """Values of fourteen digits that nothing else can be, as many as are asked for."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self.given: list[str] = []

    def low(self) -> int:
        return self._give(1, 2)

    def high(self) -> int:
        return self._give(8, 9)

    def _give(self, first: int, last: int) -> int:
        mark = self._chance.randint(first * 10**13, last * 10**13)
        self.given.append(str(mark))
        return mark


def forms(mark: str) -> list[bytes]:
    """Return how a value, or a text with it, might be written down."""
    number = int(mark)
    return [
        mark.encode(),
        f"{number:,}".encode(),
        f"{mark[0]}.{mark[1:]}".rstrip("0").encode(),
        f"{number:x}".encode(),
        f"{number:X}".encode(),
        base64.b64encode(mark.encode())[:-4],
        number.to_bytes(8, "big").lstrip(b"\0"),
        number.to_bytes(8, "little").rstrip(b"\0"),
    ]


def found(marks: Marks, said: dict[str, bytes]) -> list[str]:
    """Return where marks are."""
    return [
        f"{mark} is in {where}"
        for mark in marks.given
        for where, text in said.items()
        if any(form in text for form in forms(mark))
    ]


def hostile(marks: Marks) -> list[tuple[bytes | None, bytes, list[tuple[str, bytes]]]]:
    """Return records that are refused, each with a mark where a careless message would quote it."""

    def text(**fields: Any) -> bytes:
        return json.dumps(fields).encode()

    arrow = [("content-type", b"application/vnd.apache.arrow.stream")]
    key = b"a"
    return [
        (key, b'{"id": "q", "value": %d' % marks.low(), []),
        (key, b"%d" % marks.low(), []),
        (key, b"[%d]" % marks.low(), []),
        (key, b"\xff%d" % marks.low(), []),
        (key, text(value=marks.low()), []),
        (key, text(id=marks.low(), value=marks.low()), []),
        (key, text(id="q", value=marks.low(), series=[marks.low()]), []),
        (key, text(id="q", value=marks.low(), set=[marks.low()]), []),
        (key, text(id="q", value=marks.low(), threshold=f"{marks.low()}?"), []),
        (key, text(id="q", value=marks.low(), monitor=f"m{marks.low()}"), []),
        (key, text(id="q", value=marks.low(), time=f"{marks.low()}?"), []),
        (key, b"ARROW1%d" % marks.low(), arrow),
        (key, text(id="q", value=marks.low()), [("content-type", b"text/%d" % marks.low())]),
        (b"unknown-%d" % marks.low(), text(id="q", value=marks.low()), []),
        (None, text(id="q", value=marks.low()), []),
        (key, text(id="q", value=marks.low()) + b" " * 1_000_000, []),
    ]


def odd(marks: Marks) -> list[bytes]:
    """Return queries that are tested, whatever their value looks like: it is never a reason to refuse."""
    return [
        b'{"id": "o%d", "value": %s}' % (number, value)
        for number, value in enumerate(
            [
                b"%d.%d" % (marks.low(), marks.low()),
                b'"%d"' % marks.low(),
                b"-%d" % marks.low(),
                b"%de-3" % marks.low(),
                b"1%d%d" % (marks.low(), marks.low()),
                b'{"hidden": %d}' % marks.low(),
                b"[%d, null]" % marks.low(),
                b'"%d and words"' % marks.low(),
            ]
        )
    ]


class Run:
    """One application with a worker's process, and all that it said."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self.scene = scene
        self.config = directory / f"{scene.application}.yaml"
        self.log = directory / f"{scene.application}.log"
        self.port = free_port()
        self.config.write_text(
            SPEC.format(
                application=scene.application,
                servers=scene.servers,
                port=self.port,
                common=COMMON.format(
                    application=scene.application, sensitivity=SENSITIVITY, threshold=THRESHOLD
                ),
            )
        )
        self.sent = 0

    def start(self) -> Service:
        return Service(self.config, self.port, self.log, "--log-level", "debug", applies=False)

    async def apply(self, old: str, new: str) -> None:
        self.config.write_text(self.config.read_text().replace(old, new))
        await asyncio.to_thread(applied, self.config)

    async def query(self, dataset: str, *values: int) -> None:
        for value in values:
            self.sent += 1
            record = json.dumps({"id": f"q{self.sent}", "value": value, "series": f"s{self.sent % 7}"})
            await self.scene.producer.send(self.scene.queries, record.encode(), key=dataset.encode())
        await self.scene.producer.flush()

    async def raw(self, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        self.sent += 1
        await self.scene.producer.send_and_wait(
            self.scene.queries, value, key=key, partition=0, headers=headers
        )

    async def read_by(self, worker: Service) -> None:
        """Wait until everything sent is read and committed."""
        queries = self.scene.queries
        await worker.until(
            lambda: any(shard["offsets"].get(queries, 0) == self.sent for shard in worker.shards().values())
        )

    async def said(self, worker: Service) -> dict[str, bytes]:
        """Return all that is released: pages, log, topics with what was aborted, the command line."""
        said = {path: (worker.fetch(path) or "").encode() for path in PAGES}
        said["the log"] = self.log.read_bytes()
        for topic in ("alerts", "rejects"):
            records = await self.scene.read(topic, "read_uncommitted")
            said[topic] = b"\n".join(
                part
                for record in records
                for part in (record.key, record.value, *(value for _, value in record.headers))
                if part is not None
            )
        for command in (["check"], ["status"], ["audit"], ["audit", "--state"]):
            done = await asyncio.to_thread(
                subprocess.run,
                [*COMMAND, command[0], "-c", str(self.config), *command[1:]],
                capture_output=True,
                check=False,
                timeout=60,
            )
            said[" ".join(command)] = done.stdout + done.stderr
        assert all(said.values()), {where: len(text) for where, text in said.items()}
        return said


async def drive(run: Run, marks: Marks) -> dict[str, bytes]:
    """Send marked values through every path, kill the worker in the middle, and return all it said."""
    await asyncio.to_thread(applied, run.config, "--wait", "0")
    worker = run.start()
    try:
        await worker.ready()
        for dataset in ("a", "b"):
            await run.query(dataset, *(marks.low() for _ in range(30)), marks.high())
        await run.query("a", *(marks.high() for _ in range(4)))  # both branches, halts, resamples
        for record in hostile(marks):
            await run.raw(*record)
        await run.read_by(worker)
        await run.query("b", *(marks.low() for _ in range(20)), marks.high())
        worker.process.kill()
        worker.process.wait(10)
        for value in odd(marks):
            await run.raw(b"b", value, [])
        await run.query("b", *(marks.low() for _ in range(20)))
        worker = run.start()
        await worker.ready()
        await run.read_by(worker)
        await run.apply("threshold: 5000", "threshold: 5001")  # the version is read in a process of its own
        await worker.until(lambda: b"event=configuration_read version=2" in run.log.read_bytes())
        await run.query("a", *(marks.high() for _ in range(30)))  # until the budget is spent
        await run.read_by(worker)
        await worker.until(lambda: b"exhausted" in (worker.fetch("/api/v1/status") or "").encode())
        await asyncio.sleep(0.3)
        return await run.said(worker)
    finally:
        worker.process.terminate()
        worker.process.wait(20)


def shape(log: bytes, application: str) -> set[str]:
    """Return the kinds of lines in a log: without times, numbers, keys, names, and waiting for a young broker."""
    text = log.decode().replace(application, "APP")
    return {
        re.sub(r"\b[0-9a-f]{6,}\b|[0-9]+", "#", line)
        for line in text.splitlines()
        if "event=worker_outside_group cause=unavailable" not in line
    }


def counts(metrics: bytes, application: str) -> dict[str, str]:
    """Return the accounts on the metrics page: no times, and no gaps, which are noise."""
    kept = {}
    for line in metrics.decode().replace(application, "APP").splitlines():
        name, _, value = line.rpartition(" ")
        if re.match(r"stream_svt_(budget_|monitor_(spent|run_left|datasets|threshold|cutoff|muted))", name):
            kept[name] = value
    return kept


async def test_no_mark_is_in_anything_released_and_other_values_look_the_same(
    broker, topics, tmp_path
) -> None:
    """Two runs side by side, with the same outcomes and all values different."""

    async def seen(name: str) -> tuple[object, object, object]:
        marks = Marks(name)
        async with Scene(
            broker.bootstrap_servers, topics.name(name), partitions=1, datasets="a, b"
        ).on_stage() as scene:
            said = await drive(Run(scene, tmp_path), marks)
            alerts = await scene.alerts()
            kinds = {envelope.type for envelope, _ in await scene.events()}
        assert found(marks, said) == []
        assert {alert.monitor for alert in alerts} == {"hot", "adaptive", "patient"}
        assert any("exhausted" in kind for kind in kinds)
        assert any("halted" in kind for kind in kinds)
        assert len(set(re.findall(rb'"reason":"([a-z-]+)"', said["rejects"]))) >= 12, said["rejects"]
        return (
            sorted((alert.monitor, alert.query_id, alert.branch) for alert in alerts),
            counts(said["/metrics"], scene.application),
            shape(said["the log"], scene.application),
        )

    first, second = await asyncio.gather(seen("marked-one"), seen("marked-two"))
    assert first == second


def test_a_mark_is_found_in_whatever_form_it_was_let_out() -> None:
    marks = Marks("any")
    mark = marks.low()
    for text in (f"value {mark} is odd", f"{mark:,}", f"{mark:e}", f"0x{mark:x}", f"{float(mark)!r}"):
        leaked = text.encode()
        if text == f"{mark:e}":
            leaked = f"{mark:.13e}".encode()
        assert found(marks, {"the log": leaked}), text
    for packed in (mark.to_bytes(8, "big"), mark.to_bytes(6, "little"), base64.b64encode(str(mark).encode())):
        assert found(marks, {"the log": packed}), packed
    assert not found(marks, {"the log": str(mark + 1).encode()})
