"""What is monitored: the datasets and monitors of one application, and what is wrong between them.

Nothing here reads files: names in files come through a function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import Problem
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.carried import NOTHING, Carried, parse
from stream_svt.settings.datasets import (
    MAX_DATASETS,
    DatasetSpec,
    Generator,
    ReadNames,
    is_over,
    lines_of,
    period_end,
)
from stream_svt.settings.document import Document, did_you_mean, quote, read
from stream_svt.settings.monitors import MonitorSpec, digest
from stream_svt.settings.sections import ConfigDocument

DATASETS_SHOWN = 1_000
"""Datasets that are shown one by one, the first ones declared: pages and metrics hold sums of the others."""
PAIRS_SHOWN = 5_000
"""Datasets x monitors that are shown one by one: with many monitors, fewer datasets are."""


@dataclass(frozen=True)
class ApplicationSpec:
    """Everything a shard's engine needs to know.

    Attributes:
        datasets, monitors: In the order declared. Of ``generators``, which have no end, only those that `at` adds.
        notes: Advice about what is allowed but may not be meant.
        carried: What was taken over from an application that was closed; datasets say it, too.
    """

    application: str
    datasets: tuple[DatasetSpec, ...]
    monitors: tuple[MonitorSpec, ...]
    notes: tuple[Problem, ...] = field(default=(), compare=False)
    carried: Carried = NOTHING
    generators: tuple[Generator, ...] = ()

    def at(self, now_ms: int) -> ApplicationSpec:
        """Return the same with the datasets of generators that queries may count for at a moment, UTC milliseconds."""
        if not self.generators:
            return self
        found = tuple(dataset for generator in self.generators for dataset in generator.open_at(now_ms))
        return replace(self, datasets=self.datasets + found)

    def dataset(self, name: str) -> DatasetSpec:
        """Return a dataset by name, generated ones included; KeyError where it is not declared."""
        if (found := self.find(name)) is None:
            raise KeyError(name)
        return found

    def find(self, name: str) -> DatasetSpec | None:
        """Return a dataset by name, generated ones included; None where it is not declared."""
        made = (generator.find(name) for generator in self.generators)
        return self._datasets_by_name.get(name) or next(filter(None, made), None)

    def topics(self) -> tuple[str, ...]:
        """Return the query topics, sorted."""
        return tuple(sorted({monitor.topic for monitor in self.monitors}))

    def topics_with_broker_time(self) -> tuple[str, ...]:
        """Return the query topics that must be LogAppendTime, sorted."""
        made = (one for generator in self.generators for one in generator.period(generator.from_ms))
        periods = [one.name for one in (*self.datasets, *made) if one.from_ms is not None]
        timed = (one for one in self.monitors if one.needs_broker_time or any(map(one.covers, periods)))
        return tuple(sorted({one.topic for one in timed}))

    def hash(self) -> str:
        """Return a short digest; two workers of one application must agree on it."""
        return digest(
            {
                "application": self.application,
                "sampler": SAMPLER_VERSION,
                "carried": self.carried.digest,
                "datasets": [
                    [dataset.name, *dataset.declaration, dataset.lateness_ms] for dataset in self.datasets
                ],
                "generators": [
                    [one.pattern, one.names, one.from_ms, one.each.lateness_ms, *one.each.declaration[:3]]
                    for one in self.generators
                ],
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
        covers = monitor.covers
        return np.fromiter((covers(dataset.name) for dataset in self.datasets), np.bool_, len(self.datasets))

    @cached_property
    def _datasets_by_name(self) -> dict[str, DatasetSpec]:
        return {dataset.name: dataset for dataset in self.datasets}


def load_spec(
    text: str | bytes, source: str = "configuration", read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a YAML text.

    Raises:
        ConfigError: With every problem found, sorted by line: first those of single keys, and where there are
            none, those between them.
    """
    document = read(text, source)
    spec = application_of(document, document.checked(ConfigDocument), read_names)
    document.finish()
    return spec


def application_of(
    document: Document, config: ConfigDocument, read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a document, to which what is wrong is reported."""
    carried = _carried(document, config, read_names)
    datasets, generators = _datasets(document, config, read_names, carried)
    _compare_patterns(document, datasets)
    if not document.problems:
        _compare(document, config, datasets, carried)
    return ApplicationSpec(
        config.application,
        tuple(dataset for dataset, index in datasets.values() if index not in generators),
        config.monitors,
        tuple(sorted(_notes(document, config, datasets))),
        carried,
        tuple(generators.values()),
    )


def _carried(document: Document, config: ConfigDocument, read_names: ReadNames | None) -> Carried:
    """Return what was taken over from a closed application, `NOTHING` where that is reported."""
    if (name := config.carried_over) is None:
        return NOTHING
    carried, whose = NOTHING, ""
    try:
        lines = lines_of(name, read_names)
        whose = f"{quote(name)}: "
        carried = parse(lines)
    except ValueError as error:
        document.report(("carried_over",), f"{whose}{error}")
    if carried is not NOTHING and carried.successor != config.application:
        other = f"is for application {quote(carried.successor)}: another one would spend it twice"
        document.report(("carried_over",), f"{quote(name)} {other}")
    return carried


_Datasets = dict[str, tuple[DatasetSpec, int]]
"""By name, with the place of the declaration."""


def _datasets(
    document: Document, config: ConfigDocument, read_names: ReadNames | None, carried: Carried
) -> tuple[_Datasets, dict[int, Generator]]:
    """Return the datasets, of a generator without an end those of its first period, and these generators by place."""
    datasets: _Datasets = {}
    generators: dict[int, Generator] = {}
    for index, declaration in enumerate(config.datasets):
        path = ("datasets", index)
        if why := carried.begun_again(declaration.generate or ""):
            document.report((*path, "generate"), f"{why}: use another pattern")
            continue
        try:
            if declaration.until is None and (generator := declaration.generator(read_names)) is not None:
                generators[index] = generator
            for dataset in declaration.expand(read_names):
                why = carried.contradiction(dataset, new=declaration.new)
                if dataset.name in datasets:
                    first = document.line(("datasets", datasets[dataset.name][1]))
                    why = f"dataset {quote(dataset.name)} is already declared at line {first}"
                if why:
                    document.report(path, why)
                    break
                if index in generators or not is_over(dataset.name, carried.watermarks):
                    datasets[dataset.name] = (carried.joined(dataset), index)
        except ValueError as error:
            document.report((*path, "file" if declaration.file else "generate"), str(error))
        if len(datasets) > MAX_DATASETS:
            document.report(path, f"declares more than {MAX_DATASETS} datasets in all")
            break
    return datasets, generators


def _compare_patterns(document: Document, datasets: _Datasets) -> None:
    """Report names that a generator could make in another period than any declared: they would be one ledger."""
    patterns = {dataset.pattern: index for dataset, index in datasets.values() if dataset.pattern}
    seen: set[int] = set()
    for dataset, index in datasets.values():
        for pattern in patterns if index not in seen else ():
            if pattern != dataset.pattern and period_end(pattern, dataset.name) is not None:
                seen.add(index)
                line = document.line(("datasets", patterns[pattern]))
                message = f"dataset {quote(dataset.name)} is named as generator {quote(pattern)} at line {line} does"
                document.report(("datasets", index), f"{message}: rename one of them")
                break


def _compare(document: Document, config: ConfigDocument, datasets: _Datasets, carried: Carried) -> None:
    """Report what is wrong between monitors, the datasets they run on, and what was declared before."""
    names: dict[str, int] = {}
    for index, monitor in enumerate(config.monitors):
        path = ("monitors", index)
        if (first := names.setdefault(monitor.name, index)) != index:
            line = document.line(("monitors", first, "name"))
            message = f"monitor {quote(monitor.name)} is already declared at line {line}"
            document.report((*path, "name"), message)
            continue
        for place, pattern in enumerate(monitor.datasets):
            if not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {quote(pattern)} matches no declared dataset"
                near = did_you_mean(pattern, list(datasets)[:1000])
                document.report((*path, "datasets", place), message + near)
        for name, message in carried.undercut(monitor).items():
            document.report((*path, name), message)
        budgets = {
            (dataset.kind, dataset.limit): dataset.name
            for dataset, _ in reversed(datasets.values())
            if monitor.covers(dataset.name)
        }
        for (kind, limit), name in budgets.items():
            price = monitor.run_price(kind)
            cost = f"{kind.measure} {as_text(price, kind)}"
            limit_text = f"the limit {kind.measure} {as_text(limit, kind)} of dataset {quote(name)}"
            if price > limit:
                document.report((*path, "epsilon"), f"one whole run costs {cost}, above {limit_text}")
            elif price + monitor.reserve_units(kind) > limit:
                message = f"leaves no room for a whole run of {cost} within {limit_text}"
                document.report((*path, "reserve"), message)


def _notes(document: Document, config: ConfigDocument, datasets: _Datasets) -> Iterator[Problem]:
    """Yield what is allowed but may not be meant."""
    for index, monitor in enumerate(config.monitors):
        for name, message in monitor.notes():
            yield document.problem(("monitors", index, name), message)
    declared: dict[int, list[DatasetSpec]] = {}
    for dataset, position in datasets.values():
        declared.setdefault(position, []).append(dataset)
    for position, mine in declared.items():
        users = sum(any(monitor.covers(one.name) for one in mine) for monitor in config.monitors)
        if not users:
            yield document.problem(("datasets", position), "no monitor runs on these datasets")
        elif mine[0].kind is Kind.ZCDP and users > 1:
            turns = f"with rho one run at most is open on a dataset: its {users} monitors take turns, "
            waits = "and each waits until the other's run ends"
            yield document.problem(("datasets", position, "limit"), turns + waits)
