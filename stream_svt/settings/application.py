"""What is monitored: the datasets and monitors of one application."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import Problem
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.settings.carried import Carried
from stream_svt.settings.datasets import DatasetSpec, Generator
from stream_svt.settings.monitors import MonitorSpec, digest

DATASETS_SHOWN = 1_000
"""Datasets that are shown one by one, the first ones declared: pages and metrics hold sums of the others."""


PAIRS_SHOWN = 5_000
"""Datasets x monitors that are shown one by one: with many monitors, fewer datasets are."""


@dataclass(frozen=True)
class ApplicationSpec:
    """Everything a shard's engine needs to know.

    Attributes:
        application: Name of the application; part of every Kafka identity it takes.
        datasets, monitors: In the order declared. Datasets of a generator without an end are not among them,
            but for those that `at` adds.
        notes: Advice about what is allowed but may not be meant.
        carried: What was taken over from an application that was closed; it is part of what the datasets and
            monitors say.
        generators: Datasets without an end.
    """

    application: str
    datasets: tuple[DatasetSpec, ...]
    monitors: tuple[MonitorSpec, ...]
    notes: tuple[Problem, ...] = field(default=(), compare=False)
    carried: Carried | None = None
    generators: tuple[Generator, ...] = ()

    def at(self, now_ms: int) -> ApplicationSpec:
        """Return the same with the datasets of generators that queries may count for at a moment, UTC milliseconds."""
        if not self.generators:
            return self
        found = tuple(dataset for generator in self.generators for dataset in generator.open_at(now_ms))
        return replace(self, datasets=self.datasets + found)

    def monitors_of(self, dataset: str) -> tuple[MonitorSpec, ...]:
        """Return the monitors that run on a dataset, in order."""
        return tuple(monitor for monitor in self.monitors if monitor.covers(dataset))

    def dataset(self, name: str) -> DatasetSpec:
        """Return a dataset by name, generated ones included; KeyError where it is not declared."""
        found = self._datasets_by_name.get(name)
        if found is None and not (found := self._generated(name)):
            raise KeyError(name)
        return found

    def declares(self, name: str) -> bool:
        """Tell whether there is a dataset of a name, generated ones included."""
        return name in self._datasets_by_name or self._generated(name) is not None

    def _generated(self, name: str) -> DatasetSpec | None:
        return next(filter(None, (generator.find(name) for generator in self.generators)), None)

    def monitor(self, name: str) -> MonitorSpec:
        """Return a monitor by name; KeyError where there is none."""
        return self._monitors_by_name[name]

    def topics(self) -> tuple[str, ...]:
        """Return the query topics, sorted."""
        return tuple(sorted({monitor.topic for monitor in self.monitors}))

    def topics_with_broker_time(self) -> tuple[str, ...]:
        """Return the query topics that must be LogAppendTime, sorted."""
        periods = {dataset.name for dataset in self.datasets if dataset.is_period}
        periods.update(
            one.name for generator in self.generators for one in generator.period(generator.from_ms)
        )
        timed = {
            monitor.topic
            for monitor in self.monitors
            if monitor.needs_broker_time or any(monitor.covers(name) for name in periods)
        }
        return tuple(sorted(timed))

    @cached_property
    def carried_digest(self) -> str:
        """Digest of what was taken over, "" where nothing was."""
        return "" if self.carried is None else self.carried.digest

    def hash(self) -> str:
        """Return a short digest; two workers of one application must agree on it."""
        return digest(
            {
                "application": self.application,
                "sampler": SAMPLER_VERSION,
                "carried": self.carried_digest,
                "datasets": [
                    [dataset.name, *dataset.declaration, dataset.lateness_ms] for dataset in self.datasets
                ],
                "generators": [astuple(generator) for generator in self.generators],
                "monitors": [monitor.model_dump(mode="json", by_alias=True) for monitor in self.monitors],
            }
        )

    @cached_property
    def shown(self) -> tuple[DatasetSpec, ...]:
        """The first datasets declared, as many as are shown one by one."""
        pairs = 0
        for number, dataset in enumerate(self.datasets[:DATASETS_SHOWN]):
            pairs += sum(monitor.covers(dataset.name) for monitor in self.monitors)
            if number and pairs > PAIRS_SHOWN:
                return self.datasets[:number]
        return self.datasets[:DATASETS_SHOWN]

    @cached_property
    def names_shown(self) -> frozenset[str]:
        """Their names."""
        return frozenset(dataset.name for dataset in self.shown)

    def covered(self, monitor: MonitorSpec) -> NDArray[np.bool_]:
        """Return on which of the datasets, in the order declared, a monitor runs."""
        covers = monitor.matcher
        return np.fromiter((covers(dataset.name) for dataset in self.datasets), np.bool_, len(self.datasets))

    @cached_property
    def _datasets_by_name(self) -> dict[str, DatasetSpec]:
        return {dataset.name: dataset for dataset in self.datasets}

    @cached_property
    def _monitors_by_name(self) -> dict[str, MonitorSpec]:
        return {monitor.name: monitor for monitor in self.monitors}
