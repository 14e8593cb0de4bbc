"""The demo's queries on their way to Kafka: where they are sent, how they are paced, what is refused."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from stream_svt.demo import feed
from stream_svt.demo.config import Setting, yaml
from stream_svt.demo.feed import produce
from stream_svt.demo.queries import WeekClock
from stream_svt.errors import BrokerError, ConfigError
from stream_svt.service.config import Config, parse_config

OTHER = """
application: shop
datasets: [{name: a, limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


class FakeKafka(list):
    """Takes what a producer sends, 5,000 records a batch; a batch is the list itself."""

    sent: list

    def __init__(self, *records, **_options) -> None:
        super().__init__(records)

    async def start(self) -> None:
        FakeKafka.sent = []

    async def stop(self) -> None:
        pass

    def create_batch(self) -> FakeKafka:
        return FakeKafka()

    def append(self, *, timestamp, key, value):
        if len(self) == 5000:
            return None
        super().append((key, value))
        return object()

    def close(self) -> None:
        pass

    async def send_batch(self, batch, topic, *, partition):
        FakeKafka.sent.append((topic, partition, batch))
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return stored


async def test_every_record_has_its_weeks_key_and_goes_to_the_keys_home(monkeypatch, baskets):
    monkeypatch.setattr(feed, "AIOKafkaProducer", FakeKafka)
    kafka = {"bootstrap_servers": "nowhere:1"}
    async with aclosing(produce(baskets, WeekClock(), kafka=kafka, topic="counts", partitions=4)) as sets:
        told = [await anext(sets) for _ in range(2)]
    assert {place[:2] for place in FakeKafka.sent} == {("counts", feed.home(b"retail-week-1", 4))}
    records = [record for _, _, batch in FakeKafka.sent for record in batch]
    assert {key for key, _ in records} == {b"retail-week-1"}
    assert len(records) == 2 * (16_470 + 1)
    assert b'"closed": true' in records[16_470][1]
    assert [(point.set_id, sent) for point, sent in told] == [("line-00300", 16_470), ("line-00600", 32_940)]


def demo_config(directory) -> Config:
    key = directory / "sealing.key"
    key.write_text("00" * 32)
    return parse_config(yaml(Setting(bootstrap="127.0.0.1:1", key_file=key), WeekClock()))


def test_a_configuration_of_something_else_is_refused_before_anything_connects():
    with pytest.raises(ConfigError, match="demo --show-config"):
        asyncio.run(feed.feed(parse_config(OTHER)))


@pytest.mark.loopback
def test_brokers_that_do_not_answer_are_named(tmp_path):
    with pytest.raises(BrokerError, match="no broker can be reached"):
        asyncio.run(feed.feed(demo_config(tmp_path)))


def test_what_is_said_and_when_depends_on_the_clock_alone(monkeypatch, tmp_path):
    async def no_brokers(config, cluster):
        del config, cluster

    async def produce(baskets, clock, *, kafka, topic, partitions):
        assert (kafka["bootstrap_servers"], topic, partitions) == (["127.0.0.1:1"], "retail-demo.counts", 4)
        for number, point in enumerate(clock.checkpoints(), start=1):
            yield point, 16_470 * number

    monkeypatch.setattr(feed, "require", no_brokers)
    monkeypatch.setattr(feed, "produce", produce)
    said: list[str] = []
    config = demo_config(tmp_path)
    assert asyncio.run(feed.feed(config, seconds=0, say=said.append, clock=WeekClock(every=14_700))) == 0
    assert said[0] == (
        "line 14,700 of 88,162: set line-14700 of retail-week-1 is closed, 16,470 queries so far"
    )
    assert len(said) == 6
    said.clear()
    assert asyncio.run(feed.feed(config, seconds=0.2, duration=0.5, say=said.append)) == 0
    assert 1 <= len(said) <= 3
