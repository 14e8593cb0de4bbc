"""The series that a monitor's tops mute, and the queries of these series.

A series is known by the hash of its name under a secret of the shard (`stream_svt.columns.strings.KeyedHash`). Two
series with the same hash are one here: the mute of either mutes both. Public names and the secret alone decide that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, repeat, takewhile
from typing import Any, ClassVar

import numpy as np

from stream_svt.columns.hash_table import EMPTY, empty_table, enter, first_slot, first_slots, next_slots
from stream_svt.columns.query_batch import Integers, Mask, entries_of
from stream_svt.columns.strings import Hashes
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.shard_datasets import NEVER
from stream_svt.monitor.state.snapshot import Name, StoredMute, WatchedMute

FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Ends of mutes that are not a clock."""
NEVER_MUTED = -1
"""A clock before all others."""
_SPREAD = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1
_SMALLEST, _LOAD = 2**10, 16
"""Fewest slots of a table, and slots of each entry: a pair that has no entry mostly meets an empty one."""
_SPARE = 32
"""Leave 1/32 of room, so that resizing stays amortised."""
_FEW = 16
"""Queries that are looked up one by one."""
_ENTRY = np.dtype([("series", "<u8"), ("dataset", "<i8"), ("end", "<i8")])


@dataclass(slots=True, repr=False, eq=False)
class Mutes(Queue[StoredMute]):
    """Muted series of a monitor on a dataset, by hash, oldest first; ``watched`` has those that it watches."""

    kind: ClassVar[int] = 2
    entry_types: ClassVar[tuple[type, ...]] = (StoredMute, WatchedMute)

    watched: dict[int, WatchedMute] = field(default_factory=dict)

    def put(self, entry: StoredMute) -> None:
        """See `Queue`."""
        Queue.put(self, entry)
        if isinstance(entry, WatchedMute):
            self.watched[entry.series] = entry

    def remove(self, name: Name) -> StoredMute:
        """See `Queue`."""
        self.watched.pop(name, None)  # type: ignore[arg-type]  # the names of mutes are hashes
        return Queue.remove(self, name)

    def finish_loading(self) -> None:
        """See `Queue`."""
        self.watched = {one.series: one for one in self.entries.values() if isinstance(one, WatchedMute)}

    def until(self, series: int) -> int:
        """Return the clock (ms) before which a series is muted."""
        mute = self.entries.get(series)
        return NEVER_MUTED if mute is None else clock_of(mute.until)

    def add(
        self, series: int, until: int, clock_ms: int, max_mutes: int, watch: tuple[Any, ...] = ()
    ) -> list[int]:
        """Mute a series and remove expired mutes; return the oldest series, unmuted because of ``max_mutes``.

        ``watch`` has the further fields of a `WatchedMute`, which expires by a test or its time, and not here.
        """
        entries = self.entries
        if entries and _is_over(next(iter(entries.values())), clock_ms):
            self._discard(takewhile(lambda mute: _is_over(mute, clock_ms), entries.values()))
        if series in entries:
            self.remove(series)
        self.count += 1
        number = self.count
        self.put(WatchedMute(number, series, until, *watch) if watch else StoredMute(number, series, until))
        over = len(entries) - max_mutes
        return self._discard(islice(entries.values(), over)) if over > 0 else []

    def end_run(self) -> list[int]:
        """End the mutes that hold until the run ends; return their series."""
        return self._discard(mute for mute in self.entries.values() if mute.until == UNTIL_RUN_ENDS)

    def _discard(self, mutes: Iterable[StoredMute]) -> list[int]:
        discarded = [mute.series for mute in mutes]
        for series in discarded:
            self.remove(series)
        return discarded


def _is_over(mute: StoredMute, clock_ms: int) -> bool:
    return 0 <= mute.until <= clock_ms and not isinstance(mute, WatchedMute)


def clock_of(until: int) -> int:
    """Return the clock (ms) at which a mute ends."""
    return NEVER if until < 0 else until


class MuteIndex:
    """The mutes of a monitor by dataset and hash of the series, looked up for many queries at once.

    A hash table with linear probing; an entry whose mute has ended stays until the next resize.
    """

    def __init__(self, mutes: Mapping[int, Mutes]) -> None:
        self._mutes = mutes
        self._entries = np.zeros(0, _ENTRY)
        self._count = 0
        self._resize(NEVER_MUTED)
        self.load(mutes)

    def load(self, held: Mapping[int, Mutes]) -> None:
        """Add the mutes of some datasets."""
        for dataset, mutes in held.items():
            for mute in mutes.entries.values():
                self.put(dataset, mute.series, clock_of(mute.until), NEVER_MUTED)

    def put(self, dataset: int, series: int, end: int, clock_ms: int) -> None:
        """Store the clock (ms) at which the mute of a series ends, given the clock now."""
        slot = self._slot_of(dataset, series)
        number = self._table.item(slot)
        if number == EMPTY:
            number = self._table[slot] = self._count
            self._count += 1
        self._entries[number] = series, dataset, end
        if self._count == len(self._entries):
            self._resize(clock_ms)

    def remove(self, dataset: int, series: int) -> None:
        """Remove a mute."""
        if (number := self._table.item(self._slot_of(dataset, series))) != EMPTY:
            self._entries["end"][number] = NEVER_MUTED

    def _slot_of(self, dataset: int, series: int) -> int:
        """Return the slot with the entry of a pair, or an empty one."""
        table, last, pair = self._table, len(self._table) - 1, (series, dataset)
        slot = first_slot(table, series ^ dataset * _SPREAD & _ALL)
        while (number := table.item(slot)) != EMPTY and self._entries.item(number)[:2] != pair:
            slot = (slot + 1) & last
        return slot

    def muted(self, datasets: Integers | int, series: Hashes, clock: Integers | int) -> Mask:
        """Return the mask of the queries, by dataset, hash of their series and clock (ms), that are of muted series.

        ``datasets`` and ``clock`` are columns, or one number for all queries.
        """
        if len(series) <= _FEW:
            return self._muted_of_few(datasets, series, clock)
        muted, table = np.zeros(len(series), dtype=np.bool_), self._table
        slots = first_slots(table, _spread(datasets, series))
        rows = np.flatnonzero(table.take(slots) != EMPTY)
        while len(rows):
            entries = self._entries.take(table.take(slots[rows]))
            is_same = entries["series"] == series[rows]
            is_same &= entries["dataset"] == entries_of(datasets, rows)
            muted[rows] = is_same & (entries["end"] > entries_of(clock, rows))
            rows = rows[~is_same]  # other pairs took these slots
            slots[rows] = next_slots(table, slots[rows])
            rows = rows[table.take(slots[rows]) != EMPTY]
        return muted

    def _muted_of_few(self, datasets: Integers | int, series: Hashes, clock: Integers | int) -> Mask:
        """Return what `muted` does, without arrays."""
        columns = [repeat(one) if isinstance(one, int) else one.tolist() for one in (datasets, clock)]
        queries = zip(*columns, series.tolist(), strict=False)
        found = [
            (mutes := self._mutes.get(dataset)) is not None and clock_ms < mutes.until(one)
            for dataset, clock_ms, one in queries
        ]
        return np.array(found, dtype=np.bool_)

    def _resize(self, clock_ms: int) -> None:
        """Make room for more entries, and remove those whose mutes have ended at a clock."""
        kept = self._entries[: self._count]
        kept = kept[kept["end"] > clock_ms]
        count = len(kept) + len(kept) // _SPARE
        size = max(_SMALLEST, 1 << (_LOAD * count).bit_length())
        self._table, self._count = empty_table(size), len(kept)
        self._entries = np.append(kept, np.zeros(size // _LOAD - len(kept), _ENTRY))
        slots = first_slots(self._table, _spread(kept["dataset"], kept["series"]))
        enter(self._table, np.arange(len(kept), dtype=np.int32), slots)


def _spread(datasets: Integers | int, series: Hashes) -> Hashes:
    """Return numbers that differ in their first bits, for pairs of dataset and hash of the series."""
    if isinstance(datasets, int):
        return series ^ np.uint64(datasets * _SPREAD & _ALL)
    return series ^ datasets.astype(np.uint64) * np.uint64(_SPREAD)
