"""Numbers of datasets by record key, looked up for many records at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from os import urandom
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.byte_buffer import Integers, Mask
from stream_svt.columns.hash_table import EMPTY, empty_table, enter, first_slot, first_slots, next_slots
from stream_svt.columns.strings import KeyedHash, TextSlices
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.records import slices
from stream_svt.queries.reasons import Reason
from stream_svt.settings.application import ApplicationSpec

log = logging.getLogger(__name__)

NAMES_AT_ONCE: Final = 10_000
"""Names added to a dataset index between two yields: a few milliseconds of work."""

KEY_REASONS: Final = {-1: Reason.NO_KEY, -2: Reason.UNDECLARED, -3: Reason.MISROUTED}

SINGLES: Final = 32
"""Keys that are looked up without arrays."""

_HASHING: Final = KeyedHash(urandom(32))
"""Nobody can choose keys that collide."""


class DatasetIndex:
    """Numbers of a shard's datasets by record key; negative, one of `KEY_REASONS`, for any other key.

    A hash table with linear probing, at most half full: some 40 bytes for a dataset, and its name. With a ``spec``, it
    counts the misrouted keys of declared datasets: only those are public.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        partition: int,
        partitioning: Partitioning,
        spec: ApplicationSpec | None = None,
    ) -> None:
        self._partition, self._partitioning, self._spec = partition, partitioning, spec
        self._other = partitioning.other
        self._misrouted = {True: 0, False: 0}  # by whether the partition is that of the other partitioner
        self._names = b""
        self._start: Integers = np.zeros(0, np.int64)
        self._length = self._start
        self._longest = 0  # a longer key, of up to a megabyte, is no name: the rest of it is not hashed
        self._table: NDArray[np.int32] = empty_table(16)
        for _ in self.fill_in_slices(names):
            pass

    def __len__(self) -> int:
        return len(self._start)

    def fill_in_slices(self, names: Iterable[str]) -> Iterator[None]:
        """Add datasets, yielding between slices."""
        remaining = iter(names)
        while keys := [name.encode() for name in islice(remaining, NAMES_AT_ONCE)]:
            first = len(self)
            length = np.fromiter(map(len, keys), np.int64, len(keys))
            self._start = np.append(self._start, len(self._names) + np.cumsum(length) - length)
            self._length = np.append(self._length, length)
            self._longest = int(self._length.max())
            self._names = b"".join([self._names, *keys])
            if 2 * len(self) > len(self._table):
                self._table = empty_table(1 << (4 * len(self)).bit_length())
                first = 0
            self._enter(np.arange(first, len(self), dtype=np.int32))
            yield

    def _enter(self, numbers: NDArray[np.int32]) -> None:
        slots = self._slots(self._names, self._start[numbers], self._length[numbers])
        enter(self._table, numbers, slots)

    def _slots(self, buffer: bytes, start: Integers, length: Integers) -> Integers:
        hashes = _HASHING.of_slices(buffer, start, np.minimum(length, self._longest))
        return first_slots(self._table, hashes)

    def numbers(self, buffer: bytes, start: Integers, length: Integers) -> Integers:
        """Return the number of each key, a slice of ``buffer`` (length -1: null)."""
        if len(start) <= SINGLES:
            return np.array([self.number(key) for key in slices(buffer, start, length)], np.int64)
        slots = self._slots(buffer, start, length)
        found = self._table[slots].astype(np.int64)
        is_other = (found != EMPTY) & ~self._is_name(found, buffer, start, length)
        while len(rows := np.flatnonzero(is_other)):  # other names took these slots
            slots[rows] = next_slots(self._table, slots[rows])
            found[rows] = self._table[slots[rows]]
            is_other[rows] = (found[rows] != EMPTY) & ~self._is_name(
                found[rows], buffer, start[rows], length[rows]
            )
        refused: dict[bytes | None, int] = {}
        rows = np.flatnonzero(found == EMPTY)
        for row, key in zip(rows.tolist(), slices(buffer, start[rows], length[rows]), strict=True):
            if key not in refused:
                refused[key] = self._refused(key)
            found[row] = refused[key]
        return found

    def _is_name(self, numbers: Integers, buffer: bytes, start: Integers, length: Integers) -> Mask:
        """Return a mask of the slices that are the names of datasets."""
        if not len(self):
            return np.zeros(len(numbers), np.bool_)
        names = TextSlices(self._names, self._start, self._length)
        return names.taken(numbers).same(TextSlices(buffer, start, length))

    def number(self, key: bytes | None) -> int:
        """Return the number of one key."""
        if key is None:
            return self._refused(key)
        slot = first_slot(self._table, _HASHING.of(key[: self._longest]))
        last = len(self._table) - 1
        while (found := self._table.item(slot)) != EMPTY:
            first = self._start.item(found)
            if self._length.item(found) == len(key) and self._names.startswith(key, first):
                break
            slot = (slot + 1) & last
        return self._refused(key) if found == EMPTY else found

    def _refused(self, key: bytes | None) -> int:
        if key is None:
            return -1
        if self._partitioning.of(key) == self._partition:
            return -2
        if self._spec is not None and not self._misrouted[False]:
            self._count_misrouted(key, self._spec)
        return -3

    @property
    def follows_other_partitioner(self) -> bool:
        """Whether every misrouted key of a declared dataset, if any, is where the other partitioner puts it."""
        return self._misrouted[True] > 0 and not self._misrouted[False]

    def _count_misrouted(self, key: bytes, spec: ApplicationSpec) -> None:
        try:
            dataset = spec.find(key.decode())
        except UnicodeDecodeError:
            return
        if dataset is None:
            return
        self._misrouted[self._other.of(key) == self._partition] += 1
        if self.follows_other_partitioner and self._misrouted[True] == 1:
            shown = (self._partition, dataset.name, self._partitioning.misrouted())
            log.warning("event=misrouted partition=%d dataset=%s error=%r", *shown)
