"""Specification of an application: datasets, monitors, carried-over balances, and checks between them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Literal

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stream_svt.errors import Problem
from stream_svt.mechanisms.numbers import exact
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.privacy.loss import KINDS, Kind, as_text, to_loss, to_units
from stream_svt.settings import fields
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
    """One dataset's ledger, in ledger units; ``declared`` is the limit declared, before commands raised it."""

    unit: str
    kind: Kind
    declared: int
    limit: int
    spent: int


class _CarryOver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Origin of carried-over balances: the closed application, and the cluster and alert topic it was read from.

    ``complete`` tells whether every dataset that ever spent anything is included; ``watermarks`` are, by pattern of a
    generator, the end of the last period that is over for the one ``successor``.
    """

    application: str
    cluster: str
    alerts: str
    successor: str
    complete: bool
    topics: dict[str, Declared]
    watermarks: dict[str, int]


class _Head(_CarryOver, frozen=True, forbid_unknown_fields=True, tag_field="carry_over", tag=1):
    datasets: int


class Carried(_CarryOver, frozen=True, dict=True):
    """Balances that a successor takes over from a closed application, by the name of the dataset.

    In the file that ``stream-svt carry-over`` writes, each line is a JSON document: a head, then one dataset a line,
    with amounts as exact decimal texts in the dataset's measure.
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
        """Sixteen hex digits of the content, stored in the state of every shard of the successor; "" for nothing."""
        content = "".join(f"{line}\n" for line in self.lines())
        return hashlib.sha256(content.encode()).hexdigest()[:16] if self.application else ""

    def contradiction(self, dataset: DatasetSpec, *, new: bool) -> str:
        """Return why a dataset cannot be declared so, such as unknown spending; "" if it can."""
        terms = dataset.terms
        name, before = f"dataset {quote(dataset.name)}", repr(self.application)
        if is_over(dataset.name, self.watermarks):
            began = f"had begun when {before} was closed: it cannot be opened again"
            return "" if terms.pattern else f"{name} has the name of a period that {began}"
        known = None if terms.pattern else self.datasets.get(dataset.name)
        if known is None:  # the periods of a generator that is no longer declared have no watermark
            missing = (
                f"{name} is not in the carried-over file, and alerts of {before} are missing, so its spending is "
                "unknown. Write new: true if it was never declared there"
            )
            return "" if self.complete or new or terms.pattern in self.watermarks else missing
        if new:
            return f"{name} is not new: {before} declared it. Remove new"
        if terms.unit != known.unit:
            return f"{name} must keep its privacy unit {quote(known.unit)}"
        if terms.kind is not known.kind or terms.limit not in (known.declared, known.limit):
            limit = f"{known.kind.measure} {as_text(known.limit, known.kind)}"
            raises = "'stream-svt control raise-budget' raises it"
            return f"{name} must keep its limit {limit}, of which a part may be spent: {raises}"
        return ""

    def with_balance(self, dataset: DatasetSpec) -> DatasetSpec:
        """Return a dataset with its earlier limit and spending."""
        known = None if dataset.terms.pattern else self.datasets.get(dataset.name)
        if known is None:
            return dataset
        return DatasetSpec(dataset.name, replace(dataset.terms, limit=known.limit, spent_before=known.spent))

    def undercut(self, monitor: MonitorSpec) -> dict[str, str]:
        """Return the fields of a monitor that declare less than earlier ones of its topic, each with a remedy."""
        if (declared := self.topics.get(monitor.topic)) is not None:
            return declared.undercut(monitor)
        if self.complete:
            return {}
        unknown = (
            f"topic {quote(monitor.topic)} is not in the carried-over file, and alerts of {self.application!r} are "
            "missing. Declare a monitor on the topic, with the largest sensitivity it ever had, in the earlier "
            "application's configuration, and run carry-over again"
        )
        return {"topic": unknown}

    def restart_conflict(self, pattern: str) -> str:
        """Return which earlier dataset a generator of a pattern would start again; "" if none."""
        for name, balance in self.datasets.items():
            if balance.spent and period_end(pattern, name) and not is_over(name, self.watermarks):
                return f"{self.application!r} spent budget of dataset {quote(name)}, which this would start again"
        return ""


NOTHING = Carried("", "", "", "", True, {}, {}, {})
"""Nothing is taken over."""


def parse(lines: Sequence[str]) -> Carried:
    """Return the content of a file that ``stream-svt carry-over`` wrote; ValueError names an invalid line."""
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError("the file is empty: run 'stream-svt carry-over' again")
    try:
        head = msgspec.json.decode(found[0], type=_Head, dec_hook=lambda _, text: exact(text))
    except msgspec.DecodeError as error:
        raise ValueError(f"line 1: {error}: run 'stream-svt carry-over' of this version again") from None
    if len(found) - 1 != head.datasets:
        raise ValueError(
            f"the file has {len(found) - 1} datasets, but line 1 says {head.datasets}: lines are missing or were added"
        )
    if any(declared.sensitivity <= 0 for declared in head.topics.values()):
        raise ValueError("line 1: a sensitivity must be greater than 0")
    datasets: dict[str, Balance] = {}
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(found[1:], start=2):
        try:
            line = decoder.decode(text)
            kind = KINDS[line.measure]
            declared, limit, spent = (_units(text, kind) for text in (line.declared, line.limit, line.spent))
            if not (0 <= spent <= limit and 0 < declared <= limit):
                raise ValueError("expected 0 <= spent <= limit and 0 < declared <= limit")
            if line.name in datasets:
                raise ValueError("a dataset occurs twice")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        datasets[line.name] = Balance(line.unit, kind, declared, limit, spent)
    return Carried(**structs.asdict(head) | {"datasets": datasets})


@lru_cache(maxsize=10_000)
def _units(text: str, kind: Kind) -> int:
    """Return an amount in ledger units; cached, because most datasets have the same amounts."""
    amount = exact(text)
    units = to_units(amount, kind)
    if to_loss(units, kind) != amount:
        raise ValueError(f"{text} has more digits than a ledger stores")
    return units


DATASETS_SHOWN = 1_000
"""Number of datasets shown one by one, in the order declared; pages and metrics show sums of the others."""
PAIRS_SHOWN = 5_000
"""Number of pairs of a dataset and a monitor shown one by one: with many monitors, fewer datasets are shown."""


@dataclass(frozen=True)
class ApplicationSpec:
    """Datasets and monitors of an application in the order declared, as a shard's engine uses them.

    ``datasets`` include the balances ``carried`` over; `at` adds the current datasets of ``generators``.
    """

    application: str
    datasets: tuple[DatasetSpec, ...]
    monitors: tuple[MonitorSpec, ...]
    notes: tuple[Problem, ...] = field(default=(), compare=False)
    carried: Carried = NOTHING
    generators: tuple[Generator, ...] = ()

    def at(self, now_ms: int) -> ApplicationSpec:
        """Return the specification with the generated datasets that accept queries at a moment, UTC milliseconds.

        Before a generator's first period, these are the datasets of the first period.
        """
        if not self.generators:
            return self
        found = [*self.datasets]
        for generator in self.generators:
            now, lateness = max(now_ms, generator.from_ms), generator.each.lateness_ms or 0
            found += generator.periods(now - lateness, now + 1)
        return replace(self, datasets=tuple(found))

    def dataset(self, name: str) -> DatasetSpec:
        """Return a dataset by name, generated ones included; KeyError if it is not declared."""
        if (found := self.find(name)) is None:
            raise KeyError(name)
        return found

    def find(self, name: str) -> DatasetSpec | None:
        """Return a dataset by name, generated ones included; None if it is not declared."""
        generated = (generator.find(name) for generator in self.generators)
        return self._datasets_by_name.get(name) or next(filter(None, generated), None)

    def topics(self) -> tuple[str, ...]:
        """Return the query topics, sorted."""
        return tuple(sorted({monitor.topic for monitor in self.monitors}))

    def topics_with_broker_time(self) -> tuple[str, ...]:
        """Return the query topics that must be LogAppendTime, sorted."""
        first = (one for generator in self.generators for one in generator.period(generator.from_ms))
        periods = [one.name for one in (*self.datasets, *first) if one.terms.from_ms is not None]
        timed = (one for one in self.monitors if one.needs_broker_time or any(map(one.covers, periods)))
        return tuple(sorted({one.topic for one in timed}))

    def hash(self) -> str:
        """Return a short digest, which must be the same for all workers of the application."""
        return digest(
            {
                "application": self.application,
                "sampler": SAMPLER_VERSION,
                "carried": self.carried.digest,
                "datasets": [
                    [dataset.name, *dataset.terms.declaration, dataset.terms.lateness_ms]
                    for dataset in self.datasets
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
        """The datasets shown one by one: the first ones declared."""
        pairs = 0
        for number, dataset in enumerate(self.datasets[:DATASETS_SHOWN]):
            pairs += sum(monitor.covers(dataset.name) for monitor in self.monitors)
            if number and pairs > PAIRS_SHOWN:
                return self.datasets[:number]
        return self.datasets[:DATASETS_SHOWN]

    @cached_property
    def names_shown(self) -> frozenset[str]:
        """Names of the datasets shown one by one."""
        return frozenset(dataset.name for dataset in self.shown)

    def covered(self, monitor: MonitorSpec) -> NDArray[np.bool_]:
        """Return for each dataset, in the order declared, whether a monitor runs on it."""
        covers = monitor.covers
        return np.fromiter((covers(dataset.name) for dataset in self.datasets), np.bool_, len(self.datasets))

    @cached_property
    def _datasets_by_name(self) -> dict[str, DatasetSpec]:
        return {dataset.name: dataset for dataset in self.datasets}


def load_spec(
    text: str | bytes, source: str = "configuration", read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a YAML text.

    Raises ConfigError with all problems of single keys, or, if there are none, with all between keys.
    """
    document = read(text, source)
    spec = application_of(document, document.validated(ConfigDocument), read_names)
    document.raise_problems()
    return spec


def application_of(
    document: Document, config: ConfigDocument, read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a document; problems are reported to the document."""
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
    """Return the balances taken over from a closed application, `NOTHING` if a problem was reported."""
    if (name := config.carried_over) is None:
        return NOTHING
    prefix = ""
    try:
        lines = lines_of(name, read_names)
        prefix = f"{quote(name)}: "
        carried = parse(lines)
    except ValueError as error:
        document.report(("carried_over",), f"{prefix}{error}")
        return NOTHING
    if carried.successor != config.application:
        other = f"is for application {quote(carried.successor)}: a second one would spend the balances twice"
        document.report(("carried_over",), f"{quote(name)} {other}")
    return carried


_Datasets = dict[str, tuple[DatasetSpec, int]]
"""Datasets by name, each with the index of its declaration."""


def _datasets(
    document: Document, config: ConfigDocument, read_names: ReadNames | None, carried: Carried
) -> tuple[_Datasets, dict[int, Generator]]:
    """Return the datasets, with the first period of generators without an end, and these generators by index."""
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
    """Report declared names that a generator would produce in some period: both would use one ledger."""
    patterns = {dataset.terms.pattern: index for dataset, index in datasets.values() if dataset.terms.pattern}
    seen: set[int] = set()
    for dataset, index in datasets.values():
        for pattern in patterns if index not in seen else ():
            if pattern != dataset.terms.pattern and period_end(pattern, dataset.name) is not None:
                seen.add(index)
                line = document.line(("datasets", patterns[pattern]))
                message = f"dataset {quote(dataset.name)} has a name of generator {quote(pattern)}"
                document.report(("datasets", index), f"{message} at line {line}: rename one of them")
                break


def _compare(document: Document, config: ConfigDocument, datasets: _Datasets, carried: Carried) -> None:
    """Report contradictions between monitors, their datasets, and earlier declarations."""
    names: dict[str, int] = {}
    topics: dict[str, int] = {}
    for index, monitor in enumerate(config.monitors):
        path = ("monitors", index)
        other = topics.setdefault(monitor.topic, index)
        if config.monitors[other].record != monitor.record:
            line = document.line(("monitors", other))
            message = f"differs from the monitor at line {line}: all monitors of topic {quote(monitor.topic)} declare"
            document.report((*path, "record"), f"{message} the same layout")
        if (first := names.setdefault(monitor.name, index)) != index:
            line = document.line(("monitors", first, "name"))
            document.report(
                (*path, "name"), f"monitor {quote(monitor.name)} is already declared at line {line}"
            )
            continue
        for number, pattern in enumerate(monitor.datasets):
            if not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {quote(pattern)} matches no declared dataset"
                message += did_you_mean(pattern, list(datasets)[:1000])
                document.report((*path, "datasets", number), message)
        for name, message in carried.undercut(monitor).items():
            document.report((*path, name), message)
        budgets = {
            (dataset.terms.kind, dataset.terms.limit): dataset.name
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


_PERSON = re.compile(
    r"\b(account|client|customer|device|employee|household|member|patient|person|people|subscriber|user|visitor)s?\b",
    re.IGNORECASE,
)
_WITHIN_PERIOD = re.compile(r"day|daily|week|date|hour|period", re.IGNORECASE)


def _notes(document: Document, config: ConfigDocument, datasets: _Datasets) -> Iterator[Problem]:
    """Yield advice about settings that are allowed but may be unintended."""
    for index, monitor in enumerate(config.monitors):
        yield from (document.problem(("monitors", index, name), note) for name, note in monitor.notes())
    declared: dict[int, list[DatasetSpec]] = {}
    once: dict[int, str] = {}
    for dataset, index in datasets.values():
        declared.setdefault(index, []).append(dataset)
    for index, mine in declared.items():
        path, terms, unit = ("datasets", index), mine[0].terms, mine[0].terms.unit
        if terms.pattern and config.datasets[index].lateness == 0:
            message = "is 0: a query that arrives after the end of its period is refused, even the last one of a day"
            yield document.problem((*path, "lateness"), message)
        if terms.pattern and _PERSON.search(unit) and not _WITHIN_PERIOD.search(unit):
            message = f"{quote(unit)} may be in many periods and loses the limit in each: for one limit in all, declare"
            advice = (
                "one dataset without periods; else name a unit within a period, such as 'one user on one day'"
            )
            yield document.problem((*path, "unit"), f"{message} {advice}")
        users = [n for n, one in enumerate(config.monitors) if any(one.covers(name.name) for name in mine)]
        if not users:
            yield document.problem(path, "no monitor runs on these datasets")
        elif terms.kind is Kind.ZCDP and len(users) > 1:
            message = (
                f"with rho only one run at a time is open on a dataset: its {len(users)} monitors take turns"
            )
            yield document.problem((*path, "limit"), message)
        once.update({} if terms.until_ms else dict.fromkeys(users, mine[0].name))
    for n, name in once.items():
        if (
            config.monitors[n].mute is fields.Mute.PERIOD
            and "mute" not in config.monitors[n].model_fields_set
        ):
            message = f"dataset {quote(name)} has no period, so a series is reported once in the dataset's whole life"
            yield document.problem(
                ("monitors", n, "mute"), f"{message}: set a duration, such as 1d, for more reports"
            )
