"""A worker with its pages and the versions that it adopts, started and stopped in order by its host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from stream_svt.application.config import Config
from stream_svt.errors import StreamSvtError
from stream_svt.protocol.configuration import Version
from stream_svt.web import pages_of
from stream_svt.web_server import Pages
from stream_svt.worker.config_versions import follow, read
from stream_svt.worker.shard import describe
from stream_svt.worker.worker import Worker

log = logging.getLogger(__name__)

STOP_DEADLINE = 28.0
"""Seconds that a stop may take: more than the timeouts of its parts together, and less than supervisors wait."""


class HostedWorker:
    """A worker, the versions of the configuration that it adopts, and its pages, None for no pages.

    It runs in the current event loop and changes nothing of the process: no signal handler, no logging, no collector.
    """

    def __init__(
        self, worker: Worker, versions: AsyncGenerator[Version, None], pages: Pages | None = None
    ) -> None:
        self.worker = worker
        self._versions = versions
        self._pages = pages
        self._adopting: asyncio.Task[None] | None = None
        self.ended: asyncio.Task[None] | None = None
        """Task that ends with the worker, and raises the error that ended it."""

    @classmethod
    def of(
        cls, config: Config, reread: Callable[[], Config] | None = None, *, web: bool = True
    ) -> HostedWorker:
        """Return a worker that follows the configuration topic; ``reread`` reads the worker's file again."""
        worker = Worker(config, reread)
        return cls(worker, follow(config, config.cluster()), pages_of(worker) if web else None)

    async def start(self) -> None:
        """Serve the pages and begin to join the group; raise ConfigError if it cannot listen on the address."""
        if self._pages is not None:
            await self._pages.open()
        self._adopting = asyncio.create_task(self._adopt_versions(), name="versions")
        self.ended = asyncio.create_task(self._run(self.worker.start(), self._adopting), name="worker")

    async def wait(self) -> None:
        """Wait until the worker has ended, and raise its error; cancelling this does not stop the worker."""
        if self.ended is not None:
            await asyncio.wait([self.ended])
            self.ended.result()

    async def _run(self, *tasks: asyncio.Task[None]) -> None:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for error in (task.exception() for task in done if not task.cancelled()):
            if error is not None:
                raise (
                    error if isinstance(error, StreamSvtError) else StreamSvtError(describe(error))
                ) from None

    async def _adopt_versions(self) -> None:
        partitions = self.worker.config.topics.partitions
        async with aclosing(self._versions):
            async for version in self._versions:
                try:
                    await self.worker.adopt(await read(version, partitions))
                except Exception as error:  # noqa: BLE001  the next version is still read
                    reason = str(error) if isinstance(error, OSError) else describe(error)
                    log.critical("event=configuration_refused version=%d error=%r", version.number, reason)

    async def stop(self) -> None:
        """Publish charged events, leave the group, close the pages; raise StreamSvtError after `STOP_DEADLINE`."""
        try:
            async with asyncio.timeout(STOP_DEADLINE):
                if self._adopting is not None:
                    self._adopting.cancel()
                    await asyncio.gather(self._adopting, return_exceptions=True)
                await self.worker.stop()
        except TimeoutError:
            log.error("event=stop_timeout seconds=%.0f", STOP_DEADLINE)  # noqa: TRY400  the trace has no more information
            raise StreamSvtError(f"not stopped within {STOP_DEADLINE:.0f} seconds") from None
        finally:
            if self._pages is not None:
                await self._pages.close()
