"""Membership of the consumer group: which shards this worker owns, and whom it shares the application with.

The group reads the control topic only; partition p of it stands for shard p. aiokafka's protocol is eager: whenever
a worker joins or leaves, every worker loses every partition and is given some again. Shards stand by in between, and
only those that move are closed and opened:

revoked     every shard publishes what is charged and stands by; one that does not in time is cut short
assigned    a shard that stays goes on, one that is gone ends, one that is new is opened

No worker is given two shards more than another, and as few as possible move.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from stream_svt import aiokafka_fixes
from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.protocol.configuration import FORMAT
from stream_svt.protocol.shard_states import ShardState
from stream_svt.service import kafka
from stream_svt.service.shard import STUCK, Shard, WorkerParts, describe
from stream_svt.service.topology import another_count

log = logging.getLogger(__name__)

STOP_TIMEOUT = 0.6 * kafka.REBALANCE_TIMEOUT
LEAVE_TIMEOUT = 5.0
"""Seconds that leaving the group may take."""
HAND_OVER_TIMEOUT = 1.0
"""Seconds that a shard which went elsewhere has to end: it stands by, or is being opened for nothing."""
WATCH_INTERVAL = 1.0
LAG_INTERVAL = 10.0
"""Seconds between looks at the ends of topics that nothing is read from at the moment."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class UserData(msgspec.Struct, frozen=True):
    """What a worker tells when it joins.

    Attributes:
        held: The shards that it holds, each with its number of transactions.
        reads: The newest format of a configuration that it reads.
    """

    held: list[tuple[_Count, _Count]] = []
    reads: _Count = 0


class StickyAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """Leaves shards with the workers that hold them; the group's first worker decides by it for all.

    Its name is this service's own: whoever else joins the group is refused, where it would be given shards.

    Args:
        held: Returns the shards that this worker holds, each with its number of transactions. Of two that
            hold one the smaller number stood still while the other went on.
    """

    name = "stream-svt"

    def __init__(self, held: Callable[[], Mapping[int, int]]) -> None:
        self._held = held

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this worker tells whoever decides."""
        told = UserData(list(self._held().items()), FORMAT)
        return ConsumerProtocolMemberMetadata(0, list(topics), msgspec.json.encode(told))

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return the shards of every worker."""
        given: dict[str, list[tuple[str, list[int]]]] = {member: [] for member in members}
        for topic in sorted({topic for metadata in members.values() for topic in metadata.subscription}):
            claims = {
                member: dict(user_data(metadata.user_data).held)
                for member, metadata in members.items()
                if topic in metadata.subscription
            }
            for member, shards in share(cluster.partitions_for_topic(topic) or (), claims).items():
                given[member].append((topic, shards))
        return {member: ConsumerProtocolMemberAssignment(0, topics, b"") for member, topics in given.items()}

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Nothing is kept: what is held is asked for when it is told."""


def share(shards: Iterable[int], claims: Mapping[str, Mapping[int, int]]) -> dict[str, list[int]]:
    """Return the shards of each worker, sorted, from what each of them holds."""
    left = set(shards)
    holder: dict[int, tuple[int, str]] = {}
    for member, held in claims.items():
        for shard in left.intersection(held):
            holder[shard] = max(holder.get(shard, (-1, "")), (held[shard], member))
    mine: dict[str, list[int]] = {member: [] for member in claims}
    for shard in sorted(holder):
        mine[holder[shard][1]].append(shard)
    # Whoever holds most keeps the one more that some must have.
    order = sorted(claims, key=lambda member: (-len(mine[member]), member))
    least, more = divmod(len(left), len(order))
    quota = {member: least + (index < more) for index, member in enumerate(order)}
    given = {member: mine[member][: quota[member]] for member in order}
    left -= {shard for numbers in given.values() for shard in numbers}
    spare = iter(sorted(left))
    for member, numbers in given.items():
        numbers += [next(spare) for _ in range(quota[member] - len(numbers))]
        numbers.sort()
    return given


def user_data(data: Any) -> UserData:  # noqa: ANN401  bytes of another member
    """Return what a worker tells; nothing where that cannot be read."""
    try:
        return msgspec.json.decode(data, type=UserData)
    except (msgspec.DecodeError, TypeError):
        return UserData()


class Group(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The membership of a worker, and a shard for each partition it is given.

    ``fatal`` is told of errors after which the worker cannot go on as a member. ``joined`` holds from an assignment to
    the next revocation, ``has_joined`` for ever after the first one.
    """

    def __init__(self, parts: WorkerParts, fatal: Callable[[BaseException], None]) -> None:
        self.shards: dict[int, Shard] = {}
        self.joined = self.has_joined = False
        self._parts = parts
        self._fatal = fatal
        self._name = parts.config.spec.application
        self._control, self._partitions = parts.config.topics.control, parts.config.topics.partitions
        assignor = StickyAssignor(
            lambda: {number: shard.status.sequence for number, shard in self.shards.items()}
        )
        self._consumer = parts.cluster.member(self._name, assignor)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._discarding: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Join the group; assignments come later, on their own."""
        async with kafka.deadline(kafka.START_DEADLINE, f"joining group {self._name!r}"):
            await self._consumer.start()
        self._consumer.subscribe([self._control], listener=self)
        watching = asyncio.create_task(self._watch(), name="group-watch")
        watching.add_done_callback(self._report)
        self._tasks = [watching, asyncio.create_task(self._update_lag(), name="group-lag")]

    async def stop(self) -> None:
        """Hand all shards over and leave the group at once."""
        self._stopping, self.joined = True, False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            shards = list(self.shards.values())
            for shard in shards:
                shard.halt()
            await asyncio.gather(*(shard.stop(STOP_TIMEOUT) for shard in shards), *self._discarding)
            self.shards.clear()
        finally:
            # Whatever happens before: a member that is gone without leaving keeps its shards from others.
            await kafka.stop_quietly(self._consumer, LEAVE_TIMEOUT)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Let shards that stay go on, start the others; nothing slow, for no heartbeat is sent meanwhile."""
        # aiokafka logs what a listener raises and goes on.
        try:
            self._consumer.pause(*assigned)
            self._parts.metrics.count("rebalances_total")
            self.has_joined = True
            if self._stopping:
                return
            known, wanted = self._consumer.partitions_for_topic(self._control), self._partitions
            self.joined = known is not None
            if known is None:
                # Nobody is given a shard: no reason to pass for a standby, which is ready.
                log.error("event=control_topic_missing topic=%s", self._control)
            elif any(tp.partition >= wanted for tp in assigned):
                message = another_count(self._control, len(known), wanted)
                raise ConfigError([Problem(0, "topics.partitions", message)], "consumer group")
            self._adopt(sorted(tp.partition for tp in assigned))
        except Exception as error:  # noqa: BLE001
            self._fatal(error)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Have every shard stand by before anybody else may get it."""
        del revoked
        # Until assigned again, if only nothing: brokers that are gone assign nothing at all.
        self.joined = False
        shards = [] if self._stopping else list(self.shards.values())
        if not shards:
            return
        began = time.monotonic()
        try:
            for shard in shards:
                shard.hold()
            settled = await asyncio.gather(*(shard.settle(STOP_TIMEOUT) for shard in shards))
            late = [shard for shard, in_time in zip(shards, settled, strict=True) if not in_time]
            await asyncio.gather(*(shard.stop(0.0) for shard in late))
        except Exception as error:  # noqa: BLE001
            self._fatal(error)
            return
        for shard in late:
            self.shards.pop(shard.number, None)  # the worker may have left meanwhile
        log.info("event=revoked shards=%d seconds=%.3f", len(shards), time.monotonic() - began)

    def _adopt(self, numbers: list[int]) -> None:
        log.info("event=assigned shards=%s", _listed(numbers))
        for number in self.shards.keys() - set(numbers):
            self._discard(self.shards.pop(number))
        if kept := sorted(self.shards):
            log.info("event=kept shards=%s", _listed(kept))
        for number in kept:
            self.shards[number].release()
        for number in numbers:
            if number not in self.shards:
                self.shards[number] = Shard(number, self._parts, self._consumer)
                self.shards[number].start()

    def _discard(self, shard: Shard) -> None:
        """End a shard beside everything else: whoever opens it next, this worker or another, fences it."""
        shard.halt()
        parting = asyncio.create_task(shard.stop(HAND_OVER_TIMEOUT), name=f"leave-{shard.number}")
        self._discarding.add(parting)
        parting.add_done_callback(self._discarding.discard)
        parting.add_done_callback(self._report)

    async def _update_lag(self) -> None:
        """Keep the lag true of partitions that nothing is read from: of shards that are not open, of paused topics."""
        while True:
            await asyncio.sleep(LAG_INTERVAL)
            statuses = {number: shard.status for number, shard in self.shards.items()}
            for topic in sorted({topic for status in statuses.values() for topic in status.offsets}):
                partitions = [
                    TopicPartition(topic, one) for one in statuses if topic in statuses[one].offsets
                ]
                doing = f"looking at the end of topic {topic!r}"
                try:
                    found = await kafka.spans(self._parts.cluster, partitions, doing)
                except BrokerError:
                    continue  # whoever reads the topic says what is wrong with it
                except Exception as error:  # noqa: BLE001  a metric: nothing else of the worker hangs on it
                    log.error("event=lag_unknown error=%r", describe(error))  # noqa: TRY400  the trace could show a value
                    continue
                for tp, (_, end) in found.items():
                    status = statuses[tp.partition]
                    status.lag[topic] = max(end - status.offsets.get(topic, end), 0)

    async def _watch(self) -> None:
        """Surface the group's own errors, which a worker without shards would never see, and restart stuck shards."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            self._check_client()
            for shard in list(self.shards.values()):
                # A hand-over has a patience of its own, and nothing may begin after it.
                waits = shard.handed_over or shard.held or shard.status.state is ShardState.NOT_MEMBER
                if not waits and time.monotonic() - shard.status.beat > STUCK:
                    log.error("event=shard_stuck shard=%d seconds=%.0f", shard.number, STUCK)
                    await shard.restart()

    def _check_client(self) -> None:
        """Raise what has ended the membership, or keeps it from coming about."""
        consumer, doing = self._consumer, f"consumer group {self._name!r}"
        if (ended := aiokafka_fixes.ended(consumer)) is not None:
            raise kafka.explain(ended, doing, group=self._name) from ended
        try:
            aiokafka_fixes.check_errors(consumer)
        except KafkaError as error:
            meaning = kafka.explain(error, doing, group=self._name)
            if not isinstance(meaning, kafka.BrokerUnavailable):
                raise meaning from error
            log.warning("event=group_error error=%r", str(meaning))

    def _report(self, task: asyncio.Task[None]) -> None:
        """Tell of the error that ended a task."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "none"
