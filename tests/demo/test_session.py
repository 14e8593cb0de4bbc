"""How a demo ends after an error, and one demo on a real broker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from rich.console import Console
from rich.live import Live

from stream_svt.application.config import parse_config
from stream_svt.demo import scenario, session
from stream_svt.demo.board import Board
from stream_svt.demo.scenario import ASKED, LIMITS, MONITORS, THRESHOLD, Setting, events_of
from stream_svt.demo.session import Session, feed, require_running, run_demo, start, stop
from stream_svt.errors import BrokerError, ConfigError, StreamSvtError
from stream_svt.kafka.clients import Cluster, partition_counts


def plain(**options) -> Console:
    return Console(file=io.StringIO(), width=200, **options)


@pytest.fixture
def no_clients(monkeypatch):
    """Let the sender's client be its keywords."""
    monkeypatch.setattr(session, "AIOKafkaProducer", dict)
    monkeypatch.setattr(session, "started", lambda client, *_: nullcontext(client))


async def test_a_service_that_ends_too_early_fails_the_demo_and_never_gets_the_variables_of_the_user(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("STREAM_SVT_KAFKA_BOOTSTRAP_SERVERS", "production:9092")
    child = await start(["run", "-c", "nowhere.yaml"], tmp_path / "log")
    assert b"STREAM_SVT_" not in of_process(child.pid, "environ")
    ended = r"the service ended too early, with exit code 2(?s:.*)nowhere.yaml"
    async with asyncio.timeout(30):
        assert await child.wait() == 2
    with pytest.raises(StreamSvtError, match=ended):
        require_running(child, tmp_path / "log")
    assert await stop(child) == 2


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(28, "No space left on device"), StreamSvtError, "the demo failed: .*No space left"),
        (TopicAuthorizationFailedError("alerts"), BrokerError, "permission is missing: operation READ"),
        (BrokenPipeError(), BrokenPipeError, None),  # `main` ends quietly
    ],
)
async def test_an_error_of_the_demo_is_one_line(monkeypatch, error, raised, message):
    monkeypatch.setattr(session, "free_ports", Mock(side_effect=error))
    with pytest.raises(raised, match=message):
        await run_demo(None, "127.0.0.1:1", plain())


@pytest.mark.loopback
async def test_an_error_of_sending_ends_the_demo_at_once(monkeypatch, tmp_path, no_clients):
    monkeypatch.setattr(session, "send", AsyncMock(side_effect=TopicAuthorizationFailedError("events")))
    events = SimpleNamespace(getmany=AsyncMock(return_value={}))
    setting, service = Setting(port=1), SimpleNamespace(returncode=None)
    demo = Session(setting, service, tmp_path, events, plain(), Board())
    with pytest.raises(BrokerError, match=r"sending to topic 'retail-demo\.events': .* operation WRITE"):
        async with asyncio.timeout(30):
            await demo._follow(None, Live(console=plain()))


@pytest.mark.loopback
async def test_an_unreachable_broker_is_named_with_what_to_check():
    with pytest.raises(BrokerError, match=r"'127.0.0.1', 1\b.*check"):
        await run_demo(None, "127.0.0.1:1", plain())


def test_the_configuration_fits_the_windows(counted):
    spec = counted.spec
    (source,) = spec.sources
    assert [dataset.name for dataset in spec.datasets] == list(LIMITS)
    assert len({dataset.terms.limit for dataset in spec.datasets}) == 2
    assert source.unit_text == "all events of one `basket`"
    assert (source.window, source.lateness) == (scenario.WINDOW_MS, scenario.LATENESS_MS)
    assert {monitor.topic for monitor in spec.monitors} == {"retail-demo.baskets.counts"}
    assert {monitor.threshold for monitor in spec.monitors} == {THRESHOLD}
    assert source.window_list().cells == ASKED
    assert spec.monitors[0].append.max_set_size == len(source.series_names)
    # A week is whole windows.
    assert scenario.WEEK_LINES % scenario.WINDOW_LINES == 0
    assert tuple(monitor.name for monitor in spec.monitors) == MONITORS


@pytest.mark.kafka
async def test_a_short_demo_alerts_on_a_running_broker_and_leaves_no_topic_behind(broker):
    console = plain()
    board = await run_demo(4.0, broker.bootstrap_servers, console)
    text = console.file.getvalue()
    assert board.tested == board.sent > 0
    assert board.events > 0
    assert f"{board.events:,} events; 2 monitors tested {board.tested:,} counts" in text
    for name in MONITORS:
        assert board.figures(name)["alerts"] > 0
        assert board.figures(name)["precision*"] >= 0.7
    spent = sum(budget.spent for budget in board.budgets.values())
    assert 0 < spent <= sum(budget.limit for budget in board.budgets.values())
    assert "ALERT" in text
    assert "Tom Brijs" in text
    cluster = Cluster({"bootstrap_servers": broker.bootstrap_servers})
    left = await partition_counts(cluster, "looking for topics")
    assert not any(name.startswith("retail-demo-") for name in left)


@pytest.mark.kafka
async def test_an_interrupted_demo_ends_what_it_started(broker, capsys):
    console = plain(force_terminal=True, height=40)
    demo = asyncio.create_task(run_demo(None, broker.bootstrap_servers, console))
    while "ALERT" not in console.file.getvalue() and not demo.done():
        await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait([demo])
    assert demo.cancelled()
    assert "interrupted" in capsys.readouterr().err
    assert children() == []


def children() -> list[int]:
    """Return the child processes that run a part of the demo."""
    pids = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    return [int(pid) for pid in pids if b"stream_svt.demo" in of_process(pid, "cmdline")]


def of_process(pid: int | str, name: str) -> bytes:
    return Path("/proc", str(pid), name).read_bytes()


# Events for a service that runs elsewhere

OTHER = """
application: shop
datasets: [{name: a, limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


async def test_another_configuration_is_refused_before_anything_connects():
    with pytest.raises(ConfigError, match="stream-svt demo --show-config"):
        await feed(parse_config(OTHER), None)


async def test_raw_events_are_fed_when_they_are_due_and_all_of_a_window_that_has_begun(
    monkeypatch, counted, baskets, capsys, no_clients
):
    sent, partitions = [], []

    async def send(client, topic, partition, key, records):
        now = time.time() * 1000
        assert all(json.loads(one)["ts"] <= now for one in records)
        assert topic == "retail-demo.events"
        partitions.append(partition)
        sent.extend(records)

    monkeypatch.setattr(session, "require", AsyncMock())
    monkeypatch.setattr(session, "partition_counts", AsyncMock(return_value={"retail-demo.events": 3}))
    monkeypatch.setattr(session, "send", send)
    await feed(counted, 0)
    assert {*partitions} == {0, 1, 2}
    first = json.loads(sent[0])["ts"]
    assert first % 3_000 == 0
    assert sent == events_of(baskets, 0, 4_900, first)
    assert capsys.readouterr().out.startswith("line 4,900 of 88,162: a window of retail-week-1 is sent, ")
