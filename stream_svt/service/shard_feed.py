"""A shard's queries and commands on Kafka, and what a rebalance asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, OffsetOutOfRangeError

from stream_svt import header_decoding
from stream_svt.errors import RecordsLost
from stream_svt.protocol.ports import Stopped
from stream_svt.service.kafka import Cluster, spans
from stream_svt.service.query_consumer import QueryConsumer


class Hold:
    """A rebalance as one shard knows it: while it is held, the partition may go elsewhere or stay.

    Attributes:
        held: Set from the revocation to the assignment.
        free: The opposite.
        quiet: Set while the shard steps nothing: it is not open, or its session stands by.
    """

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.free = asyncio.Event()
        self.quiet = asyncio.Event()
        self.free.set()
        self.quiet.set()

    def ask(self) -> None:
        """Begin to hold."""
        self.free.clear()
        self.held.set()

    def release(self) -> None:
        """Go on: the partition stays."""
        self.held.clear()
        self.free.set()


class ShardFeed:
    """The partitions of one shard (see `stream_svt.protocol.ports.Feed`).

    Args:
        cluster: How to reach the brokers, for questions that must not wait behind a fetch.
        consumer: The worker's group consumer; the shard's partition of the control topic is assigned to it.
        queries: The worker's consumer of query topics.
        shard: Partition number.
        control: Name of the control topic.
        stop: Set to end a fetch.
        hold: Whether a rebalance is under way.
    """

    def __init__(
        self,
        cluster: Cluster,
        consumer: AIOKafkaConsumer,
        queries: QueryConsumer,
        shard: int,
        control: str,
        stop: asyncio.Event,
        hold: Hold,
    ) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._queries = queries
        self._shard = shard
        self._control = TopicPartition(control, shard)
        self._stop = stop
        self._hold = hold
        self._mine: set[TopicPartition] = set()
        self._commands: asyncio.Future[Any] | None = None
        self._commands_next: int | None = None
        self._commands_wanted = False
        self._assigned: Any = None

    @property
    def stopping(self) -> bool:
        """Whether the shard was told to stop."""
        return self._stop.is_set()

    @property
    def held(self) -> bool:
        """Whether a rebalance is under way."""
        return self._hold.held.is_set()

    async def settled(self) -> None:
        """Stand by until the group has decided; see the port."""
        self._forget_commands()
        self._hold.quiet.set()
        try:
            await self._first(self._hold.free.wait())
        finally:
            self._hold.quiet.clear()
        if self.stopping:
            raise Stopped

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return first and end offset by topic."""
        doing = f"shard {self._shard}: finding the place in the topics"
        found = await spans(self._cluster, [self._place(topic) for topic in topics], doing)
        return {place.topic: span for place, span in found.items()}

    async def fetch(
        self, topics: Iterable[str], patience: float, max_records: int | None = None
    ) -> Mapping[str, Sequence[Any]]:
        """Await records, the stop signal or a rebalance; see the port."""
        if self.held:  # whoever only waits for a command
            self._forget_commands()
            await self._first(self._hold.free.wait(), asyncio.sleep(patience))
            if self.stopping:
                raise Stopped
            return {}
        await asyncio.sleep(0)  # buffered records come without a pause, and heartbeats need the loop
        places = [self._place(topic) for topic in topics]
        found: dict[TopicPartition, Sequence[Any]] = {}
        reads: list[asyncio.Future[Any]] = []
        if self._control in places:
            places.remove(self._control)
            reads.append(self._read_commands(patience, max_records))
        queries = None
        if places:
            queries = asyncio.ensure_future(self._queries.fetch(places, patience, max_records))
            reads.append(queries)
        try:
            waits_on = True
            while waits_on:
                await self._first(*reads, self._hold.held.wait())
                done = [read for read in reads if read.done()]
                if not done and self.stopping:
                    raise Stopped
                for read in done:  # without an await: what is noted as read is what is returned
                    found |= read.result()
                    reads.remove(read)
                    if read is self._commands:
                        self._note_commands()
                # No command is no reason to look at no query.
                waits_on = not found and queries in reads and not (self.stopping or self.held)
        except OffsetOutOfRangeError as error:
            topics = ", ".join(sorted(place.topic for place in error.args[0]))
            raise RecordsLost(f"shard {self._shard}: offsets are out of range on {topics}") from error
        finally:
            # The read of commands goes on: each one that is given up would leave something in the client.
            given_up = [read for read in reads if read is not self._commands and not read.done()]
            for read in given_up:
                read.cancel()
            await asyncio.gather(*given_up, return_exceptions=True)
        return {place.topic: records for place, records in found.items()}

    async def position(self, topic: str) -> int:
        """Return the offset that the next fetch reads from."""
        return self._queries.position(self._place(topic))

    def seek(self, topic: str, offset: int) -> None:
        """Read on from this offset."""
        place = self._place(topic)
        if place == self._control:
            self._forget_commands()
            self._commands_next = offset
            return
        self._mine.add(place)
        self._queries.seek(place, offset)

    def resume(self, topics: Iterable[str]) -> None:
        """Read these topics again."""
        places = {self._place(topic) for topic in topics}
        self._commands_wanted |= self._control in places
        self._queries.resume(places - {self._control})

    def pause(self, topics: Iterable[str]) -> None:
        """Stop reading these topics."""
        places = {self._place(topic) for topic in topics}
        if self._control in places:
            self._commands_wanted = False
            self._pause_commands()
        self._queries.pause(places - {self._control})

    def high_water(self, topic: str) -> int | None:
        """Return the end of the topic as of the last fetch."""
        return self._queries.high_water(self._place(topic))

    def close(self) -> None:
        """Read nothing any more."""
        self._commands_wanted = False
        self._pause_commands()
        self._queries.release(self._mine)
        self._mine = set()

    # Commands come through the group's consumer, which loses offsets and pauses at every rebalance.

    def _read_commands(self, patience: float, max_records: int | None) -> asyncio.Future[Any]:
        """Return the read that is under way, or begin one."""
        if self._commands is None:
            self._take_place()
            self._commands = asyncio.ensure_future(
                header_decoding.getmany(
                    self._consumer, self._control, timeout_ms=int(1000 * patience), max_records=max_records
                )
            )
        return self._commands

    def _take_place(self) -> None:
        """Have the group's consumer read from where the shard is, once for each assignment.

        Raises:
            IllegalStateError: The partition is not assigned to this worker.
        """
        assigned = header_decoding.state_of(self._consumer, self._control)
        if assigned is None:
            raise IllegalStateError(f"partition {self._shard} of the control topic is not assigned")
        if assigned is not self._assigned:
            self._consumer.seek(self._control, self._commands_next)
            self._assigned = assigned
        if self._commands_wanted:
            self._consumer.resume(self._control)

    def _note_commands(self) -> None:
        """Note how far the read that was taken has come."""
        self._commands = None
        if self._assigned.has_valid_position:
            self._commands_next = self._assigned.position

    def _forget_commands(self) -> None:
        """Give up what was read and not delivered; the next read begins where the shard is."""
        if self._commands is not None:
            self._commands.cancel()
            self._commands.add_done_callback(_retrieve)
        self._commands = self._assigned = None

    def _pause_commands(self) -> None:
        self._forget_commands()
        if self._control in self._consumer.assignment():
            self._consumer.pause(self._control)

    async def _first(self, *events: Any) -> None:  # noqa: ANN401
        """Wait for the first of several events, or for the stop signal; reads go on."""
        waits = [asyncio.ensure_future(event) for event in (*events, self._stop.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            mine = [wait for wait, event in zip(waits, (*events, None), strict=True) if wait is not event]
            for wait in mine:
                wait.cancel()
            await asyncio.gather(*mine, return_exceptions=True)

    def _place(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self._shard)


def _retrieve(read: asyncio.Future[Any]) -> None:
    """Ask for an error that nobody needs, or asyncio logs it."""
    _ = read.cancelled() or read.exception()
