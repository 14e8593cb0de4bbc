"""Texts of many rows: decoded on access, because few rows need theirs, and hashed all at once.

**The hash** has 64 bits: the upper halves of two multilinear sums over 32-bit words (Lemire & Kaser 2014), with
multipliers from a secret key. Two different texts that were chosen without the key have the same hash with probability
2^-64 at most. The length of a text is one of its words, and the lack of a text counts as another text.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from struct import unpack
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Hashes: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]

_WORD: Final = 8
_KEEP: Final = np.array([(1 << 8 * kept) - 1 for kept in range(_WORD + 1)], dtype=np.uint64)
"""Mask of the first bytes of a word, by their number."""
_FEW: Final = 8
"""Texts that are hashed one by one: arrays cost as much."""
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(2**32 - 1)


class KeyedHash:
    """A hash of texts in UTF-8 under a secret key: see the module."""

    def __init__(self, key: bytes) -> None:
        self._stream = hashlib.shake_256(key)
        self._draw(32)

    def _draw(self, count: int) -> None:
        """Make so many multipliers of each sum; more of them begin with the same ones."""
        pairs = np.frombuffer(self._stream.digest(2 * _WORD * count), "<u8").reshape(count, 2)
        self._high, self._low = pairs.T.copy()
        self._both = [high << 128 | low for high, low in pairs.tolist()]

    def _need(self, words: int) -> None:
        if 2 + 2 * words > len(self._both):
            self._draw(4 + 4 * words)

    def of(self, text: bytes | None) -> int:
        """Return the hash of one text, or of the lack of one."""
        length, content = (0, b"") if text is None else (len(text) + 1, text)
        words = -(-len(content) // _WORD)
        self._need(words)
        halves = unpack(f"<{2 * words}I", content.ljust(_WORD * words, b"\0"))
        sums: int = sum(map(mul, self._both, (1, length, *halves)))
        return sums >> 128 & 0xFFFFFFFF00000000 | sums >> 32 & 0xFFFFFFFF

    def of_slices(self, buffer: bytes | bytearray, start: Integers, length: Integers) -> Hashes:
        """Return the hash of each slice of a buffer; a negative length stands for the lack of a text."""
        words = -(-int(length.max(initial=0)) // _WORD)
        self._need(words)
        size = (length + 1).view(np.uint64)
        high: Hashes = self._high[0] + self._high[1] * size
        low: Hashes = self._low[0] + self._low[1] * size
        for word in range(words):
            at = _WORD * word
            longer = np.flatnonzero(length > at)  # a long text costs the other rows nothing
            rows = longer if len(longer) < len(length) else slice(None)
            part = first_words(buffer, start[rows] + at, length[rows] - at)
            first, second = part & _LOW, part >> _HALF
            for total, factors in ((high, self._high), (low, self._low)):
                total[rows] += first * factors[2 + 2 * word] + second * factors[3 + 2 * word]
        high &= ~_LOW
        high |= low >> _HALF
        return high


class Texts(ABC):
    """Texts by row; None where a row has none."""

    __slots__ = ("_hashes", "_hashing")

    def __init__(self) -> None:
        self._hashing: KeyedHash | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, row: int, /) -> str | None: ...

    @abstractmethod
    def _hashed(self, hashing: KeyedHash) -> Hashes: ...

    def coded(self, first: int, last: int) -> tuple[Texts, Integers] | None:  # noqa: ARG002
        """Return entries and the code of each of rows [first, last), -1 for no text; None without a dictionary."""
        return None

    def hashes(self, hashing: KeyedHash) -> Hashes:
        """Return the hash of each row's text, kept for the next call."""
        if self._hashing is not hashing:
            self._hashing = hashing
            if len(self) <= _FEW:
                texts = [self[row] for row in range(len(self))]
                hashes = [hashing.of(None if text is None else text.encode()) for text in texts]
                self._hashes = np.array(hashes, dtype=np.uint64)
            else:
                self._hashes = self._hashed(hashing)
        return self._hashes


class TextList(Texts):
    """Texts in a list."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Sequence[str | None]) -> None:
        super().__init__()
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, row: int, /) -> str | None:
        return self._texts[row]

    def taken(self, rows: Integers) -> TextList:
        """Return the texts of some rows."""
        return TextList([self._texts[row] for row in rows.tolist()])

    def _hashed(self, hashing: KeyedHash) -> Hashes:
        encoded = [None if text is None else text.encode() for text in self._texts]
        return TextSlices.of(encoded).hashes(hashing)


class TextSlices(Texts):
    """Texts that are UTF-8 slices of a buffer; a length of -1 stands for none."""

    __slots__ = ("buffer", "length", "start")

    def __init__(self, buffer: bytes | bytearray, start: Integers, length: Integers) -> None:
        super().__init__()
        self.buffer, self.start, self.length = buffer, start, length

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> TextSlices:
        """Return texts in UTF-8 as slices of a new buffer."""
        length = np.fromiter((-1 if text is None else len(text) for text in texts), np.int64, len(texts))
        size = np.maximum(length, 0)
        return cls(b"".join([text or b"" for text in texts]), np.cumsum(size) - size, length)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, row: int, /) -> str | None:
        start, length = self.start.item(row), self.length.item(row)
        return None if length < 0 else self.buffer[start : start + length].decode()

    def taken(self, rows: Integers) -> TextSlices:
        """Return the texts of some rows."""
        return TextSlices(self.buffer, self.start[rows], self.length[rows])

    def same(self, others: TextSlices) -> Mask:
        """Return whether each row's text equals that of ``others`` at the same index."""
        length = self.length
        same: Mask = length == others.length
        left: Integers | slice = slice(None)
        at = 0
        while True:
            part = length[left] - at
            mine, theirs = (
                first_words(one.buffer, np.asarray(one.start[left], np.int64) + at, part)
                for one in (self, others)
            )
            same[left] &= mine == theirs
            at += _WORD
            left = np.flatnonzero(same & (length > at))
            if not len(left):
                return same

    def _hashed(self, hashing: KeyedHash) -> Hashes:
        start, length = (column.astype(np.int64, copy=False) for column in (self.start, self.length))
        return hashing.of_slices(self.buffer, start, length)


class TextCodes(Texts):
    """Texts that are entries of a dictionary, by code; a code of -1 stands for none."""

    __slots__ = ("_codes", "_entries")

    def __init__(self, entries: Texts, codes: Integers) -> None:
        super().__init__()
        self._entries, self._codes = entries, codes

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, row: int, /) -> str | None:
        code = self._codes.item(row)
        return None if code < 0 else self._entries[code]

    def coded(self, first: int, last: int) -> tuple[Texts, Integers]:
        """See `Texts`."""
        return self._entries, self._codes[first:last]

    def _hashed(self, hashing: KeyedHash) -> Hashes:
        return np.append(self._entries.hashes(hashing), np.uint64(hashing.of(None)))[self._codes]


class TextParts(Texts):
    """The texts of consecutive parts."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Texts]) -> None:
        super().__init__()
        self._parts = parts
        self._ends = [*accumulate(map(len, parts))]

    @classmethod
    def of(cls, parts: Sequence[Texts], rows: Sequence[int]) -> TextParts:
        """Return the texts of parts with that many rows; a part without any texts has none in each row."""
        nothing = TextList(())
        return cls(
            [
                part if len(part) else TextCodes(nothing, np.full(count, -1, np.int64))
                for part, count in zip(parts, rows, strict=True)
            ]
        )

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, row: int, /) -> str | None:
        part, begin = self._part_of(row)
        return self._parts[part][row - begin]

    def _part_of(self, row: int) -> tuple[int, int]:
        """Return the number of the part with a row, and the first row of that part."""
        part = bisect_right(self._ends, row)
        return part, self._ends[part - 1] if part else 0

    def coded(self, first: int, last: int) -> tuple[Texts, Integers] | None:
        """See `Texts`."""
        part, begin = self._part_of(first)
        return self._parts[part].coded(first - begin, last - begin) if last <= self._ends[part] else None

    def _hashed(self, hashing: KeyedHash) -> Hashes:
        return np.concatenate([part.hashes(hashing) for part in self._parts])


def words_at(buffer: bytes | bytearray | NDArray[np.bool_], at: Integers, count: int = 1) -> Hashes:
    """Return ``count`` words of eight bytes from each index, shape (len(at), count), or (len(at),) for one."""
    size = _WORD * count
    windows = np.ndarray((len(buffer) - size + 1,), dtype=f"V{size}", buffer=buffer, strides=(1,))
    found = windows[at].view("<u8")
    return found if count == 1 else found.reshape(len(at), count)


def first_words(buffer: bytes | bytearray, start: Integers, length: Integers) -> Hashes:
    """Return the first eight bytes of each slice of a buffer as a number, zeros behind a shorter one."""
    if len(buffer) < _WORD:
        buffer = bytes(buffer) + bytes(_WORD)
    last = len(buffer) - _WORD
    found = words_at(buffer, np.minimum(start, last))
    if len(late := np.flatnonzero(start > last)):
        found[late] >>= (8 * (start[late] - last)).view(np.uint64)
    found &= _KEEP[np.minimum(np.maximum(length, 0), _WORD)]
    return found
