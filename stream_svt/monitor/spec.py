"""The specification: which queries are tested, how, about which datasets, at what price.

The models here, in `monitor_spec`, `options` and `datasets` are the reference of the YAML file; their
descriptions are also those of the exported JSON Schema. Nothing here reads files: `load_spec` takes text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from stream_svt.errors import ConfigError, Problem
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.monitor.carried import Carried, parse
from stream_svt.monitor.datasets import (
    MAX_DATASETS,
    DatasetDeclaration,
    DatasetSpec,
    Generator,
    ReadNames,
    is_over,
    period_end,
)
from stream_svt.monitor.monitor_spec import MonitorSpec, TakesEffect, changed_fields, digest
from stream_svt.monitor.options import (
    Annealed,
    Append,
    Exposure,
    Lifetime,
    Mean,
    MechanismForm,
    Mute,
    OnHalt,
    Optimal,
    Retry,
    Sweep,
    Table,
    Uncorrected,
)
from stream_svt.monitor.quantities import Name, Text, did_you_mean, found
from stream_svt.monitor.yaml_source import Document, Strict, read
from stream_svt.privacy.loss import Kind, as_text

__all__ = [
    "Annealed",
    "Append",
    "ApplicationDocument",
    "ApplicationSpec",
    "DatasetDeclaration",
    "DatasetSpec",
    "Exposure",
    "Lifetime",
    "Mean",
    "MechanismForm",
    "MonitorSpec",
    "Mute",
    "OnHalt",
    "Optimal",
    "Retry",
    "Sweep",
    "Table",
    "TakesEffect",
    "Uncorrected",
    "changed_fields",
    "load_spec",
    "parse_application",
]

DATASETS_SHOWN = 1_000
"""Datasets that are shown one by one, the first ones declared: pages and metrics hold sums of the others."""

PAIRS_SHOWN = 5_000
"""Datasets x monitors that are shown one by one: with many monitors, fewer datasets are."""

SERVICE_KEYS = ("kafka", "topics", "sealing", "control", "web", "commit")
"""Keys of the same file that only the service reads."""


@dataclass(frozen=True)
class ApplicationSpec:
    """Everything a shard's engine needs to know.

    Attributes
    ----------
    application
        Name of the application; part of every Kafka identity it takes.
    datasets, monitors
        In the order declared. Datasets of a generator without an end are not among them, but for those that `at` adds.
    notes
        Advice about what is allowed but may not be meant.
    carried
        What was taken over from an application that was closed; it is part of what the datasets and monitors say.
    generators
        Datasets without an end.
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
        """Return the monitors that run on a dataset, in order; empty for a name that is not declared."""
        return self._monitors_by_dataset.get(dataset, ())

    def dataset(self, name: str) -> DatasetSpec:
        """Return a dataset by name, generated ones included; KeyError where it is not declared."""
        found = self._datasets_by_name.get(name)
        if found is None:
            found = next(filter(None, (generator.find(name) for generator in self.generators)), None)
        if found is None:
            raise KeyError(name)
        return found

    def declares(self, name: str) -> bool:
        """Tell whether there is a dataset of a name, generated ones included."""
        try:
            self.dataset(name)
        except KeyError:
            return False
        return True

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
                "generators": [
                    [
                        one.pattern,
                        one.names,
                        one.from_ms,
                        one.lateness_ms,
                        one.kind.value,
                        one.limit,
                        one.unit,
                    ]
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
        covers = monitor.matcher
        return np.fromiter((covers(dataset.name) for dataset in self.datasets), np.bool_, len(self.datasets))

    @cached_property
    def _datasets_by_name(self) -> dict[str, DatasetSpec]:
        return {dataset.name: dataset for dataset in self.datasets}

    @cached_property
    def _monitors_by_name(self) -> dict[str, MonitorSpec]:
        return {monitor.name: monitor for monitor in self.monitors}

    @cached_property
    def _monitors_by_dataset(self) -> dict[str, tuple[MonitorSpec, ...]]:
        return {
            dataset.name: tuple(monitor for monitor in self.monitors if monitor.covers(dataset.name))
            for dataset in self.datasets
        }


class ApplicationDocument(Strict):
    """The part of the file that says what is monitored."""

    application: Name = Field(
        description="Name of the application; part of its consumer group, transactional ids and sealing."
    )
    datasets: Annotated[tuple[DatasetDeclaration, ...], Field(min_length=1)] = Field(
        description="The private datasets, each with a ledger. A dataset belongs to one application: two "
        "applications "
        "are two ledgers."
    )
    monitors: Annotated[tuple[MonitorSpec, ...], Field(min_length=1)] = Field(description="The monitors.")
    carried_over: Text | None = Field(
        default=None,
        description="File that 'stream-svt carry-over' wrote: what is left of each budget of an application that was "
        "closed for this one. Keep it for as long as the application lives.",
    )


def load_spec(
    text: str, source: str = "configuration", read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a YAML text; the service's own keys are left unread.

    Raises
    ------
    ConfigError
        With every problem found, sorted by line.
    """
    document = read(text, source)
    spec = parse_application(document, read_names)
    document.finish()
    if spec is None:  # pragma: no cover - whoever returns None has reported why
        raise ConfigError([], source)
    return spec


def parse_application(document: Document, read_names: ReadNames | None = None) -> ApplicationSpec | None:
    """Return the specification in a document, or None after reporting to it what is wrong."""
    application = parse_name(document)
    carried = _carried(document, application, read_names)
    datasets, generators = _datasets(document, read_names, carried)
    monitors = _monitors(document)
    _compare(document, datasets, monitors)
    if carried is not None:
        _compare_topics(document, carried, monitors)
    if document.problems or application is None:
        return None
    return ApplicationSpec(
        application,
        tuple(dataset for dataset, index in datasets.values() if index not in generators),
        tuple(monitor for _, monitor in monitors),
        tuple(sorted(_notes(document, datasets, monitors))),
        carried,
        tuple(generators.values()),
    )


def parse_name(document: Document) -> str | None:
    """Return the application's name, or None after reporting what is wrong with it; report unknown keys, too."""
    data: dict[str, Any] = document.data
    known = [*ApplicationDocument.model_fields, *SERVICE_KEYS]
    for key in data:
        if key not in known:
            document.report(
                (key,), f"unknown key{did_you_mean(key, known) or '; expected one of ' + ', '.join(known)}"
            )
    return _application(document)


_Datasets = dict[str, tuple[DatasetSpec, int]]
_Monitors = list[tuple[int, MonitorSpec]]


_NAME: TypeAdapter[str] = TypeAdapter(Name)


def _application(document: Document) -> str | None:
    if "application" not in document.data:
        document.report(("application",), "is required: the name of the application, such as retail-watch")
        return None
    try:
        return _NAME.validate_python(document.data["application"])
    except ValidationError as error:
        document.report(("application",), error.errors()[0]["msg"].removeprefix("Value error, "))
        return None


def _items(document: Document, key: str) -> list[Any]:
    raw = document.data.get(key)
    if raw is None or raw == []:
        document.report((key,), f"is required: a list with at least one of the {key}")
        return []
    if not isinstance(raw, list):
        document.report((key,), f"expected a list, each item beginning with a dash, found {found(raw)}")
        return []
    return raw


def _carried(document: Document, application: str | None, read_names: ReadNames | None) -> Carried | None:
    """Return what was taken over from a closed application, None where nothing is, or it is reported."""
    name = document.data.get("carried_over")
    if name is None:
        return None
    path = ("carried_over",)
    if not isinstance(name, str) or read_names is None:
        document.report(path, f"expected the name of a file, found {found(name)}")
        return None
    try:
        carried = parse(read_names(name))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        document.report(path, f"cannot read {found(name)}: {reason}")
        return None
    except ValueError as error:
        document.report(path, f"{found(name)}: {error}")
        return None
    if application is not None and carried.successor != application:
        document.report(
            path,
            f"{found(name)} is for application {found(carried.successor)}: another one would spend it twice",
        )
    return carried


def _compare_topics(document: Document, carried: Carried, monitors: _Monitors) -> None:
    """Report monitors that declare less of a query topic than was declared before."""
    for index, monitor in monitors:
        if (declared := carried.topics.get(monitor.topic)) is not None:
            for name, message in declared.undercut(monitor).items():
                document.report(("monitors", index, name), message)


class _Contradicted(ValueError):
    """A dataset is declared otherwise than in the file carried over."""


def _with_history(dataset: DatasetSpec, carried: Carried, *, new: bool) -> DatasetSpec | None:
    """Return a dataset with what was spent of it before; None for a generated one whose period had begun by then.

    Raises
    ------
    _Contradicted
        It is declared otherwise than before, or nobody knows what was spent of it.
    """
    if is_over(dataset.name, carried.watermarks):
        if dataset.pattern:
            return None
        raise _Contradicted(
            f"dataset {found(dataset.name)} has the name of a period that had begun when {carried.application!r} was "
            "closed: nobody opens it again"
        )
    if dataset.pattern:
        return dataset
    known = carried.datasets.get(dataset.name)
    if known is None:
        if carried.complete or new:
            return dataset
        raise _Contradicted(
            f"dataset {found(dataset.name)} is not in the file carried over, and alerts of {carried.application!r} are "
            "missing: nobody knows what was spent of it. Write new: true where it was never declared there"
        )
    if new:
        raise _Contradicted(f"dataset {found(dataset.name)} is not new: {carried.application!r} had it")
    if dataset.unit != known.unit:
        raise _Contradicted(
            f"dataset {found(dataset.name)} had the privacy unit {found(known.unit)}: write that"
        )
    if dataset.kind is not known.kind or dataset.limit not in (known.declared, known.limit):
        limit = f"{known.kind.measure} {as_text(known.limit, known.kind)}"
        raise _Contradicted(
            f"dataset {found(dataset.name)} had the limit {limit}, of which it spent a part: write that"
        )
    return replace(dataset, limit=known.limit, spent_before=known.spent)


def _datasets(
    document: Document, read_names: ReadNames | None, carried: Carried | None
) -> tuple[_Datasets, dict[int, Generator]]:
    """Return the datasets, of a generator without an end those of its first period, and these generators by place."""
    datasets: _Datasets = {}
    generators: dict[int, Generator] = {}
    for index in range(len(_items(document, "datasets"))):
        path = ("datasets", index)
        declaration = document.check(DatasetDeclaration, path)
        if declaration is None:
            continue
        try:
            expanded = declaration.expand(read_names)
            if declaration.until is None and (generator := declaration.generator(read_names)) is not None:
                generators[index] = generator
                expanded = generator.period(generator.from_ms)
            for dataset in expanded:
                if dataset.name in datasets:
                    first = document.line(("datasets", datasets[dataset.name][1]))
                    document.report(
                        path, f"dataset {found(dataset.name)} is already declared at line {first}"
                    )
                    break
                joined = dataset if carried is None else _with_history(dataset, carried, new=declaration.new)
                if joined is not None:
                    datasets[dataset.name] = (joined, index)
        except _Contradicted as error:
            document.report(path, str(error))
        except ValueError as error:
            document.report((*path, "file" if declaration.file else "generate"), str(error))
        if len(datasets) > MAX_DATASETS:
            document.report(path, f"declares more than {MAX_DATASETS} datasets in all")
            break
    _compare_patterns(document, datasets)
    return datasets, generators


def _compare_patterns(document: Document, datasets: _Datasets) -> None:
    """Report names that a generator could make in another period than any declared: they would be one ledger."""
    patterns = {dataset.pattern: index for dataset, index in datasets.values() if dataset.pattern}
    seen: set[int] = set()
    for dataset, index in datasets.values():
        for pattern in patterns.keys() - {dataset.pattern}:
            if index not in seen and period_end(pattern, dataset.name) is not None:
                seen.add(index)
                line = document.line(("datasets", patterns[pattern]))
                message = f"dataset {found(dataset.name)} is named as generator {found(pattern)} at line {line} does"
                document.report(("datasets", index), f"{message}: rename one of them")


def _monitors(document: Document) -> _Monitors:
    monitors: _Monitors = []
    names: dict[str, int] = {}
    for index, raw in enumerate(_items(document, "monitors")):
        path = ("monitors", index)
        monitor = document.check(MonitorSpec, path)
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str):
            if name in names:
                line = document.line(("monitors", names[name], "name"))
                document.report((*path, "name"), f"monitor {found(name)} is already declared at line {line}")
                continue
            names[name] = index
        if monitor is not None:
            monitors.append((index, monitor))
    return monitors


def _compare(document: Document, datasets: _Datasets, monitors: _Monitors) -> None:
    """Report what is wrong between monitors and the datasets they run on."""
    if not datasets:
        return
    declarations_broken = bool(document.problems)
    for index, monitor in monitors:
        path = ("monitors", index)
        for place, pattern in enumerate(monitor.datasets):
            if not declarations_broken and not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {found(pattern)} matches no declared dataset"
                document.report(
                    (*path, "datasets", place), message + did_you_mean(pattern, list(datasets)[:1000])
                )
        budgets = {
            (dataset.kind, dataset.limit): dataset.name
            for dataset, _ in reversed(datasets.values())
            if monitor.covers(dataset.name)
        }
        for (kind, limit), name in budgets.items():
            price = monitor.run_price(kind)
            kept = monitor.reserve_units(kind)
            limit_text = f"the limit {kind.measure} {as_text(limit, kind)} of dataset {found(name)}"
            if price > limit:
                cost = f"one whole run costs {kind.measure} {as_text(price, kind)}"
                document.report((*path, "epsilon"), f"{cost}, above {limit_text}")
            elif price + kept > limit:
                run = f"a whole run of {kind.measure} {as_text(price, kind)}"
                message = f"leaves no room for {run} within {limit_text}"
                document.report((*path, "reserve"), message)


def _notes(document: Document, datasets: _Datasets, monitors: _Monitors) -> list[Problem]:
    notes = []
    for index, monitor in monitors:
        for name, message in monitor.notes():
            path = ("monitors", index, name)
            notes.append(Problem(document.line(path), f"monitors[{index}].{name}", message))
    declared: dict[int, list[DatasetSpec]] = {}
    for dataset, position in datasets.values():
        declared.setdefault(position, []).append(dataset)
    for position, mine in declared.items():
        users = {monitor.name for _, monitor in monitors if any(monitor.covers(one.name) for one in mine)}
        line = document.line(("datasets", position))
        if not users:
            notes.append(Problem(line, f"datasets[{position}]", "no monitor runs on these datasets"))
        elif mine[0].kind is Kind.ZCDP and len(users) > 1:
            message = (
                f"with rho one run at most is open on a dataset: its {len(users)} monitors take turns, "
                "and each waits until the other's run ends"
            )
            line = document.line(("datasets", position, "limit"))
            notes.append(Problem(line, f"datasets[{position}].limit", message))
    return notes
