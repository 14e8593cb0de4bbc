"""Every example prints every alert once, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

from stream_svt.monitor.released import EventType
from tests.support import records
from tests.support.alerts import alert, encoded, lifecycle

pytestmark = pytest.mark.kafka

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {
    "subscribe.py": [],
    "plain_aiokafka.py": [],
    "faust_agent.py": ["worker", "-l", "warn", "--without-web"],
}
POISON = [
    None,
    b"",
    b"not json",
    b"[]",
    b"\xff",
    b'{"type": "io.stream-svt.alert.v1"}',
    b'{"data": null}',
    b"[" * 9_999,
]
SKIPPING = {"plain_aiokafka.py", "faust_agent.py"}
ELSEWHERE = {
    "webhook_receiver.py": "tests/kafka/test_forward.py",
    "kafka_streams/BurstsOfAlerts.java": "tests/kafka/test_kafka_streams_example.py",
    "ksqldb/alerts.sql": "tests/test_ksqldb_example.py",
}


def test_every_example_is_run_by_a_test():
    found = {
        str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.*") if "__pycache__" not in path.parts
    }
    assert found == {"README.md", *COMMANDS, *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert Path(name).name in (EXAMPLES.parent / test).read_text()


@pytest.mark.parametrize("example", COMMANDS)
async def test_an_example_prints_each_alert_once(example, broker, topics, tmp_path):
    topic = await topics("alerts")
    servers = broker.bootstrap_servers
    first, second = encoded(1, alert(top=1, series="milk")), encoded(3, alert(top=2, series="beer"))
    started = encoded(2, lifecycle("first"), kind=EventType.RUN_STARTED)
    # The first is published once more in a transaction that is aborted; poison is whatever a writer may put there.
    for values, commit in (([first], False), ([first, started, *POISON, second], True)):
        await records.publish(servers, topic, *((0, b"shop", value) for value in values), commit=commit)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / example),
        *COMMANDS[example],
        cwd=tmp_path,
        env=os.environ | {"KAFKA": servers, "ALERTS": topic, "PYTHONPATH": str(EXAMPLES.parent)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        lines, skipped = [], 0
        async with asyncio.timeout(60):
            while len(lines) < 2:
                line = await process.stdout.readline()
                assert line, f"{example} ended after printing {lines}"
                text = line.decode().strip()
                skipped += "skipped what is no event" in text
                if "gap" in text:  # Faust greets with a table, and logs what is printed
                    lines.append(text[text.index("shop") :])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                lines.append((await process.stdout.readline()).decode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
    assert lines == ["shop milk: gap 12, not certified", "shop beer: gap 12, not certified"]
    assert skipped == (len(POISON) if example in SKIPPING else 0)
