"""From the alert topic to one destination: a consumer group, positions committed only after delivery."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import OffsetAndMetadata

from stream_svt import lenient
from stream_svt.errors import RecordsLost
from stream_svt.forward.config import Destination
from stream_svt.forward.dispatcher import Dispatcher
from stream_svt.forward.event import Received, Record, receive
from stream_svt.forward.keyed_queue import KeyedQueue, Progress
from stream_svt.forward.metrics import ForwardMetrics, RouteStatus
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    BrokerUnavailable,
    Cluster,
    deadline,
    explain,
    group_offsets,
    spans,
    started,
    stop_quietly,
)

log = logging.getLogger(__name__)

HAND_OVER = 5.0
"""Seconds for requests under way before partitions are given away; the group waits for four times that."""

_COMMIT_PAUSE = 0.2
_BROKER_PAUSE = 1.0


class Route(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the topic for one destination and delivers, until stopped or until somebody has to look.

    Parameters
    ----------
    start_at
        Where partitions without a position begin; None for the oldest event.
    accept_loss
        Whether events that retention took before they were delivered are given up.

    Attributes
    ----------
    error
        Why it stopped by itself, else None.
    joined
        Whether it is in its consumer group.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        destination: Destination,
        dispatcher: Dispatcher,
        metrics: ForwardMetrics,
        *,
        start_at: datetime | None,
        accept_loss: bool,
    ) -> None:
        self.error: BaseException | None = None
        self.joined = False
        self._cluster = cluster
        self._topic = topic
        self._destination = destination
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._start_at = start_at
        self._accept_loss = accept_loss
        self._consumer: Any = None
        self._progress: dict[TopicPartition, Progress] = {}
        self._queue = KeyedQueue(dispatcher.deliver, self._delivered, self._fail)
        self._opening: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._less = asyncio.Event()
        self._committing = asyncio.Lock()
        self._polled = 0.0
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> str:
        """The destination's name."""
        return self._destination.name

    async def run(self) -> None:
        """Forward until cancelled, or until an error that ``error`` then holds."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._connect()
            self._consumer.subscribe([self._topic], listener=self)
            tasks = [
                asyncio.create_task(self._read(), name=f"read-{self.name}"),
                asyncio.create_task(self._commit_loop(), name=f"commit-{self.name}"),
            ]
            done, _ = await asyncio.wait([*tasks, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        except Exception as error:  # noqa: BLE001  the other destinations go on; `error` says it
            self.error = error
            log.critical("event=forward_stopped destination=%s error=%r", self.name, str(error))
        finally:
            await self._end(tasks)

    async def _connect(self) -> None:
        group = self._destination.group
        while True:
            self._consumer = self._cluster.member(group)
            try:
                async with deadline(START_DEADLINE, f"joining group {group!r}", group=group):
                    await self._consumer.start()
                return
            except BrokerUnavailable as error:
                log.warning("event=forward_broker destination=%s error=%r", self.name, str(error))
            await stop_quietly(self._consumer)
            await asyncio.sleep(_BROKER_PAUSE)

    def status(self) -> RouteStatus:
        """Return what the gauges show."""
        oldest = self._queue.oldest
        return RouteStatus(
            destination=self.name,
            waiting=sum(progress.waiting for progress in self._progress.values()),
            oldest=None if oldest is None else oldest.when,
            retrying=self._dispatcher.retrying,
            stopped=self.error is not None,
            lag={place.partition: self._lag(place) for place in self._progress},
            polled=self._polled,
        )

    def _lag(self, place: TopicPartition) -> int:
        progress = self._progress[place]
        end = self._consumer.last_stable_offset(place) if place in self._consumer.assignment() else None
        return max(0, (end or 0) - progress.next)

    # Membership

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Find out where to begin; nothing slow, for no heartbeat is sent meanwhile."""
        # aiokafka logs what a listener raises and goes on.
        try:
            self._consumer.pause(*assigned)
            self.joined = True
            self._opening = asyncio.create_task(self._open(sorted(assigned)), name=f"open-{self.name}")
            self._opening.add_done_callback(self._opened)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finish what is under way and commit it, before anybody else begins there."""
        del revoked
        self.joined = False
        try:
            await self._hand_over()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    async def _hand_over(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        await self._queue.drain(HAND_OVER)
        await self._commit()
        self._progress.clear()
        self._less.set()

    def _opened(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _open(self, places: list[TopicPartition]) -> None:
        """Begin at the committed positions; where there is none, as configured."""
        while places:
            try:
                await self._begin(places)
                return
            except BrokerUnavailable as error:
                log.warning("event=forward_broker destination=%s error=%r", self.name, str(error))
            await asyncio.sleep(_BROKER_PAUSE)

    async def _begin(self, places: list[TopicPartition]) -> None:
        group = self._destination.group
        doing = f"looking up the positions of group {group!r}"
        found = await group_offsets(self._cluster, group, doing)
        committed = {place: found[place].offset for place in places if place in found}
        known = {place: offset for place, offset in committed.items() if offset >= 0}
        ends = await spans(self._cluster, places, doing)
        fresh = await self._beginnings([place for place in places if place not in known], ends)
        positions = known | fresh
        for place, offset in known.items():
            first, end = ends[place]
            if not first <= offset <= end:
                positions[place] = self._lost(place, offset, first)
        for place, offset in positions.items():
            self._consumer.seek(place, offset)
            # Committed at once where there was none: a group that has a position keeps it.
            self._progress[place] = Progress(offset)
            self._progress[place].committed = known.get(place, -1)
        self._moved.set()
        self._consumer.resume(*places)
        log.info(
            "event=forward_assigned destination=%s partitions=%s",
            self.name,
            ",".join(str(place.partition) for place in places),
        )

    async def _beginnings(
        self, places: list[TopicPartition], ends: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int]:
        if self._start_at is None or not places:
            return {place: ends[place][0] for place in places}
        moment = int(self._start_at.timestamp() * 1000)
        doing = f"looking for the events since {self._start_at.isoformat()}"
        async with started(self._cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
            found = await reader.offsets_for_times(dict.fromkeys(places, moment))
        return {
            place: ends[place][1] if found.get(place) is None else found[place].offset for place in places
        }

    def _lost(self, place: TopicPartition, offset: int, first: int) -> int:
        message = (
            f"partition {place.partition} of topic {place.topic!r} no longer holds offset {offset}, where "
            f"destination {self.name!r} stands: retention or deletion took events before they were delivered. "
            f"Start with --accept-loss to go on at the oldest that is left, offset {first}"
        )
        if not self._accept_loss:
            raise RecordsLost(message)
        log.error(
            "event=forward_loss_accepted destination=%s partition=%d from=%d to=%d",
            self.name,
            place.partition,
            offset,
            first,
        )
        return first

    # Reading

    async def _read(self) -> None:
        while True:
            await self._room()
            try:
                batch = await lenient.getmany(
                    self._consumer, timeout_ms=500, max_records=self._destination.config.window
                )
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                try:
                    await self._reset(error)
                except BrokerUnavailable as away:
                    await self._trouble(away)
                continue
            except KafkaError as error:
                await self._trouble(error)
                continue
            self._note_poll()
            for place, records in batch.items():
                self._take(place, records)
            await self._advance()

    def _note_poll(self) -> None:
        """Note when the brokers last answered: nothing to read and nobody to ask look alike to ``getmany``."""
        places = self._consumer.assignment()
        # A member without a partition has nothing to ask for.
        answered = [self._consumer.last_poll_timestamp(place) or 0 for place in places]
        if places or self.joined:
            self._polled = max(self._polled, min(answered, default=time.time() * 1000) / 1000)

    async def _room(self) -> None:
        """Wait while too much was read beyond what is delivered."""
        while sum(progress.span for progress in self._progress.values()) >= self._destination.config.window:
            self._less.clear()
            await self._less.wait()

    def _take(self, place: TopicPartition, records: list[Any]) -> None:
        progress = self._progress.get(place)
        if progress is None:
            return
        for record in records:
            event = receive(record)
            if isinstance(event, Received) and not self._dispatcher.wants(event):
                self._metrics.done(self.name, "filtered")
                progress.reached(record.offset + 1)
            else:
                progress.begin(record.offset)
                self._queue.put(event)
        self._moved.set()

    async def _advance(self) -> None:
        """Count what is no record, such as the ends of transactions, as looked at."""
        for place, progress in list(self._progress.items()):
            with contextlib.suppress(IllegalStateError):
                position = await self._consumer.position(place)
                if self._progress.get(place) is progress:
                    progress.reached(position)
            if progress.next != progress.committed:
                self._moved.set()

    async def _reset(self, error: OffsetOutOfRangeError | NoOffsetForPartitionError) -> None:
        """Retention overtook the reading, between a position being found and its records being fetched."""
        places = [place for argument in error.args if isinstance(argument, dict) for place in argument]
        if not places:
            await self._trouble(error)
            return
        ends = await spans(self._cluster, places, "looking for the oldest event")
        for place in places:
            if place in self._progress:
                first = self._lost(place, self._progress[place].next, ends[place][0])
                self._progress[place].reached(first)
                self._consumer.seek(place, first)

    async def _trouble(self, error: KafkaError | BrokerUnavailable) -> None:
        meaning = explain(error, f"reading topic {self._topic!r}", group=self._destination.group)
        if not isinstance(meaning, BrokerUnavailable):
            raise meaning from error
        log.warning("event=forward_broker destination=%s error=%r", self.name, str(meaning))
        await asyncio.sleep(_BROKER_PAUSE)

    # Progress

    def _delivered(self, event: Record) -> None:
        progress = self._progress.get(TopicPartition(self._topic, event.partition))
        if progress is not None:
            progress.done(event.offset)
            self._moved.set()
            self._less.set()

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _commit_loop(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            await asyncio.sleep(_COMMIT_PAUSE if await self._commit() else _BROKER_PAUSE)

    async def _commit(self) -> bool:
        async with self._committing:
            assigned = self._consumer.assignment()
            moved = {
                place: (progress, progress.next)
                for place, progress in self._progress.items()
                if progress.next != progress.committed and place in assigned
            }
            if not moved:
                return True
            offsets = {place: OffsetAndMetadata(offset, "") for place, (_, offset) in moved.items()}
            try:
                async with asyncio.timeout(CALL_DEADLINE):
                    await self._consumer.commit(offsets)
            except (KafkaError, IllegalStateError, TimeoutError) as error:
                # Whoever has the partitions now goes on at the older position: an event may come twice.
                log.warning(
                    "event=forward_commit_failed destination=%s error=%s", self.name, type(error).__name__
                )
                self._moved.set()
                return False
            for progress, offset in moved.values():
                progress.committed = offset
            return True

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.joined = False
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()
        else:
            self._failed.cancel()
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self._hand_over()
        await stop_quietly(self._consumer, 5.0)
