"""What anybody who may write to the alert topic or to a plain state can put there."""

from __future__ import annotations

import msgspec

from tests.support.alerts import encoded, lifecycle

DEEP = 60_000
TOLD = encoded(1, lifecycle("r", detail={"a": "%"}))
ALERTS = {
    "text that is no UTF-8": b'{"id":"\xff"}',
    "bytes": b"\xff",
    "deep": b"[" * DEEP,
    "deep data": b'{"data":' + b"[" * DEEP,
    "deep detail": TOLD.replace(b'"%"', b"[" * DEEP),
    "long number": TOLD.replace(b'"%"', b"9" * 5000),
}


def meta(**fields: object) -> bytes:
    """Return the record of the whole state; ``fields`` replace or add some."""
    keys = {"noise_key": bytes(32), "digest_key": bytes(32), "state_id": bytes(16)}
    whole = {"sequence": 1, "partitions": 1, "partitioner": "murmur2"} | keys
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
