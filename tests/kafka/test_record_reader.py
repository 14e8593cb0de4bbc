"""Topics written by every kind of producer are read as columns as aiokafka reads them, from and to any offset."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import pytest

from stream_svt.kafka import batches
from stream_svt.kafka.clients import Cluster
from stream_svt.protocol.records import Records
from stream_svt.worker.ports import Requests, ShardFeed
from tests.support import records as outside
from tests.support.topics import CLOCK

pytestmark = pytest.mark.kafka
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
QUERIES = [json.dumps({"id": f"q{number}", "value": number**3}) for number in range(300)]


def by_librdkafka(servers: str, topic: str, codecs: Sequence[str]) -> None:
    """Send with each codec: nulls, headers, an own time; commit one transaction, abort another."""
    from confluent_kafka import Producer

    for codec in codecs:
        settings = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 50}
        producer = Producer(settings)
        for index, query in enumerate(QUERIES):
            headers = [("trace", b"1"), ("empty", None)] if index % 50 == 7 else None
            producer.produce(topic, query, None if index % 9 == 4 else f"key{index}", 0, headers=headers)
        producer.produce(topic, None, "tombstone", 0, timestamp=1_000)
        assert producer.flush(20) == 0
        if codec in {codecs[0], codecs[-1]}:
            transactional = Producer(settings | {"transactional.id": f"{topic}-{codec}"})
            transactional.init_transactions(20)
            for end in (transactional.abort_transaction, transactional.commit_transaction):
                transactional.begin_transaction()
                for index in range(20):
                    transactional.produce(topic, f"{end.__name__} {index}", b"k", 0)
                transactional.flush(20)
                end(20)


async def read(
    servers: str, topic: str, start: int, most: int, columns: dict[str, bool]
) -> list[tuple[object, ...]]:
    """Read as a shard does, up to the end."""
    feed = ShardFeed(Cluster({"bootstrap_servers": servers}), 0, 1, Requests(), columns)
    spans, _ = await feed.spans_and_ids([topic])
    _, end = spans[topic]
    feed.seek(topic, start)
    found: list[tuple[object, ...]] = []
    try:
        async with asyncio.timeout(60):
            while feed.position(topic) < end:
                for records in (await feed.fetch([topic], 1.0, most)).values():
                    assert isinstance(records, Records)
                    assert len(records) <= most
                    found += [
                        (one.offset, one.timestamp, one.key, one.value, *one.headers) for one in records
                    ]
    finally:
        await feed.close()
    return found


@pytest.mark.parametrize("codec", ["producer", "snappy", "lz4"])
async def test_what_producers_and_brokers_wrote_is_read_as_by_the_client(broker, topics, monkeypatch, codec):
    """A broker on whose topic another codec is set writes all batches anew, in Java."""
    configs = {} if codec == "producer" else CLOCK | {"compression.type": codec}
    codecs = CODECS if codec == "producer" else ("gzip", "zstd")
    topic, servers = await topics("written", configs=configs), broker.bootstrap_servers
    await asyncio.to_thread(by_librdkafka, servers, topic, codecs)
    await outside.send(servers, topic, *((0, b"a", query.encode()) for query in QUERIES[:20]))
    wanted = await read(servers, topic, 0, 20_000, {})
    assert len(wanted) == len(codecs) * 301 + 2 * 20 + 20
    assert not [one for one in wanted if b"abort" in (one[3] or b"")]

    def refuse(*_: object) -> None:
        raise AssertionError("read by the client")

    monkeypatch.setattr(batches._Batch, "__iter__", refuse)
    for text in (False, True):
        assert await read(servers, topic, 0, 20_000, {topic: text}) == wanted
        assert await read(servers, topic, 0, 170, {topic: text}) == wanted
    for start in random.Random(4).sample(range(wanted[-1][0]), 4):
        assert await read(servers, topic, start, 100, {topic: True}) == [
            one for one in wanted if one[0] >= start
        ]
