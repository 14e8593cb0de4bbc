"""Muted series: which they are, and how the few queries of a batch that may meet one are found.

A filter spares a look-up for each query: what it does not hit is surely not muted, and what it hits is looked up. So
outcomes do not depend on Python's hash, which differs between processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.snapshot import Name, StoredMute

FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Instead of a clock: when a mute ends."""

_SPREAD = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_LEAST = 2**12
_LOAD = 16


def series_hashes(series: Iterable[str | None], count: int) -> NDArray[np.uint64]:
    """Return one number for each series of a batch; equal series have equal numbers."""
    return np.fromiter(map(hash, series), dtype=np.int64, count=count).view(np.uint64)


@dataclass(slots=True, repr=False, eq=False)
class Mutes(Queue[StoredMute]):
    """Muted series of a monitor on a dataset, oldest first."""

    kind: ClassVar[int] = 2
    holds: ClassVar[tuple[type, ...]] = (StoredMute,)

    def add(self, series: str, until: int) -> bool:
        """Add the newest mute; return whether it took the place of one of the same series."""
        known = series in self.entries
        if known:
            self.remove(series)
        self.count += 1
        self.put(StoredMute(self.count, series, until))
        return known


class MonitorMutes:
    """The muted series of one monitor by dataset number in ``held``; the filter counts them by bits of their hash."""

    def __init__(self) -> None:
        self.held: dict[int, Mutes] = {}
        self._counts = np.zeros(_LEAST, dtype=np.uint32)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of mutes."""
        return self._size

    def count(self, dataset: int) -> int:
        """Return the number of mutes on a dataset."""
        held = self.held.get(dataset)
        return 0 if held is None else len(held.entries)

    def hold(self, dataset: int, mutes: Mutes) -> None:
        """Go by these mutes of a dataset from now on."""
        self.held[dataset] = mutes
        self._count(dataset, mutes.entries)

    def is_muted(self, dataset: int, series: str | None, clock_ms: int) -> bool:
        """Tell whether a series of a dataset is muted at a clock."""
        if series is None or dataset not in self.held:
            return False
        mute = self.held[dataset].entries.get(series)
        return mute is not None and _holds(mute, clock_ms)

    def hits(self, datasets: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which queries may be muted; all that are, and few others."""
        keys = (hashes ^ (datasets.view(np.uint64) * np.uint64(_SPREAD))) * np.uint64(_SPREAD)
        shift = np.uint64(64 - (len(self._counts).bit_length() - 1))
        return np.flatnonzero(self._counts[(keys >> shift).view(np.int64)])

    def add(self, dataset: int, series: str, until: int, clock_ms: int, most: int) -> list[str]:
        """Mute a series; forget those that ran out, and return the oldest ones, which end beyond ``most``."""
        mutes = self.held[dataset]
        every = mutes.entries.values()
        self._discard(dataset, takewhile(lambda mute: not _holds(mute, clock_ms), every))
        if not mutes.add(series, until):
            self._count(dataset, [series])
        return self._discard(dataset, islice(every, max(0, len(every) - most)))

    def end_run(self, dataset: int) -> None:
        """End the mutes of a dataset that hold until the run ends."""
        if dataset in self.held:
            every = self.held[dataset].entries.values()
            self._discard(dataset, (mute for mute in every if mute.until == UNTIL_RUN_ENDS))

    def _discard(self, dataset: int, mutes: Iterable[StoredMute]) -> list[str]:
        names = [mute.series for mute in mutes]
        for series in names:
            self.held[dataset].remove(series)
            self._size -= 1
            self._counts[self._place(dataset, series)] -= 1
        return names

    def _count(self, dataset: int, series: Collection[Name]) -> None:
        """Count new mutes of a held dataset; where the filter grows, all are counted anew."""
        self._size += len(series)
        places = len(self._counts)
        while self._size * _LOAD > places:
            places *= 4
        added: Iterable[tuple[int, Iterable[Name]]] = [(dataset, series)]
        if places > len(self._counts):
            self._counts = np.zeros(places, dtype=np.uint32)
            added = [(number, mutes.entries) for number, mutes in self.held.items()]
        for number, names in added:
            for name in names:
                self._counts[self._place(number, name)] += 1

    def _place(self, dataset: int, series: Name) -> int:
        key = ((hash(series) & _MASK) ^ (dataset * _SPREAD & _MASK)) * _SPREAD & _MASK
        return key >> (64 - (len(self._counts).bit_length() - 1))


def _holds(mute: StoredMute, clock_ms: int) -> bool:
    return mute.until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < mute.until
