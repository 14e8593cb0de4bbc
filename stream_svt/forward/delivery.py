"""Delivery from the alert topic to one destination, in a consumer group that commits offsets only after delivery.

An event is posted until the receiver accepts it, or it is parked, or the destination stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import aiohttp
from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

import stream_svt
from stream_svt.errors import RecordsLost, StreamSvtError
from stream_svt.forward.config import DestinationConfig, ForwardConfig
from stream_svt.forward.event import Request, request_of, wants
from stream_svt.forward.metrics import ForwardMetrics, Result, Samples
from stream_svt.kafka import clients as kafka
from stream_svt.monitor.released import AnyEvent, received

log = logging.getLogger(__name__)

DESTINATION_HEADER = "stream-svt-destination"
REASON_HEADER = "stream-svt-refused"
POSITION_HEADER = "stream-svt-position"
LOG_EVERY = 20
"""Of an event's failed attempts, the first and then every 20th are logged."""
LONGEST_REQUESTED_S = 3600.0
"""Longest wait in seconds that a receiver can ask for with Retry-After."""
_CONFLICT = 409
"""Receivers answer Conflict if they have an event of this id already; every copy of an event has the same id."""
_FINAL = frozenset({400, 413, 414, 415, 422, 431})
"""Statuses that reject this request permanently. Other statuses have a cause that can be corrected: an address, a
token, a limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request. ``reason`` has no text of the receiver; ``wait`` is its Retry-After in seconds."""

    result: Result
    reason: str
    wait: float = 0.0


Post: TypeAlias = Callable[[str, Request], Awaitable[Answer]]


def answer_of(status: int, retry_after: str | None) -> Answer:
    """Return the outcome of an HTTP response; Retry-After counts if it is in seconds, not if it is a date."""
    reason, text = f"status {status}", (retry_after or "").strip()
    if 200 <= status < 300 or status == _CONFLICT:
        return Answer(Result.ACCEPTED, reason)
    if status in _FINAL:
        return Answer(Result.REFUSED, reason)
    wait = min(float(text[:9]), LONGEST_REQUESTED_S) if text.isascii() and text.isdigit() else 0.0
    throttled = status == 429 or (status == 503 and wait)
    return Answer(Result.THROTTLED if throttled else Result.FAILED, reason, wait)


@contextlib.asynccontextmanager
async def posting(destination: DestinationConfig) -> AsyncIterator[Post]:
    """Yield a function that posts to a destination once, and raises no error for anything that a receiver does.

    Redirects are not followed: they would send the event and its signature to an address outside the configuration.
    Proxies of the environment are not used, and cookies are not kept. Only status and Retry-After of a response are
    read, so that a receiver cannot fill memory or log.
    """
    headers = {"User-Agent": f"stream-svt/{stream_svt.__version__}"}
    if destination.authorization is not None:
        headers["Authorization"] = destination.authorization
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=2 * destination.concurrency),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=destination.timeout / 1000),
    ) as session:

        async def post(url: str, request: Request) -> Answer:
            try:
                async with session.post(
                    url, data=request.body, headers=request.headers, allow_redirects=False
                ) as response:
                    return answer_of(response.status, response.headers.get("Retry-After"))
            except TimeoutError:
                return Answer(Result.TIMEOUT, "no answer in time")
            except aiohttp.ClientConnectorCertificateError:
                return Answer(Result.UNREACHABLE, "its certificate is not trusted")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # The text of the error may have the address, which may be a secret.
                return Answer(Result.UNREACHABLE, type(error).__name__)

        yield post


HAND_OVER = 5.0
"""Seconds for open requests before partitions are handed over; the group waits for four times that."""
_READ_MS = 50
"""Longest wait for records, after which deliveries are committed: after a crash, a longer wait repeats more."""
_COMMIT_PAUSE = 0.2
_BROKER_PAUSE = 1.0
WINDOW = 1000
"""Most records read after the first undelivered one: bounds memory, and repeated events after a crash."""


@dataclass(slots=True)
class Progress:
    """The deliveries of a partition.

    Attributes:
        read: The offset after the last record that was read.
        undelivered: Offsets that were read and not delivered, ascending, with the time of each event.
    """

    read: int
    committed: int = -1
    undelivered: dict[int, datetime] = field(default_factory=dict)

    def advance(self, offset: int) -> None:
        """Note that all records before an offset were read."""
        self.read = max(self.read, offset)

    @property
    def next(self) -> int:
        """The offset to commit: the first one that is not delivered."""
        return next(iter(self.undelivered), self.read)


class Route(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the topic for one destination and delivers its events, until stopped or until an error, kept in ``error``.

    ``producer`` writes parked events. With ``accept_loss`` the route continues after events that were deleted before
    their delivery.
    """

    def __init__(
        self,
        config: ForwardConfig,
        destination: DestinationConfig,
        post: Post,
        metrics: ForwardMetrics,
        producer: Any = None,  # noqa: ANN401  aiokafka has no types
        *,
        accept_loss: bool = False,
    ) -> None:
        self.name = destination.name
        self.destination = destination
        self.error: Exception | None = None
        self.joined = False
        self.standing = 0
        """Number of standing alerts that were posted last."""
        self._config = config
        self.post = post
        self._metrics = metrics
        self._producer = producer
        self._accept_loss = accept_loss
        self._consumer: Any = None
        self._progress: dict[TopicPartition, Progress] = {}
        # Open deliveries, the newest delivery of each dataset of a partition, and the first error of a delivery.
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: WeakValueDictionary[tuple[int, str], asyncio.Task[None]] = WeakValueDictionary()
        self._failure: Exception | None = None
        self._slots = asyncio.Semaphore(destination.concurrency)
        self._paused_until = 0.0
        self._committing = asyncio.Lock()
        self._commit_at = 0.0
        self._polled = 0.0

    async def run(self) -> None:
        """Forward until cancelled, or until an error, which ``error`` keeps."""
        while self.error is None:
            try:
                await self._forward()
            except kafka.BrokerUnavailable as error:
                log.warning("event=forward_broker destination=%s error=%r", self.name, str(error))
                await asyncio.sleep(_BROKER_PAUSE)
            except Exception as error:  # noqa: BLE001  other destinations continue; `error` keeps it
                self.error = error
                log.critical("event=forward_stopped destination=%s error=%r", self.name, str(error))

    async def _forward(self) -> None:
        """Join the group, read and deliver until an error."""
        group = self._config.group_of(self.destination)
        self._consumer = self._config.cluster.member(group)
        self._failure = None
        try:
            async with kafka.deadline(kafka.START_DEADLINE, f"joining group {group!r}", group=group):
                await self._consumer.start()
            self._consumer.subscribe([self._config.topic], listener=self)
            while self._failure is None:
                await self._read()
                if time.monotonic() >= self._commit_at:
                    await self._commit()
            raise self._failure
        finally:
            await self.on_partitions_revoked(set())
            await kafka.stop_quietly(self._consumer, HAND_OVER)

    @property
    def partitions(self) -> frozenset[int]:
        """Numbers of the partitions that its group gave to this process."""
        return frozenset(tp.partition for tp in self._consumer.assignment()) if self.joined else frozenset()

    def gauges(self) -> Samples:
        """Return the values of the gauges; ages compare the clocks of the service and of this machine."""
        now, partitions = datetime.now(UTC), self._consumer.assignment() if self.joined else ()
        undelivered = [time for progress in self._progress.values() for time in progress.undelivered.values()]
        oldest = min(undelivered, default=now)
        gauges: Samples = {
            ("waiting_events", self.name): len(undelivered),
            ("oldest_waiting_seconds", self.name): max(0, (now - oldest).total_seconds()),
            ("stopped", self.name): self.error is not None,
            ("partitions", self.name): len(partitions),
            ("standing_alerts", self.name): self.standing,
            ("last_poll_timestamp_seconds", self.name): self._polled,
        }
        for tp in partitions:
            end, progress = self._consumer.last_stable_offset(tp) or 0, self._progress.get(tp)
            lag = max(0, end - progress.next) if progress else 0  # no record was read yet
            gauges["lag_records", self.name, str(tp.partition)] = lag
        return gauges

    # Deliveries: one at a time for each dataset of a partition, all datasets at once

    def schedule(self, record: ConsumerRecord, event: AnyEvent | None, progress: Progress) -> None:
        """Deliver a record after the earlier ones of its dataset; call it in the order of offsets."""
        progress.undelivered[record.offset] = datetime.now(UTC) if event is None else event.time
        progress.advance(record.offset + 1)
        key = (record.partition, "" if event is None else event.data.dataset)
        task = asyncio.create_task(self._deliver(record, event, progress, self._last.get(key)))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self,
        record: ConsumerRecord,
        event: AnyEvent | None,
        progress: Progress,
        earlier: asyncio.Task[None] | None,
    ) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        if self._failure is None:
            try:
                await self.deliver(record, event)
                del progress.undelivered[record.offset]
            except Exception as error:  # noqa: BLE001  `_forward` raises it
                self._failure = error

    async def deliver(self, record: ConsumerRecord, event: AnyEvent | None) -> None:
        """Return once a record is delivered or parked; raises if the destination has to stop."""
        # Any writer of the alert topic can write other records; no receiver may get them.
        answer = Answer(Result.REFUSED, "no event of stream-svt")
        if event is not None:
            answer = await self._post_until_final(record, event)
            if answer.result is Result.ACCEPTED:
                self._metrics.events.labels(self.name, "delivered").inc()
                delay = (datetime.now(UTC) - event.time).total_seconds()
                self._metrics.delay_seconds.labels(self.name).observe(max(0.0, delay))
                return
        event_id = "" if event is None else event.id
        self._log(logging.ERROR, "forward_refused", record, event_id, answer)
        if self.destination.on_refused == "stop":
            raise StreamSvtError(
                f"destination {self.name!r} refused event {event_id!r} at partition {record.partition} "
                f"offset {record.offset} ({answer.reason}) and stopped; no event is lost. Repair the receiver, or set "
                "on_refused: park for this destination, and restart the forwarder"
            )
        topic, position = self._config.park_topic, f"{self._config.topic}/{record.partition}/{record.offset}"
        texts = {DESTINATION_HEADER: self.name, REASON_HEADER: answer.reason, POSITION_HEADER: position}
        headers = [(name, text.encode()) for name, text in texts.items()]
        async with kafka.deadline(kafka.CALL_DEADLINE, f"parking an event on topic {topic!r}", "WRITE"):
            await self._producer.send_and_wait(topic, record.value or b"", key=record.key, headers=headers)
        self._metrics.events.labels(self.name, "parked").inc()

    async def _post_until_final(self, record: ConsumerRecord, event: AnyEvent) -> Answer:
        """Attempt until an answer is final or give_up_after has passed; return the last answer."""
        retry, began = self.destination.retry, time.monotonic()
        longest = retry.first / 1000
        for attempt in itertools.count(1):
            answer = await self._attempt(event, record.value)
            if answer.result in {Result.ACCEPTED, Result.REFUSED}:
                break
            if attempt % LOG_EVERY == 1:
                self._log(logging.WARNING, "forward_failed", record, event.id, answer)
            if retry.give_up_after is not None and time.monotonic() - began >= retry.give_up_after / 1000:
                break
            # Random, so that forwarders which failed at the same time do not retry at the same time.
            await asyncio.sleep(max(answer.wait, longest * random.uniform(0.5, 1)))  # noqa: S311
            longest = min(2 * longest, retry.most / 1000)
        return answer

    async def _attempt(self, event: AnyEvent, body: bytes) -> Answer:
        """Post to every address; the best answer counts."""
        async with self._slots:
            # Retry-After of one answer pauses all requests to the receiver.
            while (pause := self._paused_until - time.monotonic()) > 0:  # noqa: ASYNC110  another answer may extend it
                await asyncio.sleep(pause)
            request = request_of(self.destination, event, body, datetime.now(UTC))
            answers = await asyncio.gather(*(self.post(url, request) for url in self.destination.urls))
            for answer in answers:
                self._metrics.attempts.labels(self.name, answer.result).inc()
            best = min(answers, key=lambda answer: list(Result).index(answer.result))
            if best.result is Result.THROTTLED:
                self._paused_until = max(self._paused_until, time.monotonic() + best.wait)
        return best

    def _log(self, level: int, name: str, record: ConsumerRecord, event_id: str, answer: Answer) -> None:
        line = "event=%s destination=%s id=%r partition=%d offset=%d reason=%r"
        log.log(level, line, name, self.name, event_id, record.partition, record.offset, answer.reason)

    # Membership

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Start to deliver read records; a partition without a committed position begins now, not at the first read."""
        try:
            for tp in assigned:
                async with kafka.deadline(kafka.CALL_DEADLINE, f"looking up the positions of {self.name}"):
                    committed = await self._consumer.committed(tp)
                if committed is None:
                    await self._begin(tp, None)
        except Exception as error:  # noqa: BLE001  aiokafka would log it and continue; `_forward` raises it
            self._failure = error
            return
        self.joined = True
        partitions = ",".join(str(tp.partition) for tp in sorted(assigned))
        log.info("event=forward_assigned destination=%s partitions=%s", self.name, partitions)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finish and commit open deliveries before another member reads the partitions."""
        del revoked
        self.joined = False
        try:
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=HAND_OVER)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
            await self._commit()
        finally:  # aiokafka logs an error of a listener and continues
            self._progress.clear()

    # Reading

    async def _read(self) -> None:
        """Read records, or wait if too many are read and not delivered."""
        if sum(progress.read - progress.next for progress in self._progress.values()) >= WINDOW:
            await asyncio.sleep(_READ_MS / 1000)
            return
        try:
            batch = await self._consumer.getmany(timeout_ms=_READ_MS, max_records=WINDOW)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as error:
            lost = error.args[0] if isinstance(error, OffsetOutOfRangeError) else {error.args[0]: None}
            for tp, offset in lost.items():
                await self._begin(tp, offset)
            return
        except KafkaError as error:
            doing = f"reading topic {self._config.topic!r}"
            raise kafka.explain(error, doing, group=self._config.group_of(self.destination)) from error
        self._note_poll()
        if not self.joined:
            return  # the partitions are being revoked: their next owner reads these records again
        for tp, records in batch.items():
            progress = self._progress.setdefault(tp, Progress(records[0].offset))
            for record in records:
                event = received(record.value, record.partition, record.offset)
                if event is not None and not wants(self.destination, event):
                    self._metrics.events.labels(self.name, "filtered").inc()
                    progress.advance(record.offset + 1)
                else:
                    self.schedule(record, event, progress)
        for tp in self._consumer.assignment():
            # The position also passes offsets without a record, such as the end of a transaction.
            with contextlib.suppress(IllegalStateError):
                if self._consumer.last_stable_offset(tp) is None:
                    continue  # not fetched yet, so that it may have no position
                position = await self._consumer.position(tp)
                if self.joined:
                    self._progress.setdefault(tp, Progress(position)).advance(position)

    async def _begin(self, tp: TopicPartition, lost: int | None) -> None:
        """Begin at `start_at` without a committed offset; or continue after record ``lost``."""
        doing = f"looking up the offsets of topic {tp.topic!r}"
        first, last = (await kafka.edges(self._consumer, [tp], doing))[tp]
        if lost is not None and not self._accept_loss:
            raise RecordsLost(
                f"partition {tp.partition} of topic {tp.topic!r} no longer has offset {lost}, the next one of "
                f"destination {self.name!r}: events were deleted before their delivery. Start with --accept-loss "
                f"to continue at the oldest offset left, {first}"
            )
        if lost is not None:
            line = "event=forward_loss_accepted destination=%s partition=%d from=%d to=%d"
            log.error(line, self.name, tp.partition, lost, first)
        start_at = self.destination.start_at
        begin = last if lost is None and start_at == "latest" else first
        if lost is None:
            line = "event=forward_begins destination=%s partition=%d offset=%d start_at=%s"
            log.info(line, self.name, tp.partition, begin, start_at)
        with contextlib.suppress(IllegalStateError):  # another member has the partition by now
            self._consumer.seek(tp, begin)
            # Committed even if no record follows, so that the group has an offset.
            self._progress.setdefault(tp, Progress(begin)).advance(begin)

    def _note_poll(self) -> None:
        """Note the time of the brokers' last answer: ``getmany`` also returns no records when they are unreachable."""
        partitions = self._consumer.assignment()
        # A member without partitions sends no reads, and counts as answered now.
        answered = [self._consumer.last_poll_timestamp(tp) or 0 for tp in partitions]
        if partitions or self.joined:
            self._polled = max(self._polled, min(answered, default=time.time() * 1000) / 1000)

    async def _commit(self) -> None:
        async with self._committing:
            offsets = {
                tp: progress.next
                for tp, progress in self._progress.items()
                if progress.next != progress.committed and tp in self._consumer.assignment()
            }
            if not offsets:
                return
            known, pause = dict(self._progress), _COMMIT_PAUSE
            try:
                async with asyncio.timeout(kafka.CALL_DEADLINE):
                    await self._consumer.commit(offsets)
                for tp, offset in offsets.items():
                    known[tp].committed = offset
            except (KafkaError, TimeoutError) as error:
                # The next owner of the partitions starts at the older offset, and may post events again.
                failure, pause = type(error).__name__, _BROKER_PAUSE
                log.warning("event=forward_commit_failed destination=%s error=%s", self.name, failure)
            self._commit_at = time.monotonic() + pause
