"""What a worker makes of its assignments."""

from __future__ import annotations

from aiokafka import TopicPartition

from stream_svt.errors import ConfigError
from stream_svt.monitor.spec import load_spec
from stream_svt.service.group import Group
from stream_svt.service.kafka import Cluster
from stream_svt.service.metrics import Metrics
from tests.service.test_metrics import SPEC


class Consumer:
    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()

    def pause(self, *places: TopicPartition) -> None:
        self.paused |= set(places)


class Shard:
    def __init__(self, number: int, *, broken: bool = False) -> None:
        self.number = number
        self.started = False
        self.broken = broken

    def start(self) -> None:
        if self.broken:
            raise RuntimeError
        self.started = True


def group(fatal: list[BaseException], *, broken: bool = False) -> Group:
    made = Group(
        Cluster({}),
        application="shop",
        topics=["counts", "control"],
        make_shard=lambda consumer, number: Shard(number, broken=broken),
        metrics=Metrics(load_spec(SPEC), "hash"),
        worker="w",
        spec_hash=lambda: "hash",
        fatal=fatal.append,
    )
    made._consumer = Consumer()
    return made


async def test_every_partition_is_paused_and_gets_a_shard() -> None:
    fatal: list[BaseException] = []
    ours = group(fatal)
    assigned = {TopicPartition(topic, number) for topic in ("counts", "control") for number in (1, 3)}
    await ours.on_partitions_assigned(assigned)
    assert ours._consumer.paused == assigned
    assert sorted(ours.shards) == [1, 3]
    assert all(shard.started for shard in ours.shards.values())
    assert fatal == []


async def test_whoever_waits_for_an_assignment_has_not_joined() -> None:
    """A worker whose brokers are gone owns nothing and must not pass for a standby, which is ready."""
    ours = group([])
    assert not ours.joined
    await ours.on_partitions_assigned(set())
    assert ours.joined
    await ours.on_partitions_revoked(set())
    assert not ours.joined


async def test_topics_that_are_not_assigned_together_are_fatal() -> None:
    fatal: list[BaseException] = []
    ours = group(fatal)
    await ours.on_partitions_assigned({TopicPartition("counts", 0), TopicPartition("control", 1)})
    (error,) = fatal
    assert isinstance(error, ConfigError)
    assert "subscribes to other topics" in str(error)


async def test_an_error_in_the_listener_is_not_swallowed() -> None:
    fatal: list[BaseException] = []
    await group(fatal, broken=True).on_partitions_assigned(
        {TopicPartition("counts", 0), TopicPartition("control", 0)}
    )
    assert [type(error) for error in fatal] == [RuntimeError]


async def test_a_standby_without_partitions_has_joined() -> None:
    ours = group([])
    await ours.on_partitions_assigned(set())
    assert ours.joined
    assert ours.shards == {}
