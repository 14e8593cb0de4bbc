"""The hash of units: AES-128 in CBC-MAC mode with the length in the first block, over many units at once.

The first block is the unit's length in two bytes and its first 14 bytes; the blocks behind have 16 bytes each, and
zeros fill the last one. So no message is the beginning of another, and under a secret key the hash is a pseudorandom
function: without the key nobody finds two units of one hash on purpose. Under one key the hash of a unit never changes:
a window whose units were hashed in two ways would count them twice.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from stream_svt.columns.strings import Hashes, Integers, words_at

KEY_BYTES: Final = 16
HASH_BITS: Final = 44
_BLOCK: Final = 16
_LENGTH_BYTES: Final = 2
HASH: Final = np.uint64(2**HASH_BITS - 1)
"""The bits of a hash."""
_CONTENT: Final = np.uint64(2**64 - 2 ** (8 * _LENGTH_BYTES))
_AT_ONCE: Final = 1 << 13
"""Units whose blocks fit a processor's own cache."""
_KEEP: Final = np.array(
    [[(1 << 8 * min(kept, 8)) - 1, (1 << 8 * max(kept - 8, 0)) - 1] for kept in range(_BLOCK + 1)], np.uint64
)
"""Masks of the first bytes of a block, by their number."""


class UnitHash:
    """The hash of units under one key of 16 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of units has {KEY_BYTES} bytes, this one has {len(key)}")
        self._cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - the MAC's permutation

    def of(self, buffer: bytes, start: Integers, length: Integers) -> Hashes:
        """Return the hashes of units, 44 bits each.

        Args:
            buffer: Bytes with the text of all units, in UTF-8. It is copied where a unit stands within 2 bytes of its
                begin or 16 of its end, and used as it is where it has a margin.
            start, length: Where each unit begins, and its bytes: at most 65,535.
        """
        hashes = np.empty(len(start), np.uint64)
        if not len(start):
            return hashes
        if int(start.min()) < _LENGTH_BYTES or int((start + length).max()) + _BLOCK > len(buffer):
            buffer, start = bytes(_LENGTH_BYTES) + buffer + bytes(_BLOCK), start + _LENGTH_BYTES
        at = start - _LENGTH_BYTES
        for first in range(0, len(at), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            self._some(buffer, at[some], length[some], hashes[some])
        return hashes

    def _some(self, buffer: bytes, at: Integers, length: Integers, hashes: Hashes) -> None:
        """Put the hashes of at most `_AT_ONCE` units in place; ``at`` is where their first blocks begin."""
        rows, size = np.arange(len(at)), length + _LENGTH_BYTES
        block = _blocks(buffer, at, size)
        block[:, 0] &= _CONTENT
        block[:, 0] |= length.view(np.uint64)
        output = bytearray(_BLOCK * len(at) + _BLOCK - 1)  # update_into requires 15 bytes beyond the output
        bits = np.frombuffer(output, "<u8", 2 * len(at)).reshape(-1, 2)
        while True:
            self._cipher.update_into(block.data.cast("B"), output)
            state = bits[: len(block)]
            goes_on = size > _BLOCK
            if not goes_on.all():
                hashes[rows] = state[:, 0] & HASH  # those that go on are put again
                if not goes_on.any():
                    return
                rows, at, size, state = rows[goes_on], at[goes_on], size[goes_on], state[goes_on]
            at, size = at + _BLOCK, size - _BLOCK
            block = _blocks(buffer, at, size)
            block ^= state


def _blocks(buffer: bytes, at: Integers, size: Integers) -> Hashes:
    """Return the blocks at some places, zeros behind those whose rest is shorter, as two words each."""
    blocks = words_at(buffer, at, 2)
    if int(size.min()) < _BLOCK:
        blocks &= _KEEP[np.minimum(size, _BLOCK)]
    return blocks
