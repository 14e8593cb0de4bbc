"""The process of a worker: Faust hosts it, for services, signals and exit codes.

Faust's own consumer, producer and web server are disabled, so they cannot delay the worker, and Faust creates no
directory, changelog topic or leader topic.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

import faust
import mode
from faust.app.base import BootStrategy

from stream_svt.application.config import Config
from stream_svt.errors import StreamSvtError
from stream_svt.hosting.hosted import HostedWorker
from stream_svt.logs import limit_logs
from stream_svt.worker.event_loop import collect_rarely, keep_freed_memory

HOST_LOG = logging.getLogger("faust.host")
"""Logger of the host's own start and stop, apart from the worker's events."""


class _App(faust.App):  # type: ignore[misc]  # faust is taken as Any
    """An app with services only; it writes nothing to the working directory, which may be read-only."""

    BootStrategy = type("BootStrategy", (BootStrategy,), {"enable_kafka": False, "enable_web": False})
    logger = HOST_LOG

    def _create_directories(self) -> None:
        """Create nothing: there are no tables."""


class Monitoring(mode.Service):  # type: ignore[misc]  # mode is taken as Any
    """Runs a hosted worker; a fatal error stops the process in order."""

    logger = HOST_LOG

    def __init__(self, hosted: HostedWorker) -> None:
        super().__init__()
        self._hosted = hosted
        self._running: asyncio.Task[None] | None = None
        self.error: StreamSvtError | None = None

    async def on_start(self) -> None:
        """Start a task: joining a group may take long, and signals must be handled meanwhile."""
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._hosted.start()
            await self._hosted.wait()
        except StreamSvtError as error:  # raised by `run`, after an orderly stop
            self.error = error
            signal.raise_signal(signal.SIGTERM)

    async def on_stop(self) -> None:
        """Stop the worker, which publishes charged events and leaves the group."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        try:
            await self._hosted.stop()
        except StreamSvtError as error:
            self.error = self.error or error


def run(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Run a worker until a signal ends it and return the exit code; raise its error, or the error of a late stop.

    ``reread`` reads the worker's file again.
    """
    limit_logs()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    monitoring = Monitoring(HostedWorker.of(config, reread))
    collect_rarely()
    keep_freed_memory()
    host = faust.Worker(
        _app(config, monitoring),
        loop=loop,
        override_logging=False,
        redirect_stdouts=False,
        quiet=True,
        loglevel="INFO",
    )
    host.spinner = None
    code: object = 1
    try:
        host.execute_from_commandline()
    except SystemExit as ended:
        code = ended.code or 0
    if monitoring.error is not None:
        raise monitoring.error
    return code if isinstance(code, int) else 0


def _app(config: Config, monitoring: Monitoring) -> faust.App:
    app = _App(
        f"{config.spec.application}-host",
        broker="kafka://" + config.kafka.bootstrap_servers[0],
        autodiscover=False,
        store="memory://",
        topic_disable_leader=True,
        topic_allow_declare=False,
        worker_redirect_stdouts=False,
        # Otherwise environment variables (APP_DATADIR, ..) override these arguments.
        env={},
    )
    app.service(monitoring)
    app.finalize()
    return app
