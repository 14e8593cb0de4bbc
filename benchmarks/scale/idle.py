"""Processor time of a shard that has nothing to do.

One embedded broker and one worker, as a user starts it, with 64 shards and a ledger in each. `idle_shard_percent` is
the processor time of the worker in a minute without records, as a percentage of one core, divided by the shards: it
holds a 64th of what the worker itself needs, too.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.application import Application, wait_until
from benchmarks.command import say
from stream_svt.kafka.embedded import EmbeddedKafka

SHARDS = 64
SETTLE = 45.0
"""Seconds in which the worker commits what it read, tests its keys and starts to wait."""
SECONDS = 60.0


def idle_percent(servers: str, directory: Path, *, shards: int, settle: float, seconds: float) -> float:
    """Return the percentage of a core that one of the shards of a worker uses without records."""
    names = [f"d{number}" for number in range(16 * shards)]
    application = Application(servers=servers, directory=directory, names=names, partitions=shards)
    with application.worker() as worker:
        application.fill()
        wait_until(lambda: worker.has(shards), "the worker has every shard")
        wait_until(lambda: application.read(worker) == len(names), "every query is read")
        time.sleep(settle)
        before = worker.cpu()
        time.sleep(seconds)
        used = worker.cpu() - before
    say(f"{used:.2f} s of processor time in {seconds:.0f} s, {shards} shards")
    return 100 * used / seconds / shards


def measure() -> dict[str, float]:
    """Return `idle_shard_percent`."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        found = idle_percent(
            kafka.bootstrap_servers, Path(directory), shards=SHARDS, settle=SETTLE, seconds=SECONDS
        )
    return {"idle_shard_percent": found}
