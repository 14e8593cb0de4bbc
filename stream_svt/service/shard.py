"""One shard on one worker: session after session, until its partition is assigned to another worker.

A rebalance revokes every partition of every worker. A session publishes what is charged and stands by (`hold`); where
the partition stays, it goes on after a transaction that nobody could have let through but its producer (`release`).
No session begins while a rebalance is under way; one that was being opened goes on, as its own transactions tell
whether it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from stream_svt.errors import (
    ApplicationClosed,
    BrokerError,
    RecordsLost,
    StreamSvtError,
    TimestampAhead,
    UnreadableState,
)
from stream_svt.protocol.controls import heard
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Record, Stopped
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.shard_states import OPEN, Cause, ShardSignal, ShardState, ShardStatus
from stream_svt.service import kafka, remedy
from stream_svt.service.config import Config
from stream_svt.service.event_loop import collect_soon, free_gradually, pause, wait_first
from stream_svt.service.kafka import Cluster
from stream_svt.service.metrics import Metrics
from stream_svt.service.ports import Requests, ShardFeed, journal_of, verifier_of
from stream_svt.service.remedy import Survey, classify
from stream_svt.service.workload import AppliedWorkload

log = logging.getLogger(__name__)

CLOCK = Clock(now=time.monotonic, epoch=time.time, sleep=pause)

BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before opening again while brokers are away: once they are back, alerts should not come late."""
UNEXPECTED_BACKOFF = (*BACKOFF, 10.0, 20.0, 30.0)
"""The same after an error that nobody expected: each time the whole state is read again."""
SURVEY_EVERY = 5
"""Failures of which one is followed by a look whether the topics are there."""
STEADY = 30.0
"""Seconds a session runs, once open, before its predecessor's failures are forgotten."""
FENCED_PAUSE = 0.5
"""Seconds before whoever was fenced asks whether it is a member still."""
STUCK = 120.0
"""Seconds without a sign of life after which the watchdog starts a shard anew."""
CANCEL_TIMEOUT = 5.0
"""Seconds that a hand-over waits for a session that was cut short."""
SURVEY_INTERVALS = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Seconds between looks of a parked shard, one after the other; the last one for ever."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What shards and their group get from the worker; each session calls ``workload``.

    ``request_self_test`` is called where the worker may be the cause of a fault, ``on_broker_time`` with the brokers'
    time of each commit.
    """

    config: Config
    cluster: Cluster
    cluster_id: str
    metrics: Metrics
    workload: Callable[[], AppliedWorkload]
    request_self_test: Callable[[], None]
    on_broker_time: Callable[[float], None]


class Shard:
    """Owns a partition, by its ``number``, on behalf of a worker, until it is ``handed_over``.

    ``member`` is the worker's consumer in the group.
    """

    def __init__(self, number: int, parts: WorkerParts, member: Any) -> None:  # noqa: ANN401  aiokafka has no types
        self.number = number
        self.status = ShardStatus(number, beat=time.monotonic())
        self.handed_over = False
        self._parts = parts
        self._member = member
        self._topics = parts.config.topics
        self._verify = verifier_of(parts.config, parts.cluster_id, self._topics.control, number)
        self._requests = Requests()
        self._failures = self._surveys = 0
        self._control_offset: int | None = None
        self._proved = False
        self._task: asyncio.Task[None] | None = None

    # What the group asks for

    @property
    def held(self) -> bool:
        """Whether a rebalance is under way."""
        return self._requests.held.is_set()

    def start(self) -> None:
        """Begin; returns at once."""
        self._beat()
        self._task = asyncio.create_task(self._run(), name=f"shard-{self.number}")

    def hold(self) -> None:
        """Step nothing more once what is charged is published: a rebalance has begun. `settle` waits for it."""
        self._requests.ask()

    async def settle(self, seconds: float) -> bool:
        """Wait until nothing is stepped any more; return whether that came in time."""
        if self._task is None:
            return True
        quiet = self._requests.quiet
        await wait_first(self._task, quiet.wait(), seconds=seconds)
        return self._task.done() or quiet.is_set()

    def release(self) -> None:
        """Go on: the rebalance left the partition here."""
        self._beat()
        self._requests.release()

    def halt(self) -> None:
        """Ask to hand over, for good; `stop` waits for it."""
        self.handed_over = True
        self._requests.stop.set()

    async def stop(self, seconds: float) -> None:
        """Finish the transaction in flight, publish what is charged, and end; cut short after ``seconds``."""
        self.halt()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        if not done:
            log.error("event=shard_stop_timeout shard=%d seconds=%.1f", self.number, seconds)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_TIMEOUT)

    def configure(self) -> None:
        """End the session at a barrier and begin another with the workload then configured."""
        if self.status.state in OPEN:
            self.status.signal(ShardSignal.APPLIED)
        self._requests.stop.set()

    async def restart(self) -> None:
        """Begin anew whatever state the shard is in: the watchdog's remedy.

        Not beside a session that is still being given up, nor once the partition is handed over: that can happen
        while this waits, and nobody would ever end what began then.
        """
        self._parts.metrics.count("failures_total", "stuck")
        if self._task is not None:
            self._task.cancel()
            ended, _ = await asyncio.wait({self._task}, timeout=kafka.START_DEADLINE)
            if not ended:
                return
        if not self.handed_over:
            self.start()

    # One session after another

    async def _run(self) -> None:
        kafka.on_answer.set(self._beat)
        while not self.handed_over:
            self._requests.stop.clear()
            if self.held:
                await self._requests.wait(self._requests.free.wait())
                continue
            try:
                workload = self._parts.workload()
                failure = await self._run_session(workload)
                self._beat()  # failing again and again while brokers are away is not being stuck
                if failure is not None and not self.handed_over:
                    await self._handle_failure(failure, workload)
            except Exception as error:  # noqa: BLE001  nothing but a stop ends a shard
                log.error("event=shard_error shard=%d error=%r", self.number, describe(error))  # noqa: TRY400
                await self._wait(BACKOFF[-1])
        self.status.signal(ShardSignal.STOPPED)

    async def _run_session(self, workload: AppliedWorkload) -> Exception | None:
        """Hold the shard for one session; return what ended it, None where it was told to end."""
        journal, feed = self._journal(), self._feed(workload)
        session = ShardSession(
            shard=self.number,
            feed=feed,
            journal=journal,
            workload=workload,
            control=self._topics.control,
            policy=self._parts.config.commit,
            start_at=self._topics.start_at,
            clock=CLOCK,
            observer=self._parts.metrics,
            status=self.status,
            verify=self._verify,
        )
        opened: float | None = None
        # Ended last first; an error of one step keeps none of the others from being done.
        async with contextlib.AsyncExitStack() as ending:
            ending.callback(collect_soon)
            ending.callback(self._requests.quiet.set)
            ending.push_async_callback(journal.close)
            ending.push_async_callback(feed.close)
            ending.callback(lambda: free_gradually(session.end()))
            try:
                await session.open()
                opened = time.monotonic()
                self._control_offset = None  # the session goes by its state
                self._requests.quiet.clear()
                await session.run()
                self._failures = self._surveys = 0
            except Stopped:
                pass
            except (KafkaError, OSError, TimeoutError) as error:
                return kafka.explain(error, f"shard {self.number}: reading")
            except Exception as error:  # noqa: BLE001  sorted by kind in `classify`
                return error
            finally:
                self._proved = journal.proved
                # Opening a large state takes longer than `STEADY`, and may fail at its end each time.
                if opened is not None and time.monotonic() - opened > STEADY:
                    self._failures = self._surveys = 0
        return None

    def _feed(self, workload: AppliedWorkload) -> ShardFeed:
        return ShardFeed(self._parts.cluster, self.number, workload.partitions, self._requests)

    def _journal(self) -> Journal:
        parts = self._parts
        return journal_of(
            parts.config,
            parts.cluster,
            parts.cluster_id,
            self.number,
            on_broker_time=parts.on_broker_time,
            give_way=yield_to_loop,
        )

    async def _handle_failure(self, failure: Exception, workload: AppliedWorkload) -> None:
        """Do what follows a failed session; see `stream_svt.service.remedy`."""
        signal, cause = classify(failure)
        if cause in remedy.MAYBE_LOCAL:
            self._parts.request_self_test()
        if signal is ShardSignal.PARKED:
            await self._park(failure, cause, workload)
        elif cause is not Cause.FENCED:
            await self._retry(failure, cause, workload)
        else:
            self.status.signal(signal, cause, "another owner took the shard over")
            self._parts.metrics.count("failures_total", "fenced")
            log.warning("event=fenced shard=%d", self.number)
            await self._wait(FENCED_PAUSE)
            await self._prove_membership()

    async def _retry(self, failure: Exception, cause: Cause, workload: AppliedWorkload) -> None:
        """Wait a little longer each time; a topic that is gone only looks like brokers that do not answer."""
        reason, unexpected = describe(failure), cause is Cause.ERROR
        self.status.signal(ShardSignal.FAILED, cause, reason)
        self._parts.metrics.count("failures_total", "error" if unexpected else "unavailable")
        if unexpected:
            log.error("event=shard_error shard=%d error=%r", self.number, reason)
        else:
            log.warning("event=shard_retry shard=%d error=%r", self.number, reason)
        if cause is Cause.UNAVAILABLE and self._failures % SURVEY_EVERY == 1:
            around = await self._survey()
            if around is not None and around.faults:
                kind = kafka.TopicMissing if around.missing else kafka.Denied
                refusal = kind(f"shard {self.number}: {'; '.join(around.faults)}")
                await self._park(refusal, classify(refusal)[1], workload)
                return
        backoff = UNEXPECTED_BACKOFF if unexpected else BACKOFF
        await self._wait(backoff[min(self._failures, len(backoff) - 1)])
        self._failures += 1

    # Parked

    async def _park(self, failure: Exception, cause: Cause, workload: AppliedWorkload) -> None:
        """Do nothing until something has changed that may mend the shard."""
        reason = describe(failure)
        around = await self._survey()  # before others see it parked: from then on it hears every command
        self.status.signal(ShardSignal.PARKED, cause, reason)
        self._parts.metrics.count("failures_total", "parked")
        log.critical("event=shard_parked shard=%d cause=%s error=%r", self.number, cause, reason)
        passes_at = failure.passes_at if isinstance(failure, TimestampAhead) else math.inf
        unproved = cause in remedy.UNPROVED and not self._proved
        feed = self._feed(workload)
        before: Survey | None = None
        try:
            while True:
                self._requests.stop.clear()
                if self.handed_over:
                    return
                if self._parts.workload() is not workload or CLOCK.epoch() >= passes_at:
                    break
                try:
                    if around is not None:
                        # The first look, too, at a state that may have been mended while it was read.
                        if unproved and around != before and await self._state_proves():
                            break
                        allowed = cause in remedy.REFUSED_BY_BROKERS and not around.faults
                        if not unproved and before is not None and (around != before or allowed):
                            break
                        before = around
                    records = await self._await_commands(feed, around)
                    if records and (not unproved or await self._follow_commands(records)):
                        break
                    around = await self._survey()
                except Exception as error:  # noqa: BLE001  whatever it is, the shard stays parked
                    log.error("event=shard_error shard=%d error=%r", self.number, describe(error))  # noqa: TRY400
                    await self._wait(BACKOFF[-1])
        finally:
            await feed.close()
        await self._prove_membership()
        log.info("event=shard_opens_again shard=%d", self.number)

    async def _survey(self) -> Survey | None:
        """Return what can be seen around the shard, None where nobody says."""
        self._beat()
        queries = self._parts.workload().topics
        try:
            around = await remedy.survey(self._parts.cluster, self.number, self._topics, queries)
        except BrokerError as error:
            log.warning("event=look_failed shard=%d error=%r", self.number, str(error))
            return None
        if self._control_offset is None:
            self._control_offset = around.control_end
        return around

    async def _state_proves(self) -> bool:
        """Read the state again, without a producer; return whether to open the shard: it proves, or is closed."""
        try:
            await self._journal().look(beside_alerts=True)
        except ApplicationClosed:
            return True
        except UnreadableState:
            return False
        return True

    async def _follow_commands(self, records: Sequence[Record]) -> bool:
        """Give the state up where a record asks for it; return whether to open the shard now."""
        await self._prove_membership()
        if self.handed_over:
            return False
        for record in records:
            await self._give_up(record)
        return self.status.state is not ShardState.PARKED or await self._state_proves()

    async def _give_up(self, record: Record) -> None:
        command = heard(record, self._verify)
        if isinstance(command, str) or not command.gives_up:
            return
        journal = self._journal()
        try:
            await journal.give_up(command)
        except StreamSvtError as error:
            told = (self.number, command.action, str(error))
            log.warning("event=command_refused shard=%d action=%s error=%r", *told)
        else:
            log.critical("event=shard_closed shard=%d successor=%s", self.number, command.successor)
        finally:
            await journal.close()

    async def _await_commands(self, feed: ShardFeed, around: Survey | None) -> Sequence[Record]:
        """Wait for the next look, or for records on the control partition, which are returned."""
        control = self._topics.control
        until = time.monotonic() + SURVEY_INTERVALS[min(self._surveys, len(SURVEY_INTERVALS) - 1)]
        self._surveys += 1
        try:
            if around is not None and around.control_end is not None and self._control_offset is not None:
                feed.seek(control, self._control_offset)
                records = (await feed.fetch([control], until - time.monotonic())).get(control, [])
                if records:
                    log.info("event=woken shard=%d offset=%d", self.number, records[-1].offset)
                    self._control_offset, self._surveys = records[-1].offset + 1, 0
                return records
        except Stopped:
            return ()
        except RecordsLost:  # the control topic was made anew
            self._control_offset = None
        except (BrokerError, KafkaError) as error:
            reason = str(kafka.explain(error, "listening"))
            log.warning("event=look_failed shard=%d error=%r", self.number, reason)
        await self._wait(until - time.monotonic())
        return ()

    # Membership

    async def _prove_membership(self) -> None:
        """Return once this worker has shown to be a member, or was told to stop: a stranger would fence the owner."""
        while not self.handed_over:
            self._beat()
            self._requests.stop.clear()  # another version takes effect with the next session
            if self.held:
                await self._requests.wait(self._requests.free.wait())
                continue
            try:
                if await self._is_member():
                    return
            except BrokerError:
                await self._wait(FENCED_PAUSE)
                continue
            log.warning("event=not_member shard=%d", self.number)
            self.status.signal(ShardSignal.DISOWNED)
            # The group's next word decides.
            await self._requests.wait(self._requests.held.wait(), seconds=kafka.CALL_DEADLINE)

    async def _is_member(self) -> bool:
        """Commit a group offset: only a member may."""
        partition = TopicPartition(self._topics.control, self.number)
        async with kafka.deadline(kafka.CALL_DEADLINE, f"shard {self.number}: proving group membership"):
            try:
                await self._member.commit({partition: OffsetAndMetadata(0, "")})
            except (CommitFailedError, IllegalStateError):
                return False
        return True

    async def _wait(self, seconds: float) -> None:
        await self._requests.wait(seconds=seconds)

    def _beat(self) -> None:
        self.status.beat = time.monotonic()


async def yield_to_loop() -> None:
    """Wait for the shard's turn between two pieces of work; that one was done is a sign of life."""
    kafka.on_answer.get()()
    await pause()


def describe(error: BaseException) -> str:
    """Return what may be said about an error: of one not ours kind and place, for its text could hold a value."""
    if isinstance(error, StreamSvtError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}{where}; please report it"
