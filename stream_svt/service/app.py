"""The Faust application that hosts a worker: services, signals, web pages, exit codes, log limits.

Faust's own consumer and producer are disabled, so they cannot delay the worker, and Faust creates no directory,
changelog topic or leader topic.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable

import faust
import mode
from faust.app.base import BootStrategy

from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.protocol.configuration import Version
from stream_svt.service import web
from stream_svt.service.applied import read
from stream_svt.service.config import Config
from stream_svt.service.event_loop import collect_rarely
from stream_svt.service.shard import describe
from stream_svt.service.web.overview import Overview
from stream_svt.service.worker import Worker

log = logging.getLogger(__name__)

HOST_LOG = logging.getLogger("faust.host")
"""Logger of the host's own start and stop, apart from the worker's events."""

STOP_DEADLINE = 28.0
"""Seconds that a stop may take: more than the timeouts of its parts together, and less than supervisors wait."""


class _App(faust.App):  # type: ignore[misc]  # faust is taken as Any
    """An app with web server and services only; it writes nothing to the working directory, which may be read-only."""

    BootStrategy = type("BootStrategy", (BootStrategy,), {"enable_kafka": False})
    logger = HOST_LOG

    def _create_directories(self) -> None:
        """Create nothing: there are no tables."""


class Monitoring(mode.Service):  # type: ignore[misc]  # mode is taken as Any
    """Runs the worker, which adopts each readable version in order; a fatal error stops the process in order."""

    logger = HOST_LOG

    def __init__(self, worker: Worker, versions: AsyncIterator[Version]) -> None:
        super().__init__()
        self._worker = worker
        self._versions = versions
        self._tasks: list[asyncio.Task[None]] = []
        self.error: StreamSvtError | None = None

    async def on_start(self) -> None:
        """Start tasks: joining a group may take long, and signals must be handled meanwhile."""
        self._tasks = [asyncio.create_task(work()) for work in (self._run, self._adopt_versions)]

    async def _run(self) -> None:
        try:
            await self._worker.start()
        except Exception as error:  # noqa: BLE001  raised by `run`, after an orderly stop
            self.error = error if isinstance(error, StreamSvtError) else StreamSvtError(describe(error))
            signal.raise_signal(signal.SIGTERM)

    async def on_stop(self) -> None:
        """Stop the worker, which publishes what is charged and leaves the group."""
        for task in reversed(self._tasks):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(STOP_DEADLINE):
                await self._worker.stop()
        except TimeoutError:
            self.error = self.error or StreamSvtError(f"not stopped within {STOP_DEADLINE:.0f} seconds")
            log.error("event=stop_timeout seconds=%.0f", STOP_DEADLINE)  # noqa: TRY400  the trace has no more information

    async def _adopt_versions(self) -> None:
        partitions = self._worker.config.topics.partitions
        async for version in self._versions:
            try:
                await self._worker.adopt(await read(version, partitions))
            except Exception as error:  # noqa: BLE001  the next version is still read
                reason = str(error) if isinstance(error, OSError) else describe(error)
                log.critical("event=configuration_refused version=%d error=%r", version.number, reason)


def build(worker: Worker, monitoring: Monitoring, overview: Overview | None = None) -> faust.App:
    """Return the Faust app of a worker; the status page shows ``overview``, by default the worker's."""
    config = worker.config
    app = _App(
        f"{config.spec.application}-host",
        broker="kafka://" + config.kafka.bootstrap_servers[0],
        autodiscover=False,
        store="memory://",
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_bind=config.web.host,
        web_host=config.web.host,
        web_port=config.web.port,
        worker_redirect_stdouts=False,
        # Otherwise environment variables (WEB_BIND, APP_WEB_ROUTER_ENABLED, ..) override these arguments.
        env={},
        web_router_enabled=False,
        web_tables_enabled=False,
    )
    web.register(app, worker, overview or Overview(worker))
    app.service(monitoring)
    return app


def run(config: Config, versions: AsyncIterator[Version], reread: Callable[[], Config] | None = None) -> int:
    """Run a worker until a signal ends it and return the exit code; raise the error that ended it, or of a late stop.

    ``versions`` yields the versions of the configuration as they are applied; ``reread`` reads the worker's file again.
    """
    limit_logs()
    _check_address(config)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = Worker(config, reread)
    collect_rarely()
    monitoring = Monitoring(worker, versions)
    app = build(worker, monitoring)
    app.finalize()
    host = faust.Worker(
        app, loop=loop, override_logging=False, redirect_stdouts=False, quiet=True, loglevel="INFO"
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


def _check_address(config: Config) -> None:
    """Raise ConfigError for an address that cannot be listened on; Faust would print a trace."""
    address = (config.web.host, config.web.port)
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        message = (
            f"cannot listen on {address[0]}:{address[1]}: {error.strerror}; each worker of a machine needs a port: "
            f"set web.port, or start with STREAM_SVT_WEB_PORT={6067 if address[1] == 6066 else 6066}"
        )
        raise ConfigError([Problem(0, "web.port", message)], config.source) from None


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
