"""Decimals against integers in a worker, and what one odd value costs the batch that it is in.

Two topics hold the same queries, one with integers and one with decimals of two to six digits behind the point; a new
worker reads each in turn. For odd values a decoder and an engine with the worker's monitors take a batch of integers
or decimals, and the same one with one value written otherwise (``1e3``, ``null``, 19 digits), in turns; the figure is
the median change of the processor time, of the pair of batches where it is largest.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import peers
from benchmarks.application import PARTITIONS
from benchmarks.command import median_ratio, say
from benchmarks.peers import Reading
from benchmarks.play import engine_of
from benchmarks.service.reading import (
    DATASETS_EACH,
    LOW,
    MONITORS,
    SERIES,
    TOP,
    datasets,
    drawn_values,
    worker_reading,
)
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex

KINDS = ("integers", "decimals")
ODD = (b"1e3", b"null", b"12.34567890123456789")
FRACTIONS = 1000
NAME = "d0"


def texts(kind: str, values: Sequence[int]) -> list[bytes]:
    """Return values as texts; decimals have two to six digits behind the point."""
    if kind == "integers":
        return [b"%d" % value for value in values]
    rng = random.Random(2)
    fractions = [b".%0*d" % (digits, rng.randrange(10**digits)) for digits in _digits(FRACTIONS)]
    return [b"%d" % value + part for value, part in zip(values, itertools.cycle(fractions), strict=False)]


def _digits(count: int) -> Iterator[int]:
    return itertools.islice(itertools.cycle(range(2, 7)), count)


class Shard:
    """Decoder and engine of a shard with one dataset, fed one batch after the other."""

    def __init__(self) -> None:
        monitors = [{"topic": "t", **fields} for fields in MONITORS]
        declared = [{"names": [NAME], "limit": 100, "unit": "one row"}]
        spec = json.dumps({"application": "values", "datasets": declared, "monitors": monitors})
        self._engine = engine_of(spec, bytes(32), random.Random(1).randbytes)
        index = DatasetIndex([NAME], partition=0, partitioning=Partitioning(1, "murmur2"))
        self._decoder = QueryDecoder("t", index, [str(fields["name"]) for fields in MONITORS])
        self._offset = 0

    def seconds(self, values: Sequence[bytes]) -> float:
        """Return the processor time from the records of a batch to its outcomes."""
        records = self._records(values)
        began = time.process_time()
        batch = self._decoder.decode(records)
        done = self._engine.step(batch).done
        taken = time.process_time() - began
        while True:
            events = self._engine.take_commit().events
            self._engine.committed()
            assert not any(hasattr(event.data, "gap") for event in events), "every query is a bottom"
            if done:
                return taken
            done = self._engine.step(batch).done

    def _records(self, values: Sequence[bytes]) -> Records:
        first, self._offset = self._offset, self._offset + len(values)
        return Records.of(
            OneRecord(
                offset,
                1_700_000_000_000,
                NAME.encode(),
                b'{"id":"q%d","value":%b,"series":"s%d"}' % (offset, value, offset % SERIES),
            )
            for offset, value in enumerate(values, first)
        )


def odd_value_cost(rows: int, batches: int) -> float:
    """Return the largest of the median changes that one odd value among so many rows makes."""
    shard, rng = Shard(), np.random.default_rng(3)
    changes: dict[tuple[str, bytes], list[float]] = {pair: [] for pair in itertools.product(KINDS, ODD)}
    for kind in KINDS:  # opens the runs and warms up
        shard.seconds(texts(kind, rng.integers(0, LOW, rows).tolist()))
    for turn in range(batches):
        for (kind, odd), found in changes.items():
            plain = texts(kind, rng.integers(0, LOW, rows).tolist())
            one_odd = list(plain)
            one_odd[int(rng.integers(rows))] = odd
            found.append(_change(shard, plain, one_odd, odd_first=turn % 2 == 1))
    medians = {pair: statistics.median(found) for pair, found in changes.items()}
    for (kind, odd), median in medians.items():
        say(f"{odd.decode()} among {kind}: {100 * median:+.2f} %")
    return max(medians.values(), key=abs)


def _change(shard: Shard, plain: list[bytes], one_odd: list[bytes], *, odd_first: bool) -> float:
    gc.collect()
    gc.disable()
    try:
        times = [shard.seconds(values) for values in ((one_odd, plain) if odd_first else (plain, one_odd))]
    finally:
        gc.enable()
    odd, usual = times if odd_first else times[::-1]
    return odd / usual - 1


def decimals_vs_integers(messages: int, repetitions: int, **commit: int) -> float:
    """Return the rate of a worker over decimals by that over integers."""
    names = datasets(DATASETS_EACH)
    values = drawn_values(messages).tolist()
    tops = values.count(TOP)
    read: dict[str, list[Reading]] = {kind: [] for kind in KINDS}
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, KINDS, PARTITIONS))
        for kind in KINDS:
            written = texts(kind, values)
            asyncio.run(
                peers.write_queries(servers, kind, partitions=PARTITIONS, datasets=names, values=written)
            )
            peers.getmany_reading(servers, kind)  # the first reader warms the broker up
        for _ in range(repetitions):
            for kind, each in read.items():
                each.append(worker_reading(servers, names, kind, messages, tops=tops, **commit))
            say(", ".join(f"{kind} {each[-1]}" for kind, each in read.items()))
    integers, decimals = ([one.rate for one in read[kind]] for kind in KINDS)
    return median_ratio("decimals", decimals, integers)


def figures(
    messages: int = 6_400_000,
    repetitions: int = 5,
    commit_records: int = 20_000,
    look_every: int = 200,
    rows: int = 20_000,
    batches: int = 150,
) -> dict[str, float]:
    """Return `decimals_vs_integers` and `odd_value_cost`; ``look_every`` is in milliseconds.

    A turn of a worker is over so many ``messages``; odd values are in so many ``batches`` of so many ``rows``.
    """
    cost = odd_value_cost(rows, batches)
    commit = {"look_every": look_every, "max_records": commit_records}
    return {
        "decimals_vs_integers": decimals_vs_integers(messages, repetitions, **commit),
        "odd_value_cost": cost,
    }
