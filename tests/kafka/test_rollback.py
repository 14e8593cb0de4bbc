"""Drills: somebody puts an older, an empty or a foreign state in the place of a shard's own.

Each time the ledgers would say that less was spent than the published alerts show, or nothing at all. Each time the
shard parks and changes nothing, and opens by itself once what belongs together is put back.
"""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.errors import MisuseError, UnreadableState
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.controls import Standing
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.state_records import RECORD_LIMIT
from stream_svt.service.config import Config, parse_config
from stream_svt.service.kafka import BrokerUnavailable, Fenced
from stream_svt.service.worker import Worker
from tests.support.closing import SEALED, SEALED_ANEW, Application, Stage, State_
from tests.support.shard_topics import OLD, ShardTopics, event
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, COMPACTED, HIGH, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def app(stage: Stage) -> Application:
    return await stage.old(partitions=1)


async def refuses(app: Application, words: str) -> Worker:
    """A worker waits, loudly, and processes nothing; return it."""
    published = await app.scene.alerts()
    worker = await app.scene.start(app.config(), ready=False)
    await app.parked(worker, {Cause.STATE_ROLLED_BACK})
    assert words in complaint(worker)
    assert worker.alive
    await app.scene.send("a", HIGH)
    await asyncio.sleep(0.3)
    assert await app.scene.alerts() == published
    return worker


async def cannot_be_read(app: Application, words: str, config: Config | None = None) -> None:
    """The worker takes no query, and changes nothing."""
    before, published = await app.scene.live(), await app.scene.alerts()
    ends = await app.scene.ends("state", "alerts")
    worker = await app.scene.start(config or app.config(), ready=False)
    await until(lambda: words in complaint(worker))
    assert worker.alive
    assert not is_open(worker)
    await app.scene.stop(worker)
    assert await app.scene.live() == before
    assert await app.scene.alerts() == published
    assert await app.scene.ends("state", "alerts") == ends


async def last_alert(app: Application) -> int:
    """Return where the mark behind the last alert stands."""
    return (await app.scene.read("alerts", "read_uncommitted"))[-1].offset + 2


async def refused_until_put_back(app: Application, state: State_, words: str) -> None:
    """With this state nothing is processed until the newest is back; then the shard opens, and nothing is lost."""
    newest, published = await app.scene.live(), await app.scene.alerts()
    if state:
        await app.put(state)
    else:
        await app.scene.make_anew("state")
    worker = await refuses(app, words)
    await app.put(newest)
    await until(lambda: is_open(worker), 90)
    await app.scene.settled(worker, len(await app.scene.read("counts")))
    await app.scene.stop(worker)
    # The query that came while the shard was parked.
    assert len(await app.scene.alerts()) == len(published) + 1


async def test_an_older_or_an_empty_state_is_refused_until_the_newest_is_put_back(app: Application) -> None:
    """One from just before a publication would publish again, and charge nothing for what it forgot."""
    await app.spend({"a": 2})
    yesterday = await app.scene.live()
    await app.spend({"a": 2})
    await refused_until_put_back(app, yesterday, "ends with event")
    moment = await app.before_publication()
    await refused_until_put_back(app, moment, "as published, which the state still has to publish")
    await refused_until_put_back(app, {}, "is empty")
    # Also where retention took the alerts that the older state lacks.
    yesterday = await app.scene.live()
    await app.spend({"a": 3})
    await app.scene.delete_before("alerts", await last_alert(app))
    await app.put(yesterday)
    await refuses(app, "events were deleted that the state does not know of")


async def test_retention_that_took_every_alert_is_no_rollback(app: Application) -> None:
    """However many takeovers followed the last alert: each ends with a mark on the alert partition, too.

    A start with the wrong key leaves none there, which retention would make a loss.
    """
    await app.spend({"a": 2})
    app.more = SEALED_ANEW
    await cannot_be_read(app, "key")
    app.more = SEALED
    await app.spend({})
    await app.spend({})
    await app.scene.delete_before("alerts", await last_alert(app))
    await app.spend({})
    await app.spend({})
    await app.scene.delete_before("alerts", -1)
    assert (await app.spend({"a": 2})).spent["a"] > 0


async def test_a_mirror_under_another_name_is_no_state_of_this_application(app: Application) -> None:
    await app.spend({"a": 1})
    mirror = f"{app.name}.mirror"
    await create_topics(app.scene.servers, {mirror: 1}, CLOCK | COMPACTED)
    for (shard, key), value in (await app.scene.live()).items():
        await app.scene.producer.send_and_wait(mirror, value, key=key, partition=shard)
    text = (app.scene.text() + SEALED).replace("topics: {", f"topics: {{state: {mirror}, ")
    config = parse_config(text, directory=app.directory)
    await cannot_be_read(app, "belongs to another place", config)


async def test_the_state_of_a_foreign_cluster_is_refused_and_so_is_an_empty_one_beside_its_alerts(
    app: Application, secure_broker
) -> None:
    """A whole application mirrored to another cluster: the state is bound to where it was written."""
    await app.spend({"a": 2})
    async with Scene(secure_broker.bootstrap_servers, app.name, partitions=1, limit=4).on_stage() as scene:
        scene.datasets = app.scene.datasets
        other = Application(scene, app.directory)
        await other.put(await app.scene.live())
        for record in await app.scene.read("alerts"):
            await scene.producer.send_and_wait(
                f"{app.name}.alerts", record.value, key=record.key, partition=0
            )
        await cannot_be_read(other, "belongs to another place")
        await scene.make_anew("state")
        await refuses(other, "is empty")


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
