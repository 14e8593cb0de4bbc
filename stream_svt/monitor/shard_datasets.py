"""The datasets of one shard: what every engine of the shard needs of their declarations, gathered once."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from stream_svt.monitor.batch import Integers, Mask
from stream_svt.privacy.loss import Kind
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec

AT_ONCE = 5_000
"""Datasets, names or slots looked at between two yields: a few milliseconds of work."""

NEVER = np.iinfo(np.int64).max


class ShardDatasets(Sequence[DatasetSpec]):
    """The datasets of one shard, by number; nothing in it changes once they are filled in.

    Attributes:
        number: A dataset's number, by its name.
        shown, zcdp, limit: Which are shown one by one, which count in rho, and the declared limits in ledger units.
        periods: When queries of a dataset begin and cease to count, in milliseconds; None where no dataset is
            a period.
        patterns: Of each generator the numbers of its datasets, and their longest lateness in milliseconds.
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
        """Return the datasets of these names; KeyError where one is not declared."""
        made = cls(spec.names_shown)
        for _ in made.fill_in_slices([spec.dataset(name) for name in names]):
            pass
        return made

    def __len__(self) -> int:
        return len(self._datasets)

    def __getitem__(self, number: int) -> DatasetSpec:  # type: ignore[override]  # no slices
        return self._datasets[number]

    def __iter__(self) -> Iterator[DatasetSpec]:
        return iter(self._datasets)

    def covers(self, monitor: MonitorSpec) -> Mask:
        """Return on which of them a monitor runs."""
        for _ in self.cover_in_slices(monitor):
            pass
        return self._covered[monitor.datasets]

    def cover_in_slices(self, monitor: MonitorSpec) -> Iterator[None]:
        """Look in slices at which of them a monitor covers; `covers` returns it at once then."""
        if monitor.datasets in self._covered:
            return
        found = np.ones(len(self._datasets), dtype=np.bool_)
        if "*" not in monitor.datasets:
            covers = monitor.covers
            for at in range(0, len(found), AT_ONCE):
                part = self._datasets[at : at + AT_ONCE]
                found[at : at + len(part)] = [covers(dataset.name) for dataset in part]
                yield
        self._covered[monitor.datasets] = found

    def fill_in_slices(self, datasets: Sequence[DatasetSpec]) -> Iterator[None]:
        """Take the datasets in, in slices; they are of use once no slice is left."""
        count = len(datasets)
        self.shown = np.zeros(count, dtype=np.bool_)
        self.zcdp = np.zeros(count, dtype=np.bool_)
        self.limit = np.zeros(count, dtype=np.int64)
        begins = np.zeros(count, dtype=np.int64)
        ends = np.full(count, NEVER, dtype=np.int64)
        has_periods = False
        generated: dict[str, list[int]] = {}
        lateness: dict[str, int] = {}
        for at in range(0, count, AT_ONCE):
            part = datasets[at : at + AT_ONCE]
            end = at + len(part)
            self._datasets += part
            self.number.update((dataset.name, number) for number, dataset in enumerate(part, at))
            self.shown[at:end] = [dataset.name in self._names_shown for dataset in part]
            self.zcdp[at:end] = [dataset.kind is Kind.ZCDP for dataset in part]
            self.limit[at:end] = [dataset.limit for dataset in part]
            if any(dataset.from_ms is not None for dataset in part):
                has_periods = True
                begins[at:end] = [0 if one.from_ms is None else one.from_ms for one in part]
                ends[at:end] = [NEVER if one.ends_ms is None else one.ends_ms for one in part]
                for number, one in enumerate(part, at):
                    if one.pattern:
                        generated.setdefault(one.pattern, []).append(number)
                        lateness[one.pattern] = max(lateness.get(one.pattern, 0), one.lateness_ms or 0)
            yield
        self.periods = (begins, ends) if has_periods else None
        self.patterns = {
            pattern: (np.array(numbers), lateness[pattern]) for pattern, numbers in generated.items()
        }
