"""Changes the number of partitions of a stopped application on Kafka; see `stream_svt.protocol.migration`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions
from aiokafka.errors import TopicAuthorizationFailedError, for_code

from stream_svt.errors import ConfigError, MigrationRefused, Problem
from stream_svt.protocol import migration
from stream_svt.protocol.journal import Topics
from stream_svt.protocol.migration import Move, MovingJournal, Report
from stream_svt.protocol.sealing import Place
from stream_svt.service.config import Config
from stream_svt.service.group import group_id
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    Cluster,
    deadline,
    discard_producer,
    read_partition,
    spans,
    started,
    stop_quietly,
)
from stream_svt.service.shard_log import ShardLog
from stream_svt.service.topology import SECOND_LOOK, Topology, look, wanted_topics
from stream_svt.service.wire import home
from stream_svt.service.workload import Workload

TRANSACTION_TIMEOUT = 120.0
"""Seconds for a transaction that may hold every record of the state."""


class PatientCluster(Cluster):
    """A cluster on which one transaction may take longer than in the service."""

    @property
    def commit_deadline(self) -> float:
        """Seconds one transaction may take."""
        return 0.7 * self.transaction_timeout


class KafkaGround:
    """All shards of an application on Kafka (see `stream_svt.protocol.migration.Ground`).

    Parameters
    ----------
    cluster
        How to reach the brokers.
    config
        The application, with its present number of partitions.
    cluster_id
        Identity of the cluster; part of what seals state.
    target
        Number of partitions wanted.
    """

    def __init__(self, cluster: Cluster, config: Config, cluster_id: str, target: int) -> None:
        self._cluster = PatientCluster(cluster.arguments, transaction_timeout=TRANSACTION_TIMEOUT)
        self._config = config
        self._cluster_id = cluster_id
        self._target = target
        self._transactional_id = f"{config.spec.application}-migrate"
        self._producer: Any = None
        self._reader: Any = None
        self._journals: list[MovingJournal] = []
        self._may_grow = False

    async def close(self) -> None:
        """Give all producers up."""
        for journal in self._journals:
            await journal.close()
        producer, self._producer = self._producer, None
        await discard_producer(producer)
        if self._reader is not None:
            await stop_quietly(self._reader)

    async def claim(self) -> None:
        """Start the producer; the broker ends an older one's transaction before it lets a new one begin."""
        producer, self._producer = self._producer, None
        await discard_producer(producer)
        self._producer = self._cluster.producer(self._transactional_id)
        async with deadline(START_DEADLINE, f"starting producer {self._transactional_id!r}", "WRITE"):
            await self._producer.start()
        if not self._may_grow:
            # Before runs are closed for the move, not after.
            await self._add_partitions(wanted_topics(self._config), validate_only=True)
            self._may_grow = True

    def journal(self, shard: int, partitions: int) -> MovingJournal:
        """Return the books of a shard."""
        config, topics = self._config, self._config.topics
        written = Topics(topics.state, topics.alerts, topics.rejects)
        journal = MovingJournal(
            ShardLog(self._cluster, config.spec.application, shard, written),
            Place(self._cluster_id, config.spec.application, topics.state, shard),
            written,
            partitions=partitions,
            target=self._target,
            masters=() if config.master_key is None else (config.master_key, *config.previous_keys),
            adopt_plain=config.sealing.adopt_plain,
            entropy=os.urandom,
            epoch=time.time,
        )
        self._journals.append(journal)
        return journal

    async def spans(self, shard: int, topics: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return first and end offset by topic."""
        places = [TopicPartition(topic, shard) for topic in topics]
        doing = f"shard {shard}: finding the ends of the topics"
        reader = await self._read(doing)
        async with deadline(CALL_DEADLINE, doing):
            first, end = await reader.beginning_offsets(places), await reader.end_offsets(places)
        return {place.topic: (first[place], end[place]) for place in places}

    async def unread(self, shard: int, topic: str, offset: int, done: Container[int] = ()) -> bool:
        """Look for a record; markers of producers' transactions are none."""
        doing = f"shard {shard}: looking for unread records of topic {topic!r}"
        reader = await self._read(doing)
        async for records in read_partition(reader, topic, shard, offset, doing, records=500):
            if any(record.offset not in done for record in records):
                return True
        return False

    async def _read(self, doing: str) -> Any:  # noqa: ANN401
        """Return the one reader for all questions."""
        if self._reader is None:
            reader = self._cluster.reader()
            async with deadline(START_DEADLINE, doing):
                await reader.start()
            self._reader = reader
        return self._reader

    async def shards(self) -> int:
        """Return how many partitions the topics have that a shard writes to."""
        own = self._config.topics
        counts = (await look(self._config, self._cluster)).partitions
        return min(counts[topic] for topic in (own.state, own.alerts, own.rejects))

    async def grow(self, *, inputs: bool) -> None:
        """Create the partitions that are missing, and wait until the brokers speak of them."""
        own = self._config.topics
        written = {own.state, own.alerts, own.rejects}
        wanted = set(wanted_topics(self._config)) - written if inputs else written
        if not await self._add_partitions(wanted):
            return
        async with deadline(START_DEADLINE, "waiting for the new partitions"):
            while True:
                counts = (await look(self._config, self._cluster)).partitions
                if min(counts[topic] for topic in wanted) >= self._target:
                    break
                await asyncio.sleep(0.2)
        await asyncio.sleep(SECOND_LOOK)  # the other brokers hear of it a moment later

    async def _add_partitions(self, wanted: Iterable[str], *, validate_only: bool = False) -> bool:
        """Add partitions to those topics that have fewer than wanted, or only ask whether that is allowed."""
        doing = "adding partitions to the topics"
        counts = (await look(self._config, self._cluster)).partitions
        missing = [topic for topic in wanted if counts[topic] < self._target]
        async with started(self._cluster.admin(), doing) as admin:
            for topic in missing:
                async with deadline(START_DEADLINE, doing, "ALTER"):
                    try:
                        await admin.create_partitions(
                            {topic: NewPartitions(self._target)}, validate_only=validate_only
                        )
                    except TopicAuthorizationFailedError as error:
                        raise TopicAuthorizationFailedError(topic) from error
        return bool(missing)

    async def write(self, records: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        """Write all shards' records in one transaction."""
        topic, producer = self._config.topics.state, self._producer
        async with deadline(self._cluster.commit_deadline, "moving the state", "WRITE"):
            while len(await producer.partitions_for(topic)) < self._target:
                await producer.client.force_metadata_update()
                await asyncio.sleep(0.1)
            await producer.begin_transaction()
            sent = [
                await producer.send(topic, content, key=key, partition=shard)
                for shard, changes in records.items()
                for key, content in changes.items()
            ]
            # A refused record does not fail the commit by itself: every future is looked at first.
            results: list[Any] = await asyncio.gather(*sent, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            await producer.commit_transaction()
        # The commit returns before its markers are written; a new producer has to wait for them.
        await self.claim()


async def migrate(config: Config, cluster: Cluster, target: int, *, leave_unread: bool = False) -> Report:
    """Carry a migration out, or the rest of one that was interrupted.

    Raises
    ------
    ConfigError, MigrationRefused
        It cannot be done, or not now; nothing was changed.
    UnreadableState, StateRolledBack, BrokerError
        As a worker's start.
    """
    async with _ground(config, cluster, target) as ground:
        return await migration.migrate(ground, _move(config, target, leave_unread=leave_unread))


async def rehearse(config: Config, cluster: Cluster, target: int, *, leave_unread: bool = False) -> Report:
    """Tell what `migrate` would do, without writing anything.

    Raises
    ------
    ConfigError, MigrationRefused, UnreadableState, BrokerError
        As `migrate`.
    """
    async with _ground(config, cluster, target) as ground:
        return await migration.rehearse(ground, _move(config, target, leave_unread=leave_unread))


def _move(config: Config, target: int, *, leave_unread: bool) -> Move:
    topics = config.topics
    return Move(
        before=Workload(config.spec, topics.partitions),
        after=Workload(config.spec, target),
        partitions=topics.partitions,
        target=target,
        homes={dataset.name: home(dataset.name.encode(), target) for dataset in config.spec.datasets},
        control=topics.control,
        start_at=topics.start_at,
        leave_unread=leave_unread,
    )


@asynccontextmanager
async def _ground(config: Config, cluster: Cluster, target: int) -> AsyncIterator[KafkaGround]:
    """Check what can be checked before anything is opened."""
    _refuse_fewer(config, target)
    await _require_stopped(config, cluster)
    topology = await look(config, cluster)
    await _require_topics(config, cluster, topology, target)
    ground = KafkaGround(cluster, config, topology.cluster_id, target)
    try:
        yield ground
    finally:
        await ground.close()


def _refuse_fewer(config: Config, target: int) -> None:
    count = config.topics.partitions
    if target < count:
        message = (
            f"{target} is less than the present {count}: Kafka cannot take partitions away from a topic. To go on "
            "with fewer, declare a new application with new topics and datasets for data not seen yet"
        )
        raise ConfigError([Problem(0, "partitions", message)], "migrate")
    if target == count:
        message = (
            f"topics.partitions says {count} already. If a migration to {count} is to be finished, put the old number "
            "back into the file first"
        )
        raise ConfigError([Problem(0, "partitions", message)], "migrate")


async def _require_stopped(config: Config, cluster: Cluster) -> None:
    """Refuse while workers are members of the group. A courtesy: what protects the books is that they are fenced."""
    group = group_id(config.spec.application)
    doing = f"looking for members of group {group!r}"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, group=group):
        responses = await admin.describe_consumer_groups([group])
        described = [found for response in responses for found in response.groups]
        for code, *_ in described:
            if code:
                raise for_code(code)(group)
    members = [member for found in described for member in found[5]]
    if members:
        raise MigrationRefused(
            f"group {group!r} has {len(members)} member{'s' * (len(members) != 1)}: stop every worker "
            "first. Nothing was changed"
        )


async def _require_topics(config: Config, cluster: Cluster, topology: Topology, target: int) -> None:
    count = config.topics.partitions
    found = []
    for topic, field in wanted_topics(config).items():
        has = topology.partitions.get(topic)
        if has not in (count, target):
            message = f"topic {topic!r} has {has or 'no'} partitions, expected {count} or {target}"
            found.append(Problem(0, field, message))
    if found:
        raise ConfigError(found, f"{config.source} against the topics of cluster {topology.cluster_id}")
    alerts = config.topics.alerts
    if topology.partitions[alerts] == target:
        places = [TopicPartition(alerts, number) for number in range(count, target)]
        used = [
            place.partition
            for place, (_, end) in (await spans(cluster, places, "looking at the new partitions")).items()
            if end
        ]
        state = [TopicPartition(config.topics.state, number) for number in used]
        if used and not await _written(config, cluster, topology, state):
            message = (
                f"partition {used[0]} of {alerts!r} holds records, although no shard {used[0]} has ever been: they "
                "would count as events of a deleted state"
            )
            raise ConfigError([Problem(0, "topics.alerts", message)], "migrate")


async def _written(
    config: Config, cluster: Cluster, topology: Topology, places: Sequence[TopicPartition]
) -> bool:
    """Tell whether all of some partitions of the state topic were written to."""
    if topology.partitions[config.topics.state] <= max(place.partition for place in places):
        return False
    found = await spans(cluster, places, "looking at the new partitions")
    return all(end for _, end in found.values())
