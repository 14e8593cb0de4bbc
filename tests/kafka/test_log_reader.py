"""The reader of log segments shows what consumers hide, and nothing that is not there."""

from __future__ import annotations

import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced

from tests.support.log_reader import committed, endings, read_ended, read_partition

pytestmark = pytest.mark.kafka


@pytest.fixture
async def producer(broker, topics):
    async with writer(broker, topics) as producer:
        yield producer


def writer(broker, topics) -> AIOKafkaProducer:
    name = topics.name("writer")
    return AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name, acks="all")


async def test_records_and_markers_are_read_in_order_with_the_brokers_clock(broker, topics, producer):
    topic = await topics(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"kept", key=b"k", partition=0, headers=[("h", b"1")], timestamp_ms=5)
    await producer.send_and_wait(topic, None, key=b"tombstone", partition=0)
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"dropped", partition=0)
    await producer.abort_transaction()
    await read_ended(broker.data_dir, topic)
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"open", partition=0)

    records = read_partition(broker.data_dir, topic)
    assert [r.value for r in records if r.marker is None] == [b"kept", None, b"dropped", b"open"]
    assert [r.marker for r in records if r.marker] == ["commit", "abort"]
    assert [r.offset for r in records] == list(range(6))
    kept = records[0]
    assert (kept.key, kept.headers) == (b"k", (("h", b"1"),))
    assert (kept.transactional, kept.append_time) == (True, True)
    assert all(before <= r.timestamp <= time.time() * 1000 for r in records)
    assert [r.timestamp for r in records] == sorted(r.timestamp for r in records)

    ends = endings(records)
    marks = [ends[r.offset] and ends[r.offset].marker for r in records if not r.marker]
    assert marks == ["commit", "commit", "abort", None]
    assert [r.value for r in committed(records)] == [b"kept", None]
    await producer.commit_transaction()


async def test_a_new_owner_of_the_transactional_id_ends_the_old_ones_transaction(broker, topics, producer):
    topic = await topics()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"orphan", partition=0)
    async with writer(broker, topics) as heir, heir.transaction():
        await heir.send_and_wait(topic, b"heir", partition=0)
    records = await read_ended(broker.data_dir, topic)
    assert [record.value for record in committed(records)] == [b"heir"]
    assert endings(records)[0].marker == "abort"
    with pytest.raises(ProducerFenced):
        await producer.commit_transaction()
