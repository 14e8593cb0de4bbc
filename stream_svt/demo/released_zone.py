"""All that the demo's screen may read: committed records of the alert topic, and the service's status API."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from stream_svt.demo.config import Setting
from stream_svt.demo.data import LAST_ITEM
from stream_svt.monitor.released import Alert, Envelope, Lifecycle, decode
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, started

Event = tuple[Envelope, Alert | Lifecycle]


class EventReader:
    """Reads released events: each exactly once, because only committed ones are read."""

    def __init__(self, consumer: AIOKafkaConsumer, places: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._places = places

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, setting: Setting) -> AsyncIterator[EventReader]:
        """Read the alert topic from its beginning."""
        cluster = Cluster({"bootstrap_servers": setting.bootstrap})
        places = [TopicPartition(setting.alerts, number) for number in range(setting.partitions)]
        async with started(cluster.reader(), f"reading {setting.alerts}") as consumer:
            consumer.assign(places)
            yield cls(consumer, places)

    async def new(self) -> list[Event]:
        """Return what has come since the last call; waits a moment at most."""
        batch = await self._consumer.getmany(timeout_ms=50)
        return [decode(record.value) for records in batch.values() for record in records]

    async def rest(self) -> list[Event]:
        """Return everything up to the topic's end as it stands now."""
        async with deadline(CALL_DEADLINE, "reading the last alerts"):
            ends = await self._consumer.end_offsets(self._places)
            events: list[Event] = []
            for place, end in ends.items():
                while await self._consumer.position(place) < end:
                    events += await self.new()
        return events


class ServiceStatus:
    """Asks the service's own web server."""

    def __init__(self, setting: Setting) -> None:
        self._port = setting.port
        self._topic = setting.counts

    def urls(self) -> dict[str, str]:
        """Return what a user may open while the demo runs."""
        base = f"http://127.0.0.1:{self._port}"
        return {
            "page": f"{base}/",
            "metrics": f"{base}/metrics",
            "health": f"{base}/health/ready",
            "status": f"{base}/api/v1/status",
        }

    async def ready(self) -> None:
        """Wait until the service says that it is ready."""
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                code, _ = await asyncio.to_thread(self._get, "/health/ready")
                if code == http.HTTPStatus.OK:
                    return
            await asyncio.sleep(0.1)

    async def queries(self) -> int | None:
        """Return how many queries every monitor has looked at, as of the last commit; None unanswered."""
        try:
            code, body = await asyncio.to_thread(self._get, "/api/v1/status")
        except (OSError, http.client.HTTPException):
            return None
        return looked_at(json.loads(body), self._topic) if code == http.HTTPStatus.OK else None

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def looked_at(status: dict[str, Any], topic: str) -> int:
    """Return the queries before the committed positions, without the markers that close the sets."""
    records = sum(shard["offsets"].get(topic, 0) for shard in status["shards"])
    sets, rest = divmod(records, LAST_ITEM + 1)
    return int(sets * LAST_ITEM + rest)
