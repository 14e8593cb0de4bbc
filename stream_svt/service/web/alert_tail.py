"""The committed end of an alert topic, read outside any group: nobody else's place in it is moved by that."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, explain, started

AT_ONCE = 200
"""Records a read returns at most: decoding them takes a few milliseconds, and the shards share the loop."""

WAIT_MS = 250
"""Milliseconds a read waits for news."""

HISTORY = 20_000
"""Offsets read back, over all partitions: a second's work, in slices of a few milliseconds."""

_DOING = "reading the alerts"


class AlertTail:
    """Reads on to the end; ``complete`` says whether every record that was ever on the topic is read."""

    def __init__(
        self, consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], *, complete: bool
    ) -> None:
        self.complete = complete
        self._consumer = consumer
        self._behind = dict(ends)

    async def read(self) -> list[Any]:
        """Return the next records as aiokafka does, or nothing after a moment.

        Raises:
            BrokerError: The brokers refuse.
        """
        try:
            batch = await self._consumer.getmany(timeout_ms=WAIT_MS, max_records=AT_ONCE)
        except KafkaError as error:
            raise explain(error, _DOING) from error
        for place in list(self._behind):
            # Positions, not records: markers of transactions take offsets too.
            if await self._consumer.position(place) >= self._behind[place]:
                del self._behind[place]
        return [*chain.from_iterable(batch.values())]

    @property
    def caught_up(self) -> bool:
        """Whether all that was there when reading began has been read."""
        return not self._behind

    async def probe(self) -> None:
        """Ask the brokers for a sign of life: a read does not tell silence from absence.

        Raises:
            BrokerError: They do not answer.
        """
        async with deadline(CALL_DEADLINE, _DOING):
            await self._consumer.end_offsets(list(self._consumer.assignment()))


@contextlib.asynccontextmanager
async def open_tail(cluster: Cluster, topic: str, partitions: int) -> AsyncIterator[AlertTail]:
    """Read a topic from `HISTORY` offsets before its end.

    Raises:
        BrokerError: The brokers cannot be reached or refuse.
    """
    places = [TopicPartition(topic, number) for number in range(partitions)]
    async with started(cluster.reader(), _DOING) as consumer:
        async with deadline(CALL_DEADLINE, _DOING):
            consumer.assign(places)
            first = await consumer.beginning_offsets(places)
            ends = await consumer.end_offsets(places)
        share = max(HISTORY // partitions, 1)
        starts = {place: max(first[place], ends[place] - share) for place in places}
        for place, start in starts.items():
            consumer.seek(place, start)
        yield AlertTail(consumer, ends, complete=not any(starts.values()))
