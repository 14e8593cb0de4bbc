"""The datasets of one shard: their declarations in the form that every engine of the shard needs, gathered once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np

from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.privacy.loss import Kind
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec

AT_ONCE = 5_000
"""Datasets, names or monitors' states taken between two yields: a few milliseconds of work."""
NEVER = np.iinfo(np.int64).max
SHOWN = 0
"""Group of the datasets that are shown one by one."""
KINDS: Mapping[int, Kind] = {1: Kind.PURE, 2: Kind.ZCDP}
"""Measure of the ledgers in each group of the others."""
_GROUPS = {kind: group for group, kind in KINDS.items()}


class ShardDatasets(Sequence[DatasetSpec]):
    """The datasets of one shard, by number; immutable after `fill_in_slices`, and shared by its engines.

    Attributes:
        group, limits: Each dataset's group, `SHOWN` or one of `KINDS`; the sum of each group's declared limits.
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
        group, self.limits = bytearray(), [0, 0, 0]
        begins = np.zeros(len(datasets), dtype=np.int64)
        ends = np.full(len(datasets), NEVER, dtype=np.int64)
        generated: dict[str, list[int]] = defaultdict(list)
        lateness: dict[str, int] = defaultdict(int)
        for start in range(0, len(datasets), AT_ONCE):
            part = datasets[start : start + AT_ONCE]
            self._datasets += part
            self.number.update((dataset.name, number) for number, dataset in enumerate(part, start))
            for number, one in enumerate(part, start):
                group.append(SHOWN if one.name in self._names_shown else _GROUPS[one.terms.kind])
                self.limits[group[-1]] += one.terms.limit
                if one.terms.from_ms is not None:
                    begins[number] = one.terms.from_ms
                    ends[number] = NEVER if one.terms.ends_ms is None else one.terms.ends_ms
                if one.terms.pattern:
                    generated[one.terms.pattern].append(number)
                    lateness[one.terms.pattern] = max(lateness[one.terms.pattern], one.terms.lateness_ms or 0)
            yield
        self.group = bytes(group)
        if begins.any() or (ends != NEVER).any():
            self.periods = begins, ends
        self.patterns = {name: (np.array(numbers), lateness[name]) for name, numbers in generated.items()}
