"""A client of the brokers that is none: logs in memory behind aiokafka's own record of assignments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState

from stream_svt.protocol.records import OneRecord
from stream_svt.settings.sections import KafkaConfig


@dataclass
class Brokers:
    """What clients read: numbered records, errors to tell, topics that are gone or denied."""

    partitions: int = 4
    records: dict[TopicPartition, int] = field(default_factory=dict)
    errors: dict[TopicPartition, Exception] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    unauthorized_topics: set[str] = field(default_factory=set)
    refuse: Exception | None = None
    clients: list[Client] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    config: KafkaConfig = field(default_factory=KafkaConfig)

    def write(self, place: TopicPartition, count: int = 1) -> None:
        self.records[place] = self.records.get(place, 0) + count
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    def reader(self, **options: object) -> Client:
        """Stand for `Cluster.reader`."""
        assert options["reset"] == "none"
        self.clients.append(Client(self))
        return self.clients[-1]


class Client:
    """Stands for an `AIOKafkaConsumer` outside any group."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.assigned: list[set[TopicPartition]] = []
        self.stopped = False
        self._subscription = SubscriptionState()
        self._client = SimpleNamespace(cluster=brokers)
        self._waiters: list[asyncio.Future[None]] = []
        # What was fetched, who waits for news of it, and what ended the fetching.
        self._fetcher = self
        self.error_future = asyncio.get_running_loop().create_future()

    @property
    def in_flight(self) -> int:
        self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        return len(self._waiters)

    def _create_fetch_waiter(self) -> asyncio.Future[None]:
        """Wait for news: all who do are woken by anything that comes."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.brokers.waiters.append(waiter)
        return waiter

    async def start(self) -> None:
        await asyncio.sleep(0.001)
        if self.brokers.refuse is not None:
            raise self.brokers.refuse

    async def stop(self) -> None:
        self.stopped = True

    def assign(self, places: Sequence[TopicPartition]) -> None:
        assert self.in_flight == 0, "assigned under a fetch"
        self.assigned.append(set(places))
        self._subscription.assign_from_user(places)

    def assignment(self) -> set[TopicPartition]:
        return self._subscription.assigned_partitions()

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._subscription.seek(place, offset)

    def pause(self, place: TopicPartition) -> None:
        self._subscription.pause(place)

    def resume(self, place: TopicPartition) -> None:
        self._subscription.resume(place)

    def highwater(self, place: TopicPartition) -> int:
        return self.brokers.records.get(place, 0)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        hidden = self.brokers.gone | self.brokers.unauthorized_topics
        return None if topic in hidden else set(range(self.brokers.partitions))

    async def position(self, place: TopicPartition) -> int:
        return int(self._subscription.subscription.assignment.state_value(place).position)

    async def getmany(
        self, *places: TopicPartition, max_records: int
    ) -> dict[TopicPartition, list[OneRecord]]:
        found = {}
        for place in places:
            state = self._subscription.subscription.assignment.state_value(place)
            if state.paused:
                continue
            if place in self.brokers.errors:
                raise self.brokers.errors[place]
            end = min(self.highwater(place), state.position + max_records)
            if end > state.position:
                found[place] = [OneRecord(at, 0, b"a", b"any") for at in range(state.position, end)]
                max_records -= len(found[place])
                state.consumed_to(end)
        return found

    @property
    def _records(self) -> dict[TopicPartition, Any]:
        """The places that there is something to take out of, or an error to tell."""
        assignment = self._subscription.subscription.assignment
        found = {}
        for place in assignment.tps:
            state = assignment.state_value(place)
            assert state.has_valid_position, "an assigned partition that was not sought"
            if not state.paused and (self.highwater(place) > state.position or place in self.brokers.errors):
                found[place] = state
        return found
