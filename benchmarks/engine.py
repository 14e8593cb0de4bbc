"""The engine on 100,000 datasets against one: queries a second, as a ratio.

Two engines run the same two monitors (SVT with exponential noise, Adaptive SVT) over the same rows: the
same offsets, values, series and tops, in batches of 20,000, one commit after each. Only the dataset of a
row differs: one that takes all, or uniformly one of many. Every run is opened before the clock starts. One
row in 10,000 is a top, of a series of its own, so that muting silences nothing on either side; a run's
cutoff exceeds all tops of the measurement, so that no side waits for a new threshold to become durable more
often than the other. Repetitions are interleaved and the figure is the median of their ratios.
"""

from __future__ import annotations

import gc
import os
import statistics

import numpy as np

from benchmarks.command import median_ratio, say, seconds, show
from benchmarks.play import batch, engine_of, released
from stream_svt.monitor.batch import QueryBatch

TOPIC = "counts"
TOP, THRESHOLD, LOW = 1_000_000, 500_000, 100
TOP_SHARE = 1e-4
SERIES = 1000
KEY = bytes(range(32))

SPEC = """
application: engine
datasets:
  - {{names: [{names}], limit: 6000, unit: one row}}
monitors:
  - {{name: plain, mechanism: svt, {common}}}
  - {{name: adaptive, mechanism: adaptive, {common}}}
"""
COMMON = (
    f"topic: {TOPIC}, epsilon: 1000, cutoff: 1000, sensitivity: 1, monotonic: true, expected_queries: 10000000, "
    f"bounds: [0, {TOP}], threshold: {THRESHOLD}, max_runs: off"
)


class Side:
    """An engine whose runs are all open."""

    def __init__(self, datasets: int) -> None:
        names = ", ".join(f"d{i}" for i in range(datasets))
        self.datasets = datasets
        self.engine = engine_of(SPEC.format(names=names, common=COMMON), KEY, os.urandom)
        opening = np.zeros(datasets, np.int64)
        self.alerts = 0
        self._play([batch(TOPIC, 0, opening, np.arange(datasets), series=["first"] * datasets)])
        self.alerts = 0

    def seconds(self, first: int, rows: int, batches: int, seed: int) -> float:
        """Return how long the engine takes over rows that depend on ``seed`` alone, but for their datasets."""
        rng = np.random.default_rng(seed)
        played = []
        for start in range(first, first + batches * rows, rows):
            values = rng.integers(0, LOW, rows)
            tops = rng.random(rows) < TOP_SHARE
            values[tops] = TOP
            series = [f"s{number}" for number in rng.integers(0, SERIES, rows).tolist()]
            for row in np.flatnonzero(tops).tolist():
                series[row] = f"top-{start + row}"
            dataset = rng.integers(0, 2**31, rows) % self.datasets
            played.append(batch(TOPIC, self.datasets + start, values, dataset, series=series))
        gc.collect()
        return seconds(lambda: self._play(played))

    def _play(self, batches: list[QueryBatch]) -> None:
        for one in batches:
            self.alerts += sum(1 for _ in released(self.engine, one))


def figures(
    datasets: int = 100_000, rows: int = 20_000, batches: int = 5, repetitions: int = 21
) -> dict[str, float]:
    """Return `datasets_100k_vs_1`; nanoseconds a query go to standard error."""
    one, many = Side(1), Side(datasets)
    times: dict[Side, list[float]] = {one: [], many: []}
    for repetition in range(repetitions + 1):  # the first one warms both up
        first = repetition * batches * rows
        for side in (one, many) if repetition % 2 == 0 else (many, one):
            times[side].append(1e9 * side.seconds(first, rows, batches, repetition) / (batches * rows))
    assert one.alerts == many.alerts, "both sides release the same"
    for side in (one, many):
        say(f"{side.datasets} datasets: {statistics.median(times[side][1:]):.0f} ns a query")
    return {"datasets_100k_vs_1": median_ratio("ratios", times[one][1:], times[many][1:])}


if __name__ == "__main__":
    show(figures)
