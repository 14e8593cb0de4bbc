"""Reads a raw topic: the ends of its partitions for looks, and the committed records from an offset on.

Nothing here decides about an event. Whole batches are read as columns, as workers read query topics, and every record
is returned once its transaction has ended. A batch with a right checksum that cannot be unpacked is
left out whole: it is one producer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, TypeAlias

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


class RawTopic:
    """A raw topic of a source; with ``text``, keys and values contain no zero byte.

    ``dropped`` counts batches that could not be unpacked.
    """

    def __init__(self, cluster: Cluster, topic: str, *, text: bool) -> None:
        self.topic, self.dropped = topic, 0
        self._cluster, self._text = cluster, text
        self._clients = AsyncExitStack()
        self._looker: Any = None
        self._reader: Any = None
        self._unread: dict[int, Droppable] = {}
        """What was taken from the consumer; up to their positions all records were returned."""

    async def close(self) -> None:
        """Close all clients; the next call opens them again."""
        await self._clients.aclose()
        self._looker = self._reader = None
        self._unread.clear()

    # -- looks

    async def look(self) -> tuple[Spans, str]:
        """Return the spans of all partitions, and the id of the topic.

        The id is read last, so that no id of a deleted topic comes with offsets of the one that replaces it.
        """
        doing = f"looking at raw topic {self.topic!r}"
        client = await self._looking(doing)
        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
            await aiokafka_fixes.connections(client).force_metadata_update()
            places = [self._place(n) for n in client.partitions_for_topic(self.topic) or ()]
            if not places:
                raise TopicMissing(f"{doing}: {unseen(self.topic, 'READ')}")
            first = await client.beginning_offsets(places)
            ends = await client.end_offsets(places)
            ids = await topic_ids(aiokafka_fixes.connections(client), [self.topic])
        return {tp.partition: (first[tp], ends[tp]) for tp in places}, ids.get(self.topic, "")

    async def offsets_at(self, ms: int, spans: Spans) -> dict[int, int]:
        """Return the offset of the first record of each partition with a timestamp from ``ms`` on, else its end."""
        doing = f"searching raw topic {self.topic!r}"
        client = await self._looking(doing)
        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
            found = await client.offsets_for_times({self._place(n): ms for n in spans})
        return {tp.partition: spans[tp.partition][1] if at is None else at.offset for tp, at in found.items()}

    async def settings(self) -> Mapping[str, str]:
        """Return the topic's settings; none if this user may not see them."""
        doing = f"reading the settings of raw topic {self.topic!r}"
        async with (
            kafka.started(self._cluster.admin(), doing) as admin,
            kafka.deadline(kafka.CALL_DEADLINE, doing, "DESCRIBE_CONFIGS"),
        ):
            answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, self.topic)])
        [(code, _, _, _, entries)] = answers[0].resources
        return {} if code else {name: value for name, value, *_ in entries}

    async def _looking(self, doing: str) -> Any:  # noqa: ANN401  aiokafka has no types
        if self._looker is None:
            client = self._cluster.reader("read_uncommitted")
            self._looker = await self._clients.enter_async_context(kafka.started(client, doing))
            async with kafka.deadline(kafka.CALL_DEADLINE, doing):
                await aiokafka_fixes.request_metadata(self._looker, [self.topic])
        return self._looker

    # -- reading

    async def read(self, begins: Mapping[int, int], seconds: float) -> list[Piece]:
        """Return next records of partitions, from these offsets on.

        Waits up to ``seconds`` for the first ones. Offsets without committed records give a piece without records.

        Raises:
            RecordsLost: Records from there on were deleted.
            RecordsUnreadable: A batch is damaged.
            BrokerError: The brokers refused, or cannot be reached.
        """
        doing = f"reading raw topic {self.topic!r}"
        if self._reader is None:
            size = max(1 << 20, min(kafka.QUERY_FETCH, FETCHED // len(begins)))
            client = self._cluster.reader(reset="none", fetch_wait_ms=FETCH_WAIT_MS, fetch_bytes=size)
            self._reader = await self._clients.enter_async_context(kafka.started(client, doing))
        if aiokafka_fixes.has_failed(self._reader):
            raise BrokerUnavailable(f"{doing}: the client's fetch loop ended")
        async with kafka.deadline(seconds + kafka.CALL_DEADLINE, doing):
            self._position(begins)
            if idle := [n for n in begins if not self._unread[n]]:
                await self._take(idle, seconds if len(idle) == len(begins) else 0)
            pieces = [await self._piece(n) for n in begins]
        return [piece for piece in pieces if piece is not None]

    def _position(self, begins: Mapping[int, int]) -> None:
        """Move the consumer to these offsets, unless it is there, and pause it elsewhere."""
        known = {n: one.position for n, one in self._unread.items()}
        moved = {n: begin for n, begin in begins.items() if known.get(n) != begin}
        if not moved.keys() <= known.keys():
            moved = known | moved
            # No await from here to the last seek: the consumer would look up an offset for a partition without one.
            self._reader.assign([self._place(n) for n in moved])
        for n, begin in moved.items():
            self._unread[n] = Droppable(begin, text=self._text)
            self._reader.seek(self._place(n), begin)
        for n in self._unread:
            (self._reader.resume if n in begins else self._reader.pause)(self._place(n))

    async def _take(self, partitions: Sequence[int], seconds: float) -> None:
        """Take batches from the consumer, of partitions of which all records were returned."""
        places = [self._place(n) for n in partitions]
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await aiokafka_fixes.wait_for_records(self._reader, places, seconds, until=never)
        for place in aiokafka_fixes.buffered(self._reader, places):
            position = self._unread[place.partition].position
            where = f"topic {place.topic!r}, partition {place.partition}"
            try:
                batches = await aiokafka_fixes.take(self._reader, place, whole=True, most=BATCHES)
            except OffsetOutOfRangeError as error:
                raise RecordsLost(f"records of {where} were deleted unread") from error
            except CorruptRecordException as error:
                why = f"from offset {position} on cannot be read: {why_unreadable(error)}"
                raise RecordsUnreadable(f"records of {where} {why}") from error
            unread = self._unread[place.partition] = Droppable(position, text=self._text)
            unread.add(batches)

    async def _piece(self, partition: int) -> Piece | None:
        """Return next records of a partition; None if nothing is known about its next offset."""
        unread = self._unread[partition]
        begin, dropped = unread.position, unread.dropped
        # In a thread: a batch can decompress to millions of records, and all of them are checked first.
        records = await asyncio.to_thread(unread.read, PIECE)
        self.dropped += unread.dropped - dropped
        if not unread:  # behind its last record there may be markers
            unread.position = await self._reader.position(self._place(partition))
        return Piece(partition, records, unread.position) if unread.position > begin else None

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)
