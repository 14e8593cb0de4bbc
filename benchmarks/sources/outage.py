"""A counter that catches up with what came while it was away.

A stream of so many events a second goes on for a while without a counter: JSON of 60 bytes, 100,000 users, 20,000
pages, 4 partitions with brokers' timestamps. Then the counter reads the backlog in pieces and asks the windows of one
minute on the way. `catch_up_vs_live` is the time that this takes over the time that the stream took.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.command import say
from benchmarks.sources.raw_events import (
    BATCH,
    Application,
    Events,
    begin,
    new_topic,
    producing,
    reading_of,
    send,
)
from stream_svt.kafka.embedded import EmbeddedKafka

MINUTES = {"window": "1m", "settle": "1s"}
BEATS = 10
"""Parts of a second in which events are sent."""


async def stream(servers: str, topic: str, events: Events, seconds: int) -> int:
    """Send events evenly for so many seconds, again and again the same ones; return how many."""
    async with producing(servers) as producer:
        batches = events.encoded(producer)
        began = time.monotonic()
        for beat in range(seconds * BEATS):
            each = len(batches) // BEATS
            first = beat % BEATS * each
            await send(producer, topic, batches[first : first + each])
            early = began + (beat + 1) / BEATS - time.monotonic()
            assert early > -5, "the stream is behind: take fewer events"
            await asyncio.sleep(max(early, 0))
        return seconds * each * BEATS * BATCH


def figures(
    rate: int = 120_000,
    seconds: int = 300,
    users: int = 100_000,
    pages: int = 20_000,
    look_every: int = 100,
    seed: int = 1,
) -> dict[str, float]:
    """Return the time of catching up over that of the stream; ``rate`` is in events a second."""
    one_second = Events.drawn(max(rate // (BATCH * BEATS), 1) * BATCH * BEATS, users, pages, seed)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        servers = kafka.bootstrap_servers
        topic = new_topic(servers)
        application = Application(
            servers=servers, directory=Path(directory), topic=topic, pages=pages, source=MINUTES
        )
        application.create()
        with application.counter() as counter:
            begin(counter)
        events = asyncio.run(stream(servers, topic, one_second, seconds))
        with application.counter() as counter:
            reading = reading_of(counter, events, look_every)
        say(f"live {events / seconds:,.0f}/s, catching up {reading}")
        return {"catch_up_vs_live": events / seconds / reading.rate}
