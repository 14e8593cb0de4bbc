"""Memory that a worker takes: a model of what it holds, with measured figures.

A test compares the figures for datasets and runs with measurements; `benchmarks/scale/opening.py` measures a whole
process. Not included is what depends on the queries: muted series (about 300 bytes each), and queries that wait in
open sets or for a retry.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from stream_svt.settings.application import ApplicationSpec

MIB = 2**20
PROCESS = 120 * MIB
"""The interpreter with all its libraries, and a worker of a small configuration."""
WORK = 80 * MIB
"""Data in transit: queries read ahead, a step's arrays, the transaction in flight and the one before."""
DECLARED = 1_000
"""Bytes of a declared dataset on every worker."""
DATASET = 900
"""Bytes of a dataset on the worker that holds its shard: ledger, counters, the hash of its record."""
RUN = 450
"""Bytes of a monitor with an open run on a dataset: counters, secrets, elements of the arrays."""
RECORD = 75
"""Bytes of a dataset's state record."""
STORED = 95
"""Bytes of a monitor in a dataset's state record."""
OBJECT = 150
"""Bytes that a record in memory takes in addition to its content: object, dictionary entry, seal."""


class Memory(NamedTuple):
    """Most bytes that a worker takes with all shards, or with one, when every run is open."""

    all_shards: int
    one_shard: int


def needed(spec: ApplicationSpec, partitions: int) -> Memory:
    """Return the memory that a worker takes.

    While a shard is opened, its records are in memory twice, sealed and opened, in addition to the restored state.
    """
    datasets = len(spec.datasets)
    runs = sum(int(spec.covered(monitor).sum()) for monitor in spec.monitors)
    process = PROCESS + WORK + DECLARED * datasets
    held = DATASET * datasets + RUN * runs
    opening = 2 * ((RECORD + OBJECT) * datasets + STORED * runs)
    return Memory(process + held + ceil(opening / partitions), process + ceil((held + opening) / partitions))
