"""How a demo ends after an error, and one demo on a real broker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from stream_svt.demo import session
from stream_svt.demo.scenario import ADAPTIVE, APPEND, Setting, WeekClock, service_yaml
from stream_svt.demo.session import INTERRUPTED, feed, raise_when_ended, run_demo, start, stop
from stream_svt.errors import ConfigError, StreamSvtError
from stream_svt.service.config import parse_config
from stream_svt.service.kafka import Cluster, partition_counts


def plain() -> Console:
    return Console(file=io.StringIO(), width=200)


async def test_a_service_that_ends_too_early_fails_the_demo_and_never_gets_the_variables_of_the_user(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("STREAM_SVT_KAFKA_BOOTSTRAP_SERVERS", "production:9092")
    child = await start(["run", "-c", "nowhere.yaml"], tmp_path / "log")
    assert b"STREAM_SVT_" not in of_process(child.pid, "environ")
    ended = r"the service ended too early, with exit code 2(?s:.*)nowhere.yaml"
    async with asyncio.timeout(30):
        with pytest.raises(StreamSvtError, match=ended):
            await raise_when_ended(child, tmp_path / "log")
    assert await stop(child) == 2


@pytest.mark.loopback
def test_an_unreachable_broker_is_named_with_what_to_check():
    console = plain()
    assert run_demo(broker="127.0.0.1:1", console=console) == 3
    text = console.file.getvalue()
    assert "127.0.0.1:1" in text
    assert "check" in text


def test_show_config_prints_the_configuration_and_starts_nothing(capsys, clock, parsed):
    assert run_demo(show_config=True) == 0
    assert capsys.readouterr().out == service_yaml(Setting(), clock)
    assert parsed.spec.notes == ()
    assert [dataset.name for dataset in parsed.spec.datasets] == clock.weeks()
    assert len({dataset.limit for dataset in parsed.spec.datasets}) == 2
    # A set holds every item, and the stream fits the exposure.
    append, adaptive = parsed.spec.monitors
    points = [point for point in clock.checkpoints() if point.dataset == clock.weeks()[0]]
    assert append.append.max_set_size == 16_470
    assert adaptive.expected_queries == len(points) * 16_470


@pytest.mark.kafka
def test_a_short_demo_alerts_on_a_running_broker_and_leaves_no_topic_behind(broker, tmp_path):
    console, summary = plain(), tmp_path / "summary.json"
    clock = WeekClock(88_162, every=2_940)
    code = run_demo(
        duration=4.0, broker=broker.bootstrap_servers, summary=summary, clock=clock, console=console
    )
    text = console.file.getvalue()
    assert code == 0, text
    figures = json.loads(summary.read_text())
    assert figures["queries"] % 16_470 == 0
    assert figures["queries"] > 0
    for name in (APPEND, ADAPTIVE):
        part = figures["monitors"][name]
        assert part["queries"] == figures["queries"]
        assert part["alerts"] > 0
        assert part["precision"] >= 0.7
    spent = sum(budget["spent"] for budget in figures["datasets"].values())
    assert 0 < spent <= sum(budget["limit"] for budget in figures["datasets"].values())
    assert "ALERT" in text
    assert "Tom Brijs" in text
    cluster = Cluster({"bootstrap_servers": broker.bootstrap_servers})
    left = asyncio.run(partition_counts(cluster, "looking for topics"))
    assert not any(name.startswith("retail-demo-") for name in left)


@pytest.mark.kafka
def test_an_interrupted_demo_ends_what_it_started(broker):
    def press_ctrl_c() -> None:
        deadline = time.monotonic() + 60
        while "ALERT" not in console.file.getvalue() and time.monotonic() < deadline:
            if over.wait(0.1):  # the demo failed before its first alert
                return
        os.kill(os.getpid(), signal.SIGINT)

    console, over = plain(), threading.Event()
    signaller = threading.Thread(target=press_ctrl_c)
    signaller.start()
    try:
        assert run_demo(broker=broker.bootstrap_servers, console=console) == INTERRUPTED
    finally:
        over.set()
        signaller.join()
    assert "interrupted" in console.file.getvalue()
    assert children() == []


def children() -> list[int]:
    """Return the child processes that run a part of the demo."""
    pids = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    return [int(pid) for pid in pids if b"stream_svt.demo" in of_process(pid, "cmdline")]


def of_process(pid: int | str, name: str) -> bytes:
    return Path("/proc", str(pid), name).read_bytes()


# Queries for a service that runs elsewhere

OTHER = """
application: shop
datasets: [{name: a, limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


async def test_another_configuration_is_refused_before_anything_connects():
    with pytest.raises(ConfigError, match="demo --show-config"):
        await feed(parse_config(OTHER))


async def test_lines_of_feed_and_their_times_depend_on_the_clock_alone(monkeypatch, parsed):
    async def no_brokers(config, cluster):
        del config, cluster

    async def produce(baskets, clock, *, kafka, topic, partitions):
        assert (kafka["bootstrap_servers"], topic, partitions) == (
            ["127.0.0.1:9092"],
            "retail-demo.counts",
            4,
        )
        for number, point in enumerate(clock.checkpoints(), start=1):
            yield point, 16_470 * number

    monkeypatch.setattr(session, "require", no_brokers)
    monkeypatch.setattr(session, "produce", produce)
    lines: list[str] = []
    assert await feed(parsed, seconds=0, write=lines.append, clock=WeekClock(every=14_700)) == 0
    assert lines[0] == (
        "line 14,700 of 88,162: set line-14700 of retail-week-1 is closed, 16,470 queries so far"
    )
    assert len(lines) == 6
    lines.clear()
    assert await feed(parsed, seconds=0.2, duration=0.5, write=lines.append) == 0
    assert 1 <= len(lines) <= 3
