"""What the time of a batch tells of its values where the released outcomes are the same.

An adversary who times batches is given the best case: two workloads of which it knows everything but which one is
run, no other load, hundreds of observations. All queries are bottoms in both, so nothing is released in either. The
figure is the advantage of the best threshold on the time it sees, 0 for no better than guessing and 1 for certainty:
the largest distance between the two distribution functions (Kolmogorov and Smirnov), over repetitions that are
interleaved at random.

Without a cadence it sees how long a batch takes. With one it sees when the shard's transaction begins, after the tick
that follows the fetch: a `ShardSession` runs on the real clock, with a log and queries in memory. Only the pairs that
batches tell apart are tried so. `chance` and `cadence_chance` are passed by one of twenty comparisons where nothing
differs.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.command import show
from benchmarks.shard import TIME_MS, Counts, Queue, Store, session_of, workload_of
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.protocol.ports import Clock, Transaction, Written
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.queries.codec import ARROW_STREAM, QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import load_spec
from stream_svt.settings.sections import CommitConfig

BATCH = 2000
ROWS = 5000
"""Rows of a columnar record."""
REPETITIONS = 1200
CADENCE_REPETITIONS = 700
CADENCE_BATCH = 100
WARM = 20
CADENCE = 0.01
"""Seconds between ticks: longer than a batch of that size takes. The service's own lie between 0.05 and 60."""
SPEC = """
application: app
datasets:
  - {names: [a], limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 1000000],
     threshold: 900000, expected_queries: 1000000}
"""


def queries(first: int, count: int, value: Callable[[random.Random], bytes]) -> list[OneRecord]:
    """Return consecutive queries."""
    chance = random.Random(first)
    return [
        OneRecord(offset, TIME_MS, b"a", b'{"id":"q%d","value":%b}' % (offset, value(chance)))
        for offset in range(first, first + count)
    ]


def columnar_record(offset: int, values: Callable[[random.Random], pa.Array]) -> OneRecord:
    """Return a columnar record of `ROWS` queries."""
    rows = {"id": [f"q{row}" for row in range(ROWS)], "value": values(random.Random(offset))}
    batch, sink = pa.record_batch(rows), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    headers = (("content-type", ARROW_STREAM.encode()),)
    return OneRecord(offset, TIME_MS, b"a", sink.getvalue().to_pybytes(), headers)


class Shard:
    """Decoder and engine of one shard, fed one batch after the other."""

    def __init__(self) -> None:
        spec = load_spec(SPEC)
        self._decoder = QueryDecoder(
            "t", DatasetIndex(["a"], partition=0, partitioning=Partitioning(1, "murmur2")), ["hot"]
        )
        self._engine = Engine(
            spec, shard=0, datasets=["a"], key=bytes(32), entropy=random.Random(1).randbytes
        )
        self._engine.begin("t", 0)
        self._offset = 0
        self.seconds(lambda _: b"1")

    def seconds(self, value: Callable[[random.Random], bytes]) -> float:
        """Return how long a batch of messages with such values takes, from bytes to outcomes."""
        return self._seconds(queries(self._offset, BATCH, value))

    def columnar_seconds(self, pair: Sequence[Callable[[random.Random], pa.Array]], which: int) -> float:
        """Return how long a columnar record of one of two kinds of values takes.

        Both are made each time, because what was made before shows in a processor's caches.
        """
        made = [columnar_record(self._offset, values) for values in pair]
        return self._seconds([made[which]])

    def _seconds(self, queries: Sequence[OneRecord]) -> float:
        records = Records.of(queries)
        self._offset += len(records)
        began = time.perf_counter()
        batch = self._decoder.decode(records)
        done = self._engine.step(batch).done
        taken = time.perf_counter() - began
        while not done:
            self._engine.take_commit()
            self._engine.committed()
            done = self._engine.step(batch).done
        commit = self._engine.take_commit()
        self._engine.committed()
        assert not any(hasattr(event.data, "gap") for event in commit.events), "every query is a bottom"
        return taken


WORKLOADS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[random.Random], bytes]]] = {
    "near_vs_far": (
        lambda c: b"%d" % c.randrange(840_000, 850_000),
        lambda c: b"%d" % c.randrange(100_000, 110_000),
    ),
    # Neither is a top but with a chance of e^-25, but the noise of the first could reach the bar, of the other not.
    "bar_vs_far": (
        lambda c: b"%d" % c.randrange(899_925, 899_945),
        lambda c: b"%d" % c.randrange(100_000, 100_020),
    ),
    "long_vs_short": (lambda c: b"%d" % c.randrange(100_000, 850_000), lambda c: b"%d" % c.randrange(10)),
    "decimal_vs_integer": (
        lambda c: b"%d.5" % c.randrange(10_000),
        lambda c: b"%d" % c.randrange(100_000, 850_000),
    ),
    "texts_vs_none": (
        lambda c: b'"none"' if c.randrange(100) == 0 else b"%d" % c.randrange(100_000, 850_000),
        lambda c: b"%d" % c.randrange(100_000, 850_000),
    ),
}


def _column(kind: pa.DataType, value: Callable[[random.Random], Any]) -> Callable[[random.Random], pa.Array]:
    return lambda chance: pa.array([value(chance) for _ in range(ROWS)], kind)


_DOUBLE, _WIDE = pa.float64(), pa.decimal128(38, 2)
COLUMNS: dict[str, tuple[Callable[[random.Random], pa.Array], Callable[[random.Random], pa.Array]]] = {
    "columnar_fractions_vs_whole": (
        _column(_DOUBLE, lambda c: c.random() * 850_000),
        _column(_DOUBLE, lambda c: float(c.randrange(850_000))),
    ),
    "columnar_nan_vs_none": (
        _column(_DOUBLE, lambda c: math.nan if c.randrange(100) == 0 else c.random() * 850_000),
        _column(_DOUBLE, lambda c: c.random() * 850_000),
    ),
    "columnar_null_vs_none": (
        _column(_DOUBLE, lambda c: None if c.randrange(100) == 0 else c.random() * 850_000),
        _column(_DOUBLE, lambda c: c.random() * 850_000),
    ),
    "columnar_long_vs_short": (
        _column(_WIDE, lambda c: Decimal(-c.randrange(10**35))),
        _column(_WIDE, lambda c: Decimal(c.randrange(10))),
    ),
}
"""Pairs of columns of one type, which is public."""

SLOW_PATHS = ("decimal_vs_integer", "texts_vs_none")
"""The pairs that the time of a batch tells apart."""


def advantage(first: list[float], second: list[float]) -> float:
    """Largest distance between the distribution functions of two samples."""
    points = np.sort(np.concatenate([first, second]))
    below = [
        np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (first, second)
    ]
    return float(np.abs(below[0] - below[1]).max())


def by_chance(count: int) -> float:
    """Return the advantage that one of twenty comparisons of two samples of this size has by chance alone."""
    return min(1.358 * math.sqrt(2 / count), 1.0)


class _Ticks(Queue):
    """Makes a batch of values when it is fetched, and notes when."""

    def __init__(self, batches: Sequence[Callable[[random.Random], bytes]]) -> None:
        super().__init__("t")
        self.fetched: float | None = None
        self._values = deque(batches)
        self._begun = 0.0

    def now(self) -> float:
        """Return the seconds since the first call, by which a session notes when its ticks begin."""
        self._begun = self._begun or time.perf_counter()
        return time.perf_counter() - self._begun

    async def fetch(self, *arguments: object) -> Mapping[str, Records]:
        """Return the next batch."""
        if self._values:
            self.fetched = self.now()
            made = queries(self.end, CADENCE_BATCH, self._values.popleft())
            self.batches.append(Records.of(made))
        return await super().fetch(*arguments)


class _Seen(Store):
    """Notes how long after the tick that follows a fetch its transaction begins: what a broker can see."""

    def __init__(self, ticks: _Ticks) -> None:
        super().__init__()
        self.late: list[float] = []
        self._ticks = ticks

    async def transact(self, transaction: Transaction) -> Written:
        """Note when a batch is written."""
        if (fetched := self._ticks.fetched) is not None:
            self.late.append(self._ticks.now() - (fetched // CADENCE + 1) * CADENCE)
            self._ticks.fetched = None
        return await super().transact(transaction)


async def _lateness(batches: Sequence[Callable[[random.Random], bytes]]) -> list[float]:
    """Return for each batch how long after its tick the transaction with it began."""
    workload, counts = workload_of(load_spec(SPEC)), Counts()
    policy = CommitConfig.model_construct(interval=2000, max_records=20_000, cadence=int(1000 * CADENCE))
    feed = _Ticks(batches)
    store = _Seen(feed)
    clock = Clock(now=feed.now, epoch=time.time, sleep=asyncio.sleep)
    session = session_of(workload, store, feed, counts, policy, clock)
    await session.open()
    await session.run()
    assert len(store.late) == len(batches)
    assert not counts.alerts, "every query is a bottom"
    return store.late


def with_cadence(
    pair: tuple[Callable[[random.Random], bytes], Callable[[random.Random], bytes]],
    order: Sequence[int],
) -> tuple[list[float], list[float]]:
    """Return what is seen of a session with a cadence, by workload; `order` says which one each batch is of."""
    # The first batches warm the caches.
    warm = order[:WARM]
    seen = asyncio.run(_lateness([pair[which] for which in (*warm, *order)]))[len(warm) :]
    first, second = (
        [late for late, which in zip(seen, order, strict=True) if which == one] for one in (0, 1)
    )
    return first, second


def figures(repetitions: int = REPETITIONS, ticks: int = CADENCE_REPETITIONS) -> dict[str, float]:
    """Return the advantage for each pair of workloads, with a cadence for the slow paths, and what chance gives."""
    shard, random_order = Shard(), random.Random(3)

    def shuffled(count: int) -> list[int]:
        order = [0, 1] * count
        random_order.shuffle(order)
        return order

    found = {}
    for name, pair in WORKLOADS.items():
        times: tuple[list[float], list[float]] = ([], [])
        for which in shuffled(repetitions):
            times[which].append(shard.seconds(pair[which]))
        found[f"advantage_{name}"] = advantage(*times)
    for name, columns in COLUMNS.items():
        times = ([], [])
        for which in shuffled(repetitions):
            times[which].append(shard.columnar_seconds(columns, which))
        found[f"advantage_{name}"] = advantage(*times)
    found["chance"] = by_chance(repetitions)
    for name in SLOW_PATHS:
        found[f"cadence_advantage_{name}"] = advantage(*with_cadence(WORKLOADS[name], shuffled(ticks)))
    found["cadence_chance"] = by_chance(ticks)
    return found


if __name__ == "__main__":
    show(figures)
