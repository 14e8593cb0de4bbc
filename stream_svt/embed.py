"""A worker in any asyncio program: the engine, guarantee and takeover of `stream-svt run`.

>>> import stream_svt
>>> async def main() -> None:
...     async with stream_svt.Worker("monitors.yaml") as worker:
...         await worker.wait()
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Self

from stream_svt.application.config import Config, load_config
from stream_svt.errors import MisuseError, StreamSvtError
from stream_svt.hosting.hosted import HostedWorker
from stream_svt.settings.application import ApplicationSpec
from stream_svt.web import About, about

__all__ = ["EmbeddedWorker"]

_READY_INTERVAL = 0.05
"""Seconds between two checks whether the worker is ready."""


class EmbeddedWorker:
    """`stream_svt.Worker`: a worker in the current event loop, an asynchronous context manager, entered once.

    Datasets and monitors are those that ``stream-svt apply`` applied last; from the configuration a worker takes the
    connection. Entering returns once the worker is ready, leaving stops it as SIGTERM stops ``stream-svt run``:
    what is charged is published, and other workers take over the shards at once. A worker in a killed program is
    replaced like any other.

    It leaves signal handlers, logging, the garbage collector and the loop's policy alone. It logs to the logger
    ``stream_svt``, without limits: add `stream_svt.logs.RateLimit` to a handler. The program's own clients of
    aiokafka change in two ways: they read header names that are not UTF-8, and wait less for the end of a transaction.
    Several workers can run in one loop, also of one application.

    Code that blocks the loop blocks the worker. After ``kafka.session_timeout`` without a heartbeat another worker
    takes over its shards, and this one joins again when the loop continues. No outcome is lost or doubled by that,
    but alerts are late: blocking work belongs into `asyncio.to_thread`.

    Args:
        config: Configuration file, whose keys environment variables can replace as for ``stream-svt run``, or a
            configuration that was read before; only a file is read again after a fault of the worker.
        web: Serve status page, metrics and health on the address of section ``web``.
    """

    def __init__(self, config: Config | str | os.PathLike[str], *, web: bool = False) -> None:
        self._config = config
        self._web = web
        self._is_begun = False
        self._hosted: HostedWorker | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
            await self.ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Read the configuration and begin to join the group, without waiting for it.

        Raises:
            ConfigError: The configuration is invalid, or the address of the web pages is in use.
            MisuseError: The worker was started before.
        """
        if self._is_begun:
            raise MisuseError("this worker was started before: make a new one for each start")
        self._is_begun = True
        # In a thread: a configuration may name programs that print its keys.
        config = await asyncio.to_thread(self._read)
        reread = None if isinstance(self._config, Config) else self._read
        self._hosted = HostedWorker.of(config, reread, web=self._web)
        await self._hosted.start()

    def _read(self) -> Config:
        if not isinstance(self._config, Config):
            return load_config(Path(self._config), os.environ, is_whole=False)
        return replace(self._config, spec=ApplicationSpec(self._config.spec.application, (), ()))

    async def ready(self) -> None:
        """Wait until the worker is ready, like `/health/ready`: a member whose shards are open or parked.

        Before a first configuration is applied, and while no broker answers, this does not return; `status` has the
        reason.

        Raises:
            StreamSvtError: The error that ended the worker: topics that do not fit the configuration
                (`ConfigError`), refused credentials or missing permissions (`BrokerError`); also if it was stopped.
        """
        hosted = self._started()
        while not hosted.worker.ready:
            if hosted.ended is not None and hosted.ended.done():
                await hosted.wait()
                raise StreamSvtError("the worker was stopped before it was ready")
            await asyncio.sleep(_READY_INTERVAL)

    async def wait(self) -> None:
        """Wait until the worker has ended: return after `stop`, otherwise raise the error that ended it.

        Cancelling this does not stop the worker.
        """
        await self._started().wait()

    async def stop(self) -> None:
        """Publish charged events, leave the group, and close the pages.

        A cancellation takes effect afterwards: a stop takes at most 30 seconds, and usually milliseconds.

        Raises:
            StreamSvtError: The worker did not stop in time; another worker publishes its charged events.
        """
        if self._hosted is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._hosted.stop(), name="stop worker")
        cancelled: asyncio.CancelledError | None = None
        while not self._stopping.done():
            try:
                await asyncio.wait([self._stopping])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        self._stopping.result()

    @property
    def status(self) -> About:
        """State of the worker and its shards, released or public data only."""
        return about(self._started().worker)

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format; another thread renders them."""
        return await asyncio.to_thread(self._started().worker.metrics.rendering())

    def _started(self) -> HostedWorker:
        if self._hosted is None:
            raise MisuseError("the worker is not started: enter it with 'async with', or call start()")
        return self._hosted
