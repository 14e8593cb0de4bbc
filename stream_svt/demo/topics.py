"""The demo's topics on a broker that is not its own."""

from __future__ import annotations

import asyncio
import contextlib

from aiokafka.errors import KafkaError

from stream_svt.demo.config import Setting
from stream_svt.errors import BrokerError
from stream_svt.service.kafka import Cluster, started

DELETE_SECONDS = 15.0


async def require_broker(bootstrap: str) -> None:
    """Return when a broker answers.

    Raises:
        BrokerError: None does; the message says what to check.
    """
    async with started(Cluster({"bootstrap_servers": bootstrap}).admin(), f"reaching Kafka at {bootstrap}"):
        return


async def delete_topics(setting: Setting) -> None:
    """Delete the demo's topics; what cannot be deleted is left, for its name is the demo's alone.

    The broker forgets the offsets of the groups and the transactional ids by itself
    (`offsets.retention.minutes`, `transactional.id.expiration.ms`; both a week by default): its admin
    client cannot delete them.
    """
    cluster = Cluster({"bootstrap_servers": setting.bootstrap})
    with contextlib.suppress(BrokerError, KafkaError, TimeoutError, OSError):
        async with (
            asyncio.timeout(DELETE_SECONDS),
            started(cluster.admin(), "deleting the demo's topics") as admin,
        ):
            await admin.delete_topics(setting.topics)
