"""Reads a raw topic: the ends of its partitions for looks, and the committed records between two offsets.

Nothing here decides about an event. Whole batches are read as columns, as workers read query topics, and every record
below an offset is returned once its transaction has ended. A batch with a right checksum that cannot be unpacked is
left out whole: it is one producer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import CorruptRecordException, OffsetOutOfRangeError

from stream_svt.application.topology import unseen
from stream_svt.errors import RecordsLost, RecordsUnreadable
from stream_svt.kafka import aiokafka_fixes
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.batches import Droppable, why_unreadable
from stream_svt.kafka.clients import BrokerUnavailable, Cluster, TopicMissing
from stream_svt.kafka.topic_ids import topic_ids
from stream_svt.protocol.records import Records

FETCH_WAIT_MS: Final = 100
"""Milliseconds that a fetch waits at the brokers: everything below a look is there, but for open transactions."""
FETCHED: Final = 64 << 20
"""Bytes that one fetch of each partition may take together; a client holds them up to three times."""
BATCHES: Final = 2_000
"""Batches taken from the consumer at once."""
PIECE: Final = 50_000
"""Records up to which small batches are read together."""

Spans: TypeAlias = dict[int, tuple[int, int]]
"""First offset of each partition, and its high watermark: also records of open transactions lie below."""


class Piece(NamedTuple):
    """Committed records of a partition; below ``next_offset`` there are no others that were not returned before."""

    partition: int
    records: Records
    next_offset: int


@dataclass(slots=True)
class _Reading:
    """A partition: the offset up to which records were returned, and what was taken from the consumer beyond."""

    next: int
    unread: Droppable
    left: Records = field(default_factory=lambda: Records.of(()))
    singly: bool = False


@dataclass(eq=False)
class RawTopic:
    """A raw topic of a source; with ``text``, keys and values contain no zero byte.

    ``dropped`` counts batches that could not be unpacked.
    """

    cluster: Cluster
    topic: str
    text: bool
    dropped: int = field(default=0, init=False)
    _looking: Any = field(default=None, init=False)
    _client: Any = field(default=None, init=False)
    _readings: dict[int, _Reading] = field(default_factory=dict, init=False)

    async def close(self) -> None:
        """Close all clients; the next call opens new ones."""
        clients, self._looking, self._client = (self._looking, self._client), None, None
        self._readings.clear()
        for client in clients:
            if client is not None:
                await kafka.stop_quietly(client)

    # Looks

    async def look(self) -> tuple[Spans, str]:
        """Return the spans of all partitions, and the id of the topic.

        The id is read last, so that no id of a deleted topic comes with offsets of the one that replaces it.
        """
        doing = f"looking at raw topic {self.topic!r}"
        client = await self._looker(doing)
        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
            await aiokafka_fixes.connections(client).force_metadata_update()
            partitions = [
                TopicPartition(self.topic, n) for n in client.partitions_for_topic(self.topic) or ()
            ]
            if not partitions:
                raise TopicMissing(f"{doing}: {unseen(self.topic, 'READ')}")
            first = await client.beginning_offsets(partitions)
            ends = await client.end_offsets(partitions)
            ids = await topic_ids(aiokafka_fixes.connections(client), [self.topic])
        return {tp.partition: (first[tp], ends[tp]) for tp in partitions}, ids.get(self.topic, "")

    async def offsets_at(self, ms: int, spans: Spans) -> dict[int, int]:
        """Return the offset of the first record of each partition with a timestamp from ``ms`` on, else its end."""
        doing = f"searching raw topic {self.topic!r}"
        client = await self._looker(doing)
        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
            found = await client.offsets_for_times({TopicPartition(self.topic, n): ms for n in spans})
        return {
            tp.partition: spans[tp.partition][1] if one is None else one.offset for tp, one in found.items()
        }

    async def settings(self) -> Mapping[str, str]:
        """Return the topic's settings; none if this user may not see them."""
        doing = f"reading the settings of raw topic {self.topic!r}"
        async with (
            kafka.started(self.cluster.admin(), doing) as admin,
            kafka.deadline(kafka.CALL_DEADLINE, doing, "DESCRIBE_CONFIGS"),
        ):
            answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, self.topic)])
        [(code, _, _, _, entries)] = answers[0].resources
        return {} if code else {name: value for name, value, *_ in entries}

    async def _looker(self, doing: str) -> Any:  # noqa: ANN401  aiokafka has no types
        if self._looking is None:
            self._looking = await _started(self.cluster.reader("read_uncommitted"), doing)
            async with kafka.deadline(kafka.CALL_DEADLINE, doing):
                await aiokafka_fixes.request_metadata(self._looking, [self.topic])
        return self._looking

    # Reading

    async def read(self, ranges: Mapping[int, tuple[int, int]], seconds: float) -> list[Piece]:
        """Return next records of partitions, from the first offset of a range and below the second.

        Waits up to ``seconds`` for the first ones. A range without committed records gives a piece without records.

        Raises:
            RecordsLost: Records of a range were deleted.
            RecordsUnreadable: A batch is damaged.
            BrokerError: The brokers refused, or cannot be reached.
        """
        doing = f"reading raw topic {self.topic!r}"
        async with kafka.deadline(seconds + kafka.CALL_DEADLINE, doing):
            client = await self._positioned(ranges, doing)
            idle = [n for n in ranges if not _has_more(self._readings[n])]
            if idle:
                await self._take(client, idle, seconds if len(idle) == len(ranges) else 0)
            return [piece for n, (_, end) in ranges.items() if (piece := await self._piece(client, n, end))]

    async def _positioned(self, ranges: Mapping[int, tuple[int, int]], doing: str) -> Any:  # noqa: ANN401
        """Return the consumer with these partitions at their offsets; the others are paused."""
        if self._client is None:
            size = max(1 << 20, min(kafka.QUERY_FETCH, FETCHED // len(ranges)))
            reader = self.cluster.reader(reset="none", fetch_wait_ms=FETCH_WAIT_MS, fetch_bytes=size)
            self._client = await _started(reader, doing)
        if aiokafka_fixes.has_failed(self._client):
            raise BrokerUnavailable(f"{doing}: the client's fetch loop ended")
        moved = [n for n, (begin, _) in ranges.items() if self._next(n) != begin]
        for n in moved:
            self._readings[n] = _Reading(ranges[n][0], Droppable(ranges[n][0], text=self.text))
        if self._client.assignment() != {self._place(n) for n in self._readings}:
            # No await in between: the consumer would look up an offset for a partition without one.
            self._client.assign([self._place(n) for n in self._readings])
            moved = list(self._readings)
        for n in moved:
            reading = self._readings[n]
            reading.unread, reading.left = Droppable(reading.next, text=self.text), Records.of(())
            self._client.seek(self._place(n), reading.next)
        for n in self._readings:
            (self._client.resume if n in ranges else self._client.pause)(self._place(n))
        return self._client

    async def _take(self, client: Any, partitions: Sequence[int], seconds: float) -> None:  # noqa: ANN401
        """Take batches from the consumer, of partitions of which all records were returned."""
        places = [self._place(n) for n in partitions]
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await aiokafka_fixes.wait_for_records(client, places, seconds, until=never)
        for place in aiokafka_fixes.buffered(client, places):
            reading = self._readings[place.partition]
            most = 1 if reading.singly else BATCHES
            try:
                batches = await aiokafka_fixes.take(client, place, whole=True, most=most)
            except OffsetOutOfRangeError as error:
                raise RecordsLost(f"records of raw topic {place.topic!r} were deleted unread") from error
            except CorruptRecordException as error:
                # The batches before it are dropped with it: they are fetched again and taken one by one up to it.
                reading.singly = not reading.singly
                if not reading.singly:
                    raise RecordsUnreadable(
                        f"records of topic {place.topic!r}, partition {place.partition}, from offset "
                        f"{reading.next} on cannot be read: {why_unreadable(error)}"
                    ) from error
                continue
            reading.singly = reading.singly and bool(batches)
            reading.unread = Droppable(reading.next, text=self.text)
            reading.unread.add(batches)

    async def _piece(self, client: Any, partition: int, end: int) -> Piece | None:  # noqa: ANN401
        """Return records of a partition below an offset; None if nothing is known about its next offset."""
        reading = self._readings[partition]
        records, known = reading.left, reading.unread.dropped
        if not len(records) and reading.unread:
            records = reading.unread.read(PIECE)
            self.dropped += reading.unread.dropped - known
        cut = int(np.searchsorted(records.offset, end))
        reading.left = records[cut:]
        if len(reading.left):
            following = end
        elif reading.unread:
            following = min(reading.unread.position, end)
        else:
            following = min(await client.position(self._place(partition)), end)
        if not cut and following <= reading.next:
            return None
        reading.next = following
        return Piece(partition, records[:cut], following)

    def _next(self, partition: int) -> int | None:
        return self._readings[partition].next if partition in self._readings else None

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)


def _has_more(reading: _Reading) -> bool:
    return bool(len(reading.left) or reading.unread)


async def _started(client: Any, doing: str) -> Any:  # noqa: ANN401
    try:
        async with kafka.deadline(kafka.START_DEADLINE, doing):
            await client.start()
            await aiokafka_fixes.wait_for_brokers(client)
    except BaseException:
        await kafka.stop_quietly(client)
        raise
    return client
