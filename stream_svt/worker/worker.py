"""A worker: tests itself, joins the consumer group and runs the shards assigned to it; `app` hosts it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.topology import other_partitioner, require
from stream_svt.errors import ConfigError, UnknownKey, UnreadableState
from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.clients import CALL_DEADLINE, BrokerUnavailable, Fenced, OtherCluster, deadline, started
from stream_svt.kafka.transactions import NewRecords
from stream_svt.protocol.shard_states import OPEN, Cause, ShardState, ShardStatus
from stream_svt.protocol.state_records import other_partitioning
from stream_svt.queries import columnar  # noqa: F401  importing pyarrow takes long: not while a shard is open
from stream_svt.queries.avro.registry import SchemaRegistry
from stream_svt.settings.periods import DAY_MS
from stream_svt.transitions import follow
from stream_svt.wording import named
from stream_svt.worker.event_loop import wait_first
from stream_svt.worker.failures import cause_outside, ends_start
from stream_svt.worker.group import Group
from stream_svt.worker.metrics import Metrics
from stream_svt.worker.ports import open_meta, stored_metas
from stream_svt.worker.shard import CLOCK_TOLERANCE, WorkerParts, describe
from stream_svt.worker.workload import AppliedWorkload

log = logging.getLogger(__name__)

NOTHING_APPLIED = (
    "waits for a configuration: if none was applied yet, apply one with 'stream-svt apply -c FILE'"
)
PERIODS_WITHIN_MS = 600_000
"""Workers add the periods of a new day at random times within this interval after midnight, UTC."""
PERIODS_CHECK_INTERVAL = 30.0
"""Seconds between two checks whether a new day has begun."""
TEST_EVERY = 60.0
"""Seconds between two self-tests that shards or the brokers' clock ask for."""
KEYS_EVERY = 600.0
"""Seconds between two self-tests of a member: another worker may have sealed a state with another key meanwhile."""
CLOCK_STEP = 60.0
"""Seconds by which this machine's clock may be changed without a self-test of an idle member."""
FENCED_TRIES = 5
"""Tries of a self-test that another worker's self-test ends."""
FENCED_WITHIN_MS = 1_000
"""Milliseconds within which such a try is repeated, at a random time."""
LACKS_SHOWN = 10
"""Largest number of shards that a message names."""
VERSION_WITHIN = 2.0
"""Seconds after its start before a worker logs that it waits for a configuration: reading one takes about a
second."""
JOIN_BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each try of a worker outside the group to join it."""


class WorkerState(StrEnum):
    """State of a worker; *outside* its group after a failed self-test or a failed membership."""

    JOINING = "joining"
    OUTSIDE = "outside"
    MEMBER = "member"
    FAILED = "failed"
    STOPPED = "stopped"


class WorkerSignal(StrEnum):
    """Events that change the state of a worker."""

    JOINED = "joined"
    FAULT = "fault"
    FAILED = "failed"
    STOPPED = "stopped"


_LIVING = (WorkerState.JOINING, WorkerState.OUTSIDE, WorkerState.MEMBER)
_ENDED = (WorkerState.FAILED, WorkerState.STOPPED)

TRANSITIONS: Mapping[tuple[WorkerState, WorkerSignal], WorkerState] = {
    (WorkerState.JOINING, WorkerSignal.JOINED): WorkerState.MEMBER,
    (WorkerState.OUTSIDE, WorkerSignal.JOINED): WorkerState.MEMBER,
    **{(state, WorkerSignal.FAULT): WorkerState.OUTSIDE for state in _LIVING},
    **{(state, WorkerSignal.FAILED): WorkerState.FAILED for state in _LIVING},
    # A task in progress at the end may still signal.
    **{(state, signal): state for state in _ENDED for signal in WorkerSignal},
    **{(state, WorkerSignal.STOPPED): WorkerState.STOPPED for state in WorkerState},
}


class WorkerFault(NamedTuple):
    """Why this worker cannot join its group: a code, and a text with the remedy."""

    cause: Cause
    reason: str


UNREACHABLE = WorkerFault(
    Cause.UNAVAILABLE,
    "the brokers have been unreachable for longer than kafka.session_timeout: other workers may own the shards by now",
)


class Worker:
    """Joins the application's group and runs the shards assigned to it.

    After a failed self-test or a failed membership the worker leaves the group with all its shards, and joins again
    once it can. Only a permanent error at the start ends the worker: the task ``running`` then raises it. ``fault`` is
    why the worker is outside the group, None while it is a member or about to join. Before each try to join again,
    ``reread`` reads the worker's own file.
    """

    def __init__(self, config: Config, reread: Callable[[], Config] | None = None) -> None:
        self.config = config
        self.identity = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}".replace(" ", "-")
        self._reread = reread
        self._schemas = SchemaRegistry(config.schema_registry)
        self.workload = AppliedWorkload(config.spec, config.partitioning, schemas=self._schemas)
        for _ in self.workload.prepare():  # no other task runs yet
            pass
        self.metrics = Metrics(
            self.workload.spec,
            self.workload.hash,
            self.statuses,
            shards=config.topics.partitions,
            control=config.topics.control,
        )
        self.state = WorkerState.JOINING
        self.running: asyncio.Task[None] | None = None
        self.fault: WorkerFault | None = None
        self.epoch: Callable[[], float] = time.time
        self._group_error: BaseException | None = None
        self._refused: ConfigError | None = None
        self._wake = asyncio.Event()
        self._changing = asyncio.Lock()
        self._tested_at = -math.inf
        self._clock_ahead = time.time() - time.monotonic()
        self._after_midnight_ms = secrets.randbelow(PERIODS_WITHIN_MS)
        self._has_joined = False
        self._foreign: dict[int, UnknownKey] = {}
        self._cluster_id = ""
        self._parts: WorkerParts
        self._group: Group | None = None

    def start(self) -> asyncio.Task[None]:
        """Start and return the task that joins the group; it raises permanent errors of the start (`ends_start`)."""
        self.running = asyncio.create_task(self._run(), name="membership")
        return self.running

    async def _run(self) -> None:
        apply_fixes()
        try:
            await self._maintain_membership()
        except Exception:
            self._signal(WorkerSignal.FAILED)
            raise

    async def _maintain_membership(self) -> None:
        """Join the group, stay a member without faults; outside the group, retry with increasing backoff."""
        tries, is_start = 0, True
        if not self.config.spec.monitors:
            await self._wait(VERSION_WITHIN)
        since = tested_at = time.monotonic()
        while True:
            fault: WorkerFault | None = None
            if self._group is None:
                try:
                    fault = await self._join()
                    since = time.monotonic()
                    is_start = is_start and fault is not None and fault.reason == NOTHING_APPLIED
                except Exception as error:
                    if is_start and ends_start(error):
                        raise
                    fault = _fault_of(error)
            elif (
                await self._wait(PERIODS_CHECK_INTERVAL)
                or self._was_clock_set()
                or time.monotonic() - tested_at > KEYS_EVERY
            ):
                tested_at = time.monotonic()
                self._has_joined = self._has_joined or self._group.has_joined
                fault = await self._member_fault()
                if time.monotonic() - since > JOIN_BACKOFF[-1]:
                    tries = 0
            if fault is not None:
                self._report_fault(fault)
                await self._leave()
                await self._wait(JOIN_BACKOFF[min(tries, len(JOIN_BACKOFF) - 1)])
                tries += 1
            await self.advance_periods()

    async def _join(self) -> WorkerFault | None:
        """Check the topics and this worker, and join the group; return the worker's fault, None once it has joined."""
        if self.fault is not None and self._reread is not None:
            fresh = await asyncio.to_thread(self._reread)  # may run a program that prints the keys
            own = self.config
            self.config = replace(fresh, spec=own.spec, topics=own.topics, web=own.web, commit=own.commit)
            self._schemas.configure(fresh.schema_registry)
        if not self.config.spec.monitors:
            return WorkerFault(Cause.CONFIGURATION, str(self._refused or NOTHING_APPLIED))
        cluster = self.config.cluster()
        found = (await require(self.config, cluster)).cluster_id
        self._cluster_id = self._cluster_id or found  # the versions it knows are of the first one
        self._parts = WorkerParts(
            config=self.config,
            cluster=cluster,
            cluster_id=self._cluster_id,
            metrics=self.metrics,
            workload=lambda: self.workload,
            request_self_test=self._request_self_test,
            on_broker_time=self._compare_clocks,
        )
        if (fault := await self._self_test()) is not None:
            return fault
        self._group_error = None
        self._wake.clear()
        self._group = Group(self._parts, self._group_failed)
        await self._group.start()
        self._signal(WorkerSignal.JOINED)
        self.fault = self.metrics.fault = None
        web, names = self.config.web, (self.config.spec.application, self.workload.hash, self.identity)
        page = f"http://{f'[{web.host}]' if ':' in web.host else web.host}:{web.port}/"
        log.info("event=started application=%s spec=%s worker=%s page=%s", *names, page)
        return None

    async def _self_test(self) -> WorkerFault | None:
        """Return a fault of this worker's keys, cluster, clock or access to Avro schemas; None if it may join."""
        if (lack := self._schemas.lack(self.config.spec)) is not None:
            return WorkerFault(Cause.CONFIGURATION, lack)
        if (fault := await self._key_fault()) is not None:
            return fault
        try:
            now = await _broker_time(self._parts)
        except OtherCluster as error:
            return _fault_of(error)
        return None if now is None else self._clock_fault(now)

    async def _key_fault(self) -> WorkerFault | None:
        """Return a fault if this worker cannot use any shard's state, because of its keys or its partitioning.

        Otherwise a shard that never started would begin with them, and a dataset would have two ledgers.
        """
        unknown, partitioning = await _stored_partitionings(self._parts)
        if partitioning and tuple(self.config.partitioning) not in partitioning:
            return WorkerFault(Cause.CONFIGURATION, other_partitioning(min(partitioning), self.config.topics))
        if unknown and not partitioning:
            reason = f"no shard's state opens with this worker's sealing keys: {next(iter(unknown.values()))}"
            return WorkerFault(Cause.SEALING_KEY, reason)
        if unknown.keys() - self._foreign.keys():
            log.critical("event=sealing_key_missing shards=%s", ",".join(map(str, unknown)))
        self._foreign = unknown
        return None

    def _report_fault(self, fault: WorkerFault) -> None:
        """Record why the worker is outside the group; log it if the reason changes."""
        if fault != self.fault:
            level = logging.WARNING if fault.cause is Cause.UNAVAILABLE else logging.CRITICAL
            if fault.reason == NOTHING_APPLIED:  # the normal start of a worker
                level = logging.INFO
            log.log(level, "event=worker_outside_group cause=%s error=%r", fault.cause, fault.reason)
        self._signal(WorkerSignal.FAULT)
        self.fault, self.metrics.fault = fault, str(fault.cause)

    def _signal(self, signal: WorkerSignal) -> None:
        self.state = follow(TRANSITIONS, self.state, signal, "a worker")

    async def _member_fault(self) -> WorkerFault | None:
        """Return why this worker must leave the group: an error of its membership, or a failed self-test."""
        if self._group_error is not None:
            if not self._has_joined and ends_start(self._group_error):
                raise self._group_error
            return _fault_of(self._group_error)
        try:
            return await self._self_test()
        except Exception as error:  # noqa: BLE001  a test that could not run shows no fault
            log.warning("event=self_test_failed error=%r", describe(error))
            asyncio.get_running_loop().call_later(JOIN_BACKOFF[2], self._wake.set)
            return None

    async def _leave(self) -> None:
        if self._group is None:
            return
        try:
            await self._group.stop()
        except Exception as error:  # noqa: BLE001  the worker has left anyway
            log.error("event=leaving_failed error=%r", describe(error))  # noqa: TRY400  the trace could show a value
        self._group = None

    async def _wait(self, seconds: float) -> bool:
        """Wait ``seconds`` or until `_wake` is set; return whether it was."""
        await wait_first(self._wake.wait(), seconds=seconds)
        woken = self._wake.is_set()
        self._wake.clear()
        return woken

    async def stop(self) -> None:
        """Publish charged events, end the shards, leave the group."""
        self._signal(WorkerSignal.STOPPED)
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        if self._group is not None:
            await self._group.stop()
        await self._schemas.close()
        log.info("event=stopped worker=%s", self.identity)

    async def adopt(self, workload: AppliedWorkload) -> None:
        """Use another version: every shard ends its session at a barrier and begins the next one with it.

        A version with another partitioner is refused: raises ConfigError, and a worker without a version stays outside.
        """
        if workload.partitioning.partitioner != self.config.topics.partitioner:
            self._refused = other_partitioner(workload.partitioning.partitioner, self.config)
            self._wake.set()
            raise self._refused
        async with self._changing:
            await self._use(workload)
        log.info("event=configuration_read version=%d spec=%s", workload.version[0], workload.hash)

    async def advance_periods(self) -> None:
        """Once a day, if there are generators, add new periods and drop periods that are over."""
        now_ms = int(self.epoch() * 1000)
        async with self._changing:  # otherwise the older version would replace one adopted meanwhile
            is_due = (now_ms - self._after_midnight_ms) // DAY_MS > self.workload.now_ms // DAY_MS
            if self.workload.declared.generators and is_due:
                await self._use(replace(self.workload, now_ms=now_ms, known_hash=self.workload.hash))
                log.info("event=periods_advanced spec=%s", self.workload.hash)

    async def _use(self, workload: AppliedWorkload) -> None:
        """Prepare another workload, and have every shard use it from its next session on."""
        workload = replace(workload, schemas=self._schemas)
        for _ in workload.prepare():
            await asyncio.sleep(0)
        self.config = replace(self.config, spec=workload.declared)
        self.workload.retire()
        self.workload = workload
        self.metrics.configure(workload.spec, workload.hash)
        if self._group is None or self._schemas.lack(workload.declared) is not None:
            self._wake.set()
            return
        for shard in self._group.shards.values():
            shard.configure()

    def statuses(self) -> list[ShardStatus]:
        """Return the status of every shard owned, in order of its number."""
        if self._group is None:
            return []
        return [shard.status for _, shard in sorted(self._group.shards.items())]

    @property
    def outside(self) -> WorkerFault | None:
        """Why the worker is outside its group: its fault, or brokers away for longer than a session; None inside."""
        if self.fault is None and self._group is not None and self._group.unreachable:
            return UNREACHABLE
        return self.fault

    @property
    def alive(self) -> bool:
        """Whether the worker runs or recovers without a restart: always, unless its start failed."""
        return self.state is not WorkerState.FAILED

    @property
    def lacks(self) -> str:
        """Shards that it could not take over without a further sealing key, as of the last self-test; "" for none.

        A shard that it owns is parked, and its status shows this.
        """
        shards = sorted(self._foreign.keys() - {status.shard for status in self.statuses()})
        if not shards:
            return ""
        which = named("shard", shards, LACKS_SHOWN)
        return f"lacks the sealing key of {which}: {self._foreign[shards[0]]}"

    @property
    def ready(self) -> bool:
        """Whether it is a member, every shard owned is open or parked, and it could take over any other."""
        joined = self.state is WorkerState.MEMBER and self._group is not None and self._group.joined
        inside = joined and self.outside is None
        return inside and all(status.state in _SETTLED for status in self.statuses()) and not self.lacks

    def _clock_fault(self, brokers: float) -> WorkerFault | None:
        off = self.epoch() - brokers
        if abs(off) <= CLOCK_TOLERANCE:
            return None
        side = "ahead of" if off > 0 else "behind"
        reason = f"this machine's clock is {abs(off):.0f} s {side} the brokers'; set it"
        return WorkerFault(Cause.CLOCK, reason)

    def _compare_clocks(self, brokers: float) -> None:
        """Request a self-test if the brokers' time of a commit differs too much from this machine's."""
        if self._clock_fault(brokers) is not None:
            self._request_self_test()

    def _request_self_test(self) -> None:
        """Schedule a self-test, at most one per `TEST_EVERY`: tests of two workers fence each other."""
        loop = asyncio.get_running_loop()
        now, after = loop.time(), self._tested_at + TEST_EVERY
        # Otherwise one is scheduled already; a much later one was scheduled before the clock of timers went back.
        if not now < self._tested_at <= now + TEST_EVERY:
            self._tested_at = after if now < after <= now + TEST_EVERY else now
            loop.call_at(self._tested_at, self._wake.set)

    def _was_clock_set(self) -> bool:
        """Return whether this machine's clock was set since the last call: a member without commits compares none."""
        before, self._clock_ahead = self._clock_ahead, self.epoch() - time.monotonic()
        return abs(self._clock_ahead - before) > CLOCK_STEP

    def _group_failed(self, error: BaseException) -> None:
        """Record an error that ends the membership, and wake the task that acts on it."""
        log.critical("event=membership_failed cause=%s error=%r", cause_outside(error), describe(error))
        self._group_error = error
        self._wake.set()


_SETTLED = OPEN | {ShardState.PARKED}


def _fault_of(error: BaseException) -> WorkerFault:
    return WorkerFault(cause_outside(error), describe(error))


async def _stored_partitionings(parts: WorkerParts) -> tuple[dict[int, UnknownKey], set[tuple[int, str]]]:
    """Return the shards whose newest record is sealed with a missing key, and the partitioning of the others.

    The partitioning is the number of partitions and the partitioner with which a shard began. A damaged record
    is skipped.
    """
    unknown: dict[int, UnknownKey] = {}
    partitioning = set[tuple[int, str]]()
    async with aclosing(stored_metas(parts.config, parts.cluster)) as stored:
        async for shard, record in stored:
            try:
                meta = open_meta(parts.config, parts.cluster_id, shard, record)
            except UnknownKey as error:
                if not parts.config.sealing.key_lost:  # otherwise no worker has the key
                    unknown[shard] = error
            except UnreadableState:
                continue
            else:
                partitioning.add((meta.partitions, meta.partitioner))
    return unknown, partitioning


async def _broker_time(parts: WorkerParts) -> float | None:
    """Return the brokers' time in seconds since 1970; None if the reject topic has no log append time.

    Raises `OtherCluster`, and `BrokerUnavailable` if the tests of other workers end each try.
    """
    for _ in range(FENCED_TRIES):
        try:
            return await _try_broker_time(parts)
        except Fenced:  # another worker runs the same test
            await asyncio.sleep(secrets.randbelow(FENCED_WITHIN_MS) / 1000)
    raise BrokerUnavailable(
        "asking for the brokers' time: other workers ask at the same moment, again and again"
    )


async def _try_broker_time(parts: WorkerParts) -> float | None:
    """Send a record to the reject topic in a transaction that is aborted, so that no consumer reads it.

    Brokers return their time with a record of a topic with log append time. Raises `Fenced` and `OtherCluster`.
    """
    name = f"{parts.config.spec.application}-clock"
    doing = f"asking for the brokers' time as {name!r}"
    async with (
        started(parts.cluster.producer(name), doing, "WRITE") as producer,
        deadline(CALL_DEADLINE, doing, "WRITE"),
    ):
        if (found := await producer.cluster_id()) != parts.cluster_id:
            raise OtherCluster(doing, found, parts.cluster_id)
        place = TopicPartition(parts.config.topics.rejects, 0)
        record = NewRecords(place, [(b"clock", b"")])
        sent = (await producer.transact([record], int(time.time() * 1000), commit=False))[place]
    return None if sent.time_ms is None else sent.time_ms / 1000
