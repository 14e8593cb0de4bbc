"""Loads an engine with the stored state of its shard, in slices of a few milliseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from stream_svt.errors import ConfigError, Problem, UnreadableState
from stream_svt.monitor.dataset_account import DatasetAccount, read_dataset
from stream_svt.monitor.engine import OTHER_FILE, Engine
from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.run_arrays import Status
from stream_svt.monitor.snapshot import ProgressRecord, RunState, from_bytes
from stream_svt.monitor.stored_records import Named, Parts, by_kind, parts_of, queue_records
from stream_svt.settings.monitors import MonitorSpec

LOADED_AT_ONCE = 80_000
"""Bytes of state records that are loaded between two yields: a few milliseconds of work."""

QUEUES_AT_ONCE = 10
"""Queues that are put in order between two yields: a thousand places take a millisecond."""

_NO_PARTS: Mapping[str, Parts] = {}
_RUNNING = State.RUNNING  # looked up for every run that is loaded


def load(engine: Engine, records: Mapping[bytes, bytes], progress: bytes | None) -> None:
    """Take over as `loading` and `close_incompatible` do, at once."""
    for _ in loading(engine, records, progress):
        pass
    engine.retirement.check(engine.number, engine.shard, may_retire=False)
    for _ in close_incompatible(engine):
        pass


def loading(engine: Engine, records: Mapping[bytes, bytes], progress: bytes | None) -> Iterator[None]:
    """Take over from the live state records; an empty mapping and no progress is the very first start.

    This is done in slices of a few milliseconds. The engine is of use once no slice is left, `Retirement.check`
    has accepted what is declared, and `close_incompatible` has closed what this release cannot go on with.

    Args:
        records, progress: As they were committed.

    Raises:
        UnreadableState: A record cannot be decoded, or an open run's specification is missing.
        ConfigError: A dataset's declaration is not the journaled one.
    """
    if progress is None:
        return
    found = yield from by_kind(records)
    current, plans = engine.specs.load(found["m"], found["h"], found["t"])
    if current:
        _load_monitors(engine, current)
    stored = from_bytes(ProgressRecord, progress, key="meta")
    if stored.carried != engine.spec.carried_digest:
        raise ConfigError([Problem(0, "carried_over", OTHER_FILE)])
    engine.accounts.events.sequence = stored.sequence
    engine.accounts.events.shard_events = stored.shard_events
    engine.configuration = stored.configuration
    for name, (offset, row, clock_ms) in stored.positions.items():
        if name in engine.runners:
            runner = engine.runners[name]
            runner.offset, runner.row, runner.clock_ms, runner.started = offset, row, clock_ms, True
    engine.retirement.retired = dict(found["r"])
    engine.retirement.watermarks |= stored.watermarks
    yield from _load_datasets(engine, found, plans)
    yield from _load_queues(engine, found["w"])
    yield from engine.retirement.find_reused(engine.datasets)


def _load_datasets(engine: Engine, found: Mapping[str, Named], plans: dict[str, Plan]) -> Iterator[None]:
    stale = {stored for stored, plan in plans.items() if plan.hash != stored}
    mutes = yield from parts_of("q", found["q"])
    numbers: list[int] = []
    size = 0
    for name, data in found["d"]:
        muted = mutes.pop(name, _NO_PARTS)
        if name in engine.number:
            numbers.append(_load_dataset(engine, name, data, plans, stale, muted))
        else:
            engine.retirement.add(name, data, plans, muted)
        size += len(data) + sum(len(part) for parts in muted.values() for _, part in parts)
        if size > LOADED_AT_ONCE:
            _take_over(engine, numbers)
            engine.projection.update(numbers)
            numbers, size = [], 0
            yield
    _take_over(engine, numbers)
    engine.projection.update(numbers)
    for number, monitors in engine.incompatible:
        for monitor in monitors:
            if monitor in engine.runners:
                engine.runners[monitor].runs.status[number] = Status.SKIP
    for dataset in mutes:
        raise UnreadableState(f"the state holds mutes q/{dataset}/* without a record d/{dataset}")


def _load_queues(engine: Engine, named: Named) -> Iterator[None]:
    size = 0
    for number, data in queue_records(named):
        engine.accounts.queues.load(number, data, partial(_new_queue, engine))
        size += len(data)
        if size > LOADED_AT_ONCE:
            size = 0
            yield
    for count, queue in enumerate(engine.accounts.queues.loaded(), start=1):
        number = engine.number[queue.dataset]
        engine.runners[queue.monitor].runs.queues[number] = queue
        if number in engine.accounts.held:
            engine.projection.changed.add(number)
        if count % QUEUES_AT_ONCE == 0:
            yield


def _new_queue(engine: Engine, monitor: str, dataset: str) -> Queue | None:
    """Return an empty queue, to be loaded; None where the shard has no such monitor or dataset."""
    if monitor not in engine.runners or dataset not in engine.number:
        return None
    return engine.runners[monitor].append.new_queue(dataset)


def _load_monitors(engine: Engine, current: Mapping[str, MonitorSpec]) -> None:
    """Go on with the monitors of the state."""
    for name in engine.runners:
        engine.projection.remove(name)
    engine.runners.clear()
    engine.accounts.records = {}
    # Runners act in this order: it must not depend on how the state topic was compacted.
    order = [monitor.name for monitor in engine.spec.monitors if monitor.name in current]
    for name in [*order, *sorted(current.keys() - set(order))]:
        engine.add(current[name], journal=False)


def _load_dataset(
    engine: Engine,
    name: str,
    data: bytes,
    plans: dict[str, Plan],
    stale: set[str],
    mutes: Mapping[str, Parts],
) -> int:
    """Take over the account of a dataset, with the records of its mutes by monitor; return its number.

    This release would not recompute the noise of runs under ``stale`` hashes: `close_incompatible` closes them.
    """
    number = engine.number[name]
    record = read_dataset(data, f"d/{name}")
    if stale:
        lost = [
            monitor
            for monitor, run_state in record.run_states.items()
            if run_state.spec_hash in stale and run_state.state is _RUNNING
        ]
        if lost:
            engine.incompatible.append((number, lost))
    account = DatasetAccount.from_record(engine.datasets[number], record, plans, mutes)
    engine.accounts.held[number] = account
    return number


def close_incompatible(engine: Engine) -> Iterator[None]:
    """Close at full price the runs that were loaded and whose noise this release would not recompute.

    Yields whenever the next commit is full: the caller commits, and goes on.
    """
    # What is stored of a dataset changes at once: a run that is still open would refer to this release's hash.
    while engine.incompatible:
        number, monitors = engine.incompatible.pop()
        for monitor in monitors:
            engine.close_at_full_price(monitor, number, "incompatible")
        if engine.full:
            yield
    # Only now, for the same reason.
    for name in engine.specs.restated:
        engine.specs.keep(engine.runners[name].runs.plan)
    engine.specs.restated = []


def _take_over(engine: Engine, numbers: Sequence[int]) -> None:
    """Let the monitors go on where the slots of some datasets stand."""
    held: dict[str, tuple[list[int], list[RunState]]] = {}
    for number in numbers:
        for name, run_state in engine.accounts.held[number].run_states.items():
            found = held.get(name)
            if found is None:
                found = held[name] = [], []
            found[0].append(number)
            found[1].append(run_state)
    for name, (datasets, run_states) in held.items():
        runner = engine.runners.get(name)
        if runner is not None:
            runner.runs.take_over(datasets, run_states)
