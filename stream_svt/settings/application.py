"""What is monitored: datasets and monitors of one application, what it takes over, and what is wrong between them.

Nothing here reads files: names in files come through a function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Literal

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stream_svt.errors import Problem
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.privacy.loss import KINDS, Kind, as_text, exact, to_loss, to_units
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
from stream_svt.settings.monitors import Declared, MonitorSpec, digest
from stream_svt.settings.sections import ConfigDocument


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    unit: str
    measure: Literal["epsilon", "rho"]
    declared: str
    limit: str
    spent: str


@dataclass(frozen=True, slots=True)
class Balance:
    """What is known of one dataset's ledger; amounts in ledger units, ``spent`` at most ``limit``.

    ``declared`` is the limit that the application declared, before commands raised it.
    """

    unit: str
    kind: Kind
    declared: int
    limit: int
    spent: int


class _Whose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where balances come from and who may go on with them.

    Attributes:
        application, cluster, alerts: Whose they are; cluster id and alert topic say where that was read.
        successor: The one application that may go on with them.
        complete: Whether every dataset that ever spent anything is among them.
        topics: By name.
        watermarks: By pattern of a generator, the end of the last period that is over for the successor.
    """

    application: str
    cluster: str
    alerts: str
    successor: str
    complete: bool
    topics: dict[str, Declared]
    watermarks: dict[str, int]


class _Head(_Whose, frozen=True, forbid_unknown_fields=True, tag_field="carry_over", tag=1):
    datasets: int


class Carried(_Whose, frozen=True, dict=True):
    """What a successor takes over from an application that was closed: all balances, by the name of the dataset.

    As the file that ``stream-svt carry-over`` writes, a JSON document a line: a head, then one dataset a line. Amounts
    there are exact decimal texts in the dataset's measure.
    """

    datasets: dict[str, Balance]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        head = _Head(**structs.asdict(self) | {"datasets": len(self.datasets)})
        yield msgspec.json.encode(head, enc_hook=str, order="deterministic").decode()
        for name, one in sorted(self.datasets.items()):
            amounts = (as_text(units, one.kind) for units in (one.declared, one.limit, one.spent))
            yield msgspec.json.encode(_Line(name, one.unit, one.kind.measure, *amounts)).decode()

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits for the content, which the state of every shard of the successor names; "" for nothing."""
        if not self.application:
            return ""
        content = "".join(f"{line}\n" for line in self.lines())
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def contradiction(self, dataset: DatasetSpec, *, new: bool) -> str:
        """Return why a dataset cannot be declared so, such as that nobody knows what was spent of it; "" if it can."""
        name, before = f"dataset {quote(dataset.name)}", repr(self.application)
        if is_over(dataset.name, self.watermarks):
            began = f"had begun when {before} was closed: nobody opens it again"
            return "" if dataset.pattern else f"{name} has the name of a period that {began}"
        known = None if dataset.pattern else self.datasets.get(dataset.name)
        if known is None:  # of a generator that was declared no longer, no period is known to be over
            missing = (
                f"{name} is not in the file carried over, and alerts of {before} are missing: nobody knows what was "
                "spent of it. Write new: true where it was never declared there"
            )
            return "" if self.complete or new or dataset.pattern in self.watermarks else missing
        if new:
            return f"{name} is not new: {before} had it"
        if dataset.unit != known.unit:
            return f"{name} had the privacy unit {quote(known.unit)}: write that"
        if dataset.kind is not known.kind or dataset.limit not in (known.declared, known.limit):
            limit = f"{known.kind.measure} {as_text(known.limit, known.kind)}"
            return f"{name} had the limit {limit}, of which it spent a part: write that"
        return ""

    def with_balance(self, dataset: DatasetSpec) -> DatasetSpec:
        """Return a dataset with what was spent of it before."""
        known = None if dataset.pattern else self.datasets.get(dataset.name)
        return dataset if known is None else replace(dataset, limit=known.limit, spent_before=known.spent)

    def undercut(self, monitor: MonitorSpec) -> dict[str, str]:
        """Return the fields of a monitor that declare less of its topic than was known before, each with what to do."""
        if (declared := self.topics.get(monitor.topic)) is not None:
            return declared.undercut(monitor)
        if self.complete:
            return {}
        unknown = (
            f"topic {quote(monitor.topic)} is not in the file carried over, and alerts of {self.application!r} are "
            "missing. Declare a monitor on it, with the largest sensitivity that it had, in the configuration carried "
            "over, and write the file again"
        )
        return {"topic": unknown}

    def restart_conflict(self, pattern: str) -> str:
        """Return what of the past a generator of a pattern would begin anew; "" if nothing."""
        for name, balance in self.datasets.items():
            if balance.spent and period_end(pattern, name) and not is_over(name, self.watermarks):
                return f"{self.application!r} spent on dataset {quote(name)}, which this would begin anew"
        return ""


NOTHING = Carried("", "", "", "", True, {}, {}, {})
"""Nothing is taken over."""


def parse(lines: Sequence[str]) -> Carried:
    """Return the content of a file.

    Raises:
        ValueError: It is none, or lines are missing; the message names the line.
    """
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError("it is empty: 'stream-svt carry-over' writes it")
    try:
        head = msgspec.json.decode(found[0], type=_Head, dec_hook=lambda _, text: exact(text))
    except msgspec.DecodeError as error:
        raise ValueError(f"line 1: {error}: 'stream-svt carry-over' of this version writes it") from None
    if len(found) - 1 != head.datasets:
        raise ValueError(
            f"it has {len(found) - 1} datasets and says {head.datasets}: lines are missing, or were added"
        )
    if any(declared.sensitivity <= 0 for declared in head.topics.values()):
        raise ValueError("line 1: a sensitivity is greater than 0")
    datasets = dict(_balances(found[1:]))
    if len(datasets) != head.datasets:
        raise ValueError("a dataset has two lines")
    return Carried(**structs.asdict(head) | {"datasets": datasets})


def _balances(lines: Iterable[str]) -> Iterator[tuple[str, Balance]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=2):
        try:
            line = decoder.decode(text)
            kind = KINDS[line.measure]
            declared, limit, spent = (_units(text, kind) for text in (line.declared, line.limit, line.spent))
            if not (0 <= spent <= limit and 0 < declared <= limit):
                raise ValueError("expected 0 <= spent <= limit and 0 < declared <= limit")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        yield line.name, Balance(line.unit, kind, declared, limit, spent)


@lru_cache(maxsize=10_000)
def _units(text: str, kind: Kind) -> int:
    """Return an amount in ledger units; of hundreds of thousands, few differ."""
    amount = exact(text)
    units = to_units(amount, kind)
    if to_loss(units, kind) != amount:
        raise ValueError(f"{text} has more digits than a ledger keeps")
    return units


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
        """Return the same with the datasets of generators that queries may count for at a moment, UTC milliseconds.

        Before a generator's first period, those are of that one.
        """
        if not self.generators:
            return self
        found = [*self.datasets]
        for generator in self.generators:
            now, lateness = max(now_ms, generator.from_ms), generator.each.lateness_ms or 0
            found += generator.periods(now - lateness, now + 1)
        return replace(self, datasets=tuple(found))

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
    spec = application_of(document, document.validated(ConfigDocument), read_names)
    document.raise_problems()
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
    whose = ""
    try:
        lines = lines_of(name, read_names)
        whose = f"{quote(name)}: "
        carried = parse(lines)
    except ValueError as error:
        document.report(("carried_over",), f"{whose}{error}")
        return NOTHING
    if carried.successor != config.application:
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
        if why := carried.restart_conflict(declaration.generate or ""):
            document.report((*path, "generate"), f"{why}: use another pattern")
            continue
        try:
            found, generator = declaration.expand(read_names)
            if generator is not None:
                generators[index] = generator
            for dataset in found:
                why = carried.contradiction(dataset, new=declaration.new)
                if dataset.name in datasets:
                    first = document.line(("datasets", datasets[dataset.name][1]))
                    why = f"dataset {quote(dataset.name)} is already declared at line {first}"
                if why:
                    document.report(path, why)
                    break
                if index in generators or not is_over(dataset.name, carried.watermarks):
                    datasets[dataset.name] = (carried.with_balance(dataset), index)
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
        for number, pattern in enumerate(monitor.datasets):
            if not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {quote(pattern)} matches no declared dataset"
                near = did_you_mean(pattern, list(datasets)[:1000])
                document.report((*path, "datasets", number), message + near)
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
            message = f"with rho one run at most is open on a dataset: its {users} monitors take turns"
            yield document.problem(("datasets", position, "limit"), message)
