"""Records that were made to hurt: a worker names them and reads on, and so does the one after it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stream_svt.protocol.controls import Controls
from stream_svt.protocol.sealing import Place
from stream_svt.service.signatures import HEADER, Refusal, Verifier, shared_key

PLACE = Place("cluster", "shop", "shop.control", 0)


@dataclass
class Record:
    """What a shard sees of a Kafka record."""

    offset: int
    key: bytes | None = b"a"
    value: bytes | None = b"{}"
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (((HEADER, None),), Refusal.BAD_SIGNATURE),
        (((HEADER, b""),), Refusal.BAD_SIGNATURE),
        (((HEADER, None), (HEADER, None)), Refusal.BAD_SIGNATURE),
        ((("", None),), Refusal.UNSIGNED),
        ((("\ufffd", None), (HEADER.upper(), b"x")), Refusal.UNSIGNED),
    ],
)
def test_a_command_with_an_odd_header_is_refused_by_name(
    headers: tuple[tuple[str, bytes | None], ...], reason: str
) -> None:
    controls = Controls(0, verify=Verifier(PLACE, [shared_key(bytes(range(32)))[1]]))
    assert controls.add([Record(0, headers=headers)]) == [(0, reason)]
