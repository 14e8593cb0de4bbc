"""Brokers that are away leave a few lines in the log, each kind of them, and nothing critical is left out."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from stream_svt.service import log_limit
from stream_svt.service.log_limit import LimitByPlace, limit_logs

SHARDS, SECONDS = 64, 20


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> Iterator[io.StringIO]:
    """Return what a handler writes whose lines are limited."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.addFilter(LimitByPlace(clock))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def test_an_outage_writes_at_most_five_lines_a_second(clock: Clock, lines: io.StringIO) -> None:
    """What 64 shards and their clients write while brokers are away."""
    names = ("stream_svt.service.shard", "aiokafka", "aiokafka.consumer.group_coordinator")
    ours, client, group = map(logging.getLogger, names)
    for second in range(SECONDS):
        clock.now += 1
        for shard in range(SHARDS):
            ours.warning("event=shard_retry shard=%d error=%r", shard, "connection refused")
            client.error("Unable connect to node with id %s: %s", shard % 3, "refused")
            client.error(f"Unable to update metadata from [{shard % 3}]")
            group.error("Error sending JoinGroupRequest_v2 to node %s [%s]", shard % 3, "NodeNotReadyError")
            if second == 7 and shard in {5, 6}:
                logging.getLogger("stream_svt.protocol.session").critical(
                    "event=records_lost shard=%d", shard
                )
    found = lines.getvalue().splitlines()
    assert len(found) <= 5 * SECONDS
    # Each kind is there, from the beginning on, and what is critical all of it.
    assert found[0] == "event=shard_retry shard=0 error='connection refused'"
    assert {line.split()[0] for line in found} == {
        *("event=shard_retry", "Unable", "Error", "event=records_lost")
    }
    assert [line for line in found if "records_lost" in line] == [
        f"event=records_lost shard={shard}" for shard in (5, 6)
    ]


def test_what_was_left_out_is_counted(clock: Clock, lines: io.StringIO) -> None:
    log = logging.getLogger("stream_svt.service.shard")
    for shard in [*100 * [1], 2, 3]:
        clock.now += 60 * (shard == 2)
        log.warning("event=shard_retry shard=%d", shard)
    assert lines.getvalue().splitlines() == [
        *3 * ["event=shard_retry shard=1"],
        "event=shard_retry shard=2 left_out=97",
        "event=shard_retry shard=3",
    ]


def test_one_place_that_is_limited_hides_no_other(clock: Clock, lines: io.StringIO) -> None:
    library, ours = logging.getLogger("aiokafka.x"), logging.getLogger("stream_svt.service.app")
    for number in range(50):
        library.warning(f"member {'x' * number} left")
        library.warning("another")
    ours.error("event=configuration_refused error=%r", "limit of ward-17")
    found = lines.getvalue().splitlines()
    assert Counter(line.split()[0] for line in found) == {
        "member": 3,
        "another": 3,
        "event=configuration_refused": 1,
    }


def test_progress_of_many_shards_is_shown_whole(clock: Clock, lines: io.StringIO) -> None:
    log = logging.getLogger("stream_svt.protocol.session")
    for shard in range(SHARDS):
        log.info("event=shard_opened shard=%d", shard)
    assert len(lines.getvalue().splitlines()) == SHARDS
    for number in range(1_000):
        log.info("event=command shard=1 offset=%d", number)
    assert len(lines.getvalue().splitlines()) == SHARDS + 200


def test_the_service_limits_what_is_written_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler, logging.StreamHandler(io.StringIO())])
    limit_logs()
    record = logging.LogRecord("a", logging.WARNING, "", 0, "event=x", (), None)
    assert [bool(handler.filter(record)) for _ in range(5)] == 5 * [True]  # decided once, for every handler
    others = [logging.LogRecord("a", logging.WARNING, "", 0, "event=x", (), None) for _ in range(9)]
    assert sum(bool(handler.filter(one)) for one in others) == log_limit.TROUBLE[0] - 1
