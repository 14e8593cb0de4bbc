"""A shard's feed: one consumer for queries and commands, each record once, at the same position after a rebalance."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from stream_svt.errors import ConfigError, RecordsLost, RecordsUnreadable
from stream_svt.kafka import batches
from stream_svt.kafka.clients import BrokerUnavailable
from stream_svt.protocol.ports import Stopped
from stream_svt.protocol.records import Records
from stream_svt.settings.sections import KafkaConfig
from stream_svt.worker import ports as module
from stream_svt.worker.event_loop import pause
from stream_svt.worker.ports import Requests, ShardFeed
from stream_svt.worker.shard import CLOCK, yield_to_loop
from tests.support.batch_client import Log, Logs
from tests.support.batches import Batch, Wire
from tests.support.reading_client import Brokers, Client
from tests.support.worker import until

COMMANDS, QUERIES = TopicPartition("control", 0), TopicPartition("counts", 0)
BOTH = ("control", "counts")


class MemoryFeed:
    """A feed of brokers in memory, positioned at the beginning of both topics."""

    def __init__(self, brokers: Brokers | None = None, shard: int = 0) -> None:
        self.brokers = brokers or Brokers()
        self.requests = Requests()
        self.feed = ShardFeed(cast(Any, self.brokers), shard, 4, self.requests)
        for topic in BOTH:
            self.feed.seek(topic, 0)

    @property
    def client(self) -> Client:
        return self.brokers.clients[-1]

    async def fetch(
        self, max_wait: float = 1.0, topics=BOTH, most: int | None = None
    ) -> dict[str, list[int]]:
        found = await self.feed.fetch(topics, max_wait, most)
        return {topic: [record.offset for record in records] for topic, records in found.items()}

    async def rebalance(self) -> None:
        self.requests.hold()
        settled = asyncio.create_task(self.feed.wait_for_rebalance())
        await self.requests.paused.wait()
        assert not settled.done()
        self.requests.release()
        await settled
        assert not self.feed.held


async def test_a_fetch_returns_at_once_when_any_topic_has_records() -> None:
    play = MemoryFeed()
    play.brokers.write(QUERIES, 2)
    assert await play.fetch() == {"counts": [0, 1]}
    play.brokers.write(COMMANDS)
    assert await play.fetch() == {"control": [0]}
    for partition in (COMMANDS, QUERIES):
        play.brokers.write(partition)
    assert await play.fetch(0.0) == {"control": [1], "counts": [2]}
    assert await play.fetch(0.01) == {}


async def test_a_fetch_makes_no_task_whether_it_waits_for_records_or_finds_some() -> None:
    play = MemoryFeed()
    await play.fetch(0.0)  # this one starts the client
    fetch = asyncio.create_task(play.fetch(60.0))
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task(), fetch}
    play.brokers.write(QUERIES)
    assert await fetch == {"counts": [0]}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_idle_shard_waits_longer_at_the_brokers_and_each_for_another_time() -> None:
    waits = []
    for shard in range(3):
        play = MemoryFeed(shard=shard)
        await play.fetch(0.01)
        waits.append(play.client._fetch_max_wait_ms)
    assert len(set(waits)) == 3
    assert min(waits) > module.FETCH_WAIT_MS
    play.brokers.write(TopicPartition("counts", 2))
    assert await play.fetch() == {"counts": [0]}
    assert play.client._fetch_max_wait_ms == module.FETCH_WAIT_MS


async def test_no_fetch_waits_longer_than_a_connection_may_be_idle() -> None:
    shortest = KafkaConfig.model_validate({"connections_max_idle": "10s"})
    play = MemoryFeed(Brokers(config=shortest), shard=0)  # the one with the longest wait
    await play.fetch(0.01)
    assert play.client._fetch_max_wait_ms == 10_000 < module.IDLE_WAIT_MS


async def test_a_rebalance_ends_a_fetch_and_undelivered_records_are_read_after_it() -> None:
    play = MemoryFeed()
    for round_ in range(3):
        fetch = asyncio.create_task(play.fetch(60.0))
        await asyncio.sleep(0.01)
        play.requests.hold()
        async with asyncio.timeout(5):
            assert await fetch == {}
        play.brokers.write(COMMANDS)
        play.brokers.write(QUERIES)
        await play.rebalance()
        assert await play.fetch() == {"control": [round_], "counts": [round_]}
    assert len(play.client.assigned) == 1


async def test_a_topic_that_is_not_fetched_is_paused_and_skips_nothing() -> None:
    play = MemoryFeed()
    assert await play.fetch(0.02) == {}
    play.brokers.write(QUERIES)
    for _ in range(2):
        assert await play.fetch(0.02, ["control"]) == {}
        assert play.feed.high_water("counts") is None
        assert play.client._subscription.paused_partitions() == {QUERIES}
        await play.rebalance()
    assert await play.fetch() == {"counts": [0]}
    assert play.feed.high_water("counts") == 1


async def test_a_topic_added_later_changes_no_other_position() -> None:
    play = MemoryFeed()
    play.brokers.write(QUERIES, 3)
    assert await play.fetch(most=2) == {"counts": [0, 1]}
    play.feed.seek("other", 4)
    play.brokers.write(TopicPartition("other", 0), 5)
    assert await play.fetch(topics=[*BOTH, "other"]) == {"counts": [2], "other": [4]}


async def test_a_shard_that_only_waits_for_a_command_reads_none_during_a_rebalance() -> None:
    play = MemoryFeed()
    play.brokers.write(COMMANDS)
    play.requests.hold()
    assert await play.fetch(0.02, ["control"]) == {}
    fetch = asyncio.create_task(play.fetch(60.0, ["control"]))
    await asyncio.sleep(0.01)
    assert not fetch.done()
    play.requests.release()
    assert await fetch == {}
    assert await play.fetch(1.0, ["control"]) == {"control": [0]}


@pytest.mark.parametrize("held", [False, True])
async def test_a_fetch_and_a_pause_can_be_stopped(held: bool) -> None:
    play = MemoryFeed()
    if held:
        play.requests.hold()
    waiting = asyncio.create_task(play.feed.wait_for_rebalance() if held else play.fetch(60.0))
    await (play.requests.paused.wait() if held else asyncio.sleep(0.01))
    play.requests.end()
    with pytest.raises(Stopped):
        await waiting
    assert not (held and play.requests.paused.is_set())
    with pytest.raises(Stopped):
        await play.fetch(60.0)


async def test_lost_records_and_a_client_whose_fetch_loop_ended_are_errors() -> None:
    play = MemoryFeed()
    play.brokers.errors = {QUERIES: OffsetOutOfRangeError({QUERIES: 0})}
    with pytest.raises(RecordsLost, match="shard 0: offsets are out of range on counts"):
        await play.fetch(0.0)
    play.client.error_future.set_result(None)
    with pytest.raises(BrokerUnavailable, match="fetch loop ended"):
        await play.fetch(0.0)


async def test_a_client_that_does_not_start_is_tried_again_and_one_that_has_started_stops_with_the_feed():
    play = MemoryFeed(Brokers(refuse=KafkaConnectionError("away")))
    await play.feed.close()
    with pytest.raises(BrokerUnavailable):
        await play.fetch()
    assert play.client.stopped
    play.brokers.refuse = None
    play.brokers.write(QUERIES)
    assert await play.fetch() == {"counts": [0]}
    assert not play.client.stopped
    await play.feed.close()
    assert play.client.stopped


async def test_a_missing_or_denied_topic_is_an_error_and_a_restored_one_is_not(monkeypatch) -> None:
    monkeypatch.setattr(module, "MISSING_TIMEOUT", 0.02)
    play = MemoryFeed()
    for _ in range(3):
        play.brokers.gone = {"counts"}
        assert await play.fetch(0.0) == {}
        play.brokers.gone = set()
        assert await play.fetch(0.03) == {}
    play.brokers.gone = {"counts"}
    assert await play.fetch(0.0) == {}
    with pytest.raises(BrokerUnavailable, match="'counts' does not exist"):
        await play.fetch(0.03)
    play.brokers.gone, play.brokers.unauthorized_topics = set(), {"counts"}
    with pytest.raises(TopicAuthorizationFailedError, match="counts"):
        await play.fetch(0.0)


async def test_a_topic_that_got_more_partitions_is_refused() -> None:
    play = MemoryFeed()
    play.brokers.partitions += 1
    with pytest.raises(ConfigError, match=r"has 5 partitions, topics\.partitions says 4"):
        await play.fetch(0.0)


@contextlib.asynccontextmanager
async def rounds() -> AsyncIterator[list[list[Any]]]:
    """Yield a list that gets a new list at its end in each round of the event loop."""
    counted: list[list[Any]] = [[]]

    async def count() -> None:
        while True:
            counted.append([])
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield counted
    finally:
        counting.cancel()


async def test_each_round_takes_a_bounded_number_of_records_and_batches_stay_as_large(monkeypatch) -> None:
    brokers = Brokers()
    plays = [MemoryFeed(brokers, shard) for shard in range(4)]
    fetches = [asyncio.create_task(play.fetch(60.0, ["counts"], 7_000)) for play in plays]
    await until(lambda: sum(client.in_flight for client in brokers.clients) == 4)
    getmany = Client.getmany

    async def counted(client: Client, *partitions: TopicPartition, max_records: int):
        found = await getmany(client, *partitions, max_records=max_records)
        taken[-1].append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(Client, "getmany", counted)
    for shard in range(4):
        brokers.records[TopicPartition("counts", shard)] = 9_000
    async with rounds() as taken:
        brokers.write(QUERIES, 0)  # one response wakes all fetches
        found = await asyncio.gather(*fetches)
    assert max(map(sum, taken)) == module.BATCHES_PER_TURN
    assert found == 4 * [{"counts": list(range(7_000))}]


@pytest.mark.parametrize("seed", range(4))
async def test_every_record_is_read_once_over_holds_pauses_and_cancelled_fetches(monkeypatch, seed):
    monkeypatch.setattr(module, "BATCHES_PER_TURN", 1 + seed % 3)
    chance, play = random.Random(seed), MemoryFeed()
    taken: dict[str, list[int]] = {topic: [] for topic in BOTH}
    for _ in range(150):
        play.brokers.write(chance.choice((COMMANDS, QUERIES)), chance.randint(0, 3))
        fetch = asyncio.create_task(play.fetch(chance.choice((0.0, 0.005)), most=3))
        for _ in range(chance.randint(0, 8)):
            await asyncio.sleep(0)
        if chance.random() < 0.3 and not fetch.done():
            fetch.cancel()
        elif chance.random() < 0.3:
            play.requests.hold()
        await asyncio.gather(fetch, return_exceptions=True)
        play.requests.release()
        if not fetch.cancelled():
            for topic, offsets in fetch.result().items():
                taken[topic] += offsets
        if chance.random() < 0.2:
            taken["control"] += (await play.fetch(0.0, ["control"])).get("control", [])
        assert [play.feed.position(topic) for topic in BOTH] == [len(taken[topic]) for topic in BOTH]
    assert all(found == list(range(len(found))) for found in taken.values())
    assert all(len(found) > 10 for found in taken.values())


class BatchFeed(MemoryFeed):
    """A feed that takes whole batches of two topics, and a third that is added later; and what it should deliver."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        super().__init__(Logs(chance=chance))
        self.feed.columns = {"counts": True, "control": False}  # "other" is read by the client
        self.next = dict.fromkeys(BOTH, 0)
        self.read = 0

    def write(self) -> None:
        self.brokers.write(TopicPartition(self.chance.choice([*self.next]), 0), self.chance.randint(0, 3))

    def seek(self, topic: str) -> None:
        """Seek to any offset, also into a batch."""
        end = self.brokers.records.get(TopicPartition(topic, 0), 0)
        self.next[topic] = self.chance.randint(0, end)
        self.feed.seek(topic, self.next[topic])

    async def check(self, found: dict[str, Records], most: int) -> None:
        """Check that the next records were delivered, and that each position is between them and the rest."""
        assert sum(map(len, found.values())) <= most
        for topic, next_ in self.next.items():
            log = self.brokers.logs.get(TopicPartition(topic, 0), Log())
            rest = [row for row in log.wanted if row[0] >= next_]
            rows = [(one.offset, one.timestamp, one.key, one.value) for one in found.get(topic, ())]
            self.read += len(rows)
            assert rows == rest[: len(rows)]
            position = self.feed.position(topic)
            assert not rows or position > rows[-1][0]
            assert position >= next_
            assert not [row for row in rest[len(rows) :] if row[0] < position]
            self.next[topic] = position

    async def disturbed_fetch(self) -> None:
        """Fetch, and cancel, hold or stop it between any two awaits."""
        chance, requests = self.chance, self.requests
        topics = chance.sample([*self.next], chance.randint(1, len(self.next)))
        most = chance.choice((1, 5, 40))
        fetch = asyncio.create_task(self.feed.fetch(topics, chance.choice((0.0, 0.002)), most))
        for _ in range(chance.randint(0, 25)):
            await asyncio.sleep(0)
        match chance.randrange(8):
            case 0:
                fetch.cancel()
            case 1:
                requests.hold()
            case 2:
                requests.end()
        [found] = await asyncio.gather(fetch, return_exceptions=True)
        requests.release()
        requests.stop.clear()
        if isinstance(found, BaseException):
            assert isinstance(found, asyncio.CancelledError | Stopped), found
            found = {}
        await self.check(found, most)


@pytest.mark.parametrize("seed", range(4))
async def test_every_record_of_whole_batches_is_read_once_over_holds_stops_seeks_and_cancelled_fetches(
    monkeypatch, seed
):
    monkeypatch.setattr(module, "BATCHES_PER_TURN", 1 + seed % 3)
    monkeypatch.setattr(batches, "OBJECTS", 2)
    monkeypatch.setattr(batches, "PIECE", (50, 1 << 20)[seed % 2])
    play = BatchFeed(random.Random(seed))
    for round_ in range(150):
        play.write()
        await play.disturbed_fetch()
        if play.chance.random() < 0.05:
            play.seek(play.chance.choice([*play.next]))
        if round_ == 50:
            play.next["other"] = 0
            play.seek("other")
    ends = {topic: play.brokers.logs[TopicPartition(topic, 0)].end for topic in play.next}
    async with asyncio.timeout(20):
        while play.next != ends:
            await play.check(await play.feed.fetch(ends, 0.001, 50), 50)
    assert play.read > 300


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "by client"])
@pytest.mark.parametrize(
    ("unreadable", "reason"),
    [
        (
            Batch(3, [Wire(0)], 4, compressed=b"?"),
            r"offset 3 cannot be decompressed: \w+(?=\. If this stays)",
        ),
        (Batch(3, [Wire(0)], content=bytes(9)), "malformed|Corrupt"),
        (Batch(3, [Wire(0)], damaged=True), "Invalid CRC"),
    ],
    ids=["codec", "content", "checksum"],
)
@pytest.mark.parametrize("seed", range(3))
async def test_records_that_cannot_be_read_stop_no_other_topic_and_hide_none_before_them(
    monkeypatch, whole, unreadable, reason, seed
):
    play = BatchFeed(random.Random(seed))
    monkeypatch.setattr(play.brokers, "sizes", (5000,))  # a fetch holds all that there is
    if not whole:
        del play.feed.columns["counts"]
    log = play.brokers.logs[QUERIES] = Log()
    log.batches += [Batch(0, [Wire(0), Wire(1), Wire(2)]), unreadable]
    play.brokers.write(QUERIES, 0)
    found: list[int] = []
    for _ in range(20):
        play.brokers.write(COMMANDS, 1)
        next_ = play.feed.position("control")
        if any(row[0] >= next_ for row in play.brokers.logs[COMMANDS].wanted):
            fetched = await play.feed.fetch(BOTH, 0.1, 20)
            found += [record.offset for record in fetched.pop("counts", ())]
            await play.check(fetched, 20)
    assert found == [0, 1, 2]
    assert play.read == len(play.brokers.logs[COMMANDS].wanted)
    for counts in ((), ("counts",)):
        play.feed.counts = frozenset(counts)
        with pytest.raises(RecordsUnreadable) as caught:
            await play.feed.fetch(BOTH, 0.1, 20)
        why = "cannot be read. If" if counts else f"from offset 3 on cannot be read: .*({reason})"
        assert re.search(f"'counts' {why}", str(caught.value))
        assert play.feed.position("counts") == 3


SHARDS, PIECES = 64, 5


@pytest.mark.parametrize("wait", [lambda: CLOCK.sleep(0), yield_to_loop], ids=["session", "journal"])
async def test_each_round_runs_one_piece_and_every_shard_gets_its_turn(wait) -> None:
    async def work(shard: int) -> None:
        for _ in range(PIECES):
            await wait()
            pieces[-1].append(shard)

    async with rounds() as pieces:
        await asyncio.gather(*(work(shard) for shard in range(SHARDS)))
    assert max(map(len, pieces)) == 1
    done = [shard for one in pieces for shard in one]
    assert done == PIECES * list(range(SHARDS))  # in turn: no shard waits longer than the others


async def test_a_shard_stopped_while_it_waits_takes_no_turn() -> None:
    done: list[int] = []

    async def work(shard: int) -> None:
        await pause(0)
        done.append(shard)

    tasks = [asyncio.create_task(work(shard)) for shard in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 3]
