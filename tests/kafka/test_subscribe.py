"""Subscribing to alerts from Python, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

import stream_svt
from stream_svt.errors import BrokerError, MisuseError
from stream_svt.monitor.released import EventType
from tests.support import records
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.process import Process
from tests.support.topics import administrator, create_topics
from tests.support.worker import until

pytestmark = pytest.mark.kafka
MODULE = stream_svt.subscription


async def publish(servers: str, topic: str, *values: bytes, commit: bool = True) -> None:
    """Write values to partition 0, in a transaction that is committed or aborted."""
    await records.publish(servers, topic, *((0, None, value) for value in values), commit=commit)


async def collect(subscription, count: int, seconds: float = 20) -> list[stream_svt.Event]:
    events = []
    async with asyncio.timeout(seconds), contextlib.aclosing(aiter(subscription)) as received:
        async for event in received:
            events.append(event)
            if len(events) == count:
                break
    return events


async def test_alerts_arrive_typed_and_once_and_lifecycle_events_only_on_request(broker, topics):
    topic = await topics("alerts", partitions=2)
    started, *both = (
        encoded(1, lifecycle("started")),
        encoded(2, alert(number=1)),
        encoded(3, alert(number=2)),
    )
    await publish(broker.bootstrap_servers, topic, both[0], commit=False)
    await publish(broker.bootstrap_servers, topic, started, both[0], b"not an event", both[1])
    options = {"bootstrap_servers": broker.bootstrap_servers, "topic": topic, "from_beginning": True}
    alerts = await collect(stream_svt.subscribe(**options), 2)
    assert [event.data for event in alerts] == [alert(number=1), alert(number=2)]
    assert (alerts[0].shard, alerts[0].sequence, alerts[0].partition) == (0, 2, 0)
    assert alerts[0].type == stream_svt.EventType.ALERT
    everything = await collect(stream_svt.subscribe(**options, lifecycle=True), 3)
    assert isinstance(everything[0].data, stream_svt.Lifecycle)


@pytest.fixture
async def alerts(broker, topics):
    """A topic with three alerts, and how a member of its group subscribes."""
    topic = await topics("alerts")
    await publish(
        broker.bootstrap_servers, topic, *(encoded(number, alert(number=number)) for number in (1, 2, 3))
    )

    def member(**options) -> stream_svt.Subscription[stream_svt.Alert]:
        options = {"from_beginning": True, "group_id": topic} | options
        return stream_svt.subscribe(bootstrap_servers=broker.bootstrap_servers, topic=topic, **options)

    return SimpleNamespace(servers=broker.bootstrap_servers, topic=topic, member=member)


async def committed(alerts) -> int:
    """Return the position of the group on partition 0, -1 where it has none."""
    return (await records.committed(alerts.servers, alerts.topic)).get(0, -1)


async def _reached(alerts, position: int) -> bool:
    return await committed(alerts) >= position


async def sequences(subscription, count: int) -> list[int]:
    return [event.sequence for event in await collect(subscription, count, 60)]


async def fail_at(sequence: int, subscription, *once_open: Awaitable[None]) -> None:
    """Be a subscriber that cannot handle an event."""
    async with subscription:
        await asyncio.gather(*once_open)
        async for event in subscription:
            if event.sequence == sequence:
                raise ConnectionError


async def test_an_open_subscription_misses_nothing_published_after_it_opened(alerts):
    async with alerts.member(group_id=None, from_beginning=False) as subscription:
        await publish(alerts.servers, alerts.topic, encoded(4, alert(number=4)))
        assert await sequences(subscription, 1) == [4]
        with pytest.raises(MisuseError):
            await subscription.__aenter__()


@pytest.mark.parametrize("anew", [True, False], ids=["another subscription", "the same subscription"])
async def test_an_event_that_could_not_be_handled_comes_again(alerts, anew: bool):
    subscription = alerts.member()
    with pytest.raises(ConnectionError):
        await fail_at(2, subscription)
    async with alerts.member() if anew else subscription as after:
        assert await sequences(after, 2) == [2, 3]


async def test_a_new_group_that_failed_at_its_first_event_does_not_begin_at_the_end_again(alerts):
    fourth = publish(alerts.servers, alerts.topic, encoded(4, alert(number=4)))
    with pytest.raises(ConnectionError):
        await fail_at(4, alerts.member(from_beginning=False), fourth)
    await publish(alerts.servers, alerts.topic, encoded(5, alert(number=5)))
    async with alerts.member(from_beginning=False) as after:
        assert await sequences(after, 2) == [4, 5]


async def test_a_commit_in_time_leaves_the_event_in_hand_out(alerts, monkeypatch):
    monkeypatch.setattr(MODULE, "_COMMIT_INTERVAL", 0.0)
    positions = []
    async with alerts.member() as subscription:
        async for event in subscription:
            positions.append((event.offset, await committed(alerts)))
            if event.sequence == 3:
                break
    assert positions == [(0, 0), (1, 1), (2, 2)]


async def test_a_group_that_waits_has_committed_all_there_is(alerts, monkeypatch):
    """The marks that end transactions, too: no lag is left that never goes away."""
    monkeypatch.setattr(MODULE, "_COMMIT_INTERVAL", 0.0)
    async with alerts.member() as subscription:
        waiting = asyncio.create_task(collect(subscription, 4))
        await until(lambda: _reached(alerts, 4))
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_what_was_handled_is_committed_before_another_member_gets_the_partition(alerts, monkeypatch):
    monkeypatch.setattr(MODULE, "_COMMIT_INTERVAL", 3600.0)
    async with alerts.member() as first, contextlib.aclosing(aiter(first)) as events:
        assert [(await anext(events)).sequence for _ in range(2)] == [1, 2]
        assert await committed(alerts) == 0
        async with alerts.member():
            assert await committed(alerts) == 1


async def test_the_group_of_another_program_is_named(broker, topics):
    topic, options = await topics("alerts"), {"bootstrap_servers": broker.bootstrap_servers}
    group, strategy = f"{topic}-workers", (StickyPartitionAssignor,)
    other = AIOKafkaConsumer(topic, group_id=group, partition_assignment_strategy=strategy, **options)
    await other.start()
    try:
        with pytest.raises(BrokerError, match=f"group '{group}' is of another program"):
            await collect(stream_svt.subscribe(topic=topic, group_id=group, **options), 1)
    finally:
        await other.stop()


async def test_a_missing_topic_is_named_and_not_created(broker, topics):
    name = topics.name("never")
    for _ in range(2):
        with pytest.raises(BrokerError, match=f"topic '{name}' does not exist"):
            await collect(stream_svt.subscribe(bootstrap_servers=broker.bootstrap_servers, topic=name), 1)


async def test_a_topic_that_is_deleted_is_waited_for_without_haste_and_that_is_said_once(
    alerts, caplog, monkeypatch
):
    monkeypatch.setattr(MODULE, "_ABSENT_POLLS", 2)
    async with alerts.member(group_id=None) as subscription:
        asked: list[object] = []
        waiting = asyncio.create_task(sequences(subscription, 4))
        async with administrator(alerts.servers) as client:
            await client.delete_topics([alerts.topic])
        subscription._consumer._client.cluster.add_listener(asked.append)
        await until(lambda: "the topic does not exist any more" in caplog.text)
        assert 2 <= len(asked) < 100
        await asyncio.sleep(1.2)
        assert caplog.text.count("waiting for topic") == 1
        await create_topics(alerts.servers, {alerts.topic: 1})
        await publish(alerts.servers, alerts.topic, *(encoded(n, alert(number=n)) for n in range(1, 9)))
        assert (await waiting)[:3] == [1, 2, 3]


EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {
    "subscribe.py": [],
    "plain_aiokafka.py": [],
    "faust_agent.py": ["worker", "-l", "warn", "--without-web"],
}
POISON = [
    None,
    b"",
    b"not json",
    b"[]",
    b"\xff",
    b'{"type": "io.stream-svt.alert.v1"}',
    b'{"data": null}',
    b"[" * 9_999,
]
SKIPPING = {"plain_aiokafka.py", "faust_agent.py"}
ELSEWHERE = {
    "embed_asyncio.py": "tests/kafka/test_embed.py",
    "embed_faust.py": "tests/kafka/test_embed.py",
    "webhook_receiver.py": "tests/kafka/test_forward.py",
    "notebook.ipynb": "tests/test_notebook.py",
    "kafka_streams/BurstsOfAlerts.java": "tests/kafka/test_kafka_streams_example.py",
    "ksqldb/alerts.sql": "tests/test_ksqldb_example.py",
    "web_requests/fake_requests.py": "tests/documentation/test_walkthroughs.py",
    "web_requests/monitors.yaml": "tests/test_web_requests_example.py",
}


def test_every_example_is_run_by_a_test():
    found = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*.*")
        if "__pycache__" not in path.parts and path.name != "README.md"
    }
    assert found == {*COMMANDS, *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert Path(name).name in (EXAMPLES.parent / test).read_text()


@pytest.mark.parametrize("example", COMMANDS)
async def test_an_example_prints_each_alert_once(example, broker, topics, tmp_path):
    topic = await topics("alerts")
    servers = broker.bootstrap_servers
    first, second = encoded(1, alert(number=1, series="milk")), encoded(3, alert(number=2, series="beer"))
    started = encoded(2, lifecycle("first"), kind=EventType.RUN_STARTED)
    # The first is published once more in a transaction that is aborted; poison is whatever a writer may put there.
    for values, commit in (([first], False), ([first, started, *POISON, second], True)):
        await records.publish(servers, topic, *((0, b"shop", value) for value in values), commit=commit)
    command = [sys.executable, "-u", str(EXAMPLES / example), *COMMANDS[example]]
    env = os.environ | {"KAFKA": servers, "ALERTS": topic, "PYTHONPATH": str(EXAMPLES.parent)}
    process = Process(command, 0, tmp_path / "log", cwd=tmp_path, env=env)
    try:
        await process.until(lambda: process.said("gap ") >= 2)
        await asyncio.sleep(1)
    finally:
        await process.end(signal.SIGKILL if example == "faust_agent.py" else signal.SIGINT)
    assert "Traceback" not in process.output
    # Faust greets with a table, and logs what is printed.
    lines = [text[text.index("'shop'") :].strip() for text in process.output.splitlines() if "gap " in text]
    skipped = process.said("skipped a record that is not an event")
    assert lines == ["'shop' 'milk': gap 12, not certified", "'shop' 'beer': gap 12, not certified"]
    assert skipped == (len(POISON) if example in SKIPPING else 0)
