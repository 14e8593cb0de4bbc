"""Takes over a shard: loads the stored state, then changes to the specification wanted.

Each function works in slices of a few milliseconds: it yields after each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from stream_svt.errors import ConfigError, Problem, UnreadableState
from stream_svt.monitor.accounts import DatasetAccount
from stream_svt.monitor.engine import OTHER_FILE, Engine
from stream_svt.monitor.queue_journal import Queue, record_number
from stream_svt.monitor.released import EventType
from stream_svt.monitor.retry import RetryQueue
from stream_svt.monitor.runs import Mutes, Plan, Runs
from stream_svt.monitor.shard_datasets import AT_ONCE
from stream_svt.monitor.snapshot import ProgressRecord, SpecRecord, TopicRecord, from_bytes
from stream_svt.monitor.sweep import OpenSets
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import Declared, MonitorSpec, changed_fields, changes_refused, ends_runs

KINDS: Mapping[int, type[Queue[Any]]] = {kind.kind: kind for kind in (OpenSets, RetryQueue, Mutes)}

LOADED_AT_ONCE = 80_000
"""Bytes of state records that are loaded between two yields: a few milliseconds of work."""
QUEUES_AT_ONCE = 10
"""Queues that are put in order between two yields: a thousand places take a millisecond."""

Named = list[tuple[str, bytes]]
"""State records of one kind, with what follows the kind in their keys."""


def load(engine: Engine, records: Mapping[bytes, bytes], progress: bytes | None) -> None:
    """Take over as `load_in_slices` does, at once."""
    for _ in load_in_slices(engine, records, progress):
        pass
    engine.retirement.check(engine.number, engine.shard, may_retire=False)


def load_in_slices(engine: Engine, records: Mapping[bytes, bytes], progress: bytes | None) -> Iterator[None]:
    """Take over from the live state records; an empty mapping and no progress is the very first start.

    The engine is of use once no slice is left, and `Retirement.check` has accepted what is declared. `UnreadableState`
    and `ConfigError` are raised for records and declarations that cannot be gone on with.
    """
    if progress is None:
        return
    found = yield from _by_kind(records)
    same: set[str] = set()
    if found["m"]:
        engine.declared = {topic: _declared(data, f"t/{topic}") for topic, data in found["t"]}
        same = _load_monitors(engine, found["m"])
    stored = from_bytes(ProgressRecord, progress, key="meta")
    if stored.carried != engine.spec.carried.digest:
        raise ConfigError([Problem(0, "carried_over", OTHER_FILE)])
    engine.accounts.sequence = stored.sequence
    engine.accounts.shard_events = stored.shard_events
    engine.configuration = stored.configuration
    for name, (offset, row, clock_ms) in stored.positions.items():
        if name in engine.runners:
            runner = engine.runners[name]
            runner.offset, runner.row, runner.clock_ms, runner.started = offset, row, clock_ms, True
    engine.retirement.retired = dict(found["r"])
    engine.retirement.watermarks |= stored.watermarks
    yield from _load_datasets(engine, found["d"], same)
    yield from _load_queues(engine, found["w"])
    yield from engine.retirement.find_reused(engine.datasets)


def _by_kind(records: Mapping[bytes, bytes]) -> Generator[None, None, Mapping[str, Named]]:
    found: dict[str, Named] = defaultdict(list)
    for count, (key, data) in enumerate(records.items(), start=1):
        kind, _, rest = key.decode().partition("/")
        found[kind].append((rest, data))
        if count % AT_ONCE == 0:
            yield
    return found


def _declared(data: bytes, key: str) -> Declared:
    record = from_bytes(TopicRecord, data, key=key)
    try:
        return Declared(Fraction(record.sensitivity), not record.general)
    except (ValueError, ZeroDivisionError):
        message = (
            f"state record {key} holds a sensitivity that is no number; the shard stops rather than guess"
        )
        raise UnreadableState(message) from None


def _load_monitors(engine: Engine, named: Named) -> set[str]:
    """Go on with the monitors of the state; return the names of those whose hash, and so noise, is still the same."""
    current: dict[str, MonitorSpec] = {}
    same: set[str] = set()
    for name, data in named:
        record = from_bytes(SpecRecord, data, key=f"m/{name}")
        try:
            current[name] = MonitorSpec.from_json(record.spec)
        except ValueError:
            message = (
                f"state record m/{name} holds a specification that this release cannot read; "
                "use the release that wrote it"
            )
            raise UnreadableState(message) from None
        if Plan.of(current[name]).hash == record.hash:
            same.add(name)
    for name in engine.runners:
        engine.projection.remove(name)
    engine.runners.clear()
    engine.accounts.next.records = {}
    # Runners act in this order: it must not depend on how the state topic was compacted.
    order = [monitor.name for monitor in engine.spec.monitors if monitor.name in current]
    for name in [*order, *sorted(current.keys() - set(order))]:
        engine.add(current[name], journal=name not in same)
    return same


def _load_datasets(engine: Engine, named: Named, same: Container[str]) -> Iterator[None]:
    numbers: list[int] = []
    size = 0
    for name, data in named:
        account = from_bytes(DatasetAccount, data, key=f"d/{name}")
        number = engine.number.get(name)
        account.check(None if number is None else engine.datasets[number], same)
        if number is None:
            engine.retirement.add(account)
        else:
            engine.accounts.held[number] = account
            numbers.append(number)
        size += len(data)
        if size > LOADED_AT_ONCE:
            _refresh(engine, numbers)
            numbers, size = [], 0
            yield
    _refresh(engine, numbers)


def _refresh(engine: Engine, numbers: Sequence[int]) -> None:
    for runner in engine.runners.values():
        runner.runs.refresh(numbers)
    engine.projection.update(numbers)


def _load_queues(engine: Engine, named: Named) -> Iterator[None]:
    size = 0
    for number, data in sorted((record_number(rest), data) for rest, data in named):
        engine.accounts.queues.load(number, data, KINDS)
        size += len(data)
        if size > LOADED_AT_ONCE:
            size = 0
            yield
    for count, queue in enumerate(engine.accounts.queues.loaded(), start=1):
        _take_queue(engine, queue)
        if count % QUEUES_AT_ONCE == 0:
            yield


def _take_queue(engine: Engine, queue: Queue[Any]) -> None:
    """Go on with a queue; drop one of a dataset or monitor that the shard has no more."""
    number, runner = engine.number.get(queue.dataset), engine.runners.get(queue.monitor)
    if number is not None and isinstance(queue, Mutes):
        engine.accounts.mutes.setdefault(queue.monitor, {})[number] = queue
        if runner is not None:
            runner.runs.filter.add(number, queue.entries)
    elif number is None or runner is None:
        queue.drop()
        return
    elif type(queue) is not runner.append.queue:
        message = f"queries of {queue.dataset} wait for monitor {queue.monitor} in a queue of another kind"
        raise UnreadableState(f"state records w/* are damaged: {message}")
    else:
        runner.runs.queues[number] = queue
    if number in engine.accounts.held:
        engine.projection.changed.add(number)


# -- another specification -----------------------------------------------------------------------------------


def change_spec(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> None:
    """Go on with another specification as `check_spec`, `close_removed` and `change_spec_in_slices` do, at once."""
    check_spec(engine, spec)
    for _ in close_removed(engine, spec, unread):
        pass
    for _ in change_spec_in_slices(engine, spec):
        pass


def check_spec(engine: Engine, spec: ApplicationSpec) -> None:
    """Refuse, with a `ConfigError`, another specification that cannot be gone on with; changes nothing."""
    running = {name: runner.spec for name, runner in engine.runners.items()}
    refusals = changes_refused(running, engine.declared, spec.monitors)
    if spec.carried.digest != engine.spec.carried.digest:
        refusals.insert(0, Problem(0, "carried_over", OTHER_FILE))
    if refusals:
        raise ConfigError(refusals, "the configuration against the stored state")


def close_removed(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> Iterator[None]:
    """Close the open runs that another specification has no place for, and drop what waits there.

    Those of a monitor whose noise or price changes are among them: all its runs are of one specification. What waits
    is dropped, too, where the declaration or the grid changes that it was measured under. Of the topics ``unread``
    since the takeover, an owner before may have tested queries and lost the outcomes: runs there close at full price.

    Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
    """
    wanted = {monitor.name: monitor for monitor in spec.monitors}
    for name, runner in engine.runners.items():
        monitor, runs = wanted.get(name), runner.runs
        stale = monitor is None or ends_runs(runs.spec, monitor)
        lost = stale and runs.spec.topic in unread
        gone = runs.covers if monitor is None else runs.covers & ~engine.datasets.covers(monitor)
        forgets = monitor is not None and (
            Plan.of(monitor).grid != runs.plan.grid
            or Declared.by(runs.spec) | Declared.by(monitor) != Declared.by(runs.spec)
        )
        for count, number in enumerate(np.flatnonzero(runs.covers if stale else gone).tolist(), start=1):
            if forgets or gone[number]:
                runs.forget_waiting(number)
            if runs.is_open(number):
                reason = "unread" if lost else "removed" if gone[number] else "changed"
                runs.end_run(number, reason, full_price=lost)
            if engine.full or count % AT_ONCE == 0:
                yield
        yield


def change_spec_in_slices(engine: Engine, spec: ApplicationSpec) -> Iterator[None]:
    """Go on with another specification at a barrier; nothing happens where it is the one in use.

    The engine is of use, and may be committed, once no slice is left. `check_spec` has accepted the specification, and
    `close_removed` has closed what it has no place for.
    """
    wanted = {monitor.name: monitor for monitor in spec.monitors}
    for name in [name for name in engine.runners if name not in wanted]:
        _remove(engine, name)
        yield
    for name, monitor in wanted.items():
        if name not in engine.runners:
            yield from _refresh_all(engine, engine.add(monitor).runs)
            _announce(engine, name, "added", monitor.hash())
            yield
        elif engine.runners[name].spec != monitor:
            yield from _change(engine, engine.runners[name].runs, monitor)
    engine.spec = spec
    yield from engine.projection.sum_up()


def _announce(engine: Engine, name: str, reason: str, spec_hash: str, fields: Sequence[str] = ()) -> None:
    kind = EventType.SPEC_CHANGED
    engine.accounts.shard_event(kind, reason, name, spec_hash=spec_hash, fields=list(fields))


def _remove(engine: Engine, name: str) -> None:
    for queue in engine.runners.pop(name).runs.queues.values():
        queue.drop()
    engine.projection.remove(name)
    engine.accounts.next.records[f"m/{name}".encode()] = None
    _announce(engine, name, "removed", "")


def _change(engine: Engine, runs: Runs, spec: MonitorSpec) -> Iterator[None]:
    old, runs.plan = runs.spec, Plan.of(spec)
    covers = engine.datasets.covers(spec)
    if not np.array_equal(runs.covers, covers):
        runs.cover(covers)
        engine.projection.cover(runs.name, covers)
        engine.projection.changed |= engine.accounts.held.keys()
    yield from _refresh_all(engine, runs)
    engine.store_plan(runs.plan)
    engine.declare(spec)
    _announce(engine, spec.name, "changed", runs.plan.hash, sorted(changed_fields(old, spec)))
    yield


def _refresh_all(engine: Engine, runs: Runs) -> Iterator[None]:
    """Let a monitor go on where its slots stand, of which it may have had some before."""
    numbers = list(engine.accounts.held)
    for at in range(0, len(numbers), AT_ONCE):
        engine.projection.changed.update(runs.refresh(numbers[at : at + AT_ONCE]))
        yield
