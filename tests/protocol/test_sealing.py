"""A state record opens only as what it is, where it belongs."""

from __future__ import annotations

import dataclasses
import itertools
import os

import pytest

from stream_svt.errors import MisuseError, UnreadableState
from stream_svt.protocol.sealing import RecordContext, Sealing, proof_checker

CONTEXT = RecordContext(cluster="c1", application="shop", topic="shop.state", shard=3)
OLD, NEW = bytes(range(32)), bytes(range(1, 33))


def sealing_with(masters: tuple[bytes, ...]) -> Sealing:
    return Sealing(CONTEXT, masters, os.urandom)


@pytest.fixture(params=[(), (OLD,)], ids=["plain", "sealed"])
def masters(request: pytest.FixtureRequest) -> tuple[bytes, ...]:
    return request.param


@pytest.fixture
def sealing(masters: tuple[bytes, ...]) -> Sealing:
    return sealing_with(masters)


def test_every_changed_byte_and_every_truncation_is_found_and_the_key_named(sealing: Sealing) -> None:
    record = sealing.seal(b"d/x", 7, b"content")
    for index in range(len(record)):
        broken = record[:index] + bytes([record[index] ^ 1]) + record[index + 1 :]
        with pytest.raises(UnreadableState, match="'d/x'"):
            sealing.open(b"d/x", broken)
        with pytest.raises(UnreadableState):
            sealing.open(b"d/x", record[:index])


@pytest.mark.parametrize(
    "foreign", [{"cluster": "c2"}, {"application": "sho"}, {"topic": "pshop.state"}, {"shard": 2}], ids=str
)
def test_a_record_from_elsewhere_does_not_open(sealing, masters, foreign):
    record = Sealing(dataclasses.replace(CONTEXT, **foreign), masters, os.urandom).seal(b"d/x", 7, b"content")
    with pytest.raises(UnreadableState, match="was written under another key, shard or cluster"):
        sealing.open(b"d/x", record)
    with pytest.raises(UnreadableState, match="'d/y'"):
        sealing.open(b"d/y", sealing.seal(b"d/x", 7, b"content"))


def test_a_rotated_key_still_opens_and_the_new_one_seals() -> None:
    record = sealing_with((OLD,)).seal(b"d/x", 7, b"content")
    both = sealing_with((NEW, OLD))
    assert both.open(b"d/x", record).key_id != both.key_id
    assert both.open(b"d/x", both.seal(b"d/x", 8, b"")).key_id == both.key_id == sealing_with((NEW,)).key_id


def test_a_missing_key_is_named_with_the_remedy() -> None:
    sealing = sealing_with((OLD,))
    with pytest.raises(UnreadableState, match=rf"{sealing.key_id}.*an older key's file"):
        sealing_with((NEW,)).open(b"d/x", sealing.seal(b"d/x", 7, b"content"))
    with pytest.raises(UnreadableState, match=r"configured: none; name .* in sealing\.keys"):
        sealing_with(()).open(b"d/x", sealing.seal(b"d/x", 7, b"content"))


def test_each_tenure_and_each_record_is_sealed_differently() -> None:
    records = [
        s.seal(b"d/x", 7, b"content") for s in (sealing_with((OLD,)), sealing_with((OLD,))) for _ in "ab"
    ]
    for one, other in itertools.combinations(records, 2):
        assert one[-23:] != other[-23:]
    assert records[0][18:34] == records[1][18:34] != records[2][18:34]


def test_a_key_of_another_length_is_refused() -> None:
    for master in (b"", bytes(16)):
        for use in (sealing_with, proof_checker):
            with pytest.raises(MisuseError, match=f"32 bytes, this one has {len(master)}"):
                use((master,))
