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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.command import show
from stream_svt.monitor.engine import Engine
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Stopped, Transaction, Written
from stream_svt.protocol.records import Records
from stream_svt.protocol.sealing import RecordContext
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.protocol.state_records import JournalSettings
from stream_svt.service.codec import ARROW_STREAM, QueryDecoder
from stream_svt.service.dataset_index import DatasetIndex
from stream_svt.service.homes import Homes
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.datasets import RetiredDatasets
from stream_svt.settings.sections import CommitConfig, TopicsConfig

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


@dataclass
class Record:
    """What a decoder sees of a Kafka record."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes | None]] = ()


def queries(first: int, count: int, value: Callable[[random.Random], bytes]) -> list[Record]:
    """Return consecutive queries."""
    chance = random.Random(first)
    return [
        Record(offset, b"a", b'{"id":"q%d","value":%b}' % (offset, value(chance)))
        for offset in range(first, first + count)
    ]


def columnar_record(offset: int, values: Callable[[random.Random], pa.Array]) -> Record:
    """Return a columnar record of `ROWS` queries."""
    rows = {"id": [f"q{row}" for row in range(ROWS)], "value": values(random.Random(offset))}
    batch, sink = pa.record_batch(rows), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    headers = (("content-type", ARROW_STREAM.encode()),)
    return Record(offset, b"a", sink.getvalue().to_pybytes(), headers=headers)


class Shard:
    """Decoder and engine of one shard, fed one batch after the other."""

    def __init__(self) -> None:
        spec = load_spec(SPEC)
        self._decoder = QueryDecoder(
            "t", DatasetIndex(["a"], partition=0, homes=Homes(1, "murmur2")), ["hot"]
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

    def _seconds(self, queries: Sequence[Record]) -> float:
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


class Watched:
    """The ports of a session that is fed one batch between two ticks, and the moments at which it is seen to write.

    Args:
        batches: The values of each batch, in order; the session ends after the last one.
    """

    spec: ApplicationSpec = load_spec(SPEC)
    topics = ("t",)
    partitions = 1
    version = (0, "")

    def __init__(self, batches: Sequence[Callable[[random.Random], bytes]]) -> None:
        self.late: list[float] = []
        self._batches = list(batches)
        self._offset = 0
        self._state: dict[bytes, bytes] = {}
        self._origin = 0.0
        self._fetched: float | None = None

    def session(self) -> ShardSession:
        """Return a session on these ports; its ticks begin now."""
        topics = TopicsConfig(state="state", alerts="alerts", rejects="rejects", partitions=1)
        context = RecordContext("cluster", "app", "state", 0)
        # The ports are ours: Feed, Log, Workload and Observer in one.
        ports: Any = self
        settings = JournalSettings(
            context=context, topics=topics, entropy=random.Random(1).randbytes, epoch=time.time
        )
        self._origin = time.perf_counter()
        return ShardSession(
            feed=ports,
            journal=Journal(ports, settings),
            workload=ports,
            shard=0,
            control="control",
            policy=CommitConfig.model_construct(interval=2000, max_records=20_000, cadence=1000 * CADENCE),
            start_at="earliest",
            clock=Clock(now=self._now, epoch=time.time, sleep=asyncio.sleep),
            observer=ports,
            status=ShardStatus(0),
        )

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    # Workload

    def gather(self, shard: int, gone: RetiredDatasets) -> Iterable[None]:
        """There is one dataset."""
        del shard, gone
        return ()

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return an engine of one dataset."""
        return Engine(self.spec, shard=shard, datasets=["a"], key=key, entropy=random.Random(1).randbytes)

    def decoders(self, engine: Engine) -> dict[str, QueryDecoder]:
        """Return the service's own decoder."""
        del engine
        return {"t": QueryDecoder("t", DatasetIndex(["a"], partition=0, homes=Homes(1, "murmur2")), ["hot"])}

    # Feed

    @property
    def stopping(self) -> bool:
        """Whether the last batch was processed."""
        return not self._batches

    held = False

    async def wait_for_rebalance(self) -> None:
        """There is no rebalance."""

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Topics begin empty."""
        return dict.fromkeys(topics, (0, 0))

    async def fetch(self, *_: object) -> Mapping[str, Records]:
        """Return the next batch."""
        if not self._batches:
            raise Stopped
        self._fetched = self._now()
        records = queries(self._offset, CADENCE_BATCH, self._batches.pop(0))
        self._offset += CADENCE_BATCH
        return {"t": Records.of(records)}

    async def position(self, topic: str) -> int:
        """Return where the topic is read on."""
        return self._offset if topic == "t" else 0

    def _ignore(self, *_: object) -> None:
        """Nothing comes of it."""

    seek = high_water = _ignore

    # Log

    async def fence(self) -> None:
        """There are no others."""

    check_fenced = fence

    async def transact(self, transaction: Transaction) -> Written:
        """Note how long after the tick that follows the fetch the transaction begins: what a broker can see."""
        if self._fetched is not None:
            due = (self._fetched // CADENCE + 1) * CADENCE
            self.late.append(self._now() - due)
            self._fetched = None
        assert not transaction.alerts or self._offset <= CADENCE_BATCH, "every query is a bottom"
        for key, record in transaction.records.items():
            self._state.pop(key, None)
            if record is not None:
                self._state[key] = record
        return Written(None, 0)

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the books."""
        assert committed in {True, False}
        return dict(self._state)

    async def read_alerts(
        self, start: int | None, take: Callable[[Any], None], *, committed: bool = False
    ) -> tuple[int, int]:
        """Return that there are none."""
        del take, committed
        assert start is None
        return 0, 0

    # Observer

    committed = _ignore

    def count(self, *_: object, by: int = 1) -> None:
        """Nothing is counted."""

    def time(self, name: str, seconds: float) -> None:
        """Nothing is timed."""


async def _lateness(batches: Sequence[Callable[[random.Random], bytes]]) -> list[float]:
    """Return for each batch how long after its tick the transaction with it began."""
    watched = Watched(batches)
    session = watched.session()
    await session.open()
    await session.run()
    assert len(watched.late) == len(batches)
    return watched.late


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
