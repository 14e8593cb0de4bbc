"""Finds the few queries of a batch whose series may be muted, without a look-up for each.

A counting filter over (dataset, series): what it does not hit is surely not muted, what it hits is looked up. The
hash is Python's own, so hits differ between processes; outcomes do not, since every hit is looked up exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

_SPREAD = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_LEAST = 2**12
_LOAD = 16


def series_hashes(series: Iterable[str | None], count: int) -> NDArray[np.uint64]:
    """Return one number for each series of a batch; equal series have equal numbers."""
    return np.fromiter(map(hash, series), dtype=np.int64, count=count).view(np.uint64)


class MuteFilter:
    """Counts of muted (dataset, series) by a few bits of their hash; a sixteenth of it is in use at most."""

    def __init__(self) -> None:
        self._counts = np.zeros(_LEAST, dtype=np.uint32)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of mutes."""
        return self._size

    def add(self, dataset: int, series: str, everything: Mapping[int, Iterable[str]]) -> None:
        """Count a mute. ``everything`` holds all mutes by dataset, this one included: used when the filter grows."""
        self._size += 1
        if self._size * _LOAD > len(self._counts):
            self._counts = np.zeros(len(self._counts) * 4, dtype=np.uint32)
            for number, names in everything.items():
                for name in names:
                    self._counts[self._place(number, name)] += 1
            return
        self._counts[self._place(dataset, series)] += 1

    def remove(self, dataset: int, series: str) -> None:
        """Take back a mute that was counted."""
        self._size -= 1
        self._counts[self._place(dataset, series)] -= 1

    def hits(self, datasets: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which queries may be muted; all that are, and few others."""
        keys = (hashes ^ (datasets.view(np.uint64) * np.uint64(_SPREAD))) * np.uint64(_SPREAD)
        shift = np.uint64(64 - (len(self._counts).bit_length() - 1))
        return np.flatnonzero(self._counts[(keys >> shift).view(np.int64)])

    def _place(self, dataset: int, series: str) -> int:
        key = ((hash(series) & _MASK) ^ (dataset * _SPREAD & _MASK)) * _SPREAD & _MASK
        return key >> (64 - (len(self._counts).bit_length() - 1))
