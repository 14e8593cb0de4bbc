"""The engine on a million datasets against one: time of a query and of an alert, bytes of a dataset.

**Datasets.** Two engines run the same two monitors (SVT with exponential noise, Adaptive SVT) over the same rows: the
same offsets, values, series and tops, in batches of 20,000, one commit after each. Only the dataset of a
row differs: one that takes all, or uniformly one of many. Every run is opened before the clock starts. One
row in 10,000 is a top, of a series of its own, so that muting silences nothing on either side; a run's
cutoff exceeds all tops of the measurement, so that no side waits for a new threshold to become durable more
often than the other. `ns_per_query` is that of one dataset. Repetitions are interleaved and figures are medians, the
first one of ratios.

**Alerts.** On 64 datasets, `alert_us` is what engine, commit and encoding of the events take more if one row in 100 or
in 10 is a top than if one in 10,000 is, per alert; the larger of both.

**Mutes.** `muted_ns` is what a query of a muted series takes more than one of another, in an engine of 16 datasets with
1,000 muted series each.

Times are of the processor, without the garbage collector.

**Memory.** `slot_bytes`, `dataset_bytes` and `digest_bytes`: see `benchmarks/memory.py`.
"""

from __future__ import annotations

import gc
import os
import statistics
import time

import numpy as np

from benchmarks import memory
from benchmarks.command import median_ratio, say, show
from benchmarks.play import batch, engine_of, released
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import TextSlices
from stream_svt.monitor.released import Alert, encode

TOPIC = "counts"
TOP, THRESHOLD, LOW = 1_000_000, 500_000, 100
TOP_SHARE = 1e-4
ALERT_SHARES = (1e-4, 1e-2, 1e-1)
ALERT_DATASETS = 64
SERIES = 1000
MUTED_DATASETS = 16
KEY = bytes(range(32))

SPEC = """
application: engine
datasets:
  - {{file: names, limit: 60000, unit: one row}}
monitors:
  - {{name: plain, mechanism: svt, {common}}}
  - {{name: adaptive, mechanism: adaptive, {common}}}
"""
COMMON = (
    f"topic: {TOPIC}, epsilon: 10000, cutoff: 10000, sensitivity: 1, monotonic: true, expected_queries: 10000000, "
    f"bounds: [0, {TOP}], threshold: {THRESHOLD}, max_runs: off"
)


class Side:
    """An engine whose runs are all open."""

    def __init__(self, datasets: int) -> None:
        names = [f"d{number}" for number in range(datasets)]
        self.datasets = datasets
        self.engine = engine_of(SPEC.format(common=COMMON), KEY, os.urandom, names)
        self.alerts = 0
        self._next = 0
        self._play([self._batch(np.zeros(datasets, np.int64), np.arange(datasets))])
        self.alerts = 0

    def mute_all(self) -> None:
        """Mute the series of the rows that follow in every dataset."""
        for dataset in range(self.datasets):
            self._play([self._batch(np.full(SERIES, TOP), np.full(SERIES, dataset), "s")])

    def seconds(
        self, rows: int, batches: int, seed: int, share: float = TOP_SHARE, series: str = "s"
    ) -> float:
        """Return the processor time that rows take, which depend on ``seed`` alone, but for their datasets."""
        rng = np.random.default_rng(seed)
        played = []
        for _ in range(batches):
            values = rng.integers(0, LOW, rows)
            values[rng.random(rows) < share] = TOP
            played.append(self._batch(values, rng.integers(0, 2**31, rows) % self.datasets, series))
        gc.collect()
        gc.disable()
        began = time.process_time()
        self._play(played)
        taken = time.process_time() - began
        gc.enable()
        return taken

    def _batch(self, values: np.ndarray, dataset: np.ndarray, series: str = "s") -> QueryBatch:
        """Return the next queries; a top among others has a series of its own."""
        first, self._next = self._next, self._next + len(values)
        texts = [f"{series}{row % SERIES}".encode() for row in range(len(values))]
        tops = np.flatnonzero(values == TOP).tolist()
        for row in tops if len(tops) < len(values) else ():
            texts[row] = b"top-%d" % (first + row)
        return batch(TOPIC, first, values, dataset, series=TextSlices.of(texts))

    def _play(self, batches: list[QueryBatch]) -> None:
        for one in batches:
            for event in released(self.engine, one):
                encode(
                    event, application="engine", shard=0, time="2026-01-01T00:00:00.000Z", origin="1-0a1b2c3d"
                )
                self.alerts += isinstance(event.data, Alert)


def alert_us(rows: int, batches: int, repetitions: int) -> float:
    """Return the microseconds of processor time that an alert takes."""
    side = Side(ALERT_DATASETS)
    turns: list[list[tuple[float, int]]] = [[] for _ in ALERT_SHARES]
    for repetition in range(repetitions + 1):
        for found, share in zip(turns, ALERT_SHARES, strict=True):
            before = side.alerts
            taken = side.seconds(rows, batches, repetition, share)
            found.append((taken, side.alerts - before))
    few, *others = ([statistics.median(column) for column in zip(*found[1:], strict=True)] for found in turns)
    costs = [1e6 * (taken - few[0]) / (alerts - few[1]) for taken, alerts in others]
    say("microseconds an alert: " + " ".join(f"{cost:.1f}" for cost in costs))
    return float(max(costs))


def muted_ns(rows: int, batches: int, repetitions: int) -> float:
    """Return the nanoseconds of processor time that a query of a muted series takes more than one of another."""
    side = Side(MUTED_DATASETS)
    side.mute_all()
    more = []
    for repetition in range(repetitions + 1):
        muted, other = (side.seconds(rows, batches, repetition, 0.0, series) for series in ("s", "t"))
        more.append(1e9 * (muted - other) / (rows * batches))
    return statistics.median(more[1:])


def figures(
    datasets: int = 1_000_000,
    rows: int = 20_000,
    batches: int = 5,
    repetitions: int = 21,
    held: int = 100_000,
) -> dict[str, float]:
    """Return `datasets_1m_vs_1`, named by how many ``datasets`` there are, `ns_per_query`, `muted_ns` and `alert_us`.

    With them the bytes of memory of one of so many datasets ``held``.
    """
    alert = alert_us(rows, 1, repetitions)  # first: a million datasets take the caches
    one, many = Side(1), Side(datasets)
    times: dict[Side, list[float]] = {one: [], many: []}
    for repetition in range(repetitions + 1):  # the first one warms both up
        for side in (one, many) if repetition % 2 == 0 else (many, one):
            times[side].append(1e9 * side.seconds(rows, batches, repetition) / (batches * rows))
    assert one.alerts == many.alerts, "both sides release the same"
    for side in (one, many):
        say(f"{side.datasets} datasets: {statistics.median(times[side][1:]):.0f} ns a query")
    return {
        f"datasets_{_short(datasets)}_vs_1": median_ratio("ratios", times[one][1:], times[many][1:]),
        "ns_per_query": statistics.median(times[one][1:]),
        "muted_ns": muted_ns(rows, batches, repetitions),
        "alert_us": alert,
        **memory.figures(held),
    }


def _short(count: int) -> str:
    """Return a number as names have it, such as 300, 10k or 1m."""
    for size, letter in ((10**6, "m"), (1000, "k")):
        if count % size == 0:
            return f"{count // size}{letter}"
    return str(count)


if __name__ == "__main__":
    show(figures)
