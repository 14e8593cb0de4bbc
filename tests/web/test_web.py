"""The pages of a worker, before any web framework sees them and as they are served."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

import pytest

from stream_svt import web as pages
from stream_svt import web_server
from stream_svt.application.config import parse_config
from stream_svt.mechanisms.estimates import survival
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.web import ASSETS, HEADERS, OVERVIEW, PAGES
from stream_svt.worker.worker import WorkerFault, WorkerSignal
from tests.support.released import alert
from tests.support.shop import SPEC, owned, view
from tests.support.status_page import Stage, Stub


@pytest.fixture
def worker() -> Stub:
    return Stub(parse_config(SPEC))


async def test_the_status_has_released_state_and_what_a_worker_tells_of_itself_leaves_out_the_datasets(
    worker,
):
    worker.shards = (owned(view("a", alerts=2)),)
    about, status = (
        json.loads(pages.worker_page(worker).body),
        json.loads((await pages.status_page(worker)).body),
    )
    assert (status["application"], status["shards"][0]["state"]) == ("shop", "running")
    assert status["datasets"][0]["monitors"][0]["alerts"] == 2
    assert status["monitors"][0]["threshold"] == 5
    mechanism, margin = (
        parse_config(SPEC).spec.monitors[0].mechanism(),
        round(status["monitors"][0]["surely"]) - 5,
    )
    reached = partial(survival, mechanism.branch_laws[0], mechanism.threshold_law)
    assert reached(1 - margin) < 0.95 <= reached(-margin)
    assert {name: value for name, value in status.items() if not name.startswith("datasets")} == about


READY = {ShardState.REPLAYING, ShardState.RUNNING, ShardState.PARKED}
"""States that a restart would not mend, or that need none."""


@pytest.mark.parametrize("state", [None, *(state for state in ShardState)])
def test_a_worker_is_ready_where_no_shard_of_its_own_is_about_to_open_and_alive_anyway(worker, state):
    """Without shards it is a standby."""
    status = owned()
    if state is not None:
        status.state = state
        worker.shards = (status,)
    is_ready = state is None or state in READY
    assert pages.ready(worker).status == (200 if is_ready else 503)
    assert is_ready or state.value in pages.ready(worker).body.decode()
    assert pages.live(worker).status == 200
    worker.joined = False
    assert pages.ready(worker).status == 503


async def test_a_worker_outside_its_group_is_live_and_not_ready_and_says_why(worker: Stub) -> None:
    worker._report_fault(
        WorkerFault(Cause.CLOCK, "this machine's clock is 900 s behind the brokers'; set it")
    )
    answer = pages.ready(worker)
    assert answer.status == 503
    assert answer.body.decode() == f"outside the group: clock: {worker.fault.reason}\n"
    assert pages.live(worker).status == 200
    fault = json.loads((await pages.status_page(worker)).body)["fault"]
    assert fault == {"cause": "clock", "reason": worker.fault.reason}


def test_what_a_worker_waits_for_is_shown_on_one_line(worker: Stub) -> None:
    worker._report_fault(WorkerFault(Cause.CLOCK, "the broker said \x1b[2J\r\nready\u202e"))
    body = pages.ready(worker).body.decode()
    assert body == "outside the group: clock: the broker said \\x1b[2J\\r\\nready\\u202e\n"


def test_a_worker_whose_brokers_are_away_for_longer_than_a_session_is_live_and_not_ready(
    worker: Stub,
) -> None:
    worker.unreachable = True
    answer = pages.ready(worker)
    assert (answer.status, pages.live(worker).status) == (503, 200)
    assert answer.body.decode().startswith(
        "outside the group: unavailable: the brokers have been unreachable"
    )


async def test_a_failed_worker_is_neither_live_nor_ready(worker: Stub) -> None:
    worker._signal(WorkerSignal.FAILED)
    assert pages.live(worker).status == 503
    assert pages.ready(worker).status == 503


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage(SPEC).open() as stage:
        yield stage


def _ask(stage: Stage, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


async def _open(stage: Stage, target: str, head: str = "") -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
    await writer.drain()
    return reader, writer


@pytest.mark.loopback
async def test_every_page_is_served_read_only_with_its_type_and_the_strict_headers(stage: Stage) -> None:
    stage.topic.put(alert("a", "one"))
    types = {path: "application/json" for path in (*PAGES, OVERVIEW) if path.startswith("/api/")}
    types |= {f"/assets/{name}": content_type for name, content_type in ASSETS.items()}
    for path in (*PAGES, OVERVIEW):
        status, headers, body = await asyncio.to_thread(_ask, stage, path)
        assert (status, len(body) > 0) == (200, True)
        assert headers["Content-Type"] == types.get(path, headers["Content-Type"])
        assert headers.items() >= HEADERS.items(), path
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; ")
        assert not re.search(r"unsafe|http|\*", headers["Content-Security-Policy"])
        if path == OVERVIEW:
            assert [event["data"]["series"] for event in json.loads(body)["events"]] == ["one"]
        status, _, body = await asyncio.to_thread(_ask, stage, path, "HEAD")
        assert (status, body) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await asyncio.to_thread(_ask, stage, path, method))[0] == 405


@pytest.mark.loopback
async def test_a_large_page_is_compressed_for_whom_asks_and_is_the_same(stage: Stage, monkeypatch) -> None:
    text = b"".join(b'stream_svt_monitor_state{dataset="d%d"} 1\n' % number for number in range(10_000))
    monkeypatch.setattr(stage.worker.metrics, "rendering", lambda: lambda: text)
    ask = partial(asyncio.to_thread, partial(_ask, stage, "/metrics", **{"Accept-Encoding": "gzip"}))
    status, headers, body = await ask()
    assert (status, headers["Content-Encoding"], gzip.decompress(body)) == (200, "gzip", text)
    assert len(body) < len(text) / 5
    assert headers.items() >= HEADERS.items()
    status, headers, body = await asyncio.to_thread(_ask, stage, "/metrics")
    assert (status, headers.get("Content-Encoding"), body) == (200, None, text)


# Many who look do not disturb the worker


@pytest.mark.loopback
async def test_scrapes_by_many_are_one_text_a_second_put_together_on_another_thread(stage, monkeypatch):
    threads = []

    def slowly() -> bytes:
        threads.append(threading.get_ident())
        time.sleep(0.1)
        return b"x 1\n"

    monkeypatch.setattr(stage.worker.metrics, "rendering", lambda: slowly)

    async def scraped(times: int) -> list[bytes]:
        # Not by threads: these, too, would wait for one another.
        scrapes = [await _open(stage, "/metrics", "Connection: close\r\n") for _ in range(times)]
        async with asyncio.timeout(10):
            answers = [await reader.read() for reader, _ in scrapes]
        for _, writer in scrapes:
            writer.close()
        return answers

    answers = await scraped(8)
    assert all(b" 200 OK" in answer and answer.endswith(b"\r\n\r\nx 1\n") for answer in answers)
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
    monkeypatch.setattr(pages, "CACHE_SECONDS", 0.0)
    await scraped(1)
    assert len(threads) == 2
    assert {path for path, page in PAGES.items() if iscoroutinefunction(page)} == {
        "/metrics",
        "/api/v1/status",
    }


async def _refused(stage: Stage) -> bool:
    """Whether a new connection is ended without an answer."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await _open(stage, "/health/live", "Connection: close\r\n")
            received = await reader.read()
            writer.close()
    except ConnectionError:
        return True
    return received == b""


@pytest.mark.loopback
async def test_connections_are_bounded_and_a_place_given_back_is_taken_again(stage, monkeypatch, caplog):
    monkeypatch.setattr(web_server, "CONNECTIONS", 3)
    silent = [await asyncio.open_connection("127.0.0.1", stage.port) for _ in range(3)]
    assert await _refused(stage)
    silent[0][1].close()
    end = time.monotonic() + 5
    while await _refused(stage):
        assert time.monotonic() < end
    for _, writer in silent:
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.loopback
async def test_who_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "IDLE", 0.3)
    async with Stage(SPEC).open() as stage:
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", stage.port)
        slow, slow_writer = await asyncio.open_connection("127.0.0.1", stage.port)
        slow_writer.write(b"GET /health/live HTTP/1.1\r\nHost:")  # and never the rest
        done, done_writer = await _open(stage, "/health/live")
        async with asyncio.timeout(5):
            assert (await silent.read(), await slow.read()) == (b"", b"")
            assert (await done.read()).endswith(b"live\n")
        for writer in (silent_writer, slow_writer, done_writer):
            writer.close()
