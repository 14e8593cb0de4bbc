"""Subscribing to alerts from Python, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiokafka import AIOKafkaProducer

import stream_svt
from stream_svt.errors import BrokerError, MisuseError
from stream_svt.monitor import released
from tests.support.alerts import alert, encoded, lifecycle

pytestmark = pytest.mark.kafka


async def publish(servers: str, topic: str, *transactions: tuple[list[bytes], bool]) -> None:
    """Write records to partition 0, each list in a transaction that is committed or aborted."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    await producer.start()
    try:
        for records, commit in transactions:
            await producer.begin_transaction()
            for record in records:
                await producer.send_and_wait(topic, record, partition=0)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()


async def collect(subscription, count: int, seconds: float = 20) -> list[stream_svt.Event]:
    events = []
    async with asyncio.timeout(seconds), contextlib.aclosing(aiter(subscription)) as received:
        async for event in received:
            events.append(event)
            if len(events) == count:
                break
    return events


async def test_alerts_arrive_typed_and_lifecycle_events_only_on_request(broker, topics):
    topic = await topics("alerts", partitions=2)
    records = [
        encoded(1, lifecycle("started")),
        encoded(2, alert(top=1)),
        b"not an event",
        encoded(3, alert(top=2)),
    ]
    await publish(broker.bootstrap_servers, topic, (records, True))
    options = {"bootstrap_servers": broker.bootstrap_servers, "topic": topic, "from_beginning": True}
    alerts = await collect(stream_svt.subscribe(**options), 2)
    assert [event.data for event in alerts] == [alert(top=1), alert(top=2)]
    assert (alerts[0].shard, alerts[0].sequence, alerts[0].partition) == (0, 2, 0)
    assert alerts[0].type == stream_svt.EventType.ALERT
    everything = await collect(stream_svt.subscribe(**options, lifecycle=True), 3)
    assert isinstance(everything[0].data, stream_svt.Lifecycle)


async def test_what_is_aborted_and_published_again_comes_once(broker, topics):
    topic = await topics("alerts")
    first, second = encoded(1, alert(top=1)), encoded(2, alert(top=2))
    await publish(broker.bootstrap_servers, topic, ([first], False), ([first, second], True))
    for isolation in ("read_committed", "read_uncommitted"):
        subscription = stream_svt.subscribe(
            bootstrap_servers=broker.bootstrap_servers, topic=topic, from_beginning=True, isolation=isolation
        )
        events = await collect(subscription, 2)
        assert [event.sequence for event in events] == [1, 2]


async def test_an_open_subscription_misses_nothing_published_after_it_opened(broker, topics):
    topic = await topics("alerts")
    await publish(broker.bootstrap_servers, topic, ([encoded(1, alert(top=1))], True))
    async with stream_svt.subscribe(bootstrap_servers=broker.bootstrap_servers, topic=topic) as subscription:
        await publish(broker.bootstrap_servers, topic, ([encoded(2, alert(top=2))], True))
        assert [event.sequence for event in await collect(subscription, 1)] == [2]
        with pytest.raises(MisuseError):
            await subscription.__aenter__()


async def test_a_group_goes_on_where_it_stopped(broker, topics):
    topic = await topics("alerts")
    await publish(
        broker.bootstrap_servers, topic, ([encoded(1, alert(top=1)), encoded(2, alert(top=2))], True)
    )

    def subscription() -> stream_svt.Subscription[stream_svt.Alert]:
        return stream_svt.subscribe(
            bootstrap_servers=broker.bootstrap_servers, topic=topic, group_id=topic, from_beginning=True
        )

    async with subscription() as before:
        await collect(before, 2)
    await publish(broker.bootstrap_servers, topic, ([encoded(3, alert(top=3))], True))
    async with subscription() as after:
        assert (await collect(after, 1, 60))[0].sequence == 3


async def test_a_missing_topic_is_named_and_not_created(broker, topics):
    name = topics.name("never")
    for _ in range(2):
        with pytest.raises(BrokerError, match=f"topic '{name}' does not exist"):
            await collect(stream_svt.subscribe(bootstrap_servers=broker.bootstrap_servers, topic=name), 1)


async def test_an_unreachable_broker_is_named_with_what_to_check():
    with pytest.raises(BrokerError, match=r"no answer from a broker at 127\.0\.0\.1:1 .*check the address"):
        await collect(stream_svt.subscribe(bootstrap_servers="127.0.0.1:1", topic="alerts"), 1)


def test_an_unknown_isolation_is_refused():
    with pytest.raises(MisuseError, match="read_committed or read_uncommitted"):
        stream_svt.subscribe(bootstrap_servers="127.0.0.1:1", topic="alerts", isolation="serializable")


def test_encoded_events_are_what_the_service_publishes():
    envelope, data = released.decode(encoded(7, alert(top=1)))
    assert (envelope.sequence, data) == (7, alert(top=1))
    assert json.loads(encoded(7, alert(top=1)))["specversion"] == "1.0"
