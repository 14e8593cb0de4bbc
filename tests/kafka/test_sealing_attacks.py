"""Somebody who may write the state topic, without the key: each attack is found, and the message names it.

The attacks write records of the shard's partition with an ordinary producer, as an intruder, a careless copy job or
a restored backup would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pytest

from stream_svt.errors import StateRolledBack, UnreadableState
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.journal import META, Journal, Topics
from stream_svt.protocol.ports import Transaction
from stream_svt.protocol.sealing import Place, Sealing, key_id
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.check import Level, check_brokers
from stream_svt.service.config import parse_config
from stream_svt.service.shard_log import ShardLog
from stream_svt.service.worker import cluster_of
from tests.support.books import NEW, OLD, Books, event
from tests.support.keys import write_secrets
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


Live = Mapping[bytes, bytes]


@dataclass(frozen=True)
class Attack:
    """What somebody writes, who knows the live records, their first versions and a plain one; what is said of it."""

    words: str
    writes: Callable[[Live, Live, bytes], Mapping[bytes, bytes | None]]


ATTACKS = {
    "two swapped": Attack(
        r"'d/[ab]'.*its seal is broken: .*belongs to another place",
        lambda live, first, plain: {A: live[B], B: live[A]},
    ),
    "cut off": Attack(r"'d/a'.*it is cut off after 9 bytes", lambda live, first, plain: {A: live[A][:9]}),
    "shortened": Attack(
        r"'d/a'.*its seal is broken: it was changed or cut", lambda live, first, plain: {A: live[A][:-1]}
    ),
    # Its seal is good: only the digest over all live records tells.
    "put back to an older version": Attack(
        "do not add up to the digest in 'meta': some were .* put back to an older version",
        lambda live, first, plain: {A: first[A]},
    ),
    "older meta": Attack(
        "record 'd/[ab]' is newer than 'meta'", lambda live, first, plain: {META: first[META]}
    ),
    "deleted": Attack("do not add up to the digest.* lost, added", lambda live, first, plain: {B: None}),
    "added": Attack(r"'d/c'.*its seal is broken", lambda live, first, plain: {b"d/c": live[A]}),
    "plain": Attack("record 'd/a' is plain among sealed ones", lambda live, first, plain: {A: plain}),
    "no known format": Attack(
        r"'d/a'.*it has format 2\.1", lambda live, first, plain: {A: b"\x02\x01" + bytes(60)}
    ),
}


async def test_each_attack_is_found_and_named_and_nothing_is_left_once_all_is_put_back(
    sealed: Books,
) -> None:
    live = await sealed.live()
    first: dict[bytes, bytes] = {}
    for record in await sealed.read(sealed.topics.state):
        first.setdefault(record.key, record.value)
    assert first[A] != live[A]
    plain = sealed.journal()._sealing.seal(A, 2, b"budget untouched")
    for attack in ATTACKS.values():
        records = attack.writes(live, first, plain)
        for key, record in records.items():
            await sealed.write(key, record)
        await _refuses(sealed, attack.words)
        for key in records:
            await sealed.write(key, live.get(key))
    _, restored = await sealed.opened(OLD)
    assert restored.records == {A: b"second", B: b"other"}


async def test_a_record_of_another_shard_is_named(sealed: Books) -> None:
    neighbour, _ = await sealed.opened(OLD, shard=0)
    await neighbour.commit(Commit(records={A: b"neighbour"}, progress=b"p"))
    await neighbour.close()
    await sealed.write(A, (await sealed.live(0))[A])
    await _refuses(sealed, r"'d/a' of shard 1 .*its seal is broken: .*belongs to another place")


@pytest.mark.parametrize("foreign", [{"application": "other"}, {"cluster": "other"}], ids=str)
async def test_the_state_of_another_application_or_cluster_is_named(sealed: Books, foreign) -> None:
    await _refuses(sealed, r"'meta'.*its seal is broken: .*belongs to another place", **foreign)


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
        await books.write(record.key, record.value)
    with pytest.raises(StateRolledBack, match="shows event 1, which the state does not know, or another one"):
        await books.journal(OLD).open()


async def _die_before_the_end(log: ShardLog, transaction: Transaction) -> int | None:
    """Write all of a transaction but its end."""

    async def die() -> None:
        raise ConnectionError("the process died")

    log._producer.commit_transaction = die
    return await log._transact(transaction)


# --- a state that is plain as a whole


async def _replace_by_plain(books: Books) -> None:
    """Put a plain state in the place of the sealed one, well formed in itself."""
    for key in await books.live():
        await books.write(key, None)
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
    await books.write(A, books.journal()._sealing.seal(A, 2, b"budget untouched"))
    await _refuses(books, "do not add up to the digest")
    await books.write(A, live[A])
    _, restored = await books.opened(OLD)
    assert restored.records == {A: b"1", B: b"2"}


# --- rotation, with a worker


class Rotation:
    """One application whose sealing key changes, and what its workers show."""

    def __init__(self, scene: Scene, directory) -> None:
        self.scene = scene
        self.directory = directory
        write_secrets(directory, {"old": OLD.hex(), "new": NEW.hex()})

    def config(self, sealing: str):
        return parse_config(self.scene.text() + f"sealing: {{{sealing}}}\n", directory=self.directory)

    @contextlib.asynccontextmanager
    async def worker(self, sealing: str) -> AsyncIterator:
        worker = await self.scene.start(self.config(sealing))
        try:
            await until(lambda: all(shard["sealing_key_id"] for shard in worker.status()["shards"]))
            yield worker
        finally:
            await self.scene.stop(worker)

    async def checked(self, sealing: str) -> list[tuple[Level, str]]:
        """Return what `check` says of the state."""
        config, said = self.config(sealing), []
        async with asyncio.timeout(20):
            while not said:  # topics that were made a moment ago may not be known yet
                found = (await check_brokers(config, cluster_of(config))).findings
                said = [
                    (one.level, one.message) for one in found if one.subject in {"state", "sealing.key_file"}
                ]
        return said

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
def rotation(scene: Scene, tmp_path) -> Rotation:
    return Rotation(scene, tmp_path)


async def test_the_old_key_may_go_once_status_shows_it_for_no_shard(rotation: Rotation) -> None:
    """And `check` says before a worker starts whether it could open what is stored."""
    scene = rotation.scene
    old, new = key_id(OLD).hex(), key_id(NEW).hex()
    assert await rotation.checked("key_file: old") == [(Level.OK, "nothing is stored yet")]
    opens = [(Level.OK, "what 2 of 2 shards have stored opens with the configured keys")]
    async with rotation.worker("key_file: old") as worker:
        assert await rotation.checked("key_file: old") == opens
        assert _shown(worker) == {old}
        await scene.send("a", HIGH)
        await scene.settled(worker, 1)
        spent = {view["dataset"]: view["spent"] for view in worker.status()["datasets"]}
    # Too early: nothing was rewritten yet, and nothing is touched.
    reason = await rotation.fails("key_file: new")
    assert f"sealed with key {old}" in reason
    assert "previous_key_files" in reason
    ((level, problem),) = await rotation.checked("key_file: new")
    assert level is Level.PROBLEM
    assert f"shards 0, 1 on topic '{scene.application}.state': it is sealed with key {old}" in problem
    assert await rotation.checked("key_file: new, previous_key_files: [old]") == opens
    # One worker after the other is restarted: the first one's shards are read with the key before.
    async with rotation.worker("key_file: old") as first:
        second = await scene.start(rotation.config("key_file: new, previous_key_files: [old]"), ready=False)
        await until(lambda: second.ready and len(first.statuses()) == len(second.statuses()) == 1)
    await until(lambda: second.ready and len(second.statuses()) == 2 and _shown(second) == {new})
    await scene.stop(second)
    assert await _names_of_seals(scene) == {new}
    async with rotation.worker("key_file: new") as worker:
        assert {view["dataset"]: view["spent"] for view in worker.status()["datasets"]} == spent
    assert f"sealed with key {new}" in await rotation.fails("key_file: old")


async def _names_of_seals(scene: Scene) -> set[str]:
    """Return the keys that seal the live records, outbox records that no longer count left out."""
    live = await scene.live()
    return {value[10:18].hex() for (_, key), value in live.items() if not key.startswith(b"ob/")}


def test_the_journal_shows_no_key() -> None:
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
