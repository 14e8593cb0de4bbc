"""What happens to an application over months: idle weeks, lost queries, topics made anew, new keys."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from stream_svt.monitor.released import EventType
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.service import kafka
from stream_svt.service.audit import Audit, audit_state, audit_topic
from stream_svt.service.config import Config, parse_config
from stream_svt.service.topology import look, problems
from stream_svt.service.worker import Worker, cluster_of
from tests.support.worker import HIGH, LOW, Scene, is_open, until

pytestmark = pytest.mark.kafka
DAY = 24 * 3600
SCENE = {"partitions": 1, "limit": 6}


async def _audited(scene: Scene, config: Config | None = None) -> Audit:
    """Return the operator's audit, after both forms balanced."""
    config = config or scene.config()
    public = await audit_topic(cluster_of(config), config.topics.alerts)
    operator = await audit_state(config, cluster_of(config))
    assert public.problems + operator.problems == []
    return operator


async def test_a_worker_whose_producer_the_broker_forgot_goes_on_without_a_loss(lax_broker) -> None:
    """The broker forgets a transactional id after days without a transaction; here after a second."""
    async with Scene(lax_broker.bootstrap_servers, "forgotten", **SCENE).on_stage() as scene:
        worker = await scene.start()
        await scene.send("a", HIGH, LOW)
        await scene.settled(worker, 2)
        await asyncio.sleep(3)
        assert worker.ready
        await scene.send("b", HIGH)
        await scene.send("a", HIGH)
        await scene.settled(worker, 4)
        assert [(alert.dataset, alert.run, alert.top) for alert in await scene.alerts()] == [
            ("a", 1, 1),
            ("b", 1, 1),
            ("a", 1, 2),
        ]
        assert (await _audited(scene)).alerts == 3


async def test_retention_that_overtakes_a_stopped_service_is_accepted_by_command_only(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    await scene.stop(worker)
    await scene.send("a", *[HIGH] * 5)
    await scene.delete_before("counts", 4)
    worker = await scene.start(ready=False)
    await until(lambda: [status.cause for status in worker.statuses()] == [Cause.RECORDS_LOST])
    assert worker.statuses()[0].state is State.PARKED
    await _audited(scene)
    await scene.accept_losses(0)
    await scene.settled(worker, 6)
    alerts = await scene.alerts()
    # The open run was closed at its full price; the two queries that are left are tested by a new one.
    assert [(alert.run, alert.top, alert.position.offset) for alert in alerts] == [
        (1, 1, 0),
        (2, 1, 4),
        (2, 2, 5),
    ]
    assert alerts[1].account.spent == pytest.approx(1 + 0.4 + 0.2)
    await _audited(scene)


async def test_a_query_topic_made_anew_is_a_loss_and_its_queries_meet_new_noise(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", *[HIGH] * 2, *[LOW] * 3)
    await scene.settled(worker, 5)
    await scene.delete("counts")
    await until(lambda: [status.cause for status in worker.statuses()] == [Cause.TOPIC_MISSING], 60)
    assert worker.alive
    await scene.stop(worker)
    await scene.create("counts")
    worker = await scene.start(ready=False)
    await until(lambda: [status.cause for status in worker.statuses()] == [Cause.RECORDS_LOST])
    await scene.accept_losses(0)
    await until(lambda: is_open(worker))
    await scene.producer.client.force_metadata_update()
    await scene.send("a", HIGH)
    await until(lambda: sum(view.spent for s in worker.statuses() for view in s.views.values()) > 1.5)
    await asyncio.sleep(0.5)
    # Offsets begin anew, runs do not: the same place was never tested under the same noise.
    assert [(alert.run, alert.position.offset) for alert in await scene.alerts()] == [(1, 0), (1, 1), (2, 0)]
    await _audited(scene)


async def test_a_control_topic_made_anew_is_read_from_its_beginning_and_numbers_refuse_what_is_old(
    scene: Scene,
) -> None:
    """The limit that the manual states: filled as far as the place reached, what stands before gets no answer."""
    worker = await scene.start()
    for number, action in enumerate(("pause", "resume"), start=1):
        await scene.command(action, "c", partition=0)
        await scene.released(EventType.COMMAND_REPLY, number)
    await scene.stop(worker)
    await scene.make_anew("control")
    for dataset in "abc":
        await scene.command("pause", dataset, partition=0)
    worker = await scene.start()
    await scene.released(EventType.COMMAND_REPLY, 3)
    assert _paused(worker) == ["c"]
    await scene.command("resume", "c", partition=0)
    await scene.released(EventType.COMMAND_REPLY, 4)
    old = await scene.read("control")
    await scene.stop(worker)

    await scene.make_anew("control")
    await scene.producer.send_and_wait(f"{scene.application}.control", old[0].value, partition=0)
    await scene.command("pause", "b", partition=0)  # while no worker runs
    worker = await scene.start()
    await scene.released(EventType.COMMAND_REPLY, 5)
    assert _paused(worker) == ["b"]
    assert [b"command-stale" in reject.value for reject in await scene.read("rejects")] == [True]
    await scene.command("resume", "b", partition=0)
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    assert len(await scene.alerts()) == 1
    assert (await scene.released(EventType.COMMAND_REPLY, 6)).count(EventType.COMMAND_REPLY) == 6
    await _audited(scene)


@pytest.mark.parametrize("name", ["alerts", "rejects"])
async def test_a_worker_whose_written_topic_is_deleted_tries_again_until_it_is_there(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "CALL_DEADLINE", 2.0)  # of a transaction; it would be ten seconds
    worker = await scene.start()
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    await scene.delete(name)
    await asyncio.sleep(1)
    assert worker.ready  # nothing is noticed before something is to be written
    await scene.send("a", HIGH)
    await scene.producer.send_and_wait(scene.queries, b"no query", partition=0)
    await until(lambda: worker.statuses()[0].state is State.RETRYING)
    assert "no answer from the broker in time" in worker.statuses()[0].reason
    assert worker.alive
    await scene.create(name)
    if name != "rejects":  # what would show that the state is the newest is gone
        await until(lambda: worker.statuses()[0].cause is Cause.STATE_ROLLED_BACK)
        return
    await scene.settled(worker, 3)
    assert [alert.top for alert in await scene.alerts()] == [1, 2]
    assert [json.loads(record.value)["offset"] for record in await scene.read("rejects")] == [2]
    assert (await audit_state(scene.config(), cluster_of(scene.config()))).problems == []


async def test_a_broker_clock_that_leaps_and_steps_back_ends_mutes_early_or_late_and_nothing_else(
    scene: Scene,
) -> None:
    """The clock of the brokers is the timestamp of the records; here the producer stands in for it."""
    text = scene.text().replace("mute: none", "mute: 1h")
    config = parse_config(text, directory=Path())
    worker = await scene.start(config)
    hour = 3_600_000
    now = int(time.time() * 1000) - 72 * hour  # of what lies ahead, a broker takes an hour at most
    await _set_clock(scene, config, "CreateTime")

    async def say(number: int, at: int) -> int:
        query = b'{"id": "q%d", "value": %d, "series": "s"}' % (number, HIGH)
        await scene.producer.send_and_wait(scene.queries, query, key=b"a", timestamp_ms=at)
        await scene.settled(worker, number)
        return len(await scene.alerts())

    assert await say(1, now) == 1
    assert await say(2, now + hour - 1) == 1  # muted
    assert await say(3, now + 24 * hour) == 2  # a leap of a day: the mute ended early
    assert await say(4, now) == 2  # a step back: muted by the latest timestamp seen
    assert await say(5, now + 25 * hour - 1) == 2
    await scene.stop(worker)
    await _set_clock(scene, config, "LogAppendTime")
    worker = await scene.start(config)  # and a takeover knows the latest timestamp
    await _set_clock(scene, config, "CreateTime")
    assert await say(6, now + 2 * hour) == 2
    assert await say(7, now + 25 * hour) == 3
    assert [alert.position.offset for alert in await scene.alerts()] == [0, 2, 6]
    await _set_clock(scene, config, "LogAppendTime")
    assert (await _audited(scene, config)).alerts == 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Let a machine's wall clock be moved: by this many seconds all of Python is wrong, and what it sends to Kafka."""
    moved = {"seconds": 0.0}
    real, send = time.time, AIOKafkaProducer.send

    async def stamped(producer: AIOKafkaProducer, *content: object, **options: object) -> object:
        # The client takes the time of a record by itself, in C.
        options.setdefault("timestamp_ms", int(time.time() * 1000))
        return await send(producer, *content, **options)

    monkeypatch.setattr(time, "time", lambda: real() + moved["seconds"])
    monkeypatch.setattr(AIOKafkaProducer, "send", stamped)
    return moved


async def test_a_workers_clock_that_is_minutes_off_and_steps_back_changes_nothing(
    scene: Scene, clock
) -> None:
    config = scene.config()
    for number, minutes in enumerate((0, 9, -9, 4)):
        clock["seconds"] = minutes * 60.0
        worker = await scene.start(config)
        await scene.send("a", HIGH, LOW)
        await scene.settled(worker, 3 * number + 2)
        clock["seconds"] = -clock["seconds"]
        await scene.send("a", LOW)
        await scene.settled(worker, 3 * number + 3)
        await scene.stop(worker)
    assert [alert.position.offset for alert in await scene.alerts()] == [0, 3, 6, 9]
    assert (await _audited(scene, config)).alerts == 4


async def test_a_clock_ahead_is_named_where_topics_go_by_it_and_nothing_is_lost(
    scene: Scene, clock, caplog: pytest.LogCaptureFixture
) -> None:
    config = scene.config()
    for name, policy in (("state", "compact"), ("alerts", "delete")):
        await scene.configure(name, {"message.timestamp.type": "CreateTime", "cleanup.policy": policy})
    worker = await scene.start(config)
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    clock["seconds"] = 2 * DAY
    with caplog.at_level("WARNING"):
        await scene.send("a", HIGH)
        await until(lambda: "set this machine's clock" in caplog.text)
    assert worker.alive
    clock["seconds"] = 0.0
    await scene.settled(worker, 2)
    assert [alert.position.offset for alert in await scene.alerts()] == [0, 1]
    assert (await _audited(scene, config)).alerts == 2


def _paused(worker: Worker) -> list[str]:
    return [
        view["dataset"]
        for view in worker.status()["datasets"]
        if [monitor["state"] for monitor in view["monitors"]] == ["paused"]
    ]


async def _set_clock(scene: Scene, config: Config, kind: str) -> None:
    """Say who stamps the records of the query topic: the check at a worker's start excludes producers."""
    await scene.configure("counts", {"message.timestamp.type": kind})
    async with asyncio.timeout(20):
        while bool(problems(config, await look(config, cluster_of(config)))) == (kind == "LogAppendTime"):
            await asyncio.sleep(0.05)
