"""Whoever may write to the alert topic or to a plain state can put anything there: it ends in names, not in a crash."""

from __future__ import annotations

import os
import zlib

import msgspec
import pytest

from stream_svt.errors import UnreadableState
from stream_svt.monitor import released
from stream_svt.protocol.sealing import Sealing
from stream_svt.protocol.state_records import META, OUTBOX, Chunk
from tests.simulation.log import PLACE, finish, holding, journal_of
from tests.support.alerts import encoded, lifecycle

DEEP = 60_000
FIRST = OUTBOX + b"0"
CHUNK = msgspec.msgpack.encode(Chunk([]))
TOLD = encoded(1, lifecycle("r", detail={"a": "%"}))
ALERTS = {
    "text that is no UTF-8": b'{"id":"\xff"}',
    "bytes": b"\xff",
    "deep": b"[" * DEEP,
    "deep data": b'{"data":' + b"[" * DEEP,
    "deep detail": TOLD.replace(b'"%"', b"[" * DEEP),
    "long number": TOLD.replace(b'"%"', b"9" * 5000),
}


@pytest.mark.parametrize("record", ALERTS.values(), ids=ALERTS)
def test_a_forged_alert_is_no_event_and_stops_no_takeover(record: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        released.decode(record)
    assert released.identity_of(record) == (0, "")


@pytest.mark.parametrize("number", [-1, 0, 1 << 63, (1 << 64) - 1])
def test_a_number_that_no_event_has_is_passed_over(number: int) -> None:
    data = lifecycle("r")
    assert released.identity_of(encoded(number, data)) == (0, "")
    assert released.identity_of(encoded(7, data)) == (7, "1-00000000000000aa")


def look(records: dict[bytes, bytes]) -> None:
    finish(journal_of(holding(records)).look())


def plain(key: bytes, content: bytes) -> dict[bytes, bytes]:
    return {key: Sealing(PLACE, (), os.urandom).seal(key, 1, content)}


def meta(**fields: object) -> bytes:
    keys = {"noise_key": bytes(32), "digest_key": bytes(32), "state_id": bytes(16)}
    whole = {"sequence": 1, "partitions": 1} | keys
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
FORGED = {name: (plain(META, content) | plain(b"d/a", b"x"), "shard 0") for name, content in CONTENTS.items()}
FORGED |= {f"outbox: {name}": (CHARGED | plain(FIRST, content), "ob/0") for name, content in OUTBOXES.items()}
FORGED["a key that is no text"] = plain(META, meta()) | plain(b"d/\xff", b"x"), "no text"
# What they are made from is read: only the digest is wrong here.
FORGED["none"] = CHARGED | plain(FIRST, zlib.compress(CHUNK)), "digest"


@pytest.mark.parametrize(("records", "said"), FORGED.values(), ids=FORGED)
def test_a_forged_plain_record_makes_the_state_unreadable(records: dict[bytes, bytes], said: str) -> None:
    with pytest.raises(UnreadableState, match=said):
        look(records)


def test_a_state_of_one_plain_record_is_read() -> None:
    look(plain(META, meta()))
