"""Specification of an application: datasets, monitors, and checks between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import Problem
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.privacy.loss import Kind, amount_text, as_text, to_units
from stream_svt.settings import counted, fields
from stream_svt.settings.carried import NOTHING, Carried
from stream_svt.settings.datasets import MAX_DATASETS, DatasetSpec, Generator, Terms
from stream_svt.settings.detection import DetectOptions, Held, RunProblem, SolvedRun, solve
from stream_svt.settings.document import Found, KeyPath, did_you_mean, quote, read, refuse
from stream_svt.settings.monitors import MonitorSpec, declared_by, digest
from stream_svt.settings.periods import DATE_SLOT, DAY_MS, WEEK_SLOT, Renewal, period_end, written
from stream_svt.settings.sections import ConfigDocument
from stream_svt.settings.sources import SourceSpec, WindowList

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
    sources: tuple[SourceSpec, ...] = ()

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

    def renewal_ms(self, terms: Terms) -> int | None:
        """Return when a dataset's next period begins, UTC milliseconds, if its limit renews and there is one."""
        if terms.renewal is None or terms.until_ms is None:
            return None
        pattern, begin = terms.pattern, terms.until_ms
        goes_on = any(one.pattern == pattern and one.from_ms <= begin for one in self.generators)
        return begin if goes_on or (pattern, begin) in self._begins else None

    def topics(self) -> tuple[str, ...]:
        """Return the query topics, topics of counts included, sorted."""
        return tuple(sorted({monitor.topic for monitor in self.monitors}))

    def counts_topics(self) -> frozenset[str]:
        """Return the topics of counts among the query topics: their offsets and refused records are shown nowhere."""
        return frozenset(one.topic for one in self.monitors if one.source is not None)

    def produced_topics(self) -> tuple[str, ...]:
        """Return the query topics without topics of counts, which only a counter writes, sorted."""
        return tuple(sorted({monitor.topic for monitor in self.monitors if monitor.source is None}))

    def topics_with_broker_time(self) -> tuple[str, ...]:
        """Return the query topics that must be LogAppendTime, sorted."""
        first = (one for generator in self.generators for one in generator.named(generator.from_ms))
        periods = [one.name for one in (*self.datasets, *first) if one.terms.from_ms is not None]
        others = (one for one in self.monitors if one.source is None)
        timed = (one for one in others if one.needs_broker_time or any(map(one.covers, periods)))
        return tuple(sorted({one.topic for one in timed}))

    def source(self, name: str) -> SourceSpec:
        """Return a source by name; KeyError if it is not declared."""
        for one in self.sources:
            if one.name == name:
                return one
        raise KeyError(name)

    def window_list(self, source: SourceSpec) -> WindowList:
        """Return the counts and questions of a source's windows that are opened under this specification."""
        asked = tuple(
            one.question(source)
            for one in self.monitors
            if one.measure and one.asks and one.source == source.name
        )
        return msgspec.structs.replace(source.window_list(), questions=asked)

    def going_on(self) -> tuple[list[str], list[str], list[str]]:
        """Compare the datasets with those that an earlier application carried over; return names.

        First those of periods that had begun and go on, then those of such periods that the file lacks, and those of
        the file that nothing declares.
        """
        running, waiting, carried = list[str](), list[str](), self.carried
        for generator in self.generators:
            for begin in generator.begins(carried.watermarks.get(generator.pattern, 0), generator.begun_ms):
                for one in generator.named(begin):
                    (running if one.name in carried.datasets else waiting).append(one.name)
        known, generators = {*running, *self._datasets_by_name}, self.generators
        undeclared = [
            name
            for name in carried.datasets
            if name not in known
            and not any((period_end(one.pattern, name) or 0) > one.begun_ms for one in generators)
        ]
        return running, waiting, undeclared

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
                "monitors": [monitor.content for monitor in self.monitors],
                **({"sources": [[one.name, one.digest] for one in self.sources]} if self.sources else {}),
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
    def _begins(self) -> frozenset[tuple[str, int | None]]:
        return frozenset((one.terms.pattern, one.terms.from_ms) for one in self.datasets if one.terms.pattern)

    @cached_property
    def _datasets_by_name(self) -> dict[str, DatasetSpec]:
        return {dataset.name: dataset for dataset in self.datasets}


ReadNames = Callable[[str], Sequence[str]]
"""Returns the lines of a file that a configuration names; raises OSError or ValueError."""


def load_spec(
    text: str | bytes,
    source: str = "configuration",
    read_names: ReadNames | None = None,
    held: Held | None = None,
) -> ApplicationSpec:
    """Return the specification in a YAML text, with the numbers that ``held`` has.

    Raises ConfigError with all problems of single keys, or, without any, with all problems between keys.
    """
    document, files = read(text, source), _NamesFiles(read_names, held)
    with document.checking():
        found = ConfigDocument.model_validate(document.data, context=files)
        return specification(found, document.problem)


@dataclass(frozen=True, slots=True)
class _NamesFiles:
    """The context of a configuration that is checked without its secrets."""

    read: ReadNames | None
    held: Held | None

    def lines(self, name: str) -> fields.Named[Sequence[str]]:
        """Return the lines of a file."""
        if self.read is None:
            raise ValueError(f"{quote(name)}: files cannot be read here: list the names")
        return fields.Named(name, fields.opened(self.read, name))

    def __getattr__(self, _: str) -> Callable[[Any], fields.Named[Any]]:
        return fields.Named


Where = Callable[[KeyPath | str, str], Problem]
"""Returns a message as a problem at the line of a path."""


def specification(config: ConfigDocument, where: Where) -> ApplicationSpec:
    """Return what a checked document declares; ValidationError with all contradictions between its keys."""
    carried = config.carried
    datasets, generators, problems = _datasets(config, where, carried)
    problems += _pattern_problems(where, datasets, generators)
    declared, config = config, _with_ends(config)
    budgets = _budgets(config, datasets)
    if not problems:
        problems += chain(_problems(declared, where, datasets, carried), _limit_problems(config, budgets))
    refuse(problems)
    return ApplicationSpec(
        config.application,
        tuple(dataset for dataset, index in datasets.values() if index not in generators),
        config.monitors,
        tuple(sorted(where(*one) for one in chain(_notes(config, budgets), _limit_notes(config, budgets)))),
        carried,
        tuple(generators.values()),
        config.sources,
    )


def _with_ends(config: ConfigDocument) -> ConfigDocument:
    """Return a document with the monitors that test for the ends of others' incidents, behind these."""
    sources = {one.name: one for one in config.sources}
    ends = tuple(one.ending(sources[one.source]) for one in config.monitors if one.end and one.source)
    return config.model_copy(update={"monitors": config.monitors + ends}) if ends else config


def _path(config: ConfigDocument, number: int, *key: str) -> tuple[str | int, ...]:
    """Return the path of a monitor's key; of `end` for a monitor that this makes."""
    ended = config.monitors[number].ends
    names = [one.name for one in config.monitors]
    return ("monitors", names.index(ended), "end") if ended else ("monitors", number, *key)


_Datasets = dict[str, tuple[DatasetSpec, int]]
"""Datasets by name, each with the index of its declaration."""


def _datasets(
    config: ConfigDocument, where: Where, carried: Carried
) -> tuple[_Datasets, dict[int, Generator], list[tuple[KeyPath | str, str]]]:
    """Return the datasets, with the first period of open generators, these generators by index, and problems."""
    datasets: _Datasets = {}
    generators: dict[int, Generator] = {}
    problems: list[tuple[KeyPath | str, str]] = []
    for index, declaration in enumerate(config.datasets):
        path = ("datasets", index)
        try:
            found, generator = carried.continued(declaration)
            if generator is not None:
                generators[index] = generator
            for dataset in found:
                if dataset.name in datasets:
                    first = where(("datasets", datasets[dataset.name][1]), "").line
                    raise ValueError(f"dataset {quote(dataset.name)} is already declared at line {first}")
                datasets[dataset.name] = (dataset, index)
        except ValueError as error:
            problems.append((path, str(error)))
        if len(datasets) > MAX_DATASETS:
            problems.append((path, f"declares more than {MAX_DATASETS} datasets in all"))
            break
    return datasets, generators, problems


def _pattern_problems(where: Where, datasets: _Datasets, generators: Mapping[int, Generator]) -> Found:
    """Yield declared names that a generator would produce in some period: both would use one ledger."""
    declared = dict.fromkeys(
        (one.terms.pattern, index) for one, index in datasets.values() if one.terms.pattern
    )
    patterns = [(pattern, at, where(("datasets", at), "").line) for pattern, at in declared]
    for number, (pattern, index, _) in enumerate(patterns):
        for earlier, _, line in patterns[:number]:
            if written(earlier) == written(pattern) and earlier != pattern:
                message = (
                    f"and from must fit those of the generator at line {line}, which makes the same names"
                )
                yield ("datasets", index, "every"), f"{message}: whole periods apart. Or rename one"
                return
    seen: set[int] = set()
    for dataset, index in datasets.values():
        for pattern, other, line in patterns if index not in seen else ():
            if pattern != dataset.terms.pattern and period_end(pattern, dataset.name) is not None:
                generator = f"generator {quote(written(pattern))} at line {line}"
                wrong = f"has a name of {generator}: rename one of them"
            elif (
                pattern == dataset.terms.pattern
                and index != other
                and other in generators
                and generators[other].find(dataset.name) is not None
            ):
                wrong = f"is declared at line {line}, too, which has no until: add one"
            else:
                continue
            seen.add(index)
            yield ("datasets", index), f"dataset {quote(dataset.name)} {wrong}"
            break


def _problems(config: ConfigDocument, where: Where, datasets: _Datasets, carried: Carried) -> Found:
    """Yield contradictions between monitors, their datasets, and earlier declarations."""
    names: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for index, monitor in enumerate(config.monitors):
        readers.setdefault(monitor.topic, []).append(index)
    cautious = declared_by(config.monitors)
    for index, monitor in enumerate(config.monitors):
        path = ("monitors", index)
        other = readers[monitor.topic][0]
        if config.monitors[other].record != monitor.record:
            line = where(("monitors", other), "").line
            message = f"differs from the monitor at line {line}: all monitors of topic {quote(monitor.topic)} declare"
            yield (*path, "record"), f"{message} the same layout"
        if (first := names.setdefault(monitor.name, index)) != index:
            line = where(("monitors", first, "name"), "").line
            yield (*path, "name"), f"monitor {quote(monitor.name)} is already declared at line {line}"
            continue
        for name in (declared := cautious[monitor.declares_about]).undercut(monitor):
            most = getattr(declared, name)
            about = monitor.declares_about
            alike = (n for n in readers[monitor.topic] if config.monitors[n].declares_about == about)
            first = next(n for n in alike if getattr(config.monitors[n], name) == most)
            line = where(("monitors", first, name), "").line
            other_name = quote(config.monitors[first].name)
            message = f"monitor {other_name} declares {quote(most)} for the same queries at line {line}"
            yield (*path, name), f"{message}: declare the same, or let one of them read another topic"
        for number, pattern in enumerate(monitor.datasets):
            if not any(fnmatchcase(name, pattern) for name in datasets):
                near = did_you_mean(pattern, list(datasets)[:1000])
                yield (
                    (*path, "datasets", number),
                    f"pattern {quote(pattern)} matches no declared dataset{near}",
                )
        # No topic of counts has answers that a declaration describes.
        for name, message in carried.undercut(monitor).items() if monitor.source is None else ():
            yield (*path, name), message


@dataclass(frozen=True, slots=True)
class _Budget:
    """Datasets with the same limit and monitors; ``index`` is of their declaration.

    ``prices`` has what a whole run of each monitor costs, in ledger units, by the index of the monitor.
    """

    datasets: list[DatasetSpec]
    index: int
    prices: Mapping[int, int]

    @property
    def needed(self) -> int:
        """What one whole run of each monitor costs."""
        return sum(self.prices.values())


def _budgets(config: ConfigDocument, datasets: _Datasets) -> list[_Budget]:
    """Return the budgets in the order declared."""
    found, keys = [*datasets.values()], dict[tuple[int, Kind, int], int]()
    each = (keys.setdefault((index, one.terms.kind, one.terms.limit), len(keys)) for one, index in found)
    groups = np.fromiter(each, np.int64, len(found))
    for monitor in config.monitors:
        covers = monitor.covers
        mask = np.fromiter((covers(one.name) for one, _ in found), np.bool_, len(found))
        groups = np.unique(2 * groups + mask, return_inverse=True)[1]
    alike: dict[int, list[DatasetSpec]] = {}
    for group, (one, _) in zip(groups.tolist(), found, strict=True):
        alike.setdefault(group, []).append(one)
    budgets = []
    for members in alike.values():
        name, kind = members[0].name, members[0].terms.kind
        prices = {n: one.run_price(kind) for n, one in enumerate(config.monitors) if one.covers(name)}
        budgets.append(_Budget(members, datasets[name][1], prices))
    return budgets


def _limit_problems(config: ConfigDocument, budgets: Sequence[_Budget]) -> Found:
    """Yield limits that cannot pay a whole run of each monitor."""
    seen: set[tuple[int, Kind, int]] = set()
    for budget in budgets:
        first = budget.datasets[0]
        kind, limit = first.terms.kind, first.terms.limit
        limit_text = f"the limit {amount_text(limit, kind)} of dataset {quote(first.name)}"
        if (renewal := first.terms.renewal) is not None:
            fewer = _fewer(renewal, first.terms.pattern)
            limit_text += f" ({amount_text(renewal.limit, kind)} over {renewal.periods} periods{fewer})"
        for number, price in budget.prices.items():
            if (number, kind, limit) in seen:
                continue
            seen.add((number, kind, limit))
            if config.monitors[number].ends and kind is Kind.ZCDP:
                message = f"dataset {quote(first.name)} has a limit in rho, where one run at a time is open"
                yield _path(config, number), f"{message}: ends need another one. Give it a limit in epsilon"
            cost, detect = amount_text(price, kind), config.monitors[number].detect
            if price > limit:
                key = ("epsilon",) if detect is None else ("detect", "surely_from")
                buys = "" if detect is None else _affordable(config.monitors[number], detect, first.terms)
                yield _path(config, number, *key), f"one whole run costs {cost}, above {limit_text}{buys}"
            elif price + config.monitors[number].reserve_units(kind) > limit:
                yield (
                    _path(config, number, "reserve"),
                    f"leaves no room for a whole run of {cost} within {limit_text}",
                )
        if max(budget.prices.values(), default=0) <= limit < budget.needed:
            message = f"{limit_text} cannot pay: {_sum(config, budget)} for a whole run of each monitor; the last ones"
            message += (
                " would be exhausted at their first query. Raise the limit, lower an epsilon or the alerts of"
            )
            remedy = "detect, raise surely_from, or let fewer monitors"
            yield ("datasets", budget.index, "limit"), f"{message} {remedy} cover the dataset"


def _fewer(renewal: Renewal, pattern: str) -> str:
    """Return in words the next length of periods of which fewer share a limit; "" if there is none."""
    longer = [one for one in renewal.others if one.periods < renewal.periods and WEEK_SLOT not in pattern]
    if not longer:
        return ""
    return f"; every: {longer[0].length_ms // DAY_MS}d makes them {longer[0].periods}"


def _affordable(monitor: MonitorSpec, detect: DetectOptions, terms: Terms) -> str:
    """Return in words what a limit buys of what a monitor shall detect."""
    run, kind = SolvedRun.by(monitor, detect).of, terms.kind
    steps, alerts = run.affordable(
        lambda epsilon, split: monitor.price_with(kind, epsilon=epsilon, split=split) <= terms.limit
    )
    text = _other_length(run, detect, terms.renewal) if DATE_SLOT in written(terms.pattern) else ""
    if steps == float("inf"):
        return f"{text}. It pays for no run of so many alerts"
    nearest = quote(detect.above + int(steps) * monitor.granularity)
    text += f". For {run.cutoff} alerts a run it buys surely_from: {nearest}"
    period_ms = terms.renewal.length_ms if terms.renewal else None
    fewer = alerts if detect.per is None or period_ms is None else alerts * detect.per // period_ms
    if not fewer:
        return text
    per = f" per {fields.duration_text(detect.per)}" if detect.per is not None else ""
    return f"{text}; for {quote(detect.surely_from)} it buys alerts: {fewer}{per} ({alerts} a run)"


def _other_length(run: RunProblem, detect: DetectOptions, renewal: Renewal | None) -> str:
    """Return in words which length of periods a limit that renews pays for, "" for none."""
    if renewal is None:
        return ""
    for one in reversed(renewal.others):
        solved = solve(run.at_length(detect, renewal.length_ms, one.length_ms))
        if solved and to_units(solved[0], Kind.PURE) <= one.share:
            return f". It would pay with every: {one.length_ms // DAY_MS}d ({one.periods} periods)"
    return ""


def _limit_notes(config: ConfigDocument, budgets: Sequence[_Budget]) -> Found:
    """Yield advice about runs that cannot begin because of a reserve, or of an earlier application's spending."""
    noted: set[int] = set()
    for budget in budgets:
        terms, needed = budget.datasets[0].terms, budget.needed
        kind = terms.kind
        for number in budget.prices.keys() - noted:
            monitor = config.monitors[number]
            reserve = monitor.reserve_units(kind)
            if needed <= terms.limit < needed + reserve:
                noted.add(number)
                sums = (
                    f"{as_text(needed, kind)} + {as_text(reserve, kind)} > {amount_text(terms.limit, kind)}"
                )
                message = f"{monitor.name} begins no whole run after one of each other monitor: {sums}"
                yield _path(config, number, "reserve"), message
        lefts = {
            one.name: one.terms.limit - one.terms.spent_before
            for one in budget.datasets
            if one.terms.spent_before
        }
        short = [name for name, left in lefts.items() if left < needed]
        if short:
            least = min(short, key=lefts.__getitem__)
            message = f"has {amount_text(lefts[least], kind)} left, which cannot pay: {_sum(config, budget)} for a run"
            more = f" ({len(short)} datasets in all)" if len(short) > 1 else ""
            yield ("datasets", budget.index), f"dataset {quote(least)} {message} of each monitor{more}"


SUMMANDS_SHOWN = 10
"""Monitors of a sum that a message names."""


def _sum(config: ConfigDocument, budget: _Budget) -> str:
    """Return the prices of a whole run of each monitor as a sum in words."""
    kind = budget.datasets[0].terms.kind
    named = [
        f"{config.monitors[number].name} {as_text(price, kind)}" for number, price in budget.prices.items()
    ]
    if (left_out := len(named) - SUMMANDS_SHOWN) > 0:
        named[SUMMANDS_SHOWN:] = [f"{left_out} more"]
    return f"{' + '.join(named)} = {as_text(budget.needed, kind)}"


_PERSON = re.compile(
    r"\b(account|client|customer|device|employee|household|member|patient|person|people|subscriber|user|visitor)s?\b",
    re.IGNORECASE,
)
_WITHIN_PERIOD = re.compile(r"day|daily|week|date|hour|period", re.IGNORECASE)


def _notes(config: ConfigDocument, budgets: Sequence[_Budget]) -> Found:
    """Yield advice about settings that are allowed but may be unintended."""
    yield from counted.notes(config)
    for index, monitor in enumerate(config.monitors):
        yield from ((_path(config, index, name), note) for name, note in monitor.notes())
    declared: dict[int, list[_Budget]] = {}
    once: dict[int, str] = {}
    for budget in budgets:
        declared.setdefault(budget.index, []).append(budget)
    for index, mine in declared.items():
        first = mine[0].datasets[0]
        path, terms, unit = ("datasets", index), first.terms, first.terms.unit
        if terms.pattern and config.datasets[index].lateness == 0:
            message = "is 0: a query that arrives after the end of its period is refused, even the last one of a day"
            yield (*path, "lateness"), message
        may_add_up = terms.pattern and terms.renewal is None
        if may_add_up and _PERSON.search(unit) and not _WITHIN_PERIOD.search(unit):
            message = f"{quote(unit)} may be in many periods and loses the limit in each: for one limit in all, declare"
            advice = (
                "one dataset without periods; else name a unit within a period, such as 'one user on one day'"
            )
            yield (*path, "unit"), f"{message} {advice}"
        users = {number for budget in mine for number in budget.prices}
        if not users:
            yield path, "no monitor runs on these datasets"
        elif terms.kind is Kind.ZCDP and len(users) > 1:
            message = (
                f"with rho only one run at a time is open on a dataset: its {len(users)} monitors take turns"
            )
            yield (*path, "limit"), message
        once.update({} if terms.until_ms else dict.fromkeys(users, first.name))
    for n, name in once.items():
        if (
            config.monitors[n].mute is fields.Mute.PERIOD
            and "mute" not in config.monitors[n].model_fields_set
        ):
            message = f"dataset {quote(name)} has no period, so a series is reported once in the dataset's whole life"
            yield ("monitors", n, "mute"), f"{message}: set a duration, such as 1d, for more reports"
