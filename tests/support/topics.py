"""Topics of a test's own on the session's broker."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from aiokafka.admin import AIOKafkaAdminClient, NewTopic


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
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        response = await admin.create_topics(
            [
                NewTopic(
                    name,
                    num_partitions=count,
                    replication_factor=replicas,
                    topic_configs=dict(configs or {}),
                )
                for name, count in partitions.items()
            ]
        )
        failed = [error for error in response.topic_errors if error[1]]
        assert not failed, f"topics were not created: {failed}"
    finally:
        await admin.close()
