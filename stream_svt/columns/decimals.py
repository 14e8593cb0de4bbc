"""Exact conversion of JSON tokens and arrays to numbers, in time that does not depend on the values.

A number is two columns: `whole`, its floor, and `fraction`, the number minus its floor in units of 10^-18, rounded
down. Every value takes the same steps, with or without a fraction, because the duration of a batch can be observed.
Tokens of another form (``1e3``, ``null``, more than 16 digits before the point or 24 after it) are converted one by
one, exactly; they do not change the steps of the other tokens of their batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from stream_svt.columns.byte_buffer import MARGIN, ByteBuffer, Integers, Mask, Words
from stream_svt.mechanisms.grid import PARTS
from stream_svt.mechanisms.grid import WHOLE_LIMIT as LIMIT

Columns: TypeAlias = tuple[Integers, Integers]
"""Whole part and fraction of each row."""

NO_NUMBER = (-LIMIT, 0)
"""Whole part and fraction of a value that is not a number: no monitor has a lower bound below it."""

_TINY = Decimal("1e-400")
"""Replaces every non-zero number too small for a double: its floor on a grid is the same."""

CHUNK = 8192
"""Tokens converted at a time: their arrays fit in a processor's cache."""

SINGLES = 32
"""Tokens that are converted without arrays."""

_FLOOR = Context(prec=60, rounding=ROUND_FLOOR)
"""More digits than a number below `LIMIT` has in units of 10^-18."""


def number(token: bytes) -> Decimal | None:
    """Return the number of a valid JSON token, infinite where a double is, None where it is not a number."""
    if not token or token[0] not in b"-0123456789":
        return None
    size = float(token)
    if math.isinf(size):
        return Decimal(size)  # outside every grid; the sign decides the side
    if abs(size) < 1e-300:
        mantissa = token.lower().partition(b"e")[0]
        return Decimal(0) if not mantissa.strip(b"-0.") else _TINY.copy_sign(Decimal(size))
    return Decimal(token.decode("ascii"))


def split(value: Decimal | None) -> tuple[int, int]:
    """Return whole part and fraction of one number; both saturate where the whole part reaches 2**62 in size."""
    if value is None:
        return NO_NUMBER
    if not -LIMIT < value < LIMIT:
        return (LIMIT if value > 0 else -LIMIT), 0
    scaled = value.scaleb(18, context=_FLOOR).to_integral_value(ROUND_FLOOR)
    return divmod(int(scaled), PARTS)


def columns(tokens: Sequence[Raw | bytes]) -> Columns:
    """Return whole parts and fractions of JSON tokens."""
    rows = len(tokens)
    if rows <= SINGLES:
        found = np.array([single(bytes(token)) for token in tokens], np.int64).reshape(rows, 2)
        return found[:, 0], found[:, 1]
    whole, fraction = np.empty(rows, np.int64), np.empty(rows, np.int64)
    for first in range(0, rows, CHUNK):
        part = tokens[first : first + CHUNK]
        text = ByteBuffer(*part)
        stop = np.cumsum(np.fromiter(map(len, part), np.int64, len(part))) + MARGIN
        start = np.concatenate([[MARGIN], stop[:-1]])
        here = slice(first, first + len(part))
        whole[here], fraction[here], odd = plain(text, start, stop)
        for row in np.flatnonzero(odd).tolist():
            whole[first + row], fraction[first + row] = single(bytes(part[row]))
    return whole, fraction


def single(token: bytes) -> tuple[int, int]:
    """Return whole part and fraction of a JSON token: all plain numbers are converted in the same steps."""
    minus = token[:1] == b"-"
    head, point, tail = token[minus:].partition(b".")
    digits = head.rjust(_BEFORE, b"0") + tail.ljust(_BEHIND, b"0")
    is_plain = len(digits) == _BEFORE + _BEHIND and digits.isdigit() and head and bool(point) == bool(tail)
    if not is_plain or (head[:1] == b"0") > (len(head) == 1):
        return split(number(token))
    parts, rest = divmod(int(digits), 10 ** (_BEHIND - 18))
    # To divide a negative number takes longer.
    whole, fraction = divmod(_SHIFT * PARTS + (1 - 2 * minus) * (parts + minus * (rest > 0)), PARTS)
    return whole - _SHIFT, fraction


# Text, eight digits at a time. A token is a sign, up to 16 digits, and optionally a point and up to 24 digits. Digits
# before the point end, and digits behind it begin, at the edge of a word of eight bytes.

_BEFORE, _BEHIND = 16, 24
_SHIFT = 10**_BEFORE
_MINUS, _POINT, _ZERO = b"-.0"
_ZEROS = np.uint64(0x3030303030303030)
_CARRY = np.uint64(0x0606060606060606)
_NO_DIGIT = np.uint64(0xF0F0F0F0F0F0F0F0)
_PAIRS = (
    (np.uint64(10 << 8 | 1), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(100 << 16 | 1), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(10000 << 32 | 1), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
)
"""Factor, shift and mask that join neighbouring digits, pairs and fours of a word."""

_WORD = (1 << 32) - 1
_LAST = [(1 << 64) - (1 << 8 * (8 - digits)) for digits in range(9)]
_FIRST = [(1 << 8 * digits) - 1 for digits in range(9)]
_KEEP_BEFORE: Words = np.array(
    [[_LAST[max(digits - 8, 0)], _LAST[min(digits, 8)]] for digits in range(_BEFORE + 1)], np.uint64
).T.copy()
_KEEP_BEHIND: Words = np.array(
    [[_FIRST[min(max(digits - at, 0), 8)] for at in (0, 8, 16)] for digits in range(_BEHIND + 1)], np.uint64
).T.copy()
"""Mask of the bytes that are digits, for each number of digits and each word."""


def plain(text: ByteBuffer, start: Integers, stop: Integers) -> tuple[Integers, Integers, Mask]:
    """Return whole part and fraction of the number in each place, and a mask of the places without a plain one."""
    minus = text.characters[start] == _MINUS
    start = start + minus
    length = stop - start
    # Where the point is among the first 17 characters; behind a shorter number stands something else.
    before = np.minimum(text.points(start), length)
    point = start + before
    pointed = before < length
    behind = length - before - pointed
    odd = (before < 1) | (behind > _BEHIND) | (pointed & ((behind < 1) | (text.characters[point] != _POINT)))
    odd |= (text.characters[start] == _ZERO) & (before > 1)

    words = np.empty((5, len(start)), np.uint64)
    words[:2] = text.words(point - _BEFORE, 2).T
    words[2:] = text.words(point + 1, 3).T
    words ^= _ZEROS
    words[:2] &= _KEEP_BEFORE.take(np.maximum(before, 0), axis=1)
    words[2:] &= _KEEP_BEHIND.take(np.minimum(np.maximum(behind, 0), _BEHIND), axis=1)
    strange = words + _CARRY
    strange |= words
    strange &= _NO_DIGIT
    odd |= np.bitwise_or.reduce(strange, axis=0) != 0
    for factor, shift, mask in _PAIRS:
        words *= factor
        words >>= shift
        words &= mask
    high, low, first, second, third = words.view(np.int64)
    more = third // 10**6
    fraction = first * 10**10 + second * 100 + more
    return *_signed(minus, high * 10**8 + low, fraction, third != more * 10**6), odd


def _signed(
    minus: NDArray[np.bool_], whole: Integers, fraction: Integers, rest: NDArray[np.bool_]
) -> Columns:
    """Return floor and fraction of signed sizes; ``rest`` marks sizes with a part smaller than 10^-18."""
    fraction = fraction + (minus & rest)
    below = minus & (fraction > 0)
    sign = 1 - 2 * minus.astype(np.int64)
    return sign * whole - below, sign * fraction + below * PARTS


# Arrays of other programs. A column is converted in pieces that fit in a processor's cache, in steps that depend on
# its type alone.


def integers(values: NDArray[np.signedinteger] | NDArray[np.unsignedinteger]) -> Integers:
    """Return the whole parts of integers of any width, which have no fractions."""
    if values.dtype.kind == "u":
        values = np.minimum(values.astype(np.uint64), LIMIT)
    whole = np.minimum(values.astype(np.int64, copy=False), LIMIT)
    return np.maximum(whole, -LIMIT, out=whole)


@np.errstate(all="ignore")  # numpy's warnings would tell of a value
def doubles(values: NDArray[np.floating]) -> Columns:
    """Return whole parts and fractions of floats of up to 64 bits, which are binary fractions; NaN is not a number."""
    whole, fraction = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    for first in range(0, len(values), CHUNK):
        here = slice(first, first + CHUNK)
        _doubles(values[here].astype(np.float64, copy=False), whole[here], fraction[here])
    return whole, fraction


_SPLIT = 2.0**27 + 1
_HIGH, _LOW = float(PARTS >> 39 << 39), float(PARTS % (1 << 39))
"""The two halves of 10^18, of 21 bits each."""
_LEAST = 2.0**-600
"""Stands for smaller parts, which a processor multiplies more slowly; 10^18 times it is less than 1, too."""


def _doubles(values: NDArray[np.float64], whole: Integers, fraction: Integers) -> None:
    # With a signalling NaN, the result of fmax depends on where it stands.
    inside = np.minimum(np.maximum(np.where(np.isnan(values), -LIMIT, values), -LIMIT), LIMIT)
    found = np.trunc(inside)
    np.copyto(whole, found, casting="unsafe")
    rest = inside - found
    rest = np.copysign(np.maximum(np.abs(rest), _LEAST), rest)  # the sign of 0 is +
    # Dekker's product of halves: ``product`` + ``error`` is ``rest`` * 10^18 exactly.
    product, high = rest * float(PARTS), rest * _SPLIT
    high -= high - rest
    low = rest - high
    error = high * _HIGH - product
    error += high * _LOW
    error += low * _HIGH
    error += low * _LOW
    # The sum of an integer, a part of it that is exact, and an error smaller than the last digit of that part.
    found = np.trunc(product)
    np.copyto(fraction, found, casting="unsafe")
    fraction += np.floor(product - found + error).astype(np.int64)
    below = fraction >> 63  # -1 below 0
    whole += below
    fraction += below & PARTS


def decimals(words: NDArray[np.uint32], scale: int) -> Columns:
    """Return whole parts and fractions of integers / 10^``scale``, each in words of 32 bits, shape (rows, words)."""
    whole, fraction = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    for first in range(0, len(words), CHUNK):
        here = slice(first, first + CHUNK)
        whole[here], fraction[here] = _decimals(words[here], scale)
    return whole, fraction


def _decimals(words: NDArray[np.uint32], scale: int) -> Columns:
    rows, count = words.shape
    size = np.zeros((max(count, 2), rows), np.uint64)
    minus = words[:, -1] >> 31 != 0
    # The size of a negative number is its complement plus 1.
    np.bitwise_xor(words.T, minus * np.uint64(_WORD), out=size[:count])
    carry: Words = minus.astype(np.uint64)
    for word in size[:count]:
        np.add(word, carry, out=word)
        np.right_shift(word, 32, out=carry)
        np.bitwise_and(word, _WORD, out=word)
    fraction, lost = _fraction(size, max(scale, 0))
    factor = min(10 ** max(-scale, 0), LIMIT)
    most = LIMIT // factor + 1
    over = np.bitwise_or.reduce(size[2:], axis=0) | size[1] >> 31
    found: Words = size[0] | size[1] << 32 | (over != 0) * np.uint64(1 << 63)
    whole: Integers = np.minimum(np.minimum(found, most) * factor, LIMIT).view(np.int64)
    inside = whole < LIMIT
    return _signed(minus, whole, fraction * inside, lost & inside)


def _fraction(size: Words, scale: int) -> tuple[Integers, NDArray[np.bool_]]:
    """Divide ``size`` by 10^``scale``; return the rest in units of 10^-18, and whether it has a smaller part."""
    rows = size.shape[1]
    rests = []
    for digits in [9] * (scale // 9) + [scale % 9]:
        divisor, rest = np.uint64(10**digits), np.zeros(rows, np.uint64)
        for word in size[::-1]:
            rest <<= 32
            rest |= word
            np.floor_divide(rest, divisor, out=word)
            rest -= word * divisor
        rests.append((digits, rest.view(np.int64)))
    fraction, lost, left = np.zeros(rows, np.int64), np.zeros(rows, np.bool_), 18
    for digits, behind in reversed(rests):
        taken = min(digits, left)
        part = behind // 10 ** (digits - taken)
        lost |= behind != part * 10 ** (digits - taken)
        fraction *= 10**taken
        fraction += part
        left -= taken
    return fraction * 10**left, lost


def long_decimal(unscaled: bytes, scale: int) -> tuple[int, int]:
    """Return whole part and fraction of a big-endian integer of any size / 10^``scale``."""
    number, largest = int.from_bytes(unscaled, "big", signed=True), LIMIT * 10**scale
    whole, rest = divmod(min(max(number, -largest), largest), 10**scale)
    return whole, rest * PARTS // 10**scale


@lru_cache(maxsize=4096)
def threshold(token: bytes) -> Fraction | None:
    """Return the threshold of a JSON token, None where it is not a number of at most 64 characters."""
    if len(token) > 64:
        return None
    value = number(token)
    if value is None or not value.is_finite() or 0 < value.copy_abs() <= _TINY:
        return None
    return Fraction(value)
