"""All that the demo's screen may read: committed records of the alert topic, and the service's status API."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.request import urlopen

from aiokafka import AIOKafkaConsumer, TopicPartition

from stream_svt.demo.config import Setting
from stream_svt.demo.data import LAST_ITEM
from stream_svt.monitor.released import Alert, Envelope, Lifecycle, decode
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, started

Event = tuple[Envelope, Alert | Lifecycle]


@contextlib.asynccontextmanager
async def opened(setting: Setting) -> AsyncIterator[AIOKafkaConsumer]:
    """Read the alert topic from its beginning: each event once, because only committed ones are read."""
    cluster = Cluster({"bootstrap_servers": setting.bootstrap})
    async with started(cluster.reader(), f"reading {setting.alerts}") as consumer:
        consumer.assign([TopicPartition(setting.alerts, number) for number in range(setting.partitions)])
        yield consumer


async def new_events(consumer: AIOKafkaConsumer) -> list[Event]:
    """Return what has come since the last call; waits a moment at most."""
    batch = await consumer.getmany(timeout_ms=50)
    return [decode(record.value) for records in batch.values() for record in records]


async def last_events(consumer: AIOKafkaConsumer) -> list[Event]:
    """Return everything up to the topic's end as it stands now."""
    async with deadline(CALL_DEADLINE, "reading the last alerts"):
        events: list[Event] = []
        for place, end in (await consumer.end_offsets(consumer.assignment())).items():
            while await consumer.position(place) < end:
                events += await new_events(consumer)
    return events


def urls(setting: Setting) -> dict[str, str]:
    """Return what a user may open while the demo runs."""
    base = f"http://127.0.0.1:{setting.port}"
    return {
        "page": f"{base}/",
        "metrics": f"{base}/metrics",
        "health": f"{base}/health/ready",
        "status": f"{base}/api/v1/status",
    }


async def fetched(url: str) -> bytes | None:
    """Return what the service's web server answers, None unless it is a success."""

    def get() -> bytes:
        with urlopen(url, timeout=5) as answer:  # noqa: S310  an address of the demo's own
            content: bytes = answer.read()
            return content

    try:
        return await asyncio.to_thread(get)
    except (OSError, http.client.HTTPException):
        return None


async def queries_seen(setting: Setting) -> int | None:
    """Return how many queries every monitor has looked at, as of the last commit; None unanswered."""
    body = await fetched(urls(setting)["status"])
    return None if body is None else looked_at(json.loads(body), setting.counts)


def looked_at(status: dict[str, Any], topic: str) -> int:
    """Return the queries before the committed positions, without the markers that close the sets."""
    records = sum(shard["offsets"].get(topic, 0) for shard in status["shards"])
    sets, rest = divmod(records, LAST_ITEM + 1)
    return int(sets * LAST_ITEM + rest)
