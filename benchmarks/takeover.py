"""How long a shard is without an owner: restoring 100,000 datasets, and a worker killed with SIGKILL.

One embedded broker, 4 partitions, sealed state. *Restore*: an application with a ledger and an open run for each of so
many datasets is stopped in order and started again; the time runs from the assignment of the shards to the moment at
which the last of them has verified its state, written its first transaction and reads queries. *Kill*: of two workers
that share the shards, with queries coming in all the time, one is killed; the time runs until the other has every shard
open, less the session timeout, for which Kafka waits by design.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import peers
from stream_svt.service.embedded import EmbeddedKafka

PARTITIONS = 4
PATIENCE = 300.0
SESSION = 6.0
"""Seconds: the default session timeout."""
CONFIG = """
application: {application}
kafka: {{bootstrap_servers: "{servers}"}}
topics: {{partitions: {partitions}}}
sealing: {{key_file: master.key}}
web: {{port: {port}}}
datasets:
  - {{file: datasets.txt, limit: 100, unit: one basket}}
monitors:
  - {{name: plain, topic: {application}.counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true,
     expected_queries: 1000000, bounds: [0, 100000], threshold: 5000}}
"""
_WORKER = "import sys; from stream_svt.cli import main; main(sys.argv[1:])"
_TIME = re.compile(r"^(\S+ \S+) INFO .*event=(assigned|shard_opened)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: datasets with a ledger, restarts of them, workers killed."""

    datasets: int = 100_000
    restores: int = 3
    kills: int = 5


class Application:
    """One application on the broker, and its workers."""

    def __init__(self, servers: str, directory: Path, names: Sequence[str]) -> None:
        self.name = f"bench-{secrets.token_hex(4)}"
        self.queries = f"{self.name}.counts"
        self._servers, self._directory = servers, directory
        key = directory / "master.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        (directory / "datasets.txt").write_text("\n".join(names))
        topics = [f"{self.name}.{topic}" for topic in ("counts", "alerts", "rejects", "control")]
        asyncio.run(peers.create_topics(servers, topics, PARTITIONS))
        compacted = {"cleanup.policy": "compact"}
        asyncio.run(peers.create_topics(servers, [f"{self.name}.state"], PARTITIONS, compacted))

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        """Run a worker; it ends with the context, in order where it still runs."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = self._directory / f"config-{port}.yaml"
        config.write_text(
            CONFIG.format(application=self.name, servers=self._servers, partitions=PARTITIONS, port=port)
        )
        log = self._directory / f"worker-{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, "run", "-c", str(config)], stdout=output, stderr=output
            )
        try:
            yield Worker(process, port, log)
        finally:
            process.terminate()
            process.wait(PATIENCE)


class Worker:
    """A running worker's process, its status page and what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log = process, log
        self._url = f"http://127.0.0.1:{port}/api/v1/worker"

    def shards(self) -> list[dict[str, Any]]:
        """Return the shards that are open here; nothing while the page does not answer."""
        assert self.process.poll() is None, f"the worker ended:\n{self.log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(self._url, timeout=10) as page:  # noqa: S310 - a literal http URL
                found = json.load(page)["shards"]
        except OSError:
            return []
        return [shard for shard in found if shard["state"] == "running"]

    def cpu(self) -> float:
        """Return the processor time used so far, in seconds: what a busy machine does not stretch."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def takeover(self) -> float:
        """Return the seconds from the last assignment to the moment at which its last shard was open."""
        found = [
            (datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f"), event)  # noqa: DTZ007  two of one clock
            for moment, event in _TIME.findall(self.log.read_text())
        ]
        assigned = max(moment for moment, event in found if event == "assigned")
        return (max(moment for moment, _ in found) - assigned).total_seconds()


def _await(condition: Callable[[], bool], wanted: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never came: {wanted}"
        time.sleep(0.02)


def _fill(servers: str, application: Application, names: Sequence[str]) -> None:
    write = peers.write_queries(
        servers, application.queries, partitions=PARTITIONS, datasets=names, values=[100] * len(names)
    )
    asyncio.run(write)


def restores(servers: str, directory: Path, size: Size) -> list[float]:
    """Return how long each restart took to have every ledger back."""
    names = [f"d{number}" for number in range(size.datasets)]
    application = Application(servers, directory, names)
    _fill(servers, application, names)

    def read(worker: Worker) -> bool:
        shards = worker.shards()
        return sum(shard["offsets"].get(application.queries, 0) for shard in shards) == size.datasets

    found = []
    with application.worker() as worker:
        _await(lambda: read(worker), "every dataset has a ledger")
    for _ in range(size.restores):
        with application.worker() as worker:
            _await(lambda worker=worker: read(worker), "every ledger is back")
            found.append(worker.takeover())
            print(
                f"{size.datasets:,} datasets restored in {found[-1]:.2f} s; {worker.cpu():.1f} s of processor time "
                "since the process began",
                file=sys.stderr,
            )
    return found


def kills(servers: str, directory: Path, size: Size) -> list[float]:
    """Return how long after a SIGKILL the survivor had every shard open, less the session timeout."""
    names = [f"d{number}" for number in range(64)]
    application = Application(servers, directory, names)
    found = []
    with contextlib.ExitStack() as workers:
        survivor = workers.enter_context(application.worker())
        _await(lambda: len(survivor.shards()) == PARTITIONS, "the first worker has every shard")
        for _ in range(size.kills):
            victim = workers.enter_context(application.worker())
            _fill(servers, application, names)
            _await(lambda victim=victim: len(victim.shards()) == PARTITIONS // 2, "the shards are shared")
            _await(lambda: len(survivor.shards()) == PARTITIONS // 2, "the shards are shared")
            killed = time.monotonic()
            victim.process.send_signal(signal.SIGKILL)
            _await(lambda: len(survivor.shards()) == PARTITIONS, "the survivor has every shard")
            found.append(time.monotonic() - killed - SESSION)
            print(f"ready {found[-1]:+.2f} s after the session timeout", file=sys.stderr)
    return found


def figures(size: Size = Size()) -> dict[str, float]:
    """Return `restore_100k_seconds` and `kill_to_ready_minus_session_timeout`: medians."""
    with (
        EmbeddedKafka() as kafka,
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
    ):
        servers = kafka.bootstrap_servers
        ready = kills(servers, Path(one), size)
        restored = restores(servers, Path(other), size)
    return {
        "restore_100k_seconds": statistics.median(restored),
        "kill_to_ready_minus_session_timeout": statistics.median(ready),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks/run takeover")
    for name in Size.__slots__:
        parser.add_argument(f"--{name}", type=int, default=getattr(Size(), name))
    for name, figure in figures(Size(**vars(parser.parse_args(arguments)))).items():
        print(f"takeover.{name} {figure:.3f}")


if __name__ == "__main__":
    main()
