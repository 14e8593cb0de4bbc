"""Reads the records of batches as columns, without an object for each record.

A record begins with its length. So one pass finds where records begin, and numpy reads each field of all records at
once. The columns count only if every record ends at the begin of the next one, and the last record at the end of its
batch: then there is no other way to read the bytes. The client's reader reads all other batches. The time depends on
numbers and lengths of records, not on their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_svt.protocol.records import Headers, Integers, Mask, Records

_Data = NDArray[np.uint8]

SMALLEST: Final = 7
"""Bytes of the smallest record."""
SHORT: Final = 512
"""Average bytes of records up to which guessing their begins pays off."""
SHOWN: Final = 100
"""Headers of a record that are read; a record of 1 MB can have half a million."""
_STEP: Final = [(low & 127) // 2 + (1 if low < 128 else 2) for low in range(256)]
"""Bytes to the next record, by the first byte of the length; each unit of the second byte adds 64."""


class Irregular(Exception):
    """The bytes are not records, or records that only the client's reader can read."""


class ManyHeaders(Exception):
    """Several records have more headers than are to be read at once."""


class Body(NamedTuple):
    """The records of a batch: ``number`` of them, in ``buffer`` from ``start`` to ``stop``.

    The records' own numbers are relative to ``offset`` and ``timestamp``; brokers do not check that they end below the
    batch's ``next_offset``. With ``log_append_time``, every record has this ``timestamp``.
    """

    buffer: bytes
    start: int
    stop: int
    number: int
    offset: int
    next_offset: int
    timestamp: int
    log_append_time: bool = False

    def cut(self, count: int) -> tuple[Body, Body]:
        """Return the first ``count`` records, fewer than there are, and the rest; raises `Irregular`."""
        at = _walk(self._replace(number=count), [])
        if at > self.stop:
            raise Irregular
        return self._replace(stop=at, number=count), self._replace(start=at, number=self.number - count)


def read(bodies: Sequence[Body], *, text: bool = False, headers: float | None = math.inf) -> Records:
    """Return the records of bodies, in order; raises `Irregular`, and `ManyHeaders` for more than ``headers``.

    With ``headers`` None, no header is read: a record ends where its length says.
    With ``text``, keys and values contain no zero byte, as in JSON: then the begins of records are guessed first.
    """
    bodies = _in_one_buffer(bodies)
    _, *columns, by_broker = zip(*bodies, strict=True)
    start, stop, count, base, following, time = (np.array(column, np.int64) for column in columns)
    if (count < 1).any() or (count * SMALLEST > stop - start).any():
        raise Irregular
    data = np.frombuffer(bodies[0].buffer, np.uint8)
    last = np.cumsum(count) - 1
    if len(last) == last[-1] + 1:
        begin, end = start, stop
        at = _after_lengths(data, begin, end)
    else:
        begin, end, at = _bounds(data, bodies, (start, stop, last), text=text)
    append = np.array(by_broker, np.bool_).repeat(count)
    if len(bodies) > 1:
        base, time = base.repeat(count), time.repeat(count)
    records = _fields(bodies[0].buffer, (data, at, end), (base, time, append), headers)
    if (records.offset[last] >= following).any():  # they ascend
        raise Irregular
    return records


def _in_one_buffer(bodies: Sequence[Body]) -> Sequence[Body]:
    if all(body.buffer is bodies[0].buffer for body in bodies):
        return bodies
    parts = [memoryview(body.buffer)[body.start : body.stop] for body in bodies]
    buffer, at, moved = b"".join(parts), 0, []
    for body, part in zip(bodies, parts, strict=True):
        moved.append(body._replace(buffer=buffer, start=at, stop=at + len(part)))
        at += len(part)
    return moved


def _bounds(
    data: _Data, bodies: Sequence[Body], edges: tuple[Integers, Integers, Integers], *, text: bool
) -> tuple[Integers, Integers, Integers]:
    """Return begins and ends of records, and the ends of their lengths."""
    start, stop, last = edges

    def checked(begin: Integers) -> tuple[Integers, Integers, Integers]:
        end = np.append(begin[1:], stop[-1])
        end[last] = stop
        return begin, end, _after_lengths(data, begin, end)

    if text and (stop - start).sum() <= SHORT * (last[-1] + 1):
        begin = _guess(data, start, stop)
        if len(begin) == last[-1] + 1:
            try:
                return checked(begin)
            except Irregular:
                pass
    begins: list[int] = []
    for body in bodies:
        if _walk(body, begins) != body.stop:
            raise Irregular
    return checked(np.array(begins, np.int64))


def _walk(body: Body, begins: list[int]) -> int:
    """Append the begin of each record; return the end of the last one."""
    buffer, at, append = body.buffer, body.start, begins.append
    try:
        for _ in range(body.number):
            append(at)
            if (low := buffer[at]) < 128:
                at += _STEP[low]
            elif (high := buffer[at + 1]) < 128:
                at += _STEP[low] + (high << 6)
            else:
                length, at = _varint(buffer, at)
                at += abs(length)
    except IndexError:
        raise Irregular from None
    return at


def _guess(data: _Data, start: Integers, stop: Integers) -> Integers:
    """Return possible begins of records: a length is between two zeros, for no headers and for no attributes."""
    low = int(start[0])
    zero = np.flatnonzero(data[low : int(stop[-1])] == 0)
    gap = zero[1:] - zero[:-1]
    begin = zero[:-1][(gap > 1) & (gap < 5)] + (low + 1)
    # Other zeros are in a first record, whose offset is zero, and in headers of batches, between bodies.
    first, end = np.searchsorted(begin, start + SMALLEST), np.searchsorted(begin, stop)
    if len(start) == 1:
        return np.concatenate([start, begin[first[0] :]])
    inside = np.zeros(len(begin) + 1, np.int8)
    inside[first[end > first]] += 1
    inside[end[end > first]] -= 1
    found = np.concatenate([start, begin[np.cumsum(inside[:-1]) > 0]])
    found.sort(kind="stable")
    return found


def _after_lengths(data: _Data, begin: Integers, end: Integers) -> Integers:
    """Return the ends of the lengths of records; raises `Irregular` unless each length leads to its record's end."""
    length, at = _varints(data, begin)
    if (at + length != end).any():
        raise Irregular
    return at


def _varints(data: _Data, at: Integers, most: int = 5) -> tuple[Integers, Integers]:
    """Return the signed numbers of at most ``most`` bytes that begin at these indices, and their ends."""
    byte = data.take(at, mode="clip")
    value = (byte & 127).astype(np.int64)
    more, at, shift = byte >> 7, at + 1, 7
    while more.any():
        if shift >= 7 * most:
            raise Irregular
        byte = data.take(at, mode="clip")
        value += ((byte & 127) * more).astype(np.int64) << shift
        at += more
        more &= byte >> 7
        shift += 7
    return (value.view(np.uint64) >> 1).view(np.int64) ^ -(value & 1), at


def _fields(
    buffer: bytes,
    places: tuple[_Data, Integers, Integers],
    bases: tuple[Integers, Integers, Mask],
    most: float | None,
) -> Records:
    """Return the columns of records from ``at``, after their lengths, to ``end``."""
    data, at, end = places
    offset, timestamp, by_broker = bases
    if data.take(at, mode="clip").any():  # attributes, which no version of Kafka uses
        raise Irregular
    delta, at = _varints(data, at + 1, 10)
    timestamp = np.where(by_broker, timestamp, timestamp + delta)
    delta, at = _varints(data, at)
    offset = offset + delta
    key_length, key_start = _varints(data, at)
    value_length, value_start = _varints(data, key_start + np.maximum(key_length, 0))
    count, at = _varints(data, value_start + np.maximum(value_length, 0))
    if (
        min(key_length.min(), value_length.min()) < -1
        or (delta < 0).any()
        or (offset[1:] <= offset[:-1]).any()
    ):
        raise Irregular
    headers: dict[int, Headers] = {}
    rows = np.flatnonzero(count)
    if most is None:
        if (at > end).any() or (count < 0).any():
            raise Irregular
        at, rows = end, rows[:0]
    elif len(count) > 1 and np.minimum(count, SHOWN).sum() > most:
        raise ManyHeaders
    for row, begin, number, stop in zip(
        *(one.tolist() for one in (rows, at[rows], count[rows], end[rows])), strict=True
    ):
        headers[row], reached = _headers(buffer, begin, min(number, SHOWN))
        if reached != stop and (number <= SHOWN or reached > stop):
            raise Irregular
    at[rows] = end[rows]
    if (at != end).any():
        raise Irregular
    parts = (key_start, key_length, value_start, value_length)
    return Records(buffer, offset, timestamp, *parts, headers, by_broker)


def _headers(buffer: bytes, at: int, count: int) -> tuple[Headers, int]:
    """Return headers and their end; invalid UTF-8 in a name becomes replacement characters."""
    found: list[tuple[str, bytes | None]] = []
    if count < 0:
        raise Irregular
    for _ in range(count):
        length, at = _varint(buffer, at)
        if length < 0:
            raise Irregular
        name = buffer[at : at + length].decode(errors="replace")
        length, at = _varint(buffer, at + length)
        if length < -1:
            raise Irregular
        found.append((name, None if length < 0 else buffer[at : at + length]))
        at += max(length, 0)
    return found, at


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the signed number of at most five bytes that begins here, and its end."""
    if at < len(buffer) and (byte := buffer[at]) < 128:
        return byte >> 1 ^ -(byte & 1), at + 1
    value = 0
    for index, byte in enumerate(buffer[at : at + 5]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value >> 1 ^ -(value & 1), at + index + 1
    raise Irregular
