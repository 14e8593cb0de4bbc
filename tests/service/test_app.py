"""The host of a worker: it adopts every version, limits the time of a stop, and limits the log."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service import app as module
from stream_svt.service import group as groups
from stream_svt.service.app import Monitoring, limit_logs
from stream_svt.service.config import parse_config
from stream_svt.service.kafka import DISCARD_DEADLINE
from stream_svt.service.shard import CANCEL_TIMEOUT
from stream_svt.service.workload import AppliedWorkload
from tests.service.test_metrics import SPEC


async def _versions(*texts: str) -> AsyncIterator[Version]:
    for number, text in enumerate(texts, start=1):
        yield Version(number, Bundle(text))


@pytest.mark.parametrize(
    ("errors", "text", "reason"),
    [
        ((), "application: shop", "datasets: is required"),
        ((ValueError("value 4711"),), SPEC, "unexpected ValueError"),
        ((OSError(11, "no process"),), SPEC, "no process"),
    ],
)
async def test_an_invalid_version_is_logged_and_the_next_one_is_adopted(
    caplog, errors: tuple[Exception, ...], text: str, reason: str
) -> None:
    adopted, raised = [], list(errors)

    async def adopt(workload: AppliedWorkload) -> None:
        if raised:
            raise raised.pop()
        adopted.append(workload.version[0])

    worker = SimpleNamespace(adopt=adopt, config=parse_config(SPEC))
    await Monitoring(worker, _versions(text, SPEC))._adopt_versions()
    assert adopted == [2]
    assert "event=configuration_refused version=1" in caplog.text
    assert reason in caplog.text
    assert "4711" not in caplog.text


def test_the_timeouts_of_the_parts_of_a_stop_fit_into_its_deadline() -> None:
    parts = (groups.STOP_TIMEOUT, CANCEL_TIMEOUT, DISCARD_DEADLINE, groups.LEAVE_TIMEOUT)
    assert sum(parts) < module.STOP_DEADLINE


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_that_takes_too_long_is_logged_and_fails(monkeypatch, caplog, in_time: bool) -> None:
    monkeypatch.setattr(module, "STOP_DEADLINE", 0.05)

    async def stop() -> None:
        await asyncio.sleep(0 if in_time else 60)

    monitoring = module.Monitoring(SimpleNamespace(stop=stop), _versions())
    await monitoring.on_stop()
    assert ("event=stop_timeout" in caplog.text) is not in_time
    assert (monitoring.error is None) is in_time


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
