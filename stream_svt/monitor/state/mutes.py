"""The series that a monitor's tops mute, and the queries of these series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.hash_table import EMPTY, empty_table, enter, first_slot, first_slots, next_slots
from stream_svt.columns.query_batch import NO_ROWS, Integers, Mask
from stream_svt.columns.strings import Hashes, Texts, TextSlices, hash_of
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.shard_datasets import NEVER
from stream_svt.monitor.state.snapshot import StoredMute

FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Ends of mutes that are not a clock."""
NEVER_MUTED = -1
"""A clock before all others."""
_SPREAD = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1
_SMALLEST, _LOAD = 2**10, 16
"""Fewest slots of a table, and slots of each entry: a pair that has no entry mostly meets an empty one."""
_SPARE = 32
"""Entries of a table for each further one that it has room for at least, because its next resize costs all of them."""
_WORD = 8
_FEW = 16
"""Rows that are looked up one by one."""
_CODES_KEPT = 10_000
"""Datasets whose codes of muted entries are kept."""


@dataclass(slots=True, repr=False, eq=False)
class Mutes(Queue[StoredMute]):
    """Muted series of a monitor on a dataset, oldest first."""

    kind: ClassVar[int] = 2
    entry_types: ClassVar[tuple[type, ...]] = (StoredMute,)

    def until(self, series: str | None) -> int:
        """Return the clock (ms) before which a series is muted."""
        mute = None if series is None else self.entries.get(series)
        return NEVER_MUTED if mute is None else clock_of(mute.until)

    def add(self, series: str, until: int, clock_ms: int, max_mutes: int) -> list[str]:
        """Mute a series and remove expired mutes; return the oldest series, unmuted because of ``max_mutes``."""
        entries = self.entries
        if entries and 0 <= next(iter(entries.values())).until <= clock_ms:
            self._discard(takewhile(lambda mute: 0 <= mute.until <= clock_ms, entries.values()))
        if series in entries:
            self.remove(series)
        self.count += 1
        self.put(StoredMute(self.count, series, until))
        over = len(entries) - max_mutes
        return self._discard(islice(entries.values(), over)) if over > 0 else []

    @property
    def removed(self) -> int:
        """Number of mutes ever removed."""
        return self.count - len(self.entries)

    def end_run(self) -> list[str]:
        """End the mutes that hold until the run ends; return their series."""
        return self._discard(mute for mute in self.entries.values() if mute.until == UNTIL_RUN_ENDS)

    def _discard(self, mutes: Iterable[StoredMute]) -> list[str]:
        names = [mute.name for mute in mutes]
        for series in names:
            self.remove(series)
        return names


def clock_of(until: int) -> int:
    """Return the clock (ms) at which a mute ends."""
    return NEVER if until < 0 else until


class MuteIndex:
    """When the mutes of a monitor end, looked up for many queries at once.

    A hash table with linear probing over pairs of dataset and series: hashes find candidates, names decide.
    """

    def __init__(self, mutes: Mapping[int, Mutes]) -> None:
        self._mutes = mutes
        self._count = 0
        self._keys, self._ends = np.zeros(0, np.uint64), NO_ROWS
        self._datasets = self._start = self._length = NO_ROWS
        self._names = bytearray(_WORD)  # a word at least
        self._resize(NEVER_MUTED, 0)
        self.load(mutes)

    def load(self, held: Mapping[int, Mutes]) -> None:
        """Add the mutes of datasets that have none here."""
        mutes = [mute for each in held.values() for mute in each.entries.values()]
        parts = [mute.name.encode() for mute in mutes]
        if self._count + len(parts) >= len(self._keys):
            self._resize(NEVER_MUTED, len(parts))
        first, self._count = self._count, self._count + len(parts)
        rows = slice(first, self._count)
        self._datasets[rows] = np.repeat(
            np.array([*held], dtype=np.int64), [len(each.entries) for each in held.values()]
        )
        self._keys[rows] = _keys(self._datasets[rows], TextSlices.of(parts).hashes())
        self._ends[rows] = [clock_of(mute.until) for mute in mutes]
        self._store(first, parts)
        self._enter(first)

    def put(self, dataset: int, series: str, end: int, clock_ms: int, known: int | None = None) -> None:
        """Store the clock (ms) at which the mute of a series ends, given the clock now.

        ``known`` is the hash of the series, where it is known.
        """
        name = series.encode()
        key, slot = self._slot_of(dataset, name, hash_of(name) if known is None else known)
        number = self._table.item(slot)
        if number == EMPTY:
            number = self._table[slot] = self._count
            self._keys[number], self._datasets[number] = key, dataset
            self._start[number], self._length[number] = len(self._names), len(name)
            self._names += name
            self._count += 1
        self._ends[number] = end
        if self._count == len(self._keys):
            self._resize(clock_ms, 1)

    def remove(self, dataset: int, series: str) -> None:
        """Remove a mute."""
        name = series.encode()
        _, slot = self._slot_of(dataset, name, hash_of(name))
        if (number := self._table.item(slot)) != EMPTY:
            self._ends[number] = NEVER_MUTED

    def _slot_of(self, dataset: int, name: bytes, hashed: int) -> tuple[int, int]:
        """Return the key of a pair, and the slot with its entry or an empty one: `_find` for one, without arrays."""
        key = (hashed ^ dataset * _SPREAD) * _SPREAD & _ALL
        table, last = self._table, len(self._table) - 1
        slot = first_slot(table, key)
        while (number := table.item(slot)) != EMPTY:
            start, length = self._start.item(number), self._length.item(number)
            if self._datasets.item(number) == dataset and self._names[start : start + length] == name:
                break
            slot = (slot + 1) & last
        return key, slot

    def ends(
        self, datasets: Integers | int, series: Texts, rows: Integers | None = None
    ) -> tuple[Integers, Integers]:
        """Return the rows, of these or of all, whose series has a mute, and the clocks (ms) at which it ends.

        ``datasets`` is that of each row of ``series``, or that of all.
        """
        if rows is not None and len(rows) <= _FEW:
            of_rows = repeat(datasets) if isinstance(datasets, int) else datasets[rows].tolist()
            pairs = zip(of_rows, rows.tolist(), strict=False)
            ends = np.array([self.until(dataset, series[row]) for dataset, row in pairs], dtype=np.int64)
        else:
            rows, numbers = self._find(datasets, series, rows)
            ends = self._ends[numbers]
        is_muted = ends != NEVER_MUTED
        return rows[is_muted], ends[is_muted]

    def until(self, dataset: int, series: str | None) -> int:
        """Return the clock (ms) before which a series of a dataset is muted."""
        mutes = self._mutes.get(dataset)
        return NEVER_MUTED if mutes is None else mutes.until(series)

    def _find(
        self, datasets: Integers | int, series: Texts, rows: Integers | None
    ) -> tuple[Integers, NDArray[Any]]:
        """Return the rows whose pair has an entry, and the numbers of the entries."""
        keys = _keys(datasets, series.hashes())
        if rows is not None:
            keys = keys[rows]
        slots = first_slots(self._table, keys)
        numbers: NDArray[Any] = self._table.take(slots)
        left = np.flatnonzero(numbers != EMPTY)
        rows = left if rows is None else rows[left]
        keys, slots, numbers = keys[left], slots[left], numbers[left]
        found: list[tuple[Integers, NDArray[Any]]] = [(NO_ROWS, NO_ROWS)]
        while len(rows):
            is_same = self._keys[numbers] == keys
            if len(same := np.flatnonzero(is_same)):
                is_same[same] = self._are_same(numbers[same], datasets, series, rows[same])
            found.append((rows[is_same], numbers[is_same]))
            slots = next_slots(self._table, slots)
            numbers = self._table[slots]
            left = np.flatnonzero(~is_same & (numbers != EMPTY))
            rows, keys, slots, numbers = rows[left], keys[left], slots[left], numbers[left]
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def _are_same(
        self, numbers: NDArray[Any], datasets: Integers | int, series: Texts, rows: Integers
    ) -> Mask:
        """Return whether each entry is that of its row; their keys are equal."""
        is_same: Mask = self._datasets[numbers] == (datasets if isinstance(datasets, int) else datasets[rows])
        is_same &= series.same(rows, TextSlices(self._names, self._start[numbers], self._length[numbers]))
        return is_same

    def _resize(self, clock_ms: int, more: int) -> None:
        """Make room for more entries, and remove those whose mutes have ended at a clock."""
        kept = np.flatnonzero(self._ends[: self._count] > clock_ms)
        count = len(kept) + max(more, len(kept) // _SPARE)
        size = max(_SMALLEST, 1 << (_LOAD * count).bit_length())
        room = np.zeros(size // _LOAD - len(kept), np.int64)
        self._keys = np.append(self._keys[kept], room.view(np.uint64))
        self._ends, self._datasets, self._start, self._length = (
            np.append(column[kept], room)
            for column in (self._ends, self._datasets, self._start, self._length)
        )
        self._count = len(kept)
        self._table = empty_table(size)
        if 2 * int(self._length.sum()) < len(self._names):
            self._compact()
        self._enter(0)

    def _compact(self) -> None:
        """Keep the names of entries only."""
        start, length, names = self._start[: self._count], self._length[: self._count], self._names
        spans = zip(start.tolist(), (start + length).tolist(), strict=True)
        self._names = bytearray(_WORD)
        self._store(0, [bytes(names[begin:end]) for begin, end in spans])

    def _store(self, first: int, names: Sequence[bytes]) -> None:
        """Store the names of the entries from a number on."""
        length = np.fromiter(map(len, names), np.int64, len(names))
        self._start[first : self._count] = len(self._names) + np.cumsum(length) - length
        self._length[first : self._count] = length
        self._names += b"".join(names)

    def _enter(self, first: int) -> None:
        """Enter the entries from a number on into the table."""
        numbers = np.arange(first, self._count, dtype=np.int32)
        enter(self._table, numbers, first_slots(self._table, self._keys[first : self._count]))


def _keys(datasets: Integers | int, hashes: Hashes) -> Hashes:
    """Return the hash of each pair of dataset and series."""
    spread = np.uint64(_SPREAD)
    if isinstance(datasets, int):
        keys = hashes ^ np.uint64(datasets * _SPREAD & _ALL)
    else:
        keys = hashes ^ (datasets.view(np.uint64) * spread)
    keys *= spread
    return keys


@dataclass(slots=True, repr=False, eq=False)
class _MutedCodes:
    """Codes of the muted entries, with the clocks (ms) at which their mutes end; valid for these counts of mutes."""

    mutes: Mutes
    count: int
    removed: int
    codes: Integers
    ends: Integers


class MutedEntries:
    """Muted entries of a dictionary of series, by dataset: looked up once, as long as records share the dictionary.

    It keeps one dictionary, the codes of `_CODES_KEPT` datasets, and no more codes than there are mutes of its series.
    """

    def __init__(self, mutes: Mapping[int, Mutes], index: MuteIndex) -> None:
        self._mutes, self._index = mutes, index
        self._entries: Texts | None = None
        self._known: dict[int, _MutedCodes] = {}

    def at(self, dataset: int, entries: Texts, clock_ms: int) -> Integers:
        """Return the codes of the entries that are muted at a clock, for a dataset that has mutes."""
        if entries is not self._entries or len(self._known) > _CODES_KEPT:
            self._entries, self._known = entries, {}
        mutes, known = self._mutes[dataset], self._known.get(dataset)
        if known is None or known.mutes is not mutes or known.removed != mutes.removed:
            muted = self._index.ends(dataset, entries)
            known = self._known[dataset] = _MutedCodes(mutes, mutes.count, mutes.removed, *muted)
        elif known.count != mutes.count:
            newest = [*islice(reversed(mutes.entries.values()), mutes.count - known.count)]
            hashes = np.array([hash_of(mute.name.encode()) for mute in newest], dtype=np.uint64)
            rows = np.flatnonzero(np.isin(entries.hashes(), hashes))
            codes, ends = self._index.ends(dataset, entries, rows)
            known.codes, known.ends = np.append(known.codes, codes), np.append(known.ends, ends)
            known.count = mutes.count
        return known.codes[clock_ms < known.ends]
