"""From the alert topic to one destination: a consumer group, positions committed only after delivery."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import OffsetAndMetadata

from stream_svt.errors import RecordsLost
from stream_svt.forward.config import ForwardConfig
from stream_svt.forward.delivery import Delivery
from stream_svt.forward.event import Received, Record, receive, wants
from stream_svt.forward.metrics import ForwardMetrics, Samples
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    BrokerUnavailable,
    deadline,
    explain,
    stop_quietly,
)

log = logging.getLogger(__name__)

HAND_OVER = 5.0
"""Seconds for requests under way before partitions are given away; the group waits for four times that."""

_READ_MS = 50
"""Longest wait for records before what was delivered meanwhile is committed: the longer, the more comes twice."""
_COMMIT_PAUSE = 0.2
_BROKER_PAUSE = 1.0
WINDOW = 1000
"""Records read beyond the first that is not delivered: bounds memory, and copies after a crash."""


class Progress:
    """Which offset of a partition may be committed: the first, from ``start`` on, that is not delivered.

    Attributes:
        committed: The offset that the group has, -1 where that is not known.
        waiting: Offsets that are not delivered, ascending, with the time of each event.
    """

    def __init__(self, start: int) -> None:
        self.committed = -1
        self.waiting: dict[int, datetime] = {}
        self._reached = start

    def reached(self, offset: int) -> None:
        """Note that everything before an offset was looked at."""
        self._reached = max(self._reached, offset)

    @property
    def next(self) -> int:
        """The offset to commit."""
        return next(iter(self.waiting), self._reached)

    @property
    def span(self) -> int:
        """How many offsets were read beyond it."""
        return self._reached - self.next


class KeyedQueue:
    """Hands records on: one at a time for each dataset of a partition, all datasets at once.

    Attributes:
        error: What ``deliver`` raised. Nothing more is handed on then.
    """

    def __init__(self, deliver: Callable[[Record], Awaitable[None]]) -> None:
        self.error: Exception | None = None
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: WeakValueDictionary[tuple[int, str], asyncio.Task[None]] = WeakValueDictionary()

    def put(self, record: Record, progress: Progress) -> None:
        """Deliver a record after the earlier ones of its dataset; offsets of a partition ascend."""
        progress.waiting[record.offset] = record.when
        progress.reached(record.offset + 1)
        key = (record.partition, record.dataset)
        task = asyncio.create_task(self._run(record, progress, self._last.get(key)))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, seconds: float) -> None:
        """Wait until nothing waits, but no longer than so many seconds; then let go of what does."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, record: Record, progress: Progress, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        if self.error is None:
            try:
                await self._deliver(record)
                del progress.waiting[record.offset]
            except Exception as error:  # noqa: BLE001  whoever reads asks for it
                self.error = error


class Route(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the topic for one destination and delivers, until stopped or until somebody has to look.

    Args:
        accept_loss: Whether events that retention took before they were delivered are given up.

    Attributes:
        error: Why it stopped by itself, else None.
        joined: Whether it is in its consumer group.
    """

    def __init__(
        self, config: ForwardConfig, delivery: Delivery, metrics: ForwardMetrics, *, accept_loss: bool
    ) -> None:
        self.destination = delivery.destination
        self.name = self.destination.name
        self.error: Exception | None = None
        self.joined = False
        self._config = config
        self._metrics = metrics
        self._accept_loss = accept_loss
        self._consumer: Any = None
        self._progress: dict[TopicPartition, Progress] = {}
        self._delivery = delivery
        self._queue = KeyedQueue(delivery.deliver)
        # Partitions to begin with; where to, if that is not what the group has committed.
        self._opening: dict[TopicPartition, int | None] = {}
        self._committing = asyncio.Lock()
        self._commit_at = 0.0
        self._polled = 0.0

    async def run(self) -> None:
        """Forward until cancelled, or until an error that ``error`` then holds."""
        while self.error is None:
            try:
                await self._forward()
            except BrokerUnavailable as error:
                log.warning("event=forward_broker destination=%s error=%r", self.name, str(error))
                await asyncio.sleep(_BROKER_PAUSE)
            except Exception as error:  # noqa: BLE001  the other destinations go on; `error` says it
                self.error = error
                log.critical("event=forward_stopped destination=%s error=%r", self.name, str(error))

    async def _forward(self) -> None:
        """Be a member of the group until something fails."""
        group = self.destination.group
        self._consumer = self._config.cluster.member(group)
        self._queue = KeyedQueue(self._delivery.deliver)
        try:
            async with deadline(START_DEADLINE, f"joining group {group!r}", group=group):
                await self._consumer.start()
            self._consumer.subscribe([self._config.topic], listener=self)
            while self._queue.error is None:
                if self._opening:
                    await self._open()
                await self._read()
                if time.monotonic() >= self._commit_at:
                    await self._commit()
            raise self._queue.error
        finally:
            self.joined = False
            await self._hand_over()
            await stop_quietly(self._consumer, HAND_OVER)

    def gauges(self) -> Samples:
        """Return what the gauges show; the age by the clocks of the service and of this machine."""
        now, consumer = datetime.now(UTC), self._consumer
        waiting = [when for progress in self._progress.values() for when in progress.waiting.values()]
        gauges: Samples = {
            ("waiting_events", self.name): len(waiting),
            ("oldest_waiting_seconds", self.name): max(0, (now - min(waiting, default=now)).total_seconds()),
            ("stopped", self.name): self.error is not None,
            ("partitions", self.name): len(self._progress),
            ("last_poll_timestamp_seconds", self.name): self._polled,
        }
        for place, progress in self._progress.items():
            end = consumer.last_stable_offset(place) if place in consumer.assignment() else None
            gauges["lag_records", self.name, str(place.partition)] = max(0, (end or 0) - progress.next)
        return gauges

    # Membership

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Have the reading find out where to begin; nothing slow, for no heartbeat is sent meanwhile."""
        self._opening = dict.fromkeys(assigned)
        self._consumer.pause(*assigned)
        self.joined = True

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finish what is under way and commit it, before anybody else begins there."""
        del revoked
        self.joined = False
        await self._hand_over()

    async def _hand_over(self) -> None:
        self._opening = {}
        try:
            await self._queue.drain(HAND_OVER)
            await self._commit()
        finally:  # aiokafka logs what a listener raises and goes on
            self._progress.clear()

    async def _open(self) -> None:
        """Begin at the committed positions; where there is none, at the oldest record."""
        opening, consumer, group = self._opening, self._consumer, self.destination.group
        async with deadline(CALL_DEADLINE, f"looking up the positions of group {group!r}", group=group):
            known = {
                place: await consumer.committed(place) if offset is None else offset
                for place, offset in opening.items()
            }
            first, end = await consumer.beginning_offsets(opening), await consumer.end_offsets(opening)
        if self._opening is not opening:
            return  # others have them by now
        self._opening = {}
        for place, offset in known.items():
            start = first[place] if offset is None else offset
            if not first[place] <= start <= end[place]:
                start = self._lost(place, start, first[place])
            # Committed even where nothing follows: a group that has a position keeps it.
            self._progress.setdefault(place, Progress(start)).reached(start)
            consumer.seek(place, start)
        consumer.resume(*opening)
        partitions = ",".join(str(place.partition) for place in sorted(opening))
        log.info("event=forward_assigned destination=%s partitions=%s", self.name, partitions)

    def _lost(self, place: TopicPartition, offset: int, first: int) -> int:
        if not self._accept_loss:
            raise RecordsLost(
                f"partition {place.partition} of topic {place.topic!r} no longer holds offset {offset}, where "
                f"destination {self.name!r} stands: retention or deletion took events before they were delivered. "
                f"Start with --accept-loss to go on at the oldest that is left, offset {first}"
            )
        line = "event=forward_loss_accepted destination=%s partition=%d from=%d to=%d"
        log.error(line, self.name, place.partition, offset, first)
        return first

    # Reading

    async def _read(self) -> None:
        """Read more, or wait where too much was read beyond what is delivered."""
        if sum(progress.span for progress in self._progress.values()) >= WINDOW:
            await asyncio.sleep(_READ_MS / 1000)
            return
        try:
            batch = await self._consumer.getmany(timeout_ms=_READ_MS, max_records=WINDOW)
        except OffsetOutOfRangeError as error:
            # Retention overtook the reading, between a position being found and its records being fetched.
            self._opening |= error.args[0]
            return
        except NoOffsetForPartitionError:
            return  # it is being looked for
        except KafkaError as error:
            doing = f"reading topic {self._config.topic!r}"
            raise explain(error, doing, group=self.destination.group) from error
        self._note_poll()
        if not self.joined:
            return  # the partitions are being given away: what was read just now is for whoever gets them
        for place, records in batch.items():
            if (progress := self._progress.get(place)) is None:
                continue
            for record in records:
                event = receive(record.value or b"", record.key, place.partition, record.offset)
                if isinstance(event, Received) and not wants(self.destination.config, event):
                    self._metrics.done(self.name, "filtered")
                    progress.reached(record.offset + 1)
                else:
                    self._queue.put(event, progress)
        for place, progress in list(self._progress.items()):
            # What is no record, such as the end of a transaction, counts as looked at.
            with contextlib.suppress(IllegalStateError):
                position = await self._consumer.position(place)
                if self._progress.get(place) is progress:
                    progress.reached(position)

    def _note_poll(self) -> None:
        """Note when the brokers last answered: nothing to read and nobody to ask look alike to ``getmany``."""
        places = self._consumer.assignment()
        # A member without a partition has nothing to ask for.
        answered = [self._consumer.last_poll_timestamp(place) or 0 for place in places]
        if places or self.joined:
            self._polled = max(self._polled, min(answered, default=time.time() * 1000) / 1000)

    # Progress

    async def _commit(self) -> None:
        async with self._committing:
            moved = {
                place: (progress, progress.next)
                for place, progress in self._progress.items()
                if progress.next != progress.committed and place in self._consumer.assignment()
            }
            if not moved:
                return
            offsets = {place: OffsetAndMetadata(offset, "") for place, (_, offset) in moved.items()}
            try:
                async with asyncio.timeout(CALL_DEADLINE):
                    await self._consumer.commit(offsets)
            except (KafkaError, IllegalStateError, TimeoutError) as error:
                # Whoever has the partitions now goes on at the older position: an event may come twice.
                failure = type(error).__name__
                log.warning("event=forward_commit_failed destination=%s error=%s", self.name, failure)
                self._commit_at = time.monotonic() + _BROKER_PAUSE
                return
            self._commit_at = time.monotonic() + _COMMIT_PAUSE
            for progress, offset in moved.values():
                progress.committed = offset
