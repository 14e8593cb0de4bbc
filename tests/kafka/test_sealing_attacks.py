"""Somebody who may write the state topic, without the key: each attack is found, and the message names it.

The attacks write records of the shard's partition with an ordinary producer, as an intruder, a careless copy job or
a restored backup would.
"""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.errors import UnreadableState
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.sealing import key_id
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.state_records import META
from stream_svt.service.check import check_brokers
from stream_svt.service.config import Config
from stream_svt.service.web.documents import status
from stream_svt.service.worker import Worker, cluster_of
from tests.support.keys import write_secrets
from tests.support.shard_topics import NEW, OLD, ShardTopics
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
A, B = b"d/a", b"d/b"


@pytest.fixture
async def sealed(shard_topics: ShardTopics) -> ShardTopics:
    """A state of two datasets under a key, closed; dataset a was written twice."""
    journal, _ = await shard_topics.opened(OLD)
    await journal.commit(Commit(records={A: b"first", B: b"other"}, progress=b"p1"))
    await journal.commit(Commit(records={A: b"second"}, progress=b"p2"))
    await journal.close()
    return shard_topics


async def _refuses(shard_topics: ShardTopics, words: str, *masters: bytes, **where) -> None:
    """A takeover is refused with these words, and leaves every record as it is."""
    before = await shard_topics.live()
    with pytest.raises(UnreadableState, match=words):
        await shard_topics.journal(*(masters or (OLD,)), **where).open()
    assert await shard_topics.live() == before


async def test_each_attack_is_found_and_named_and_nothing_is_left_once_all_is_put_back(
    sealed: ShardTopics,
) -> None:
    live = await sealed.live()
    first: dict[bytes, bytes] = {}
    for record in await sealed.read(sealed.topics.state):
        first.setdefault(record.key, record.value)
    assert first[A] != live[A]
    neighbour, _ = await sealed.opened(OLD, shard=0)
    await neighbour.commit(Commit(records={A: b"neighbour"}, progress=b"p"))
    await neighbour.close()
    foreign = (await sealed.live(0))[A]
    plain = sealed.journal()._reader.sealing.seal(A, 2, b"budget untouched")
    elsewhere = "its seal is broken: .*belongs to another place"
    older = "some were .* put back to an older version"  # its seal is good: only the digest over all tells
    attacks: list[tuple[str, dict[bytes, bytes | None]]] = [
        (rf"'d/[ab]'.*{elsewhere}", {A: live[B], B: live[A]}),
        (rf"'d/a' of shard 1 .*{elsewhere}", {A: foreign}),
        (r"'d/a'.*it is cut off after 9 bytes", {A: live[A][:9]}),
        (r"'d/a'.*its seal is broken: it was changed or cut", {A: live[A][:-1]}),
        (f"do not add up to the digest in 'meta': {older}", {A: first[A]}),
        ("record 'd/[ab]' is newer than 'meta'", {META: first[META]}),
        ("do not add up to the digest.* lost, added", {B: None}),
        (r"'d/c'.*its seal is broken", {b"d/c": live[A]}),
        ("record 'd/a' is plain among sealed ones", {A: plain}),
        (r"'d/a'.*it has format 2\.1", {A: b"\x02\x01" + bytes(60)}),
    ]
    for words, records in attacks:
        for key, record in records.items():
            await sealed.write(key, record)
        await _refuses(sealed, words)
        for key in records:
            await sealed.write(key, live.get(key))
    for where in ({"application": "other"}, {"cluster": "other"}):
        await _refuses(sealed, rf"'meta'.*{elsewhere}", **where)
    journal, restored = await sealed.opened(OLD)
    assert restored == {A: b"second", B: b"other"}
    for shown in (repr(journal), repr(journal._reader.sealing)):
        assert OLD.hex() not in shown
        assert repr(OLD) not in shown


# --- a state that is plain as a whole


async def test_a_sealed_state_replaced_by_a_plain_one_is_refused(sealed: ShardTopics) -> None:
    """The plain one is well formed in itself."""
    for key in await sealed.live():
        await sealed.write(key, None)
    forger, _ = await sealed.opened()
    await forger.commit(Commit(records={A: b"budget untouched"}, progress=b"p"))
    await forger.close()
    await _refuses(
        sealed, "record 'meta' is plain although a sealing key is configured.*somebody replaced it"
    )


async def test_a_plain_state_is_sealed_once_when_asked_to(shard_topics: ShardTopics) -> None:
    first, _ = await shard_topics.opened()
    await first.commit(Commit(records={A: b"1", B: b"2"}, progress=b"p"))
    await first.close()
    await _refuses(shard_topics, "set sealing.adopt_plain for one start")
    adopted, restored = await shard_topics.opened(OLD, adopt_plain=True)
    assert restored == {A: b"1", B: b"2"}
    assert adopted.meta.noise_key == first.meta.noise_key  # a run's noise must not change under it
    await adopted.close()
    journal, restored = await shard_topics.opened(OLD)
    assert restored == {A: b"1", B: b"2"}
    await journal.close()
    with pytest.raises(UnreadableState, match="configured: none"):
        await shard_topics.journal().open()


async def test_a_crash_in_the_middle_of_sealing_leaves_no_way_in(shard_topics: ShardTopics) -> None:
    """The first transaction seals 'meta'; records still plain count through its digest, under a new secret."""
    journal, _ = await shard_topics.opened()
    await journal.commit(Commit(records={A: b"1", B: b"2"}, progress=b"p"))
    await journal.close()
    known = journal.meta.digest_key
    dying = shard_topics.journal(OLD, adopt_plain=True)
    transaction = dying.commit

    async def once(commit: Commit) -> int:
        if commit.records:
            raise ConnectionError
        return await transaction(commit)

    dying.commit = once
    with pytest.raises(ConnectionError):
        await dying.open()
    await dying.close()
    live = await shard_topics.live()
    assert (live[META][1], live[A][1]) == (1, 0)
    assert dying.meta.digest_key != known
    await shard_topics.write(A, shard_topics.journal()._reader.sealing.seal(A, 2, b"budget untouched"))
    await _refuses(shard_topics, "do not add up to the digest")
    await shard_topics.write(A, live[A])
    _, restored = await shard_topics.opened(OLD)
    assert restored == {A: b"1", B: b"2"}


# --- rotation, with a worker


async def test_the_old_key_may_go_once_status_shows_it_for_no_shard(scene: Scene) -> None:
    """And `check` says before a worker starts whether it could open what is stored."""
    write_secrets(scene.directory, {"old": OLD.hex(), "new": NEW.hex()})
    old, new = key_id(OLD).hex(), key_id(NEW).hex()

    def config(sealing: str) -> Config:
        return scene.config(more=f"sealing: {{{sealing}}}\n")

    def shown(worker: Worker) -> set[str]:
        return {shard.key_id for shard in status(worker).shards}

    def spent(worker: Worker) -> dict[str, float]:
        return {view.dataset: view.spent for view in status(worker).datasets}

    async def started(sealing: str) -> Worker:
        worker = await scene.start(config(sealing))
        await until(lambda: all(shown(worker)))
        return worker

    async def checked(sealing: str) -> list[tuple[str, str]]:
        """Return what `check` says of the state."""
        said: list[tuple[str, str]] = []
        async with asyncio.timeout(20):
            while not said:  # topics that were made a moment ago may not be known yet
                found = await check_brokers(config(sealing), cluster_of(config(sealing)))
                said = [
                    (one.level, one.message) for one in found if one.subject in {"state", "sealing.key_file"}
                ]
        return said

    async def fails(sealing: str) -> str:
        """Return why a worker stays out of the group: it has no key that opens the state."""
        worker = await scene.start(config(sealing), ready=False)
        assert worker.fault is not None
        assert worker.fault.cause is Cause.SEALING_KEY
        assert worker.statuses() == []
        assert worker.alive
        await scene.stop(worker)
        return worker.fault.reason

    assert await checked("key_file: old") == [("ok", "nothing is stored yet")]
    opens = [("ok", "what 2 of 2 shards have stored opens with the configured keys")]
    worker = await started("key_file: old")
    assert await checked("key_file: old") == opens
    assert shown(worker) == {old}
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    before = spent(worker)
    await scene.stop(worker)
    # Too early: nothing was rewritten yet, and nothing is touched.
    reason = await fails("key_file: new")
    assert f"sealed with key {old}" in reason
    assert "previous_key_files" in reason
    ((level, problem),) = await checked("key_file: new")
    assert level == "problem"
    assert f"shards 0, 1 on topic '{scene.application}.state': it is sealed with key {old}" in problem
    both = "key_file: new, previous_key_files: [old]"
    assert await checked(both) == opens
    # One worker after the other is restarted: the first one's shards are read with the key before.
    first = await started("key_file: old")
    second = await scene.start(config(both), ready=False)
    await until(lambda: second.ready and len(first.statuses()) == len(second.statuses()) == 1)
    await scene.stop(first)
    await until(lambda: second.ready and len(second.statuses()) == 2 and shown(second) == {new})
    await scene.stop(second)
    # Outbox records that no longer count are left as they are.
    live = {place: value for place, value in (await scene.live()).items() if place[1][:3] != b"ob/"}
    assert {value[10:18].hex() for value in live.values()} == {new}
    worker = await started("key_file: new")
    assert spent(worker) == before
    await scene.stop(worker)
    assert f"sealed with key {new}" in await fails("key_file: old")
