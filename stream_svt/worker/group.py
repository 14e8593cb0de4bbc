"""Membership of the consumer group: which shards this worker owns, and how workers divide them.

The group subscribes to the control topic only; its partition p belongs to shard p. aiokafka's rebalance protocol is
eager: whenever a worker joins or leaves, all partitions are revoked from all workers and assigned anew. Shards pause
in between, and only those that move are closed and opened:

revoked     every shard publishes charged events and pauses; a shard that does not pause in time is cancelled
assigned    a shard that stays resumes, a shard that moved away ends, a new shard is opened

The shard counts of two workers differ by one at most, and as few shards as possible move.
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

from stream_svt.application.topology import another_count
from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.kafka import aiokafka_fixes
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.topic_ids import topic_ids
from stream_svt.protocol.configuration import FORMAT
from stream_svt.protocol.shard_states import OPEN, ShardState
from stream_svt.protocol.state_records import created_again
from stream_svt.worker.shard import STUCK, Shard, WorkerParts, describe

log = logging.getLogger(__name__)

STOP_TIMEOUT = 0.6 * kafka.REBALANCE_TIMEOUT
LEAVE_TIMEOUT = 5.0
"""Seconds that leaving the group may take."""
HAND_OVER_TIMEOUT = 1.0
"""Seconds that a shard assigned to another worker has to end: it is paused, or still being opened."""
WATCH_INTERVAL = 1.0
TOPICS_INTERVAL = 10.0
"""Seconds between two checks whether a topic was created again."""
LAG_INTERVAL = 10.0
"""Seconds between updates of the lag on topics that the worker does not read at the moment."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class UserData(msgspec.Struct, frozen=True):
    """User data of a member: its shards, each with the number of transactions, and its newest configuration format."""

    held: list[tuple[_Count, _Count]] = []
    reads: _Count = 0


class StickyAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """Leaves shards with their workers; the group's leader runs it for all members.

    Its name is unique to this service, so that the coordinator refuses other consumers, which would get shards.
    ``held`` returns this worker's shards, each with its number of transactions: if two workers name one shard, the
    worker with the larger number ran it last.
    """

    name = "stream-svt"

    def __init__(self, held: Callable[[], Mapping[int, int]]) -> None:
        self._held = held

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return this worker's metadata for the group's leader."""
        data = UserData(list(self._held().items()), FORMAT)
        return ConsumerProtocolMemberMetadata(0, list(topics), msgspec.json.encode(data))

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
        """Do nothing: `metadata` asks for the worker's shards."""


def share(shards: Iterable[int], claims: Mapping[str, Mapping[int, int]]) -> dict[str, list[int]]:
    """Return the new shards of each worker, sorted, given the present shards of each worker."""
    unassigned = set(shards)
    holder: dict[int, tuple[int, str]] = {}
    for member, held in claims.items():
        for shard in unassigned.intersection(held):
            holder[shard] = max(holder.get(shard, (-1, "")), (held[shard], member))
    kept: dict[str, list[int]] = {member: [] for member in claims}
    for shard in sorted(holder):
        kept[holder[shard][1]].append(shard)
    # If the division leaves a remainder, the workers with most shards get one more.
    order = sorted(claims, key=lambda member: (-len(kept[member]), member))
    quotient, remainder = divmod(len(unassigned), len(order))
    quota = {member: quotient + (index < remainder) for index, member in enumerate(order)}
    assigned = {member: kept[member][: quota[member]] for member in order}
    unassigned -= {shard for numbers in assigned.values() for shard in numbers}
    remaining = iter(sorted(unassigned))
    for member, numbers in assigned.items():
        numbers += [next(remaining) for _ in range(quota[member] - len(numbers))]
        numbers.sort()
    return assigned


def user_data(data: Any) -> UserData:  # noqa: ANN401  bytes of another member
    """Decode the user data of a member; empty if it is unreadable."""
    try:
        return msgspec.json.decode(data, type=UserData)
    except (msgspec.DecodeError, TypeError):
        return UserData()


class Group(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The membership of a worker, and a shard for each partition assigned to it.

    ``fatal`` is called with errors that end the membership. ``joined`` is true from an assignment to the next
    revocation, ``has_joined`` from the first assignment on.
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
        self._unreachable_since: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._discarding: set[asyncio.Task[None]] = set()

    @property
    def unreachable(self) -> bool:
        """Whether the coordinator could not be reached for longer than a session: others may own the shards by now."""
        since, session = self._unreachable_since, self._parts.config.kafka.session_timeout / 1000
        return since is not None and time.monotonic() - since > session

    async def start(self) -> None:
        """Join the group; `on_partitions_assigned` is called later."""
        async with kafka.deadline(kafka.START_DEADLINE, f"joining group {self._name!r}"):
            await self._consumer.start()
        self._consumer.subscribe([self._control], listener=self)
        looks = {"watch": self._watch(), "lag": self._update_lag(), "topics": self._compare_topics()}
        self._tasks = [asyncio.create_task(look, name=f"group-{name}") for name, look in looks.items()]
        for task in self._tasks:
            task.add_done_callback(self._report)

    async def stop(self) -> None:
        """Hand all shards over and leave the group at once."""
        self._stopping, self.joined = True, False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            ending = [shard.stop(STOP_TIMEOUT) for shard in self.shards.values()]
            await asyncio.gather(*ending, *self._discarding)
            self.shards.clear()
        finally:
            # Until a member leaves or its session times out, no other worker gets its shards.
            await kafka.stop_quietly(self._consumer, LEAVE_TIMEOUT)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Resume shards that stay and start new ones; return quickly, because no heartbeat is sent meanwhile."""
        # aiokafka only logs errors that a listener raises.
        try:
            self._consumer.pause(*assigned)
            self._parts.metrics.count("rebalances_total")
            self.has_joined = True
            if self._stopping:
                return
            partitions, wanted = self._consumer.partitions_for_topic(self._control), self._partitions
            self.joined = partitions is not None
            if partitions is None:
                # No worker gets a shard, so this one must not count as a standby, which is ready.
                log.error("event=control_topic_missing topic=%s", self._control)
            elif any(tp.partition >= wanted for tp in assigned):
                message = another_count(self._control, len(partitions), wanted)
                raise ConfigError([Problem(0, "topics.partitions", message)], "consumer group")
            self._adopt(sorted(tp.partition for tp in assigned))
        except Exception as error:  # noqa: BLE001
            self._fatal(error)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Pause every shard before another worker may get it."""
        del revoked
        # Until the next assignment, which may be empty; unreachable brokers send none.
        self.joined = False
        shards = [] if self._stopping else list(self.shards.values())
        if not shards:
            return
        began = time.monotonic()
        try:
            paused = await asyncio.gather(*(shard.hold(STOP_TIMEOUT) for shard in shards))
            late = [shard for shard, in_time in zip(shards, paused, strict=True) if not in_time]
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
        if self.shards:
            log.info("event=kept shards=%s", _listed(sorted(self.shards)))
        for number in numbers:
            if number in self.shards:
                self.shards[number].release()
            else:
                self.shards[number] = Shard(number, self._parts, self._consumer)

    def _discard(self, shard: Shard) -> None:
        """End a shard in a separate task: the next worker that opens it, perhaps this one, fences it."""
        task = asyncio.create_task(shard.stop(HAND_OVER_TIMEOUT), name=f"leave-{shard.number}")
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)
        task.add_done_callback(self._report)

    async def _update_lag(self) -> None:
        """Update the lag of partitions that are not read now: of shards that are not open, and of paused topics."""
        while True:
            await asyncio.sleep(LAG_INTERVAL)
            statuses = {number: shard.status for number, shard in self.shards.items()}
            for topic in sorted({topic for status in statuses.values() for topic in status.offsets}):
                partitions = [TopicPartition(topic, n) for n in statuses if topic in statuses[n].offsets]
                doing = f"reading the end offsets of topic {topic!r}"
                try:
                    # As in high water marks, records of open transactions count, too.
                    spans = await kafka.spans(self._parts.cluster, partitions, doing, "read_uncommitted")
                except BrokerError:
                    continue  # the shards that read the topic report the error
                except Exception as error:  # noqa: BLE001  only a metric depends on it
                    log.error("event=lag_unknown error=%r", describe(error))  # noqa: TRY400  the trace could show a value
                    continue
                for tp, (_, end) in spans.items():
                    status = statuses[tp.partition]
                    status.lag[topic] = max(end - status.offsets.get(topic, end), 0)

    async def _compare_topics(self) -> None:
        """End the sessions of shards whose topics were created again: the next sessions find the lost records."""
        while True:
            await asyncio.sleep(TOPICS_INTERVAL)
            topics = sorted({topic for shard in self.shards.values() for topic in shard.status.topic_ids})
            if not topics:
                continue
            try:
                async with kafka.deadline(kafka.CALL_DEADLINE, "reading the ids of topics", "DESCRIBE"):
                    found = await topic_ids(aiokafka_fixes.connections(self._consumer), topics)
            except BrokerError:
                continue  # the shards that use the topics report the error
            for shard in list(self.shards.values()):
                replaced = sorted(created_again(shard.status.topic_ids, found))
                if replaced and shard.status.state in OPEN:
                    log.critical(
                        "event=topics_created_again shard=%d topics=%s", shard.number, ",".join(replaced)
                    )
                    shard.configure()

    async def _watch(self) -> None:
        """Report errors of the group client, which a worker without shards would not see, and restart stuck shards."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            self._check_client()
            for shard in list(self.shards.values()):
                # A hand-over has its own timeout, and no session may begin after it.
                waits = shard.handed_over or shard.held or shard.status.state is ShardState.NOT_MEMBER
                if not waits and time.monotonic() - shard.status.beat > STUCK:
                    log.error("event=shard_stuck shard=%d seconds=%.0f", shard.number, STUCK)
                    await shard.restart()

    def _check_client(self) -> None:
        """Raise the error that has ended the membership or prevents it."""
        consumer = self._consumer
        since = (
            None if aiokafka_fixes.has_coordinator(consumer) else self._unreachable_since or time.monotonic()
        )
        self._unreachable_since = since
        check_membership(consumer, self._name)

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)


def check_membership(consumer: Any, group: str) -> None:  # noqa: ANN401  aiokafka has no types
    """Raise the error that has ended a member's membership or prevents it."""
    doing = f"consumer group {group!r}"
    if (ended := aiokafka_fixes.membership_error(consumer)) is not None:
        raise kafka.explain(ended, doing, group=group) from ended
    try:
        aiokafka_fixes.check_errors(consumer)
    except KafkaError as error:
        meaning = kafka.explain(error, doing, group=group)
        if not isinstance(meaning, kafka.BrokerUnavailable):
            raise meaning from error
        log.warning("event=group_error error=%r", str(meaning))


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "none"
