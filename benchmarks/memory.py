"""Memory that a shard keeps for a dataset, and for each monitor on it, with a run open and nothing waiting.

The traced memory (tracemalloc) of one shard: its declarations read from a file of names, the decoder's index of keys,
accounts, arrays of runs, and sums. It is read once with few monitors and once with many: ``slot_bytes`` is the slope by
monitors, ``dataset_bytes`` the intercept, both for one dataset. ``digest_bytes`` is what the journal keeps besides for
the digest of the state: key and hash of a dataset's record.
"""

from __future__ import annotations

import gc
import os
import time
import tracemalloc

import numpy as np

from benchmarks.command import say
from benchmarks.play import Integers, batch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.protocol.sealing import RecordContext
from stream_svt.protocol.state_records import JournalSettings, ShardRecords
from stream_svt.settings.application import load_spec
from stream_svt.settings.datasets import RetiredDatasets
from stream_svt.settings.sections import TopicsConfig
from stream_svt.worker.workload import AppliedWorkload

TOPIC = "counts"
AT_ONCE = 20_000
FEW = 100
"""Datasets of a shard whose memory is subtracted: what does not grow with them."""

SPEC = """
application: memory
datasets:
  - {file: names, limit: 6000, unit: one row}
monitors:
"""
MONITOR = (
    f"  - {{{{name: monitor-{{:02}}, mechanism: svt, topic: {TOPIC}, epsilon: 10, cutoff: 10, sensitivity: 1, "
    "monotonic: true, expected_queries: 1000, bounds: [0, 1000], threshold: 500}}\n"
)


class Shard:
    """All that one process holds of a shard whose runs are all open."""

    def __init__(self, datasets: int, monitors: int) -> None:
        text = SPEC + "".join(map(MONITOR.format, range(monitors)))
        spec = load_spec(text, read_names=lambda _: [f"dataset-{number:06}" for number in range(datasets)])
        self.workload = AppliedWorkload(spec, Partitioning(1, "murmur2"))
        del spec
        for _ in self.workload.prepare():
            pass
        for _ in self.workload.gather(0, RetiredDatasets()):
            pass
        self.engine: Engine = self.workload.engine(0, os.urandom(32))
        self.decoders = self.workload.decoders(self.engine)
        self.records = ShardRecords(
            JournalSettings(
                context=RecordContext("cluster", "memory", "memory.state", 0),
                topics=TopicsConfig(partitions=1),
                entropy=os.urandom,
                epoch=time.time,
            )
        )
        self.engine.begin(TOPIC, 0)
        for first in range(0, datasets, AT_ONCE):
            numbers = np.arange(first, min(first + AT_ONCE, datasets))
            self._step(first, numbers)

    def _step(self, first: int, numbers: Integers) -> None:
        queries = batch(TOPIC, first, np.zeros(len(numbers), np.int64), numbers)
        done = False
        while not done:
            done = self.engine.step(queries).done
            self.records.write(self.engine.take_commit(), [], "", 0, claim=False)
            self.engine.committed()


def traced(datasets: int, monitors: int) -> Integers:
    """Return the bytes that a shard holds, and those that its journal holds for the digest."""
    gc.collect()
    tracemalloc.start()
    try:
        shard = Shard(datasets, monitors)
        gc.collect()
        both = tracemalloc.get_traced_memory()[0]
        shard.records.macs.clear()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert all(runner.runs.is_open(datasets - 1) for runner in shard.engine.runners.values())
    return np.array([held, both - held])


def figures(datasets: int, few: int = 1, many: int = 10) -> dict[str, float]:
    """Return `slot_bytes`, `dataset_bytes` and `digest_bytes`."""
    traced(FEW, many)  # fills caches that no shard owns
    small, large = (traced(datasets, monitors) - traced(FEW, monitors) for monitors in (few, many))
    counted = datasets - FEW
    slot = (large - small)[0] / (many - few) / counted
    say(f"{few} monitors: {small[0] / 2**20:.1f} MiB; {many}: {large[0] / 2**20:.1f} MiB")
    return {
        "slot_bytes": slot,
        "dataset_bytes": small[0] / counted - few * slot,
        "digest_bytes": small[1] / counted,
    }
