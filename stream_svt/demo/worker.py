"""The demo's service: a child process that cannot outlive the demo, and says why if it ends before.

``python -m stream_svt.demo.worker run -c FILE`` does what ``stream-svt run -c FILE`` does, and ends like on
SIGTERM when its standard input ends, which happens when the demo is gone however it went.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from stream_svt.errors import StreamSvtError

TAIL_LINES = 15
GRACE = 15.0


class DemoFailed(StreamSvtError):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process, and the file that it logs to."""

    process: Process
    log: Path

    async def must_go_on(self) -> None:
        """Wait until it ends, which it should not.

        Raises:
            DemoFailed: Always, when it has ended, with the end of its log.
        """
        code = await self.process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
        said = "".join(f"\n  {line}" for line in lines)
        raise DemoFailed(
            f"the service ended too early, with exit code {code}; the end of its log:{said or ' empty'}"
        )

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


async def start(arguments: Sequence[str], log: Path) -> Child:
    """Start ``stream-svt`` in a session of its own, so that Ctrl-C on the terminal reaches the demo alone.

    Its environment lacks what moves a service: the demo's must not reach the user's brokers.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_SVT_")}
    command = [sys.executable, "-m", "stream_svt.demo.worker", *arguments]
    with log.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=sink, stderr=STDOUT, env=own, start_new_session=True
        )
    return Child(process, log)


def _follow_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_follow_parent, name="demo-watch", daemon=True).start()
    (command,) = entry_points(group="console_scripts", name="stream-svt")
    command.load()()
