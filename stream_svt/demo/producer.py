"""The demo's query producer, a process of its own: ``python -m stream_svt.demo.producer ...``.

It belongs to the trusted zone: it reads the baskets and writes true counts to the query topic. How it and
the demo talk depends on nothing in the data. Standard input takes lines: ``seen N`` (the service has looked
at N queries; at most ``--ahead`` more are sent) and ``stop`` (finish the set in hand, then end); its end
means stop as well. Standard output gives one JSON line a checkpoint: the set closed, the queries sent so
far and the line the clock shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer

from stream_svt.demo.clock import Clock
from stream_svt.demo.data import Baskets, load
from stream_svt.demo.queries import Writer, running_counts
from stream_svt.service.codec import home

BATCH_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Progress:
    """One closed set: how far the public clock has come."""

    dataset: str
    set_id: str
    queries: int
    line: int


class Gate:
    """Says when the next set may be sent: at most ``ahead`` queries before the reader, until stopped."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._seen = 0
        self._stopped = False
        self._changed = asyncio.Event()

    def command(self, line: str) -> None:
        """Take one line of standard input."""
        match line.split():
            case ["seen", count]:
                self._seen = max(self._seen, int(count))
            case ["stop"]:
                self._stopped = True
        self._changed.set()

    async def may_send(self, sent: int) -> bool:
        """Wait until more may be sent; False once stopped."""
        while not self._stopped and sent > self._seen + self._ahead:
            self._changed.clear()
            await self._changed.wait()
        return not self._stopped


async def produce(
    baskets: Baskets,
    clock: Clock,
    *,
    kafka: Mapping[str, Any],
    topic: str,
    partitions: int,
    may_send: Callable[[int], Awaitable[bool]],
    report: Callable[[Progress], None],
) -> None:
    """Send each checkpoint: its queries, then the marker that closes their set; return when all are stored.

    Args:
        kafka: What every client takes as keywords: servers, protocol and credentials.
        may_send: Waits until the next set may be sent, given the queries sent so far; False ends it.
        report: Told of each set once it can be read.

    Raises:
        aiokafka.errors.KafkaError: A record was refused or the broker is out of reach.
    """
    producer = AIOKafkaProducer(**kafka, acks="all", enable_idempotence=True, max_batch_size=BATCH_BYTES)
    await producer.start()
    try:
        writer, sent = Writer(), 0
        for point, counts in running_counts(baskets, clock):
            if not await may_send(sent):
                return
            records = writer.records(point, counts)
            key = point.dataset.encode("utf-8")
            stored = await _send(producer, topic, home(key, partitions), key, records)
            # The set is announced only when it can be read: what was announced is judged in the summary.
            await asyncio.gather(*stored)
            sent += len(records) - 1
            report(Progress(point.dataset, point.set_id, sent, point.end))
    finally:
        await producer.stop()


async def _send(
    producer: AIOKafkaProducer, topic: str, partition: int, key: bytes, records: list[bytes]
) -> list[asyncio.Future[object]]:
    """Hand records over in batches of our own: a call of ``send`` for each would take most of the time."""
    batch, stored = producer.create_batch(), []
    for record in records:
        if batch.append(timestamp=None, key=key, value=record) is None:
            batch.close()
            stored.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(timestamp=None, key=key, value=record)
    batch.close()
    stored.append(await producer.send_batch(batch, topic, partition=partition))
    return stored


def command_line(clock: Clock, *, bootstrap: str, topic: str, partitions: int, ahead: int) -> list[str]:
    """Return the arguments that start this module as a process."""
    options = {
        "bootstrap": bootstrap,
        "topic": topic,
        "partitions": partitions,
        "week-lines": clock.week_lines,
        "every": clock.every,
        "ahead": ahead,
    }
    return [sys.executable, "-m", __name__, *(f"--{name}={value}" for name, value in options.items())]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Query producer of the demo; started by 'stream-svt demo'.")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    for name in ("partitions", "week-lines", "every", "ahead"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


async def _main() -> None:
    arguments = _arguments()
    gate = Gate(arguments.ahead)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def listen() -> None:
        async for line in reader:
            gate.command(line.decode("ascii", errors="replace"))
        gate.command("stop")

    def report(progress: Progress) -> None:
        told = {"dataset": progress.dataset, "set": progress.set_id}
        sys.stdout.write(json.dumps(told | {"queries": progress.queries, "line": progress.line}) + "\n")
        sys.stdout.flush()

    listener = asyncio.create_task(listen())
    baskets = load()
    clock = Clock(len(baskets), arguments.week_lines, arguments.every)
    await produce(
        baskets,
        clock,
        kafka={"bootstrap_servers": arguments.bootstrap},
        topic=arguments.topic,
        partitions=arguments.partitions,
        may_send=gate.may_send,
        report=report,
    )
    listener.cancel()


if __name__ == "__main__":
    asyncio.run(_main())
