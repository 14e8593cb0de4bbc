"""The journal on a real broker: charged before visible, exactly once, and never younger than what was seen."""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.errors import MisuseError, UnreadableState
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.controls import Standing
from stream_svt.protocol.state_records import RECORD_LIMIT
from stream_svt.service.kafka import BrokerUnavailable, Fenced
from tests.support.shard_topics import OLD, ShardTopics, event

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("masters", [(), (OLD,)], ids=["plain", "sealed"])
async def test_a_takeover_finds_what_was_committed(shard_topics: ShardTopics, masters) -> None:
    journal, first = await shard_topics.opened(*masters)
    assert first == {}
    assert journal.meta.progress is None
    await journal.commit(Commit(records={b"d/a": b"1", b"d/b": b"2"}, progress=b"p1"))
    journal.meta.commands = Standing(5, 8, "c", accepted=True)
    await journal.commit(Commit(records={b"d/a": b"3", b"d/b": None}, progress=b"p2"))
    next_one, again = await shard_topics.opened(*masters)
    known, meta = journal.meta, next_one.meta
    assert again == {b"d/a": b"3"}
    assert (meta.progress, meta.commands) == (b"p2", Standing(5, 8, "c", accepted=True))
    assert (meta.last_event, meta.read_to) == (0, {})
    assert (meta.noise_key, meta.state_id) == (known.noise_key, known.state_id)
    assert (len(meta.noise_key), len(meta.state_id)) == (32, 16)


async def test_an_outbox_left_behind_is_published_once_by_the_next_owner(shard_topics: ShardTopics) -> None:
    journal, _ = await shard_topics.opened(OLD)
    await journal.commit(Commit(progress=b"p", events=[event(number) for number in range(1, 451)]))
    await shard_topics.opened(OLD)
    await shard_topics.opened(OLD)
    assert await shard_topics.events() == list(range(1, 451))


async def test_an_older_owner_is_fenced_and_says_so(shard_topics: ShardTopics) -> None:
    old, _ = await shard_topics.opened()
    await shard_topics.opened()
    with pytest.raises(Fenced):
        await old.commit(Commit(progress=b"p", events=[event(1)]))
    with pytest.raises(MisuseError, match="must be opened"):
        await old.commit(Commit(progress=b"p"))
    assert await shard_topics.events("read_uncommitted") == []


async def test_rejects_carry_place_and_reason_and_nothing_else(shard_topics: ShardTopics) -> None:
    journal, _ = await shard_topics.opened()
    await journal.commit(Commit(progress=b"p", rejects=[("queries", 7, "not JSON")]))
    assert await shard_topics.read(shard_topics.topics.rejects) == []
    await journal.flush()
    (record,) = await shard_topics.read(shard_topics.topics.rejects)
    assert record.value == b'{"topic":"queries","partition":1,"offset":7,"reason":"not JSON"}'


async def test_a_record_beyond_kafkas_limit_is_refused_before_it_is_sent(shard_topics: ShardTopics) -> None:
    journal, _ = await shard_topics.opened()
    with pytest.raises(MisuseError, match=r"'d/a'.*limit"):
        await journal.commit(Commit(records={b"d/a": bytes(RECORD_LIMIT + 1)}, progress=b"p"))


async def test_another_partition_count_is_refused(shard_topics: ShardTopics) -> None:
    await shard_topics.opened()
    with pytest.raises(UnreadableState, match=r"2 partitions .* now have 3"):
        await shard_topics.journal(partitions=3).open()


async def test_a_transaction_that_the_broker_gives_up_never_publishes(shard_topics: ShardTopics) -> None:
    """Cancelled in the middle, the books are re-read and nothing of it is there."""
    journal, _ = await shard_topics.opened()
    await journal.commit(Commit(progress=b"p1", events=[event(1)]))
    task = asyncio.create_task(
        journal.commit(Commit(records={b"d/a": b"1"}, progress=b"p2", events=[event(2)]))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await journal.open()
    assert journal.meta.progress == b"p1"
    assert await shard_topics.events() == [1]


async def test_an_unreachable_broker_is_named_within_the_deadline() -> None:
    journal = ShardTopics("127.0.0.1:1", "s", "a", "r").journal()
    with pytest.raises(BrokerUnavailable, match=r"no broker can be reached.*127\.0\.0\.1.*bootstrap_servers"):
        await journal.open()
    await journal.close()


async def test_an_owner_that_stood_still_while_another_went_on_is_fenced_not_rolled_back(
    shard_topics: ShardTopics,
) -> None:
    """It has read old books and sees new alerts: that is no restored backup, and no reason to give budgets up."""
    journal, _ = await shard_topics.opened()
    await journal.commit(Commit(progress=b"p", events=[event(1)]))
    await journal.flush()
    frozen = shard_topics.journal()
    read_state = frozen._log.read_state

    async def read_and_stand_still(*, committed: bool = True) -> dict[bytes, bytes]:
        raw = await read_state(committed=committed)
        successor, _ = await shard_topics.opened()
        await successor.commit(Commit(progress=b"p", events=[event(2)]))
        await successor.flush()
        return raw

    frozen._log.read_state = read_and_stand_still
    with pytest.raises(Fenced):
        await frozen.open()
    assert await shard_topics.events() == [1, 2]
