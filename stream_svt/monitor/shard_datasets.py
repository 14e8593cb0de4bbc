"""The datasets of one shard: their declarations in the form that every engine of the shard needs, gathered once."""

from __future__ import annotations

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
    """The datasets of one shard, by number; immutable after `fill_in_slices`.

    Attributes:
        number: Dataset numbers by name.
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
        covered = np.ones(len(self._datasets), dtype=np.bool_)
        if "*" not in monitor.datasets:
            covers = monitor.covers
            for start in range(0, len(covered), AT_ONCE):
                part = self._datasets[start : start + AT_ONCE]
                covered[start : start + len(part)] = [covers(dataset.name) for dataset in part]
                yield
        self._covered[monitor.datasets] = covered

    def fill_in_slices(self, datasets: Sequence[DatasetSpec]) -> Iterator[None]:
        """Add the datasets, in slices; they may be used after the last one."""
        count = len(datasets)
        self.shown = np.zeros(count, dtype=np.bool_)
        self.zcdp = np.zeros(count, dtype=np.bool_)
        self.limit = np.zeros(count, dtype=np.int64)
        begins = np.zeros(count, dtype=np.int64)
        ends = np.full(count, NEVER, dtype=np.int64)
        has_periods = False
        generated: dict[str, list[int]] = {}
        lateness: dict[str, int] = {}
        for start in range(0, count, AT_ONCE):
            part = datasets[start : start + AT_ONCE]
            end = start + len(part)
            self._datasets += part
            self.number.update((dataset.name, number) for number, dataset in enumerate(part, start))
            self.shown[start:end] = [dataset.name in self._names_shown for dataset in part]
            self.zcdp[start:end] = [dataset.kind is Kind.ZCDP for dataset in part]
            self.limit[start:end] = [dataset.limit for dataset in part]
            if any(dataset.from_ms is not None for dataset in part):
                has_periods = True
                begins[start:end] = [0 if one.from_ms is None else one.from_ms for one in part]
                ends[start:end] = [NEVER if one.ends_ms is None else one.ends_ms for one in part]
                for number, one in enumerate(part, start):
                    if one.pattern:
                        generated.setdefault(one.pattern, []).append(number)
                        lateness[one.pattern] = max(lateness.get(one.pattern, 0), one.lateness_ms or 0)
            yield
        self.periods = (begins, ends) if has_periods else None
        self.patterns = {
            pattern: (np.array(numbers), lateness[pattern]) for pattern, numbers in generated.items()
        }
