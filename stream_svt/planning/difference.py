"""What a new configuration changes, in words: for whoever is about to apply it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from stream_svt.errors import Problem
from stream_svt.planning.memory import MIB, needed
from stream_svt.privacy.loss import as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DAY_MS, DatasetSpec
from stream_svt.settings.monitors import (
    MonitorSpec,
    changed_fields,
    changes_refused,
    declared_by,
    ends_runs,
)

_RUNS_END = "its open runs end: with epsilon what they did not spend is released, with rho all stays spent"

NAMES_SHOWN = 3
"""Names that a line about many datasets gives."""


@dataclass(slots=True)
class Difference:
    """What a new configuration changes, in words; why it cannot be applied; the datasets that it ends for ever."""

    lines: list[str] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    retired: str = ""

    def says(self, subject: str, *effects: str) -> None:
        """Add one thing that is added (+), changed (~) or retired (-), and what follows from it."""
        self.lines += [subject, *(f"    {effect}" for effect in effects)]


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
    before = old or ApplicationSpec(new.application, (), ())
    found = Difference()
    _monitors(found, before, new)
    _topics(found, before, new)
    _datasets(found, before, new, raised, frozenset(retired))
    _generators(found, before, new, now_ms)
    if not found.lines:
        found.says("No change.")
    wanted, had = (
        None if spec is None else needed(spec.at(now_ms), partitions).all_shards // MIB for spec in (new, old)
    )
    if wanted != had:
        change = "" if had is None else f", before {had} MiB"
        found.says(f"A worker takes up to about {wanted} MiB with all shards{change}.")
    return found


def _monitors(found: Difference, old: ApplicationSpec, new: ApplicationSpec) -> None:
    known, wanted = ({monitor.name: monitor for monitor in spec.monitors} for spec in (old, new))
    found.refused += changes_refused(known, declared_by(old.monitors), new.monitors)
    for name, monitor in wanted.items():
        if name in known:
            if monitor != known[name]:
                found.says(f"~ monitor {name}", *_fields(known[name], monitor))
            continue
        kinds = {dataset.kind for dataset in new.datasets if monitor.covers(dataset.name)}
        prices = [f"{kind.measure} {as_text(monitor.run_price(kind), kind)}" for kind in sorted(kinds)]
        cost = f"a run costs {' or '.join(prices)}" if prices else "it runs on no dataset"
        found.says(f"+ monitor {name} on topic {monitor.topic}", cost)
    for name in known:
        if name not in wanted:
            found.says(f"- monitor {name}", _RUNS_END)


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


def _topics(found: Difference, old: ApplicationSpec, new: ApplicationSpec) -> None:
    known, wanted = _declared(old.monitors), _declared(new.monitors)
    for topic in sorted(known | wanted):
        subject, before, after = f"query topic {topic}", known.get(topic, ""), wanted.get(topic, "")
        if not before:
            found.says(f"+ {subject}", f"{after}, for ever at least")
        elif not after:
            found.says(f"- {subject}", "it is not read any more")
        elif before != after:
            found.says(
                f"~ {subject}: {before} -> {after}",
                "every open run of the topic ends: it would test the new answers with too little noise",
                "switch the producers only once every shard has adopted this",
            )


def _declared(monitors: Iterable[MonitorSpec]) -> dict[str, str]:
    return {
        topic: f"sensitivity {declared.sensitivity}, {'' if declared.monotonic else 'not '}monotonic"
        for topic, declared in declared_by(monitors).items()
    }


def limits_changed(old: ApplicationSpec | None, new: ApplicationSpec) -> list[str]:
    """Return the datasets that were declared with another limit."""
    known = {} if old is None else {dataset.name: dataset.limit for dataset in old.datasets}
    return [one.name for one in new.datasets if known.get(one.name, one.limit) != one.limit]


def _datasets(
    found: Difference,
    old: ApplicationSpec,
    new: ApplicationSpec,
    raised: Mapping[str, int],
    used_up: frozenset[str],
) -> None:
    known, wanted = ({dataset.name: dataset for dataset in spec.datasets} for spec in (old, new))
    alike: dict[str, list[str]] = {}
    for name, one in wanted.items():
        if name not in known:
            alike.setdefault(_each(one), []).append(name)
    for each, names in alike.items():
        found.says(f"+ {_listed('dataset', names)}: {each}")
    if retired := [name for name in known if name not in wanted]:
        found.retired = _listed("dataset", retired)
        found.says(
            f"- {found.retired}",
            "for ever: no version can declare such a name again",
            "open runs end at full price, the final balance is published, what waits is dropped",
        )
    if again := [name for name in wanted if name in used_up]:
        message = f"{_listed('dataset', again)} retired by an earlier version: a name is never used again"
        found.refused.append(Problem(0, "datasets", message))
    for name, one in wanted.items():
        before = known.get(name, one)
        if replace(before, limit=one.limit).declaration != one.declaration:
            message = "measure, unit and period of a dataset never change: declare another one"
            found.refused.append(Problem(0, f"datasets.{name}", message))
        elif one.limit not in {before.limit, raised.get(name)}:
            command = f"stream-svt control raise-budget -c FILE {name} --limit {as_text(one.limit, one.kind)}"
            message = f"a limit is raised by an operator only: '{command}', and then by the file"
            found.refused.append(Problem(0, f"datasets.{name}.limit", message))


_RETIRED_OPEN = "for ever, of periods that are not over: open runs end at full price, balances are published"


def _generators(found: Difference, old: ApplicationSpec, new: ApplicationSpec, now_ms: int) -> None:
    # By pattern and name: several may share a pattern.
    before, after = (
        {(one.pattern, name): one for one in spec.generators for name in one.names} for spec in (old, new)
    )
    for one in new.generators:
        period = "week" if one.length_ms > DAY_MS else "day"
        count = "one dataset" if one.names == ("",) else f"{len(one.names)} datasets"
        known = [before[one.pattern, name] for name in one.names if (one.pattern, name) in before]
        if not known:
            found.says(f"+ generator {one.pattern}: {count} a {period}, {_each(one.each)}")
            continue
        effects = []
        if added := _listed("name", [name for name in one.names if (one.pattern, name) not in before]):
            effects.append(f"adds {added}: {count} a {period}")
        for name, what in (("each.lateness_ms", "lateness"), ("from_ms", "first day")):
            if {*map(attrgetter(name), known)} != {attrgetter(name)(one)}:
                effects.append(f"another {what}: a period that was over before stays so")
        if effects:
            found.says(f"~ generator {one.pattern}", *effects)
        if one.from_ms <= now_ms and any(_each(other.each) != _each(one.each) for other in known):
            message = "limit, measure and unit of a period that has begun never change: give it an until, and"
            remedy = "declare the generator once more, from that day on"
            found.refused.append(Problem(0, f"datasets.{one.pattern}", f"{message} {remedy}"))
    for one in old.generators:
        if removed := [name for name in one.names if (one.pattern, name) not in after]:
            names = "" if len(removed) == len(one.names) else f": {_listed('name', removed)}"
            found.retired = found.retired or f"generator {one.pattern}{names}"
            found.says(f"- generator {one.pattern}{names}", _RETIRED_OPEN)


def _each(one: DatasetSpec) -> str:
    return f"{one.kind.measure} {as_text(one.limit, one.kind)} each, for {one.unit}"


def _listed(what: str, names: list[str]) -> str:
    """Return the first names and how many there are; "" where there is none."""
    shown = ", ".join(names[:NAMES_SHOWN])
    more = ", .." if len(names) > NAMES_SHOWN else ""
    if len(names) < 2:
        return f"{what} {shown}" if names else ""
    return f"{len(names)} {what}s ({shown}{more})"
