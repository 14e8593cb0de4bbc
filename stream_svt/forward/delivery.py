"""From the alert topic to one destination: a consumer group, whose positions are committed only after delivery.

An event is posted until the receiver has taken it, or it is parked, or somebody has to look.
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
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

import stream_svt
from stream_svt.errors import RecordsLost, StreamSvtError
from stream_svt.forward.config import Destination, ForwardConfig
from stream_svt.forward.event import AlertRecord, Request, receive, request_of, wants
from stream_svt.forward.metrics import ForwardMetrics, Result, Samples
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    BrokerUnavailable,
    deadline,
    explain,
    stop_quietly,
)

log = logging.getLogger(__name__)

DESTINATION_HEADER = "stream-svt-destination"
REASON_HEADER = "stream-svt-refused"
PLACE_HEADER = "stream-svt-place"
_SAY_EVERY = 20
"""Failed attempts of an event between two lines about it; the first is always reported."""
LONGEST_REQUESTED_S = 3600.0
"""Most seconds for which a receiver may ask with Retry-After."""
_ALREADY_THERE = 409
"""Conflict: how receivers say that they have an event of this id. The id is the same for every copy, so they do."""
_ABOUT_THE_EVENT = frozenset({400, 413, 414, 415, 422, 431})
"""What says that this request will never be taken. Anything else a receiver can mend: an address, a token, a limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``reason`` holds nothing of the receiver's own words; ``wait`` is its Retry-After in seconds."""

    result: Result
    reason: str
    wait: float = 0.0


Post: TypeAlias = Callable[[str, Request], Awaitable[Answer]]


def meaning(status: int, retry_after: str | None) -> Answer:
    """Return what an HTTP answer means; of Retry-After, seconds are heard and dates are not."""
    reason, text = f"status {status}", (retry_after or "").strip()
    if 200 <= status < 300 or status == _ALREADY_THERE:
        return Answer(Result.ACCEPTED, reason)
    if status in _ABOUT_THE_EVENT:
        return Answer(Result.REFUSED, reason)
    wait = min(float(text[:9]), LONGEST_REQUESTED_S) if text.isascii() and text.isdigit() else 0.0
    throttled = status == 429 or (status == 503 and wait)
    return Answer(Result.THROTTLED if throttled else Result.FAILED, reason, wait)


@contextlib.asynccontextmanager
async def posting(destination: Destination) -> AsyncIterator[Post]:
    """Yield what posts to a destination once, and never raises for what a receiver does.

    Redirects are not followed: they would carry the event and its signature to an address nobody configured.
    Proxies of the environment are not used, and cookies not kept. Of an answer only status and Retry-After are
    looked at, so that no receiver can fill memory or log.
    """
    headers = {"User-Agent": f"stream-svt/{stream_svt.__version__}"}
    if destination.authorization is not None:
        headers["Authorization"] = destination.authorization
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=2 * destination.config.concurrency),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=destination.config.timeout / 1000),
    ) as session:

        async def post(url: str, request: Request) -> Answer:
            try:
                async with session.post(
                    url, data=request.body, headers=request.headers, allow_redirects=False
                ) as response:
                    return meaning(response.status, response.headers.get("Retry-After"))
            except TimeoutError:
                return Answer(Result.TIMEOUT, "no answer in time")
            except aiohttp.ClientConnectorCertificateError:
                return Answer(Result.UNREACHABLE, "its certificate is not trusted")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # Its text may hold the address, which may be a secret.
                return Answer(Result.UNREACHABLE, type(error).__name__)

        yield post


@dataclass(slots=True)
class Delivery:
    """Delivers the events of one destination, each until it is taken; ``producer`` writes what is parked."""

    config: ForwardConfig
    destination: Destination
    post: Post
    metrics: ForwardMetrics
    producer: Any = None
    _silent_until: float = 0.0
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.destination.config.concurrency)

    async def deliver(self, event: AlertRecord) -> None:
        """Return once a record is delivered or parked; raises where the destination is to stop."""
        # Whoever may write to the alert topic can put anything there; no receiver is to see it.
        answer = Answer(Result.REFUSED, "no event of stream-svt")
        if event.is_event:
            answer = await self._insist(event)
        name = self.destination.name
        if answer.result is Result.ACCEPTED:
            self.metrics.events.labels(name, "delivered").inc()
            delay = (datetime.now(UTC) - event.when).total_seconds()
            self.metrics.delay_seconds.labels(name).observe(max(0.0, delay))
            return
        self._say(logging.ERROR, "forward_refused", event, answer)
        if self.destination.config.on_refused == "stop":
            raise StreamSvtError(
                f"destination {name!r} refused event {event.envelope.id!r} at partition {event.partition} "
                f"offset {event.offset} ({answer.reason}) and stopped: nothing is lost. Mend the receiver, or "
                "let refused events be parked (on_refused: park), and start again"
            )
        await self._park(event, answer.reason)
        self.metrics.events.labels(name, "parked").inc()

    async def _insist(self, event: AlertRecord) -> Answer:
        """Attempt until an answer is final or patience ends; return the last answer."""
        retry, began = self.destination.config.retry, time.monotonic()
        longest = retry.first / 1000
        for attempt in itertools.count(1):
            answer = await self._attempt(event)
            if answer.result in {Result.ACCEPTED, Result.REFUSED}:
                break
            if attempt % _SAY_EVERY == 1:
                self._say(logging.WARNING, "forward_failed", event, answer)
            if retry.give_up_after is not None and time.monotonic() - began >= retry.give_up_after / 1000:
                break
            # Forwarders that failed together must not come back together.
            await asyncio.sleep(max(answer.wait, longest * random.uniform(0.5, 1)))  # noqa: S311
            longest = min(2 * longest, retry.most / 1000)
        return answer

    async def _attempt(self, event: AlertRecord) -> Answer:
        """Post to every address; one that takes the event is enough."""
        async with self._slots:
            # A receiver that asks to be left alone means all requests, not only the one it answered.
            while (silence := self._silent_until - time.monotonic()) > 0:  # noqa: ASYNC110  it may grow meanwhile
                await asyncio.sleep(silence)
            request = request_of(self.destination, event, datetime.now(UTC))
            answers = await asyncio.gather(*(self.post(url, request) for url in self.destination.urls))
            for answer in answers:
                self.metrics.attempts.labels(self.destination.name, answer.result).inc()
            best = min(answers, key=lambda answer: list(Result).index(answer.result))
            if best.result is Result.THROTTLED:
                self._silent_until = max(self._silent_until, time.monotonic() + best.wait)
        return best

    async def _park(self, event: AlertRecord, reason: str) -> None:
        """Return once every replica in sync has the event as it was."""
        headers = [
            (DESTINATION_HEADER, self.destination.name.encode()),
            (REASON_HEADER, reason.encode()),
            (PLACE_HEADER, f"{self.config.topic}/{event.partition}/{event.offset}".encode()),
        ]
        topic = self.config.park_topic
        async with deadline(CALL_DEADLINE, f"parking an event on topic {topic!r}", "WRITE"):
            await self.producer.send_and_wait(topic, event.body, key=event.key, headers=headers)

    def _say(self, level: int, what: str, event: AlertRecord, answer: Answer) -> None:
        line = "event=%s destination=%s id=%r partition=%d offset=%d reason=%r"
        place = (event.envelope.id, event.partition, event.offset)
        log.log(level, line, what, self.destination.name, *place, answer.reason)


HAND_OVER = 5.0
"""Seconds for requests under way before partitions are given away; the group waits for four times that."""
_READ_MS = 50
"""Longest wait for records before what was delivered meanwhile is committed: the longer, the more comes twice."""
_COMMIT_PAUSE = 0.2
_BROKER_PAUSE = 1.0
WINDOW = 1000
"""Records read beyond the first that is not delivered: bounds memory, and copies after a crash."""


@dataclass(slots=True)
class Progress:
    """Which offset of a partition may be committed: the first that is not delivered.

    ``waiting`` holds the offsets that are not delivered, ascending, with the time of each event.
    """

    reached: int
    committed: int = -1
    waiting: dict[int, datetime] = field(default_factory=dict)

    def advance(self, offset: int) -> None:
        """Note that everything before an offset was looked at."""
        self.reached = max(self.reached, offset)

    @property
    def next(self) -> int:
        """The offset to commit."""
        return next(iter(self.waiting), self.reached)


class Route(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the topic for one destination and delivers, until stopped or until an error that ``error`` then holds.

    With ``accept_loss``, events that retention took before they were delivered are given up.
    """

    def __init__(self, config: ForwardConfig, delivery: Delivery, *, accept_loss: bool = False) -> None:
        self.destination = delivery.destination
        self.name = self.destination.name
        self.error: Exception | None = None
        self.joined = False
        self._config = config
        self._delivery = delivery
        self._accept_loss = accept_loss
        self._consumer: Any = None
        self._progress: dict[TopicPartition, Progress] = {}
        # Deliveries under way, the newest of each dataset of a partition, and what the first one that failed raised.
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: WeakValueDictionary[tuple[int, str], asyncio.Task[None]] = WeakValueDictionary()
        self._failure: Exception | None = None
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
        self._failure = None
        try:
            async with deadline(START_DEADLINE, f"joining group {group!r}", group=group):
                await self._consumer.start()
            self._consumer.subscribe([self._config.topic], listener=self)
            while self._failure is None:
                await self._read()
                if time.monotonic() >= self._commit_at:
                    await self._commit()
            raise self._failure
        finally:
            self.joined = False
            await self._hand_over()
            await stop_quietly(self._consumer, HAND_OVER)

    def gauges(self) -> Samples:
        """Return what the gauges show; the age by the clocks of the service and of this machine."""
        now, places = datetime.now(UTC), self._consumer.assignment() if self.joined else ()
        waiting = [when for progress in self._progress.values() for when in progress.waiting.values()]
        gauges: Samples = {
            ("waiting_events", self.name): len(waiting),
            ("oldest_waiting_seconds", self.name): max(0, (now - min(waiting, default=now)).total_seconds()),
            ("stopped", self.name): self.error is not None,
            ("partitions", self.name): len(places),
            ("last_poll_timestamp_seconds", self.name): self._polled,
        }
        for place in places:
            end, progress = self._consumer.last_stable_offset(place) or 0, self._progress.get(place)
            lag = max(0, end - progress.next) if progress else 0  # nothing was there to read yet
            gauges["lag_records", self.name, str(place.partition)] = lag
        return gauges

    # Deliveries: one at a time for each dataset of a partition, all datasets at once

    def put(self, record: AlertRecord, progress: Progress) -> None:
        """Deliver a record after the earlier ones of its dataset; offsets of a partition ascend."""
        progress.waiting[record.offset] = record.when
        progress.advance(record.offset + 1)
        key = (record.partition, record.data.dataset)
        task = asyncio.create_task(self._deliver(record, progress, self._last.get(key)))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self, record: AlertRecord, progress: Progress, earlier: asyncio.Task[None] | None
    ) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        if self._failure is None:
            try:
                await self._delivery.deliver(record)
                del progress.waiting[record.offset]
            except Exception as error:  # noqa: BLE001  `_forward` raises it
                self._failure = error

    async def drain(self, seconds: float) -> None:
        """Wait until nothing waits, but no longer than so many seconds; then let go of what does."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # Membership

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Let what is read be taken."""
        self.joined = True
        partitions = ",".join(str(place.partition) for place in sorted(assigned))
        log.info("event=forward_assigned destination=%s partitions=%s", self.name, partitions)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finish what is under way and commit it, before anybody else begins there."""
        del revoked
        self.joined = False
        await self._hand_over()

    async def _hand_over(self) -> None:
        try:
            await self.drain(HAND_OVER)
            await self._commit()
        finally:  # aiokafka logs what a listener raises and goes on
            self._progress.clear()

    # Reading

    async def _read(self) -> None:
        """Read more, or wait where too much was read beyond what is delivered."""
        if sum(progress.reached - progress.next for progress in self._progress.values()) >= WINDOW:
            await asyncio.sleep(_READ_MS / 1000)
            return
        try:
            batch = await self._consumer.getmany(timeout_ms=_READ_MS, max_records=WINDOW)
        except NoOffsetForPartitionError as error:
            await self._begin(error.args[0])
            return
        except OffsetOutOfRangeError as error:
            for place, offset in error.args[0].items():
                await self._begin(place, lost=offset)
            return
        except KafkaError as error:
            doing = f"reading topic {self._config.topic!r}"
            raise explain(error, doing, group=self.destination.group) from error
        self._note_poll()
        if not self.joined:
            return  # the partitions are being given away: what was read just now is for whoever gets them
        for place, records in batch.items():
            progress = self._progress.setdefault(place, Progress(records[0].offset))
            for record in records:
                event = receive(record.value or b"", record.key, place.partition, record.offset)
                if event.is_event and not wants(self.destination.config, event):
                    self._delivery.metrics.events.labels(self.name, "filtered").inc()
                    progress.advance(record.offset + 1)
                else:
                    self.put(event, progress)
        for place, progress in list(self._progress.items()):
            # What is no record, such as the end of a transaction, counts as looked at.
            with contextlib.suppress(IllegalStateError):
                position = await self._consumer.position(place)
                if self._progress.get(place) is progress:
                    progress.advance(position)

    async def _begin(self, place: TopicPartition, lost: int | None = None) -> None:
        """Begin at the oldest record: the group has no position, or retention took the record that stood there."""
        async with deadline(CALL_DEADLINE, f"looking up the oldest record of topic {place.topic!r}"):
            first = (await self._consumer.beginning_offsets([place]))[place]
        if lost is not None:
            if not self._accept_loss:
                raise RecordsLost(
                    f"partition {place.partition} of topic {place.topic!r} no longer holds offset {lost}, where "
                    f"destination {self.name!r} stands: retention or deletion took events before they were "
                    f"delivered. Start with --accept-loss to go on at the oldest that is left, offset {first}"
                )
            line = "event=forward_loss_accepted destination=%s partition=%d from=%d to=%d"
            log.error(line, self.name, place.partition, lost, first)
        with contextlib.suppress(IllegalStateError):  # others have it by now
            self._consumer.seek(place, first)
            # Committed even where nothing follows: a group that has a position keeps it.
            self._progress.setdefault(place, Progress(first)).advance(first)

    def _note_poll(self) -> None:
        """Note when the brokers last answered: nothing to read and nobody to ask look alike to ``getmany``."""
        places = self._consumer.assignment()
        # A member without a partition has nothing to ask for.
        answered = [self._consumer.last_poll_timestamp(place) or 0 for place in places]
        if places or self.joined:
            self._polled = max(self._polled, min(answered, default=time.time() * 1000) / 1000)

    async def _commit(self) -> None:
        async with self._committing:
            moved = {
                place: progress.next
                for place, progress in self._progress.items()
                if progress.next != progress.committed and place in self._consumer.assignment()
            }
            if not moved:
                return
            known, pause = dict(self._progress), _COMMIT_PAUSE
            try:
                async with asyncio.timeout(CALL_DEADLINE):
                    await self._consumer.commit(moved)
                for place, offset in moved.items():
                    known[place].committed = offset
            except (KafkaError, TimeoutError) as error:
                # Whoever has the partitions now goes on at the older position: an event may come twice.
                failure, pause = type(error).__name__, _BROKER_PAUSE
                log.warning("event=forward_commit_failed destination=%s error=%s", self.name, failure)
            self._commit_at = time.monotonic() + pause
