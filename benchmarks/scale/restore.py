"""How long a shard of 100,000 datasets takes from opening to reading: one open run each, one partition, state sealed.

An embedded broker, and a worker started as a user starts it. Every dataset gets one query, so that one run is open on
each; the worker is stopped in order and started again. ``restore_seconds_per_100k`` runs from the moment at which the
shard is assigned to the one at which its state is verified and loaded, its first transaction committed, and it reads
(``event=assigned`` to ``event=shard_opened`` in its log); the median of three restarts, for 100,000 datasets.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.scale.application import Application, wait
from stream_svt.service.embedded import EmbeddedKafka

DATASETS, RESTARTS = 100_000, 3
PATIENCE = 600.0


def measure(datasets: int = DATASETS, restarts: int = RESTARTS) -> dict[str, float]:
    """Return `restore_seconds_per_100k`."""
    found = []
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        application = Application.make(
            kafka.bootstrap_servers, Path(directory), datasets=datasets, monitors=1
        )
        application.fill()
        with application.worker() as worker:
            assert wait(lambda: application.read(worker), PATIENCE), worker.log.read_text()[-2000:]
        for _ in range(restarts):
            with application.worker() as worker:
                assert wait(lambda worker=worker: application.read(worker), PATIENCE), "never read again"
                found.append(worker.moment("shard_opened") - worker.moment("assigned"))
                print(f"{datasets:,} datasets restored in {found[-1]:.2f} s", file=sys.stderr)
    return {"restore_seconds_per_100k": statistics.median(found) * 100_000 / datasets}
