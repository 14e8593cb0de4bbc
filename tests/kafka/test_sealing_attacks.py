"""Somebody who may write the state topic, without the key: each attack is found, and the message names it.

The attacks write records of the shard's partition with an ordinary producer, as an intruder, a careless copy job or
a restored backup would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest

from stream_svt.errors import StateRolledBack, UnreadableState
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.journal import META, Journal
from stream_svt.protocol.ports import Transaction
from stream_svt.protocol.sealing import key_id
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.shard_log import ShardLog
from tests.support.books import NEW, OLD, Books, event
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
A, B = b"d/a", b"d/b"


@pytest.fixture
async def sealed(books: Books) -> Books:
    """Books of two datasets under a key, closed; dataset a was written twice."""
    journal, _ = await books.opened(OLD)
    await journal.commit(Commit(records={A: b"first", B: b"other"}, progress=b"p1"))
    await journal.commit(Commit(records={A: b"second"}, progress=b"p2"))
    await journal.close()
    return books


async def _refuses(books: Books, words: str, *masters: bytes, **where) -> None:
    """A takeover is refused with these words, and leaves every record as it is."""
    before = await books.live()
    with pytest.raises(UnreadableState, match=words):
        await books.journal(*(masters or (OLD,)), **where).open()
    assert await books.live() == before


async def _writes(books: Books, key: bytes, record: bytes | None) -> None:
    await books.write(books.topics.state, (key, record))


async def test_records_swapped_between_two_keys_are_named(sealed: Books) -> None:
    live = await sealed.live()
    await _writes(sealed, A, live[B])
    await _writes(sealed, B, live[A])
    await _refuses(sealed, r"'d/[ab]'.*its seal is broken: .*belongs to another place")


async def test_a_record_of_another_shard_is_named(sealed: Books) -> None:
    neighbour, _ = await sealed.opened(OLD, shard=0)
    await neighbour.commit(Commit(records={A: b"neighbour"}, progress=b"p"))
    await neighbour.close()
    await _writes(sealed, A, (await sealed.live(0))[A])
    await _refuses(sealed, r"'d/a' of shard 1 .*its seal is broken: .*belongs to another place")


@pytest.mark.parametrize("foreign", [{"application": "other"}, {"cluster": "other"}], ids=str)
async def test_the_state_of_another_application_or_cluster_is_named(sealed: Books, foreign) -> None:
    await _refuses(sealed, r"'meta'.*its seal is broken: .*belongs to another place", **foreign)


@pytest.mark.parametrize("length", [0, 9, 10, 30, 45, -1])
async def test_a_truncated_record_is_named(sealed: Books, length: int) -> None:
    await _writes(sealed, A, (await sealed.live())[A][:length])
    await _refuses(
        sealed, r"'d/a'.*(it is cut off after \d+ bytes|its seal is broken: it was changed or cut)"
    )


async def test_a_record_put_back_to_its_older_version_is_found(sealed: Books) -> None:
    """Its seal is good: only the digest over all live records tells."""
    versions = [record.value for record in await sealed.read(sealed.topics.state) if record.key == A]
    assert len(versions) == 2
    await _writes(sealed, A, versions[0])
    await _refuses(sealed, "do not add up to the digest in 'meta': some were .* put back to an older version")


async def test_an_older_meta_with_the_newer_records_is_found(sealed: Books) -> None:
    old = next(record.value for record in await sealed.read(sealed.topics.state) if record.key == META)
    await _writes(sealed, META, old)
    await _refuses(sealed, "record 'd/[ab]' is newer than 'meta'")


async def test_the_records_of_an_aborted_transaction_put_back_are_found(books: Books) -> None:
    """They are sealed, complete and add up: what gives them away is what was published beside them."""
    first, _ = await books.opened(OLD)
    await first.commit(Commit(records={A: b"before"}, progress=b"p"))
    dead = books.journal(OLD)
    dead._log.transact = partial(_die_before_the_end, dead._log)
    one = Commit(records={A: b"noise one"}, events=[event(1), event(2), event(3)], progress=b"p")
    dead._broken, dead._meta, dead._macs, dead._total = False, first._meta, dict(first._macs), first._total
    dead._sealing = first._sealing
    await dead._log.fence()
    with pytest.raises(ConnectionError):
        await dead.commit(one)
    second, _ = await books.opened(OLD)
    assert second.pending == 0
    await asyncio.sleep(0.01)  # events freeze the time at which they were charged
    await second.commit(
        Commit(records={A: b"noise two"}, events=[event(1), event(2), event(3)], progress=b"p")
    )
    await second.flush()
    await second.close()
    aborted = [
        record
        for record in await books.read(books.topics.state, "read_uncommitted")
        if record.offset not in {shown.offset for shown in await books.read(books.topics.state)}
    ]
    assert {record.key for record in aborted} == {A, b"ob/0", META}
    for record in aborted:
        await _writes(books, record.key, record.value)
    shown = len(await books.read(books.topics.alerts))
    with pytest.raises(StateRolledBack, match="event 1 with another content"):
        await books.journal(OLD).open()
    # The way out shows nothing of the other history either.
    third = books.journal(OLD)
    assert (await third.open(after_rollback=True)).last_event == 3
    assert await third.commit(Commit(progress=b"p")) == 0
    await third.close()
    fourth, _ = await books.opened(OLD)
    assert (fourth.pending, len(await books.read(books.topics.alerts))) == (0, shown)


async def _die_before_the_end(log: ShardLog, transaction: Transaction) -> int | None:
    """Write all of a transaction but its end."""

    async def die() -> None:
        raise ConnectionError("the process died")

    log._producer.commit_transaction = die
    return await log._transact(transaction)


async def test_a_deleted_and_an_added_record_are_found(sealed: Books) -> None:
    live = await sealed.live()
    await _writes(sealed, B, None)
    await _refuses(sealed, "do not add up to the digest.* lost, added")
    await _writes(sealed, B, live[B])
    await _writes(sealed, b"d/c", live[A])
    await _refuses(sealed, "'d/c'.*its seal is broken")


async def test_a_plain_record_among_sealed_ones_is_named(sealed: Books) -> None:
    forged = sealed.journal()._sealing.seal(A, 2, b"budget untouched")
    await _writes(sealed, A, forged)
    await _refuses(sealed, "record 'd/a' is plain among sealed ones")


@pytest.mark.parametrize("adopt_plain", [False, True])
async def test_a_record_of_no_known_format_is_named(sealed: Books, adopt_plain: bool) -> None:
    await _writes(sealed, A, b"\x02\x01" + bytes(60))
    await _refuses(sealed, r"'d/a'.*it has format 2\.1", adopt_plain=adopt_plain)


# --- a state that is plain as a whole


async def _replace_by_plain(books: Books) -> None:
    """Put a plain state in the place of the sealed one, well formed in itself."""
    for key in await books.live():
        await _writes(books, key, None)
    forger = books.journal()
    await forger.open()
    await forger.commit(Commit(records={A: b"budget untouched"}, progress=b"p"))
    await forger.close()


async def test_a_sealed_state_replaced_by_a_plain_one_is_refused(sealed: Books) -> None:
    await _replace_by_plain(sealed)
    await _refuses(
        sealed, "record 'meta' is plain although a sealing key is configured.*somebody replaced it"
    )


async def test_a_plain_state_is_sealed_once_when_asked_to(books: Books) -> None:
    journal, first = await books.opened()
    await journal.commit(Commit(records={A: b"1", B: b"2"}, progress=b"p"))
    await journal.close()
    await _refuses(books, "set sealing.adopt_plain for one start")
    adopted, restored = await books.opened(OLD, adopt_plain=True)
    assert restored.records == {A: b"1", B: b"2"}
    assert restored.noise_key == first.noise_key  # a run's noise must not change under it
    await adopted.close()
    journal, restored = await books.opened(OLD)
    assert restored.records == {A: b"1", B: b"2"}
    await journal.close()
    with pytest.raises(UnreadableState, match="configured: none"):
        await books.journal().open()


async def test_a_crash_in_the_middle_of_sealing_leaves_no_way_in(books: Books) -> None:
    """The first transaction seals 'meta'; records still plain count through its digest, under a new secret."""
    journal, _ = await books.opened()
    await journal.commit(Commit(records={A: b"1", B: b"2"}, progress=b"p"))
    await journal.close()
    known = journal._meta.digest_key
    dying = books.journal(OLD, adopt_plain=True)
    transaction = dying._transaction

    async def once(commit: Commit) -> int:
        if commit.records:
            raise ConnectionError
        return await transaction(commit)

    dying._transaction = once
    with pytest.raises(ConnectionError):
        await dying.open()
    await dying.close()
    live = await books.live()
    assert (live[META][1], live[A][1]) == (1, 0)
    assert dying._meta.digest_key != known
    await _writes(books, A, books.journal()._sealing.seal(A, 2, b"budget untouched"))
    await _refuses(books, "do not add up to the digest")
    await _writes(books, A, live[A])
    _, restored = await books.opened(OLD)
    assert restored.records == {A: b"1", B: b"2"}


# --- rotation, with a worker


class Rotation:
    """One application whose sealing key changes, and what its workers show."""

    def __init__(self, scene: Scene, directory) -> None:
        self.scene = scene
        self.directory = directory
        for name, key in (("old", OLD), ("new", NEW)):
            (directory / name).write_text(key.hex())
            (directory / name).chmod(0o600)

    def config(self, sealing: str):
        from stream_svt.service.config import parse_config

        return parse_config(self.scene.text() + f"sealing: {{{sealing}}}\n", directory=self.directory)

    @contextlib.asynccontextmanager
    async def worker(self, sealing: str) -> AsyncIterator:
        worker = await self.scene.start(self.config(sealing))
        try:
            await until(lambda: all(shard["sealing_key_id"] for shard in worker.status()["shards"]))
            yield worker
        finally:
            await self.scene.stop(worker)

    async def fails(self, sealing: str) -> str:
        """Return why a worker stays out of the group: it has no key that opens the state."""
        worker = await self.scene.start(self.config(sealing), ready=False)
        assert worker.fault is not None
        assert worker.fault.cause is Cause.SEALING_KEY
        assert worker.statuses() == []
        assert worker.alive
        await self.scene.stop(worker)
        return worker.fault.reason


def _shown(worker) -> set[str]:
    return {shard["sealing_key_id"] for shard in worker.status()["shards"]}


@pytest.fixture
async def rotation(broker, topics, tmp_path) -> AsyncIterator[Rotation]:
    async with Scene(broker.bootstrap_servers, topics.name("shop")).on_stage() as scene:
        yield Rotation(scene, tmp_path)


async def test_the_old_key_may_go_once_status_shows_it_for_no_shard(rotation: Rotation) -> None:
    scene = rotation.scene
    old, new = key_id(OLD).hex(), key_id(NEW).hex()
    async with rotation.worker("key_file: old") as worker:
        assert _shown(worker) == {old}
        await scene.send("a", HIGH)
        await scene.settled(worker, 1)
        spent = {view["dataset"]: view["spent"] for view in worker.status()["datasets"]}
    # Too early: nothing was rewritten yet, and nothing is touched.
    reason = await rotation.fails("key_file: new")
    assert f"sealed with key {old}" in reason
    assert "previous_key_files" in reason
    async with rotation.worker("key_file: new, previous_key_files: [old]") as worker:
        assert _shown(worker) == {new}
    assert await _names_of_seals(scene) == {new}
    async with rotation.worker("key_file: new") as worker:
        assert {view["dataset"]: view["spent"] for view in worker.status()["datasets"]} == spent
    assert f"sealed with key {new}" in await rotation.fails("key_file: old")


async def _names_of_seals(scene: Scene) -> set[str]:
    """Return the keys that seal the live records, outbox records that no longer count left out."""
    live = {(record.partition, record.key): record.value for record in await scene.read("state")}
    return {
        value[10:18].hex()
        for (_, key), value in live.items()
        if value is not None and not key.startswith(b"ob/")
    }


async def test_deleting_the_state_under_a_key_refills_no_budget_either(books: Books) -> None:
    journal, _ = await books.opened(OLD)
    await journal.commit(Commit(progress=b"p", events=[event(1)]))
    await journal.flush()
    await journal.close()
    for key in await books.live():
        await _writes(books, key, None)
    with pytest.raises(StateRolledBack, match="is empty"):
        await books.journal(OLD).open()


def test_the_journal_shows_no_key() -> None:
    from stream_svt.protocol.journal import Topics
    from stream_svt.protocol.sealing import Place, Sealing

    journal = Journal(
        None,  # type: ignore[arg-type]
        Place("c", "a", "s", 0),
        Topics("s", "a", "r"),
        partitions=1,
        masters=[OLD],
        entropy=bytes,
        epoch=lambda: 0.0,
    )
    for shown in (repr(journal), repr(Sealing(Place("c", "a", "s", 0), [OLD], bytes))):
        assert OLD.hex() not in shown
        assert repr(OLD) not in shown
