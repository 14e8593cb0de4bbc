"""The soaks in their short form; the full one is a command each (docs/reliability.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import TopicPartition

from stream_svt.kafka.clients import BrokerUnavailable, Cluster, cluster_id_of
from stream_svt.kafka.transactions import NewRecords
from stream_svt.protocol.ports import Transaction
from stream_svt.settings.sections import TopicsConfig
from stream_svt.worker.ports import ShardLog
from tests.soak import counter
from tests.soak.blows import SHORT, faults, kills, losses, zombies
from tests.soak.stage import SCARCE, Outcome
from tests.support.cluster import ThreeBrokers
from tests.support.proxy import Api, Fault, ProxiedKafka, Proxy, Strike
from tests.support.topics import BROKER, create_topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
FEW = {"rate": 300, "scarce": 10}
"""Queries a second that leave the processors to what restarts, and a limit that is used up with them."""


def assert_sound(outcome: Outcome, count: int) -> None:
    """Nothing was broken by so many blows, and there was something to break."""
    assert outcome.violations == []
    assert outcome.count == count
    assert len(outcome.found.alerts) > 100
    assert (SCARCE, "plain") in outcome.found.exhausted


async def test_workers_killed_and_workers_that_stood_still_lose_and_double_nothing(broker, topics, tmp_path):
    """Two applications at once, for both spend their time waiting for sessions to end."""
    directories = [tmp_path / "kill", tmp_path / "zombie"]
    for directory in directories:
        directory.mkdir()
    killed, stopped = await asyncio.gather(
        kills(broker, topics.name("kill"), directories[0], SHORT["kill"], 1, **FEW),
        zombies(broker, topics.name("zombie"), directories[1], SHORT["zombie"], 1, **FEW),
    )
    for outcome, count in (killed, SHORT["kill"]), (stopped, SHORT["zombie"]):
        assert_sound(outcome, count)
        assert len(outcome.found.secrets) > 10


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[ProxiedKafka]:
    """One broker behind a proxy for the tests of lost and late requests."""
    with ProxiedKafka(overrides=BROKER) as kafka:
        yield kafka


async def test_a_request_that_comes_late_neither_ends_nor_joins_another_transaction(proxied_kafka) -> None:
    """One without an answer is not sent again: the first would meet what came after the second."""
    names = TopicsConfig(state="state", alerts="alerts", rejects="rejects")

    def transaction(key: bytes) -> Transaction:
        return Transaction([], [], {key: b"content"})

    kafka = proxied_kafka
    async with Proxy(kafka.front_port, kafka.behind_port).running() as proxy:
        await create_topics(kafka.bootstrap_servers, {"alerts": 1, "rejects": 1})
        await create_topics(kafka.bootstrap_servers, {"state": 1}, {"cleanup.policy": "compact"})
        cluster_id = await cluster_id_of(Cluster({"bootstrap_servers": kafka.bootstrap_servers}))
        log, heir = (
            ShardLog(Cluster({"bootstrap_servers": address}), "shop", 0, names, cluster_id)
            for address in (proxy.address, kafka.bootstrap_servers)
        )
        try:
            await log.fence()
            await log.transact(transaction(b"first"))
            strike = Strike(Api.END_TXN, Fault.REQUEST_ASTRAY, 2.0)
            proxy.arm(strike)
            with pytest.raises(BrokerUnavailable):
                await log.transact(transaction(b"second"))
            await log.fence()
            state = TopicPartition("state", 0)
            await log._producer.begin([state])
            await log._producer.append([NewRecords(state, [(b"half", b"content")])], 0)
            assert not strike.done.is_set()
            await strike.done.wait()
            await heir.fence()
            assert set(await heir.read_state()) == {b"first"}
            await log.fence()
            strike = Strike(Api.ADD_PARTITIONS_TO_TXN, Fault.REQUEST_ASTRAY, 0.5)
            proxy.arm(strike)
            with pytest.raises(BrokerUnavailable):
                await log.transact(Transaction([], [], {b"third": b"content"}, claim=True))
            await log.fence()
            await strike.done.wait()
            await log.transact(transaction(b"fourth"))
            assert (await log.read_alerts(None, print)) == (0, 0)  # not even a marker
        finally:
            await log.close()
            await heir.close()


async def test_a_worker_is_not_ready_while_its_brokers_are_away_for_longer_than_a_session(
    scenes, proxied_kafka
) -> None:
    proxy, scene = Proxy(proxied_kafka.front_port, proxied_kafka.behind_port), await scenes(on=proxied_kafka)
    async with proxy.running():
        service = scene.serve(file=scene.write(servers=proxy.address))
        await service.ready()
    await service.until(lambda: "brokers have been unreachable" in (service.fetch("/health/ready") or ""))
    status = service.status() or {}
    assert (status["ready"], status["fault"]["cause"]) == (False, "unavailable")
    assert service.fetch("/health/live") == "live\n"
    async with proxy.running():
        await service.ready()
        await service.end()


async def test_lost_and_late_requests_and_replies_lose_and_double_nothing(proxied_kafka, tmp_path) -> None:
    outcome = await faults(proxied_kafka, "shop", tmp_path, SHORT["proxy"], 1, **FEW)
    assert_sound(outcome, SHORT["proxy"])


async def test_counts_are_exact_while_counters_are_killed_stopped_and_cut_off(
    proxied_kafka, tmp_path
) -> None:
    outcome = await counter.counters(proxied_kafka, "web", tmp_path, 5, 1)
    assert (outcome.violations, outcome.count) == ([], 5)


@pytest.mark.soak
async def test_counts_are_exact_while_a_cluster_loses_brokers(tmp_path) -> None:
    async with ThreeBrokers().running() as brokers:
        outcome = await counter.on_cluster(brokers, "web", tmp_path, 3, 1)
    assert (outcome.violations, outcome.count) == ([], 3)


@pytest.mark.soak
async def test_a_cluster_that_loses_a_broker_and_gets_it_back_loses_and_doubles_nothing(tmp_path) -> None:
    async with ThreeBrokers().running() as brokers:
        outcome = await losses(brokers, "shop", tmp_path, SHORT["cluster"], 1, full_disks=False)
    assert_sound(outcome, SHORT["cluster"])
