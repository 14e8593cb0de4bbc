"""One client for the query topics of all shards: what comes and goes for one disturbs no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from stream_svt.errors import ConfigError, MisuseError
from stream_svt.service import query_consumer as module
from stream_svt.service.kafka import BrokerUnavailable
from stream_svt.service.query_consumer import QueryConsumer
from tests.support.query_client import Brokers

A, B, C = (TopicPartition("counts", number) for number in range(3))
OTHER = TopicPartition("other", 0)


def reading(brokers: Brokers, *places: TopicPartition, at: int = 0) -> QueryConsumer:
    queries = QueryConsumer(brokers.client, brokers.partitions)
    for place in places:
        queries.seek(place, at)
    queries.resume(places)
    return queries


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def offsets(found) -> dict[TopicPartition, list[int]]:
    return {place: [record.offset for record in records] for place, records in found.items()}


async def test_shards_fetch_side_by_side_and_each_its_own() -> None:
    brokers = Brokers()
    queries = reading(brokers, A, B)
    waits = asyncio.create_task(queries.fetch([A], 60.0))
    brokers.write(B, 3)
    assert offsets(await queries.fetch([B], 5.0)) == {B: [0, 1, 2]}
    assert not waits.done()
    brokers.write(A)
    assert offsets(await waits) == {A: [0]}
    assert len(brokers.clients[0].assigned) == 1
    await queries.stop()
    assert brokers.clients[0].stopped


async def test_a_shard_that_comes_ends_no_fetch_of_another() -> None:
    brokers = Brokers()
    queries = reading(brokers, A)
    brokers.write(A, 2)
    assert offsets(await queries.fetch([A], 1.0)) == {A: [0, 1]}
    waits = asyncio.create_task(queries.fetch([A], 60.0))
    await until(lambda: brokers.clients[0].in_flight)
    queries.seek(B, 1)
    queries.resume([B])
    brokers.write(B, 2)
    assert offsets(await queries.fetch([B], 1.0)) == {B: [1]}
    assert not waits.done()
    brokers.write(A)
    assert offsets(await waits) == {A: [2]}
    assert brokers.clients[0].assigned == [{A}, {A, B}]
    await queries.stop()


async def test_a_change_waits_until_no_fetch_is_in_flight() -> None:
    brokers = Brokers()
    queries = reading(brokers, A, B)
    waits = asyncio.create_task(queries.fetch([A], 60.0))
    await until(lambda: brokers.clients and brokers.clients[0].in_flight)
    in_flight, assign = [], brokers.clients[0].assign

    def watched(places: list[TopicPartition]) -> None:
        in_flight.append(len(queries._reads))
        assign(places)

    brokers.clients[0].assign = watched
    queries.release([B])
    assert queries._begin_change() is queries._change
    await until(lambda: in_flight)
    assert in_flight == [0]
    with pytest.raises(MisuseError):
        await queries.fetch([B], 0.0)
    waits.cancel()
    await queries.stop()


async def test_what_was_paused_is_paused_after_a_change_and_skips_nothing() -> None:
    brokers = Brokers()
    queries = reading(brokers, A, B)
    queries.pause([B])
    brokers.write(B, 2)
    assert await queries.fetch([A, B], 0.01) == {}
    queries.seek(C, 0)
    assert await queries.fetch([A, B], 0.01) == {}
    assert (queries.reads(B), queries.high_water(B)) == (False, None)
    queries.resume([B])
    assert offsets(await queries.fetch([A, B], 1.0)) == {B: [0, 1]}
    assert queries.high_water(B) == 2
    await queries.stop()


async def test_what_a_cancelled_fetch_took_out_of_the_client_is_read_again() -> None:
    brokers = Brokers()
    queries = reading(brokers, A)
    brokers.write(A, 3)
    await queries._steady()
    fetch = asyncio.create_task(queries.fetch([A], 60.0, 2))
    while queries._client._subscription.subscription.assignment.state_value(A).position == 0:
        await asyncio.sleep(0)
    assert not fetch.done()
    fetch.cancel()
    await asyncio.gather(fetch, return_exceptions=True)
    assert queries.position(A) == 0
    assert offsets(await queries.fetch([A], 1.0, 2)) == {A: [0, 1]}
    assert queries.position(A) == 2
    await queries.stop()


async def test_one_bite_is_taken_in_a_round_and_batches_are_as_large_as_ever() -> None:
    brokers = Brokers(partitions=6)
    places = [TopicPartition("counts", number) for number in range(6)]
    queries = reading(brokers, *places)
    fetches = [asyncio.create_task(queries.fetch([place], 60.0, 7_000)) for place in places]
    await until(lambda: brokers.clients and brokers.clients[0].in_flight == 6)
    rounds, read = [0], brokers.clients[0]._drain
    ended = asyncio.Event()

    async def count() -> None:
        while not ended.is_set():
            rounds.append(0)
            await asyncio.sleep(0)

    def drain(*arguments):
        found = read(*arguments)
        rounds[-1] += sum(map(len, found.values()))
        return found

    brokers.clients[0]._drain = drain
    for place in places[1:]:
        brokers.records[place] = 9_000
    counting = asyncio.create_task(count())
    brokers.write(places[0], 9_000)  # one answer wakes all
    found = await asyncio.gather(*fetches)
    ended.set()
    await counting
    assert max(rounds) == module.BITE
    assert [offsets(one) for one in found] == [{place: list(range(7_000))} for place in places]
    await queries.stop()


@pytest.mark.parametrize("ending", ["cancelled", "assigned anew", "failed"])
async def test_what_was_taken_before_a_fetch_ended_early_is_read_again(monkeypatch, ending: str) -> None:
    monkeypatch.setattr(module, "BITE", 2)
    brokers = Brokers()
    queries = reading(brokers, A, B)
    brokers.write(A, 7)
    await queries._steady()
    state = queries._client._subscription.subscription.assignment.state_value(A)
    fetch = asyncio.create_task(queries.fetch([A, B], 60.0))
    while state.position < 4:
        await asyncio.sleep(0)
    assert not fetch.done()
    if ending == "assigned anew":
        queries.seek(C, 0)
        queries._begin_change()
        assert offsets(await fetch) == {A: list(range(7))}
        assert len(brokers.clients[0].assigned) == 2
    else:
        if ending == "failed":
            brokers.errors[B] = TopicAuthorizationFailedError("counts")
        else:
            fetch.cancel()
        with pytest.raises((asyncio.CancelledError, TopicAuthorizationFailedError)):
            await fetch
        assert queries.position(A) == 0
        assert offsets(await queries.fetch([A], 1.0)) == {A: list(range(7))}
    await queries.stop()


async def test_an_error_of_a_place_is_told_to_its_shard_only() -> None:
    brokers = Brokers(errors={B: OffsetOutOfRangeError({B: 0})})
    queries = reading(brokers, A, B)
    waits = asyncio.create_task(queries.fetch([A], 60.0))
    with pytest.raises(OffsetOutOfRangeError):
        await queries.fetch([B], 1.0)
    queries.release([B])
    await until(lambda: len(brokers.clients[0].assigned) == 2)
    assert brokers.clients[0].assigned == [{A, B}, {A}]
    brokers.write(A)
    assert offsets(await waits) == {A: [0]}
    await queries.stop()


async def test_the_last_shard_that_goes_takes_the_client_with_it_and_the_next_one_starts_another() -> None:
    brokers = Brokers()
    queries = reading(brokers, A)
    await queries.fetch([A], 0.0)
    queries.release([A])
    await until(lambda: brokers.clients[0].stopped)
    queries.release([A])
    queries.seek(B, 0)
    queries.resume([B])
    brokers.write(B)
    assert offsets(await queries.fetch([B], 1.0)) == {B: [0]}
    assert len(brokers.clients) == 2
    await queries.stop()


async def test_a_client_that_does_not_start_is_told_to_everybody_who_waits_and_tried_again() -> None:
    brokers = Brokers(refuse=KafkaConnectionError("away"))
    queries = reading(brokers, A, B)
    told = await asyncio.gather(queries.fetch([A], 5.0), queries.fetch([B], 5.0), return_exceptions=True)
    assert [type(error) for error in told] == [BrokerUnavailable, BrokerUnavailable]
    assert len(brokers.clients) == 1
    assert brokers.clients[0].stopped
    brokers.refuse = None
    brokers.write(A)
    assert offsets(await queries.fetch([A], 1.0)) == {A: [0]}
    await queries.stop()


async def test_a_client_whose_own_loop_ended_is_replaced_where_shards_are() -> None:
    brokers = Brokers()
    queries = reading(brokers, A)
    brokers.write(A, 2)
    await queries.fetch([A], 1.0, 1)
    brokers.clients[0]._fetcher.error_future.set_result(None)
    assert offsets(await queries.fetch([A], 1.0)) == {A: [1]}
    assert [client.stopped for client in brokers.clients] == [True, False]
    await queries.stop()


async def test_a_topic_that_is_gone_is_told_to_who_reads_it(monkeypatch) -> None:
    monkeypatch.setattr(module, "MISSING_PATIENCE", 0.02)
    brokers = Brokers(gone={"other"})
    queries = reading(brokers, A, OTHER)
    assert await queries.fetch([OTHER], 0.0) == {}
    await asyncio.sleep(0.03)
    with pytest.raises(BrokerUnavailable, match="'other' does not exist any more"):
        await queries.fetch([OTHER], 0.0)
    assert await queries.fetch([A], 0.0) == {}
    brokers.gone, brokers.unauthorized_topics = set(), {"other"}
    with pytest.raises(TopicAuthorizationFailedError, match="other"):
        await queries.fetch([OTHER], 0.0)
    await queries.stop()


async def test_a_topic_that_came_and_went_between_two_looks_is_none_that_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(module, "MISSING_PATIENCE", 0.02)
    brokers = Brokers(gone={"other"})
    queries = reading(brokers, OTHER)
    for _ in range(3):
        brokers.gone = {"other"}
        assert await queries.fetch([OTHER], 0.0) == {}
        brokers.gone = set()
        assert await queries.fetch([OTHER], 0.03) == {}
    await queries.stop()


async def test_a_topic_that_got_more_partitions_is_refused() -> None:
    brokers = Brokers()
    queries = reading(brokers, A)
    brokers.partitions += 1
    with pytest.raises(ConfigError, match=r"has 5 partitions, topics\.partitions says 4"):
        await queries.fetch([A], 0.0)
    await queries.stop()


async def test_nothing_begins_after_the_stop() -> None:
    brokers = Brokers()
    queries = reading(brokers, A)
    waits = asyncio.create_task(queries.fetch([A], 60.0))
    await until(lambda: brokers.clients and brokers.clients[0].in_flight)
    await queries.stop()
    with pytest.raises(BrokerUnavailable, match="stopping"):
        await waits
    with pytest.raises(BrokerUnavailable, match="stopping"):
        await queries.fetch([A], 0.0)
    queries.release([A])
    assert len(brokers.clients) == 1


@pytest.mark.parametrize("seed", range(12))
async def test_shards_that_come_go_pause_and_give_up_read_every_record_once(monkeypatch, seed: int) -> None:
    monkeypatch.setattr(module, "BITE", 1 + seed % 3)
    chance = random.Random(seed)
    brokers = Brokers(partitions=6)
    queries = QueryConsumer(brokers.client, 6)
    taken: dict[TopicPartition, list[int]] = {}

    async def shard(number: int) -> None:
        places = [TopicPartition(topic, number) for topic in ("counts", "other")]
        for _ in range(4):
            for place in places:
                queries.seek(place, len(taken.setdefault(place, [])))
            queries.resume(places)
            for left in reversed(range(chance.randint(1, 12))):
                fetch = asyncio.create_task(queries.fetch(places, chance.choice((0.0, 0.01)), 3))
                if left and chance.random() < 0.4:
                    for _ in range(chance.randint(0, 6)):
                        await asyncio.sleep(0)
                    if not fetch.done():
                        fetch.cancel()
                await asyncio.gather(fetch, return_exceptions=True)
                if not fetch.cancelled():
                    for place, found in offsets(fetch.result()).items():
                        taken[place] += found
                if chance.random() < 0.2:
                    queries.pause(places[:1])
                    queries.resume(places[:1])
                assert all(queries.position(place) == len(taken[place]) for place in places)
            queries.release(places)
            await asyncio.sleep(chance.random() * 0.02)

    async def write() -> None:
        while True:
            brokers.write(TopicPartition(chance.choice(("counts", "other")), chance.randrange(6)), 2)
            await asyncio.sleep(0.001)

    for number in range(6):
        brokers.write(TopicPartition("counts", number), 12)
    writing = asyncio.create_task(write())
    await asyncio.gather(*map(shard, range(6)))
    writing.cancel()
    await queries.stop()
    assert all(found == list(range(len(found))) for found in taken.values())
    assert sum(map(len, taken.values())) >= 6 * 4 * 3  # the last fetch of each round is never given up
    assert sum(len(client.assigned) for client in brokers.clients) > 3
