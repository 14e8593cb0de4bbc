"""What a counter knows of the applied configuration, and up to which moment."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaProducer

from stream_svt.counting import applied as module
from stream_svt.counting.applied import Applied
from stream_svt.errors import ConfigError
from stream_svt.settings import detection
from stream_svt.worker.config_versions import as_applied, propose
from tests.support.worker import until

pytestmark = pytest.mark.kafka


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
async def applied(scene):
    """Follow the configuration of an application."""
    found = Applied(scene.config())
    following = asyncio.create_task(found.follow())
    yield found
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_versions_are_known_up_to_now_with_the_lists_that_earlier_ones_had(scene, applied):
    await until(lambda: applied.read_ms)  # nothing is applied, and that is known
    assert applied.sources == ()
    began = now_ms()
    await scene.publish()
    await applied.read_since(now_ms())
    between = now_ms()
    await scene.publish(pages="a, d")
    await applied.read_since(now_ms())
    assert [one.name for one in applied.sources] == ["web"]
    assert now_ms() - applied.read_ms < 3000
    lists = applied.lists("web", 0)
    assert [lists.at(ms).series for ms in (0, began, between, applied.read_ms)] == [
        ("a", "b", "c"),
        ("a", "b", "c"),
        ("a", "b", "c"),
        ("a", "d"),
    ]
    assert lists.at(applied.read_ms + 1) is None
    assert applied.lists("web", 100).at(applied.read_ms - 99) is None
    assert applied.lists("web", 100).at(applied.read_ms - 100) is not None


async def test_the_numbers_of_an_applied_version_hold_for_counters_check_and_the_next_apply(
    counting, monkeypatch
):
    """Another release would solve for others: `propose` compares with the held ones, so that nothing is new."""
    detect = "detect: {above: 100, surely_from: 300, alerts: 10}"
    scene = await counting(more=f"  - {{name: sure, source: web, measure: users, {detect}}}\n")
    await scene.publish()
    solved = scene.config().spec.monitors[1]
    monkeypatch.setattr(detection, "solve", lambda _: (solved.epsilon * 2, solved.split))
    config = scene.config()
    assert config.spec.monitors[1].epsilon == solved.epsilon * 2
    found = Applied(config)
    following = asyncio.create_task(found.follow())
    await found.read_since(now_ms())
    following.cancel()
    proposal = await propose(config, config.cluster())
    assert not proposal.is_new
    assert not proposal.difference.has_changes
    for spec in (found.spec, proposal.config.spec, (await as_applied(config, config.cluster())).spec):
        assert spec.monitors[1] == solved


async def test_a_moment_is_not_known_while_a_version_of_it_may_be_in_an_open_transaction(scene, applied):
    await scene.publish()
    await applied.read_since(now_ms())
    producer = AIOKafkaProducer(bootstrap_servers=scene.servers, transactional_id=scene.topic)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(f"{scene.application}.config", b"", key=b"part/9/0", partition=0)
    written = now_ms()
    await asyncio.sleep(3)
    assert applied.read_ms <= written
    await producer.abort_transaction()
    await producer.stop()
    await applied.read_since(written + 1)


async def test_a_version_that_cannot_be_used_leaves_the_one_before_in_use(scene, applied, monkeypatch):
    await scene.publish()
    await applied.read_since(now_ms())
    monkeypatch.setattr(module, "read", refused)
    spec = applied.spec
    await scene.publish(pages="d")
    await applied.read_since(now_ms())
    assert applied.spec is spec


async def refused(*_: object) -> None:
    raise ConfigError([], "version 2")
