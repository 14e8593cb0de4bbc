"""Bytes of many messages with a margin on both sides, and what stands at many places of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.strings import words_at

Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Words: TypeAlias = NDArray[np.uint64]
Characters: TypeAlias = NDArray[np.uint8]

MARGIN: Final = 1024
"""Bytes before the first message and behind the last one: quotes, where every text ends."""
_MARGIN_TEXT: Final = b'"' * MARGIN
_FIRST_MARK: Final = np.uint64(0x0001020304050607)
"""Times 256^k, its highest byte is k, for k from 0 to 7."""
_HIGHEST: Final = np.uint64(56)
_AT_ONCE: Final = 1 << 17
_LARGEST_CHARACTER: Final = 4
_STEP: Final = 16
_EIGHT: Final = np.uint64(8)


class ByteBuffer:
    """Some bytes, with margins; an index counts from the beginning of the first margin."""

    def __init__(self, *parts: bytes | memoryview) -> None:
        self.text = b"".join([_MARGIN_TEXT, *parts, _MARGIN_TEXT])
        self.characters = np.frombuffer(self.text, np.uint8)
        self._marked_bytes: dict[int, Integers] = {}

    def words(self, at: Integers, count: int = 1) -> Words:
        """Return `words_at` some indexes."""
        return words_at(self.text, at, count)

    @cached_property
    def text_ends(self) -> Mask:
        """Mask of the bytes that a JSON text of plain ASCII has not inside: quotes among them."""
        return self._marked(_text_ends)

    @cached_property
    def unicode_ends(self) -> Mask:
        """Mask of the bytes that a JSON text in UTF-8 has not inside: what is no UTF-8 is among them."""
        return self._marked(_unicode_ends)

    @cached_property
    def no_digits(self) -> Mask:
        """Mask of the bytes that are no digits."""
        found: Mask = self.characters - np.uint8(ord("0")) > 9
        return found

    @cached_property
    def number_ends(self) -> Mask:
        """Mask of the bytes that no JSON number has inside."""
        return ~_IN_NUMBERS[self.characters]

    def _marked(self, marks: Callable[[Characters], Mask]) -> Mask:
        """Return the marks of all bytes, made of some at a time, which fit in a processor's cache."""
        found = np.empty(len(self.characters), np.bool_)
        for first in range(0, len(found), _AT_ONCE):
            before = min(first, _LARGEST_CHARACTER)
            part = marks(self.characters[first - before : first + _AT_ONCE + _LARGEST_CHARACTER])
            found[first : first + _AT_ONCE] = part[before : before + _AT_ONCE]
        return found

    def distance(self, marks: Mask, at: Integers, *, backwards: bool = False) -> Integers:
        """Return how many bytes from each index on, or before it, have no mark; the margins have some."""
        found, is_open = self.near(marks, at, backwards=backwards)
        if len(rows := np.flatnonzero(is_open)):
            far = at[rows]
            if (marked := self._marked_bytes.get(id(marks))) is None:
                marked = self._marked_bytes[id(marks)] = np.flatnonzero(marks)
            behind = np.searchsorted(marked, far)
            found[rows] = far - 1 - marked[behind - 1] if backwards else marked[behind] - far
        return found

    @staticmethod
    def near(marks: Mask, at: Integers, *, backwards: bool = False) -> tuple[Integers, Mask]:
        """Return how many of the next 16 bytes come before a mark, 16 where none has one, and a mask of these."""
        words = words_at(marks, at - _STEP if backwards else at, 2)
        return _before_first(words.byteswap()[:, ::-1] if backwards else words)

    def points(self, at: Integers) -> Integers:
        """Return how many of the next 16 bytes come before a point, 16 where none is one."""
        is_point = self.words(at, 2).view(np.uint8) == ord(".")
        return _before_first(is_point.view(np.uint64))[0]


def _before_first(words: Words) -> tuple[Integers, Mask]:
    """Return how many of the 16 bytes of two words come before a mark, 16 where none is one, and a mask of these."""
    first, second = np.ascontiguousarray((words & -words).T)
    is_open = first == 0
    found = ((first * _FIRST_MARK) >> _HIGHEST) + is_open * (((second * _FIRST_MARK) >> _HIGHEST) + _EIGHT)
    is_open &= second == 0
    found += is_open * _EIGHT
    return found.view(np.int64), is_open


_IN_NUMBERS: Final = np.isin(np.arange(256), list(b"+-.0123456789Ee"))


def _text_ends(text: Characters) -> Mask:
    found: Mask = text - np.uint8(0x20) >= 0x60
    found |= text == ord('"')
    found |= text == ord("\\")
    return found


def _unicode_ends(text: Characters) -> Mask:
    found = _no_utf8(text)
    found |= text < 0x20
    found |= text == ord('"')
    found |= text == ord("\\")
    return found


def _no_utf8(text: Characters) -> Mask:
    """Return a mask of the bytes that are part of no character (RFC 3629, section 4); the last three must be ASCII."""
    size = len(text) - 3
    first, second = text[:size], text[1 : size + 1]
    is_rest = (text & 0xC0) == 0x80
    of_four = (first - np.uint8(0xF0) < 5) & is_rest[1 : size + 1] & is_rest[2 : size + 2] & is_rest[3:]
    of_four &= ((first != 0xF0) | (second >= 0x90)) & ((first != 0xF4) | (second < 0x90))
    of_three = ((first & 0xF0) == 0xE0) & is_rest[1 : size + 1] & is_rest[2 : size + 2]
    of_three &= ((first != 0xE0) | (second >= 0xA0)) & ((first != 0xED) | (second < 0xA0))
    of_two = (first - np.uint8(0xC2) < 0x1E) & is_rest[1 : size + 1]
    found = text >= 0x80
    for behind, begins in enumerate(
        (of_two | of_three | of_four, of_two | of_three | of_four, of_three | of_four, of_four)
    ):
        found[behind : size + behind] &= ~begins
    return found


class Literal:
    """Fixed bytes that are compared at many places at once."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._parts: list[tuple[int, Words, Words]] = []
        for start in range(0, len(content), 24):
            part = content[start : start + 24]
            count = -(-len(part) // 8)
            words, masks = (
                np.frombuffer(one.ljust(8 * count, b"\0"), np.uint64) for one in (part, b"\xff" * len(part))
            )
            self._parts.append((start, words, masks))

    def difference(self, text: ByteBuffer, at: Integers) -> Words:
        """Return for each index a word that is zero where these bytes stand."""
        total = np.zeros(len(at), np.uint64)
        for start, words, masks in self._parts:
            found = text.words(at + start if start else at, len(words)).reshape(len(at), len(words))
            for column in range(len(words)):
                differs = found[:, column] ^ words[column]
                differs &= masks[column]
                total |= differs
        return total
