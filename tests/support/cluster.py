"""Three embedded brokers that replicate one another, each broker and controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from stream_svt.service.embedded import EmbeddedKafka, free_ports, new_cluster_id

REPLICAS = 3


class Member(EmbeddedKafka):
    """One of several brokers; its number counts from 1."""

    def __init__(
        self, number: int, cluster: str, ports: list[list[int]], overrides: Mapping[str, str]
    ) -> None:
        voters = ",".join(f"{place}@127.0.0.1:{port[1]}" for place, port in enumerate(ports, 1))
        replication = {
            "offsets.topic.replication.factor": str(REPLICAS),
            "transaction.state.log.replication.factor": str(REPLICAS),
            "transaction.state.log.min.isr": "2",
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "false",
        }
        super().__init__(
            overrides={
                "node.id": str(number),
                "controller.quorum.voters": voters,
                **replication,
                **overrides,
            },
            ports=ports[number - 1],
            storage=("-t", cluster),
        )
        self.number = number


class ThreeBrokers:
    """The brokers by number, and the address of any of them."""

    def __init__(self, overrides: Mapping[str, str]) -> None:
        ports = [free_ports(2) for _ in range(REPLICAS)]
        cluster = new_cluster_id()
        self.members = [Member(number, cluster, ports, overrides) for number in range(1, REPLICAS + 1)]

    @property
    def bootstrap_servers(self) -> str:
        """All of them, so that any may be away."""
        return ",".join(member.bootstrap_servers for member in self.members)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ThreeBrokers]:
        """Start all at once, for one alone finds no majority."""
        try:
            await asyncio.gather(*(asyncio.to_thread(member.start) for member in self.members))
            yield self
        finally:
            for member in self.members:
                await asyncio.to_thread(member.stop, grace=0)
