"""Topics of a test's own on the session's broker, and what an administrator does with them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from stream_svt.kafka.aiokafka_fixes import wait_for_brokers

STEADY = {"broker.session.timeout.ms": "60000"}
"""A broker that is not killed: it is not fenced when a busy machine keeps it from its heartbeats for seconds."""

CLOCK = {"message.timestamp.type": "LogAppendTime"}
COMPACTED = {"cleanup.policy": "compact"}
BROKER = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
"""What a broker of tests needs: sessions of a second or two, and short waits for what the dead left open."""


@contextlib.asynccontextmanager
async def administrator(servers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Connect a client that may do anything."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    try:
        await admin.start()
        await wait_for_brokers(admin, controller=True)
        yield admin
    finally:
        await admin.close()


class Topics:
    """Creates topics whose names no other test uses.

    Called with a stem it returns the new topic's name, for instance ``queries-1f0c9a2b``. All names that one
    instance makes end in the same ``suffix``, which also serves for application ids and groups.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.suffix = uuid.uuid4().hex[:8]

    def name(self, stem: str) -> str:
        """Return the name that a topic of this stem has, or would have."""
        return f"{stem}-{self.suffix}"

    async def __call__(
        self, stem: str = "topic", *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """Create one topic, ``configs`` being topic settings such as ``{"cleanup.policy": "compact"}``."""
        name = self.name(stem)
        await create_topics(self.bootstrap_servers, {name: partitions}, configs)
        return name


async def create_topics(
    bootstrap_servers: str,
    partitions: Mapping[str, int],
    configs: Mapping[str, str] | None = None,
    *,
    replicas: int = 1,
) -> None:
    """Create topics by exact name, each with its number of partitions; an existing one is an error."""
    async with administrator(bootstrap_servers) as admin:
        response = await admin.create_topics(
            [
                NewTopic(
                    name, num_partitions=count, replication_factor=replicas, topic_configs=dict(configs or {})
                )
                for name, count in partitions.items()
            ]
        )
        failed = [error for error in response.topic_errors if error[1]]
        assert not failed, f"topics were not created: {failed}"
        # A busy broker knows a topic some seconds after its creation.
        while any(topic["error_code"] for topic in await admin.describe_topics([*partitions])):
            await asyncio.sleep(0.05)


async def create_application(
    servers: str,
    application: str,
    partitions: int,
    *,
    replicas: int = 1,
    state: Mapping[str, str] | None = None,
) -> None:
    """Create the topics of an application; ``state`` are more settings of the one of that name."""
    own = {f"{application}.{name}": partitions for name in ("counts", "alerts", "rejects", "control")}
    await create_topics(servers, own, CLOCK, replicas=replicas)
    for name, more in (("state", state or {}), ("config", {})):
        configs = {**CLOCK, **COMPACTED, **more}
        await create_topics(servers, {f"{application}.{name}": partitions}, configs, replicas=replicas)


async def delete_before(servers: str, topic: str, offset: int, partition: int = 0) -> None:
    async with administrator(servers) as admin:
        await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(offset)})
