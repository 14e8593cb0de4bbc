"""The datasets of one shard: what every engine of the shard needs of their declarations, gathered once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.datasets import DatasetSpec
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.privacy.loss import Kind

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

AT_ONCE = 5_000
"""Datasets looked at between two yields: a few milliseconds of work."""

NEVER = np.iinfo(np.int64).max


class ShardDatasets(Sequence[DatasetSpec]):
    """The datasets of one shard, by number; nothing in it ever changes.

    Attributes
    ----------
    number
        A dataset's number, by its name.
    shown
        Which of them are shown one by one.
    zcdp, limit
        Which count in rho, and the declared limits in units of the ledger.
    periods
        When queries of a dataset begin and cease to count, in milliseconds; None where no dataset is a period.
    """

    number: dict[str, int]
    shown: Mask
    zcdp: Mask
    limit: Integers
    periods: tuple[Integers, Integers] | None

    def __init__(self, spec: ApplicationSpec, places: Integers) -> None:
        for _ in self._gather(spec, places):
            pass

    @classmethod
    def gathering(cls, spec: ApplicationSpec, places: Integers) -> Generator[None, None, ShardDatasets]:
        """Gather in slices the datasets with these numbers in the order declared; return them."""
        made = cls.__new__(cls)
        yield from made._gather(spec, places)  # noqa: SLF001  a second constructor
        return made

    @classmethod
    def of_names(cls, spec: ApplicationSpec, names: Sequence[str]) -> ShardDatasets:
        """Return the datasets of these names; KeyError where one is not declared."""
        places = {dataset.name: place for place, dataset in enumerate(spec.datasets)}
        return cls(spec, np.fromiter(map(places.__getitem__, names), np.int64, len(names)))

    def __len__(self) -> int:
        return len(self._datasets)

    def __getitem__(self, number: int) -> DatasetSpec:  # type: ignore[override]  # no slices
        return self._datasets[number]

    def __iter__(self) -> Iterator[DatasetSpec]:
        return iter(self._datasets)

    def covers(self, spec: ApplicationSpec, monitor: MonitorSpec) -> Mask:
        """Return on which of them a monitor runs; ``spec`` declares them at the same places."""
        return spec.covered(monitor)[self._places]

    def _gather(self, spec: ApplicationSpec, places: Integers) -> Iterator[None]:
        count = len(places)
        self._places = places
        self._datasets: list[DatasetSpec] = []
        self.number = {}
        self.shown = np.zeros(count, dtype=np.bool_)
        self.zcdp = np.zeros(count, dtype=np.bool_)
        self.limit = np.zeros(count, dtype=np.int64)
        begins = np.zeros(count, dtype=np.int64)
        ends = np.full(count, NEVER, dtype=np.int64)
        has_periods = False
        for at in range(0, count, AT_ONCE):
            part = [spec.datasets[place] for place in places[at : at + AT_ONCE].tolist()]
            end = at + len(part)
            self._datasets += part
            self.number.update((dataset.name, number) for number, dataset in enumerate(part, at))
            self.shown[at:end] = [dataset.name in spec.names_shown for dataset in part]
            self.zcdp[at:end] = [dataset.kind is Kind.ZCDP for dataset in part]
            self.limit[at:end] = [dataset.limit for dataset in part]
            if any(dataset.is_period for dataset in part):
                has_periods = True
                begins[at:end] = [0 if one.from_ms is None else one.from_ms for one in part]
                ends[at:end] = [NEVER if one.ends_ms is None else one.ends_ms for one in part]
            yield
        self.periods = (begins, ends) if has_periods else None
