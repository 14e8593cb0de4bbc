"""Three embedded brokers that replicate one another, each broker and controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from stream_svt.kafka.embedded import EmbeddedKafka, free_ports, new_cluster_id
from tests.support.topics import BROKER

REPLICAS = 3


class ThreeBrokers:
    """The brokers, of which the first has number 1, and the address of all of them, so that any may be away."""

    def __init__(self) -> None:
        ports = [free_ports(2) for _ in range(REPLICAS)]
        replicated = {
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{two[1]}" for n, two in enumerate(ports, 1)),
            "offsets.topic.replication.factor": str(REPLICAS),
            "transaction.state.log.replication.factor": str(REPLICAS),
            "transaction.state.log.min.isr": "2",
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "false",
        }
        storage = ("-t", new_cluster_id())
        self.members = [
            EmbeddedKafka(overrides=BROKER | replicated | {"node.id": str(n)}, ports=two, storage=storage)
            for n, two in enumerate(ports, 1)
        ]
        self.bootstrap_servers = ",".join(member.bootstrap_servers for member in self.members)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ThreeBrokers]:
        """Start all at once, for one alone finds no majority."""
        try:
            await asyncio.gather(*(asyncio.to_thread(member.start) for member in self.members))
            yield self
        finally:
            for member in self.members:
                await asyncio.to_thread(member.stop, grace=0)
