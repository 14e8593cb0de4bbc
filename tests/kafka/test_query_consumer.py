"""What the brokers refuse one shard reaches that shard only, through one client for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import OffsetOutOfRangeError, TopicAuthorizationFailedError

from stream_svt.service.embedded import EmbeddedKafka
from stream_svt.service.kafka import BrokerUnavailable, Cluster
from stream_svt.service.query_consumer import QueryConsumer
from tests.support.permissions import allow
from tests.support.topics import create_topics

pytestmark = pytest.mark.kafka


class Stage:
    """Two topics of three partitions, a producer, and a consumer that reads all of them from their beginning."""

    def __init__(self, servers: str, name: str, **arguments: str) -> None:
        self.servers = servers
        self.one, self.other = f"{name}.one", f"{name}.other"
        self.queries = QueryConsumer(
            Cluster({"bootstrap_servers": servers} | arguments).queries, partitions=3
        )
        self.places = [TopicPartition(topic, shard) for topic in (self.one, self.other) for shard in range(3)]

    async def open(self) -> None:
        await create_topics(self.servers, {self.one: 3, self.other: 3})
        self.producer = AIOKafkaProducer(bootstrap_servers=self.servers, acks="all")
        await self.producer.start()

    def read(self, *places: TopicPartition) -> None:
        for place in places:
            self.queries.seek(place, 0)
        self.queries.resume(places)

    async def send(self, *places: TopicPartition) -> None:
        for place in places:
            await self.producer.send_and_wait(place.topic, b"x", partition=place.partition)

    async def close(self) -> None:
        await self.queries.stop()
        await self.producer.stop()

    async def count(self, place: TopicPartition, wanted: int) -> int:
        """Read a place until so many records have come."""
        found = 0
        async with asyncio.timeout(20):
            while found < wanted:
                found += sum(map(len, (await self.queries.fetch([place], 0.5)).values()))
        return found

    async def error(self, place: TopicPartition) -> Exception:
        """Read a place until that fails."""
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.queries.fetch([place], 0.5)
                except Exception as error:  # noqa: BLE001  which one is what the test asks
                    return error

    async def feed(self, places: list[TopicPartition], count: int) -> None:
        for _ in range(count):
            await self.send(*places)
            await asyncio.sleep(0.02)


@pytest.fixture
async def stage(broker, topics) -> AsyncIterator[Stage]:
    stage = Stage(broker.bootstrap_servers, topics.name("queries"))
    await stage.open()
    yield stage
    await stage.close()


async def test_shards_come_and_go_beside_others_that_read_every_record_once(stage: Stage) -> None:
    first, *others = stage.places
    stage.read(first)
    feeding = asyncio.create_task(stage.feed(stage.places, 60))
    reading = asyncio.create_task(stage.count(first, 60))
    for place in others:
        stage.read(place)
        await stage.count(place, 3)
    for place in others[::2]:
        stage.queries.release([place])
        await asyncio.sleep(0.1)
    await feeding
    assert await reading == 60
    assert stage.queries.position(first) == 60
    # What was released starts from its own place, too.
    stage.queries.seek(others[0], 50)
    stage.queries.resume([others[0]])
    assert await stage.count(others[0], 10) == 10


async def test_an_offset_out_of_range_is_told_to_its_shard_only(stage: Stage) -> None:
    bad, good = stage.places[:2]
    await stage.feed([bad, good], 5)
    admin = AIOKafkaAdminClient(bootstrap_servers=stage.servers)
    await admin.start()
    await admin.delete_records({bad: RecordsToDelete(3)})
    await admin.close()
    stage.read(bad, good)
    reading = asyncio.create_task(stage.count(good, 25))
    assert isinstance(await stage.error(bad), OffsetOutOfRangeError)
    await stage.feed([good], 10)
    assert isinstance(await stage.error(bad), OffsetOutOfRangeError)
    stage.queries.seek(bad, 3)
    await stage.feed([good], 10)
    assert await reading == 25
    assert await stage.count(bad, 2) == 2


async def test_a_deleted_topic_is_told_to_whoever_reads_it(stage: Stage) -> None:
    good, bad = stage.places[0], stage.places[3]
    stage.read(good, bad)
    reading = asyncio.create_task(stage.count(good, 20))
    await stage.send(bad)
    await stage.count(bad, 1)
    admin = AIOKafkaAdminClient(bootstrap_servers=stage.servers)
    await admin.start()
    await admin.delete_topics([bad.topic])
    await admin.close()
    error = await stage.error(bad)
    assert isinstance(error, BrokerUnavailable)
    assert f"{bad.topic!r} does not exist any more" in str(error)
    stage.queries.release([bad])
    await stage.feed([good], 20)
    assert await reading == 20


async def test_a_topic_that_may_not_be_read_is_told_to_whoever_reads_it(topics) -> None:
    async with EmbeddedKafka(users={"svt": "secret"}) as kafka:
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "svt",
            "sasl_plain_password": "secret",
        }
        stage = Stage(kafka.bootstrap_servers, "queries")
        stage.queries = QueryConsumer(
            Cluster({"bootstrap_servers": kafka.sasl_bootstrap_servers} | login).queries, partitions=3
        )
        await stage.open()
        good, hidden, seen = TopicPartition(stage.one, 0), TopicPartition(stage.other, 0), stage.places[1]
        await allow(kafka.bootstrap_servers, "svt", "read", "topic", stage.one)
        stage.read(good, hidden)
        reading = asyncio.create_task(stage.count(good, 20))
        error = await stage.error(hidden)
        assert isinstance(error, TopicAuthorizationFailedError)
        assert stage.other in str(error)
        await allow(kafka.bootstrap_servers, "svt", "describe", "topic", stage.other)
        error = await stage.error(hidden)
        assert isinstance(error, TopicAuthorizationFailedError)
        stage.read(seen)
        await stage.feed([good, seen], 20)
        assert await reading == 20
        assert await stage.count(seen, 20) == 20
        await stage.close()
