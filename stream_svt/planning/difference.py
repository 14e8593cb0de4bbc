"""What a new configuration changes, in words: for whoever is about to apply it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from stream_svt.errors import Problem
from stream_svt.planning.memory import MIB, needed
from stream_svt.privacy.loss import as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.changes import (
    Declared,
    changed_fields,
    changes_refused,
    declaration_refused,
    ends_runs,
)
from stream_svt.settings.datasets import DAY_MS, DatasetSpec, Generator
from stream_svt.settings.monitors import MonitorSpec

_NOTHING: Mapping[str, int] = {}

_RUNS_END = "its open runs end: with epsilon what they did not spend is released, with rho all stays spent"

NAMES_SHOWN = 3
"""Names that a line about many datasets gives."""


class Sign(StrEnum):
    """What happens to something."""

    ADDED = "+"
    CHANGED = "~"
    RETIRED = "-"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the difference, and what follows from it."""

    sign: Sign
    subject: str
    effects: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        yield f"{self.sign} {self.subject}"
        for effect in self.effects:
            yield f"    {effect}"


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new configuration changes.

    Attributes:
        changes: In the order: monitors, query topics, datasets, generators without an end.
        refused: Why it cannot be applied; empty where it can.
        memory: What it means for the memory of a worker, in words; empty where that stays about the same.
        retired: The datasets that it ends for ever, in words; empty where it ends none.
    """

    changes: tuple[Change, ...]
    refused: tuple[Problem, ...]
    memory: str
    retired: str

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        if not self.changes:
            yield "No change."
        for change in self.changes:
            yield from change.lines()
        if self.memory:
            yield self.memory


def difference(
    old: ApplicationSpec | None,
    new: ApplicationSpec,
    partitions: int,
    *,
    raised: Mapping[str, int] = MappingProxyType({}),
    retired: Collection[str] = (),
    now_ms: int = 0,
) -> Difference:
    """Return what applying a configuration changes.

    Args:
        old: The one applied last, None where none was.
        partitions: Number of shards.
        raised: Limits in ledger units, by dataset, that operators have raised.
        retired: Names of datasets that an earlier version retired.
        now_ms: The time, in UTC milliseconds.
    """
    known = {} if old is None else {monitor.name: monitor for monitor in old.monitors}
    monitors = [*_monitors(known, new)]
    topics = [*_topics(known.values(), new)]
    datasets, refused = _datasets(old, new, raised, frozenset(retired))
    generators = [*_generators(old, new)]
    refused += _generators_refused(old, new, now_ms)
    changes = (*monitors, *topics, *datasets, *generators)
    gone = next((one.subject for one in (*datasets, *generators) if one.sign is Sign.RETIRED), "")
    memory = _memory(None if old is None else old.at(now_ms), new.at(now_ms), partitions)
    return Difference(changes, (*_refused(known, new), *refused), memory, gone)


def _monitors(known: dict[str, MonitorSpec], new: ApplicationSpec) -> Iterator[Change]:
    for monitor in new.monitors:
        if monitor.name not in known:
            kinds = {dataset.kind for dataset in new.datasets if monitor.covers(dataset.name)}
            prices = [f"{kind.measure} {as_text(monitor.run_price(kind), kind)}" for kind in sorted(kinds)]
            cost = f"a run costs {' or '.join(prices)}" if prices else "it runs on no dataset"
            yield Change(Sign.ADDED, f"monitor {monitor.name} on topic {monitor.topic}", (cost,))
        elif monitor != known[monitor.name]:
            effects = tuple(_fields(known[monitor.name], monitor))
            yield Change(Sign.CHANGED, f"monitor {monitor.name}", effects)
    wanted = {monitor.name for monitor in new.monitors}
    for name in known.keys() - wanted:
        yield Change(Sign.RETIRED, f"monitor {name}", (_RUNS_END,))


def _fields(old: MonitorSpec, new: MonitorSpec) -> Iterator[str]:
    before, after = (one.model_dump(mode="json", by_alias=True) for one in (old, new))
    for name in changed_fields(old, new):
        yield f"{name}: {_value(before[name])} -> {_value(after[name])}"
    if ends_runs(old, new):
        yield _RUNS_END
    if old.granularity != new.granularity or old.bounds != new.bounds:
        yield "queries that wait for another test are dropped: they were measured on the old grid"


def _value(value: Any) -> str:  # noqa: ANN401  whatever a field holds
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _topics(old: Iterable[MonitorSpec], new: ApplicationSpec) -> Iterator[Change]:
    before, after = _declared(old), _declared(new.monitors)
    for topic in sorted(after.keys() - before.keys()):
        yield Change(Sign.ADDED, f"query topic {topic}", (f"{_in_words(after[topic])}, for ever at least",))
    for topic in sorted(after.keys() & before.keys()):
        if after[topic] != before[topic]:
            effects = (
                "every open run of the topic ends: it would test the new answers with too little noise",
                "switch the producers only once every shard has adopted this",
            )
            told = f"query topic {topic}: {_in_words(before[topic])} -> {_in_words(after[topic])}"
            yield Change(Sign.CHANGED, told, effects)
    for topic in sorted(before.keys() - after.keys()):
        yield Change(Sign.RETIRED, f"query topic {topic}", ("it is not read any more",))


def _declared(monitors: Iterable[MonitorSpec]) -> dict[str, Declared]:
    found: dict[str, Declared] = {}
    for monitor in monitors:
        known = found.get(monitor.topic)
        found[monitor.topic] = Declared.by(monitor) if known is None else known.and_by(monitor)
    return found


def _in_words(declared: Declared) -> str:
    return f"sensitivity {declared.sensitivity}, {'not ' if declared.general else ''}monotonic"


def limits_changed(old: ApplicationSpec | None, new: ApplicationSpec) -> list[str]:
    """Return the datasets that were declared with another limit."""
    known = {} if old is None else {dataset.name: dataset.limit for dataset in old.datasets}
    return [one.name for one in new.datasets if known.get(one.name, one.limit) != one.limit]


def _datasets(
    old: ApplicationSpec | None, new: ApplicationSpec, raised: Mapping[str, int], used_up: frozenset[str]
) -> tuple[list[Change], list[Problem]]:
    known = {} if old is None else {dataset.name: dataset for dataset in old.datasets}
    added = [dataset for dataset in new.datasets if dataset.name not in known]
    wanted = {dataset.name for dataset in new.datasets}
    retired = [dataset for dataset in known.values() if dataset.name not in wanted]
    refused = []
    if again := [dataset for dataset in new.datasets if dataset.name in used_up]:
        message = f"{_named(again)} retired by an earlier version: a name is never used again"
        refused.append(Problem(0, "datasets", message))
    for dataset in new.datasets:
        before = known.get(dataset.name)
        if before is None or before.declaration == dataset.declaration:
            continue
        if not _only_the_limit(before, dataset):
            message = "measure, unit and period of a dataset never change: declare another one"
            refused.append(Problem(0, f"datasets.{dataset.name}", message))
        elif raised.get(dataset.name) != dataset.limit:
            limit = as_text(dataset.limit, dataset.kind)
            message = (
                "a limit is raised by an operator only: 'stream-svt control raise-budget -c FILE "
                f"{dataset.name} --limit {limit}', and then by the file"
            )
            refused.append(Problem(0, f"datasets.{dataset.name}.limit", message))
    alike: dict[str, list[DatasetSpec]] = {}
    for one in added:
        alike.setdefault(_each(one), []).append(one)
    changes = [Change(Sign.ADDED, f"{_named(some)}: {each}") for each, some in alike.items()]
    if retired:
        effects = (
            "for ever: no version can declare such a name again",
            "open runs end at full price, the final balance is published, what waits is dropped",
        )
        changes.append(Change(Sign.RETIRED, _named(retired), effects))
    return changes, refused


_RETIRED_OPEN = (
    "for ever, of periods that are not over: open runs end at full price, the final balance is published"
)


def _generators(old: ApplicationSpec | None, new: ApplicationSpec) -> Iterator[Change]:
    before, after = _by_name(old), _by_name(new)
    for one in new.generators:
        period = "week" if one.length_ms > DAY_MS else "day"
        count = "one dataset" if one.names == ("",) else f"{len(one.names)} datasets"
        known = [before[one.pattern, name] for name in one.names if (one.pattern, name) in before]
        if not known:
            yield Change(Sign.ADDED, f"generator {one.pattern}: {count} a {period}, {_each(one)}")
            continue
        effects = []
        if added := _listed("name", [name for name in one.names if (one.pattern, name) not in before]):
            effects.append(f"adds {added}: {count} a {period}")
        if any(other.lateness_ms != one.lateness_ms for other in known):
            effects.append("another lateness: a period that was over before stays so")
        if any(other.from_ms != one.from_ms for other in known):
            effects.append("another first day: a period that was over before stays so")
        if effects:
            yield Change(Sign.CHANGED, f"generator {one.pattern}", tuple(effects))
    for one in () if old is None else old.generators:
        removed = [name for name in one.names if (one.pattern, name) not in after]
        if removed:
            names = "" if len(removed) == len(one.names) else f": {_listed('name', removed)}"
            yield Change(Sign.RETIRED, f"generator {one.pattern}{names}", (_RETIRED_OPEN,))


def _by_name(spec: ApplicationSpec | None) -> dict[tuple[str, str], Generator]:
    """Return generators by pattern and name: several may share a pattern."""
    found = () if spec is None else spec.generators
    return {(one.pattern, name): one for one in found for name in one.names}


def _generators_refused(old: ApplicationSpec | None, new: ApplicationSpec, now_ms: int) -> Iterator[Problem]:
    before = _by_name(old)
    for one in new.generators:
        known = (before.get((one.pattern, name), one) for name in one.names)
        changed = any(
            (other.kind, other.limit, other.unit) != (one.kind, one.limit, one.unit) for other in known
        )
        if changed and one.from_ms <= now_ms:
            message = (
                "limit, measure and unit of a period that has begun never change: keep the declaration, give it an "
                "until, and declare the generator once more, from that day on"
            )
            yield Problem(0, f"datasets.{one.pattern}", message)


def _only_the_limit(before: DatasetSpec, after: DatasetSpec) -> bool:
    return replace(before, limit=after.limit).declaration == after.declaration


def _each(one: DatasetSpec | Generator) -> str:
    return f"{one.kind.measure} {as_text(one.limit, one.kind)} each, for {one.unit}"


def _named(datasets: list[DatasetSpec]) -> str:
    return _listed("dataset", [dataset.name for dataset in datasets])


def _listed(what: str, names: list[str]) -> str:
    """Return the first names and how many there are; "" where there is none."""
    shown = ", ".join(names[:NAMES_SHOWN])
    more = ", .." if len(names) > NAMES_SHOWN else ""
    if len(names) < 2:
        return f"{what} {shown}" if names else ""
    return f"{len(names)} {what}s ({shown}{more})"


def _refused(known: dict[str, MonitorSpec], new: ApplicationSpec) -> Iterator[Problem]:
    for monitor in new.monitors:
        if monitor.name in known:
            yield from changes_refused(known[monitor.name], monitor)
            continue
        for other in known.values():
            if other.topic == monitor.topic:
                yield from declaration_refused(Declared.by(other), monitor)


def _memory(old: ApplicationSpec | None, new: ApplicationSpec, partitions: int) -> str:
    wanted = needed(new, partitions).all_shards // MIB
    if old is None:
        return f"A worker takes up to about {wanted} MiB with all shards."
    before = needed(old, partitions).all_shards // MIB
    if wanted == before:
        return ""
    return f"A worker takes up to about {wanted} MiB with all shards, before {before} MiB."
