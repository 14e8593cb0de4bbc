"""The datasets of one shard: their declarations in the form that every engine of the shard needs, gathered once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

import numpy as np

from stream_svt.monitor.batch import Integers, Mask
from stream_svt.privacy.loss import Kind
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec

AT_ONCE = 5_000
"""Datasets, names or monitors' states taken between two yields: a few milliseconds of work."""
NEVER = np.iinfo(np.int64).max


class ShardDatasets(Sequence[DatasetSpec]):
    """The datasets of one shard, by number; immutable after `fill_in_slices`, and shared by its engines.

    Attributes:
        shown, zcdp, limit: Masks of those shown one by one, and of those in rho; declared limits, in ledger units.
        periods: Begin and end (ms) of each dataset's period; None if no dataset has a period.
        patterns: Numbers of each generator's datasets, and their longest lateness in milliseconds.
    """

    def __init__(self, names_shown: Container[str] = frozenset()) -> None:
        self._names_shown = names_shown
        self._datasets: list[DatasetSpec] = []
        self._covered: dict[tuple[str, ...], Mask] = {}
        self.number: dict[str, int] = {}
        self.periods: tuple[Integers, Integers] | None = None
        self.patterns: dict[str, tuple[Integers, int]] = {}

    @classmethod
    def of_names(cls, spec: ApplicationSpec, names: Sequence[str]) -> ShardDatasets:
        """Return the datasets of these names; KeyError if one is not declared."""
        datasets = cls(spec.names_shown)
        for _ in datasets.fill_in_slices([spec.dataset(name) for name in names]):
            pass
        return datasets

    def __len__(self) -> int:
        return len(self._datasets)

    def __getitem__(self, number: int) -> DatasetSpec:  # type: ignore[override]  # no slices
        return self._datasets[number]

    def __iter__(self) -> Iterator[DatasetSpec]:
        return iter(self._datasets)

    def covers(self, monitor: MonitorSpec) -> Mask:
        """Return the mask of the datasets that a monitor covers."""
        for _ in self.cover_in_slices(monitor):
            pass
        return self._covered[monitor.datasets]

    def cover_in_slices(self, monitor: MonitorSpec) -> Iterator[None]:
        """Compute the mask of a monitor in slices, so that `covers` returns it at once."""
        if monitor.datasets in self._covered:
            return
        covered = np.ones(len(self), dtype=np.bool_)
        if "*" not in monitor.datasets:
            covers = monitor.covers
            for start in range(0, len(self), AT_ONCE):
                part = self._datasets[start : start + AT_ONCE]
                covered[start : start + len(part)] = [covers(dataset.name) for dataset in part]
                yield
        self._covered[monitor.datasets] = covered

    def fill_in_slices(self, datasets: Sequence[DatasetSpec]) -> Iterator[None]:
        """Add the datasets, in slices; they may be used after the last one."""
        self.shown, self.zcdp = np.zeros((2, len(datasets)), dtype=np.bool_)
        self.limit, begins = np.zeros((2, len(datasets)), dtype=np.int64)
        ends = np.full(len(datasets), NEVER, dtype=np.int64)
        generated: dict[str, list[int]] = defaultdict(list)
        lateness: dict[str, int] = defaultdict(int)
        for start in range(0, len(datasets), AT_ONCE):
            part = datasets[start : start + AT_ONCE]
            rows = slice(start, start + len(part))
            self._datasets += part
            self.number.update((dataset.name, number) for number, dataset in enumerate(part, start))
            self.shown[rows] = [dataset.name in self._names_shown for dataset in part]
            self.zcdp[rows] = [dataset.kind is Kind.ZCDP for dataset in part]
            self.limit[rows] = [dataset.limit for dataset in part]
            for number, one in enumerate(part, start):
                if one.from_ms is not None:
                    begins[number], ends[number] = one.from_ms, NEVER if one.ends_ms is None else one.ends_ms
                if one.pattern:
                    generated[one.pattern].append(number)
                    lateness[one.pattern] = max(lateness[one.pattern], one.lateness_ms or 0)
            yield
        if begins.any() or (ends != NEVER).any():
            self.periods = begins, ends
        self.patterns = {name: (np.array(numbers), lateness[name]) for name, numbers in generated.items()}
