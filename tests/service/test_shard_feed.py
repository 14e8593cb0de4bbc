"""A shard's records: commands through the group, queries beside it, and both from the same place after a rebalance."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, OffsetOutOfRangeError

from stream_svt.errors import RecordsLost
from stream_svt.protocol.ports import Stopped
from stream_svt.service.kafka import Cluster
from stream_svt.service.query_consumer import QueryConsumer
from stream_svt.service.shard_feed import Hold, ShardFeed
from tests.support.query_client import Brokers, Client

COMMANDS, QUERIES = TopicPartition("control", 0), TopicPartition("counts", 0)
BOTH = ("control", "counts")


class Play:
    """A feed whose two clients read from memory; both topics are read from their beginning."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.member = Client(self.brokers)
        self.queries = QueryConsumer(self.brokers.client, 4)
        self.stop, self.hold = asyncio.Event(), Hold()
        self.feed = ShardFeed(Cluster({}), self.member, self.queries, 0, "control", self.stop, self.hold)
        self.assign()
        for topic in BOTH:
            self.feed.seek(topic, 0)
        self.feed.resume(BOTH)

    def assign(self, shard: int = 0) -> None:
        """Do what the group does: every place is new, without an offset, and paused."""
        self.member.give(TopicPartition("control", shard))
        self.member.pause(TopicPartition("control", shard))

    async def fetch(self, patience: float = 1.0, topics=BOTH) -> dict[str, list[int]]:
        found = await self.feed.fetch(topics, patience)
        return {topic: [record.offset for record in records] for topic, records in found.items()}

    async def rebalance(self) -> None:
        self.hold.ask()
        settled = asyncio.create_task(self.feed.settled())
        await self.hold.quiet.wait()
        assert not settled.done()
        self.assign()
        self.hold.release()
        await settled
        assert not self.feed.held


async def test_whichever_topic_has_something_is_returned_at_once() -> None:
    play = Play()
    play.brokers.write(QUERIES, 2)
    assert await play.fetch() == {"counts": [0, 1]}
    play.brokers.write(COMMANDS)
    assert await play.fetch() == {"control": [0]}
    for place in (COMMANDS, QUERIES):
        play.brokers.write(place)
    assert await play.fetch() | await play.fetch(0.0) == {"control": [1], "counts": [2]}
    assert await play.fetch(0.01) == {}


async def test_a_fetch_without_patience_looks_at_both_topics() -> None:
    """Where transactions have fixed times no fetch has any."""
    play = Play()
    for place in (COMMANDS, QUERIES):
        play.brokers.write(place)
    assert await play.fetch(0.0) | await play.fetch(0.0) == {"control": [0], "counts": [0]}
    for offset in range(1, 4):
        play.brokers.write(QUERIES)
        assert await play.fetch(0.0) == {"counts": [offset]}


async def test_a_read_of_commands_outlives_the_fetches_that_queries_end() -> None:
    """One that is given up leaves something in aiokafka until the next command, which may be never."""
    play = Play()
    for _ in range(5):
        play.brokers.write(QUERIES)
        assert list(await play.fetch()) == ["counts"]
        assert play.member.in_flight == 1
    play.brokers.write(COMMANDS)
    assert await play.fetch() == {"control": [0]}


async def test_after_a_rebalance_both_topics_go_on_where_the_shard_was() -> None:
    play = Play()
    play.brokers.write(COMMANDS, 3)
    play.brokers.write(QUERIES, 3)
    assert await play.fetch() | await play.fetch(0.0) == {"control": [0, 1, 2], "counts": [0, 1, 2]}
    for round_ in range(3):
        await play.rebalance()
        play.brokers.write(COMMANDS)
        play.brokers.write(QUERIES)
        assert await play.fetch() | await play.fetch(0.0) == {"control": [3 + round_], "counts": [3 + round_]}
    assert len(play.brokers.clients[0].assigned) == 1


async def test_commands_that_were_read_and_not_taken_are_read_again_after_a_rebalance() -> None:
    play = Play()
    assert await play.fetch(0.01) == {}
    waits = asyncio.create_task(play.feed.fetch(["counts", "control"], 5.0))
    await asyncio.sleep(0.01)
    play.hold.ask()
    assert await waits == {}
    play.brokers.write(COMMANDS, 2)
    await asyncio.sleep(0.01)
    await play.rebalance()
    assert await play.fetch() == {"control": [0, 1]}


async def test_a_topic_that_was_paused_stays_so_over_a_rebalance() -> None:
    play = Play()
    play.feed.pause(BOTH)
    await play.rebalance()
    for place in (COMMANDS, QUERIES):
        play.brokers.write(place)
    assert await play.fetch(0.02) == {}
    play.feed.resume(BOTH)
    assert await play.fetch() | await play.fetch(0.0) == {"control": [0], "counts": [0]}


async def test_a_rebalance_ends_a_fetch_at_once_and_without_records() -> None:
    play = Play()
    fetch = asyncio.create_task(play.fetch(60.0))
    await asyncio.sleep(0.01)
    play.hold.ask()
    async with asyncio.timeout(5):
        assert await fetch == {}
    assert play.feed.held


async def test_a_shard_that_only_waits_for_a_command_reads_none_during_a_rebalance() -> None:
    play = Play()
    play.brokers.write(COMMANDS)
    play.hold.ask()
    assert await play.fetch(0.02, ["control"]) == {}
    fetch = asyncio.create_task(play.fetch(60.0, ["control"]))
    await asyncio.sleep(0.01)
    assert not fetch.done()
    play.assign()
    play.hold.release()
    assert await fetch == {}
    assert await play.fetch(1.0, ["control"]) == {"control": [0]}


async def test_whoever_stands_by_can_be_stopped() -> None:
    play = Play()
    play.hold.ask()
    settled = asyncio.create_task(play.feed.settled())
    await play.hold.quiet.wait()
    play.stop.set()
    with pytest.raises(Stopped):
        await settled
    assert not play.hold.quiet.is_set()
    with pytest.raises(Stopped):
        await play.fetch(60.0)


async def test_a_stop_ends_a_fetch() -> None:
    play = Play()
    fetch = asyncio.create_task(play.fetch(60.0))
    await asyncio.sleep(0.01)
    play.stop.set()
    with pytest.raises(Stopped):
        await fetch


async def test_a_partition_that_is_not_this_workers_is_not_read() -> None:
    play = Play()
    play.hold.ask()
    settled = asyncio.create_task(play.feed.settled())
    await play.hold.quiet.wait()
    play.assign(1)
    play.hold.release()
    await settled
    with pytest.raises(IllegalStateError):
        await play.fetch()


@pytest.mark.parametrize("place", [COMMANDS, QUERIES], ids=lambda place: place.topic)
async def test_records_that_are_gone_are_named(place: TopicPartition) -> None:
    play = Play()
    play.brokers.errors[place] = OffsetOutOfRangeError({place: 0})
    with pytest.raises(RecordsLost, match=f"shard 0: offsets are out of range on {place.topic}"):
        await play.fetch()


async def test_a_feed_that_is_closed_leaves_nothing_assigned_or_read() -> None:
    play = Play()
    assert await play.fetch(0.01) == {}
    play.feed.close()
    async with asyncio.timeout(10):
        while not play.brokers.clients[0].stopped or play.member.in_flight:
            await asyncio.sleep(0.001)
    assert play.member._subscription.paused_partitions() == {COMMANDS}
