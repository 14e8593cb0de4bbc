"""The process of a worker limits its log."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

import pytest

from stream_svt.service import app as module
from stream_svt.service.app import limit_logs

SHARDS, SECONDS = 64, 20


@pytest.fixture
def clock(caplog, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that the test sets, which the log limits use, and the lines that the handler writes."""
    text = io.StringIO()
    clock = SimpleNamespace(now=1_000.0, lines=lambda: text.getvalue().splitlines())
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(text)])
    caplog.set_level(logging.INFO)
    limit_logs()
    return clock


def test_an_outage_logs_at_most_five_lines_a_second_and_every_critical_one(clock: SimpleNamespace) -> None:
    """Log what 64 shards and their clients log while brokers are unreachable."""
    names = ("stream_svt.service.shard", "aiokafka", "aiokafka.consumer.group_coordinator")
    ours, client, group = map(logging.getLogger, names)
    for _ in range(SECONDS):
        clock.now += 1
        for shard in range(SHARDS):
            ours.warning("event=shard_retry shard=%d error=%r", shard, "connection refused")
            client.error("Unable connect to node with id %s: %s", shard % 3, "refused")
            client.error(f"Unable to update metadata from [{shard}]")
            group.error("Error sending JoinGroupRequest_v2 to node %s [%s]", shard % 3, "NodeNotReadyError")
        ours.critical("event=records_lost")
    found = [line for line in clock.lines() if line != "event=records_lost"]
    assert len(found) <= 5 * SECONDS
    assert len(found) + SECONDS == len(clock.lines())
    assert {line.split()[0] for line in found[:12]} == {"event=shard_retry", "Unable", "Error"}


def test_omitted_lines_are_counted_and_progress_of_many_shards_is_logged_completely(
    clock: SimpleNamespace,
) -> None:
    log = logging.getLogger("stream_svt.service.shard")
    for shard in [*100 * [1], 2, 3]:
        clock.now += 60 * (shard == 2)
        log.warning("event=shard_retry shard=%d", shard)
    assert clock.lines() == [
        *3 * ["event=shard_retry shard=1"],
        "event=shard_retry shard=2 left_out=97",
        "event=shard_retry shard=3",
    ]
    for shard in range(1_000):
        log.info("event=shard_opened shard=%d", shard)
    assert len(clock.lines()) == 5 + 200
