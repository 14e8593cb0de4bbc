"""Tries the actions for which a worker or a counter needs permission, without an effect.

- READ on a topic: a fetch.
- WRITE on a topic: a transaction that a partition joins, without a record, and that is aborted. A record in an open
  transaction would hide newer commits from committed readers until the transaction ends, and a takeover of a shard is
  one: `check` may be killed in between.
- WRITE on the transactional id: a name with the application's prefix and the suffix of no shard fences no worker.
- READ on the group: a heartbeat of a member that does not exist.
- DELETE on the event log of a counter: the deletion of records before the offset 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import TopicAuthorizationFailedError

from stream_svt.application.config import Config
from stream_svt.application.topology import Topology, asked_topics, counts_topics, raw_topics, retention_of
from stream_svt.errors import BrokerError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster, Fenced
from stream_svt.settings.sources import LOG_PARTITIONS, log_topic


@dataclass(slots=True)
class Tried:
    """Allowed actions, actions that were not tried with the reason, and refused ones."""

    allowed: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def attempt(self, what: str, action: Awaitable[Any]) -> bool:
        """Await an action and record its outcome; return whether it was allowed."""
        try:
            await action
        except Fenced:  # another `check` tries the same name
            self.untried.append(f"{what} (somebody else tried it at the same time)")
            return False
        except BrokerError as error:
            self.refused.append(str(error))
            return False
        self.allowed.append(what)
        return True


async def try_permissions(config: Config, cluster: Cluster, topology: Topology) -> Tried:
    """Try every action of a worker that needs a permission, on the topics that exist."""
    own, name, trial = config.topics, config.spec.application, _Trial(config, cluster, topology)
    await trial.read(*config.spec.topics(), own.config, own.control, own.state, own.alerts)
    await trial.write(f"{name}-check", own.state, own.alerts, own.rejects)
    await trial.join(name)
    trial.spare(f"{name}-", own.partitions, "worker")
    return trial.tried


async def try_counter_permissions(config: Config, cluster: Cluster, topology: Topology) -> Tried:
    """Try every action of a counter that needs a permission, on the topics that exist."""
    name, trial = config.spec.application, _Trial(config, cluster, topology)
    log, ids = log_topic(name), f"{name}-sources-"
    await trial.read(*raw_topics(config), log, config.topics.config, *asked_topics(config))
    await trial.write(f"{ids}check", log, *counts_topics(config))
    await trial.delete(log)
    await trial.join(f"{name}-counters")
    trial.spare(ids, LOG_PARTITIONS, "counter")
    return trial.tried


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries actions on the topics that exist."""

    config: Config
    cluster: Cluster
    topology: Topology
    tried: Tried = field(default_factory=Tried)

    async def read(self, *topics: str) -> None:
        """Try to read topics."""
        for topic in topics:
            await self._on("READ", topic, kafka.try_fetch)

    async def write(self, identity: str, *topics: str) -> None:
        """Try a transactional id, and to write to topics under it."""
        begin = _begin_transactions(self.cluster, identity)
        writes = await self.tried.attempt(f"WRITE transactional id {identity}", begin)
        for topic in topics:
            lacks = "" if writes else "no transaction can begin"
            if reason := _untried(self.config, self.topology, topic) or lacks:
                self.tried.untried.append(f"WRITE {topic} ({reason})")
            else:
                await self.tried.attempt(f"WRITE {topic}", _write(self.cluster, identity, topic))

    async def delete(self, topic: str) -> None:
        """Try to delete records of a topic."""
        await self._on("DELETE", topic, _delete_nothing)

    async def _on(
        self, operation: str, topic: str, action: Callable[[Cluster, str], Awaitable[None]]
    ) -> None:
        if topic in self.topology.partitions:
            await self.tried.attempt(f"{operation} {topic}", action(self.cluster, topic))
        else:
            self.tried.untried.append(f"{operation} {topic} (it is missing)")

    async def join(self, group: str) -> None:
        """Try to join a group."""
        await self.tried.attempt(f"READ group {group}", kafka.try_membership(self.cluster, group))

    def spare(self, prefix: str, count: int, role: str) -> None:
        """Name the transactional ids that are not tried."""
        ids = f"{prefix}0" if count == 1 else f"{prefix}0 to {prefix}{count - 1}"
        self.tried.untried.append(f"WRITE transactional id {ids} (it would fence a {role})")


def _untried(config: Config, topology: Topology, topic: str) -> str:
    """Return why WRITE on a topic is not tried, or ""."""
    if topic not in topology.partitions:
        return "it is missing"
    limits = retention_of(topology.settings.get(topic, {}))
    if topic == config.topics.alerts and (limits or config.topics.allow_alert_retention):
        # The end of a transaction takes an offset that no state includes: once retention has deleted all
        # events, a takeover would miss it.
        return "its events may be deleted, and a shard accounts for every offset"
    return ""


async def _begin_transactions(cluster: Cluster, name: str) -> None:
    async with kafka.started(cluster.producer(name), f"starting a transaction as {name!r}", "WRITE"):
        pass


async def _write(cluster: Cluster, name: str, topic: str) -> None:
    doing = f"writing to topic {topic!r}"
    async with (
        kafka.started(cluster.producer(name), doing, "WRITE") as producer,
        kafka.deadline(kafka.CALL_DEADLINE, doing, "WRITE"),
    ):
        await producer.transact([], 0, [TopicPartition(topic, 0)], commit=False)


async def _delete_nothing(cluster: Cluster, topic: str) -> None:
    doing = f"deleting records of topic {topic!r}"
    async with (
        kafka.started(cluster.admin(), doing) as admin,
        kafka.deadline(kafka.CALL_DEADLINE, doing, "DELETE"),
    ):
        try:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(0)})
        except TopicAuthorizationFailedError as error:
            raise TopicAuthorizationFailedError(topic) from error  # aiokafka leaves the name out
