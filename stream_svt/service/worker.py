"""A worker: everything between a configuration and running shards, without the host around it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aiokafka import AIOKafkaConsumer

from stream_svt.protocol.committer import CommitPolicy
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.shard_states import OPEN, Cause, ShardState, ShardStatus
from stream_svt.service import worker_states
from stream_svt.service.config import Config
from stream_svt.service.event_loop import first, rest
from stream_svt.service.group import Group
from stream_svt.service.kafka import Cluster, on_answer, tune
from stream_svt.service.metrics import Metrics
from stream_svt.service.reading import VersionRead
from stream_svt.service.remedy import cause_outside, ends_start
from stream_svt.service.self_test import WorkerFault, compare_clocks, self_test
from stream_svt.service.shard import Shard, WorkerParts, describe
from stream_svt.service.shard_log import journal_of, verifier_of
from stream_svt.service.topology import Topology, require
from stream_svt.service.worker_states import WorkerSignal
from stream_svt.service.workload import AppliedWorkload
from stream_svt.settings.datasets import DAY_MS
from stream_svt.transitions import follow

log = logging.getLogger(__name__)

NOTHING_APPLIED = (
    "waits for a configuration: 'stream-svt apply -c FILE' applies one where none was applied yet"
)
PERIODS_WITHIN_MS = 600_000
"""Time after midnight, UTC, within which the workers of a fleet, each at its own moment, come to know later periods."""
PERIODS_LOOK = 30.0
"""Seconds between two looks at the clock for that."""
TEST_EVERY = 60.0
"""Seconds between two tests of a worker by itself that shards, or a broker's clock, give it a reason for."""
JOIN_BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before a worker outside the group tries to join it again."""


def _patience(tries: int) -> float:
    return JOIN_BACKOFF[min(tries, len(JOIN_BACKOFF) - 1)]


def cluster_of(config: Config) -> Cluster:
    """Return how a configuration reaches its brokers."""
    kafka = config.kafka
    return Cluster(
        config.kafka_arguments(),
        session_timeout=kafka.session_timeout / 1000,
        heartbeat_interval=kafka.heartbeat_interval / 1000,
        transaction_timeout=kafka.transaction_timeout / 1000,
        group_instance_id=kafka.group_instance_id,
    )


class Worker:
    """Joins the application's group and runs the shards it is given.

    A worker that fails a test of its own, or whose membership fails, leaves the group whole and joins it again once it
    can. Only what is wrong at the start, and cannot pass, ends it: ``failed`` then holds the error. ``fault`` is why it
    stays out of the group, None while it is a member or on its way.

    Args:
        reread: Reads the worker's own file again; asked before each try to join again.
    """

    def __init__(self, config: Config, reread: Callable[[], Config] | None = None) -> None:
        self.config = config
        self.identity = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}".replace(" ", "-")
        self._reread = reread
        self.workload = AppliedWorkload(config.spec, config.topics.partitions)
        for _ in self.workload.prepare():  # nothing runs yet that could wait for its turn
            pass
        self.metrics = Metrics(
            self.workload.spec,
            self.workload.hash,
            self.statuses,
            shards=config.topics.partitions,
            control=config.topics.control,
            engine_times=config.web.engine_times,
        )
        self.state = worker_states.WorkerState.JOINING
        self.failed: asyncio.Future[None] | None = None
        self.fault: WorkerFault | None = None
        self.epoch: Callable[[], float] = time.time
        self._trouble: BaseException | None = None
        self._look = asyncio.Event()
        self._tested_at = -math.inf
        self._tasks: list[asyncio.Task[None]] = []
        self._after_midnight_ms = secrets.randbelow(PERIODS_WITHIN_MS)
        self._has_joined = False
        self._cluster = cluster_of(config)
        self._topology: Topology
        self._group: Group | None = None

    async def start(self) -> None:
        """Check everything that can be checked, then join the group, now or once this worker passes its own tests.

        Brokers that are away are waited for. What cannot pass is raised: see `ends_start`.
        """
        tune()
        self.failed = asyncio.get_running_loop().create_future()
        tries = 0
        while (error := await self._try_to_join()) is not None:
            if ends_start(error):
                raise error
            await self._wait(_patience(tries))
            tries += 1
        for name, work in {"membership": self._keep, "periods": self._advance}.items():
            self._tasks.append(asyncio.create_task(work(), name=name))
            self._tasks[-1].add_done_callback(self._kept)

    async def _try_to_join(self) -> Exception | None:
        """Join the group unless this worker is at fault; return what came in between, which is said."""
        try:
            fault = await self._join()
        except Exception as error:  # noqa: BLE001  whatever it is, it may pass
            self._stay_out(_fault_of(error))
            return error
        if fault is not None:
            self._stay_out(fault)
        return None

    async def _join(self) -> WorkerFault | None:
        """Check topics and this worker itself, and join the group; return what is wrong with the worker."""
        application = self.config.spec.application
        if self.fault is not None:
            await self._read_again()
        if not self.config.spec.monitors:
            return WorkerFault(Cause.CONFIGURATION, NOTHING_APPLIED)
        self._topology = await require(self.config, self._cluster)
        if (fault := await self._self_test()) is not None:
            return fault
        group = Group(
            self._cluster,
            application,
            self.config.topics,
            make_shard=self._make_shard,
            metrics=self.metrics,
            fatal=self._group_failed,
        )
        self._trouble = None
        self._look.clear()
        self._group = group
        try:
            await group.start()
        except BaseException:
            await self._leave()
            raise
        self._signal(WorkerSignal.JOINED)
        self.fault = self.metrics.fault = None
        web = self.config.web
        address = f"[{web.host}]" if ":" in web.host else web.host
        told = (application, self.workload.hash, self.identity, f"http://{address}:{web.port}/")
        log.info("event=started application=%s spec=%s worker=%s page=%s", *told)
        return None

    async def _self_test(self) -> WorkerFault | None:
        return await self_test(self.config, self._cluster, self._topology.cluster_id, epoch=self.epoch)

    async def _read_again(self) -> None:
        """Take over how to reach the brokers, and the keys, as the worker's file has them now."""
        if self._reread is None:
            return
        found = await asyncio.to_thread(self._reread)  # a program may print the keys
        own = self.config
        self.config = replace(found, spec=own.spec, topics=own.topics, web=own.web, commit=own.commit)
        self._cluster = cluster_of(self.config)

    def _stay_out(self, fault: WorkerFault) -> None:
        """Say why the worker is not in the group; once, until the reason changes."""
        if fault != self.fault:
            level = logging.WARNING if fault.cause is Cause.UNAVAILABLE else logging.CRITICAL
            if fault.reason == NOTHING_APPLIED:  # every worker starts so
                level = logging.INFO
            log.log(level, "event=worker_outside_group cause=%s error=%r", fault.cause, fault.reason)
        self._signal(WorkerSignal.FAULT)
        self.fault, self.metrics.fault = fault, str(fault.cause)

    async def _keep(self) -> None:
        """Be a member while nothing speaks against it; outside the group, try to join it, later and later."""
        tries, since = 0, time.monotonic()
        while True:
            if self._group is None:
                await self._wait(_patience(tries))
                tries += 1
                await self._try_to_join()
                since = time.monotonic()
                continue
            await self._look.wait()
            self._look.clear()
            fault = await self._found_fault()
            if fault is not None:
                self._stay_out(fault)
                await self._leave()
                if time.monotonic() - since > JOIN_BACKOFF[-1]:
                    tries = 0

    def _kept(self, task: asyncio.Task[None]) -> None:
        """End the worker where nothing keeps its membership any more: it would seem to be well for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.failed is not None and not self.failed.done():
            self._signal(WorkerSignal.FAILED)
            self.failed.set_exception(error)

    def _signal(self, signal: WorkerSignal) -> None:
        self.state = follow(worker_states.TRANSITIONS, self.state, signal, "a worker")

    async def _found_fault(self) -> WorkerFault | None:
        """Return what speaks against going on as a member: the membership's own trouble, or a test that fails now."""
        if self._trouble is not None:
            return _fault_of(self._trouble)
        try:
            return await self._self_test()
        except Exception as error:  # noqa: BLE001  a test that could not be made speaks against nobody
            log.warning("event=self_test_failed error=%r", describe(error))
            asyncio.get_running_loop().call_later(JOIN_BACKOFF[2], self._look.set)
            return None

    async def _leave(self) -> None:
        group = self._group
        if group is None:
            return
        self._has_joined = self._has_joined or group.has_joined
        try:
            await group.stop()
        except Exception as error:  # noqa: BLE001  the worker has left, in order or not
            log.error("event=leaving_failed error=%r", describe(error))  # noqa: TRY400  the trace could show a value
        self._group = None

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until there is a reason to look at once."""
        await first(self._look.wait(), seconds=seconds)
        self._look.clear()

    async def stop(self) -> None:
        """Publish what is charged, hand the shards over, leave the group."""
        self._signal(WorkerSignal.STOPPED)
        for task in self._tasks:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._group is not None:
            await self._group.stop()
        log.info("event=stopped worker=%s", self.identity)

    async def adopt(self, reading: VersionRead) -> None:
        """Go on with another version: every shard ends its session at a barrier and begins the next with it."""
        number = reading.version.number
        workload = AppliedWorkload(
            reading.spec, self.config.topics.partitions, (number, reading.version.digest)
        )
        await self._use(workload, reading.application_hash)
        log.info("event=configuration_read version=%d spec=%s", number, workload.hash)

    async def advance_periods(self) -> None:
        """Know later periods, and no longer those that are over: once a day, where generators make them."""
        now_ms = int(self.epoch() * 1000)
        is_due = (now_ms - self._after_midnight_ms) // DAY_MS > self.workload.now_ms // DAY_MS
        if self.workload.declared.generators and is_due:
            await self._use(replace(self.workload, now_ms=now_ms), self.workload.hash)
            log.info("event=periods_advanced spec=%s", self.workload.hash)

    async def _advance(self) -> None:
        while True:
            await asyncio.sleep(PERIODS_LOOK)
            await self.advance_periods()

    async def _use(self, workload: AppliedWorkload, known_hash: str) -> None:
        """Prepare another workload, and have every shard go on with it."""
        for _ in workload.prepare(known_hash):
            await asyncio.sleep(0)
        self.config = replace(self.config, spec=workload.declared)
        self.workload.retire()
        self.workload = workload
        self.metrics.configure(workload.spec, workload.hash)
        if self._group is None:
            self._look.set()
            return
        for shard in self._group.shards.values():
            shard.configure()

    def statuses(self) -> list[ShardStatus]:
        """Return the status of every shard owned, by number."""
        if self._group is None:
            return []
        return [shard.status for _, shard in sorted(self._group.shards.items())]

    @property
    def alive(self) -> bool:
        """Whether the worker goes on by itself: it does, unless it could not begin."""
        return self.state is not worker_states.WorkerState.FAILED

    @property
    def ready(self) -> bool:
        """Whether the group has been joined and every shard owned is open or parked.

        A standby without shards is ready, and so is a worker with a parked shard: no restart would mend it.
        """
        joined = (
            self.state is worker_states.WorkerState.MEMBER and self._group is not None and self._group.joined
        )
        return joined and all(status.state in _SETTLED for status in self.statuses())

    def _make_shard(self, consumer: AIOKafkaConsumer, number: int) -> Shard:
        config, commit, cluster_id = self.config, self.config.commit, self._topology.cluster_id
        parts = WorkerParts(
            cluster=self._cluster,
            consumer=consumer,
            topics=config.topics,
            metrics=self.metrics,
            make_journal=partial(self._make_journal, number),
            workload=lambda: self.workload,
            policy=CommitPolicy(
                interval=commit.interval / 1000,
                max_records=commit.max_records,
                start_at=config.topics.start_at,
                cadence=None if commit.cadence is None else commit.cadence / 1000,
            ),
            verify=verifier_of(config, cluster_id, config.topics.control, number),
            suspect=self._suspect,
        )
        return Shard(number, parts)

    def _make_journal(self, number: int) -> Journal:
        place = (self.config, self._cluster, self._topology.cluster_id, number)
        return journal_of(*place, tell_time=self._compare_clocks, give_way=_give_way)

    def _compare_clocks(self, now: float) -> None:
        """Have this worker test itself where the brokers' time, told with a commit, is far off this machine's."""
        if compare_clocks(self.epoch(), now) is not None:
            self._suspect()

    def _suspect(self) -> None:
        """Have this worker test itself, once in a while: a test of one worker interrupts that of another."""
        loop = asyncio.get_running_loop()
        if self._tested_at <= loop.time():  # else one is due
            self._tested_at = max(loop.time(), self._tested_at + TEST_EVERY)
            loop.call_at(self._tested_at, self._look.set)

    def _group_failed(self, error: BaseException) -> None:
        """Leave the group and join it again; at the first start, end where the error cannot pass."""
        group = self._group
        self._has_joined = self._has_joined or (group is not None and group.has_joined)
        log.critical("event=membership_failed cause=%s error=%r", cause_outside(error), describe(error))
        if not self._has_joined and ends_start(error):
            self._fail(error)
            return
        self._trouble = error
        self._look.set()


_SETTLED = OPEN | {ShardState.PARKED}


def _fault_of(error: BaseException) -> WorkerFault:
    return WorkerFault(cause_outside(error), describe(error))


async def _give_way() -> None:
    """Wait for the shard's turn between two pieces of work; that one was done is a sign of life."""
    on_answer.get()()
    await rest()
