"""One shard on one worker: session after session, until its partition is assigned to another worker.

A rebalance revokes every partition of every worker. A session publishes what is charged and stands by (`hold`); where
the partition stays, it goes on after a transaction that nobody could have let through but its producer (`release`).
No session begins while a rebalance is under way; one that was being opened goes on, as its own transactions tell
whether it may.

What ends a session decides what follows:

=======================  =====================================================================================
fenced, partition gone   prove group membership; a member opens again, anybody else waits for the next rebalance
what may pass            open again, later and later, for ever
records lost             park inside the next session, with the state proved, for `accept-loss`
what cannot mend itself  park: look again when woken or after a while, open once something has changed
=======================  =====================================================================================

`stream_svt.service.remedy` decides which; no error of a shard ends anything but its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from stream_svt.errors import BrokerError, StreamSvtError, TimestampAhead
from stream_svt.protocol.controls import Verify
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Stopped
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.session_parts import CommitPolicy, SessionParts, ShardStatus
from stream_svt.protocol.shard_states import OPEN, Cause, Signal
from stream_svt.protocol.state_reader import Topics
from stream_svt.service.garbage import collect_soon, let_go
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    Cluster,
    Denied,
    Fenced,
    TopicMissing,
    deadline,
    explain,
    on_answer,
)
from stream_svt.service.metrics import Metrics
from stream_svt.service.parked import Parking, Surroundings, look_around
from stream_svt.service.query_consumer import QueryConsumer
from stream_svt.service.remedy import Decision, Remedy, classify
from stream_svt.service.shard_feed import Hold, ShardFeed
from stream_svt.service.turns import rest
from stream_svt.service.workload import Workload

log = logging.getLogger(__name__)

CLOCK = Clock(now=time.monotonic, epoch=time.time, sleep=rest)
BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before opening again while brokers are away: once they are back, alerts should not come late."""
UNEXPECTED_BACKOFF = (*BACKOFF, 10.0, 20.0, 30.0)
"""The same after an error that nobody expected: each time the whole state is read again."""
REFUSAL_EVERY = 5
"""Failures of which one is followed by a look whether the topics are there."""
STEADY = 30.0
"""Seconds a session runs, once open, before its predecessor's failures are forgotten."""
STUCK = 120.0
"""Seconds without a sign of life after which the watchdog starts a shard anew."""
CUT_SHORT = 5.0
"""Seconds that a hand-over waits for a session that was cut short."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all shards of a worker share. What is a function is asked at every session.

    Attributes:
        cluster, consumer, queries: The brokers, the worker's group consumer, and its consumer of query
            topics.
        control, written: Name of the control topic, and names of the topics that journals write.
        make_journal: Returns a journal for a shard, not opened.
        workload, policy: Return what to run, and how often to commit.
        verify: Returns what tells a shard which commands to hear.
        suspect: Told where a fault may be the worker's own.
    """

    cluster: Cluster
    consumer: AIOKafkaConsumer
    queries: QueryConsumer
    control: str
    written: Topics
    metrics: Metrics
    make_journal: Callable[[int], Journal]
    workload: Callable[[], Workload]
    policy: Callable[[], CommitPolicy]
    verify: Callable[[int], Verify]
    suspect: Callable[[], None]


class Shard:
    """Owns a partition, by its ``number``, on behalf of a worker."""

    def __init__(self, number: int, parts: WorkerParts) -> None:
        self.number = number
        self.status = ShardStatus(number, beat=time.monotonic())
        self._parts = parts
        self._halt = asyncio.Event()
        self._rebalance = Hold()
        self._reader: ShardFeed | None = None
        self._stopping = False
        self._handed_over = False
        self._failures = self._looks = 0
        self._tried: Workload | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def handed_over(self) -> bool:
        """Whether the partition goes elsewhere; never false again."""
        return self._handed_over

    @property
    def held(self) -> bool:
        """Whether a rebalance is under way."""
        return self._rebalance.held.is_set()

    def start(self, after: Shard | None = None) -> None:
        """Begin, once an earlier owner of the partition in this worker has ended; returns at once."""
        self._stopping = False
        self._halt.clear()
        self._beat()
        earlier = None if after is None else after._task  # noqa: SLF001
        self._task = asyncio.create_task(self._run(earlier), name=f"shard-{self.number}")
        self._task.add_done_callback(self._ended)

    def hold(self) -> None:
        """Step nothing more once what is charged is published: a rebalance has begun. `settle` waits for it."""
        self._rebalance.ask()

    async def settle(self, seconds: float) -> bool:
        """Wait until nothing is stepped any more; return whether that came in time."""
        if self._task is None:
            return True
        quiet = asyncio.ensure_future(self._rebalance.quiet.wait())
        done, _ = await asyncio.wait(
            {self._task, quiet}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        quiet.cancel()
        return bool(done)

    def release(self) -> None:
        """Go on: the rebalance left the partition here."""
        self._beat()
        self._rebalance.release()

    def halt(self) -> None:
        """Ask to hand over, for good; `stop` waits for it."""
        self._handed_over = self._stopping = True
        self._halt.set()

    async def stop(self, seconds: float) -> None:
        """Finish the transaction in flight, publish what is charged, and end; cut short after ``seconds``."""
        self.halt()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        if not done:
            log.error("event=shard_stop_timeout shard=%d seconds=%.1f", self.number, seconds)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CUT_SHORT)

    def configure(self) -> None:
        """End the session at a barrier and begin another with the workload then configured."""
        if self.status.state in OPEN:
            self.status.signal(Signal.APPLIED)
        self._halt.set()

    async def restart(self) -> None:
        """Begin anew whatever state the shard is in: the watchdog's remedy.

        Not beside a session that is still being given up, nor once the partition is handed over: that can happen
        while this waits, and nobody would ever end what began then.
        """
        self._parts.metrics.failed(self.number, "stuck")
        if self._task is not None:
            self._stopping = True
            self._halt.set()
            self._task.cancel()
            ended, _ = await asyncio.wait({self._task}, timeout=START_DEADLINE)
            if not ended:
                return
        if not self._handed_over:
            self.start()

    def _beat(self) -> None:
        self.status.beat = time.monotonic()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # The watchdog starts the shard anew.
            log.error("event=shard_ended shard=%d error=%r", self.number, describe(error))

    async def _run(self, earlier: asyncio.Task[None] | None) -> None:
        on_answer.set(self._beat)
        if earlier is not None:
            await asyncio.wait({earlier}, timeout=START_DEADLINE)
        while not self._stopping:
            self._halt.clear()
            if self.held:
                await self._either(self._rebalance.free)
                continue
            try:
                failure = await self._hold()
                self._beat()  # failing again and again while brokers are away is not being stuck
                if failure is None or self._stopping:
                    continue
                if not await self._go_on(failure):
                    return
            except Exception as error:  # noqa: BLE001  nothing but a stop ends a shard
                log.error("event=shard_error shard=%d error=%r", self.number, describe(error))  # noqa: TRY400
                await self._wait(BACKOFF[-1])
        self.status.signal(Signal.STOPPED)

    async def _hold(self) -> Exception | None:
        """Hold the shard for one session; return what ended it, None where it was told to end."""
        journal = self._parts.make_journal(self.number)
        session = self._session(journal)
        opened: float | None = None
        try:
            await session.open()
            opened = time.monotonic()
            self._rebalance.quiet.clear()
            await session.run()
            self._failures = self._looks = 0
        except Stopped:
            pass
        except IllegalStateError:
            # Opening again would fence whoever the partition was given to, and end here again.
            return Fenced(f"shard {self.number}: its partition is not assigned to this worker any more")
        except (KafkaError, OSError, TimeoutError) as error:
            return explain(error, f"shard {self.number}: reading")
        except Exception as error:  # noqa: BLE001  sorted by kind in `classify`
            return error
        finally:
            # Opening a large state takes longer than `STEADY`, and may fail at its end each time.
            if opened is not None and time.monotonic() - opened > STEADY:
                self._failures = self._looks = 0
            await self._put_down(session, journal)
        return None

    async def _put_down(self, session: ShardSession, journal: Journal) -> None:
        """End what a session held, last first; an error of one step keeps none of the others from being done."""
        async with contextlib.AsyncExitStack() as steps:
            steps.callback(collect_soon)
            steps.callback(self._rebalance.quiet.set)
            steps.push_async_callback(journal.close)
            steps.callback(self._close_feed)
            let_go(session.end())

    def _feed(self) -> ShardFeed:
        parts = self._parts
        self._reader = ShardFeed(
            parts.cluster,
            parts.consumer,
            parts.queries,
            self.number,
            parts.control,
            self._halt,
            self._rebalance,
        )
        return self._reader

    def _session(self, journal: Journal) -> ShardSession:
        self._tried = self._parts.workload()
        parts = SessionParts(
            shard=self.number,
            feed=self._feed(),
            journal=journal,
            workload=self._tried,
            control=self._parts.control,
            policy=self._parts.policy(),
            clock=CLOCK,
            observer=self._parts.metrics,
            status=self.status,
            verify=self._parts.verify(self.number),
        )
        return ShardSession(parts)

    def _close_feed(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.close()

    async def _go_on(self, failure: Exception) -> bool:
        """Do what follows a failed session; return whether another one may begin."""
        decision = classify(failure)
        if decision.local:
            self._parts.suspect()
        match decision.remedy:
            case Remedy.STEP_BACK:
                return await self._step_back()
            case Remedy.PARK:
                return await self._park(failure, decision.cause)
        return await self._retry(failure, decision)

    async def _retry(self, failure: Exception, decision: Decision) -> bool:
        """Wait a little longer each time; a topic that is gone only looks like brokers that do not answer."""
        cause, reason = decision.cause, describe(failure)
        self.status.signal(Signal.FAILED, cause, reason)
        unexpected = cause is Cause.ERROR
        self._parts.metrics.failed(self.number, "error" if unexpected else "unavailable")
        if unexpected:
            log.error("event=shard_error shard=%d error=%r", self.number, reason)
        else:
            log.warning("event=shard_retry shard=%d error=%r", self.number, reason)
        again = cause is Cause.UNAVAILABLE and self._failures % REFUSAL_EVERY == 1
        if again and (refusal := await self._refusal()) is not None:
            return await self._park(refusal, classify(refusal).cause)
        backoff = UNEXPECTED_BACKOFF if unexpected else BACKOFF
        await self._wait(backoff[min(self._failures, len(backoff) - 1)])
        self._failures += 1
        return True

    async def _look_around(self) -> Surroundings:
        return await look_around(
            self._parts.cluster,
            self.number,
            queries=self._parts.workload().topics,
            control=self._parts.control,
            own=(self._parts.written.state, self._parts.written.alerts),
        )

    async def _refusal(self) -> BrokerError | None:
        """Return why the shard's topics cannot be read, None where they can, or where nobody says."""
        with contextlib.suppress(BrokerError):
            around = await self._look_around()
            if around.faults:
                kind = TopicMissing if around.missing else Denied
                return kind(f"shard {self.number}: {'; '.join(around.faults)}")
        return None

    async def _park(self, failure: Exception, cause: Cause) -> bool:
        """Do nothing until something has changed that may mend the shard; return whether it is still this worker's."""
        reason = describe(failure)
        self.status.signal(Signal.PARKED, cause, reason)
        self._parts.metrics.failed(self.number, "parked")
        log.critical("event=shard_parked shard=%d cause=%s error=%r", self.number, cause, reason)
        tried = self._tried
        parking = Parking(
            shard=self.number,
            cause=cause,
            feed=self._feed(),
            control=self._parts.control,
            halt=self._halt,
            look=self._look_around,
            journal=lambda: self._parts.make_journal(self.number),
            reconfigured=lambda: self._parts.workload() is not tried,
            passed=lambda: isinstance(failure, TimestampAhead) and CLOCK.epoch() >= failure.passes_at,
            verify=self._parts.verify(self.number),
            beat=self._beat,
            looks=self._looks,
        )
        try:
            return await self._until_mended(parking)
        finally:
            self._close_feed()

    async def _until_mended(self, parking: Parking) -> bool:
        while not self._stopping:
            self._halt.clear()
            try:
                await parking.until_mended()
                log.info("event=shard_opens_again shard=%d", self.number)
                self._looks = parking.looks
                break
            except Stopped:
                continue
            except IllegalStateError:  # as in _hold
                return await self._step_back()
            except Exception as error:  # noqa: BLE001  whatever it is, the shard stays parked
                log.error("event=shard_error shard=%d error=%r", self.number, describe(error))  # noqa: TRY400
                await self._wait(BACKOFF[-1])
        return True

    async def _step_back(self) -> bool:
        """Leave the shard alone unless it is this worker's; return whether it is."""
        self.status.signal(
            Signal.FAILED, Cause.FENCED, "another owner took the shard over, or its partition is gone"
        )
        self._parts.metrics.failed(self.number, "fenced")
        log.warning("event=fenced shard=%d", self.number)
        return await self._prove_membership()

    async def _prove_membership(self) -> bool:
        """Commit a group offset: only a member may. A shard that is none's would fence its rightful owner."""
        place = TopicPartition(self._parts.control, self.number)
        while not self._stopping:
            self._beat()
            self._halt.clear()  # another version takes effect with the next session
            await self._wait(0.5)
            if self.held:
                await self._either(self._rebalance.free)
                continue
            try:
                if await self._is_member(place):
                    return True
            except BrokerError:
                continue
            log.warning("event=not_member shard=%d", self.number)
            self.status.signal(Signal.DISOWNED)
            await self._either(self._rebalance.held, CALL_DEADLINE)  # the group's next word decides
        return False

    async def _is_member(self, place: TopicPartition) -> bool:
        async with deadline(CALL_DEADLINE, f"shard {self.number}: proving group membership"):
            try:
                await self._parts.consumer.commit({place: OffsetAndMetadata(0, "")})
            except (CommitFailedError, IllegalStateError):
                return False
        return True

    async def _either(self, event: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for an event, at most so long, or to be told to end."""
        waits = [asyncio.ensure_future(awaited.wait()) for awaited in (event, self._halt)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._halt.wait()


def describe(error: BaseException) -> str:
    """Return what may be said about an error.

    Of one that is not ours only kind and place, for its text could hold a value.
    """
    if isinstance(error, StreamSvtError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}{place}; please report it"
