"""Whoever may write to the alert topic or to a plain state can put anything there: it ends in names, not in a crash."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stream_svt.errors import UnreadableState
from stream_svt.monitor import released
from stream_svt.protocol.journal import META, OUTBOX, Chunk, Journal, Meta, Topics
from stream_svt.protocol.sealing import Place, Sealing

PLACE = Place("cluster", "shop", "shop.state", 0)
DEEP = 60_000
CHUNK = msgspec.msgpack.encode(Chunk([]))
ALERTS = {
    "text that is no UTF-8": b'{"id":"\xff"}',
    "bytes": b"\xff",
    "deep": b"[" * DEEP,
    "deep data": b'{"data":' + b"[" * DEEP,
    "deep detail": b'{"specversion":"1.0","id":"a","source":"s","type":"t","subject":"s","time":"t","shard":0,'
    b'"sequence":1,"origin":"1-00000000000000aa","data":{"dataset":"a","monitor":"m","run":1,"reason":"r","account":null,"detail":{"a":'
    + b"["
    * DEEP,
    "long number": b'{"specversion":"1.0","id":"a","source":"s","type":"t","subject":"s","time":"t","shard":0,'
    b'"sequence":1,"origin":"1-00000000000000aa","data":{"dataset":"a","monitor":"m","run":1,"reason":"r","account":null,"detail":{"a":'
    + b"9" * 5000
    + b"}}}",
}


@pytest.mark.parametrize("record", ALERTS.values(), ids=ALERTS)
def test_a_forged_alert_is_no_event_and_stops_no_takeover(record: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        released.decode(record)
    assert released.identity_of(record) == (0, "")


@pytest.mark.parametrize("number", [-1, 0, 1 << 63, (1 << 64) - 1])
def test_a_number_that_no_event_has_is_passed_over(number: int) -> None:
    event = {
        "specversion": "1.0",
        "id": "a",
        "source": "s",
        "type": "io.stream-svt.monitor.paused.v1",
        "subject": "s",
        "time": "t",
        "shard": 0,
        "sequence": number,
        "origin": "1-00000000000000aa",
        "data": {"dataset": "a", "monitor": "m", "run": 1, "reason": "r", "account": None},
    }
    assert released.identity_of(msgspec.json.encode(event)) == (0, "")
    assert released.identity_of(msgspec.json.encode(event | {"sequence": 7})) == (7, "1-00000000000000aa")


@dataclass
class Shown:
    """A log that shows records and takes none."""

    records: dict[bytes, bytes]

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        del committed
        return self.records


async def look(records: dict[bytes, bytes]) -> None:
    shown: Any = Shown(records)
    topics = Topics("shop.state", "shop.alerts", "shop.rejects")
    journal = Journal(shown, PLACE, topics, partitions=1, entropy=os.urandom, epoch=lambda: 0.0)
    await journal.look()


def plain(key: bytes, content: bytes) -> dict[bytes, bytes]:
    return {key: Sealing(PLACE, (), os.urandom).seal(key, 1, content)}


def meta(**fields: object) -> bytes:
    whole = {
        "sequence": 1,
        "partitions": 1,
        "noise_key": bytes(32),
        "digest_key": bytes(32),
        "state_id": bytes(16),
    }
    return msgspec.msgpack.encode(whole | fields)


CONTENTS = {
    "no UTF-8": b"\x81\xa4\xff\xff\xff\xff\x01",
    "deep": b"\x81\xa1x" + b"\x91" * 100_000 + b"\x01",
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge bytes": b"\x81\xa8progress\xc6\xff\xff\xff\xff",
    "huge list": b"\x81\xa8commands\xdd\xff\xff\xff\xff",
    "many chunks": meta(chunks=10**12, charged=1),
    "negative chunks": meta(chunks=-1),
    "long digest key": meta(digest_key=bytes(65)),
    "short noise key": meta(noise_key=b""),
    "control beyond Kafka": meta(commands={"next": 1 << 63}),
    "a command number beyond all": meta(commands={"number": 1 << 63}),
    "long state id": meta(state_id=bytes(17)),
    "alerts beyond Kafka": meta(alert_offset=(1 << 64) - 1),
    "events beyond all": meta(last_event=(1 << 64) - 1),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
async def test_a_forged_plain_meta_is_an_unreadable_state(content: bytes) -> None:
    with pytest.raises(UnreadableState, match="shard 0"):
        await look(plain(META, content) | plain(b"d/a", b"x"))


@pytest.mark.parametrize(
    "content",
    [
        *map(zlib.compress, (CONTENTS["no UTF-8"], CONTENTS["deep"], b"\x91\x91\x93\x01\xa1\xff\xc4\x00")),
        CHUNK,
        zlib.compress(CHUNK)[:-1],
        zlib.compress(CHUNK) + b"more",
        zlib.compress(bytes(1 << 24)),
        b"",
    ],
    ids=[
        "no UTF-8",
        "deep",
        "no text",
        "not compressed",
        "cut",
        "with more behind it",
        "larger than any",
        "empty",
    ],
)
async def test_a_forged_plain_outbox_is_an_unreadable_state(content: bytes) -> None:
    first = OUTBOX + b"0"
    with pytest.raises(UnreadableState, match="ob/0"):
        await look(plain(META, meta(chunks=1, charged=1)) | plain(first, content))


async def test_a_key_that_is_no_text_makes_a_plain_state_unreadable() -> None:
    with pytest.raises(UnreadableState, match="no text"):
        await look(plain(META, meta()) | plain(b"d/\xff", b"x"))


async def test_what_these_forgeries_are_made_from_is_read() -> None:
    """Else the tests above could pass for another reason: only the digest is wrong here."""
    with pytest.raises(UnreadableState, match="digest"):
        await look(plain(META, meta(chunks=1, charged=1)) | plain(OUTBOX + b"0", zlib.compress(CHUNK)))
    assert msgspec.msgpack.decode(meta(), type=Meta).sequence == 1
    await look(plain(META, meta()))
