"""Records of one partition as columns: a record becomes an object only on access."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Final, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

LOG_APPEND_TIME: Final = 1
"""Attribute ``timestamp_type`` of a client's record whose timestamp is the broker's."""


class Record(Protocol):
    """A record of a partition; `aiokafka.ConsumerRecord` fits.

    ``timestamp`` is in milliseconds since 1970, set by the broker if the topic has append times.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(slots=True)
class OneRecord:
    """A `Record`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Records(Sequence[Record]):
    """Records in the order of their offsets, which may have gaps (compaction, markers).

    Attributes:
        buffer: All keys and values.
        offset, timestamp: One per record.
        key_start, key_length, value_start, value_length: Slices of ``buffer``; a length of -1 means null.
        headers: Headers of the records that have any, by index.
        by_broker: Whether its timestamp is the broker's, one per record; False for records that no broker holds.
    """

    buffer: bytes
    offset: Integers
    timestamp: Integers
    key_start: Integers
    key_length: Integers
    value_start: Integers
    value_length: Integers
    headers: dict[int, Headers] = field(default_factory=dict)
    by_broker: Mask | bool = False

    @classmethod
    def of(cls, records: Iterable[Record]) -> Records:
        """Return the columns of record objects."""
        if isinstance(records, Records):
            return records
        each = list(records)
        parts = list(chain.from_iterable((one.key, one.value) for one in each))
        length = np.array([-1 if part is None else len(part) for part in parts], np.int64)
        start = np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)
        return cls(
            b"".join([part or b"" for part in parts]),
            np.array([one.offset for one in each], np.int64),
            np.array([one.timestamp for one in each], np.int64),
            start[::2],
            length[::2],
            start[1::2],
            length[1::2],
            {index: one.headers for index, one in enumerate(each) if one.headers},
            np.array([getattr(one, "timestamp_type", 0) == LOG_APPEND_TIME for one in each], np.bool_),
        )

    @classmethod
    def concatenated(cls, parts: Sequence[Records]) -> Records:
        """Return consecutive records of one partition as one."""
        if len(parts) < 2:
            return parts[0] if parts else cls.of(())
        buffers = {id(part.buffer): part.buffer for part in parts}  # parts of one fetch share it
        starts = accumulate(map(len, buffers.values()), initial=0)
        shifts = dict(zip(buffers, starts, strict=False))
        moved = [(part, shifts[id(part.buffer)]) for part in parts]
        firsts = list(accumulate(map(len, parts), initial=0))
        headers = {
            first + index: found
            for part, first in zip(parts, firsts, strict=False)
            for index, found in part.headers.items()
        }
        return cls(
            b"".join(buffers.values()),
            _joined(part.offset for part in parts),
            _joined(part.timestamp for part in parts),
            _joined(part.key_start + shift for part, shift in moved),
            _joined(part.key_length for part in parts),
            _joined(part.value_start + shift for part, shift in moved),
            _joined(part.value_length for part in parts),
            headers,
            np.concatenate([part.stamped for part in parts]),
        )

    @property
    def stamped(self) -> Mask:
        """``by_broker``, one per record in any case."""
        given = self.by_broker
        return given if isinstance(given, np.ndarray) else np.full(len(self), given)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return int(np.maximum(self.key_length, 0).sum() + np.maximum(self.value_length, 0).sum())

    def __len__(self) -> int:
        return len(self.offset)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            return self._slice(index)
        key = self._part(self.key_start, self.key_length, index)
        value = self._part(self.value_start, self.value_length, index)
        headers = self.headers.get(index % len(self), ()) if self.headers else ()
        return OneRecord(int(self.offset[index]), int(self.timestamp[index]), key, value, headers)

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return slices(self.buffer, self.key_start, self.key_length)

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return slices(self.buffer, self.value_start, self.value_length)

    def _slice(self, index: slice) -> Records:
        rows = range(len(self))[index]
        headers = {rows.index(row): found for row, found in self.headers.items() if row in rows}
        return self._columns(index, headers)

    def taken(self, rows: Integers) -> Records:
        """Return some records, without their headers."""
        return self._columns(rows, {})

    def _columns(self, index: slice | Integers, headers: dict[int, Headers]) -> Records:
        return Records(
            self.buffer,
            self.offset[index],
            self.timestamp[index],
            self.key_start[index],
            self.key_length[index],
            self.value_start[index],
            self.value_length[index],
            headers,
            self.by_broker[index] if isinstance(self.by_broker, np.ndarray) else self.by_broker,
        )

    def _part(self, start: Integers, length: Integers, index: int) -> bytes | None:
        return None if length[index] < 0 else self.buffer[start[index] : start[index] + length[index]]


def slices(buffer: bytes, start: Integers, length: Integers) -> list[bytes | None]:
    """Return slices of a buffer; a length of -1 means None."""
    ends = zip(start.tolist(), (start + length).tolist(), strict=True)
    return [None if end < begin else buffer[begin:end] for begin, end in ends]


def _joined(columns: Iterable[Integers]) -> Integers:
    return np.concatenate(list(columns))
