"""How much memory a worker takes: a model of what it holds, with measured figures.

A test holds what the model says of datasets and runs to measurement; `benchmarks/scale/opening.py` measures a whole
process. What queries leave behind comes on top, for the configuration says nothing of it: muted series (about 300
bytes each), and queries that wait in open sets or for a retry.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from stream_svt.settings.application import ApplicationSpec

MIB = 2**20
PROCESS = 120 * MIB
"""The interpreter with all its libraries, and a worker of a small configuration."""
WORK = 80 * MIB
"""What passes through: queries read ahead, a step's arrays, the transaction in flight and the one before."""
DECLARED = 1_000
"""Bytes of a dataset that is declared, on every worker."""
DATASET = 900
"""Bytes of a dataset on the worker that holds its shard: ledger, counters, what proves its record."""
RUN = 450
"""Bytes of a monitor on a dataset, its run open: what is counted of it, its secrets, its place in the arrays."""
RECORD = 75
"""Bytes of a dataset's state record."""
STORED = 95
"""Bytes of a monitor in it."""
OBJECT = 150
"""Bytes that a record takes beside its content while it is held: as an object, in a dictionary, its seal."""


class Memory(NamedTuple):
    """Bytes that a worker takes at most that holds all shards, or one, with every run open."""

    all_shards: int
    one_shard: int


def needed(spec: ApplicationSpec, partitions: int) -> Memory:
    """Return how much memory a worker takes.

    While a shard is opened, its records are held twice beside what is made of them: sealed, and opened.
    """
    datasets = len(spec.datasets)
    runs = sum(int(spec.covered(monitor).sum()) for monitor in spec.monitors)
    process = PROCESS + WORK + DECLARED * datasets
    held = DATASET * datasets + RUN * runs
    opening = 2 * ((RECORD + OBJECT) * datasets + STORED * runs)
    return Memory(process + held + ceil(opening / partitions), process + ceil((held + opening) / partitions))
