"""A worker's shards on a real broker: what goes in, what comes out, and what cannot stop them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.shard_states import State
from stream_svt.service.config import parse_config
from tests.support.process import Service, applied, free_port
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, HIGH, LOW, Scene, until

pytestmark = pytest.mark.kafka


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
    await scene.command("raise-budget", "a", limit="900")
    await scene.producer.send_and_wait(f"{scene.application}.control", b"{", key=b"a")
    (reject,) = await scene.rejected()
    kinds = [envelope.type for envelope, _ in await scene.events()]
    assert EventType.BUDGET_RAISED in kinds
    assert EventType.COMMAND_REPLY in kinds
    assert b"command-not-json" in reject.value
    again = await _restarted(scene, worker)
    (view,) = [view for status in again.statuses() for name, view in status.views.items() if name == "a"]
    assert view.limit == 900


async def test_a_pause_skips_the_queries_of_its_dataset_and_nothing_else(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", LOW)
    await scene.settled(worker, 1)
    await scene.command("pause", "a")
    await scene.released(EventType.PAUSED)
    for restart in (False, True):
        if restart:
            worker = await _restarted(scene, worker)
        await scene.send("a", HIGH)
        # The partition goes on; nothing of the paused dataset is tested.
        await scene.settled(worker, 2 + restart)
        assert await scene.alerts() == []
    await scene.command("resume", "a")
    await scene.released(EventType.RESUMED)
    await scene.send("a", HIGH)
    await scene.settled(worker, 4)
    assert len(await scene.alerts()) == 1


async def _restarted(scene: Scene, worker):
    await scene.stop(worker)
    return await scene.start()


async def test_another_version_changes_the_threshold_at_a_barrier(scene: Scene) -> None:
    worker = await scene.start()
    await scene.send("a", 2000)
    await scene.settled(worker, 1)
    await scene.apply(worker, scene.config(threshold=500))
    await until(lambda: all(status.state is State.RUNNING for status in worker.statuses()))
    await asyncio.sleep(0.5)
    await scene.send("a", 2000)
    await scene.settled(worker, 2)
    (alert,) = await scene.alerts()
    assert alert.threshold == 500
    assert EventType.SPEC_CHANGED in [envelope.type for envelope, _ in await scene.events()]


@pytest.mark.parametrize(
    ("topic", "policy", "expected"),
    [
        ("state", "delete", "compact"),
        # Compaction keeps the newest query of a dataset: a takeover would miss those an owner before it tested.
        ("counts", "compact,delete", "delete"),
    ],
)
async def test_topics_that_do_not_fit_are_refused_at_start(
    scene: Scene, topic: str, policy: str, expected: str
) -> None:
    await scene.delete(topic)
    name = f"{scene.application}.{topic}"
    await create_topics(scene.servers, {name: scene.partitions}, CLOCK | {"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=rf"\.{topic}' has cleanup.policy={policy}, expected {expected}"):
        await scene.start()


SCENE = {"partitions": 4, "limit": 500}


async def test_a_stopped_worker_leaves_nothing_to_repeat_and_exits_with_zero(scene: Scene, tmp_path) -> None:
    path = tmp_path / "shop.yaml"
    port = free_port()
    path.write_text(scene.text() + f"web: {{port: {port}}}\n")
    service = Service(path, port, tmp_path / "log")
    await service.ready()
    await scene.send("a", HIGH)
    await asyncio.sleep(0.5)
    path.write_text(path.read_text().replace("threshold: 5000", "threshold: 700"))
    replayed = service.said("shard_replayed")
    await asyncio.to_thread(applied, path)
    await service.until(lambda: service.said("event=configuration_read version=2"))
    await service.until(lambda: service.said("shard_replayed") > replayed)
    assert await service.end() == 0, service.log
    assert len(await scene.alerts()) == 1


async def test_a_worker_that_cannot_start_says_why_and_exits_with_the_errors_code(
    scene: Scene, tmp_path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        files = {
            "has 4 partitions, topics.partitions says 5": (
                scene.text().replace("partitions: 4", "partitions: 5") + f"web: {{port: {free_port()}}}\n"
            ),
            "web.port: cannot listen on 127.0.0.1": (
                scene.text() + f"web: {{port: {taken.getsockname()[1]}}}\n"
            ),
        }
        started = []
        for number, (words, text) in enumerate(files.items()):
            path = tmp_path / f"shop-{number}.yaml"
            path.write_text(text)
            started.append((words, Service(path, 0, tmp_path / f"{number}.log")))
        for words, service in started:
            assert await asyncio.to_thread(service.process.wait, 30) == ConfigError.exit_code
            assert words in service.log.splitlines()[-1]
            assert "Traceback" not in service.log


async def test_a_session_the_brokers_do_not_allow_ends_the_worker_with_the_reason(scene: Scene) -> None:
    text = scene.text().replace(
        "session_timeout: 2s, heartbeat_interval: 300ms", "session_timeout: 300ms, heartbeat_interval: 100ms"
    )
    worker = await scene.start(parse_config(text), ready=False)
    await until(lambda: not worker.alive)
    assert "kafka.session_timeout" in str(worker.failed.exception())
