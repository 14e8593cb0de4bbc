"""Muted series: which they are, and how the few queries of a batch that may meet one are found.

`MonitorMutes` holds those of a monitor. `MuteFilter` spares a look-up for each query: it counts over (dataset, series),
so what it does not hit is surely not muted, and what it hits is looked up. The hash is Python's own, so hits differ
between processes; outcomes do not, since every hit is looked up exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.snapshot import SPLIT, MuteRecord, to_bytes

FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Instead of a clock: when a mute ends."""

_PART_BYTES = 50_000
_ITEM_BYTES = 16
"""Bytes that a mute takes beside its series' name, at most."""
_SPREAD = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_LEAST = 2**12
_LOAD = 16


def series_hashes(series: Iterable[str | None], count: int) -> NDArray[np.uint64]:
    """Return one number for each series of a batch; equal series have equal numbers."""
    return np.fromiter(map(hash, series), dtype=np.int64, count=count).view(np.uint64)


class Mutes:
    """Muted series of a monitor on a dataset, oldest first, each with the clock (ms) at which it wakes.

    They are held in parts, each a state record where the dataset has many: a new mute goes to the newest part until
    that is full, so a commit writes no more than the parts that changed. Where a part begins follows from the mutes
    that came and went, not from commits. ``size`` is about how many bytes all of them take.
    """

    __slots__ = ("_changed", "_part_of", "_parts", "_sizes", "size")

    def __init__(self, mutes: Iterable[tuple[str, int]] = ()) -> None:
        self.size = 0
        self._parts: dict[int, dict[str, int]] = {}
        self._sizes: dict[int, int] = {}
        self._part_of: dict[str, int] = {}
        self._changed: set[int] = set()
        for series, until in mutes:
            self.add(series, until)

    @classmethod
    def restore(cls, parts: Iterable[tuple[int, MuteRecord]]) -> Mutes:
        """Return the mutes that wrote the parts."""
        mutes = cls()
        for number, record in sorted(parts, key=lambda part: part[0]):
            for series, until in record.mutes:
                mutes.discard(series)
                mutes._put(number, series, until)
        mutes._changed.clear()
        return mutes

    def __eq__(self, other: object) -> bool:
        """Compare series, clocks and order, not the parts."""
        return isinstance(other, Mutes) and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """Return the number of mutes."""
        return len(self._part_of)

    def __iter__(self) -> Iterator[str]:
        """Return the series, oldest mute first."""
        return (series for part in self._parts.values() for series in part)

    def __contains__(self, series: object) -> bool:
        """Tell whether there is a mute of a series, run out or not."""
        return series in self._part_of

    def items(self) -> Iterator[tuple[str, int]]:
        """Return (series, until), oldest mute first."""
        return (item for part in self._parts.values() for item in part.items())

    def get(self, series: str) -> int | None:
        """Return until when a series is muted, None where it is not."""
        number = self._part_of.get(series)
        return None if number is None else self._parts[number][series]

    def add(self, series: str, until: int) -> bool:
        """Add the newest mute; return whether it took the place of one of the same series."""
        known = self.discard(series)
        newest = next(reversed(self._parts), 0)
        self._put(newest + (self._sizes.get(newest, 0) >= _PART_BYTES), series, until)
        return known

    def discard(self, series: str) -> bool:
        """End a mute; return whether there was one."""
        number = self._part_of.pop(series, None)
        if number is None:
            return False
        part, size = self._parts[number], _size(series)
        del part[series]
        self._sizes[number] -= size
        self.size -= size
        self._changed.add(number)
        if not part:
            del self._parts[number], self._sizes[number]
        return True

    def save(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield (number, record) of the parts that changed since the last save, None for one that is no more."""
        for number in sorted(self._changed):
            part = self._parts.get(number)
            yield number, None if part is None else to_bytes(MuteRecord(SPLIT, list(part.items())))
        self._changed = set()

    def _put(self, number: int, series: str, until: int) -> None:
        """Add the newest mute of a part."""
        size = _size(series)
        self._parts.setdefault(number, {})[series] = until
        self._sizes[number] = self._sizes.get(number, 0) + size
        self.size += size
        self._part_of[series] = number
        self._changed.add(number)


def _size(series: str) -> int:
    return len(series.encode()) + _ITEM_BYTES


class MuteFilter:
    """Counts of muted (dataset, series) by a few bits of their hash; a sixteenth of it is in use at most."""

    def __init__(self) -> None:
        self._counts = np.zeros(_LEAST, dtype=np.uint32)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of mutes."""
        return self._size

    def add(self, dataset: int, series: Collection[str], everything: Mapping[int, Iterable[str]]) -> None:
        """Count mutes of a dataset. ``everything`` holds all mutes by dataset, these included: for when it grows."""
        self._size += len(series)
        if self._size * _LOAD > len(self._counts):
            run_states = len(self._counts)
            while self._size * _LOAD > run_states:
                run_states *= 4
            self._counts = np.zeros(run_states, dtype=np.uint32)
            for number, names in everything.items():
                self._count(number, names)
        else:
            self._count(dataset, series)

    def remove(self, dataset: int, series: str) -> None:
        """Take back a mute that was counted."""
        self._size -= 1
        self._counts[self._place(dataset, series)] -= 1

    def hits(self, datasets: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which queries may be muted; all that are, and few others."""
        keys = (hashes ^ (datasets.view(np.uint64) * np.uint64(_SPREAD))) * np.uint64(_SPREAD)
        shift = np.uint64(64 - (len(self._counts).bit_length() - 1))
        return np.flatnonzero(self._counts[(keys >> shift).view(np.int64)])

    def _count(self, dataset: int, series: Iterable[str]) -> None:
        for name in series:
            self._counts[self._place(dataset, name)] += 1

    def _place(self, dataset: int, series: str) -> int:
        key = ((hash(series) & _MASK) ^ (dataset * _SPREAD & _MASK)) * _SPREAD & _MASK
        return key >> (64 - (len(self._counts).bit_length() - 1))


class MonitorMutes:
    """The muted series of one monitor. ``held`` has them by dataset number; the ledgers of the datasets own them."""

    def __init__(self) -> None:
        self.held: dict[int, Mutes] = {}
        self._filter = MuteFilter()

    def __len__(self) -> int:
        """Return the number of mutes, those that ran out included."""
        return len(self._filter)

    def hold(self, dataset: int, mutes: Mutes) -> None:
        """Go by these mutes of a dataset from now on."""
        self.held[dataset] = mutes
        self._filter.add(dataset, mutes, self.held)

    def is_muted(self, dataset: int, series: str | None, clock_ms: int) -> bool:
        """Tell whether a series of a dataset is muted at a clock."""
        if series is None or dataset not in self.held:
            return False
        until = self.held[dataset].get(series)
        return until is not None and (until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < until)

    def hits(self, datasets: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which queries may be muted, as `MuteFilter.hits`."""
        return self._filter.hits(datasets, hashes)

    def add(self, dataset: int, series: str, until: int, clock_ms: int, most: int) -> list[str]:
        """Mute a series of a held dataset; return the oldest ones, which end where there are more than ``most``.

        Those of the dataset that ran out are forgotten first.
        """
        mutes = self.held[dataset]
        while len(mutes):
            oldest, end = next(mutes.items())
            if end in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < end:
                break
            self._discard(dataset, oldest)
        if not mutes.add(series, until):
            self._filter.add(dataset, [series], self.held)
        ended = list(islice(mutes, max(0, len(mutes) - most)))
        for oldest in ended:
            self._discard(dataset, oldest)
        return ended

    def end_run(self, dataset: int) -> None:
        """End the mutes of a dataset that hold until the run ends."""
        if dataset in self.held:
            items = self.held[dataset].items()
            for series in [series for series, until in items if until == UNTIL_RUN_ENDS]:
                self._discard(dataset, series)

    def _discard(self, dataset: int, series: str) -> None:
        self.held[dataset].discard(series)
        self._filter.remove(dataset, series)
