"""The demo's child processes: each ends with the demo, and says why if it ends before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from pathlib import Path

from stream_svt.errors import StreamSvtError

TAIL_LINES = 15
GRACE = 15.0


class DemoFailed(StreamSvtError):
    """The demo cannot go on; the message says which part ended and what it said last."""


class Child:
    """A process with a pipe to its standard input, which it watches, and a log file; messages use ``name``."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log

    async def must_succeed(self, seconds: float | None = None) -> None:
        """Wait for its end.

        Raises:
            DemoFailed: It ended with another code than 0, or did not end in ``seconds``.
        """
        try:
            async with asyncio.timeout(seconds):
                code = await self.process.wait()
        except TimeoutError:
            raise DemoFailed(f"{self.name} did not end within {seconds:g} s{self._said()}") from None
        if code:
            raise DemoFailed(f"{self.name} ended with exit code {code}{self._said()}")

    async def must_go_on(self) -> None:
        """Wait until it ends, which it should not.

        Raises:
            DemoFailed: Always, when it has ended.
        """
        code = await self.process.wait()
        raise DemoFailed(f"{self.name} ended too early, with exit code {code}{self._said()}")

    async def stop(self) -> int:
        """Ask it to end and wait; kill it if it does not. Returns its exit code; does no harm twice."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(GRACE):
                return await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            return await self.process.wait()

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
            if lines:
                return "; the end of its log:\n" + "\n".join(f"  {line}" for line in lines)
        return ""


async def start(name: str, command: Sequence[str], log: Path) -> Child:
    """Start a child in a session of its own, so that Ctrl-C on the terminal reaches the demo alone.

    Its environment lacks what moves a service: the demo's must not reach the user's brokers.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_SVT_")}
    with log.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=sink, stderr=STDOUT, env=own, start_new_session=True
        )
    return Child(name, process, log)


def stream_svt(*arguments: str) -> list[str]:
    """Return the command line of ``stream-svt`` as a child that ends with the demo."""
    return [sys.executable, "-m", "stream_svt.demo.worker", *arguments]
