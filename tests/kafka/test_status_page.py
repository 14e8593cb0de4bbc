"""The status page of a live run in a real browser: what it shows, and that nothing else comes over the line."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import expect

from stream_svt.monitor.released import Alert
from stream_svt.service.web import OVERVIEW
from tests.support.browser import Line, browser, visit
from tests.support.keys import write_secrets
from tests.support.process import Service, free_port
from tests.support.worker import Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.debian]

HIGH, LOW = 731_820_641_907, 313_370_207
"""Values that nothing released holds by chance: the noise moves them by a million."""

MOVED = re.compile(r"width: [0.]*[1-9]")
"""Style of a bar's part that is not empty."""

MASTER = bytes(range(100, 132))


@dataclass
class Served:
    """An application on the session's broker, served by two workers."""

    scene: Scene
    workers: list[Service]
    ports: list[int]


@pytest.fixture
async def served(broker, topics, tmp_path) -> AsyncIterator[Served]:
    write_secrets(tmp_path, {"state.key": MASTER.hex()})
    workers, ports = [], [free_port(), free_port()]
    async with Scene(
        broker.bootstrap_servers, topics.name("watch"), datasets="north, south"
    ).on_stage() as scene:
        text = scene.text(threshold=500_000_000_000, most=10**12, sensitivity=100_000)
        for number, port in enumerate(ports):
            config = tmp_path / f"monitors-{number}.yaml"
            config.write_text(f"{text}sealing: {{key_file: state.key}}\nweb: {{port: {port}}}\n")
            workers.append(Service(config, port, tmp_path / f"worker-{number}.log"))
        try:
            for worker in workers:
                await worker.ready()
            yield Served(scene, workers, ports)
        finally:
            for worker in workers:
                await worker.end(signal.SIGTERM)


async def test_a_live_run_is_seen_without_a_reload_at_either_worker_and_nothing_trusted_comes_along(
    served: Served, debian_program
) -> None:
    """One test, for two workers and a browser take seconds to start."""
    scene = served.scene
    line, phone_line = (Line(port) for port in served.ports)
    async with (
        line.open(),
        phone_line.open(),
        browser(debian_program("chromium")) as chromium,
        visit(chromium, f"http://127.0.0.1:{line.port}/", dark=True) as seen,
        visit(chromium, f"http://127.0.0.1:{phone_line.port}/", width=390, height=844) as phone,
    ):
        page = seen.page
        for worker, port in zip(served.workers, served.ports, strict=True):
            assert f"page=http://127.0.0.1:{port}/" in worker.log  # where to look is said at the start
        for one in (page, phone.page):
            await expect(one.locator("#link")).to_have_text("Live", timeout=20_000)
            await expect(one.locator(".budget")).to_have_count(2)
            await expect(one.locator("#alerts-empty")).to_be_visible()
            await one.evaluate("window.sameDocument = true")
        await scene.send("north", LOW, series="quiet")
        await scene.send("north", HIGH, series="item-40")
        await scene.send("south", HIGH, series="<script>alert(1)</script>")
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
        for number in range(2):
            await scene.send("north", HIGH, series=f"more-{number}")
        await page.get_by_label("Show runs and other events").check()
        halted = page.locator("#list > li", has_text="halted: it has raised all the alerts it paid for")
        await expect(halted).to_be_visible(timeout=20_000)
        for told in (line, phone_line):
            await until(lambda told=told: len(_released(bytes(told.bytes))) >= 5, 20)
            _is_all_released(bytes(told.bytes))
        started = time.monotonic()
        assert await served.workers[0].end(signal.SIGTERM) == 0
        assert time.monotonic() - started < 15.0  # whoever looks does not hold it up
        await expect(page.locator("#link")).to_have_text("No answer", timeout=15_000)
        await expect(page.locator("#notice")).to_contain_text("does not answer")
        # The other worker takes over, and its page goes on where it was.
        await scene.send("north", HIGH, series="item-41")
        await expect(phone.page.locator("#list > li", has_text="item-41").first).to_be_visible(timeout=30_000)
        await expect(phone.page.locator("#shards tr")).to_have_count(2, timeout=10_000)


def _is_all_released(said: bytes) -> None:
    """Hold every byte of the line against what must not be there; the checker finds both in the trusted zone."""
    assert f"GET {OVERVIEW}".encode() in said
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
    for event in events.values():
        assert set(event["data"]) in (fields, {"dataset", "monitor", "run", "reason", "account", "detail"})


def _released(said: bytes) -> dict[str, Any]:
    """Return the events of all answers that came over the line, by id."""
    events = {}
    for start in re.finditer(rb'\{"application":', said):
        with contextlib.suppress(ValueError):  # not an overview, or not yet whole
            answer, _ = json.JSONDecoder().raw_decode(said[start.start() :].decode("latin-1"))
            events |= {event["id"]: event for event in answer.get("events", ())}
    return events


def _found(secret: bytes, said: bytes) -> bool:
    digits = re.sub(rb"(?<=\d),(?=\d{3})", b"", said)
    return secret in said or secret in digits
