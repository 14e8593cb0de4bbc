"""Tallies: multisets of (cell, unit) keys with at most k copies of a key, exact for any parts, orders and repeats.

A key has 64 bits: a cell's number, then the hash of a unit. Of a cell whose most is k, at most k copies of a key count;
since min(min(a, k) + min(b, k), k) = min(a + b, k), copies may be dropped at any time and in any part.

A tally holds its keys in `PARTS` parts by the low bits of the hash, so that all copies of a key are in one of them.
Each part is a list of sorted runs. With each addition one part, in turn, merges its last runs, until each run is at
least twice as long as those behind it together: no addition merges much, and no key is merged often.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_svt.sources.units import HASH, HASH_BITS

Keys: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]

PARTS: Final = 16
NO_KEYS: Final[Keys] = np.empty(0, np.uint64)
_HASH_BITS: Final = np.uint64(HASH_BITS)
_PART: Final = np.uint64(PARTS - 1)
_LONGER: Final = 2


def pack(cells: Integers, hashes: Keys) -> Keys:
    """Return the keys of units in cells, by the cells' numbers (20 bits) and the units' hashes (44 bits)."""
    keys = cells.astype(np.uint64)
    keys <<= _HASH_BITS
    keys |= hashes
    return keys


def cut(keys: Keys, most_of_cell: Integers) -> Keys:
    """Return sorted keys with at most so many copies of each as its cell has; the same array, if it has no more."""
    again = np.flatnonzero(keys[1:] == keys[:-1])
    if not len(again):
        return keys
    again += 1
    copied = keys[again]
    before = again - most_of_cell[cells_of(copied)]
    is_more = (before >= 0) & (keys[np.maximum(before, 0)] == copied)
    keep = np.ones(len(keys), np.bool_)
    keep[again[is_more]] = False
    return keys[keep]


def in_cells(keys: Keys, numbers: Integers) -> Keys:
    """Return the sorted keys of units in other cells, given the new number of each cell, -1 for none."""
    cells = numbers[cells_of(keys)]
    known = cells >= 0
    return sorted_keys(pack(cells[known], keys[known] & HASH))


def sorted_keys(keys: Keys) -> Keys:
    """Return keys in order; the same array, if they are."""
    return keys if bool((keys[1:] >= keys[:-1]).all()) else np.sort(keys)


class Tally:
    """The keys of a window, or of a part of its records.

    Args:
        most_of_cell: How many copies of a key count, by its cell's number: 1 or more.
    """

    def __init__(self, most_of_cell: Integers) -> None:
        self._most = most_of_cell
        self._parts: list[list[Keys]] = [[] for _ in range(PARTS)]
        self._turn = 0

    @property
    def pairs(self) -> int:
        """How many keys are held: some more than count, until `parts` or `counts` has merged them."""
        return sum(len(run) for runs in self._parts for run in runs)

    def add(self, keys: Keys) -> None:
        """Add keys, in any order; a sorted array takes less time."""
        keys = cut(sorted_keys(keys), self._most)
        part = (keys & _PART).astype(np.uint8)
        keys = keys[np.argsort(part, kind="stable")]
        bounds = np.bincount(part, minlength=PARTS).cumsum().tolist()
        for runs, (first, end) in zip(self._parts, pairwise([0, *bounds]), strict=True):
            if first < end:
                runs.append(keys[first:end])
        self._tidy()

    def merge(self, other: Tally) -> None:
        """Add the keys of a tally with the same cells, which stays as it is."""
        for runs, more in zip(self._parts, other._parts, strict=True):
            runs.extend(more)
        self._tidy()

    def parts(self) -> Iterator[Keys]:
        """Yield the keys of one part after the other, sorted and cut."""
        for number, runs in enumerate(self._parts):
            if runs:
                yield self.part(number)

    def part(self, number: int) -> Keys:
        """Return the keys of a part, sorted and cut."""
        runs = self._parts[number]
        self._merge_last(runs, len(runs))
        return runs[0] if runs else NO_KEYS

    def counts(self) -> Integers:
        """Return how many keys each cell has."""
        return [np.zeros(len(self._most), np.int64), *self.count_in_steps()][-1]

    def count_in_steps(self) -> Iterator[Integers]:
        """Yield what `counts` returns, each time with one more part of the keys; nothing may be added meanwhile."""
        counts = np.zeros(len(self._most), np.int64)
        for keys in self.parts():
            counts += np.bincount(cells_of(keys), minlength=len(counts))
            yield counts

    def _tidy(self) -> None:
        """Merge the last runs of the next part, until each is long enough for those behind it."""
        runs = self._parts[self._turn]
        self._turn = (self._turn + 1) % PARTS
        behind = sum(map(len, runs))
        for index, run in enumerate(runs):
            behind -= len(run)
            if len(run) < _LONGER * behind:
                self._merge_last(runs, len(runs) - index)
                return

    def _merge_last(self, runs: list[Keys], count: int) -> None:
        if count > 1:
            merged = np.concatenate(runs[-count:])
            merged.sort(kind="stable")  # merges sorted runs, many times faster than the default
            runs[-count:] = [cut(merged, self._most)]


def cells_of(keys: Keys) -> Integers:
    """Return the numbers of the keys' cells."""
    return (keys >> _HASH_BITS).view(np.int64)
