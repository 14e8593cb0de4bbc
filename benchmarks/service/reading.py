"""How fast workers get through a topic, from their own commits, and the topics that they read."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.application import PARTITIONS, Application, Worker, monitor
from benchmarks.peers import Reading

DATASETS_EACH = 16
TOP, THRESHOLD, LOW = 50_000, 5_000, 100
TOP_SHARE = 1e-4
SERIES = 1000
PATIENCE = 300.0
MONITORS = [monitor(mechanism, mechanism=mechanism, threshold=THRESHOLD) for mechanism in ("svt", "adaptive")]


def datasets(each: int, partitions: int = PARTITIONS) -> list[str]:
    """Return names of datasets, so many at home on each partition, the partitions in turn."""
    by_partition: list[list[str]] = [[] for _ in range(partitions)]
    number = 0
    while min(map(len, by_partition)) < each:
        name = f"d{number}"
        by_partition[peers.home(name.encode(), partitions)].append(name)
        number += 1
    return [names[k] for k in range(each) for names in by_partition]


def drawn_values(count: int) -> NDArray[np.int64]:
    """Return values of queries, the same ones each time, of which one in 10,000 is a top."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, LOW, count)
    values[rng.random(count) < TOP_SHARE] = TOP
    return values


@contextmanager
def application(servers: str, names: Sequence[str], queries: str, **commit: object) -> Iterator[Application]:
    """Yield a new application of two monitors that reads a topic; ``commit`` are keys of that section."""
    with tempfile.TemporaryDirectory() as directory:
        yield Application(
            servers=servers,
            directory=Path(directory),
            names=names,
            monitors=MONITORS,
            queries=queries,
            sections={"commit": commit},
        )


def worker_reading(
    servers: str,
    names: Sequence[str],
    queries: str,
    records: int,
    *,
    look_every: int,
    tops: int,
    **commit: object,
) -> Reading:
    """Return what a new worker commits a second, over a topic of so many records from its beginning.

    Then it is held to what it was there for: an alert from each monitor for each of the ``tops``, but for the few
    whose series an earlier one muted.
    """
    with application(servers, names, queries, **commit) as read, read.worker() as worker:
        reading = committed([worker], queries, records, look_every=look_every)
        end = time.monotonic() + PATIENCE
        while sum(shard["offsets"][queries] for shard in worker.shards()) < records:
            assert time.monotonic() < end, "the worker did not get to the end of the topic in time"
            time.sleep(0.1)
        account = json.loads(worker.get("/api/v1/status"))["datasets"]
        alerts = sum(view["alerts"] for each in account for view in each["monitors"])
        assert 1.8 * tops <= alerts <= 2 * tops, f"{alerts} alerts for {tops} tops and two monitors"
        return reading


@dataclass(frozen=True)
class Look:
    """What each shard has committed, when (s), and the processor time that all workers have used (s)."""

    shards: Mapping[int, tuple[float, int]]
    cpu: float

    @property
    def records(self) -> int:
        """Records committed."""
        return sum(offset for _, offset in self.shards.values())


def committed(workers: Sequence[Worker], queries: str, records: int, *, look_every: int) -> Reading:
    """Return what workers commit a second together, of records spread evenly; ``look_every`` is in milliseconds."""
    near_the_end = 0.98 * records / PARTITIONS
    looks: list[Look] = []
    end = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < end, "the workers did not get through the topic in time"
        look = Look(_shards(workers, queries), sum(worker.cpu() for worker in workers))
        offsets = [offset for _, offset in look.shards.values()]
        if len(look.shards) == PARTITIONS and min(offsets) > 0:
            if max(offsets) >= near_the_end:
                break
            if not looks or look.shards != looks[-1].shards:
                looks.append(look)
        time.sleep(look_every / 1000)
    assert len(looks) > 1, "the workers were faster than they could be looked at: take more records"
    first, last = looks[0], looks[-1]
    rate = sum(_rate(first.shards[shard], last.shards[shard]) for shard in first.shards)
    return Reading(rate=rate, cpu_ns=1e9 * (last.cpu - first.cpu) / (last.records - first.records))


def _shards(workers: Sequence[Worker], queries: str) -> dict[int, tuple[float, int]]:
    shards: list[dict[str, Any]] = [shard for worker in workers for shard in worker.shards()]
    return {shard["shard"]: (shard["committed_at"], shard["offsets"].get(queries, 0)) for shard in shards}


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
