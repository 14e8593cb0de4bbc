"""Membership of the consumer group: which shards this worker owns, and whom it shares the application with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from stream_svt.errors import ConfigError, Problem
from stream_svt.protocol.tenure import State
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    REBALANCE_TIMEOUT,
    START_DEADLINE,
    BrokerUnavailable,
    Cluster,
    deadline,
    explain,
    started,
    stop_quietly,
)
from stream_svt.service.metrics import Metrics
from stream_svt.service.shard import STUCK, Shard

log = logging.getLogger(__name__)

HINT_INTERVAL = 3.0
"""Seconds between committed group offsets: lag for operators, and a sign of life with the specification's hash."""
STOP_PATIENCE = 0.6 * REBALANCE_TIMEOUT
WATCH_INTERVAL = 1.0


def group_id(application: str) -> str:
    """Return the consumer group of an application's workers."""
    return application


class Group(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The worker's membership, and a shard for each partition it is given.

    Parameters
    ----------
    topics
        Query topics and the control topic, all with the same number of partitions.
    make_shard
        Returns the shard of a partition, not started.
    worker, spec_hash
        Written beside the committed offsets, so that a worker with another specification notices.
    fatal
        Told of errors after which the worker cannot go on.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        application: str,
        topics: Sequence[str],
        make_shard: Callable[[Any, int], Shard],
        metrics: Metrics,
        worker: str,
        spec_hash: Callable[[], str],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._cluster = cluster
        self._name = group_id(application)
        self._topics = sorted(topics)
        self._make_shard = make_shard
        self._metrics = metrics
        self._worker = worker
        self._spec_hash = spec_hash
        self._fatal = fatal
        self._consumer: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._beats = 0
        self.shards: dict[int, Shard] = {}
        self.joined = False

    async def start(self) -> None:
        """Join the group; assignments come later, on their own."""
        self._consumer = self._cluster.member(self._name)
        async with deadline(START_DEADLINE, f"joining group {self._name!r}"):
            await self._consumer.start()
        self._consumer.subscribe(self._topics, listener=self)
        self._tasks = [self._guarded(self._hint(), "hint"), self._guarded(self._watch(), "watch")]

    async def stop(self) -> None:
        """Hand all shards over and leave the group at once."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_shards(left=True)
        if self._consumer is not None:
            await stop_quietly(self._consumer, 5.0)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Start a shard for each partition; nothing slow, for no heartbeat is sent meanwhile."""
        # aiokafka logs what a listener raises and goes on.
        try:
            self._consumer.pause(*assigned)
            self._metrics.rebalanced()
            self.joined = True
            if self._stopping:
                return
            self._adopt(assigned)
        except Exception as error:  # noqa: BLE001
            self._fatal(error)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Hand all shards over before anybody else gets them."""
        del revoked
        self.joined = (
            False  # until assigned again, if only nothing: brokers that are gone assign nothing at all
        )
        try:
            await self._stop_shards(left=False)
        except Exception as error:  # noqa: BLE001
            self._fatal(error)

    def _adopt(self, assigned: set[TopicPartition]) -> None:
        numbers = sorted({place.partition for place in assigned})
        for number in numbers:
            topics = sorted(place.topic for place in assigned if place.partition == number)
            if topics != self._topics:
                message = (
                    f"partition {number} was assigned for {', '.join(topics)} only, not for all of "
                    f"{', '.join(self._topics)}: a topic was deleted, or another worker of group {self._name!r} "
                    "subscribes to other topics. Create what is missing with 'stream-svt check --create-topics', or "
                    "stop all workers, then start them with the same configuration"
                )
                raise ConfigError([Problem(0, "monitors", message)], "consumer group")
        log.info("event=assigned shards=%s", ",".join(map(str, numbers)) or "none")
        for number in numbers:
            shard = self.shards[number] = self._make_shard(self._consumer, number)
            shard.start()

    async def _stop_shards(self, *, left: bool) -> None:
        shards = list(self.shards.values())
        if not shards:
            return
        began = time.monotonic()
        for shard in shards:
            shard.halt()
        await asyncio.gather(*(shard.stop(STOP_PATIENCE) for shard in shards))
        await self._commit_hint(left=left, seconds=2.0)
        self.shards.clear()
        log.info("event=revoked shards=%d seconds=%.3f", len(shards), time.monotonic() - began)

    async def _hint(self) -> None:
        while True:
            await asyncio.sleep(HINT_INTERVAL)
            await self._commit_hint(left=False, seconds=CALL_DEADLINE)

    async def _commit_hint(self, *, left: bool, seconds: float) -> None:
        """Commit the positions of committed state: ordinary consumer lag. They are never read back."""
        self._beats += 1
        note = "" if left else f"{self._spec_hash()} {self._worker} {self._beats}"
        offsets = {
            TopicPartition(topic, shard.number): OffsetAndMetadata(offset, note)
            for shard in self.shards.values()
            if shard.status.state in {State.RUNNING, State.REPLAYING, State.STOPPED}
            for topic, offset in shard.status.offsets.items()
        }
        assigned = self._consumer.assignment()
        offsets = {place: offset for place, offset in offsets.items() if place in assigned}
        if offsets:
            with contextlib.suppress(KafkaError, IllegalStateError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._consumer.commit(offsets)

    async def _watch(self) -> None:
        """Surface the group's own errors, which a worker without shards would never see, and restart stuck shards."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            try:
                self._consumer._coordinator.check_errors()  # noqa: SLF001  what getmany does, without fetching
            except KafkaError as error:
                meaning = explain(error, f"consumer group {self._name!r}", group=self._name)
                if not isinstance(meaning, BrokerUnavailable):
                    raise meaning from error
                log.warning("event=group_error error=%r", str(meaning))
            for shard in list(self.shards.values()):
                # A hand-over has a patience of its own, and nothing may begin after it.
                waits = shard.handed_over or shard.status.state in {State.PARKED, State.FAILED}
                if not waits and time.monotonic() - shard.status.beat > STUCK:
                    log.error("event=shard_stuck shard=%d seconds=%.0f", shard.number, STUCK)
                    await shard.restart()

    def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"group-{name}")

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self._fatal(error)

        task.add_done_callback(ended)
        return task


async def check_peers(cluster: Cluster, application: str, spec_hash: str) -> None:
    """Refuse to start beside a live worker with another specification.

    Offsets committed by workers carry their specification's hash and a counter. A foreign hash whose counter
    still moves belongs to a live worker; one that stands still for two intervals was left by a dead one.

    Raises
    ------
    ConfigError
        Another worker runs another specification.
    """
    doing = f"looking for other workers of group {group_id(application)!r}"
    async with started(cluster.admin(), doing) as admin:
        before = await _foreign(admin, application, spec_hash, doing)
        if not before:
            return
        log.info("event=waiting_for_peers seconds=%.0f", 2 * HINT_INTERVAL)
        end = time.monotonic() + 2 * HINT_INTERVAL + 1
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            now = await _foreign(admin, application, spec_hash, doing)
            moved = sorted({note.split()[1] for place, note in now.items() if before.get(place) != note})
            if moved:
                message = (
                    f"worker {moved[0]} of the same application is running another specification; two "
                    "would spend one "
                    "budget under two rules. Reload that worker with this configuration (SIGHUP), or "
                    "stop it first"
                )
                raise ConfigError([Problem(0, "monitors", message)], "other workers")


async def _foreign(
    admin: AIOKafkaAdminClient, application: str, spec_hash: str, doing: str
) -> dict[TopicPartition, str]:
    async with deadline(CALL_DEADLINE, doing, group=group_id(application)):
        offsets = await admin.list_consumer_group_offsets(group_id(application))
    return {
        place: committed.metadata
        for place, committed in offsets.items()
        if len(committed.metadata.split()) == 3 and committed.metadata.split()[0] != spec_hash
    }
