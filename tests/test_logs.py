"""The log of a process: its limits, and its lines as JSON."""

from __future__ import annotations

import ast
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_svt import logs
from stream_svt.logs import TEXT, JsonFormatter, RateLimit, TextFormatter, limit_logs

SHARDS, SECONDS = 64, 20


@pytest.fixture
def clock(caplog, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that the test sets, which the log limits use, and the lines that the handler writes."""
    text = io.StringIO()
    clock = SimpleNamespace(now=1_000.0, lines=lambda: text.getvalue().splitlines())
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(text)])
    caplog.set_level(logging.INFO)
    limit_logs()
    return clock


def test_an_outage_logs_at_most_five_lines_a_second_and_every_critical_one(clock: SimpleNamespace) -> None:
    """Log what 64 shards and their clients log while brokers are unreachable."""
    names = ("stream_svt.worker.shard", "aiokafka", "aiokafka.consumer.group_coordinator")
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
    clock,
):
    log = logging.getLogger("stream_svt.worker.shard")
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


ROOT = Path(__file__).parents[1] / "stream_svt"
RESERVED = {"time", "level", "logger", "message", "stack"}


def _templates() -> Iterator[str]:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.startswith("event=")
            ):
                yield node.value


def test_every_value_of_every_event_has_a_name_of_its_own() -> None:
    templates = [one for one in _templates() if one != "event="]
    assert len(templates) > 40
    for template in templates:
        names = [name for name, _ in logs._FIELD.findall(template)]
        assert len(set(names)) == len(names), template
        assert not RESERVED & set(names), template
        named = sum(form[0] == "%" for _, form in logs._FIELD.findall(template))
        assert named == template.replace("%%", "").count("%"), template


def test_an_event_is_an_object_with_its_fields_and_a_library_says_what_it_says(
    monkeypatch,
):
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimit())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log = logging.getLogger("stream_svt.worker.shard")
    for number in range(4):
        log.error(
            "event=shard_x shard=%d seconds=%.3f error=%r reason=see-reply", number, 0.12349, "a\n'b' c=d"
        )
    try:
        raise ValueError("5 % of it\n")
    except ValueError:
        logging.getLogger("aiokafka").exception("100 %s {}")
    first, *_, library = map(json.loads, text.getvalue().splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() == timedelta()
    assert first == {
        "level": "ERROR",
        "logger": "stream_svt.worker.shard",
        "event": "shard_x",
        "shard": 0,
        "seconds": 0.123,
        "error": "a\n'b' c=d",
        "reason": "see-reply",
        "message": "event=shard_x shard=0 seconds=0.123 error=\"a\\n'b' c=d\" reason=see-reply",
    }
    assert (library["logger"], library["message"], "event" in library) == ("aiokafka", "100 %s {}", False)
    assert library["stack"].endswith("ValueError: 5 % of it\n")


def test_the_time_of_a_line_is_utc(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        record = logging.LogRecord("stream_svt", logging.INFO, "", 1, "event=x", (), None)
        record.created, record.msecs = 1_767_700_800.25, 250.0
        assert TextFormatter(TEXT).format(record) == "2026-01-06 12:00:00,250Z INFO stream_svt event=x"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_number_that_json_lacks_is_a_text() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    args = (float("inf"), float("nan"))
    record = logging.LogRecord("stream_svt", logging.INFO, "", 1, "event=x seconds=%.1f share=%s", args, None)
    found = json.loads(JsonFormatter().format(record), parse_constant=refuse)
    assert (found["seconds"], found["share"]) == ("inf", "nan")


def test_the_number_of_omitted_lines_is_a_field_of_events_and_a_word_of_other_lines(
    clock,
):
    handler = logging.getLogger().handlers[0]
    handler.setFormatter(JsonFormatter())
    ours, client = map(logging.getLogger, ("stream_svt.worker.shard", "aiokafka"))
    for _ in range(2):
        for _ in range(5):
            ours.warning("event=shard_retry shard=%d", 7)
            client.warning("100 % gone")
            client.warning("of %(name)s", {"name": "a"})
        clock.now += 60
    later = [json.loads(line) for line in clock.lines()[9:12]]
    assert {one["message"] for one in later} == {
        "event=shard_retry shard=7 left_out=2",
        "100 % gone left_out=2",
        "of a left_out=2",
    }
    assert [one["left_out"] for one in later if "event" in one] == [2]


def test_nothing_but_objects_is_written_to_standard_error() -> None:
    program = """
import asyncio, logging, threading, warnings
from stream_svt.logs import log_to_stderr
log_to_stderr("info", "json")
logging.getLogger("aiokafka.consumer").info("progress of a library")
warnings.warn("old", DeprecationWarning, stacklevel=1)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
class Late:
    def __del__(self): raise KeyError("late")
Late()
async def main():
    task = asyncio.create_task(asyncio.sleep(0, 1 / 1)); asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await task
asyncio.run(main())
raise RuntimeError("the end")
"""
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert "progress of a library" not in done.stderr
    said = [one.get("stack", one["message"]) for one in found]
    for words in (
        "DeprecationWarning: old",
        "ZeroDivisionError",
        "KeyError: 'late'",
        "RuntimeError: the end",
    ):
        assert any(words in text for text in said), words
    assert len(found) == 5
