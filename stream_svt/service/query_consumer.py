"""The worker's consumer of query topics: outside any group, with an assignment that follows its shards.

`assign()` replaces the whole assignment, and with it every position and buffer of the client. So a change goes
through three phases, and every fetch belongs to the first one:

STEADY      the client is assigned what the shards asked for; they fetch side by side;
DRAINING    a place came or went, or the client failed: fetches in flight end, and none begins;
ASSIGNING   no fetch is in flight: the client starts or stops, is assigned, and every place is sought to the end of
            the last batch that its shard was given, and paused if it was.

One answer of a broker brings news to many shards at once. So each takes its turn before it takes records out of the
client, and again after every `BITE` of them.

Places of a shard are sought by the offset of their own shard, never by the client's: what a fetch took out of the
client and did not deliver is read again.

The client keeps what it fetched, and what the broker refused, by partition, and a fetch looks at its own places only:
an offset out of range or a topic that may not be read is told to the shard that asked. A topic that is gone would be
told to nobody; see `_look_for`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from stream_svt import header_decoding
from stream_svt.errors import ConfigError, MisuseError, Problem
from stream_svt.service.kafka import START_DEADLINE, BrokerUnavailable, deadline, stop_quietly
from stream_svt.service.turns import rest

MISSING_PATIENCE = 1.0
"""Seconds that the brokers may not know a partition: those of a client that was just assigned are still asked for."""

_turn = partial(rest, 0)
BITE = 2_000
"""Records taken out of the client in one turn: some ten milliseconds of decoding."""

MOST = 20_000
"""Most records of a fetch that names no number."""


class QueryConsumer:
    """Reads the query partitions of all shards of a worker.

    Args:
        make: Returns a client outside any group, not started, without a reset of offsets.
        partitions: Number of partitions that every topic has.
    """

    def __init__(self, make: Callable[[], Any], partitions: int) -> None:
        self._make = make
        self._partitions = partitions
        self._client: Any = None
        self._next: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._missing: dict[TopicPartition, float] = {}
        self._reads: set[asyncio.Future[Any]] = set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._stale = False
        self._change: asyncio.Task[None] | None = None
        self._stopped = False

    # What shards ask for

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Read a place from this offset on; a new one is paused."""
        if place not in self._next:
            self._paused.add(place)
            self._stale = True
        self._next[place] = offset
        self._rewind([place])

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Let fetches of these places return records."""
        for place in self._known(places):
            self._paused.discard(place)
            if self._holds(place):
                self._client.resume(place)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Stop reading these places; skips nothing."""
        for place in self._known(places):
            self._paused.add(place)
            if self._holds(place):
                self._client.pause(place)

    def release(self, places: Iterable[TopicPartition]) -> None:
        """Forget these places; who fetches others goes on."""
        mine = self._next.keys() & set(places)
        if not mine:
            return
        for place in mine:
            del self._next[place]
            self._missing.pop(place, None)
        self._paused -= mine
        self._stale = True
        self._begin_change()

    def position(self, place: TopicPartition) -> int:
        """Return the offset that the next fetch of a place reads from."""
        return self._next[place]

    def reads(self, place: TopicPartition) -> bool:
        """Tell whether fetches of a place return records."""
        return place in self._next and place not in self._paused

    def high_water(self, place: TopicPartition) -> int | None:
        """Return the end of a place as of the last fetch, None where it is not read."""
        if not (self.reads(place) and self._holds(place)):
            return None
        high: int | None = self._client.highwater(place)
        return high

    async def fetch(
        self, places: Sequence[TopicPartition], seconds: float, max_records: int | None = None
    ) -> Mapping[TopicPartition, Sequence[Any]]:
        """Return what there is to read of these places, after at most so many seconds; may be cancelled.

        Raises:
            KafkaError: One of these places cannot be read; others may be.
            ConfigError: One of their topics has another number of partitions.
            BrokerUnavailable: The client does not start, or a topic is gone.
        """
        if not places or not self._next.keys() >= set(places):
            raise MisuseError("a shard fetches what it did not seek")  # nothing named would mean everything
        end = time.monotonic() + seconds
        while True:
            await self._steady()
            left = max(end - time.monotonic(), 0.0)
            found = await self._read(places, left, max_records or MOST)
            if found is not None:
                return found

    async def stop(self) -> None:
        """Stop the client; nothing is read any more."""
        self._stopped = True
        if self._change is not None:
            self._change.cancel()
            await asyncio.wait({self._change})
        await self._drain()
        client, self._client = self._client, None
        if client is not None:
            await stop_quietly(client)

    # Reading

    async def _read(
        self, places: Sequence[TopicPartition], seconds: float, max_records: int
    ) -> Mapping[TopicPartition, Sequence[Any]] | None:
        """Return what was read, None where a change of the assignment came first."""
        client = self._client
        read = asyncio.ensure_future(_take(client, places, seconds, max_records))
        self._reads.add(read)
        self._drained.clear()
        delivered = False
        try:
            await asyncio.wait({read})
            if read.cancelled():
                return None
            found = read.result()
            # No await from here on: what is noted is what is returned.
            for place in places:
                state = header_decoding.state_of(client, place)
                if state is not None and state.has_valid_position:
                    self._next[place] = state.position
            delivered = True
            if not found:
                self._look_for(places)
            return found
        finally:
            if not read.done():
                read.cancel()
                await asyncio.wait({read})
            if not delivered:
                _ = read.cancelled() or read.exception()  # or asyncio logs that nobody asked
                self._rewind(places)
            self._reads.discard(read)
            if not self._reads:
                self._drained.set()

    def _rewind(self, places: Iterable[TopicPartition]) -> None:
        """Have the client read from where the shards are."""
        for place in self._known(places):
            if self._holds(place):
                state = header_decoding.state_of(self._client, place)
                if not state.has_valid_position or state.position != self._next[place]:
                    self._client.seek(place, self._next[place])

    def _look_for(self, places: Iterable[TopicPartition]) -> None:
        """Find out whether topics are as they were: the client waits for ever for one that is gone.

        It asks the brokers for it again and again meanwhile, until the place is released.

        Raises:
            TopicAuthorizationFailedError, BrokerUnavailable, ConfigError: They are not.
        """
        cluster = self._client._client.cluster  # noqa: SLF001
        now = time.monotonic()
        for place in places:
            known = cluster.partitions_for_topic(place.topic) or ()
            if place.partition in known:
                self._missing.pop(place, None)
                if len(known) > self._partitions:
                    message = (
                        f"topic {place.topic!r} has {len(known)} partitions, topics.partitions says "
                        f"{self._partitions}: all topics of an application need the same number"
                    )
                    problem = Problem(0, "topics.partitions", message)
                    raise ConfigError([problem], "the topics as they are now")
            elif now - self._missing.setdefault(place, now) > MISSING_PATIENCE:
                if place.topic in cluster.unauthorized_topics:
                    raise TopicAuthorizationFailedError(place.topic)
                raise BrokerUnavailable(
                    f"partition {place.partition} of topic {place.topic!r} does not exist any more, or this user may "
                    f"not see it: then permission is missing, operation READ on resource TOPIC {place.topic!r}"
                )

    # The assignment

    async def _steady(self) -> None:
        """Wait until the client is assigned what shards asked for.

        Raises:
            BrokerError: The client does not start; everybody who waits for it is told.
        """
        while self._stopped or self._change is not None or self._stale or self._failed:
            change = self._begin_change()
            if change is None:
                raise BrokerUnavailable("the worker is stopping")
            await asyncio.wait({change})
            if not change.cancelled():
                change.result()

    def _begin_change(self) -> asyncio.Task[None] | None:
        if self._stopped:
            return None
        if self._change is None:
            self._change = asyncio.create_task(self._replace(), name="query-assignment")
            self._change.add_done_callback(self._changed)
        return self._change

    def _changed(self, change: asyncio.Task[None]) -> None:
        self._change = None
        failed = change.cancelled() or change.exception() is not None
        if self._stale and not failed:  # a place came or went while the client started
            self._begin_change()

    async def _replace(self) -> None:
        await self._drain()
        if self._client is not None and (self._failed or not self._next):
            # An empty assignment would have the client ask for every topic of the cluster.
            client, self._client = self._client, None
            await stop_quietly(client)
        if self._client is None and self._next:
            self._client = await self._started()
        # No await from here on: a place without an offset would be asked for one.
        if self._client is not None and self._next:
            self._client.assign(list(self._next))
            for place, offset in self._next.items():
                self._client.seek(place, offset)
            self._client.pause(*self._paused)
        self._missing.clear()
        self._stale = bool(self._next) != (self._client is not None)

    async def _drain(self) -> None:
        for read in self._reads:
            read.cancel()
        await self._drained.wait()

    async def _started(self) -> Any:  # noqa: ANN401  aiokafka has no types
        client = self._make()
        try:
            async with deadline(START_DEADLINE, "starting the consumer of query topics"):
                await client.start()
        except BaseException:
            await stop_quietly(client)
            raise
        return client

    @property
    def _failed(self) -> bool:
        """Whether the client's own loop has ended, which it tells nobody: it would return nothing for ever."""
        return self._client is not None and self._client._fetcher.error_future.done()  # noqa: SLF001

    def _known(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [place for place in places if place in self._next]

    def _holds(self, place: TopicPartition) -> bool:
        return self._client is not None and place in self._client.assignment()


async def _take(
    client: Any,  # noqa: ANN401  aiokafka has no types
    places: Sequence[TopicPartition],
    seconds: float,
    most: int,
) -> dict[TopicPartition, list[Any]]:
    """Take what there is of these places out of the client, a bite in each turn; wait for the first one so long.

    Where this is cancelled or fails, what was taken is to be read again.
    """
    taken: dict[TopicPartition, list[Any]] = {}
    end = time.monotonic() + seconds
    while True:
        await header_decoding.news(client, *places, seconds=end - time.monotonic())
        await _turn()
        bite = await header_decoding.getmany(client, *places, max_records=min(BITE, most), give_way=_turn)
        for place, records in bite.items():
            taken.setdefault(place, []).extend(records)
            most -= len(records)
        if taken:
            if most <= 0 or not header_decoding.at_hand(client, *places):
                return taken
        elif time.monotonic() >= end:
            return taken
