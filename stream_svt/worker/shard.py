"""One shard on one worker: runs sessions one after the other, until its partition is assigned to another worker.

A rebalance revokes all partitions of all workers. A session then publishes charged events and pauses (`hold`). If
the partition stays, the session resumes (`release`) after a transaction that succeeds only for the current producer.
No session begins during a rebalance; an opening in progress continues, because its transactions fail once another
worker owns the shard.
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

from stream_svt.application.config import Config
from stream_svt.errors import (
    ApplicationClosed,
    BrokerError,
    CommandRefused,
    RecordsLost,
    StreamSvtError,
    TimestampAhead,
    UnreadableState,
)
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.monitor.operations import utc
from stream_svt.protocol.controls import decode_command
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Stopped
from stream_svt.protocol.records import Record
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.shard_states import OPEN, Cause, ShardSignal, ShardState, ShardStatus
from stream_svt.worker import failures
from stream_svt.worker.event_loop import ahead, collect_soon, pause, wait_first
from stream_svt.worker.failures import Survey, classify
from stream_svt.worker.metrics import Metrics
from stream_svt.worker.observer import CommitObserver
from stream_svt.worker.ports import Requests, ShardFeed, journal_of, verifier_of
from stream_svt.worker.workload import AppliedWorkload

log = logging.getLogger(__name__)

CLOCK_TOLERANCE = 600.0
"""Seconds that the worker's clock may differ from the brokers'."""
CLOCK = Clock(now=time.monotonic, epoch=time.time, sleep=pause, ahead=ahead)

BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each retry while brokers are unreachable; short, so that alerts are on time once brokers are
back."""
UNEXPECTED_BACKOFF = (*BACKOFF, 10.0, 20.0, 30.0)
"""Seconds before each retry after an unexpected error; longer, because each retry reads the whole state."""
SURVEY_EVERY = 5
"""One failure in this number is followed by a survey: a missing topic looks like unreachable brokers."""
STEADY = 30.0
"""Seconds that a session runs, once open, before the count of failures is reset."""
FENCED_PAUSE = 0.5
"""Seconds from being fenced to the check of the own membership."""
STUCK = 120.0
"""Seconds without progress after which the watchdog restarts a shard."""
CANCEL_TIMEOUT = 5.0
"""Seconds that a hand-over waits for a cancelled session."""
FIRST_SURVEY = 2.0
"""Longest time, in seconds, by which a survey delays the report that a shard is parked."""
SURVEY_INTERVALS = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Seconds between the surveys of a parked shard; the last one repeats."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Parts of a worker that its shards and group use; each session calls ``workload``.

    ``request_self_test`` is called if the worker may be the cause of a fault, ``on_broker_time`` with the brokers'
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
    """Owns the partition ``number`` on behalf of a worker, until it is ``handed_over``; its task starts at once.

    ``member`` is the worker's consumer in the group.
    """

    def __init__(self, number: int, parts: WorkerParts, member: Any) -> None:  # noqa: ANN401  aiokafka has no types
        self.number = number
        self.status = ShardStatus(number)
        self.handed_over = False
        self._parts = parts
        self._member = member
        self._topics = parts.config.topics
        self._verify = verifier_of(parts.config, parts.cluster_id, self._topics.control, number)
        self._requests = Requests()
        self._failures = self._surveys = 0
        self._control_offset: int | None = None
        self._proved = False
        self._start()

    # Requests of the group

    @property
    def held(self) -> bool:
        """Whether a rebalance is in progress."""
        return self._requests.held.is_set()

    async def hold(self, seconds: float) -> bool:
        """Have the session publish charged events and pause; return whether it did so within ``seconds``."""
        self._requests.hold()
        paused = self._requests.paused
        await wait_first(self._task, paused.wait(), seconds=seconds)
        return self._task.done() or paused.is_set()

    def release(self) -> None:
        """Resume: the partition stays with this worker."""
        self._beat()
        self._requests.release()

    async def stop(self, seconds: float) -> None:
        """Finish the transaction in flight, publish charged events, and end permanently; cancel after ``seconds``."""
        self.handed_over = True
        self._requests.end()
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        if not done:
            log.error("event=shard_stop_timeout shard=%d seconds=%.1f", self.number, seconds)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_TIMEOUT)

    def configure(self) -> None:
        """End the session at a barrier; the next one uses the workload configured then."""
        if self.status.state in OPEN:
            self.status.signal(ShardSignal.APPLIED)
        self._requests.end()

    async def restart(self) -> None:
        """Cancel the task of the shard and start another, unless the cancelled one still runs; for the watchdog."""
        self._parts.metrics.count("failures_total", "stuck")
        self._task.cancel()
        ended, _ = await asyncio.wait({self._task}, timeout=kafka.START_DEADLINE)
        if ended and not self.handed_over:  # during the wait the group may have ended the shard
            self._start()

    # Sessions

    def _start(self) -> None:
        self._beat()
        self._task = asyncio.create_task(self._run(), name=f"shard-{self.number}")

    async def _run(self) -> None:
        kafka.on_answer.set(self._beat)
        while not self.handed_over:
            self._requests.stop.clear()
            if self.held:
                await self._requests.wait(self._requests.released.wait())
                continue
            try:
                workload = self._parts.workload()
                failure = await self._run_session(workload)
                self._beat()  # a shard whose sessions fail repeatedly is not stuck
                if failure is not None and not self.handed_over:
                    await self._handle_failure(failure, workload)
            except Exception as error:  # noqa: BLE001  only a stop ends a shard
                log.error("event=shard_error shard=%d error=%r", self.number, describe(error))  # noqa: TRY400
                await self._wait(BACKOFF[-1])
        self.status.signal(ShardSignal.STOPPED)

    async def _run_session(self, workload: AppliedWorkload) -> Exception | None:
        """Run one session; return the error that ended it, None after a stop request."""
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
            observer=CommitObserver(self.number, self._parts.metrics),
            status=self.status,
            verify=self._verify,
        )
        opened: float | None = None
        # The last callback runs first; an error of one does not prevent the others.
        async with contextlib.AsyncExitStack() as ending:
            ending.callback(collect_soon)
            ending.callback(self._requests.paused.set)
            ending.push_async_callback(journal.close)
            ending.push_async_callback(feed.close)
            ending.callback(session.end)
            try:
                await session.open()
                opened = time.monotonic()
                self._control_offset = None  # the session reads commands from the offset in its state
                self._requests.paused.clear()
                await session.run()
                self._failures = self._surveys = 0
            except Stopped:
                pass
            except (KafkaError, OSError, TimeoutError) as error:
                return kafka.explain(error, f"shard {self.number}: reading")
            except Exception as error:  # noqa: BLE001  `classify` tells kinds apart
                return error
            finally:
                self._proved = journal.proved
                # Counted from the end of the opening, which alone may take longer than `STEADY` and then fail.
                if opened is not None and time.monotonic() - opened > STEADY:
                    self._failures = self._surveys = 0
        return None

    def _feed(self, workload: AppliedWorkload | None = None) -> ShardFeed:
        columns = {} if workload is None else workload.text_topics
        counts = frozenset[str]() if workload is None else workload.declared.counts_topics()
        place = self.number, self._topics.partitions
        return ShardFeed(self._parts.cluster, *place, self._requests, columns, counts)

    def _journal(self) -> Journal:
        parts = self._parts
        of_shard = (parts.config, parts.cluster, parts.cluster_id, self.number)
        return journal_of(*of_shard, on_broker_time=parts.on_broker_time, yield_to_loop=yield_to_loop)

    async def _handle_failure(self, failure: Exception, workload: AppliedWorkload) -> None:
        """Park the shard, wait, or prove membership after a failed session; see `stream_svt.worker.failures`."""
        signal, cause = classify(failure)
        if cause in failures.MAYBE_LOCAL:
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
        """Wait, longer after each failure; park the shard if a survey finds a topic missing or refused."""
        reason, unexpected = describe(failure), cause is Cause.ERROR
        self.status.signal(ShardSignal.FAILED, cause, reason)
        self._parts.metrics.count("failures_total", "error" if unexpected else "unavailable")
        if unexpected:
            log.error("event=shard_error shard=%d error=%r", self.number, reason)
        else:
            log.warning("event=shard_retry shard=%d error=%r", self.number, reason)
        if cause is Cause.UNAVAILABLE and self._failures % SURVEY_EVERY == 1:
            survey = await self._survey()
            if survey is not None and survey.faults:
                kind = kafka.TopicMissing if survey.missing else kafka.Denied
                refusal = kind(f"shard {self.number}: {'; '.join(survey.faults)}")
                await self._park(refusal, classify(refusal)[1], workload)
                return
        backoff = UNEXPECTED_BACKOFF if unexpected else BACKOFF
        await self._wait(backoff[min(self._failures, len(backoff) - 1)])
        self._failures += 1

    # Parked

    async def _park(self, failure: Exception, cause: Cause, workload: AppliedWorkload) -> None:
        """Wait until a change may have removed the cause of the failure."""
        reason = describe(failure)
        survey: Survey | None = None
        with contextlib.suppress(Exception):  # the next survey reports it
            # Before the state is reported, so that no later command is missed; slow brokers do not delay it.
            async with asyncio.timeout(FIRST_SURVEY):
                survey = await self._survey()
        if not self.handed_over:
            self.status.signal(ShardSignal.PARKED, cause, reason)
            self._parts.metrics.count("failures_total", "parked")
            log.critical("event=shard_parked shard=%d cause=%s error=%r", self.number, cause, reason)
        passes_at = failure.passes_at if isinstance(failure, TimestampAhead) else math.inf
        unproved = cause in failures.UNPROVED and not self._proved
        feed = self._feed()
        before: Survey | None = None
        try:
            while True:
                self._requests.stop.clear()
                if self.handed_over:
                    return
                if self._parts.workload() is not workload or CLOCK.epoch() >= passes_at:
                    break
                try:
                    if survey is not None:
                        # Also after the first survey: the state may have been repaired since it was read.
                        if unproved and survey != before and await self._state_proves():
                            break
                        allowed = cause in failures.REFUSED_BY_BROKERS and not survey.faults
                        if not unproved and before is not None and (survey != before or allowed):
                            break
                        before = survey
                    records = await self._await_commands(feed, survey)
                    if records and (not unproved or await self._follow_commands(records)):
                        break
                    survey = await self._survey()
                except Exception as error:  # noqa: BLE001  the shard stays parked
                    log.error("event=shard_error shard=%d error=%r", self.number, describe(error))  # noqa: TRY400
                    await self._wait(BACKOFF[-1])
        finally:
            await feed.close()
        await self._prove_membership()
        log.info("event=shard_opens_again shard=%d", self.number)

    async def _survey(self) -> Survey | None:
        """Survey the partitions of the shard; None if the brokers do not answer."""
        self._beat()
        queries = self._parts.workload().topics
        try:
            survey = await failures.survey(self._parts.cluster, self.number, self._topics, queries)
        except BrokerError as error:
            log.warning("event=survey_failed shard=%d error=%r", self.number, str(error))
            return None
        if self._control_offset is None:
            self._control_offset = survey.control_end
        return survey

    async def _state_proves(self) -> bool:
        """Read the state again, without a producer; return whether it is proved, or the application is closed."""
        try:
            with contextlib.suppress(ApplicationClosed):
                await self._journal().inspect(beside_alerts=True)
        except UnreadableState:
            return False
        return True

    async def _follow_commands(self, records: Sequence[Record]) -> bool:
        """Give the state up on command; return whether to open the shard now."""
        await self._prove_membership()
        if self.handed_over:
            return False
        for record in records:
            await self._give_up(record)
        return self.status.state is not ShardState.PARKED or await self._state_proves()

    async def _give_up(self, record: Record) -> None:
        command = decode_command(record, self._verify)
        if isinstance(command, str) or not command.gives_up:
            return
        journal = self._journal()
        try:
            # A parked shard has no transaction that shows the brokers' time.
            if CLOCK.epoch() > command.expires / 1000 + CLOCK_TOLERANCE:
                raise CommandRefused(f"it expired at {utc(command.expires)}")
            await journal.give_up(command)
        except StreamSvtError as error:
            refusal = (self.number, command.action, str(error))
            log.warning("event=command_refused shard=%d action=%s error=%r", *refusal)
        else:
            log.critical("event=shard_closed shard=%d successor=%s", self.number, command.successor)
        finally:
            await journal.close()

    async def _await_commands(self, feed: ShardFeed, survey: Survey | None) -> Sequence[Record]:
        """Wait for records on the control partition until the next survey is due; return them."""
        control = self._topics.control
        until = time.monotonic() + SURVEY_INTERVALS[min(self._surveys, len(SURVEY_INTERVALS) - 1)]
        self._surveys += 1
        try:
            if survey is not None and survey.control_end is not None and self._control_offset is not None:
                feed.seek(control, self._control_offset)
                records = (await feed.fetch([control], until - time.monotonic())).get(control, ())
                if records:
                    log.info("event=shard_woken shard=%d offset=%d", self.number, records[-1].offset)
                    self._control_offset, self._surveys = records[-1].offset + 1, 0
                return records
        except Stopped:
            return ()
        except RecordsLost:  # the control topic was created again
            self._control_offset = None
        except (BrokerError, KafkaError) as error:
            reason = str(kafka.explain(error, "listening"))
            log.warning("event=commands_unread shard=%d error=%r", self.number, reason)
        await self._wait(until - time.monotonic())
        return ()

    # Membership

    async def _prove_membership(self) -> None:
        """Wait until this worker has proved its membership or is asked to stop: a non-member would fence the owner."""
        while not self.handed_over:
            self._beat()
            self._requests.stop.clear()  # another version takes effect with the next session
            if self.held:
                await self._requests.wait(self._requests.released.wait())
                continue
            try:
                if await self._is_member():
                    return
            except BrokerError:
                await self._wait(FENCED_PAUSE)
                continue
            log.warning("event=not_member shard=%d", self.number)
            self.status.signal(ShardSignal.DISOWNED)
            # The next rebalance decides.
            await self._requests.wait(self._requests.held.wait(), seconds=kafka.CALL_DEADLINE)

    async def _is_member(self) -> bool:
        """Commit a group offset, which brokers allow to members only."""
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
    """Report progress after a piece of work, and wait for the shard's turn before the next."""
    kafka.on_answer.get()()
    await pause()


def describe(error: BaseException) -> str:
    """Return the text of our error; of another error only type and line: its text could contain a value."""
    if isinstance(error, StreamSvtError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}{where}; please report it"
