"""Texts of many rows: decoded on access, because few rows need theirs, and hashed all at once.

The hash finds candidates only, and names decide: outcomes do not depend on it, because it differs between processes. It
is multilinear over 32-bit words (Lemire & Kaser 2014), with multipliers from Python's secret hash seed: no choice of
texts makes many of them collide.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from operator import mul
from struct import unpack
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Hashes: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]

_WORD: Final = 8
_KEEP: Final = np.array([(1 << 8 * kept) - 1 for kept in range(_WORD + 1)], dtype=np.uint64)
"""Mask of the first bytes of a word, by their number."""
_FEW: Final = 50
"""Rows of a part below which, on average, they are compared one by one: arrays cost as much for each part."""
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(2**32 - 1)
_ALL: Final = 2**64 - 1


class Texts(Protocol):
    """Texts by row; None where a row has none."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> str | None: ...

    def hashes(self) -> Hashes:
        """Return a hash of each row's text; equal texts have equal hashes, and no text has that of another's lack."""

    def same(self, rows: Integers, others: TextSlices, /) -> Mask:
        """Return whether the text of each of these rows is that of the row of ``others``, which has as many texts."""

    def coded(self, first: int, last: int) -> tuple[Texts, Integers | None]:
        """Return entries and the code of each of rows [first, last), -1 for no text; None if each has its own entry."""


class TextRows:
    """The texts of rows [first, last) of others."""

    __slots__ = ("_first", "_last", "_texts")

    def __init__(self, texts: Texts, first: int, last: int) -> None:
        self._texts, self._first, self._last = texts, first, last

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, row: int, /) -> str | None:
        return self._texts[self._first + row]

    def same(self, rows: Integers, others: TextSlices, /) -> Mask:
        """See `Texts`."""
        return self._texts.same(rows + self._first, others)

    def coded(self, first: int, last: int) -> tuple[Texts, Integers | None]:
        """See `Texts`."""
        return self._texts.coded(self._first + first, self._first + last)

    def hashes(self) -> Hashes:
        """See `Texts`."""
        return self._texts.hashes()[self._first : self._last]


class TextList:
    """Texts in a list."""

    __slots__ = ("_hashes", "_texts")

    def __init__(self, texts: Sequence[str | None]) -> None:
        self._texts = texts
        self._hashes: Hashes | None = None

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, row: int, /) -> str | None:
        return self._texts[row]

    def taken(self, rows: Integers) -> TextList:
        """Return the texts of some rows."""
        return TextList([self._texts[row] for row in rows.tolist()])

    def same(self, rows: Integers, others: TextSlices, /) -> Mask:
        """See `Texts`."""
        return _same_each(self, rows, others)

    def coded(self, first: int, last: int) -> tuple[Texts, None]:
        """See `Texts`."""
        return TextRows(self, first, last), None

    def hashes(self) -> Hashes:
        """See `Texts`."""
        if self._hashes is None:
            self._hashes = TextSlices.of(
                [None if text is None else text.encode() for text in self._texts]
            ).hashes()
        return self._hashes


class TextSlices:
    """Texts that are UTF-8 slices of a buffer; a length of -1 stands for none."""

    __slots__ = ("_hashes", "buffer", "length", "start")

    def __init__(self, buffer: bytes | bytearray, start: Integers, length: Integers) -> None:
        self.buffer, self.start, self.length = buffer, start, length
        self._hashes: Hashes | None = None

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

    def same(self, rows: Integers, others: TextSlices, /) -> Mask:
        """See `Texts`."""
        texts = self.taken(rows)
        length = texts.length
        same: Mask = length == others.length
        left: Integers | slice = slice(None)
        at = 0
        while True:
            part = length[left] - at
            mine, theirs = (
                first_words(one.buffer, np.asarray(one.start[left], np.int64) + at, part)
                for one in (texts, others)
            )
            same[left] &= mine == theirs
            at += _WORD
            left = np.flatnonzero(same & (length > at))
            if not len(left):
                return same

    def coded(self, first: int, last: int) -> tuple[Texts, None]:
        """See `Texts`."""
        return TextRows(self, first, last), None

    def hashes(self) -> Hashes:
        """See `Texts`."""
        if self._hashes is None:
            start, length = (column.astype(np.int64, copy=False) for column in (self.start, self.length))
            self._hashes = hashes_of(self.buffer, start, length)
        return self._hashes


class TextCodes:
    """Texts that are entries of a dictionary, by code; a code of -1 stands for none."""

    __slots__ = ("_codes", "_entries", "_hashes")

    def __init__(self, entries: Texts, codes: Integers) -> None:
        self._entries, self._codes = entries, codes
        self._hashes: Hashes | None = None

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, row: int, /) -> str | None:
        code = self._codes.item(row)
        return None if code < 0 else self._entries[code]

    def same(self, rows: Integers, others: TextSlices, /) -> Mask:
        """See `Texts`."""
        codes = self._codes[rows]
        same: Mask = (codes < 0) & (others.length < 0)
        coded = np.flatnonzero(codes >= 0)
        same[coded] = self._entries.same(codes[coded], others.taken(coded))
        return same

    def coded(self, first: int, last: int) -> tuple[Texts, Integers]:
        """See `Texts`."""
        return self._entries, self._codes[first:last]

    def hashes(self) -> Hashes:
        """See `Texts`."""
        if self._hashes is None:
            self._hashes = np.append(self._entries.hashes(), hashes_of(b"", _NONE, _NONE))[self._codes]
        return self._hashes


class TextParts:
    """The texts of consecutive parts."""

    __slots__ = ("_ends", "_hashes", "_parts")

    def __init__(self, parts: Sequence[Texts]) -> None:
        self._parts = parts
        self._hashes: Hashes | None = None
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
        part = bisect_right(self._ends, row)
        return self._parts[part][row - self._begin(part)]

    def same(self, rows: Integers, others: TextSlices, /) -> Mask:
        """See `Texts`."""
        part = np.searchsorted(self._ends, rows, side="right")
        numbers, counts = np.unique(part, return_counts=True)
        if len(rows) <= _FEW * len(numbers):
            return _same_each(self, rows, others)
        same = np.zeros(len(rows), np.bool_)
        of_parts = np.split(np.argsort(part, kind="stable"), np.cumsum(counts)[:-1])
        for number, own in zip(numbers.tolist(), of_parts, strict=True):
            same[own] = self._parts[number].same(rows[own] - self._begin(number), others.taken(own))
        return same

    def coded(self, first: int, last: int) -> tuple[Texts, Integers | None]:
        """See `Texts`."""
        part = bisect_right(self._ends, first)
        if first < last <= self._ends[part]:
            begin = self._begin(part)
            return self._parts[part].coded(first - begin, last - begin)
        return TextRows(self, first, last), None

    def _begin(self, part: int) -> int:
        return self._ends[part - 1] if part else 0

    def hashes(self) -> Hashes:
        """See `Texts`."""
        if self._hashes is None:
            self._hashes = np.concatenate([part.hashes() for part in self._parts])
        return self._hashes


def _same_each(texts: Texts, rows: Integers, others: TextSlices) -> Mask:
    """Return whether the text of each row is that of the row of ``others``, compared one by one."""
    pairs = zip(rows.tolist(), range(len(others)), strict=True)
    return np.fromiter((texts[row] == others[other] for row, other in pairs), np.bool_, len(rows))


_NONE: Final = np.array([-1], dtype=np.int64)


def hashes_of(buffer: bytes | bytearray, start: Integers, length: Integers) -> Hashes:
    """Return the hash of each slice of a buffer; a negative length stands for no text."""
    found = (length.view(np.uint64) + np.uint64(1)) * np.uint64(_multipliers(1)[0])
    longest = int(length.max(initial=0))
    if longest <= 0:
        return found
    words = -(-longest // _WORD)
    multipliers = np.array(_multipliers(1 + 2 * words), dtype=np.uint64)
    for word in range(words):
        at = _WORD * word
        # A long text costs the other rows nothing.
        rows = slice(None) if not word else np.flatnonzero(length > at)
        left = length[rows] - at
        part = first_words(buffer, np.where(left > 0, start[rows] + at, 0), left)
        found[rows] += (part & _LOW) * multipliers[1 + 2 * word] + (part >> _HALF) * multipliers[2 + 2 * word]
    return found


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


def hash_of(text: bytes) -> int:
    """Return the hash of one text in UTF-8: `hashes_of` for a single one, without arrays."""
    count = 2 * -(-len(text) // _WORD)
    words = unpack(f"<{count}I", text.ljust(4 * count, b"\0"))
    found: int = sum(map(mul, _multipliers(1 + count), (len(text) + 1, *words)))
    return found & _ALL


@cache
def _multipliers(count: int) -> tuple[int, ...]:
    return tuple(hash(f"multiplier {number} of stream_svt") & _ALL for number in range(count))
