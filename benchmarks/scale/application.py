"""An application of a size on a broker, and a worker that runs it, started as a user starts one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers

_WORKER = "import sys; from stream_svt.cli import main; main(sys.argv[1:])"
_HEAD = """
application: {name}
kafka: {{bootstrap_servers: "{servers}"}}
topics: {{partitions: 1}}
sealing: {{key_file: master.key}}
web: {{port: {port}}}
datasets:
  - {{file: datasets.txt, limit: 100, unit: one basket}}
monitors:
"""
_MONITOR = (
    "  - {{name: monitor-{number:02}, topic: {topic}, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, "
    "expected_queries: 1000000, bounds: [0, 100000], threshold: {threshold}}}\n"
)


class Worker:
    """A running worker: its process, its status page and what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log = process, log
        self._url = f"http://127.0.0.1:{port}/api/v1/worker"

    @property
    def ended(self) -> bool:
        """Whether the process is no more."""
        return self.process.poll() is not None

    def shard(self) -> dict[str, Any]:
        """Return what the page says of the one shard; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(self._url, timeout=10) as page:  # noqa: S310 - a literal http URL
                shards = json.load(page)["shards"]
        except OSError:
            return {}
        return shards[0] if shards else {}

    def peak_mib(self) -> float:
        """Return the most memory that the process had resident so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        return int(found[1]) / 1024 if found else 0.0

    def moment(self, event: str) -> float:
        """Return when the log told of an event for the first time, in seconds of the day."""
        found = re.search(
            rf"^\S+ (\d+):(\d+):(\d+),(\d+) \S+ .*event={event}\b", self.log.read_text(), re.MULTILINE
        )
        assert found, f"the log tells of no event={event}:\n{self.log.read_text()[-2000:]}"
        hours, minutes, seconds, milliseconds = map(int, found.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


@dataclass(frozen=True)
class Application:
    """So many datasets and monitors on one partition; all monitors read the same topic."""

    servers: str
    directory: Path
    datasets: int
    monitors: int
    name: str

    @classmethod
    def make(cls, servers: str, directory: Path, *, datasets: int, monitors: int) -> Application:
        """Make topics, sealing key and the file of names."""
        made = cls(servers, directory, datasets, monitors, f"bench-{secrets.token_hex(4)}")
        key = directory / "master.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        (directory / "datasets.txt").write_text("\n".join(made.names))
        topics = [f"{made.name}.{topic}" for topic in ("counts", "alerts", "rejects", "control")]
        asyncio.run(peers.create_topics(servers, topics, 1))
        asyncio.run(peers.create_topics(servers, [f"{made.name}.state"], 1, {"cleanup.policy": "compact"}))
        return made

    @property
    def names(self) -> list[str]:
        """Names of the datasets."""
        return [f"dataset-{number:06}" for number in range(self.datasets)]

    @property
    def queries(self) -> str:
        """Name of the query topic."""
        return f"{self.name}.counts"

    def fill(self) -> None:
        """Write one query a dataset, far below every threshold."""
        values = [100] * self.datasets
        writing = peers.write_queries(
            self.servers, self.queries, partitions=1, datasets=self.names, values=values
        )
        asyncio.run(writing)

    def read(self, worker: Worker) -> bool:
        """Tell whether a worker has committed all that the queries opened."""
        return worker.shard().get("offsets", {}).get(self.queries, 0) >= self.datasets

    @contextlib.contextmanager
    def worker(self, patience: float = 120.0) -> Iterator[Worker]:
        """Run a worker; with the context it ends, in order where it still runs."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = self.directory / f"config-{port}.yaml"
        monitors = "".join(
            _MONITOR.format(number=number, topic=self.queries, threshold=5000 + number)
            for number in range(self.monitors)
        )
        config.write_text(_HEAD.format(name=self.name, servers=self.servers, port=port) + monitors)
        log = self.directory / f"worker-{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, "run", "-c", str(config)], stdout=output, stderr=output
            )
        try:
            yield Worker(process, port, log)
        finally:
            process.terminate()
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait(condition: Callable[[], bool], seconds: float, pause: float = 0.2) -> bool:
    """Wait for a condition, so many seconds at most; return whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
