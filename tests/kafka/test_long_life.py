"""What happens to an application over months: idle weeks, lost queries, topics made anew, new keys."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.service import kafka
from stream_svt.service.audit import Audit, audit_state, audit_topic
from stream_svt.service.config import Config, parse_config
from stream_svt.service.embedded import EmbeddedKafka
from stream_svt.service.topology import look, problems
from stream_svt.service.worker import Worker, cluster_of
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, COMPACTED, HIGH, LOW, Scene, is_open, until

pytestmark = pytest.mark.kafka
DAY = 24 * 3600
IDLE_BROKER = {
    "group.min.session.timeout.ms": "500",
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "500",
}


@pytest.fixture
async def scene(broker, topics) -> AsyncIterator[Scene]:
    async with Scene(
        broker.bootstrap_servers, topics.name("shop"), partitions=1, limit=6
    ).on_stage() as scene:
        yield scene


async def _audited(scene: Scene, config: Config | None = None) -> Audit:
    """Return the operator's audit, after both forms balanced."""
    config = config or scene.config()
    public = await audit_topic(cluster_of(config), config.topics.alerts)
    operator = await audit_state(config, cluster_of(config))
    assert public.problems + operator.problems == []
    return operator


async def _read(scene: Scene, worker: Worker, offset: int) -> None:
    """Wait until the only shard has committed so far, and has published what it charged."""
    await until(
        lambda: (
            [status.offsets.get(scene.queries) for status in worker.statuses()] == [offset] and worker.ready
        )
    )
    await asyncio.sleep(0.3)


async def test_a_worker_whose_producer_the_broker_forgot_goes_on_without_a_loss() -> None:
    """The broker forgets a transactional id after days without a transaction; here after two seconds."""
    async with (
        EmbeddedKafka(overrides=IDLE_BROKER) as kafka,
        Scene(kafka.bootstrap_servers, "shop", partitions=1, limit=6).on_stage() as scene,
    ):
        worker = await scene.start()
        await scene.send("a", HIGH, LOW)
        await _read(scene, worker, 2)
        await asyncio.sleep(6)
        assert worker.ready
        await scene.send("b", HIGH)
        await scene.send("a", HIGH)
        await _read(scene, worker, 4)
        assert [(alert.dataset, alert.run, alert.top) for alert in await scene.alerts()] == [
            ("a", 1, 1),
            ("b", 1, 1),
            ("a", 1, 2),
        ]
        assert (await _audited(scene)).alerts == 3


async def test_retention_that_overtakes_a_stopped_service_is_accepted_by_command_only(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    await scene.stop(worker)
    await scene.send("a", *[HIGH] * 5)
    await scene.delete_before("counts", 4)
    worker = await scene.start(ready=False)
    await until(lambda: [status.cause for status in worker.statuses()] == [Cause.RECORDS_LOST])
    assert worker.statuses()[0].state is State.PARKED
    await _audited(scene)
    await scene.command("accept-loss", partition=0)
    await _read(scene, worker, 6)
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
    await _read(scene, worker, 5)
    await scene.stop(worker)
    await scene.make_anew("counts")
    worker = await scene.start(ready=False)
    await until(lambda: [status.cause for status in worker.statuses()] == [Cause.RECORDS_LOST])
    await scene.command("accept-loss", partition=0)
    await until(lambda: is_open(worker))
    await scene.producer.client.force_metadata_update()
    await scene.send("a", HIGH)
    await until(lambda: sum(view.spent for s in worker.statuses() for view in s.views.values()) > 1.5)
    await asyncio.sleep(0.5)
    # Offsets begin anew, runs do not: the same place was never tested under the same noise.
    assert [(alert.run, alert.position.offset) for alert in await scene.alerts()] == [(1, 0), (1, 1), (2, 0)]
    await _audited(scene)


async def test_a_state_topic_made_anew_is_a_rollback_and_costs_the_budgets(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    await scene.stop(worker)
    await scene.make_anew("state")
    worker = await scene.start(ready=False)
    await until(lambda: [status.cause for status in worker.statuses()] == [Cause.STATE_ROLLED_BACK])
    await asyncio.sleep(0.5)
    await scene.command("mark-exhausted", partition=0)
    await until(lambda: is_open(worker))
    await scene.send("a", HIGH)
    await until(lambda: [s.offsets.get(scene.queries) for s in worker.statuses()] == [2])
    await asyncio.sleep(0.3)
    assert len(await scene.alerts()) == 1
    found = await _audited(scene)
    assert {books.spent for books in found.datasets.values()} == {6 * 10**9}


async def test_an_alert_topic_made_anew_takes_no_budget_back(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    await scene.stop(worker)
    await scene.make_anew("alerts")
    worker = await scene.start()
    await scene.send("a", HIGH)
    await _read(scene, worker, 2)
    (alert,) = await scene.alerts()
    assert (alert.run, alert.top) == (1, 2)
    found = await _audited(scene)
    assert found.truncated == {0}


async def test_a_control_topic_made_anew_is_heard_from_the_end_that_a_worker_finds(scene: Scene) -> None:
    worker = await scene.start()
    for action in ("pause", "resume") * 2:
        await scene.command(action, "a", partition=0)
    await _heard(scene, 4)
    await scene.stop(worker)
    await scene.make_anew("control")
    await scene.command("pause", "a", partition=0)  # while no worker runs: it may be a copy
    worker = await scene.start()
    await scene.command("pause", "b", partition=0)
    await _heard(scene, 5)
    assert _paused(worker) == ["b"]
    await scene.command("resume", "b", partition=0)
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    assert len(await scene.alerts()) == 1
    assert await _replies(scene) == 6
    await _audited(scene)


async def test_a_control_topic_made_anew_and_filled_as_far_as_the_place_reached_is_read_on_from_there(
    scene: Scene,
) -> None:
    """The limit that the manual states: offsets are all that tells one topic from the other."""
    worker = await scene.start()
    for action in ("pause", "resume"):
        await scene.command(action, "c", partition=0)
    await _heard(scene, 2)
    await scene.stop(worker)
    await scene.make_anew("control")
    for dataset in "abc":
        await scene.command("pause", dataset, partition=0)
    worker = await scene.start()
    await _heard(scene, 3)
    assert _paused(worker) == ["c"]


async def test_a_shard_whose_query_topic_is_deleted_parks_and_goes_on_once_it_is_there(scene: Scene) -> None:
    worker = await scene.start()
    await _delete(scene, "counts")
    await until(lambda: [s.cause for s in worker.statuses()] == [Cause.TOPIC_MISSING], 60)
    (status,) = worker.statuses()
    assert status.state is State.PARKED
    assert f"{scene.application}.counts' does not exist" in status.reason
    assert worker.alive
    with pytest.raises(ConfigError, match=rf"{scene.application}\.counts' does not exist"):
        await Worker(scene.config()).start()
    await create_topics(scene.servers, {f"{scene.application}.counts": 1}, CLOCK)
    await until(lambda: is_open(worker), 60)
    await scene.producer.client.force_metadata_update()
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    assert len(await scene.alerts()) == 1


@pytest.mark.parametrize("name", ["state", "alerts", "rejects"])
async def test_a_worker_whose_written_topic_is_deleted_tries_again_until_it_is_there(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "CALL_DEADLINE", 2.0)  # of a transaction; it would be ten seconds
    worker = await scene.start()
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    await _delete(scene, name)
    await asyncio.sleep(1)
    assert worker.ready  # nothing is noticed before something is to be written
    await scene.send("a", HIGH)
    await scene.producer.send_and_wait(scene.queries, b"no query", partition=0)
    await until(lambda: worker.statuses()[0].state is State.RETRYING)
    assert "no answer from the broker in time" in worker.statuses()[0].reason
    assert worker.alive
    await create_topics(
        scene.servers, {f"{scene.application}.{name}": 1}, CLOCK | (COMPACTED if name == "state" else {})
    )
    if name == "state":
        await until(lambda: worker.statuses()[0].cause is Cause.STATE_ROLLED_BACK)
        return
    await _read(scene, worker, 3)
    assert [alert.top for alert in await scene.alerts()] == ([2] if name == "alerts" else [1, 2])
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
        await _read(scene, worker, number)
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


async def test_a_workers_clock_that_leaps_for_days_makes_it_wait_and_changes_nothing(
    scene: Scene, clock
) -> None:
    worker = await scene.start()
    for number, days in enumerate((30, -400)):
        clock["seconds"] = days * DAY
        await scene.send("a", HIGH)
        await until(lambda: worker.fault is not None and worker.statuses() == [])
        assert "this machine's clock is" in worker.fault.reason
        clock["seconds"] = 0.0
        await until(lambda: is_open(worker))
        await _read(scene, worker, number + 1)
    assert [alert.position.offset for alert in await scene.alerts()] == [0, 1]
    assert (await _audited(scene)).alerts == 2


async def test_a_workers_clock_that_is_minutes_off_and_steps_back_changes_nothing(
    scene: Scene, clock
) -> None:
    config = scene.config()
    for number, minutes in enumerate((0, 9, -9, 4)):
        clock["seconds"] = minutes * 60.0
        worker = await scene.start(config)
        await scene.send("a", HIGH, LOW)
        await _read(scene, worker, 3 * number + 2)
        clock["seconds"] = -clock["seconds"]
        await scene.send("a", LOW)
        await _read(scene, worker, 3 * number + 3)
        await scene.stop(worker)
    assert [alert.position.offset for alert in await scene.alerts()] == [0, 3, 6, 9]
    assert (await _audited(scene, config)).alerts == 4


async def test_a_clock_ahead_is_named_where_topics_go_by_it_and_nothing_is_lost(
    scene: Scene, clock, caplog: pytest.LogCaptureFixture
) -> None:
    config = scene.config()
    for name, policy in (("state", "compact"), ("alerts", "delete")):
        await _set_timestamps(scene, f"{scene.application}.{name}", "CreateTime", policy)
    worker = await scene.start(config)
    await scene.send("a", HIGH)
    await _read(scene, worker, 1)
    clock["seconds"] = 2 * DAY
    with caplog.at_level("WARNING"):
        await scene.send("a", HIGH)
        await until(lambda: "set this machine's clock" in caplog.text)
    assert worker.alive
    clock["seconds"] = 0.0
    await _read(scene, worker, 2)
    assert [alert.position.offset for alert in await scene.alerts()] == [0, 1]
    assert (await _audited(scene, config)).alerts == 2


async def test_a_new_sealing_key_is_taken_up_by_restart_while_another_worker_runs(
    scene: Scene, tmp_path: Path
) -> None:
    """One worker after the other: the first one's shards are read with the key before."""
    for name in ("old", "new"):
        (tmp_path / name).write_text(("11" if name == "old" else "22") * 32)
        (tmp_path / name).chmod(0o600)
    old = parse_config(scene.text() + "sealing: {key_file: old}\n", directory=tmp_path)
    new = parse_config(
        scene.text() + "sealing: {key_file: new, previous_key_files: [old]}\n", directory=tmp_path
    )
    first = await scene.start(old)
    await scene.send("a", HIGH)
    await _read(scene, first, 1)
    before = first.statuses()[0].key_id
    second = await scene.start(new, ready=False)
    await scene.stop(first)
    await until(lambda: second.ready and bool(second.statuses()))
    await scene.send("a", HIGH)
    await _read(scene, second, 2)
    assert second.statuses()[0].key_id not in ("none", before)
    await scene.stop(second)
    # Nothing is sealed with the old key any more.
    alone = parse_config(scene.text() + "sealing: {key_file: new}\n", directory=tmp_path)
    assert (await _audited(scene, alone)).alerts == 2


def _paused(worker: Worker) -> list[str]:
    return [
        view["dataset"]
        for view in worker.status()["datasets"]
        if [monitor["state"] for monitor in view["monitors"]] == ["paused"]
    ]


async def _replies(scene: Scene) -> int:
    return [envelope.type for envelope, _ in await scene.events()].count(EventType.COMMAND_REPLY)


async def _heard(scene: Scene, commands: int) -> None:
    """Wait until so many commands have been answered."""
    async with asyncio.timeout(20):
        while await _replies(scene) < commands:
            await asyncio.sleep(0.1)


async def _delete(scene: Scene, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.servers)
    await admin.start()
    try:
        await admin.delete_topics([f"{scene.application}.{name}"])
    finally:
        await admin.close()


async def _set_clock(scene: Scene, config: Config, kind: str) -> None:
    """Say who stamps the records of the query topic: the check at a worker's start excludes producers."""
    await _set_timestamps(scene, scene.queries, kind)
    async with asyncio.timeout(20):
        while bool(problems(config, await look(config, cluster_of(config)))) == (kind == "LogAppendTime"):
            await asyncio.sleep(0.05)


async def _set_timestamps(scene: Scene, topic: str, kind: str, policy: str = "delete") -> None:
    settings = {"message.timestamp.type": kind, "cleanup.policy": policy}
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.servers)
    await admin.start()
    try:
        await admin.alter_configs([resource])
    finally:
        await admin.close()
