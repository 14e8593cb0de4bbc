"""A counter: it shares the partitions of the event log with others, and counts the sources of its partitions.

A partition continues through a rebalance. Its next owner fences the producer, so that nothing is decided twice; only
then does the previous owner stop. A fenced counter fences no other before it has proved that it is a member.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from stream_svt.application.config import Config
from stream_svt.application.topology import require
from stream_svt.counting.applied import Applied
from stream_svt.counting.backoff import Backoff
from stream_svt.counting.event_log import HOMES, EventLog, LogBroken
from stream_svt.counting.source import SourceLoop, explained
from stream_svt.errors import BrokerError
from stream_svt.kafka import aiokafka_fixes
from stream_svt.kafka import clients as kafka
from stream_svt.settings.sources import SourceSpec, log_topic
from stream_svt.worker.failures import ends_start
from stream_svt.worker.group import LEAVE_TIMEOUT, StickyAssignor, check_membership
from stream_svt.worker.shard import describe

log = logging.getLogger(__name__)

DELETED_EVERY: Final = 60.0
"""Seconds between two deletions of entries that no source needs."""
WATCH_INTERVAL: Final = 1.0
MEMBER_PAUSE: Final = 3.0
"""Seconds between two attempts to prove the membership."""
STOP_TIMEOUT: Final = 15.0
"""Seconds that the end of a partition may take: a transaction ends within ten."""


class Owner:
    """One partition of the event log, and the sources that it belongs to, until it is stopped."""

    def __init__(self, partition: int, service: CounterService) -> None:
        self.partition, self.written = partition, 0
        self.lack = "its log is being read"
        self.loops: dict[str, SourceLoop] = {}
        self._service, self._deleted = service, (0.0, 0)
        self._task = asyncio.create_task(self._run(), name=f"log-{partition}")

    async def stop(self) -> None:
        """Finish the transaction in progress, and end."""
        self._task.cancel()
        await asyncio.wait([self._task], timeout=STOP_TIMEOUT)

    async def _run(self) -> None:
        backoff, service = Backoff(0.5, 1, 2, 5, 10, 30), self._service
        while True:
            event_log = service.event_log(self.partition)
            try:
                await event_log.fence()
                # Sources of versions that an earlier owner knew are known then.
                await service.applied.read_since(int(time.time() * 1000))
                await self._count(event_log)
            except Exception as error:  # noqa: BLE001  only a stop ends a partition
                cause = event_log.broken.result() if event_log.broken.done() else error
                self.lack = describe(explained(cause))
                log.warning("event=log_lost partition=%d error=%r", self.partition, self.lack)
            finally:
                await event_log.close()
            await asyncio.sleep(backoff.next())
            while not await service.is_member(self.partition):  # noqa: ASYNC110  only brokers know
                await asyncio.sleep(MEMBER_PAUSE)

    async def _count(self, event_log: EventLog) -> None:
        """Count the sources of the partition as they are applied, until the log is broken; raises `LogBroken`."""
        tasks: dict[str, asyncio.Task[None]] = {}
        applied, self.lack = self._service.applied, ""
        try:
            while not event_log.broken.done():
                specs = {
                    one.name: one for one in applied.sources if HOMES.of(one.name.encode()) == self.partition
                }
                gone = [tasks.pop(name) for name in tasks.keys() - specs.keys()]
                for task in gone:
                    task.cancel()
                await asyncio.gather(*gone, return_exceptions=True)
                self.loops = {name: loop for name, loop in self.loops.items() if name in specs}
                for name, spec in specs.items():
                    if name not in self.loops:
                        self.loops[name] = self._service.loop_of(spec)
                    if name not in tasks or tasks[name].done():
                        loop = self.loops[name].run(event_log)
                        tasks[name] = asyncio.create_task(loop, name=f"source-{name}")
                await asyncio.wait([event_log.broken], timeout=WATCH_INTERVAL)
                self.written = event_log.written
                await self._delete_old(event_log)
            raise LogBroken
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _delete_old(self, event_log: EventLog) -> None:
        """Delete, once in a while, the entries that no source needs."""
        at, deleted = self._deleted
        # Without its counter it is not known what a source needs.
        needed = [-1 if one.counter is None else one.counter.needed_offset for one in self.loops.values()]
        until = min((one for one in needed if one is not None), default=-1)
        if until <= deleted or time.monotonic() - at < DELETED_EVERY:
            return
        self._deleted = time.monotonic(), until
        try:
            await event_log.delete_before(until)
        except BrokerError as error:
            log.warning("event=log_not_shortened partition=%d error=%r", self.partition, describe(error))


class CounterService(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The sources of an application, as far as this process owns their partitions.

    The file's sources are not used, those applied last are. ``accepts`` are the names of sources whose loss is accepted
    if they are parked when they are taken over first.
    """

    def __init__(self, config: Config, accepts: Iterable[str] = ()) -> None:
        self.config, self.applied = config, Applied(config)
        self._group = f"{config.spec.application}-counters"
        self.owners: dict[int, Owner] = {}
        self.joined = self._has_joined = False
        self.waits = "it reads the applied configuration"
        self._accepts = set(accepts)
        self._consumer: Any = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def loops(self) -> list[SourceLoop]:
        """The loops of the sources of its partitions, by name."""
        loops = [loop for owner in self.owners.values() for loop in owner.loops.values()]
        return sorted(loops, key=lambda loop: loop.spec.name)

    @property
    def lacks(self) -> list[str]:
        """What keeps this counter from counting, or from taking over; a source that waits or is parked does not."""
        found = [self.waits] if self.waits else [] if self.joined else ["it is joining its group"]
        return found + [f"partition {one.partition}: {one.lack}" for one in self.owners.values() if one.lack]

    # -- what owners need

    def event_log(self, partition: int) -> EventLog:
        """Return a partition of the event log, not fenced yet."""
        return EventLog(
            self.config.cluster(), self.config.spec.application, partition, self.config.partitioning
        )

    def loop_of(self, spec: SourceSpec) -> SourceLoop:
        """Return a new loop of a source."""
        accepts = spec.name in self._accepts
        self._accepts.discard(spec.name)
        return SourceLoop(spec, self.config, self.applied, accepts_loss=accepts)

    async def is_member(self, partition: int) -> bool:
        """Commit a group offset, which brokers allow to members only."""
        place = TopicPartition(log_topic(self.config.spec.application), partition)
        try:
            async with kafka.deadline(kafka.CALL_DEADLINE, "proving group membership"):
                await self._consumer.commit({place: OffsetAndMetadata(0, "")})
        except BrokerError:
            return False
        return True

    # -- the process

    async def run(self) -> None:
        """Follow the configuration, join the group, and count without end; raises permanent errors of the start."""
        aiokafka_fixes.apply_fixes()
        backoff = Backoff(0.5, 1, 2, 5, 10, 30)
        while True:
            following = asyncio.create_task(self.applied.follow(), name="versions")
            try:
                await self._wait_for_sources(following)
                applied = replace(self.config, spec=self.applied.spec or self.config.spec)
                await require(applied, applied.cluster(), sources=True)
                await self._join()
                self.waits = ""
                await self._watch(following)
            except Exception as error:
                if not self._has_joined and ends_start(error):
                    raise
                self.waits = describe(explained(error))
                log.warning("event=counter_outside_group error=%r", self.waits)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await self._leave()
            await asyncio.sleep(backoff.next())

    async def _wait_for_sources(self, following: asyncio.Task[None]) -> None:
        """Wait for a version that declares sources; raises the error that ended following."""
        while not self.applied.sources:
            if following.done():
                following.result()
            if self.applied.read_ms:
                self.waits = "no source is declared in the applied configuration: 'stream-svt apply -c FILE'"
            await asyncio.sleep(WATCH_INTERVAL / 10)

    # -- the group

    async def _join(self) -> None:
        held = StickyAssignor(lambda: {number: owner.written for number, owner in self.owners.items()})
        self._consumer = self.config.cluster().member(self._group, held)
        async with kafka.deadline(kafka.START_DEADLINE, f"joining group {self._group!r}"):
            await self._consumer.start()
        self._consumer.subscribe([log_topic(self.config.spec.application)], listener=self)

    async def _watch(self, following: asyncio.Task[None]) -> None:
        """Raise the error that ends the membership, or prevents it."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            check_membership(self._consumer, self._group)
            if following.done():
                following.result()

    async def _leave(self) -> None:
        """End all partitions, and leave the group at once."""
        consumer, self._consumer, self.joined = self._consumer, None, False
        owners = [*self.owners.values()]
        self.owners.clear()
        await asyncio.gather(*(owner.stop() for owner in owners), *self._ending)
        if consumer is not None:
            await kafka.stop_quietly(consumer, LEAVE_TIMEOUT)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """End partitions that moved away, and take over new ones; return quickly: no heartbeat is sent meanwhile."""
        if self._consumer is None:
            return
        self._consumer.pause(*assigned)
        numbers = sorted(tp.partition for tp in assigned)
        self.joined = self._has_joined = True
        log.info("event=assigned partitions=%s", ",".join(map(str, numbers)) or "none")
        for number in self.owners.keys() - set(numbers):
            ending = asyncio.create_task(self.owners.pop(number).stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        for number in numbers:
            if number not in self.owners:
                self.owners[number] = Owner(number, self)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Go on: the next owner of a partition fences this one."""
        del revoked
        self.joined = False
