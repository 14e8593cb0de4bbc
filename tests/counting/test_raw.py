"""Reading a raw topic: the ends for looks, and every committed record from an offset on, exactly once."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewPartitions

from stream_svt.counting.raw import RawTopic
from stream_svt.errors import BrokerError, RecordsLost
from stream_svt.kafka import batches
from stream_svt.kafka.clients import Cluster
from tests.support import records
from tests.support.topics import CLOCK, administrator, delete_before
from tests.support.worker import until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def raw(topics):
    """A raw topic with three partitions, which gives at most some records at once."""
    made = RawTopic(
        Cluster({"bootstrap_servers": topics.bootstrap_servers}), await topics("raw", partitions=3), text=True
    )
    yield made
    await made.close()


async def write(raw: RawTopic, seed: int) -> None:
    """Write single records and batches, and transactions of which some are aborted."""
    chance = random.Random(seed)
    servers = raw._cluster.arguments["bootstrap_servers"]
    for number in range(8):
        some = [
            (chance.randrange(3), b"k", b'{"n":"%d-%d"}' % (number, each))
            for each in range(chance.choice([1, 3, 300]))
        ]
        if number % 2:
            await records.publish(servers, raw.topic, *some, commit=number % 4 == 1)
        else:
            await records.send(servers, raw.topic, *some[:20], linger_ms=chance.choice([0, 20]))


async def read_to(raw: RawTopic, ranges: dict[int, tuple[int, int]]) -> dict[int, list[bytes | None]]:
    """Read ranges to their ends; return the values of each partition."""
    found, left = defaultdict(list), dict(ranges)
    async with asyncio.timeout(20):
        while left := {n: span for n, span in left.items() if span[0] < span[1]}:
            for piece in await raw.read({n: begin for n, (begin, _) in left.items()}, 0.1):
                begin, end = left[piece.partition]
                assert begin < piece.next_offset
                assert all(begin <= one.offset < piece.next_offset for one in piece.records)
                found[piece.partition] += [one.value for one in piece.records if one.offset < end]
                left[piece.partition] = piece.next_offset, end
    return found


async def test_every_committed_record_of_a_range_is_read_once_wherever_the_range_is_cut(raw, monkeypatch):
    monkeypatch.setattr("stream_svt.counting.raw.PIECE", 70)
    monkeypatch.setattr("stream_svt.counting.raw.BATCHES", 3)
    chance, position, seen = random.Random(5), dict.fromkeys(range(3), 0), defaultdict(list)
    for seed in range(3):
        await write(raw, seed)
        ends = {n: end for n, (_, end) in (await raw.look())[0].items()}
        while position != ends:
            # A partition may be left out, and another one be read again from where a takeover goes on.
            some = chance.sample(range(3), chance.randint(1, 3))
            ranges = {n: (position[n], chance.randint(position[n], ends[n])) for n in some}
            for n, values in (await read_to(raw, ranges)).items():
                seen[n] += values
            position |= {n: end for n, (_, end) in ranges.items()}
            if chance.random() < 0.3:
                again = {n: (chance.randint(0, position[n]), position[n]) for n in some}
                for n, values in (await read_to(raw, again)).items():
                    assert values == seen[n][len(seen[n]) - len(values) :]
    for n in range(3):
        written = await records.read(raw._cluster.arguments["bootstrap_servers"], raw.topic, [n])
        assert seen[n] == [record.value for record in written]
    assert sum(map(len, seen.values())) > 500


async def test_an_open_transaction_is_below_the_end_and_its_records_come_once_it_has_ended(raw):
    servers = raw._cluster.arguments["bootstrap_servers"]
    await records.send(servers, raw.topic, (0, None, b"before"))
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=raw.topic)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(raw.topic, b"within", partition=0)
    await records.send(servers, raw.topic, (0, None, b"behind"))
    span = (await raw.look())[0][0]
    assert span == (0, 3)
    [piece] = await raw.read({0: 0}, 5)
    assert (piece.records.values(), piece.next_offset) == ([b"before"], 1)
    assert await raw.read({0: 1}, 0.5) == []
    await producer.commit_transaction()
    await producer.stop()
    assert await read_to(raw, {0: (1, 3)}) == {0: [b"within", b"behind"]}


async def test_a_batch_that_cannot_be_unpacked_is_left_out_and_counted(raw, monkeypatch):
    monkeypatch.setattr(batches, "LARGEST_RAW", 1 << 20)
    servers = raw._cluster.arguments["bootstrap_servers"]
    large = (0, None, bytes(1_000_000)), (0, None, bytes(1_000_000))
    await records.send(servers, raw.topic, (0, None, b"before"))
    async with AIOKafkaProducer(
        bootstrap_servers=servers, compression_type="gzip", max_batch_size=3 << 20, max_request_size=3 << 20
    ) as producer:
        batch = producer.create_batch()
        for _, key, value in large:
            assert batch.append(key=key, value=value, timestamp=None) is not None
        batch.close()
        await (await producer.send_batch(batch, raw.topic, partition=0))
    await records.send(servers, raw.topic, (0, None, b"behind"))
    assert await read_to(raw, {0: (0, 4)}) == {0: [b"before", b"behind"]}
    assert raw.dropped == 1
    assert await read_to(raw, {0: (2, 4)}) == {0: [b"behind"]}  # a takeover behind its first record


async def test_looks_see_deletions_and_new_partitions_and_reads_say_what_is_lost(raw, topics):
    servers = raw._cluster.arguments["bootstrap_servers"]
    await records.send(servers, raw.topic, *[(0, None, b"%d" % n) for n in range(5)])
    spans, topic_id = await raw.look()
    assert (spans, len(topic_id)) == ({0: (0, 5), 1: (0, 0), 2: (0, 0)}, 36)
    await delete_before(servers, raw.topic, 3)
    assert (await raw.look())[0][0] == (3, 5)
    with pytest.raises(RecordsLost):
        await read_to(raw, {0: (0, 5)})
    assert await read_to(raw, {0: (3, 5)}) == {0: [b"3", b"4"]}
    async with administrator(servers) as admin:
        await admin.create_partitions({raw.topic: NewPartitions(4)})
    await until(lambda: has_four(raw))
    assert (await raw.look())[1] == topic_id


async def has_four(raw: RawTopic) -> bool:
    return len((await raw.look())[0]) == 4


async def test_offsets_are_found_by_the_brokers_time(topics):
    name = await topics("raw", partitions=2, configs=CLOCK)
    raw = RawTopic(Cluster({"bootstrap_servers": topics.bootstrap_servers}), name, text=True)
    await records.send(topics.bootstrap_servers, name, (0, None, b"a"), (1, None, b"b"))
    await asyncio.sleep(0.01)
    await records.send(topics.bootstrap_servers, name, (0, None, b"c"))
    [*_, last] = await records.read(topics.bootstrap_servers, name, [0])
    spans, _ = await raw.look()
    assert await raw.offsets_at(last.timestamp, spans) == {0: 1, 1: 1}
    assert await raw.offsets_at(0, spans) == {0: 0, 1: 0}
    assert (await raw.settings())["message.timestamp.type"] == "LogAppendTime"
    await raw.close()


async def test_a_topic_that_is_missing_is_named(topics):
    raw = RawTopic(Cluster({"bootstrap_servers": topics.bootstrap_servers}), topics.name("none"), text=True)
    with pytest.raises(BrokerError, match="does not exist"):
        await raw.look()
    await raw.close()
