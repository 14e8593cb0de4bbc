"""The forwarder's process: its pages, metrics, address, and command line, without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from stream_svt.errors import ConfigError
from stream_svt.forward.app import pages
from stream_svt.forward.metrics import METRICS, OUTCOMES, ForwardMetrics, Result
from stream_svt.web_server import Pages
from tests.support.command_line import CommandLine
from tests.support.forwarding import Receiver, configured, scraped

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


@pytest.fixture
def nowhere(tmp_path):
    path = tmp_path / "forward.yaml"
    path.write_text(FILE % (("http://127.0.0.1:1",) * 3))
    return path


def page(name: str, *, joined: bool = True, error: Exception | None = None) -> SimpleNamespace:
    return SimpleNamespace(name=name, joined=joined, error=error, gauges=dict)


async def answers(routes, path: str, method: str = "GET") -> tuple[int, str]:
    application = pages(routes, ForwardMetrics("alerts", [one.name for one in routes]))
    async with TestClient(TestServer(application)) as client, client.request(method, path) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("route", "status", "text"),
    [
        (page("b"), 200, "ready\n"),
        (page("b", joined=False), 503, "destination b: not in its group\n"),
        (page("b", joined=False, error=ValueError()), 503, "destination b: stopped, see the log\n"),
    ],
)
async def test_a_forwarder_is_live_and_ready_once_every_destination_is_in_its_group(route, status, text):
    assert await answers([page("a"), route], "/health/ready") == (status, text)
    assert await answers([page("a"), route], "/health/live") == (200, "live\n")


async def test_pages_are_read_only_and_there_are_no_others():
    for path in ("/metrics", "/health/live", "/health/ready"):
        assert await answers([page("a")], path, "HEAD") == (200, "")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await answers([page("a")], path, method))[0] == 405
    for path in ("/", "/api/v1/status", "/metrics/x"):
        assert (await answers([page("a")], path))[0] == 404


async def test_an_address_in_use_is_named(tmp_path):
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        hook = "[{name: a, webhook: {url: 'http://127.0.0.1/'}}]"
        web = configured(tmp_path, hook, web=f"{{port: {port}}}").web
        with pytest.raises(ConfigError, match=rf"web.port: cannot listen on 127.0.0.1:{port}"):
            await Pages(aiohttp.web.Application(), web.host, web.port, "forward.yaml").open()


def test_missing_and_contradicting_options_are_usage_errors(stream_svt, nowhere):
    assert stream_svt("forward").code == 2
    both = stream_svt("forward", "-c", nowhere, "--check", "--test")
    assert (both.code, "give one of them" in both.err) == (2, True)
    nowhere.write_text("topic: x")
    wrong = stream_svt("forward", "-c", nowhere)
    assert (wrong.code, "destinations: is required" in wrong.err) == (2, True)


async def test_a_test_event_goes_to_every_address_and_is_marked_as_a_test(stream_svt, nowhere):
    async with Receiver().listening() as one, Receiver().listening() as other:
        nowhere.write_text(FILE % (one.url, other.url, "http://127.0.0.1:1"))
        done = await asyncio.to_thread(stream_svt, "forward", "-c", nowhere, "--test")
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
        "type": "forward.test",
    }


def test_every_metric_has_its_labels_from_the_start():
    metrics = ForwardMetrics("retail.alerts", ["pager"])
    found = scraped(metrics)
    types = [line.split()[2] for line in metrics.text({}).decode().splitlines() if line.startswith("# TYPE")]
    assert sorted(types) == sorted(metric.name for metric in METRICS)
    labels = [("events_total", outcome) for outcome in OUTCOMES]
    labels += [("attempts_total", result.value) for result in Result]
    for name, *rest in [*labels, ("delay_seconds_count",)]:
        assert found[f"stream_svt_forward_{name}", "pager", *rest] == 0
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
