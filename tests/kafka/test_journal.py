"""The journal on a real broker: charged before visible, exactly once, and never younger than what was seen."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from stream_svt.errors import MisuseError, StateRolledBack, UnreadableState
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.journal import RECORD_LIMIT, Journal, Restored, Topics
from stream_svt.protocol.sealing import Place
from stream_svt.service.kafka import BrokerUnavailable, Cluster, Fenced, tune
from stream_svt.service.shard_log import ShardLog
from tests.support.books import NEW, OLD, Books, event

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("masters", [(), (OLD,)], ids=["plain", "sealed"])
async def test_a_takeover_finds_what_was_committed(books: Books, masters) -> None:
    journal, first = await books.opened(*masters)
    assert first.records == {}
    assert first.progress is None
    await journal.commit(Commit(records={b"d/a": b"1", b"d/b": b"2"}, progress=b"p1"))
    journal.set_control(5, [7, 8])
    await journal.commit(Commit(records={b"d/a": b"3", b"d/b": None}, progress=b"p2"))
    _, again = await books.opened(*masters)
    assert again == Restored({b"d/a": b"3"}, b"p2", first.noise_key, 5, [7, 8], first.commands_since, 0, {})
    assert len(again.noise_key) == 32


async def test_an_event_is_published_by_the_transaction_after_its_charge(books: Books) -> None:
    journal, _ = await books.opened()
    assert await journal.commit(Commit(progress=b"p", events=[event(1), event(2)])) == 0
    assert await books.events("read_uncommitted") == []
    assert journal.pending == 2
    assert await journal.flush() == 2
    assert await journal.flush() == 0
    assert await books.events() == [1, 2]


async def test_an_outbox_left_behind_is_published_once_by_the_next_owner(books: Books) -> None:
    journal, _ = await books.opened(OLD)
    await journal.commit(Commit(progress=b"p", events=[event(number) for number in range(1, 451)]))
    await books.opened(OLD)
    await books.opened(OLD)
    assert await books.events() == list(range(1, 451))


async def test_an_older_owner_is_fenced_and_says_so(books: Books) -> None:
    old, _ = await books.opened()
    await books.opened()
    with pytest.raises(Fenced):
        await old.commit(Commit(progress=b"p", events=[event(1)]))
    with pytest.raises(MisuseError, match="must be opened"):
        await old.commit(Commit(progress=b"p"))
    assert await books.events("read_uncommitted") == []


async def test_rejects_carry_place_and_reason_and_nothing_else(books: Books) -> None:
    journal, _ = await books.opened()
    await journal.commit(Commit(progress=b"p", rejects=[("queries", 7, "not JSON")]))
    assert await books.read(books.topics.rejects) == []
    await journal.flush()
    (record,) = await books.read(books.topics.rejects)
    assert record.value == b'{"topic":"queries","partition":1,"offset":7,"reason":"not JSON"}'


async def test_a_record_beyond_kafkas_limit_is_refused_before_it_is_sent(books: Books) -> None:
    journal, _ = await books.opened()
    with pytest.raises(MisuseError, match=r"'d/a'.*limit"):
        await journal.commit(Commit(records={b"d/a": bytes(RECORD_LIMIT + 1)}, progress=b"p"))


async def test_an_emptied_state_beside_published_alerts_is_refused(books: Books) -> None:
    journal, _ = await books.opened()
    await journal.commit(Commit(progress=b"p", events=[event(1)]))
    await journal.flush()
    for record in await books.read(books.topics.state):
        await books.write(books.topics.state, (record.key, None))
    await journal.close()
    with pytest.raises(StateRolledBack, match=r"is empty.*shows event 1.*mark-exhausted"):
        await books.journal().open()


async def test_a_restored_old_state_is_refused_until_it_is_given_up(books: Books) -> None:
    journal, _ = await books.opened(OLD)
    await journal.commit(Commit(records={b"d/a": b"1"}, progress=b"p1", events=[event(1)]))
    backup = {record.key: record.value for record in await books.read(books.topics.state)}
    await journal.commit(Commit(records={b"d/a": b"2"}, progress=b"p2", events=[event(2)]))
    await journal.flush()
    await journal.close()
    await books.write(books.topics.state, *backup.items())
    with pytest.raises(StateRolledBack, match=r"ends with event 1.*shows event 2"):
        await books.journal(OLD).open()
    journal = books.journal(OLD)
    restored = await journal.open(after_rollback=True)
    assert restored.last_event == 2
    await journal.commit(Commit(progress=b"p", events=[event(3)]))
    await books.opened(OLD)
    # What the old state still held in its outbox was published long ago: it does not come a second time.
    assert await books.events() == [1, 2, 3]


async def test_one_old_record_among_new_ones_is_found(books: Books) -> None:
    journal, _ = await books.opened(OLD)
    await journal.commit(Commit(records={b"d/a": b"1"}, progress=b"p1"))
    (old,) = [record for record in await books.read(books.topics.state) if record.key == b"d/a"]
    await journal.commit(Commit(records={b"d/a": b"2"}, progress=b"p2"))
    await journal.close()
    await books.write(books.topics.state, (b"d/a", old.value))
    with pytest.raises(UnreadableState, match="digest"):
        await books.journal(OLD).open()


async def test_a_lost_or_a_plain_record_is_found(books: Books) -> None:
    journal, _ = await books.opened(OLD)
    await journal.commit(Commit(records={b"d/a": b"1", b"d/b": b"1"}, progress=b"p1"))
    (record,) = [record for record in await books.read(books.topics.state) if record.key == b"d/a"]
    await journal.close()
    await books.write(books.topics.state, (b"d/a", None))
    with pytest.raises(UnreadableState, match="digest"):
        await books.journal(OLD).open()
    plain = books.journal()._sealing.seal(b"d/a", 1, b"1")
    await books.write(books.topics.state, (b"d/a", plain))
    with pytest.raises(UnreadableState, match="'d/a' is plain among sealed ones"):
        await books.journal(OLD).open()
    await books.write(books.topics.state, (b"d/a", record.value))
    await books.journal(OLD).open()


async def test_turning_sealing_on_and_rotating_rewrite_every_record(books: Books) -> None:
    journal, _ = await books.opened()
    await journal.commit(Commit(records={b"d/a": b"1", b"d/b": b"2"}, progress=b"p1"))
    for masters in ((OLD,), (NEW, OLD), (NEW,)):
        _, restored = await books.opened(*masters, adopt_plain=masters == (OLD,))
        assert restored.records == {b"d/a": b"1", b"d/b": b"2"}
    with pytest.raises(UnreadableState, match="previous_key_files"):
        await books.journal(OLD).open()
    with pytest.raises(UnreadableState, match="configured: none"):
        await books.journal().open()


async def test_another_application_or_partition_count_is_refused(books: Books) -> None:
    await books.opened()
    with pytest.raises(UnreadableState, match="belongs to another place"):
        await books.journal(application="other").open()
    with pytest.raises(UnreadableState, match=r"2 partitions .* now have 3"):
        await books.journal(partitions=3).open()


async def test_a_transaction_that_the_broker_gives_up_never_publishes(books: Books) -> None:
    """Cancelled in the middle, the books are re-read and nothing of it is there."""
    journal, _ = await books.opened()
    await journal.commit(Commit(progress=b"p1", events=[event(1)]))
    task = asyncio.create_task(
        journal.commit(Commit(records={b"d/a": b"1"}, progress=b"p2", events=[event(2)]))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    restored = await journal.open()
    assert restored.progress == b"p1"
    assert await books.events() == [1]


async def test_an_unreachable_broker_is_named_within_the_deadline() -> None:
    cluster = Cluster({"bootstrap_servers": "127.0.0.1:1"})
    tune()
    topics = Topics("s", "a", "r")
    journal = Journal(
        ShardLog(cluster, "a", 0, topics),
        Place("c", "a", "s", 0),
        topics,
        partitions=1,
        entropy=os.urandom,
        epoch=time.time,
    )
    with pytest.raises(BrokerUnavailable, match=r"no broker can be reached.*127\.0\.0\.1.*bootstrap_servers"):
        await journal.open()
    await journal.close()


async def test_an_owner_that_stood_still_while_another_went_on_is_fenced_not_rolled_back(
    books: Books,
) -> None:
    """It has read old books and sees new alerts: that is no restored backup, and no reason to give budgets up."""
    journal, _ = await books.opened()
    await journal.commit(Commit(progress=b"p", events=[event(1)]))
    await journal.flush()
    frozen = books.journal()
    read_state = frozen._log.read_state

    async def read_and_stand_still(*, committed: bool = True) -> dict[bytes, bytes]:
        raw = await read_state(committed=committed)
        successor, _ = await books.opened()
        await successor.commit(Commit(progress=b"p", events=[event(2)]))
        await successor.flush()
        return raw

    frozen._log.read_state = read_and_stand_still
    with pytest.raises(Fenced):
        await frozen.open()
    assert await books.events() == [1, 2]
