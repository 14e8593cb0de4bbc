"""State that retry queues cost: bytes written to the state topic over bytes of the queries that were read.

One embedded broker, 4 partitions, sealed state, one monitor with ``append: retry`` and its default options on 1,000
datasets. Queries are JSON of at least 60 bytes, key and value together, nearly all of them bottoms, of 20 series for
each dataset in turn; one in 10,000 is a top. *Catch-up*: a worker of a new application reads a backlog as fast as it
can; what opening every dataset's run costs is in the figure. *Trickle*: the same worker then reads 100 queries a
second, committing every 2 s by default. Bytes are those of the state topic's log segments: records with their seals,
batches and transaction marks, meta, dataset records and outbox included. The ratio is the worse of both.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from aiokafka import AIOKafkaProducer

from benchmarks import peers
from benchmarks.application import PARTITIONS, PATIENCE, Application, Worker, monitor
from benchmarks.command import say
from benchmarks.service.reading import datasets
from stream_svt.kafka.embedded import EmbeddedKafka

SERIES = 20
TOP_EVERY = 10_000
QUIET = 6.0
"""Seconds without a new byte of state after which everything is written: three commit intervals."""


DATASETS, BACKLOG = 1_000, 300_000
SECONDS, RATE = 60, 100
"""Of the trickle."""


def query(number: int, names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return key and value of a query."""
    which, turn = number % len(names), number // len(names)
    value = 50_000 if number % TOP_EVERY == TOP_EVERY - 1 else number % 97
    text = b'{"id":"query-%012d","value":%d,"series":"series-%02d"}' % (number, value, turn % SERIES)
    return names[which].encode(), text


async def _write(application: Application, first: int, last: int, rate: int | None = None) -> int:
    """Write queries [first, last), so many a second where a rate is given; return their bytes."""
    producer = AIOKafkaProducer(bootstrap_servers=application.servers, acks=1, linger_ms=0 if rate else 20)
    await producer.start()
    began, size = time.monotonic(), 0
    try:
        for number in range(first, last):
            key, value = query(number, application.names)
            assert len(key) + len(value) >= 60
            size += len(key) + len(value)
            place = peers.home(key, PARTITIONS)
            await producer.send(application.queries, key=key, value=value, partition=place)
            if rate:
                due = began + (number + 1 - first) / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
    finally:
        await producer.stop()
    return size


def _state_bytes(data_dir: Path) -> int:
    """Return the bytes of the state topic's log segments."""
    return sum(path.stat().st_size for path in data_dir.glob("**/bench-*.state-*/*.log"))


def _await_quiet(application: Application, running: Worker, data_dir: Path, total: int) -> int:
    """Wait until all queries are committed and nothing more is written; return the bytes of state."""
    end, known, since = time.monotonic() + PATIENCE, -1, 0.0
    while True:
        assert time.monotonic() < end, "the worker did not get to the end of the topic in time"
        time.sleep(0.5)
        done = application.read(running)
        now = _state_bytes(data_dir)
        if done < total or now != known:
            known, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET:
            return now


def measure() -> dict[str, float]:
    """Return the ratio at catch-up, at a trickle, and the worse of both."""
    end = BACKLOG + SECONDS * RATE
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        application = Application(
            servers=kafka.bootstrap_servers,
            directory=Path(directory),
            names=datasets(DATASETS // PARTITIONS),
            monitors=[monitor("retry", append="retry")],
        )
        read = asyncio.run(_write(application, 0, BACKLOG))
        with application.worker() as running:
            state = _await_quiet(application, running, kafka.data_dir, BACKLOG)
            say(f"catch-up: {state:,} bytes of state for {read:,} bytes of queries")
            trickled = asyncio.run(_write(application, BACKLOG, end, RATE))
            after = _await_quiet(application, running, kafka.data_dir, end)
            say(f"trickle: {after - state:,} for {trickled:,}")
    catch_up, trickle = state / read, (after - state) / trickled
    return {
        "retry_state_ratio": max(catch_up, trickle),
        "retry_state_ratio_catch_up": catch_up,
        "retry_state_ratio_trickle": trickle,
    }
