"""Counters as processes: `stream-svt count`, and the one that a worker keeps beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.support.process import Service
from tests.support.worker import until

pytestmark = pytest.mark.kafka


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def beside(scene, tmp_path):
    """Start a worker that keeps a counter beside it, in a directory of its own."""

    def start(*options: str) -> Service:
        return scene.serve("--with-counter", *options, cwd=tmp_path)

    return start


async def test_a_worker_keeps_a_counter_whose_log_only_its_owner_reads_and_ends_it(scene, beside, tmp_path):
    worker, log = beside(), tmp_path / f"{scene.application}.counter.log"
    await worker.until(lambda: log.exists() and "event=source_counts source=web" in log.read_text())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    await scene.visit(600)
    await scene.alerted()
    [first] = children(worker.process.pid)
    os.kill(first, signal.SIGKILL)
    await worker.until(lambda: "event=counter_ended exit_code=-9" in log.read_text())
    await scene.visit(300)
    await scene.agrees()
    [second] = children(worker.process.pid)
    assert second != first
    assert await worker.end() == 0
    assert not is_running(second)
    assert "event=stopped" in log.read_text()
    assert "source_begins" not in worker.output
    assert log.read_text().count("event=counter_ended") == 1
    # How a counter ends may depend on one unit's events, and the worker's log is released.
    assert "counter_ended" not in worker.output
    assert "-9" not in worker.output.replace(str(log), "")


async def test_the_counter_of_a_worker_that_is_killed_ends_by_itself(scene, beside, tmp_path):
    own = tmp_path / "own.log"
    worker = beside("--counter-log", str(own))
    await worker.until(lambda: own.exists() and "event=assigned" in own.read_text())
    [counter] = children(worker.process.pid)
    await worker.end(signal.SIGKILL)
    await until(lambda: not is_running(counter), 20)
    assert "event=stopped" in own.read_text()


async def test_a_counter_shows_its_health_and_ends_when_it_is_asked(scene):
    process = scene.process("--log-format", "json")
    await process.until(lambda: "no source is declared" in (process.fetch("/health/ready") or ""))
    assert process.fetch("/health/live") == "live\n"
    await scene.publish()
    await process.until(lambda: process.fetch("/health/ready") == "ready\n")
    await process.until(lambda: process.said('"event": "source_counts"'))
    assert "stream_svt_counter_open_windows{" in (process.fetch("/metrics") or "")
    assert await asyncio.wait_for(process.end(), 20) == 0
    assert process.said('"event": "stopped"') == 1


async def test_a_counter_says_which_topic_it_lacks(scene):
    await scene.publish()
    await scene.delete("web.counts")
    process = scene.process()
    assert await process.ended() == 2
    assert f"topic '{scene.application}.web.counts' does not exist" in process.output
