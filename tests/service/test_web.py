"""The pages of a worker, before any web framework sees them and as they are served."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from stream_svt.errors import ConfigError
from stream_svt.protocol.tenure import State
from stream_svt.service.config import parse_config
from stream_svt.service.web import EVENTS, pages
from stream_svt.service.web.feed import VIEWERS
from stream_svt.service.web.pages import ASSETS, HEADERS, PAGES
from tests.service.test_metrics import SPEC, owned, view
from tests.support.released import alert
from tests.support.status_page import Stage, Stub
from tests.support.worker import until


@pytest.fixture
def worker() -> Stub:
    return Stub(parse_config(SPEC))


def test_the_status_is_json_with_released_state_only(worker: Stub) -> None:
    worker.shards = (owned(view("a", tops=2)),)
    status = json.loads(pages.status(worker).body)
    assert status["application"] == "shop"
    assert status["datasets"][0]["monitors"][0]["tops"] == 2
    assert status["monitors"][0]["threshold"] == 5
    assert status["shards"][0]["state"] == "running"


def test_a_worker_tells_of_itself_without_the_datasets(worker: Stub) -> None:
    worker.shards = (owned(view("a", tops=2)),)
    about, status = json.loads(pages.about(worker).body), json.loads(pages.status(worker).body)
    assert {name: value for name, value in status.items() if not name.startswith("datasets")} == about


def test_a_standby_without_shards_is_ready(worker: Stub) -> None:
    assert pages.ready(worker).status == 200
    worker.joined = False
    assert pages.ready(worker).status == 503


@pytest.mark.parametrize(
    "state", [State.OPENING, State.LOST, State.ROLLED_BACK, State.PARKED, State.RETRYING]
)
def test_a_shard_that_is_not_open_makes_the_worker_unready_but_keeps_it_alive(
    worker: Stub, state: State
) -> None:
    status = owned()
    status.state = state
    worker.shards = (status,)
    assert pages.ready(worker).status == 503
    assert state.value in pages.ready(worker).body.decode()
    assert pages.live(worker).status == 200


async def test_a_failed_worker_is_neither_live_nor_ready(worker: Stub) -> None:
    await worker.start()
    worker.failed.set_exception(RuntimeError())
    assert pages.live(worker).status == 503
    assert pages.ready(worker).status == 503
    worker.failed.exception()


def test_reloads_that_shards_would_refuse_leave_the_old_specification_in_use(worker: Stub) -> None:
    worker.shards = (owned(view("a")),)
    changes = {
        "limit: {epsilon: 4}": ("limit: {epsilon: 5}", "raise-budget --dataset a --limit 5"),
        "unit: one basket": ("unit: one user", "cannot change"),
        "names: [a, b, c]": ("names: [a, b]", "never dropped"),
        "correction: none": ("correction: none, append: retry", "another name"),
        "application: shop": ("application: shed", "another application"),
    }
    before = worker.config
    for old, (new, message) in changes.items():
        with pytest.raises(ConfigError, match=message):
            worker.reload(parse_config(SPEC.replace(old, new)))
        assert worker.config is before


def test_a_reload_after_a_raised_budget_is_accepted(worker: Stub) -> None:
    worker.shards = (owned(replace(view("a"), limit=5.0)),)
    worker.reload(
        parse_config(SPEC.replace("epsilon: 4", "epsilon: 5").replace("threshold: 5", "threshold: 6"))
    )
    assert worker.workload.spec.monitor("hot").threshold == 6


def test_the_status_page_names_no_other_host_and_holds_nothing_inline() -> None:
    """The browser refuses what is inline or foreign; this says so before a browser is asked."""
    page = pages.front(Stub(parse_config(SPEC))).body.decode()
    assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=|javascript:", page)
    for name in ASSETS:
        text = PAGES[f"/assets/{name}"](Stub(parse_config(SPEC))).body.decode()
        hosts = set(re.findall(r"https?://[^\s\"'/]+", page + text))
        assert hosts <= {"http://www.w3.org"}, name  # the name of the SVG language, never fetched
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text
        )
    found = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    assert {f"/{path}" for path in found} <= PAGES.keys() | {EVENTS}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(SPEC).open() as stage:
        yield stage


def _ask(stage: Stage, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


async def _open(stage: Stage, target: str = EVENTS, head: str = "") -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
    await writer.drain()
    return reader, writer


@pytest.mark.loopback
async def test_every_page_is_served_read_only_with_its_type_and_the_strict_headers(stage: Stage) -> None:
    for path, page in PAGES.items():
        status, headers, body = await asyncio.to_thread(_ask, stage, path)
        assert (status, len(body) > 0) == (200, True)
        assert headers["Content-Type"] == page(stage.worker).content_type
        assert headers.items() >= HEADERS.items(), path
        status, _, body = await asyncio.to_thread(_ask, stage, path, "HEAD")
        assert (status, body) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await asyncio.to_thread(_ask, stage, path, method))[0] == 405


@pytest.mark.loopback
async def test_events_are_streamed_as_they_are_published_and_go_on_where_a_reader_stopped(
    stage: Stage,
) -> None:
    stage.topic.put(alert("a", "one"))
    reader, writer = await _open(stage)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"text/event-stream" in head
        await reader.readuntil(b'"series":"one"')
        stage.topic.put(alert("a", "two"))
        told = await reader.readuntil(b'"series":"two"')
    writer.close()
    place = re.findall(rb"id: ([\d.]+)\n", told)[-1].decode()
    stage.topic.put(alert("a", "three"))
    for target, header in ((EVENTS, f"Last-Event-ID: {place}\r\n"), (f"{EVENTS}?after={place}", "")):
        reader, writer = await _open(stage, target, header)
        async with asyncio.timeout(10):
            told = await reader.readuntil(b'"series":"three"')
        assert b'"series":"two"' not in told
        writer.close()


@pytest.mark.loopback
async def test_a_head_request_for_the_events_ends_and_nobody_looks_afterwards(stage: Stage) -> None:
    status, headers, body = await asyncio.to_thread(_ask, stage, EVENTS, "HEAD")
    assert (status, body) == (200, b"")
    assert headers["Content-Type"].startswith("text/event-stream")
    assert stage.topic.opened == 0
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await asyncio.to_thread(_ask, stage, EVENTS, method))[0] == 405


@pytest.mark.loopback
async def test_one_viewer_too_many_is_sent_elsewhere(stage: Stage) -> None:
    for _ in range(VIEWERS):
        stage.feed.join()
    status, headers, _ = await asyncio.to_thread(_ask, stage, EVENTS)
    assert (status, headers["Retry-After"]) == (503, "30")


@pytest.mark.loopback
async def test_a_viewer_who_leaves_or_stops_reading_gives_its_place_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_svt.service.web.WRITE_DEADLINE", 0.2)
    stage.topic.put(alert("a", "one"))
    reader, writer = await _open(stage)
    await reader.readuntil(b'"series":"one"')
    assert len(stage.feed._viewers) == 1
    writer.transport.pause_reading()  # it takes nothing more; what is sent fills every buffer on the way
    end = asyncio.get_running_loop().time() + 20
    while stage.feed._viewers:
        assert asyncio.get_running_loop().time() < end
        stage.feed._tell(b": " + b"x" * 1_000_000 + b"\n\n")
        await asyncio.sleep(0.01)
    writer.transport.resume_reading()
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            while await reader.read(1 << 20):
                pass  # what was on the way; then the connection ends
    writer.close()
    reader, writer = await _open(stage)
    await reader.readuntil(b'"series":"one"')
    writer.close()
    stage.topic.put(alert("a", "two"))
    await until(lambda: not stage.feed._viewers)


@pytest.mark.loopback
async def test_the_host_stops_at_once_while_somebody_looks() -> None:
    stage = Stage(SPEC)
    async with asyncio.timeout(5):
        async with stage.open():
            reader, writer = await _open(stage)
            await reader.readuntil(b"event: overview")
        await reader.read()  # the stream has ended
    writer.close()
