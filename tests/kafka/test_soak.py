"""The soaks in their short form; the full one is a command each (docs/reliability.md)."""

from __future__ import annotations

import asyncio

import pytest

from tests.soak import cluster, kill, proxy, zombie
from tests.soak.stage import BROKER
from tests.support.cluster import ThreeBrokers
from tests.support.proxy import ProxiedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def test_workers_killed_and_workers_that_stood_still_lose_and_double_nothing(
    broker, topics, tmp_path
) -> None:
    """Two applications at once, for both spend their time waiting for sessions to end."""
    directories = [tmp_path / "kill", tmp_path / "zombie"]
    for directory in directories:
        directory.mkdir()
    killed, stopped = await asyncio.gather(
        kill.kills(broker, topics.name("kill"), directories[0], kill.SHORT, 1),
        zombie.zombies(broker, topics.name("zombie"), directories[1], zombie.SHORT, 1),
    )
    for outcome, count in (killed, kill.SHORT), (stopped, zombie.SHORT):
        assert outcome.violations == []
        assert outcome.count == count
        assert len(outcome.found.alerts) > 100
        assert len(outcome.found.threshold_noises) > 10


async def test_lost_and_late_requests_and_replies_lose_and_double_nothing(tmp_path) -> None:
    async with ProxiedKafka(overrides=BROKER) as kafka:
        outcome = await proxy.faults(kafka, "shop", tmp_path, proxy.SHORT, 1)
    assert outcome.violations == []
    assert outcome.count == proxy.SHORT
    assert len(outcome.found.alerts) > 100


async def test_a_cluster_that_loses_a_broker_and_gets_it_back_loses_and_doubles_nothing(tmp_path) -> None:
    async with ThreeBrokers(BROKER).running() as brokers:
        outcome = await cluster.losses(brokers, "shop", tmp_path, cluster.SHORT, 1, full_disks=False)
    assert outcome.violations == []
    assert outcome.count == cluster.SHORT
    assert len(outcome.found.alerts) > 100
