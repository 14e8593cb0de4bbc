"""The status page of a live run in a real browser: what it shows, and that nothing else comes over the line."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from playwright.async_api import expect

from stream_svt.monitor.released import Alert
from stream_svt.service.web import EVENTS
from tests.support.browser import Line, browser, visit
from tests.support.process import Service, free_port
from tests.support.topics import create_topics
from tests.support.worker import until

pytestmark = [pytest.mark.kafka, pytest.mark.debian]

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: 2}}
commit: {{interval: 100ms}}
sealing: {{key_file: state.key}}
web: {{port: {port}}}
datasets:
  - {{names: [north, south], limit: {{epsilon: 4}}, unit: one basket}}
monitors:
  - name: hot
    topic: {application}.counts
    epsilon: 1
    cutoff: 3
    sensitivity: 100000
    monotonic: true
    bounds: [0, 1000000000000]
    threshold: 500000000000
    expected_queries: 10000
    mute: none
"""
HIGH, LOW = 731_820_641_907, 313_370_207
"""Values that nothing released holds by chance: the noise moves them by a million."""

MOVED = re.compile(r"width: [0.]*[1-9]")
"""Style of a bar's part that is not empty."""

MASTER = bytes(range(100, 132))


@dataclass
class Scene:
    """An application on the session's broker, served by two workers."""

    application: str
    servers: str
    directory: Path
    workers: list[Service]
    ports: list[int]

    async def send(self, dataset: str, series: str, value: float) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.servers, acks="all")
        await producer.start()
        try:
            query = {"id": f"{series}-{time.monotonic_ns()}", "value": value, "series": series}
            await producer.send_and_wait(
                f"{self.application}.counts", json.dumps(query).encode(), key=dataset.encode()
            )
        finally:
            await producer.stop()


@pytest.fixture
async def scene(broker, topics, tmp_path) -> AsyncIterator[Scene]:
    application = topics.name("watch")
    servers = broker.bootstrap_servers
    clock = {"message.timestamp.type": "LogAppendTime"}
    own = {f"{application}.{name}": 2 for name in ("counts", "alerts", "rejects", "control")}
    await create_topics(servers, own, clock)
    await create_topics(servers, {f"{application}.state": 2}, clock | {"cleanup.policy": "compact"})
    (tmp_path / "state.key").write_text(MASTER.hex())
    (tmp_path / "state.key").chmod(0o600)
    workers, ports = [], [free_port(), free_port()]
    for number, port in enumerate(ports):
        config = tmp_path / f"monitors-{number}.yaml"
        config.write_text(SPEC.format(application=application, servers=servers, port=port))
        workers.append(Service(config, port, tmp_path / f"worker-{number}.log"))
    try:
        for worker in workers:
            await worker.ready()
        yield Scene(application, servers, tmp_path, workers, ports)
    finally:
        for worker in workers:
            await worker.end(signal.SIGTERM)


async def test_a_live_run_is_seen_without_a_reload_at_either_worker_and_nothing_trusted_comes_along(
    scene: Scene, debian_program
) -> None:
    """One test, for two workers and a browser take seconds to start."""
    line, phone_line = (Line(port) for port in scene.ports)
    async with (
        line.open(),
        phone_line.open(),
        browser(debian_program("chromium")) as chromium,
        visit(chromium, f"http://127.0.0.1:{line.port}/", dark=True) as seen,
        visit(chromium, f"http://127.0.0.1:{phone_line.port}/", width=390, height=844) as phone,
    ):
        page = seen.page
        for worker, port in zip(scene.workers, scene.ports, strict=True):
            assert f"page=http://127.0.0.1:{port}/" in worker.log  # where to look is said at the start
        for one in (page, phone.page):
            await expect(one.locator("#link")).to_have_text("Live", timeout=20_000)
            await expect(one.locator(".budget")).to_have_count(2)
            await expect(one.locator("#alerts-empty")).to_be_visible()
            await one.evaluate("window.sameDocument = true")
        await scene.send("north", "quiet", LOW)
        await scene.send("north", "item-40", HIGH)
        await scene.send("south", "<script>alert(1)</script>", HIGH)
        for one in (page, phone.page):
            await expect(one.locator("#list > li:visible")).to_have_count(2, timeout=20_000)
            await expect(one.locator("#list > li", has_text="item-40").first).to_contain_text(
                "At least 731,8"
            )
            for dataset in ("north", "south"):
                budget = one.locator(".budget", has_text=dataset)
                await expect(budget.locator(".amount")).to_have_text(
                    re.compile(r"^3\.\d+ of 4 epsilon left$")
                )
                await expect(budget.locator(".bar .spent")).to_have_attribute("style", MOVED)
            assert await one.evaluate("window.sameDocument")
        await expect(page.locator("#spoken")).to_contain_text("New alert: ")
        assert await phone.page.evaluate("document.documentElement.scrollWidth") <= 390
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(16, 20, 22)"
        for visited in (seen, phone):
            origin = visited.page.url
            assert all(url.startswith(origin) for url in visited.requests), visited.requests
            assert visited.said == []
        await _halts_are_seen(scene, page)
        for told in (line, phone_line):
            await until(lambda told=told: len(_released(bytes(told.bytes))) >= 5, 20)
            _is_all_released(bytes(told.bytes))
        started = time.monotonic()
        assert await scene.workers[0].end(signal.SIGTERM) == 0
        assert time.monotonic() - started < 15.0  # whoever looks does not hold it up
        await expect(page.locator("#link")).to_have_text("No answer", timeout=15_000)
        await expect(page.locator("#notice")).to_contain_text("does not answer")
        # The other worker takes over, and its page goes on where it was.
        await scene.send("north", "item-41", HIGH)
        await expect(phone.page.locator("#list > li", has_text="item-41").first).to_be_visible(timeout=30_000)
        await expect(phone.page.locator("#shards tr")).to_have_count(2, timeout=10_000)


async def _halts_are_seen(scene: Scene, page) -> None:
    for number in range(2):
        await scene.send("north", f"more-{number}", HIGH)
    await page.get_by_label("Show runs and other events").check()
    halted = page.locator("#list > li", has_text="halted: it has raised all the alerts it paid for")
    await expect(halted).to_be_visible(timeout=20_000)


def _is_all_released(said: bytes) -> None:
    """Hold every byte of the line against what must not be there; the checker finds both in the trusted zone."""
    assert b"GET /api/v1/events" in said
    assert said.count(b"event: released") >= 2
    assert f"GET {EVENTS}".encode() in said
    trusted = {
        "a value": str(HIGH).encode(),
        "a value of a query that raised no alert": str(LOW).encode(),
        "the sealing key": MASTER.hex().encode(),
        "the sealing key's bytes": MASTER,
        "the name of a query's field": b'"value"',
    }
    for name, secret in trusted.items():
        assert not _found(secret, said), f"{name} came over the line"
    query = json.dumps({"id": "q", "value": HIGH}).encode()
    assert _found(trusted["a value"], query)
    assert _found(trusted["the name of a query's field"], query)
    fields = set(Alert.__struct_fields__)
    events = _released(said)
    assert len(events) >= 5
    for event in events:
        data = json.loads(event)["data"]
        assert set(data) in (fields, {"dataset", "monitor", "run", "reason", "account", "detail"})


def _released(said: bytes) -> list[bytes]:
    return re.findall(rb"event: released\ndata: (\{.*?\})\n\n", said.replace(b"\r\n", b""))


def _found(secret: bytes, said: bytes) -> bool:
    digits = re.sub(rb"(?<=\d),(?=\d{3})", b"", said)
    return secret in said or secret in digits


@pytest.mark.parametrize(
    ("style", "moved"),
    [
        ("left: 0%; width: 0%;", False),
        ("width: 0.00%", False),
        ("width: 0.004%", True),
        ("width: 7%", True),
        ("width: 10.5%", True),
        ("width: 100%", True),
    ],
)
def test_a_bar_that_did_not_move_is_told_from_one_that_did(style: str, moved: bool) -> None:
    assert (MOVED.search(style) is not None) is moved


async def test_the_event_stream_alone_goes_on_where_it_stopped(scene: Scene) -> None:
    """For programs: a line broken in the middle misses nothing and repeats nothing, at another worker too."""
    await scene.send("north", "one", HIGH)
    place, first = await _listen(scene.ports[0], "", b'"series":"one"')
    assert first.count(b'"series":"one"') == 1
    await scene.send("south", "two", HIGH)
    _, again = await _listen(scene.ports[1], place, b'"series":"two"')
    assert b'"series":"one"' not in again


async def _listen(port: int, place: str, until: bytes) -> tuple[str, bytes]:
    """Read events until one holds a text; return the place to go on from and what was read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"Last-Event-ID: {place}\r\n" if place else ""
    writer.write(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
    try:
        async with asyncio.timeout(30):
            said = await reader.readuntil(until)
    finally:
        writer.close()
    return re.findall(rb"id: ([\d.]+)\n", said)[-1].decode(), said
