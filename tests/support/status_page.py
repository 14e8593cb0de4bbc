"""A status page without a broker: a worker that never meets one, and an alert topic in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

import msgspec

from stream_svt.application.config import parse_config
from stream_svt.web import pages_of, status
from stream_svt.web.overview import AlertsRead, Overview
from stream_svt.worker.worker import Worker, WorkerState
from tests.support.process import free_port
from tests.support.shop import SPEC, owned, view


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
        self.endless = False
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

    async def read(self, _: Worker) -> AsyncGenerator[AlertsRead, None]:
        """Yield a hundred records at a time, and nothing after a moment without news."""
        self.opened += 1
        read = 0
        while True:
            if self.error is not None:
                raise self.error
            if read == len(self.records):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self._news.wait()
            self._news.clear()
            found = self.records[read : read + 100]
            read += len(found)
            yield found, True, read == len(self.records) and not self.endless


class Stub(Worker):
    """A worker that never meets a broker."""

    joined, unreachable = True, False
    shards: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state = WorkerState.MEMBER

    async def stop(self) -> None:
        """Nothing runs."""

    def statuses(self):
        return list(self.shards)

    @property
    def ready(self) -> bool:
        self._group = self  # it has `joined` and `unreachable`
        return super().ready


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
        self.overview = Overview(self.worker, self.topic.read)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        """Serve the pages as the service does."""
        pages = pages_of(self.worker, self.overview)
        await pages.open()
        try:
            yield self
        finally:
            await pages.close()


def _status() -> dict[str, Any]:
    """Return the status of a worker that owns a shard with two datasets, one of them unspent."""
    worker = Stub(parse_config(SPEC))
    (monitor,) = view("a", alerts=11, spent=1.5).monitors
    spent = msgspec.structs.replace(
        view("a", spent=1.5), monitors=[msgspec.structs.replace(monitor, top_branch_only=True)]
    )
    worker.shards = (owned(spent, msgspec.structs.replace(view("b"), monitors=[])),)
    return msgspec.to_builtins(status(worker))


STATUS = _status()
