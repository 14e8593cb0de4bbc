"""A shard's queries and commands on Kafka, through the worker's group consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from stream_svt import lenient
from stream_svt.errors import RecordsLost
from stream_svt.protocol.ports import Stopped
from stream_svt.service.kafka import Cluster, spans


class ShardFeed:
    """The partitions of one shard that the group consumer reads (see `stream_svt.protocol.ports.Feed`).

    Parameters
    ----------
    cluster
        How to reach the brokers, for questions that must not wait behind a fetch.
    consumer
        The worker's group consumer; the shard's partitions are assigned to it and paused.
    shard
        Partition number.
    stop
        Set to end a fetch.
    """

    def __init__(self, cluster: Cluster, consumer: AIOKafkaConsumer, shard: int, stop: asyncio.Event) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._shard = shard
        self._stop = stop

    @property
    def stopping(self) -> bool:
        """Whether the shard was told to stop."""
        return self._stop.is_set()

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return first and end offset by topic."""
        doing = f"shard {self._shard}: finding the place in the topics"
        found = await spans(self._cluster, [self._place(topic) for topic in topics], doing)
        return {place.topic: span for place, span in found.items()}

    async def fetch(
        self, topics: Iterable[str], patience: float, max_records: int | None = None
    ) -> Mapping[str, Sequence[Any]]:
        """Await a fetch or the stop signal; cancelling a fetch loses nothing."""
        await asyncio.sleep(0)  # buffered records come without a pause, and heartbeats need the loop
        places = [self._place(topic) for topic in topics]
        reading = asyncio.ensure_future(
            lenient.getmany(self._consumer, *places, timeout_ms=int(1000 * patience), max_records=max_records)
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Stopped
            return {place.topic: records for place, records in reading.result().items()}
        except OffsetOutOfRangeError as error:
            topics = ", ".join(sorted(place.topic for place in error.args[0]))
            raise RecordsLost(f"shard {self._shard}: offsets are out of range on {topics}") from error
        finally:
            stopping.cancel()
            reading.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def position(self, topic: str) -> int:
        """Return the offset that the next fetch reads from."""
        return int(await self._consumer.position(self._place(topic)))

    def seek(self, topic: str, offset: int) -> None:
        """Read on from this offset."""
        self._consumer.seek(self._place(topic), offset)

    def resume(self, topics: Iterable[str]) -> None:
        """Read these topics again."""
        if places := [self._place(topic) for topic in topics]:
            self._consumer.resume(*places)

    def pause(self, topics: Iterable[str]) -> None:
        """Stop reading these topics, as far as they are still assigned."""
        assigned = self._consumer.assignment()
        if places := [place for topic in topics if (place := self._place(topic)) in assigned]:
            self._consumer.pause(*places)

    def high_water(self, topic: str) -> int | None:
        """Return the end of the topic as of the last fetch."""
        high: int | None = self._consumer.highwater(self._place(topic))
        return high

    def _place(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self._shard)
