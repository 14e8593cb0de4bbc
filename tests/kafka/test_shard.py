"""A worker's shards on a real broker: what goes in, what comes out, and what cannot stop them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.service.config import parse_config
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, HIGH, LOW, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def scene(broker, topics) -> AsyncIterator[Scene]:
    async with Scene(broker.bootstrap_servers, topics.name("shop")).on_stage() as scene:
        yield scene


async def test_tops_become_alerts_and_lows_do_not(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW, HIGH, LOW)
    await scene.send("b", LOW, LOW)
    await scene.settled(worker, 5)
    (alert,) = await scene.alerts()
    assert (alert.dataset, alert.monitor, alert.run, alert.top) == ("a", "hot", 1, 1)


async def test_rejects_name_the_reason_and_processing_goes_on(scene: Scene) -> None:
    worker = await scene.start()
    await scene.producer.send_and_wait(scene.queries, b"\xff", key=b"a")
    await scene.producer.send_and_wait(scene.queries, b'{"id":"x","value":1}', key=b"nobody")
    await scene.send("a", HIGH)
    await scene.settled(worker, 3)
    await until(lambda: worker.ready)
    assert len(await scene.alerts()) == 1
    reasons = sorted(record.value.split(b'"reason":')[1] for record in await scene.read("rejects"))
    assert reasons == [b'"invalid-utf8"}', b'"undeclared"}']


async def test_a_monitor_added_on_a_new_topic_tests_what_stands_there(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    await scene.stop(worker)
    other = f"{scene.application}.other"
    await create_topics(scene.servers, {other: scene.partitions}, CLOCK)
    await scene.send("a", HIGH, LOW, HIGH, topic=other)
    hot = scene.text()[scene.text().index("  - name: hot") :]
    added = hot.replace("name: hot", "name: added").replace(scene.queries, other)
    worker = await scene.start(parse_config(scene.text() + added, directory=Path()))
    await scene.settled(worker, 4)
    await scene.send("a", HIGH, topic=other)
    await scene.settled(worker, 5)
    found = [alert.position.offset for alert in await scene.alerts() if alert.monitor == "added"]
    assert found == [0, 2, 3]


async def test_a_raised_budget_and_a_malformed_command_both_get_an_answer(scene: Scene) -> None:
    worker = await scene.start()
    await scene.command("raise-budget", "a", limit="9")
    await scene.producer.send_and_wait(f"{scene.application}.control", b"{", key=b"a")
    await asyncio.sleep(1.0)
    kinds = [envelope.type for envelope, _ in await scene.events()]
    assert EventType.BUDGET_RAISED in kinds
    assert EventType.COMMAND_REPLY in kinds
    (reject,) = await scene.read("rejects")
    assert b"command-not-json" in reject.value
    again = await _restarted(scene, worker)
    (view,) = [view for status in again.statuses() for name, view in status.views.items() if name == "a"]
    assert view.limit == 9


async def test_a_pause_skips_the_queries_of_its_dataset_and_nothing_else(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW)
    await scene.settled(worker, 1)
    await scene.command("pause", "a")
    await _released(scene, EventType.PAUSED)
    for restart in (False, True):
        if restart:
            worker = await _restarted(scene, worker)
        await scene.send("a", HIGH)
        # The partition goes on; nothing of the paused dataset is tested.
        await scene.settled(worker, 2 + restart)
        assert await scene.alerts() == []
    await scene.command("resume", "a")
    await _released(scene, EventType.RESUMED)
    await scene.send("a", HIGH)
    await scene.settled(worker, 4)
    assert len(await scene.alerts()) == 1


async def _released(scene: Scene, kind: EventType) -> None:
    async with asyncio.timeout(20):
        while kind not in [envelope.type for envelope, _ in await scene.events()]:
            await asyncio.sleep(0.1)


async def _restarted(scene: Scene, worker):
    await scene.stop(worker)
    return await scene.start()


async def test_a_reload_changes_the_threshold_at_a_barrier(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", 2000)
    await scene.settled(worker, 1)
    await worker.reload(scene.config(threshold=500))
    await until(lambda: all(status.state is State.RUNNING for status in worker.statuses()))
    await asyncio.sleep(0.5)
    await scene.send("a", 2000)
    await scene.settled(worker, 2)
    (alert,) = await scene.alerts()
    assert alert.threshold == 500
    assert EventType.SPEC_CHANGED in [envelope.type for envelope, _ in await scene.events()]


async def test_a_reload_that_drops_a_dataset_is_refused(scene: Scene) -> None:
    worker = await scene.start()
    with pytest.raises(ConfigError, match="never dropped"):
        await worker.reload(scene.config(datasets="a, b"))
    assert worker.ready


async def test_a_limit_changed_in_the_file_is_refused_with_the_command_to_run(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW)
    await scene.settled(worker, 1)
    await scene.stop(worker)
    worker = await scene.start(scene.config(limit=5), ready=False)
    await until(lambda: "raise-budget" in complaint(worker))
    assert Cause.CONFIGURATION in [status.cause for status in worker.statuses()]
    assert worker.alive


async def test_deleted_records_are_loud_and_wait_for_the_operator(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW, HIGH)
    await scene.settled(worker, 2)
    (shard,) = {record.partition for record in await scene.read("counts")}
    await scene.stop(worker)
    await scene.send("a", LOW, LOW, LOW)
    await _delete_before(scene, shard, 4)
    worker = await scene.start(ready=False)
    await until(lambda: Cause.RECORDS_LOST in [status.cause for status in worker.statuses()])
    assert worker.statuses()[shard].state is State.PARKED
    assert worker.alive
    other = worker.statuses()[1 - shard]
    await until(lambda: other.state is State.RUNNING)
    await scene.command("accept-loss", partition=shard)
    await until(lambda: is_open(worker))
    await scene.send("a", HIGH)
    await scene.settled(worker, 6)
    kinds = [envelope.type for envelope, _ in await scene.events()]
    assert EventType.LOSS_ACCEPTED in kinds
    assert [alert.run for alert in await scene.alerts()] == [1, 2]


async def _delete_before(scene: Scene, shard: int, offset: int) -> None:
    from aiokafka import TopicPartition

    admin = AIOKafkaAdminClient(bootstrap_servers=scene.servers)
    await admin.start()
    await admin.delete_records({TopicPartition(scene.queries, shard): RecordsToDelete(offset)})
    await admin.close()


async def test_a_lost_state_stops_one_shard_until_its_budgets_are_given_up(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    await scene.stop(worker)
    records = await scene.read("state")
    (shard,) = {record.partition for record in await scene.read("alerts")}
    for record in records:
        if record.partition == shard:
            await scene.producer.send_and_wait(
                f"{scene.application}.state", None, key=record.key, partition=shard
            )
    worker = await scene.start(ready=False)
    await until(lambda: worker.statuses()[shard : shard + 1] != [])
    await until(lambda: worker.statuses()[shard].cause is Cause.STATE_ROLLED_BACK)
    await asyncio.sleep(0.5)
    await scene.command("mark-exhausted", partition=shard)
    await until(lambda: is_open(worker))
    await scene.send("a", HIGH, HIGH)
    await asyncio.sleep(0.7)
    assert len(await scene.alerts()) == 1
    views = [view for status in worker.statuses() for view in status.views.values() if view.dataset == "a"]
    assert [view.spent for view in views] == [views[0].limit]
    sequences = [envelope.sequence for envelope, _ in await scene.events() if envelope.shard == shard]
    assert sequences == list(range(1, len(sequences) + 1))


@pytest.mark.parametrize(
    ("partitions", "configs", "message"),
    [
        (3, {}, "has 3 partitions, topics.partitions says 2"),
        (2, {"cleanup.policy": "delete"}, "expected compact"),
    ],
)
async def test_topics_that_do_not_fit_are_refused_at_start(
    broker, topics, partitions, configs, message
) -> None:
    from tests.support.topics import create_topics

    scene = Scene(broker.bootstrap_servers, topics.name("shop"))
    names = {f"{scene.application}.{name}": 2 for name in ("counts", "alerts", "rejects", "control")}
    await create_topics(scene.servers, names)
    await create_topics(
        scene.servers, {f"{scene.application}.state": partitions}, {"cleanup.policy": "compact"} | configs
    )
    with pytest.raises(ConfigError, match=message):
        await scene.start()


async def test_missing_topics_are_all_named_with_the_remedy(broker, topics) -> None:
    scene = Scene(broker.bootstrap_servers, topics.name("shop"))
    with pytest.raises(ConfigError, match="--create-topics") as refused:
        await scene.start()
    (problem,) = refused.value.problems
    for name in ("counts", "control", "alerts", "state", "rejects"):
        assert f"'{scene.application}.{name}'" in problem.message
