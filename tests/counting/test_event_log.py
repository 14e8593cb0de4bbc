"""A partition of the event log: one owner, transactions of entries and counts, and no entry that nobody needs."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from stream_svt.counting.event_log import EventLog, LogBroken
from stream_svt.errors import BrokerError, ConfigError
from stream_svt.kafka.clients import Cluster, Fenced
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.settings.application import load_spec
from stream_svt.settings.sections import KafkaConfig
from stream_svt.sources.counts import CountsRecord, records_of
from stream_svt.sources.log import Pairs, Read
from stream_svt.sources.questions import ClosedCounts
from stream_svt.sources.ticks import TickClock
from tests.support import records
from tests.support.sources import WEB
from tests.support.topics import CLOCK, create_topics

pytestmark = pytest.mark.kafka

PARTITION = 3
TICK_MS = 1_790_000_000_000


@pytest.fixture
async def made(topics):
    """Return what opens the partition, on topics of a unique application."""
    application, opened = topics.name("web"), list[EventLog]()
    await create_topics(topics.bootstrap_servers, {f"{application}.sources": 8}, CLOCK)
    await create_topics(topics.bootstrap_servers, {f"{application}.requests.counts": 2})

    async def make(named: str = application) -> EventLog:
        cluster = Cluster({"bootstrap_servers": topics.bootstrap_servers}, KafkaConfig(request_timeout="1s"))
        log = EventLog(cluster, named, PARTITION, Partitioning(2, "murmur2"))
        opened.append(log)
        await log.fence()
        return log

    make.application, make.servers = application, topics.bootstrap_servers
    yield make
    for log in opened:
        await log.close()


SOURCE = load_spec(WEB).sources[0]
OTHER = SOURCE.model_copy(update={"name": "other"})


def entries(count: int, size: int = 8) -> list[Pairs]:
    return [Pairs(0, number, bytes(size)) for number in range(count)]


async def replayed(log: EventLog, source: str = "requests") -> list[tuple[int, object]]:
    found: list[tuple[int, object]] = []
    await log.replay(source, lambda offset, entry: found.append((offset, entry)))
    return found


async def cancelled(log: EventLog, count: int, size: int = 8) -> None:
    """Write entries, and cancel that while their transaction is in progress."""
    writing = asyncio.create_task(log.write(SOURCE, entries(count, size), ()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writing.cancel()


async def test_entries_are_replayed_with_the_offsets_that_their_writing_returned(made):
    log = await made()
    small, large = entries(3), entries(5, 300_000)
    offsets = [await log.write(SOURCE, small, ()), await log.write(OTHER, [Read({0: 7})], ())]
    await log.brokers_time()  # takes offsets in between
    offsets.append(await log.write(SOURCE, large, ()))
    wanted = [*zip(offsets[0], small, strict=True), *zip(offsets[2], large, strict=True)]
    assert await replayed(log) == wanted
    assert await replayed(log, "other") == [(offsets[1][0], Read({0: 7}))]


async def test_counts_come_with_their_entries_at_the_ticks_time_on_the_partition_of_their_dataset(made):
    log = await made()
    datasets = [f"shop-{number}" for number in range(6)]
    headers = (("measure", b"visitors"),)
    counts = [CountsRecord(name, headers, name.encode() * 9, TICK_MS) for name in datasets]
    await log.write(SOURCE, entries(1), counts)
    written = await records.read(made.servers, f"{made.application}.requests.counts", [0, 1])
    assert {(one.key.decode(), one.value, one.headers, one.timestamp) for one in written} == {
        (one.dataset, one.content, headers, TICK_MS) for one in counts
    }
    of = Partitioning(2, "murmur2").of
    assert {one.key: one.partition for one in written} == {one.encode(): of(one.encode()) for one in datasets}


async def test_the_next_owner_ends_the_one_before_and_reads_all_that_it_wrote(made):
    first = await made()
    await first.write(SOURCE, entries(2), ())
    second = await made()
    with pytest.raises(LogBroken) as caught:
        await first.write(SOURCE, entries(1), ())
    assert isinstance(caught.value.__cause__, Fenced)
    with pytest.raises(LogBroken):
        await first.brokers_time()
    assert [entry for _, entry in await replayed(second)] == entries(2)
    await second.write(SOURCE, entries(1), ())


async def test_a_cancelled_write_is_ended_before_the_log_is_closed(made):
    log = await made()
    await cancelled(log, 9, 300_000)
    await log.close()
    assert len(await replayed(await made())) == 9


async def test_a_cancelled_write_that_fails_leaves_nothing_behind(made, caplog):
    log = await made()
    await made()
    await cancelled(log, 1)
    await asyncio.wait([log.broken], timeout=10)
    await log.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_replay_has_the_transaction_of_a_loop_that_was_cancelled(made):
    log = await made()
    for count in range(9, 90, 9):  # brokers mark what they have committed a little later
        await cancelled(log, 9, 100_000)
        assert len(await replayed(log)) == count


async def test_a_missing_topic_of_counts_leaves_the_log_usable(made):
    log = await made()
    counts = [CountsRecord("shop", (), b"", TICK_MS)]
    with pytest.raises(BrokerError, match="does not exist"):
        await log.write(OTHER, entries(1), counts)
    await log.write(SOURCE, entries(1), counts)
    assert len(await replayed(log)) == 1
    assert await replayed(log, "other") == []


async def test_old_entries_are_deleted(made):
    log = await made()
    offsets = await log.write(SOURCE, entries(9), ())
    await log.delete_before(offsets[4])
    assert [offset for offset, _ in await replayed(log)] == offsets[4:]


async def test_a_log_with_producers_timestamps_is_refused(made, topics):
    other = topics.name("other")
    await create_topics(made.servers, {f"{other}.sources": 8})
    with pytest.raises(ConfigError, match="LogAppendTime"):
        await (await made(other)).brokers_time()


async def test_counts_of_a_transaction_that_has_just_ended_are_recalled(made):
    log = await made()
    listed, begin = SOURCE.window_list(), TICK_MS // SOURCE.window * SOURCE.window
    tick, measures = TickClock.of(SOURCE).close_of(begin), [one.name for one in listed.measures]
    counts = records_of(SOURCE, listed, begin, tick, np.full(listed.cells, 7))
    await log.write(SOURCE, entries(1), counts)
    closed, written = ClosedCounts(begin, measures), log.written
    await log.recall(SOURCE, closed)
    assert log.written == written + 1  # by then the brokers have ended the transaction before
    datasets = [SOURCE.dataset_at(begin, name) for name in listed.datasets]
    found = closed.of(begin, datasets, measures[0], listed.series)
    assert found.known.all()
    assert (found.steps == 7).all()
