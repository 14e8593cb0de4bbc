"""The hash of units: equal to a CBC-MAC that is computed for one unit at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from stream_svt.sources import units
from stream_svt.sources.units import HASH_BITS, UnitHash

KEY = bytes(range(16))
MARGIN = 1024
EDGES = [1, 2, 13, 14, 15, 16, 29, 30, 31, 1023, 1024]


def slow_hash(key: bytes, unit: bytes) -> int:
    message = len(unit).to_bytes(2, "little") + unit
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    mac = encryptor.update(message + bytes(-len(message) % 16))[-16:]
    return int.from_bytes(mac, "little") % 2**HASH_BITS


def hashes(key: bytes, texts: list[bytes], margin: bytes = b"") -> list[int]:
    length = np.array([len(text) for text in texts], np.int64)
    start = length.cumsum() - length + len(margin)
    return UnitHash(key).of(margin + b"".join(texts) + margin, start, length).tolist()


def test_the_hash_is_a_cbc_mac_for_every_length():
    chance = random.Random(1)
    texts = [chance.randbytes(length) for length in range(1, 1025)]
    assert hashes(KEY, texts) == [slow_hash(KEY, text) for text in texts]


@pytest.mark.parametrize(
    "margin", [b"", b"\xff", bytes(MARGIN), b"\xff" * MARGIN], ids=["", "1", "0s", "ones"]
)
def test_units_of_many_lengths_in_any_order_are_hashed_as_if_alone(margin: bytes):
    chance = random.Random(2)
    lengths = chance.choices([*EDGES, *range(1, 40)], k=2000)
    texts = [chance.randbytes(length) for length in lengths]
    assert hashes(KEY, texts, margin) == [hashes(KEY, [text])[0] for text in texts]


def test_more_units_than_are_hashed_at_once_are_hashed_alike(monkeypatch: pytest.MonkeyPatch):
    texts = [b"user-%d" % number for number in range(1000)]
    want = hashes(KEY, texts)
    for at_once in (1, 7, 999, 1000):
        monkeypatch.setattr(units, "_AT_ONCE", at_once)
        assert hashes(KEY, texts) == want


def test_units_that_overlap_or_stand_in_other_order_are_read_where_they_are():
    buffer, start, length = b"abcabcab", np.array([3, 0, 1, 5]), np.array([3, 3, 1, 3])
    want = [slow_hash(KEY, buffer[at : at + size]) for at, size in zip(start, length, strict=True)]
    assert UnitHash(KEY).of(buffer, start, length).tolist() == want
    assert want[0] == want[1]


def test_bytes_around_a_unit_do_not_change_its_hash():
    alone = hashes(KEY, [b"alice"])[0]
    for before, behind in ((b"", b"\0"), (b"\xff\xff", b"\xff" * 20), (b"\x05\0", b"alice")):
        found = UnitHash(KEY).of(before + b"alice" + behind, np.array([len(before)]), np.array([5]))
        assert found.tolist() == [alone]


def test_a_unit_and_its_beginning_or_zeros_behind_it_differ():
    texts = [b"a" * length for length in range(1, 65)] + [b"a" + bytes(zeros) for zeros in range(1, 64)]
    assert len(set(hashes(KEY, texts))) == len(texts)


def test_other_keys_give_other_hashes():
    texts = [b"user-%d" % number for number in range(200)]
    other = bytes(15) + b"\1"
    assert not set(hashes(bytes(16), texts)) & set(hashes(other, texts))


def test_hashes_have_44_bits_that_are_all_used():
    found = hashes(KEY, [b"user-%d" % number for number in range(2000)])
    ones = np.array([[hashed >> bit & 1 for bit in range(HASH_BITS)] for hashed in found]).mean(axis=0)
    assert max(found) < 2**HASH_BITS
    assert (abs(ones - 0.5) < 0.06).all()  # five standard deviations


def test_no_units_have_no_hashes():
    none = np.zeros(0, np.int64)
    assert UnitHash(KEY).of(b"", none, none).tolist() == []


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a key of units has 16 bytes, this one has 32"):
        UnitHash(bytes(32))
