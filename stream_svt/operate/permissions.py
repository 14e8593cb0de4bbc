"""Tries the actions for which a worker needs permission, without an effect.

- READ on a topic: a fetch.
- WRITE on a topic: a transaction that a partition joins, without a record, and that is aborted. A record in an open
  transaction would hide newer commits from committed readers until the transaction ends, and a takeover of a shard is
  one: `check` may be killed in between.
- WRITE on the transactional id: a name with the application's prefix and the suffix of no shard fences no worker.
- READ on the group: a heartbeat of a member that does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.topology import Topology, retention_of
from stream_svt.errors import BrokerError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster, Fenced


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
    own, name, tried = config.topics, config.spec.application, Tried()
    for topic in [*config.spec.topics(), own.config, own.control, own.state, own.alerts]:
        if topic in topology.partitions:
            await tried.attempt(f"READ {topic}", kafka.try_fetch(cluster, topic, f"reading topic {topic!r}"))
        else:
            tried.untried.append(f"READ {topic} (it is missing)")
    identity = f"{name}-check"
    writes = await tried.attempt(f"WRITE transactional id {identity}", _begin_transactions(cluster, identity))
    for topic in (own.state, own.alerts, own.rejects):
        if reason := _untried(config, topology, topic) or ("" if writes else "no transaction can begin"):
            tried.untried.append(f"WRITE {topic} ({reason})")
        else:
            await tried.attempt(f"WRITE {topic}", _write(cluster, identity, topic))
    await tried.attempt(f"READ group {name}", kafka.try_membership(cluster, name))
    shards = own.partitions
    ids = f"{name}-0" if shards == 1 else f"{name}-0 to {name}-{shards - 1}"
    tried.untried.append(f"WRITE transactional id {ids} (it would fence a worker)")
    return tried


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
