"""The muted series of one monitor on the datasets of a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stream_svt.columns.query_batch import Mask
from stream_svt.columns.strings import Hashes, TextList, Texts
from stream_svt.monitor.state.accounts import Accounts
from stream_svt.monitor.state.mutes import MuteIndex, Mutes, clock_of


class SeriesMutes:
    """The muted series of one monitor: ``of`` has them by dataset number, ``index`` looks up many queries at once.

    ``watching`` are the datasets with a `WatchedMute`.
    """

    def __init__(self, accounts: Accounts, monitor: str) -> None:
        self._accounts, self._monitor = accounts, monitor
        self.of = accounts.mutes.setdefault(monitor, {})
        self.index = MuteIndex(self.of)
        self.watching = {dataset for dataset, mutes in self.of.items() if mutes.watched}

    def load(self, held: Mapping[int, Mutes]) -> None:
        """Look up the mutes of some datasets, which were loaded into ``of``."""
        self.index.load(held)
        self.watching |= {dataset for dataset, mutes in held.items() if mutes.watched}

    def hash_of(self, series: str) -> int:
        """Return the hash by which mutes know a series."""
        return self._accounts.hashing.of(series.encode())

    def hashes_of(self, series: Texts) -> Hashes:
        """Return the hashes by which mutes know series; the lack of a series has one, too."""
        return series.hashes(self._accounts.hashing)

    def count(self, dataset: int) -> int:
        """Return the number of muted series of a dataset."""
        return len(self.of[dataset].entries) if dataset in self.of else 0

    def holds(self, dataset: int, series: str | None, clock_ms: int) -> bool:
        """Return whether a series of a dataset is muted at a clock."""
        if series is None or dataset not in self.of:
            return False
        return clock_ms < self.of[dataset].until(self.hash_of(series))

    def held(self, dataset: int, series: Sequence[str | None], clock_ms: int) -> Mask:
        """Return whether each of some series of a dataset is muted at a clock."""
        if dataset not in self.of:
            return np.zeros(len(series), dtype=np.bool_)
        return self.index.muted(dataset, self.hashes_of(TextList(series)), clock_ms)

    def add(
        self,
        dataset: int,
        series: int,
        until: int,
        clock_ms: int,
        max_mutes: int,
        watch: tuple[Any, ...] = (),
    ) -> list[int]:
        """Mute a series of a dataset, by hash; return series unmuted because of ``max_mutes``. See `Mutes.add`."""
        if dataset not in self.of:
            self.of[dataset] = self._accounts.new_queue(Mutes, self._monitor, dataset)
        ended = self.of[dataset].add(series, until, clock_ms, max_mutes, watch)
        self._note_watched(dataset)
        self.index.put(dataset, series, clock_of(until), clock_ms)
        for oldest in ended:
            self.index.remove(dataset, oldest)
        return ended

    def remove(self, dataset: int, series: int) -> None:
        """End the mute of a series of a dataset, by hash, if it has one."""
        if dataset in self.of and series in self.of[dataset].entries:
            self.of[dataset].remove(series)
            self._note_watched(dataset)
            self.index.remove(dataset, series)

    def _note_watched(self, dataset: int) -> None:
        (self.watching.add if self.of[dataset].watched else self.watching.discard)(dataset)

    def end_run(self, dataset: int) -> None:
        """End the mutes of a dataset that end with its run."""
        if dataset in self.of:
            for series in self.of[dataset].end_run():
                self.index.remove(dataset, series)
