"""The forwarder's process: its pages, its address, and its command line, without a broker."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from stream_svt.errors import ConfigError
from stream_svt.forward.app import _served
from stream_svt.forward.document import json_schema
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.web import pages
from tests.support.command_line import CommandLine
from tests.support.forwarding import Receiver, configured

pytestmark = pytest.mark.loopback
FILE = """
kafka: {bootstrap_servers: "127.0.0.1:1"}
topic: retail.alerts
destinations:
  - {name: hook, webhook: {url: "%s"}}
  - {name: pager, alertmanager: {urls: ["%s", "%s"]}}
"""


@pytest.fixture
def stream_svt(capfd) -> CommandLine:
    return CommandLine(capfd)


def route(name: str, *, joined: bool = True, error: Exception | None = None) -> SimpleNamespace:
    return SimpleNamespace(name=name, joined=joined, error=error)


async def answers(routes, path: str, method: str = "GET") -> tuple[int, str]:
    application = pages(routes, ForwardMetrics("alerts", [one.name for one in routes]))
    async with TestClient(TestServer(application)) as client, client.request(method, path) as answer:
        return answer.status, await answer.text()


async def test_a_forwarder_is_ready_once_every_destination_is_in_its_group():
    assert await answers([route("a"), route("b")], "/health/ready") == (200, "ready\n")
    waiting = [route("a"), route("b", joined=False)]
    assert await answers(waiting, "/health/ready") == (503, "destination b: not in its group\n")


async def test_with_a_stopped_destination_it_is_live_and_not_ready():
    stopped = [route("a"), route("b", joined=False, error=ValueError())]
    assert await answers(stopped, "/health/ready") == (503, "destination b: stopped, see the log\n")
    assert await answers(stopped, "/health/live") == (200, "live\n")


async def test_pages_are_read_only_and_there_are_no_others():
    for path in ("/metrics", "/health/live", "/health/ready"):
        assert (await answers([route("a")], path))[0] == 200
        assert await answers([route("a")], path, "HEAD") == (200, "")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await answers([route("a")], path, method))[0] == 405
    for path in ("/", "/api/v1/status", "/metrics/x"):
        assert (await answers([route("a")], path))[0] == 404


async def test_an_address_in_use_is_named(tmp_path):
    hook = "[{name: a, webhook: {url: 'http://127.0.0.1/'}}]"
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        config = configured(tmp_path, hook, web=f"{{port: {port}}}")
        with pytest.raises(ConfigError, match=rf"web.port: cannot listen on 127.0.0.1:{port}"):
            async with _served(config, aiohttp.web.Application()):
                pass


def test_the_schema_is_printed(stream_svt):
    done = stream_svt("forward", "--schema")
    assert (done.code, json.loads(done.out)) == (0, json_schema())


def test_what_is_missing_or_contradicts_is_a_matter_of_usage(stream_svt, tmp_path):
    assert stream_svt("forward").code == 2
    path = tmp_path / "forward.yaml"
    path.write_text(FILE % (("http://127.0.0.1:1",) * 3))
    both = stream_svt("forward", "-c", path, "--check", "--test")
    assert (both.code, "give one of them" in both.err) == (2, True)
    path.write_text("topic: x")
    wrong = stream_svt("forward", "-c", path)
    assert (wrong.code, "destinations: is required" in wrong.err) == (2, True)


def test_brokers_that_are_away_are_named(stream_svt, tmp_path):
    path = tmp_path / "forward.yaml"
    path.write_text(FILE % (("http://127.0.0.1:1",) * 3))
    for option in ((), ("--check",)):
        done = stream_svt("forward", "-c", path, *option)
        assert done.code == 3
        assert "no broker can be reached" in done.err


async def test_a_test_event_goes_to_every_address_and_says_what_it_is(stream_svt, tmp_path):
    path = tmp_path / "forward.yaml"
    async with Receiver().listening() as one, Receiver().listening() as other:
        path.write_text(FILE % (one.url, other.url, "http://127.0.0.1:1"))
        done = await asyncio.to_thread(stream_svt, "forward", "-c", path, "--test")
    assert done.out.splitlines() == [
        "hook: accepted (status 204)",
        "pager 1: accepted (status 204)",
        "pager 2: unreachable (ClientConnectorError)",
    ]
    assert done.code == 1
    assert "requests are not signed" in done.err
    [event], [[alert]] = one.taken, other.taken
    assert event["type"] == "io.stream-svt.forward.test.v1"
    assert alert["labels"] == {
        "alertname": "ReleasedEvent",
        "severity": "ticket",
        "application": "retail.alerts",
        "type": "io.stream-svt.forward.test.v1",
    }
