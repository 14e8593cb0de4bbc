"""A source on a broker: raw events in, its counters, the records of counts out, and what they should be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pyarrow as pa

from stream_svt.application.config import Config, parse_config
from stream_svt.counting.service import CounterService
from stream_svt.settings.sources import LOG_PARTITIONS
from stream_svt.worker.config_versions import propose, publish
from tests.support import records
from tests.support.process import COMMAND, Process, free_port
from tests.support.topics import CLOCK, create_topics
from tests.support.worker import Scene, until

SOURCE = """
sources:
  - name: web
    topic: {application}.raw
    unit: user
    series: {{field: page, names: [{pages}]}}
    window: 1s
    every: 1s
    lateness: {lateness}
    ahead: {ahead}
    settle: {settle}
    dataset: shop
    measures:
      - {{name: users}}
      - {{name: events, of: {{events: {{at_most: 3}}}}}}
{source}datasets:
  - {{names: [shop], limit: {{epsilon: 100}}}}
{stock}monitors:
  - {{name: many, source: web, measure: users, epsilon: 1, cutoff: 3, threshold: 100, expected_queries: 10000}}
"""
HEAD = """application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms, request_timeout: 1s}}
topics: {{partitions: {partitions}}}
commit: {{interval: 100ms}}
"""
WINDOW_MS = EVERY_MS = 1000
MOST = {"users": 1, "events": 3}
"""The most that one unit adds to a count of each measure."""


class Answer(NamedTuple):
    """A count."""

    window: str
    tick: str
    dataset: str
    measure: str
    series: str | None
    value: int


@dataclass(eq=False)
class Counting(Scene):
    """An application with a source; ``raw`` are the settings of its raw topic."""

    pages: str = "a, b, c"
    stock: str = ""
    settle: str = "200ms"
    lateness: int = 1
    ahead: str = "0"
    source: str = ""
    places: int = 3
    raw: Mapping[str, str] = field(default_factory=lambda: CLOCK)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.topic = f"{self.application}.raw"
        self.counters: dict[CounterService, asyncio.Task[None]] = {}
        self.processes: list[Process] = []

    @contextlib.asynccontextmanager
    async def on_stage(self, *, create: bool = True) -> AsyncIterator[Self]:
        await self._create_topics()
        async with super().on_stage(create=create):
            try:
                yield self
            finally:
                for counter in [*self.counters]:
                    await self.end(counter)
                for process in self.processes:
                    process.process.kill()
                    await process.ended()

    async def _create_topics(self) -> None:
        await create_topics(self.servers, {self.topic: self.places}, self.raw)
        await create_topics(
            self.servers, {f"{self.application}.sources": LOG_PARTITIONS}, CLOCK | {"retention.ms": "-1"}
        )
        await create_topics(self.servers, {f"{self.application}.web.counts": self.partitions})

    @property
    def closes_ms(self) -> int:
        """From a window's begin to its close."""
        return WINDOW_MS + 1000 * self.lateness

    def text(self, **changes: object) -> str:
        usual = {
            name: getattr(self, name)
            for name in ("application", "servers", "partitions", "pages", "stock", "ahead")
        }
        usual |= {"settle": self.settle, "source": self.source, "lateness": f"{self.lateness}s"}
        assert changes.keys() <= usual.keys(), changes
        return (HEAD + SOURCE).format(**usual | changes) + self.more

    def config(self, **changes: object) -> Config:
        return parse_config(self.text(**changes), directory=self.directory)

    async def publish(self, **changes: object) -> None:
        """Apply the configuration, without anybody to confirm it."""
        config = self.config(**changes)
        proposal = await propose(config, config.cluster())
        assert proposal.is_new
        await publish(config, config.cluster(), proposal.bundle, before=proposal.before)

    # -- counters

    async def count(self, *accepts: str, ready: bool = True) -> CounterService:
        """Start a counter in this process."""
        counter = CounterService(parse_config(self.text(), is_whole=False), accepts)
        running = self.counters[counter] = asyncio.create_task(counter.run())
        if ready:
            await until(lambda: running.done() or not counter.lacks)
            if running.done():
                running.result()
        return counter

    async def end(self, counter: CounterService) -> None:
        task = self.counters.pop(counter)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def process(self, *options: str) -> Process:
        """Start a counter as a process of its own."""
        file = self.directory / f"counter-{len(self.processes)}.yaml"
        file.write_text(self.text())
        port = free_port()
        command = [*COMMAND, "count", "-c", str(file), "--port", str(port), *options]
        self.processes.append(Process(command, port, file.with_suffix(".log")))
        return self.processes[-1]

    # -- events

    async def event(
        self, user: str, page: str = "a", *, to: int | None = None, at: int | None = None, **fields: object
    ) -> None:
        """Send a raw event; ``at`` is its producer's time."""
        value = json.dumps({"user": user, "page": page, **fields}).encode()
        place = hash(user) % self.places if to is None else to
        await self.producer.send(self.topic, value, partition=place, timestamp_ms=at)

    async def visit(self, count: int, page: str = "a", prefix: str = "u") -> None:
        """Send an event of each of so many users."""
        for number in range(count):
            await self.event(f"{prefix}{number}", page)
        await self.producer.flush()

    # -- counts

    async def answers(self, *monitors: str) -> list[Answer]:
        """Return all counts that were written, or answers to the questions of monitors, in the order of partitions."""
        written = await records.read(
            self.servers, f"{self.application}.web.counts", range(self.partitions), "read_committed"
        )
        asked = (record for record in written if name_of(record) in (monitors or MOST))
        return [answer for record in asked for answer in decoded(record)]

    async def closed(self, window_ms: int, seconds: float = 30) -> list[Answer]:
        """Wait until a window is asked, and return all counts until then."""
        window, found = text_of(window_ms), list[Answer]()

        async def asked() -> bool:
            found[:] = await self.answers()
            return any(one.window >= window for one in found)

        await until(asked, seconds)
        return found

    async def expected(self, first_ms: int, last_ms: int, *, own: str = "") -> list[Answer]:
        """Return the counts of windows, from a raw topic with brokers' timestamps.

        ``own`` is the field of an event's time, by default its timestamp.
        """
        parts: dict[tuple[int, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for record in await records.read(self.servers, self.topic, range(self.places), "read_committed"):
            try:
                event = json.loads(record.value)
            except ValueError:
                continue
            at = event[own] if own else record.timestamp
            window = at // WINDOW_MS * WINDOW_MS
            tick = record.timestamp // EVERY_MS * EVERY_MS + EVERY_MS
            if tick <= window + self.closes_ms and window <= record.timestamp:
                parts[window, event["page"]][event["user"]] += 1
        return [
            Answer(text_of(window), text_of(window + self.closes_ms), "shop", measure, page, value)
            for window in range(first_ms, last_ms + 1, WINDOW_MS)
            for measure, most in MOST.items()
            for page in self.pages.split(", ")
            for value in [sum(min(count, most) for count in parts[window, page].values())]
        ]

    async def agrees(self, *, own: str = "", seconds: float = 30) -> list[Answer]:
        """Wait until all events that are there now are counted, and compare all counts with what they should be."""
        found = await self.closed(window_of(int(time.time() * 1000)), seconds)
        times = [ms_of(one.window) for one in found]
        assert found == await self.expected(min(times), max(times), own=own)
        return found


def name_of(record: Any) -> str:
    """Return the monitor or measure that a record of counts is for; nothing for a look."""
    headers = dict(record.headers)
    return (headers.get("monitor") or headers.get("measure", b"")).decode().partition(" ")[0]


def decoded(record: Any) -> Iterable[Answer]:
    name = name_of(record)
    table = pa.ipc.open_stream(record.value).read_all().to_pylist()
    # A window that is asked once has a last row, which closes it.
    rows = [row for row in table if not row.get("closed")]
    for row in rows:
        window, tick = row["id"].split("/")
        assert row.get("set") in (None, f"{window}/{name}")
        assert record.timestamp == ms_of(tick)
        yield Answer(window, tick, record.key.decode(), name, row.get("series"), row["value"])
    assert [row.get("closed") for row in table] in ([None] * len(rows), [False] * len(rows) + [True])


def window_of(ms: int) -> int:
    return ms // WINDOW_MS * WINDOW_MS


def text_of(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def ms_of(text: str) -> int:
    import calendar

    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) * 1000
