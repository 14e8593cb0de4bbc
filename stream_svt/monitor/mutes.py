"""Muted series: which they are, and how the few queries of a batch that may meet one are found.

`MonitorMutes` holds those of a monitor. `MuteFilter` spares a look-up for each query: it counts over (dataset, series),
so what it does not hit is surely not muted, and what it hits is looked up. The hash is Python's own, so hits differ
between processes; outcomes do not, since every hit is looked up exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.snapshot import Mute, Name

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
class Mutes(Queue[Mute]):
    """Muted series of a monitor on a dataset, oldest first."""

    kind: ClassVar[int] = 2
    holds: ClassVar[tuple[type, ...]] = (Mute,)

    def get(self, series: str) -> int | None:
        """Return until when a series is muted, None where it is not."""
        mute = self.entries.get(series)
        return None if mute is None else mute.until

    def add(self, series: str, until: int) -> bool:
        """Add the newest mute; return whether it took the place of one of the same series."""
        known = series in self.entries
        if known:
            self.remove(series)
        self.count += 1
        self.put(series, Mute(self.count, series, until))
        return known


class MuteFilter:
    """Counts of muted (dataset, series) by a few bits of their hash; a sixteenth of it is in use at most."""

    def __init__(self) -> None:
        self._counts = np.zeros(_LEAST, dtype=np.uint32)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of mutes."""
        return self._size

    def add(self, dataset: int, series: Collection[Name], everything: Mapping[int, Mutes]) -> None:
        """Count mutes of a dataset. ``everything`` holds all mutes by dataset, these included: for when it grows."""
        self._size += len(series)
        if self._size * _LOAD > len(self._counts):
            run_states = len(self._counts)
            while self._size * _LOAD > run_states:
                run_states *= 4
            self._counts = np.zeros(run_states, dtype=np.uint32)
            for number, mutes in everything.items():
                self._count(number, mutes.entries)
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

    def _count(self, dataset: int, series: Iterable[Name]) -> None:
        for name in series:
            self._counts[self._place(dataset, name)] += 1

    def _place(self, dataset: int, series: Name) -> int:
        key = ((hash(series) & _MASK) ^ (dataset * _SPREAD & _MASK)) * _SPREAD & _MASK
        return key >> (64 - (len(self._counts).bit_length() - 1))


class MonitorMutes:
    """The muted series of one monitor, by dataset number in ``held``."""

    def __init__(self) -> None:
        self.held: dict[int, Mutes] = {}
        self._filter = MuteFilter()

    def __len__(self) -> int:
        """Return the number of mutes, those that ran out included."""
        return len(self._filter)

    def count(self, dataset: int) -> int:
        """Return the number of mutes on a dataset."""
        held = self.held.get(dataset)
        return 0 if held is None else len(held.entries)

    def hold(self, dataset: int, mutes: Mutes) -> None:
        """Go by these mutes of a dataset from now on."""
        self.held[dataset] = mutes
        self._filter.add(dataset, mutes.entries, self.held)

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
        while mutes.entries:
            oldest = next(iter(mutes.entries.values()))
            if oldest.until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < oldest.until:
                break
            self._discard(dataset, oldest.series)
        if not mutes.add(series, until):
            self._filter.add(dataset, [series], self.held)
        every = mutes.entries.values()
        ended = [mute.series for mute in islice(every, max(0, len(every) - most))]
        for name in ended:
            self._discard(dataset, name)
        return ended

    def end_run(self, dataset: int) -> None:
        """End the mutes of a dataset that hold until the run ends."""
        if dataset in self.held:
            every = self.held[dataset].entries.values()
            for series in [mute.series for mute in every if mute.until == UNTIL_RUN_ENDS]:
                self._discard(dataset, series)

    def _discard(self, dataset: int, series: str) -> None:
        self.held[dataset].remove(series)
        self._filter.remove(dataset, series)
