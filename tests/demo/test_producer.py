"""Where the producer sends its records."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from stream_svt.demo import producer
from stream_svt.demo.clock import Clock
from stream_svt.demo.producer import produce


class Batch:
    def __init__(self):
        self.records = []

    def append(self, *, timestamp, key, value):
        if len(self.records) == 5000:
            return None
        self.records.append((key, value))
        return object()

    def close(self):
        pass


class FakeKafka:
    def __init__(self, **_):
        self.sent = []
        FakeKafka.latest = self

    async def start(self):
        pass

    async def stop(self):
        pass

    def create_batch(self):
        return Batch()

    async def send_batch(self, batch, topic, *, partition):
        self.sent.append((topic, partition, batch.records))
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return stored


async def test_every_record_has_its_weeks_key_and_goes_to_the_keys_home(monkeypatch, baskets):
    monkeypatch.setattr(producer, "AIOKafkaProducer", FakeKafka)
    reports = []
    kafka = {"bootstrap_servers": "nowhere:1"}
    sets = produce(baskets, Clock(len(baskets)), kafka=kafka, topic="counts", partitions=4)
    async with aclosing(sets):
        async for progress in sets:
            reports.append(progress)
            if len(reports) == 2:
                break
    batches = FakeKafka.latest.sent
    records = [record for _, _, batch in batches for record in batch]
    assert {topic for topic, _, _ in batches} == {"counts"}
    assert {partition for _, partition, _ in batches} == {producer.home(b"retail-week-1", 4)}
    assert {key for key, _ in records} == {b"retail-week-1"}
    assert len(records) == 2 * (16_470 + 1)
    assert b'"closed": true' in records[16_470][1]
    assert [report.set_id for report in reports] == ["line-00300", "line-00600"]
    assert reports[-1].queries == 2 * 16_470
