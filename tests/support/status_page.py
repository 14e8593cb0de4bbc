"""A status page without a broker: a worker that never meets one, and an alert topic in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from faust.web.drivers.aiohttp import Web

from stream_svt.monitor.released import DatasetView
from stream_svt.service.app import Monitoring, build
from stream_svt.service.config import parse_config
from stream_svt.service.web.overview import Overview
from stream_svt.service.worker import Worker
from stream_svt.service.worker_states import State
from tests.support.process import free_port


class Record(NamedTuple):
    """What a reader looks at of a record."""

    partition: int
    offset: int
    value: bytes


class Topic:
    """An alert topic in memory, of one or several partitions; also what reads it."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.records: list[Record] = []
        self.complete = True
        self.opened = 0
        self.error: Exception | None = None
        self._ends = dict.fromkeys(range(partitions), 0)
        self._news = asyncio.Event()

    def put(self, *values: bytes, partition: int = 0) -> None:
        """Append committed records; a transaction's marker takes an offset after them, as on Kafka."""
        for value in values:
            self.records.append(Record(partition, self._ends[partition], value))
            self._ends[partition] += 1
        self._ends[partition] += 1
        self._news.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Topic]:
        """Begin to read."""
        self.opened += 1
        if self.error is not None:
            raise self.error
        self._at = dict.fromkeys(range(self.partitions), 0)
        yield self

    @property
    def caught_up(self) -> bool:
        """Whether nothing is left to be read."""
        return not self._due()

    def _due(self) -> list[Record]:
        return [record for record in self.records if record.offset >= self._at[record.partition]]

    async def read(self) -> list[Record]:
        """Return the next records, or nothing after a moment."""
        if self.error is not None:
            raise self.error
        if not self._due():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await self._news.wait()
        self._news.clear()
        due = self._due()[:100]
        for record in due:
            self._at[record.partition] = record.offset + 1
        return due

    async def probe(self) -> None:
        """Answer."""
        if self.error is not None:
            raise self.error


class Stub(Worker):
    """A worker that never meets a broker."""

    joined = True
    shards: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state = State.MEMBER

    async def start(self) -> None:
        self.failed = asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """Nothing runs."""

    def statuses(self):
        return list(self.shards)

    @property
    def ready(self) -> bool:
        self._group = self  # it has `joined`
        return super().ready

    def views(self) -> dict[str, DatasetView]:
        return {name: view for status in self.shards for name, view in status.views.items()}


class Stage:
    """A stub worker's pages, served on loopback.

    Attributes:
        worker, topic, overview: What the pages show; a test moves the first two.
        url: Where the page is.
    """

    def __init__(self, spec: str, partitions: int = 1) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.topic = Topic(partitions)
        self.worker = Stub(parse_config(f"{spec}\nweb: {{port: {self.port}}}\n"))
        self.overview = Overview(self.topic.open, lambda: self.worker.workload.spec, self.worker.views)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        """Serve the pages as the service does, by the same host."""
        loop = asyncio.get_running_loop()
        app = build(self.worker, Monitoring(self.worker, None, loop), loop, self.overview)
        server: Web = app.web
        server.init_server()
        await server.start_server()
        try:
            yield self
        finally:
            await server.stop_server()
