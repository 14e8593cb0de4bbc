"""How long a shard is without an owner: restoring 100,000 datasets, and a worker killed with SIGKILL.

One embedded broker, 4 partitions, sealed state. *Restore*: an application with a ledger and an open run for each of so
many datasets is stopped in order and started again; the time runs from the assignment of the shards to the moment at
which the last of them has verified its state, written its first transaction and reads queries. *Kill*: of two workers
that share the shards, with queries coming in all the time, one is killed; the time runs until the other has every shard
open, less the session timeout, for which Kafka waits by design.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.application import PARTITIONS, Application, wait_until
from benchmarks.command import say, show
from stream_svt.kafka.embedded import EmbeddedKafka

SESSION = 6.0
"""Seconds: the default session timeout."""


def restore(application: Application, restarts: int) -> list[float]:
    """Return how long each restart took to have every ledger back."""
    application.fill()
    count = len(application.names)
    found = []
    with application.worker() as worker:
        wait_until(lambda: application.read(worker) == count, "every dataset has a ledger")
    for _ in range(restarts):
        with application.worker() as worker:
            wait_until(lambda: application.read(worker) == count, "every ledger is back")
            found.append(worker.takeover())
            say(
                f"{count:,} datasets restored in {found[-1]:.2f} s, {worker.cpu():.1f} s of processor time in all"
            )
    return found


def kill(application: Application, times: int) -> list[float]:
    """Return how long after a SIGKILL the survivor had every shard open, less the session timeout."""
    found = []
    with contextlib.ExitStack() as workers:
        survivor = workers.enter_context(application.worker())
        wait_until(lambda: survivor.has(PARTITIONS), "the first worker has every shard")
        for _ in range(times):
            victim = workers.enter_context(application.worker())
            application.fill()
            for one in (victim, survivor):
                wait_until(partial(one.has, PARTITIONS // 2), "the shards are shared")
            killed = time.monotonic()
            victim.process.send_signal(signal.SIGKILL)
            wait_until(lambda: survivor.has(PARTITIONS), "the survivor has every shard", pause=0.02)
            found.append(time.monotonic() - killed - SESSION)
            say(f"ready {found[-1]:+.2f} s after the session timeout")
    return found


def figures(datasets: int = 100_000, restores: int = 3, kills: int = 5) -> dict[str, float]:
    """Return `restore_100k_seconds` and `kill_to_ready_minus_session_timeout`: medians."""
    with (
        EmbeddedKafka() as kafka,
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
    ):
        few, many = (
            Application(
                servers=kafka.bootstrap_servers,
                directory=Path(directory),
                names=[f"d{number}" for number in range(count)],
            )
            for directory, count in ((one, 64), (other, datasets))
        )
        ready, restored = kill(few, kills), restore(many, restores)
    return {
        "restore_100k_seconds": statistics.median(restored),
        "kill_to_ready_minus_session_timeout": statistics.median(ready),
    }


if __name__ == "__main__":
    show(figures)
