"""The service as its user starts it: a process of its own, ended by signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_svt.kafka.embedded import free_ports

COMMAND = [sys.executable, "-m", "stream_svt"]


def free_port() -> int:
    """Return a port that nobody listened on a moment ago."""
    return free_ports(1)[0]


def applied(config: Path, *options: str) -> str:
    """Apply a configuration, and return what was said; every shard has adopted it then, where a worker runs."""
    done = subprocess.run(
        [*COMMAND, "apply", "--yes", "-c", str(config), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Process:
    """A program with pages; only the process that this object started is ever signalled."""

    def __init__(self, command: Sequence[str], port: int, log: Path, **options: Any) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, **options)

    def fetch(self, path: str) -> str | None:
        """Return a page, None while nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - our own, on loopback
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        """Wait for a condition while the process lives."""
        end = time.monotonic() + seconds
        while not await asyncio.to_thread(condition):
            assert self.process.poll() is None, f"the service ended:\n{self.log}"
            assert time.monotonic() < end, f"the condition was not met in time:\n{self.log}"
            await asyncio.sleep(0.1)

    def said(self, text: str) -> int:
        return self.output.count(text)

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def log(self) -> str:
        """The end of what the process printed."""
        return self.output[-5000:]

    async def end(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process, wait, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sent)
        return await self.ended()

    async def ended(self) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        return await asyncio.to_thread(self.process.wait, 60)


class Service(Process):
    """`stream-svt run -c FILE OPTION..`."""

    command = "run"

    def __init__(
        self,
        config: Path,
        port: int,
        log: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        applies: bool = True,
    ) -> None:
        self.config = config
        command = [*COMMAND, self.command, "-c", str(config), *(["--apply"] if applies else []), *options]
        super().__init__(command, port, log, env=os.environ | dict(env or {}), cwd=cwd)

    def status(self) -> dict[str, Any] | None:
        text = self.fetch("/api/v1/status")
        return None if text is None else json.loads(text)

    def shards(self) -> dict[int, dict[str, Any]]:
        """Return the status of the shards that are open here, by number."""
        status = self.status() or {"shards": []}
        return {
            shard["shard"]: shard for shard in status["shards"] if shard["state"] in {"running", "replaying"}
        }

    def offsets(self, topic: str = "") -> int:
        """Return how many records the shards that are open here have committed, of one topic or all."""
        offsets = [item for shard in self.shards().values() for item in shard["offsets"].items()]
        return sum(offset for name, offset in offsets if topic in ("", name))

    async def ready(self, seconds: float = 40.0) -> None:
        """Wait until every assigned shard is open."""
        await self.until(lambda: (status := self.status()) is not None and bool(status["ready"]), seconds)
