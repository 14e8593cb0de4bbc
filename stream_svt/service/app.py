"""The process of a worker: Faust hosts it, for services, signals and exit codes; log limits, garbage collection.

Faust's own consumer, producer and web server are disabled, so they cannot delay the worker, and Faust creates no
directory, changelog topic or leader topic.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable

import faust
import mode
from faust.app.base import BootStrategy

from stream_svt.errors import StreamSvtError
from stream_svt.service.config import Config
from stream_svt.service.event_loop import collect_rarely
from stream_svt.service.hosting import HostedWorker

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
        """Stop the worker, which publishes what is charged and leaves the group."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        try:
            await self._hosted.stop()
        except StreamSvtError as error:
            self.error = self.error or error


def run(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Run a worker until a signal ends it and return the exit code; raise the error that ended it, or of a late stop.

    ``reread`` reads the worker's file again.
    """
    limit_logs()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    monitoring = Monitoring(HostedWorker.of(config, reread))
    collect_rarely()
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


WARNING_LIMIT = (3, 30.0)
"""Maximum of warnings and errors from one line of code, and the seconds that it holds for."""
PROGRESS_LIMIT = (200, 200.0)
"""The same for other records: enough for a few records of each shard or command."""


class RateLimit(logging.Filter):
    """Limits the records of each line of code, except critical ones: an outage must not fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; the first one after omitted records shows their number."""
        if record.levelno >= logging.CRITICAL or record.levelno < logging.INFO:
            return True
        allowed, seconds = WARNING_LIMIT if record.levelno >= logging.WARNING else PROGRESS_LIMIT
        origin, now = (record.pathname, record.lineno, record.levelno), time.monotonic()
        began, count = self._counts.get(origin, (now, 0))
        if now - began >= seconds:
            if count > allowed:
                record.msg, record.args = f"{record.getMessage()} left_out={count - allowed}", ()
            began, count = now, 0
        self._counts[origin] = began, count + 1
        return count < allowed


def limit_logs() -> None:
    """Log only warnings and errors of libraries, and limit each handler."""
    # Errors of aiokafka stay: no other record names a wrong password or certificate.
    for name in ("aiokafka", "faust", "mode", "kafka", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RateLimit())
