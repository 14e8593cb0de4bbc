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
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import show
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.engine import Engine
from stream_svt.settings.application_document import load_spec

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
    f"bounds: [0, {TOP}], threshold: {THRESHOLD}"
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: ``batches`` of ``rows`` on either side in each repetition."""

    datasets: int = 100_000
    rows: int = 20_000
    batches: int = 5
    repetitions: int = 21


class Side:
    """An engine whose runs are all open, and the place it has reached on its topic."""

    def __init__(self, datasets: int) -> None:
        spec = load_spec(SPEC.format(names=", ".join(f"d{i}" for i in range(datasets)), common=COMMON))
        names = [dataset.name for dataset in spec.datasets]
        self.datasets = datasets
        self.engine = Engine(spec, shard=0, datasets=names, key=KEY, entropy=os.urandom)
        self.engine.begin(TOPIC, 0)
        self.alerts = 0
        self._play(_batch(0, np.arange(datasets), np.zeros(datasets, np.int64), ["first"] * datasets))

    def seconds(self, first: int, size: Size, seed: int) -> float:
        """Return how long the engine takes over rows that depend on ``seed`` alone, but for their datasets."""
        rng = np.random.default_rng(seed)
        batches = []
        for start in range(first, first + size.batches * size.rows, size.rows):
            values = rng.integers(0, LOW, size.rows)
            tops = rng.random(size.rows) < TOP_SHARE
            values[tops] = TOP
            series: list[str | None] = [
                f"s{number}" for number in rng.integers(0, SERIES, size.rows).tolist()
            ]
            for row in np.flatnonzero(tops).tolist():
                series[row] = f"top-{start + row}"
            dataset = rng.integers(0, 2**31, size.rows) % self.datasets
            batches.append(_batch(self.datasets + start, dataset, values, series))
        gc.collect()
        began = time.perf_counter()
        for batch in batches:
            self._play(batch)
        return time.perf_counter() - began

    def _play(self, batch: QueryBatch) -> None:
        while True:
            step = self.engine.step(batch)
            commit = self.engine.take_commit()
            self.engine.committed()
            self.alerts += len(commit.events)
            if step.done:
                return


def _batch(
    first: int, dataset: NDArray[np.int64], values: NDArray[np.int64], series: list[str | None]
) -> QueryBatch:
    count = len(values)
    return QueryBatch(
        topic=TOPIC,
        first=first,
        end=first + count,
        offset=np.arange(first, first + count, dtype=np.int64),
        row=np.zeros(count, np.int64),
        timestamp_ms=np.zeros(count, np.int64),
        dataset=dataset,
        whole=values,
        series=series,
        query_id=["q"] * count,
    )


def figures(size: Size = Size()) -> dict[str, float]:
    """Return `datasets_100k_vs_1`; the spread of the repetitions goes to standard error."""
    one, many = Side(1), Side(size.datasets)
    one.alerts = many.alerts = 0
    ratios, nanoseconds = [], []
    for repetition in range(-1, size.repetitions):  # the first one warms both up
        first = (repetition + 1) * size.batches * size.rows
        sides = [one, many] if repetition % 2 else [many, one]
        took = {side.datasets: side.seconds(first, size, repetition + 1) for side in sides}
        if repetition >= 0:
            ratios.append(took[1] / took[size.datasets])
            nanoseconds.append([1e9 * took[n] / (size.batches * size.rows) for n in (1, size.datasets)])
    assert one.alerts == many.alerts, "both sides release the same"
    low, _, high = statistics.quantiles(ratios, n=4)
    each = [statistics.median(column) for column in zip(*nanoseconds, strict=True)]
    print(
        f"ns a query: {each[0]:.0f} with 1 dataset, {each[1]:.0f} with {size.datasets}; "
        f"half of the ratios lie in {low:.2f} to {high:.2f}",
        file=sys.stderr,
    )
    return {"datasets_100k_vs_1": statistics.median(ratios)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    show("engine", __doc__, lambda **size: figures(Size(**size)), asdict(Size()), arguments)


if __name__ == "__main__":
    main()
