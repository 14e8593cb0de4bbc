"""From the end of a window to its alerts, through counter and worker.

A million different pairs of 100,000 users and 20,000 pages in a window of a minute that closes at its end, counted by
one counter, tested by one worker with two monitors, both with default configuration but for `settle`. Of so many pages
each monitor reports every one. `close_seconds` is the median time from the end of the window, and `settle` after it,
until a reader of committed records has the last alert.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer

from benchmarks.application import wait_until
from benchmarks.command import say
from benchmarks.sources.raw_events import (
    PARTITIONS,
    Application,
    Events,
    begin,
    new_topic,
    page_name,
    producing,
    send,
)
from stream_svt.kafka.embedded import EmbeddedKafka

WINDOW, SETTLE = 60, 1
SOURCE: Mapping[str, Any] = {"window": f"{WINDOW}s", "lateness": "0s", "settle": f"{SETTLE}s"}
HOT = 15
"""Pages that both monitors report."""
CROWD = 3000
"""Users of each of these pages."""
MONITORS = [
    {"name": name, "cutoff": HOT, "threshold": CROWD // 2, "max_runs": "off", "mute": "none"}
    for name in ("one", "two")
]


def drawn(pairs: int, users: int, pages: int, seed: int) -> Events:
    """Return events of different pairs, `HOT` pages with a crowd among them."""
    generator = np.random.default_rng(seed)
    crowds = np.repeat(np.arange(HOT), CROWD), np.tile(np.arange(CROWD), HOT)
    others = np.unique(generator.integers(HOT * users, pages * users, pairs - HOT * CROWD))
    page, user = np.append(crowds[0], others // users), np.append(crowds[1], others % users)
    order = generator.permutation(len(page))
    return Events(user[order], page[order], pages)


async def measured(application: Application, events: Events, repetitions: int) -> list[float]:
    """Return the seconds of each window."""
    consumer = AIOKafkaConsumer(
        f"{application.name}.alerts",
        bootstrap_servers=application.servers,
        isolation_level="read_committed",
        auto_offset_reset="latest",
    )
    await consumer.start()
    taken = []
    try:
        async with producing(application.servers) as producer:
            for _ in range(repetitions):
                batches = events.encoded(producer)
                end = (time.time() // WINDOW + 2) * WINDOW
                await asyncio.sleep(end - WINDOW - time.time())
                await send(producer, application.topic, batches)
                say(f"written {end - time.time():.1f} s before the end of the window")
                assert time.time() < end, "the machine is too slow for a million events in a window"
                last = await _alerts(consumer, end + WINDOW)
                taken.append(last - end - SETTLE)
    finally:
        await consumer.stop()
    return taken


async def _alerts(consumer: AIOKafkaConsumer, until: float) -> float:
    """Return when the last alert of all crowds is here."""
    missing = {(one["name"], page_name(page)) for one in MONITORS for page in range(HOT)}
    while missing:
        assert time.time() < until, f"no alert of {sorted(missing)[:3]} and others"
        for records in (await consumer.getmany(timeout_ms=200)).values():
            for record in records:
                event = json.loads(record.value)
                data = event.get("data", {})
                if ".alert." in event["type"]:
                    missing.discard((data["monitor"], data["series"]))
    return time.time()


def figures(
    pairs: int = 1_000_000, users: int = 100_000, pages: int = 20_000, repetitions: int = 3, seed: int = 1
) -> dict[str, float]:
    """Return the seconds from a window's end, and `settle`, to the last alert; each takes one to two minutes."""
    events = drawn(pairs, users, pages, seed)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        servers = kafka.bootstrap_servers
        application = Application(
            servers=servers,
            directory=Path(directory),
            topic=new_topic(servers),
            pages=pages,
            source=SOURCE,
            monitors=MONITORS,
        )
        application.create()
        with application.counter() as counter, application.worker() as worker:
            begin(counter)
            wait_until(lambda: worker.has(PARTITIONS), "the worker has its shards")
            taken = asyncio.run(measured(application, events, repetitions))
    say("close: " + " ".join(f"{seconds:.2f}" for seconds in taken))
    return {"close_seconds": statistics.median(taken)}
