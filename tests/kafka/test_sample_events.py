"""`check --sample` on a real broker: how many of the newest raw events would count, and why others would not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stream_svt.sources.events import Fate
from tests.support import records
from tests.support.sources import changed
from tests.support.topics import create_topics

pytestmark = pytest.mark.kafka


async def test_the_newest_events_are_sampled_and_mistakes_are_told(
    broker, topics, tmp_path: Path, stream_svt
) -> None:
    name, now_ms = topics.name("web"), int(time.time() * 1000)
    raw, file, servers = f"{name}.raw", tmp_path / "web.yaml", broker.bootstrap_servers
    text = changed(
        ('bootstrap_servers: "127.0.0.1:9092"', f'bootstrap_servers: "{servers}"'),
        ("application: web", f"application: {name}"),
        ("topic: web.requests", f"topic: {raw}"),
    )

    async def sampled(*options: object, text: str = text) -> tuple[int, list[str]]:
        file.write_text(text)
        ended = await stream_svt("check", "-c", file, "--sample", *options)
        return ended.code, [line for line in ended.out.splitlines() if "sources.requests" in line]

    await create_topics(servers, {raw: 2})
    file.write_text(text)
    assert (await stream_svt("check", "-c", file, "--create-topics")).code == 0
    assert await sampled(10) == (0, [f"note sources.requests: topic '{raw}' has no event to sample"])

    def event(**changes: Any) -> bytes:
        return json.dumps(
            {"user": "ann", "page": "/", "status": 200, "ms": 12, "ts": now_ms} | changes
        ).encode()

    old, good = (
        [(one % 2, None, event(user=None)) for one in range(40)],
        [(one % 2, None, event()) for one in range(8)],
    )
    await records.send(servers, raw, *old, *good, (0, None, event(page="/x")), (1, None, b"{"))
    await records.publish(servers, raw, *good, commit=False)
    assert await sampled(10) == (
        0,
        [
            f"ok   sources.requests: 8 of the newest 10 events of topic '{raw}' would count",
            "note sources.requests: of these match each measure: visitors 8, errors 0, slow 0",
            f"note sources.requests: 1 would not: the event {Fate.UNREADABLE.text}",
            "note sources.requests: 1 would not: the event is of a series without a name in the window's list",
        ],
    )
    code, lines = await sampled(1000, text=text.replace("in: ms", "in: s").replace("unit: user", "unit: usr"))
    assert (code, lines[0]) == (
        2,
        f"FAIL sources.requests: 0 of the newest 50 events of topic '{raw}' would count",
    )
    assert "note sources.requests: no event of the sample has a field 'usr'; did you mean 'user'?" in lines
    code, lines = await sampled(10, text=text.replace("in: ms", "in: s"))
    assert lines[-1] == (
        "note sources.requests: 'ts' seems to be in milliseconds: with time.in ms, 8 of 10 events would count"
    )
    file.write_text(text)
    apart = await stream_svt("check", "-c", file, "--counter", "--sample", 10)
    assert f"8 of the newest 10 events of topic '{raw}' would count" in apart.out
    offline = await stream_svt("check", "-c", file, "--offline", "--sample", 10)
    assert "--sample needs the brokers: leave --offline out." in offline.err
