"""The series that a monitor's tops mute, and a filter that finds queries of muted series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.batch import Integers
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.shard_datasets import NEVER
from stream_svt.monitor.snapshot import StoredMute
from stream_svt.monitor.texts import TextList, Texts, hash_of

FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Ends of mutes that are not a clock."""
NEVER_MUTED = -1
"""A clock before all others."""
_SPREAD = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1
_SMALLEST, _LOAD = 2**14, 64
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
        return NEVER_MUTED if mute is None else _end(mute)

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

    def end_run(self) -> None:
        """End the mutes that hold until the run ends."""
        self._discard(mute for mute in self.entries.values() if mute.until == UNTIL_RUN_ENDS)

    def _discard(self, mutes: Iterable[StoredMute]) -> list[str]:
        names = [mute.name for mute in mutes]
        for series in names:
            self.remove(series)
        return names


def _end(mute: StoredMute) -> int:
    """Return the clock (ms) at which a mute ends."""
    return NEVER if mute.until < 0 else mute.until


class MuteFilter:
    """A Bloom filter, with one hash function, of a monitor's mutes: finds all muted queries and few others.

    The caller looks each hit up: outcomes do not depend on the hash, which differs between processes.
    """

    def __init__(self, mutes: Mapping[int, Mutes]) -> None:
        self._mutes = mutes
        self._rebuild(mutes)

    def hits(self, datasets: Integers | int, hashes: NDArray[np.uint64]) -> Integers:
        """Return the indexes of queries that may be muted, given dataset, or that of all, and hash of their series."""
        return np.flatnonzero(self._marks.take(self._indexes(datasets, hashes)))

    def add(self, dataset: int, *hashes: int) -> None:
        """Add new mutes of a dataset; a full filter is rebuilt without the mutes that have ended."""
        self._count += len(hashes)
        self._datasets.add(dataset)
        if self._count * _LOAD > len(self._marks):
            self._rebuild(self._datasets)
            return
        for one in hashes:  # as in `_indexes`, without arrays
            self._marks[((one ^ dataset * _SPREAD) * _SPREAD & _ALL) >> self._shift] = True

    def _rebuild(self, datasets: Collection[int]) -> None:
        """Mark the mutes of these datasets, which are all that may have some."""
        entries = {
            number: held.entries
            for number in datasets
            if (held := self._mutes.get(number)) is not None and held.entries
        }
        self._datasets = set(entries)
        sizes = [len(series) for series in entries.values()]
        self._count = sum(sizes)
        self._marks = np.zeros(max(_SMALLEST, 1 << (2 * _LOAD * self._count).bit_length()), dtype=np.bool_)
        self._shift = 65 - len(self._marks).bit_length()
        numbers = np.repeat(np.array(list(entries), dtype=np.int64), sizes)
        series = TextList([mute.name for held in entries.values() for mute in held.values()])
        self._marks[self._indexes(numbers, series.hashes())] = True

    def _indexes(self, datasets: Integers | int, hashes: NDArray[np.uint64]) -> Integers:
        spread = np.uint64(_SPREAD)
        if isinstance(datasets, int):
            keys = hashes ^ np.uint64(datasets * _SPREAD & _ALL)
        else:
            keys = hashes ^ (datasets.view(np.uint64) * spread)
        keys *= spread
        keys >>= np.uint64(self._shift)
        return keys.view(np.int64)


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

    def __init__(self, mutes: Mapping[int, Mutes], hits: MuteFilter) -> None:
        self._mutes, self._filter = mutes, hits
        self._entries: Texts | None = None
        self._known: dict[int, _MutedCodes] = {}

    def at(self, dataset: int, entries: Texts, clock_ms: int) -> Integers:
        """Return the codes of the entries that are muted at a clock, for a dataset that has mutes."""
        if entries is not self._entries or len(self._known) > _CODES_KEPT:
            self._entries, self._known = entries, {}
        mutes, known = self._mutes[dataset], self._known.get(dataset)
        if known is None or known.mutes is not mutes or known.removed != mutes.removed:
            codes = self._filter.hits(dataset, entries.hashes())
            known = self._known[dataset] = _MutedCodes(
                mutes, mutes.count, mutes.removed, *_muted(mutes, entries, codes)
            )
        elif known.count != mutes.count:
            newest = [*islice(reversed(mutes.entries.values()), mutes.count - known.count)]
            hashes = np.array([hash_of(mute.name.encode()) for mute in newest], dtype=np.uint64)
            codes, ends = _muted(mutes, entries, np.flatnonzero(np.isin(entries.hashes(), hashes)))
            known.codes, known.ends = np.append(known.codes, codes), np.append(known.ends, ends)
            known.count = mutes.count
        return known.codes[clock_ms < known.ends]


def _muted(mutes: Mutes, entries: Texts, codes: Integers) -> tuple[Integers, Integers]:
    """Return the codes, of these, whose entry has a mute, and the clocks (ms) at which these mutes end."""
    ends = np.array([mutes.until(entries[code]) for code in codes.tolist()], dtype=np.int64)
    return codes[ends != NEVER_MUTED], ends[ends != NEVER_MUTED]
