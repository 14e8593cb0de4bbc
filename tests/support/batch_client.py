"""Brokers that are none, whose fetches are batches as brokers send them; what takes them is aiokafka's own code."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords

from stream_svt.kafka.batches import Batches
from tests.support.batches import ABORT, COMMIT, TRANSACTIONAL, Batch, Wire, by_client, marker
from tests.support.reading_client import Brokers, Client


@dataclass
class Log:
    """A partition: batches of all kinds, and the aborted transactions among them."""

    batches: list[Batch] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)
    wanted: list[tuple[Any, ...]] = field(default_factory=list)
    """The records that are to be read."""

    @property
    def end(self) -> int:
        return 0 if not self.batches else self.batches[-1].base + (self.batches[-1].last or 0) + 1

    def write(self, chance: random.Random) -> None:
        """Append a batch with gaps as of compaction; perhaps it is aborted, or only aiokafka reads it."""
        offsets = sorted(chance.sample(range(12), chance.choice((0, 1, 1, 3, 9))))
        batch = Batch(
            self.end, [Wire(offset, value=b"%d" % (self.end + offset)) for offset in offsets], last=11
        )
        kind = chance.random()
        if kind < 0.2:
            batch = batch.changed(attributes=TRANSACTIONAL, producer=7)
        elif kind < 0.3 and offsets:  # bits that no version of Kafka uses
            batch = batch.changed(content=batch.plain[:1] + b"\1" + batch.plain[2:])
        self.batches.append(batch.changed(codec=chance.choice((0, 0, 4)) if offsets else 0))
        if kind < 0.1:
            self.aborted.append((7, batch.base))
        else:
            self.wanted += by_client(batch.encode(), batch.base).records
        if kind < 0.2:
            self.batches.append(marker(self.end, 7, ABORT if kind < 0.1 else COMMIT).changed(last=0))

    def fetched(self, offset: int, size: int) -> bytes:
        """Return what a fetch from an offset holds: the batch of the offset, and more up to a size."""
        parts = [batch.encode() for batch in self.batches if batch.base + (batch.last or 0) >= offset]
        return b"".join(parts)[: max(size, *accumulate(map(len, parts[:1])))]

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        """Return the aborted transactions that do not end before an offset; each is a batch and its marker."""
        return [(producer, first) for producer, first in self.aborted if first + 12 >= offset]


@dataclass
class Logs(Brokers):
    """Hands out the batches of logs, in fetches of sizes that ``chance`` draws."""

    chance: random.Random = field(default_factory=random.Random)
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    sizes: tuple[int, ...] = (1, 300, 5000)

    def write(self, place: TopicPartition, count: int = 1) -> None:
        log = self.logs.setdefault(place, Log())
        for _ in range(count):
            log.write(self.chance)
        self.records[place] = log.end
        super().write(place, 0)

    def reader(self, **_: object) -> Client:
        self.clients.append(BatchClient(self))
        return self.clients[-1]


class BatchClient(Client):
    """Stands for an `AIOKafkaConsumer`: aiokafka's own objects hold what was fetched, and hand it out."""

    _closed = False

    def __init__(self, brokers: Logs) -> None:
        super().__init__(brokers)
        self.logs, self.chance, self.sizes = brokers.logs, brokers.chance, brokers.sizes
        self._subscriptions = SimpleNamespace(
            reassignment_in_progress=False, is_assigned=lambda place: place in self.assignment()
        )
        self._wait_consume_future = None
        self._fetched: dict[TopicPartition, FetchResult] = {}

    def _notify(self, _: object) -> None:
        """Fetch on: done when it is looked at."""

    async def getmany(self, *places: TopicPartition, max_records: int) -> dict[TopicPartition, list[Any]]:
        return await Fetcher.fetched_records(self, places, 0, max_records)

    @property
    def _records(self) -> dict[TopicPartition, Any]:
        """What was fetched and not taken; now and then a fetch comes in when it is looked at."""
        assignment = self._subscription.subscription.assignment
        for place in assignment.tps:
            state, log = assignment.state_value(place), self.logs.get(place)
            assert state.has_valid_position, "an assigned partition that was not sought"
            if log is None or state.paused or place in self._fetched or self.chance.random() < 0.3:
                continue
            if state.position < log.end:
                records = Batches(log.fetched(state.position, self.chance.choice(self.sizes)))
                fetched = PartitionRecords(
                    place, records, log.aborted_from(state.position), state.position, None, None, True, 1
                )
                self._fetched[place] = FetchResult(
                    place, assignment=assignment, partition_records=fetched, backoff=0
                )
        return self._fetched

    def _create_fetch_waiter(self) -> asyncio.Future[None]:
        """Wait for news; what is there comes in a round later."""
        waiter = super()._create_fetch_waiter()

        def arrive() -> None:
            if not waiter.done() and self._records:
                waiter.set_result(None)
            elif not waiter.done():
                asyncio.get_running_loop().call_soon(arrive)

        asyncio.get_running_loop().call_soon(arrive)
        return waiter
