"""On brokers that create whatever topic a client asks for, which is their default, nothing of ours creates one."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition

from stream_svt.aiokafka_fixes import apply_fixes
from stream_svt.errors import BrokerError
from stream_svt.service.embedded import EmbeddedKafka
from stream_svt.service.kafka import Cluster, spans, stop_quietly
from stream_svt.service.ports import Requests, ShardFeed
from tests.support.topics import administrator

pytestmark = pytest.mark.kafka


async def read_on(feed: ShardFeed, topic: str) -> None:
    while True:
        await feed.fetch([topic], 0.5)


async def test_no_client_creates_the_topic_that_it_asks_for(
    lax_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_svt.service.kafka.CALL_DEADLINE", 2.0)
    apply_fixes()
    cluster = Cluster({"bootstrap_servers": lax_broker.bootstrap_servers})
    place = TopicPartition("wanted", 0)
    with pytest.raises(BrokerError):
        await spans(cluster, [place], "looking")

    feed = ShardFeed(cluster, 0, 1, Requests())
    feed.seek(place.topic, 0)
    with pytest.raises(BrokerError):
        await asyncio.wait_for(read_on(feed, place.topic), 20)
    await feed.close()

    member = cluster.member("wanted")
    await member.start()
    member.subscribe([place.topic])
    await asyncio.sleep(1.0)
    await member.stop()

    producer = cluster.producer("wanted-0")
    await producer.start()
    await producer.begin_transaction()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.send(place.topic, b"x", partition=0), 1.0)
    await stop_quietly(producer)

    async with administrator(lax_broker.bootstrap_servers) as admin:
        assert place.topic not in await admin.list_topics()
