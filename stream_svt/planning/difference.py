"""The changes that a new configuration makes, and the memory that a worker then takes, as text for the operator.

The model of the memory has measured figures: a test compares those for datasets and runs with measurements, and
`benchmarks/scale/opening.py` measures a whole process. It does not include memory that depends on the queries: muted
series (about 300 bytes each), and queries that wait in open sets or for a retry.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import asdict

from stream_svt.errors import Problem
from stream_svt.planning.maintenance import late_maintenance
from stream_svt.planning.promises import promises
from stream_svt.planning.sources import source_changes
from stream_svt.privacy.loss import Kind, amount_text, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec, Generator, Terms
from stream_svt.settings.detection import SolvedRun
from stream_svt.settings.document import quote
from stream_svt.settings.fields import AUTO, MaxRuns, duration_text
from stream_svt.settings.monitors import (
    Change,
    MonitorSpec,
    changed_fields,
    changes_refused,
    declared_by,
    effects,
)
from stream_svt.settings.periods import length_ms, periods_of, written
from stream_svt.wording import listed

NAMES_SHOWN = 3
"""Names given in a line about several datasets."""

MIB = 2**20
PROCESS = 120 * MIB
"""The interpreter with all its libraries, and a worker of a small configuration."""
WORK = 80 * MIB
"""Data in transit: queries read ahead, a step's arrays, the transaction in flight and the one before."""
DECLARED = 1_000
"""Bytes of a declared dataset on every worker."""
DATASET = 370
"""Bytes of a dataset on the worker that holds its shard: ledger, counters, the hash of its record."""
RUN = 170
"""Bytes of a monitor with an open run on a dataset: counters, secrets, elements of the arrays."""
RECORD = 75
"""Bytes of a dataset's state record."""
STORED = 98
"""Bytes of a monitor in a dataset's state record."""
OBJECT = 150
"""Bytes that a record in memory takes in addition to its content: object, dictionary entry, seal."""


@dataclass(slots=True)
class Difference:
    """Changes as lines of text, reasons why they cannot be applied, and the datasets that they retire permanently."""

    lines: list[str] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    retired: str = ""

    @property
    def removals(self) -> list[str]:
        """Removed and retired names, each with its effects in one line."""
        blocks = re.split(r"\n(?=\S)", "\n".join(self.lines))
        removed = (block for block in blocks if block.startswith("- "))
        return [block.replace("\n    ", ": ", 1).replace("\n    ", "; ") for block in removed]

    @property
    def has_changes(self) -> bool:
        """Whether anything is added, changed or removed."""
        return any(line.startswith(("+ ", "~ ", "- ")) for line in self.lines)

    def add(self, subject: str, *effects: str) -> None:
        """Add a line for an addition (+), change (~) or retirement (-), and a line for each effect."""
        self.lines += [subject, *(f"    {effect}" for effect in effects)]


def difference(
    old: ApplicationSpec | None,
    new: ApplicationSpec,
    partitions: int,
    *,
    raised: Mapping[str, int] = MappingProxyType({}),
    retired: Collection[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
    now_ms: int = 0,
) -> Difference:
    """Return the changes that applying a configuration would make.

    Args:
        old: The configuration applied last; None if there was none.
        partitions: Number of shards.
        raised: Limits that operators have raised, in ledger units by dataset.
        retired: Names of datasets that an earlier version retired.
        sources: Digests of the sources that an earlier version declared, by name.
        now_ms: The time, in UTC milliseconds.
    """
    before = old or ApplicationSpec(new.application, (), (), carried=new.carried)
    result = Difference()
    if before.carried.digest != new.carried.digest:
        message = (
            "cannot change: each shard's state began with the amounts in it. Name the file that it began with"
        )
        result.refused.append(Problem(0, "carried_over", message))
    for line, follows, refused in source_changes(before, new.at(now_ms), sources, now_ms):
        result.add(line, *follows)
        result.refused += refused
    _monitors(result, before.at(now_ms), new.at(now_ms))
    result.refused += late_maintenance(before, new, now_ms)
    _topics(result, before, new)
    _datasets(result, before, new, raised, frozenset(retired))
    _generators(result, before, new, now_ms)
    if not result.lines:
        result.add("No change.")
    wanted, had = (
        None if spec is None else memory(spec.at(now_ms), partitions)[0] // MIB for spec in (new, old)
    )
    if wanted != had:
        change = "" if had is None else f", before {had} MiB"
        result.add(f"A worker takes up to about {wanted} MiB with all shards{change}.")
    return result


def _monitors(result: Difference, old: ApplicationSpec, new: ApplicationSpec) -> None:
    """Add the changes of monitors; both specifications have the present generated datasets."""
    known, wanted = ({monitor.name: monitor for monitor in spec.monitors} for spec in (old, new))
    result.refused += changes_refused(known, declared_by(old.monitors), new.monitors)
    limits = _Limits(old), _Limits(new)
    for name, monitor in wanted.items():
        if name in known:
            changed = [] if monitor == known[name] else [*_fields(known[name], monitor)]
            changed += _derived(known[name], monitor, *limits)
            if changed:
                result.add(f"~ monitor {name}", *(_of_kinds(one, known[name], old) for one in changed))
            continue
        kinds = {dataset.terms.kind for dataset in new.datasets if monitor.covers(dataset.name)}
        prices = [amount_text(monitor.run_price(kind), kind) for kind in sorted(kinds)]
        cost = f"a run costs {' or '.join(prices)}" if prices else "it runs on no dataset"
        result.add(f"+ monitor {name} on topic {monitor.topic}", cost)
    for name in known:
        if name not in wanted:
            result.add(f"- monitor {name}", _of_kinds(Change.ENDS_RUNS, known[name], old))


def _of_kinds(effect: str, monitor: MonitorSpec, spec: ApplicationSpec) -> str:
    """Return an effect without what is about rho, if the monitor's datasets count epsilon."""
    if effect != Change.ENDS_RUNS:
        return effect
    kinds = {one.terms.kind for one in spec.datasets if monitor.covers(one.name)}
    return effect.removesuffix(", rho stays spent") if kinds == {Kind.PURE} else effect


def _fields(old: MonitorSpec, new: MonitorSpec) -> Iterator[str]:
    before, after = (one.model_dump(mode="json", by_alias=True) for one in (old, new))
    for name in changed_fields(old, new):
        was, now = before[name], after[name]
        if isinstance(was, list) and isinstance(now, list) and name != "bounds":
            parts = (("adds", now, was), ("removes", was, now))
            found = {verb: [one for one in of if one not in other] for verb, of, other in parts}
            said = [f"{verb} {', '.join(map(_value, of))}" for verb, of in found.items() if of]
            yield f"{name}: {'; '.join(said) or 'another order'}"
        else:
            yield f"{name}: {_value(was)} -> {_value(now)}"
    if old.detect and new.detect and (old.epsilon, old.split) != (new.epsilon, new.split):
        was, now = (asdict(SolvedRun.by(*one).of) for one in ((old, old.detect), (new, new.detect)))
        other = [key for key in was if was[key] != now[key]]
        yield f"epsilon and split were solved again, for another {listed(other, len(other))}"
    yield from effects(old, new)


class _Limits:
    """The largest numbers of runs on the datasets of a specification, which depend on all monitors of a dataset."""

    def __init__(self, spec: ApplicationSpec) -> None:
        self._spec = spec

    @cached_property
    def _sharing(self) -> list[int]:
        """The number of monitors of each dataset."""
        covered = [self._spec.covered(one) for one in self._spec.monitors]
        counts: list[int] = np.array(covered).sum(axis=0).tolist()
        return counts

    def of(self, monitor: MonitorSpec) -> dict[str, MaxRuns | None]:
        """Return the maximum by dataset."""
        found = zip(self._spec.datasets, self._spec.covered(monitor).tolist(), self._sharing, strict=True)
        return {
            one.name: monitor.runs_allowed(one.terms, sharing) for one, covers, sharing in found if covers
        }


def _derived(old: MonitorSpec, new: MonitorSpec, before: _Limits, after: _Limits) -> Iterator[str]:
    """Yield the changes of `max_runs: auto`, which follows from horizons, limits, prices and other monitors."""
    if old.max_runs != AUTO or new.max_runs != AUTO:
        return
    known, alike = before.of(old), dict[tuple[MaxRuns | None, MaxRuns | None], list[str]]()
    for name, most in after.of(new).items():
        if name in known and known[name] != most:
            alike.setdefault((known[name], most), []).append(name)
    for (was, now), names in alike.items():
        yield f"max_runs: auto: {was} -> {now} on {_listed('dataset', names)}"


def _value(value: Any) -> str:  # noqa: ANN401  any field
    """Return a value as text like YAML, whole; a ratio as a decimal if it has a short one."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(one)}' for key, one in value.items() if one is not None)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+/[0-9]+", value):
        return quote(Fraction(value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _topics(result: Difference, old: ApplicationSpec, new: ApplicationSpec) -> None:
    known, wanted = _declared(old.monitors), _declared(new.monitors)
    for topic in sorted(known | wanted):
        subject, before, after = f"query topic {topic}", known.get(topic, ""), wanted.get(topic, "")
        if not before:
            result.add(f"+ {subject}", f"{after}; later versions cannot declare less")
        elif not after:
            result.add(f"- {subject}", "it is no longer read")
        elif before != after:
            result.add(
                f"~ {subject}: {before} -> {after}",
                "every open run on the topic ends: its noise would be too small for the new answers",
                "switch the producers only after every shard has adopted this version",
            )


def _declared(monitors: Iterable[MonitorSpec]) -> dict[str, str]:
    return {
        topic: f"sensitivity {declared.sensitivity}, {'' if declared.monotonic else 'not '}monotonic"
        for topic, declared in declared_by(monitors).items()
    }


def limits_changed(old: ApplicationSpec | None, new: ApplicationSpec) -> list[str]:
    """Return the datasets that were declared with another limit."""
    known = {} if old is None else {dataset.name: dataset.terms.limit for dataset in old.datasets}
    return [one.name for one in new.datasets if known.get(one.name, one.terms.limit) != one.terms.limit]


def _datasets(
    result: Difference,
    old: ApplicationSpec,
    new: ApplicationSpec,
    raised: Mapping[str, int],
    retired: frozenset[str],
) -> None:
    known, wanted = ({dataset.name: dataset for dataset in spec.datasets} for spec in (old, new))
    alike: dict[str, list[str]] = {}
    for name, one in wanted.items():
        if name not in known:
            alike.setdefault(_each(one.terms), []).append(name)
    for each, names in alike.items():
        result.add(f"+ {_listed('dataset', names)}: {each}")
    if missing := [name for name in known if name not in wanted]:
        result.retired = _listed("dataset", missing)
        result.add(
            f"- {result.retired}",
            "permanently: no later version can declare the name again",
            "open runs end at full price, the final balance is published, waiting queries are dropped",
        )
    if again := [name for name in wanted if name in retired]:
        message = f"{_listed('dataset', again)} retired by an earlier version: choose an unused name"
        result.refused.append(Problem(0, "datasets", message))
    _terms(result, [(known[name].terms, one) for name, one in wanted.items() if name in known])
    for name, one in wanted.items():
        before = known.get(name, one)
        limit = one.terms.limit
        if replace(before.terms, limit=limit).declaration != one.terms.declaration:
            message = "measure, unit and period of a dataset never change: declare another dataset"
            result.refused.append(Problem(0, f"datasets.{name}", message))
        elif limit not in {before.terms.limit, raised.get(name)}:
            to = as_text(limit, one.terms.kind)
            command = f"stream-svt control raise-budget -c FILE {shlex.quote(name)} --limit {to}"
            message = f"only an operator can raise a limit: run '{command}', then change the file"
            result.refused.append(Problem(0, f"datasets.{name}.limit", message))


def _terms(result: Difference, pairs: Iterable[tuple[Terms, DatasetSpec]]) -> None:
    """Add the changes of datasets that stay."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for old, one in pairs:
        new = one.terms
        if old is not new and (effects := tuple(_effects(old, new))):
            alike.setdefault(effects, []).append(one.name)
    for effects, names in alike.items():
        result.add(f"~ {_listed('dataset', names)}", *effects)


def _effects(old: Terms, new: Terms) -> Iterator[str]:
    if old.horizon_ms != new.horizon_ms:
        yield f"horizon: {duration_text(old.horizon_ms)} -> {duration_text(new.horizon_ms)}, for burn rates"
    if old.limit != new.limit and old.kind is new.kind:
        yield f"limit: {as_text(old.limit, old.kind)} -> {as_text(new.limit, new.kind)}"
    if old.lateness_ms != new.lateness_ms:
        late = (duration_text(ms) if ms else "0" for ms in (old.lateness_ms, new.lateness_ms))
        yield f"lateness: {' -> '.join(late)}; periods that are over stay closed"


_RETIRED_OPEN = "permanently; in periods not yet over, open runs end at full price and balances are published"


def _generators(result: Difference, old: ApplicationSpec, new: ApplicationSpec, now_ms: int) -> None:
    # By pattern and name: several generators may have the same pattern.
    before, after = (
        {(one.pattern, name): one for one in spec.generators for name in one.names} for spec in (old, new)
    )
    patterns = {one.terms.pattern for one in old.datasets} | {one.pattern for one in old.generators}
    said = promises(new, now_ms)
    for one in new.generators:
        says = [text for text in said if text.startswith(f"{one.written}: ")]
        words = periods_of(one.pattern).words
        each = words if words.startswith("a ") else f"each {words}"
        count = "one dataset" if one.names == ("",) else f"{len(one.names)} datasets"
        known = [before[one.pattern, name] for name in one.names if (one.pattern, name) in before]
        if not known:
            result.add(f"+ generator {one.written}: {count} {each}, {_each(one.each)}", *says)
            if any(written(other) == one.written and other != one.pattern for other in patterns):
                message = "every and from of a generator never change: give these datasets another name"
                result.refused.append(Problem(0, f"datasets.{one.written}", message))
            continue
        effects = []
        if added := _listed("name", [name for name in one.names if (one.pattern, name) not in before]):
            effects.append(f"adds {added}: {count} {each}")
        for name, what in (("each.lateness_ms", "lateness"), ("from_ms", "first day")):
            if {*map(attrgetter(name), known)} != {attrgetter(name)(one)}:
                effects.append(f"another {what}: periods that are over stay closed")
        if terms := dict.fromkeys(
            _each(other.each) for other in known if _each(other.each) != _each(one.each)
        ):
            effects.append(f"{' and '.join(terms)} -> {_each(one.each)}")
        if effects:
            result.add(f"~ generator {one.written}", *effects, *says)
        if one.each.renewal or any(other.each.renewal for other in known):
            _renewals(result, new, one, known)
        elif one.from_ms <= now_ms and any(_each(other.each) != _each(one.each) for other in known):
            message = "limit, measure and unit of a period that has begun never change: give the generator an until,"
            remedy = "and declare it a second time from that day on"
            result.refused.append(Problem(0, f"datasets.{one.written}", f"{message} {remedy}"))
    for one in old.generators:
        if removed := [name for name in one.names if (one.pattern, name) not in after]:
            names = "" if len(removed) == len(one.names) else f": {_listed('name', removed)}"
            result.retired = result.retired or f"generator {one.written}{names}"
            result.add(f"- generator {one.written}{names}", _RETIRED_OPEN)


def _renewals(result: Difference, new: ApplicationSpec, one: Generator, known: list[Generator]) -> None:
    """Refuse another limit that renews, unless the periods before its first day stay as they were declared."""
    for other in known:
        same = _each(other.each) == _each(one.each) and other.from_ms == one.from_ms
        last = other.named(one.from_ms - length_ms(one.pattern)) if other.from_ms < one.from_ms else ()
        declared = [(dataset.terms, new.find(dataset.name)) for dataset in last]
        stays = [now is not None and now.terms.declaration == terms.declaration for terms, now in declared]
        if not same and not (stays and all(stays)):
            message = "from, per, every, looks_back and the limit never change: give the generator an until,"
            remedy = (
                "and declare it a second time from there. For per and looks_back after it both limits add up"
            )
            result.refused.append(Problem(0, f"datasets.{one.written}", f"{message} {remedy}"))
            return


def _each(one: Terms) -> str:
    return f"{amount_text(one.limit, one.kind)} each, for {one.unit}"


def _listed(what: str, names: list[str]) -> str:
    """Return the first names and their number; "" for no names."""
    if len(names) < 2:
        return f"{what} {names[0]}" if names else ""
    return f"{len(names)} {what}s ({listed(names, NAMES_SHOWN)})"


def memory(spec: ApplicationSpec, partitions: int) -> tuple[int, int]:
    """Return the most bytes that a worker takes with all shards, and with one, when every run is open.

    While a shard is opened, its records are in memory twice, sealed and opened, in addition to the restored state.
    """
    datasets = len(spec.datasets)
    runs = sum(int(spec.covered(monitor).sum()) for monitor in spec.monitors)
    process = PROCESS + WORK + DECLARED * datasets
    held = DATASET * datasets + RUN * runs
    opening = 2 * ((RECORD + OBJECT) * datasets + STORED * runs)
    return process + held + ceil(opening / partitions), process + ceil((held + opening) / partitions)
