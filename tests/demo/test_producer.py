"""How the producer keeps its distance and its homes."""

from __future__ import annotations

import asyncio

from stream_svt.demo import producer
from stream_svt.demo.clock import Clock
from stream_svt.demo.producer import Gate, produce


async def test_the_gate_lets_the_producer_run_ahead_only_so_far():
    gate = Gate(ahead=100)
    assert await gate.may_send(100)
    waiting = asyncio.create_task(gate.may_send(101))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.command("seen 1\n")
    assert await waiting


async def test_a_stop_opens_the_gate_with_a_no():
    gate = Gate(ahead=0)
    waiting = asyncio.create_task(gate.may_send(1))
    await asyncio.sleep(0)
    gate.command("stop\n")
    assert not await waiting
    assert not await gate.may_send(0)


async def test_an_older_or_unknown_line_changes_nothing():
    gate = Gate(ahead=0)
    gate.command("seen 50\n")
    gate.command("seen 20\n")
    gate.command("hurry\n")
    assert await gate.may_send(50)


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

    async def twice(sent):
        return sent < 2 * 16_470

    await produce(
        baskets,
        Clock(len(baskets)),
        kafka={"bootstrap_servers": "nowhere:1"},
        topic="counts",
        partitions=4,
        may_send=twice,
        report=reports.append,
    )
    batches = FakeKafka.latest.sent
    records = [record for _, _, batch in batches for record in batch]
    assert {topic for topic, _, _ in batches} == {"counts"}
    assert {partition for _, partition, _ in batches} == {producer.home(b"retail-week-1", 4)}
    assert {key for key, _ in records} == {b"retail-week-1"}
    assert len(records) == 2 * (16_470 + 1)
    assert b'"closed": true' in records[16_470][1]
    assert [report.set_id for report in reports] == ["line-00300", "line-00600"]
    assert reports[-1].queries == 2 * 16_470
