"""The topics of one shard on a broker, the journals that write them, and whoever else may write there."""

from __future__ import annotations

import asyncio
import os
import time

from stream_svt.monitor.released import EventType, Lifecycle, ReleasedEvent, decode
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.sealing import RecordContext
from stream_svt.protocol.state_records import JournalSettings, Topics
from stream_svt.service.kafka import Cluster, tune
from stream_svt.service.shard_log import ShardLog
from tests.support import records

OLD, NEW = bytes(range(32)), bytes(range(1, 33))


def event(sequence: int) -> ReleasedEvent:
    data = Lifecycle(dataset="ds", monitor="m", run=1, reason="test", account=None)
    return ReleasedEvent(
        type=EventType.RUN_STARTED, id=f"e{sequence}", sequence=sequence, subject="ds", data=data
    )


class ShardTopics:
    """Topics of one shard and the journals that share them."""

    def __init__(self, servers: str, state: str, alerts: str, rejects: str) -> None:
        tune()
        self.servers = servers
        self.topics = Topics(state, alerts, rejects)
        self.cluster = Cluster({"bootstrap_servers": servers})
        self.journals: list[Journal] = []

    def journal(
        self, *masters: bytes, cluster: str = "cluster", application: str = "", shard: int = 1, **options
    ) -> Journal:
        place = RecordContext(cluster, application or self.topics.state, self.topics.state, shard)
        log = ShardLog(self.cluster, place.application, place.shard, self.topics)
        options = {"partitions": 2, "entropy": os.urandom, "epoch": time.time} | options
        settings = JournalSettings(place=place, topics=self.topics, masters=masters, **options)
        self.journals.append(Journal(log, settings))
        return self.journals[-1]

    async def opened(self, *masters: bytes, **where) -> tuple[Journal, dict[bytes, bytes]]:
        journal = self.journal(*masters, **where)
        return journal, await journal.open()

    async def read(self, topic: str, isolation: str = "read_committed", partition: int = 1) -> list:
        await asyncio.sleep(0.1)  # a commit returns before its markers are written
        return await records.read(self.servers, topic, [partition], isolation)

    async def events(self, isolation: str = "read_committed") -> list[int]:
        return [decode(record.value)[0].sequence for record in await self.read(self.topics.alerts, isolation)]

    async def live(self, partition: int = 1) -> dict[bytes, bytes]:
        """Return the state as a takeover reads it."""
        found = await self.read(self.topics.state, partition=partition)
        latest = {record.key: record.value for record in found}
        return {key: value for key, value in latest.items() if value is not None}

    async def write(self, key: bytes, value: bytes | None) -> None:
        """Write a record of the state as anybody could."""
        await records.send(self.servers, self.topics.state, (1, key, value))
