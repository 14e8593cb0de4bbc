"""An application on a broker, and workers that run it, each a process of its own as a user starts one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import peers

PARTITIONS = 4
PATIENCE = 900.0
"""Seconds in which whatever a benchmark waits for has come, on the slowest machine."""
_END = 120.0
_PROGRAM = "import sys; from stream_svt.cli import main; main(['run', '--apply', '-c', sys.argv[1]])"
_TIME = re.compile(r"^(\S+ \S+) INFO .*event=(assigned|shard_opened)", re.MULTILINE)


def monitor(name: str, **more: object) -> dict[str, Any]:
    """Return a monitor whose runs pay for ten alerts; ``more`` adds fields or replaces them."""
    usual = {
        "epsilon": 1,
        "cutoff": 10,
        "sensitivity": 1,
        "monotonic": True,
        "expected_queries": 1_000_000,
        "max_runs": "off",
    }
    return {"name": name, **usual, "bounds": [0, 100_000], "threshold": 5000, **more}


class Worker:
    """A running worker: its process, its configuration, its pages and what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, config: Path, log: Path) -> None:
        self.process, self.port, self.config, self.log = process, port, config, log

    @property
    def ended(self) -> bool:
        """Whether the process is no more."""
        return self.process.poll() is not None

    def ask(self, path: str, seconds: float = 60.0) -> bytes:
        """Return a page; nothing where it does not answer."""
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=seconds) as page:
                return bytes(page.read())
        except OSError:
            return b""

    def get(self, path: str) -> bytes:
        """Return a page of a worker that has not ended; nothing while it does not answer."""
        assert not self.ended, f"the worker ended:\n{self.log.read_text()[-2000:]}"
        return self.ask(path)

    def shards(self) -> list[dict[str, Any]]:
        """Return the shards that are here, whatever their state."""
        text = self.get("/api/v1/worker")
        return list(json.loads(text)["shards"]) if text else []

    def has(self, shards: int) -> bool:
        """Whether so many shards run here, and no other is here."""
        return [shard["state"] for shard in self.shards()] == shards * ["running"]

    def cpu(self) -> float:
        """Return the processor time used so far, in seconds: what a busy machine does not stretch."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        """Return the most memory that the process had resident so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        return int(found[1]) / 1024 if found else 0.0

    def takeover(self) -> float:
        """Return the seconds from the last assignment to the moment at which its last shard was open."""
        found = [
            (datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f%z"), event)
            for moment, event in _TIME.findall(self.log.read_text())
        ]
        assigned = max(moment for moment, event in found if event == "assigned")
        return (max(moment for moment, _ in found) - assigned).total_seconds()

    def end(self) -> None:
        """Stop it in order, where it still runs."""
        self.process.terminate()
        try:
            self.process.wait(_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(kw_only=True)
class Application:
    """Datasets on a new application's topics, its state sealed.

    Attributes:
        directory: Holds the configurations, the sealing key, the names and the logs.
        monitors: Their fields; all of them read the queries of every dataset.
        queries: Topic of the queries; without one the application gets its own.
        sections: Further sections of the configuration, and fields of those that are there.
    """

    servers: str
    directory: Path
    names: Sequence[str]
    partitions: int = PARTITIONS
    monitors: Sequence[Mapping[str, Any]] = (monitor("plain"),)
    queries: str = ""
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        topics = [f"{self.name}.{topic}" for topic in ("alerts", "rejects", "control")]
        if not self.queries:
            self.queries = f"{self.name}.counts"
            topics.append(self.queries)
        key = self.directory / "master.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        (self.directory / "datasets.txt").write_text("\n".join(self.names))
        asyncio.run(peers.create_topics(self.servers, topics, self.partitions))
        topics = [f"{self.name}.{topic}" for topic in ("state", "config")]
        compacted = {"cleanup.policy": "compact"}
        asyncio.run(peers.create_topics(self.servers, topics, self.partitions, compacted))

    def config(self, port: int) -> str:
        """Return the configuration of a worker whose pages are on this port."""
        usual: dict[str, dict[str, Any]] = {
            "kafka": {"bootstrap_servers": self.servers},
            "topics": {"partitions": self.partitions},
            "sealing": {"keys": ["master.key"]},
            "web": {"port": port},
        }
        for section, fields in self.sections.items():
            usual[section] = usual.get(section, {}) | dict(fields)
        datasets = [{"file": "datasets.txt", "limit": 100, "unit": "one basket"}]
        monitors = [{"topic": self.queries, **fields} for fields in self.monitors]
        return json.dumps({"application": self.name, **usual, "datasets": datasets, "monitors": monitors})

    def fill(self) -> None:
        """Write one query of each dataset, far below every threshold."""
        writing = peers.write_queries(
            self.servers,
            self.queries,
            partitions=self.partitions,
            datasets=self.names,
            values=[b"100"] * len(self.names),
        )
        asyncio.run(writing)

    def read(self, worker: Worker) -> int:
        """Return how many queries the shards that run at a worker have committed."""
        running = (shard for shard in worker.shards() if shard["state"] == "running")
        return sum(shard["offsets"].get(self.queries, 0) for shard in running)

    @contextlib.contextmanager
    def worker(self, program: str = _PROGRAM, *arguments: str) -> Iterator[Worker]:
        """Run a worker, by a program that gets the configuration and the arguments; it ends with the context."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config, log = (self.directory / f"{kind}-{port}" for kind in ("config", "log"))
        config.write_text(self.config(port))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(config), *arguments], stdout=output, stderr=output
            )
        worker = Worker(process, port, config, log)
        try:
            yield worker
        finally:
            worker.end()


def wait(condition: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.2) -> bool:
    """Wait for a condition, so many seconds at most; return whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def wait_until(condition: Callable[[], bool], wanted: str, pause: float = 0.2) -> None:
    """Wait for a condition that comes; ``wanted`` says what it is."""
    assert wait(condition, pause=pause), f"never came: {wanted}"
