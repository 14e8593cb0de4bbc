"""How long a shard of 100,000 datasets takes from opening to reading: one open run each, one partition, state sealed.

An embedded broker, and a worker started as a user starts it. Every dataset gets one query, so that one run is open on
each; the worker is stopped in order and started again. ``restore_seconds_per_100k`` runs from the moment at which the
shard is assigned to the one at which its state is verified and loaded, its first transaction committed, and it reads
(``event=assigned`` to ``event=shard_opened`` in its log); the median of three restarts, for 100,000 datasets.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.application import Application
from benchmarks.takeover import restore
from stream_svt.kafka.embedded import EmbeddedKafka

DATASETS, RESTARTS = 100_000, 3


def measure() -> dict[str, float]:
    """Return `restore_seconds_per_100k`."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        names = [f"dataset-{number:06}" for number in range(DATASETS)]
        application = Application(
            servers=kafka.bootstrap_servers, directory=Path(directory), names=names, partitions=1
        )
        found = restore(application, RESTARTS)
    return {"restore_seconds_per_100k": statistics.median(found) * 100_000 / DATASETS}
