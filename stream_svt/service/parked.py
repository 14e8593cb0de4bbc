"""A parked shard: what it watches, and when it is opened again.

It reads without a producer, so it fences nobody. Each look compares its surroundings with those seen last: first
offsets and ends of its state, alert and control partitions, where its query partitions begin, and what cannot be read.
A record on its control partition wakes it up, a configuration read again opens it, and else it looks again by itself.

Where the state cannot be proved, one command is carried out: the one that gives the state up and closes the shard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from stream_svt import header_decoding
from stream_svt.errors import (
    ApplicationClosed,
    BrokerError,
    RecordsLost,
    StreamSvtError,
    UnreadableState,
)
from stream_svt.protocol.controls import Verify, heard
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Feed, Record, Stopped
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.takeover import COMMAND_FETCH
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    Cluster,
    Denied,
    deadline,
    explain,
    partition_counts,
    started,
)
from stream_svt.service.topology import unseen

log = logging.getLogger(__name__)

LOOK_AGAIN = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Seconds between looks, one after the other; the last one for ever."""

_PROVED_BY_READING = {Cause.STATE_UNREADABLE, Cause.STATE_ROLLED_BACK, Cause.SEALING_KEY}
_REFUSED_BY_BROKERS = {Cause.TOPIC_MISSING, Cause.PERMISSION, Cause.BROKER_REFUSED}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What can be seen of a shard's partitions without a producer.

    Attributes:
        spans: Topic, first offset and end; of a query topic the first offset alone, for its end moves with
            every query.
        faults: What cannot be read, in words.
        missing: Whether a topic is not there.
        control_end: End of the control partition, None where it cannot be read.
    """

    spans: tuple[tuple[str, int, int | None], ...] = ()
    faults: tuple[str, ...] = ()
    missing: bool = False
    control_end: int | None = None


async def look_around(
    cluster: Cluster, shard: int, *, queries: Sequence[str], control: str, own: Sequence[str]
) -> Surroundings:
    """Look at the partitions that a shard reads.

    Args:
        queries, control, own: Query topics, control topic, and the topics that the shard writes and reads
            back.

    Raises:
        BrokerUnavailable: The brokers do not say.
    """
    doing = f"shard {shard}: looking at its topics"
    topics = [*queries, control, *own]
    counts = await partition_counts(cluster, doing)
    gone = [topic for topic in topics if counts.get(topic, 0) <= shard]
    places = [TopicPartition(topic, shard) for topic in topics if topic not in gone]
    faults = [unseen(topic, "READ") for topic in gone]
    spans: tuple[tuple[str, int, int | None], ...] = ()
    ends: dict[TopicPartition, int] = {}
    try:
        async with started(cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
            reader.assign(places)
            first = await reader.beginning_offsets(places)
            ends = await reader.end_offsets(places)
            spans = tuple(
                (place.topic, first[place], None if place.topic in queries else ends[place])
                for place in places
            )
            for place in places:
                reader.seek(place, ends[place])
            # The right to READ shows only in a fetch.
            await header_decoding.getmany(reader, *places, timeout_ms=300)
    except Denied as error:
        faults.append(str(error))
    return Surroundings(spans, tuple(faults), bool(gone), ends.get(TopicPartition(control, shard)))


@dataclass(slots=True, kw_only=True)
class Parking:
    """Waits until opening a parked shard is worth a try.

    Attributes:
        shard, cause: Which shard is parked, and why.
        feed, control: The shard's partitions, and the name of the control topic.
        halt: Set where the shard is told something: to stop, or of another configuration.
        look: Looks at the surroundings.
        journal: Returns a journal for the shard, not opened.
        reconfigured: Whether another configuration than the one that failed is in use.
        passed: Whether time alone has mended it.
        verify: Tells which commands to hear.
        beat: To be called as a sign of life.
        looks: Number of looks so far, for this and earlier failures in a row: the next ones come later and
            later.
        seen, next_command: What the last look found, and the offset of the control partition to listen from;
            None before the first look.
    """

    shard: int
    cause: Cause
    feed: Feed
    control: str
    halt: asyncio.Event
    look: Callable[[], Awaitable[Surroundings]]
    journal: Callable[[], Journal]
    reconfigured: Callable[[], bool]
    passed: Callable[[], bool]
    verify: Verify
    beat: Callable[[], None]
    looks: int = 0
    seen: Surroundings | None = None
    next_command: int | None = None

    async def until_mended(self) -> None:
        """Wait.

        Raises:
            Stopped: The shard was told something.
            IllegalStateError: Its partition is not assigned to this worker any more.
        """
        while not self.reconfigured() and not self.passed():
            around = await self._look_or_none()
            self.beat()
            if around is not None and await self._worth_a_try(around):
                break
            patience = LOOK_AGAIN[min(self.looks, len(LOOK_AGAIN) - 1)]
            self.looks += 1
            if around is None or around.control_end is None:
                await self._sleep(patience)
            else:
                await self._listen(around.control_end, patience)

    async def _look_or_none(self) -> Surroundings | None:
        try:
            return await self.look()
        except BrokerError as error:
            log.warning("event=look_failed shard=%d error=%r", self.shard, str(error))
            return None

    async def _worth_a_try(self, around: Surroundings) -> bool:
        first, changed = self.seen is None, around != self.seen
        self.seen = around
        if self.cause in _PROVED_BY_READING:
            worth = changed and await self._proved()
        elif self.cause in _REFUSED_BY_BROKERS:
            # What may be written shows only when it is tried.
            worth = not first and not around.faults
        else:
            worth = changed and not first
        return worth

    async def _proved(self) -> bool:
        """Tell whether the state proves, read without fencing anybody."""
        journal = self.journal()
        try:
            await journal.look(beside_alerts=True)
        except ApplicationClosed:
            return True
        except UnreadableState as error:
            log.warning("event=still_parked shard=%d error=%r", self.shard, str(error))
            return False
        except (BrokerError, KafkaError, OSError) as error:
            log.warning("event=look_failed shard=%d error=%s", self.shard, type(error).__name__)
            self.seen = None  # look again, changed or not
            return False
        finally:
            await journal.close()
        return True

    async def _listen(self, end: int, seconds: float) -> None:
        """Wait for a record on the control partition, for so long at most: any one wakes the shard up."""
        if self.next_command is None:
            self.next_command = end
        until = time.monotonic() + seconds
        feed = self.feed
        feed.seek(self.control, self.next_command)
        feed.resume([self.control])
        try:
            while (left := until - time.monotonic()) > 0:
                records = (await feed.fetch([self.control], min(left, COMMAND_FETCH))).get(self.control, [])
                self.beat()
                if not records:
                    continue
                self.next_command, self.looks = records[-1].offset + 1, 0
                log.info("event=woken shard=%d offset=%d", self.shard, records[-1].offset)
                await self._carry_out(records)
                return
        except RecordsLost:  # the control topic was made anew
            self.next_command = None
            await self._sleep(1.0)
        except IllegalStateError:  # the partition is not assigned to this worker any more
            raise
        except KafkaError as error:
            log.warning("event=look_failed shard=%d error=%r", self.shard, str(explain(error, "listening")))
            await self._sleep(max(until - time.monotonic(), 1.0))
        finally:
            feed.pause([self.control])

    async def _carry_out(self, records: Sequence[Record]) -> None:
        """Give the state up where a command asks for it; a refused one changes nothing, and the log says why."""
        if self.cause not in _PROVED_BY_READING:
            return
        for record in records:
            command = heard(record, self.verify)
            if isinstance(command, str) or not command.gives_up:
                continue
            journal = self.journal()
            try:
                await journal.give_up(command)
            except StreamSvtError as error:
                log.warning(
                    "event=command_refused shard=%d action=%s error=%r",
                    self.shard,
                    command.action.value,
                    str(error),
                )
            else:
                log.critical("event=shard_closed shard=%d successor=%s", self.shard, command.successor)
            finally:
                await journal.close()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.halt.wait()
        except TimeoutError:
            self.beat()
            return
        raise Stopped
