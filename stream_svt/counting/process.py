"""The process of a counter, and the process of a worker that keeps one beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from stream_svt.application.config import Config
from stream_svt.counting.backoff import Backoff
from stream_svt.counting.pages import pages_of
from stream_svt.counting.service import CounterService
from stream_svt.logs import limit_logs
from stream_svt.worker.event_loop import collect_rarely, keep_freed_memory

log = logging.getLogger(__name__)

END_TIMEOUT: Final = 20.0
"""Seconds that a counter has to end."""


async def run(
    config: Config, port: int | None, accepts: Iterable[str], *, until_input_ends: bool = False
) -> None:
    """Count until SIGTERM or SIGINT, or until standard input ends; raises permanent errors of the start.

    ``port`` is the port of the pages, by default the second after the worker's: the first is often the forwarder's.
    """
    limit_logs()
    service = CounterService(config, accepts)
    pages = pages_of(service, port or (config.web.port + 1) % 65535 + 1)
    await pages.open()
    running = asyncio.create_task(service.run(), name="counter")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), running.cancel)
    collect_rarely()
    keep_freed_memory()
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        await pages.close()
    log.info("event=stopped application=%s", config.spec.application)


@contextlib.contextmanager
def beside(options: Sequence[str], file: Path) -> Iterator[None]:
    """Keep a counter running while the body runs: ``stream-svt count`` with these options, its output to a file.

    Only its owner may read the file, which also has the reason why a counter ended. The counter also ends if this
    process is killed: its standard input ends then.
    """
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.fchmod(output, 0o600)
    ending, own_log = threading.Event(), _log_to(output)
    running: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        backoff = Backoff(1, 2, 5, 10, 30, 60)
        while not ending.is_set():
            command = [sys.executable, "-m", "stream_svt", "count", "--until-input-ends", *options]
            # Ctrl-C reaches this process, which then ends the counter.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )
            running.append(process)
            code = process.wait()
            running.remove(process)
            if ending.is_set():
                return
            seconds = backoff.next()
            own_log.error("event=counter_ended exit_code=%d again_after=%.0f", code, seconds)
            ending.wait(seconds)

    thread = threading.Thread(target=keep, name="counter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        for process in [*running]:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT)
            process.kill()
        thread.join(END_TIMEOUT)
        os.close(output)


def _log_to(output: int) -> logging.Logger:
    """Return a log in the form of this process's, to a file only.

    A process's own log is for all readers of released data, and how a counter ends may depend on one unit's events.
    """
    handler = logging.StreamHandler(os.fdopen(output, "w", closefd=False))
    handler.setFormatter(next((one.formatter for one in logging.getLogger().handlers), None))
    found = logging.Logger(__name__)  # noqa: LOG001  of no hierarchy
    found.addHandler(handler)
    return found
