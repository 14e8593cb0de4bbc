"""A state on its topic: attacks on a sealed one, and forgeries in a plain one, which end in names, not in a crash."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stream_svt.errors import UnreadableState
from stream_svt.kafka.clients import Fenced
from stream_svt.monitor.released import EventType, ReleasedEvent, event_in
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.sealing import Sealing
from stream_svt.protocol.state_records import META, OUTBOX, Chunk
from tests.simulation.log import CONTEXT, Broker, ModelLog, finish, holding, journal_of
from tests.support.alerts import lifecycle
from tests.support.forgeries import ALERTS, CONTENTS, meta

KEY = bytes(range(32))
A, B = b"d/a", b"d/b"
FIRST = Commit(records={A: b"first", B: b"other"}, progress=b"p1")
RESTORED = {A: b"first", B: b"other"}
ELSEWHERE = "its seal is broken: .*was written under another key, shard or cluster"
OLDER = "some were .* put back to an older version"  # its seal is good: only the digest over all tells


def stored(broker: Broker) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = finish(ModelLog(broker).read_state())
    return records


def written(*commits: Commit, **options: Any) -> dict[bytes, bytes]:
    """Return the state that an owner leaves."""
    broker = holding({})
    opened(broker, *commits, **options)
    broker.settle()
    return stored(broker)


def opened(broker: Broker, *commits: Commit, **options: Any) -> tuple[Any, dict[bytes, bytes]]:
    journal = journal_of(broker, **options)
    restored = finish(journal.open())
    for commit in commits:
        finish(journal.commit(commit))
    finish(journal.flush())
    return journal, restored


def refuses(records: Mapping[bytes, bytes | None], words: str, **options: Any) -> None:
    """A takeover is refused with these words, and leaves every record as it is."""
    held = {key: record for key, record in records.items() if record is not None}
    broker = holding(held)
    with pytest.raises(UnreadableState, match=words):
        opened(broker, **{"masters": (KEY,)} | options)
    assert stored(broker) == held


EARLIER = written(FIRST, masters=(KEY,))
LIVE = written(FIRST, Commit(records={A: b"second"}, progress=b"p2"), masters=(KEY,))
FORGED = Sealing(CONTEXT, (), random.Random(2).randbytes).seal(A, 2, b"budget untouched")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({A: LIVE[B], B: LIVE[A]}, rf"'d/[ab]'.*{ELSEWHERE}"),
        ({A: LIVE[A][:9]}, r"'d/a'.*it is cut off after 9 bytes"),
        ({A: LIVE[A][:-1]}, r"'d/a'.*its seal is broken: it was changed or cut"),
        ({A: EARLIER[A]}, f"do not add up to the digest in 'meta': {OLDER}"),
        ({META: EARLIER[META]}, "record 'd/[ab]' is newer than 'meta'"),
        ({B: None}, "do not add up to the digest.* lost, added"),
        ({b"d/c": LIVE[A]}, r"'d/c'.*its seal is broken"),
        ({A: FORGED}, "record 'd/a' is plain among sealed ones"),
        ({A: b"\x02\x01" + bytes(60)}, r"'d/a'.*it has format 2\.1"),
    ],
    ids=[*("swapped", "cut", "shorter", "older", "older meta", "lost", "copied", "plain", "format")],
)
def test_each_attack_is_found_and_named(changed: dict[bytes, bytes | None], words: str) -> None:
    refuses(LIVE | changed, words)


@pytest.mark.parametrize(
    "where", [{"application": "other"}, {"cluster": "other"}, {"topic": "other"}], ids=str
)
def test_a_whole_state_from_elsewhere_is_refused(where: dict[str, str]) -> None:
    refuses(LIVE, rf"'meta'.*{ELSEWHERE}", context=replace(CONTEXT, **where))


def test_what_was_not_touched_opens_and_no_key_is_shown() -> None:
    journal, restored = opened(holding(LIVE), masters=(KEY,))
    assert restored == {A: b"second", B: b"other"}
    for shown in (repr(journal), repr(journal.records.sealing)):
        assert KEY.hex() not in shown
        assert repr(KEY) not in shown


def test_a_plain_state_is_sealed_once_when_asked_to() -> None:
    """Not asked to, it counts as one that somebody put in the place of a sealed one."""
    broker = holding(written(FIRST))
    refuses(
        stored(broker), "'meta' is plain although a sealing key is configured.*set sealing.adopt_plain for"
    )
    first = journal_of(broker)
    finish(first.inspect())
    adopted, restored = opened(broker, masters=(KEY,), adopt_plain=True)
    assert restored == RESTORED
    assert adopted.meta.noise_key == first.meta.noise_key  # a run's noise must not change under it
    broker.settle()
    assert opened(broker, masters=(KEY,))[1] == RESTORED
    broker.settle()
    refuses(stored(broker), "configured: none", masters=())


def test_a_crash_in_the_middle_of_sealing_leaves_no_way_in() -> None:
    """The first transaction seals 'meta'; records still plain count through its digest, under a new secret."""
    broker = holding(written(FIRST))
    dying = journal_of(broker, masters=(KEY,), adopt_plain=True, entropy=random.Random(2).randbytes)
    transaction = dying.commit

    async def once(commit: Commit) -> int:
        if commit.records:
            raise ConnectionError
        return await transaction(commit)

    dying.commit = once
    with pytest.raises(ConnectionError):
        finish(dying.open())
    broker.settle()
    live = stored(broker)
    assert (live[META][1], live[A][1]) == (1, 0)
    refuses(live | {A: FORGED}, "do not add up to the digest")
    assert opened(holding(live), masters=(KEY,))[1] == RESTORED


def test_an_owner_that_stood_still_while_another_went_on_is_fenced_not_rolled_back() -> None:
    """It has read old books and sees new alerts: that is no restored backup, and no reason to give budgets up."""

    def published(number: int) -> Commit:
        kind, name, data = EventType.RUN_STARTED, f"a/{number}", lifecycle("test", dataset="a")
        event = ReleasedEvent(type=kind, id=name, sequence=number, subject="a", data=data)
        return Commit(progress=b"p", events=[event])

    broker = holding({})
    opened(broker, published(1))
    frozen = journal_of(broker)
    read_state = frozen._log.read_state

    async def read_and_stand_still(*, committed: bool = True) -> dict[bytes, bytes]:
        raw: dict[bytes, bytes] = await read_state(committed=committed)
        opened(broker, published(2))
        return raw

    frozen._log.read_state = read_and_stand_still
    with pytest.raises(Fenced):
        finish(frozen.open())
    broker.settle()
    assert len(list(broker.read("alerts"))) == 2


# Whoever may write to the alert topic or to a plain state can put anything there

CHUNK_KEY = OUTBOX + b"0"
CHUNK = msgspec.msgpack.encode(Chunk([]))


@pytest.mark.parametrize("record", ALERTS.values(), ids=ALERTS)
def test_a_forged_alert_is_no_event_and_stops_no_takeover(record: bytes) -> None:
    assert event_in(record) is None


def look(records: dict[bytes, bytes]) -> None:
    finish(journal_of(holding(records)).inspect())


def plain(key: bytes, content: bytes) -> dict[bytes, bytes]:
    return {key: Sealing(CONTEXT, (), os.urandom).seal(key, 1, content)}


OUTBOXES = {
    "no UTF-8": zlib.compress(CONTENTS["no UTF-8"]),
    "deep": zlib.compress(CONTENTS["deep"]),
    "no text": zlib.compress(b"\x91\x91\x93\x01\xa1\xff\xc4\x00"),
    "not compressed": CHUNK,
    "cut": zlib.compress(CHUNK)[:-1],
    "with more behind it": zlib.compress(CHUNK) + b"more",
    "larger than any": zlib.compress(bytes(1 << 24)),
    "empty": b"",
}
CHARGED = plain(META, meta(chunks=1, charged=1))
FORGERIES = {
    name: (plain(META, content) | plain(b"d/a", b"x"), "shard 0") for name, content in CONTENTS.items()
}
FORGERIES |= {
    f"outbox: {name}": (CHARGED | plain(CHUNK_KEY, content), "ob/0") for name, content in OUTBOXES.items()
}
FORGERIES["a key that is no text"] = plain(META, meta()) | plain(b"d/\xff", b"x"), "no text"
# What they are made from is read: only the digest is wrong here.
FORGERIES["none"] = CHARGED | plain(CHUNK_KEY, zlib.compress(CHUNK)), "digest"


@pytest.mark.parametrize(("records", "said"), FORGERIES.values(), ids=FORGERIES)
def test_a_forged_plain_record_makes_the_state_unreadable(records: dict[bytes, bytes], said: str) -> None:
    with pytest.raises(UnreadableState, match=said):
        look(records)


def test_a_state_of_one_plain_record_is_read() -> None:
    look(plain(META, meta()))
