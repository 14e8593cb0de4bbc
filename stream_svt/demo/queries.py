"""What is asked, and when: how often each item of the public list has been sold since the week began.

The data are retail baskets that ship with the package, supplied by Tom Brijs: anonymised baskets of a Belgian retail
store, one a line. Line numbers are the public clock. Privacy unit and neighbours: one basket. Two data sets are
neighbours when the basket of one line is emptied in one of them and **the lines stay**: that lowers the answers about
its items by one from the next checkpoint to the end of its week, changes nothing else, and never raises one:
sensitivity 1, monotonic. Counting *non-empty* baskets instead would pull the successors of a removed one into another
week.

Ids, order and number of records depend on the clock alone. So do record lengths, which are public: a value is padded
with the spaces that JSON allows after a number. Their producer belongs to the trusted zone: it reads the baskets and
writes true counts, and when it sends depends on the clock alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from aiokafka import AIOKafkaProducer
from numpy.typing import NDArray

from stream_svt.service.codec import home

ACKNOWLEDGEMENT = (
    "Retail baskets: the anonymised market baskets of a Belgian retail store, kindly supplied by Tom Brijs. "
    "T. Brijs, G. Swinnen, K. Vanhoof, G. Wets: The use of association rules for product assortment "
    "decisions: a case study. KDD 1999, pp. 254-260."
)
LAST_ITEM = 16_470
"""Items are numbered from 1 to this one without a gap. The list is public; which items sell is not."""
LINES = 88_162
FILE = "retail-baskets.npz"
DIGITS = 5
"""Digits that every count is padded to; a week has fewer lines than this can hold."""
BATCH = 4000
"""Records of a batch: some 420 kB."""
SERIES = "item-%d"


@dataclass(frozen=True, slots=True)
class Baskets:
    """Baskets by line number: ``items[start[n]:start[n + 1]]``, ascending, is that of line ``n``. Private."""

    start: NDArray[np.int64] = field(repr=False)
    items: NDArray[np.uint16] = field(repr=False)


def load() -> Baskets:
    """Return the shipped baskets, in order of time.

    Packed are their sizes and the differences between items (the first of a basket as it is), low and high bytes apart.
    """
    with (
        resources.files("stream_svt.demo").joinpath("data", FILE).open("rb") as stream,
        np.load(stream, allow_pickle=False) as packed,
    ):
        start = np.concatenate([[0], np.cumsum(packed["sizes"], dtype=np.int64)])
        steps = packed["low"].astype(np.int64) | packed["high"].astype(np.int64) << 8
    # A running sum over everything, less what had been reached before each basket.
    reached = np.concatenate([[0], np.cumsum(steps)])
    items = reached[1:] - np.repeat(reached[start[:-1]], np.diff(start))
    return Baskets(start, items.astype(np.uint16))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A moment at which the running counts of all items are asked: the queries form the finite set ``set_id``.

    ``first`` and ``end`` are the first line since the last checkpoint and the one after the last counted line.
    """

    dataset: str
    set_id: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class WeekClock:
    """Weeks of ``week_lines`` lines, asked every ``every`` lines and at the end of each week.

    The data carry no dates, so a "week" is a number of lines; nothing in a monitor depends on its length.
    """

    lines: int = LINES
    week_lines: int = 14_700
    every: int = 300

    def weeks(self) -> list[str]:
        """Return the names of the weeks' datasets in order of time."""
        return [self.week_of(start) for start in range(0, self.lines, self.week_lines)]

    def week_of(self, line: int) -> str:
        """Return the dataset that holds a line."""
        return f"retail-week-{line // self.week_lines + 1}"

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield every checkpoint in order of time."""
        for start in range(0, self.lines, self.week_lines):
            stop = min(start + self.week_lines, self.lines)
            for first in range(start, stop, self.every):
                end = min(first + self.every, stop)
                yield Checkpoint(self.week_of(start), f"line-{end:05}", first, end)


def running_counts(baskets: Baskets, clock: WeekClock) -> Iterator[tuple[Checkpoint, NDArray[np.int64]]]:
    """Yield each checkpoint with the counts of items 1 to `LAST_ITEM` since its week began (private)."""
    counts = np.zeros(LAST_ITEM + 1, dtype=np.int64)
    for point in clock.checkpoints():
        if point.first % clock.week_lines == 0:
            counts[:] = 0
        sold = baskets.items[baskets.start[point.first] : baskets.start[point.end]]
        counts += np.bincount(sold, minlength=LAST_ITEM + 1)
        yield point, counts[1:].copy()


def records_of(point: Checkpoint, counts: NDArray[np.int64]) -> list[bytes]:
    """Return the queries of one checkpoint, then the marker that closes their set."""
    name = point.set_id
    records = [
        f'{{"id":"{name}/{item}","series":"{SERIES % item}","set":"{name}","value":{count:<{DIGITS}}}}'
        for item, count in enumerate(counts.tolist(), 1)
    ]
    return [record.encode("ascii") for record in [*records, json.dumps({"set": name, "closed": True})]]


async def produce(
    baskets: Baskets, clock: WeekClock, *, kafka: Mapping[str, Any], topic: str, partitions: int
) -> AsyncGenerator[tuple[Checkpoint, int], None]:
    """Send each checkpoint: its queries, then the marker that closes their set.

    Yields the checkpoint, and the number of queries so far, once all are stored; the next one is begun when the next
    item is asked for. ``kafka`` is what every client takes as keywords.
    """
    sent, options = 0, {"acks": "all", "enable_idempotence": True, "max_batch_size": 512 * 1024}
    async with AIOKafkaProducer(**kafka, **options) as producer:
        for point, counts in running_counts(baskets, clock):
            records = await asyncio.to_thread(records_of, point, counts)
            key = point.dataset.encode("utf-8")
            await _send(producer, topic, home(key, partitions), key, records)
            sent += len(records) - 1
            yield point, sent


async def _send(
    producer: AIOKafkaProducer, topic: str, partition: int, key: bytes, records: list[bytes]
) -> None:
    """Store records, in batches of our own: a call of ``send`` for each would take most of the time."""
    stored = []
    for start in range(0, len(records), BATCH):
        batch = producer.create_batch()
        for record in records[start : start + BATCH]:
            batch.append(timestamp=None, key=key, value=record)
        batch.close()
        stored.append(await producer.send_batch(batch, topic, partition=partition))
    await asyncio.gather(*stored)
