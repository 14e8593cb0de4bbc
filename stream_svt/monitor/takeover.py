"""Takeover of a shard: an engine loads the stored state, then changes to another specification.

Both work in slices of a few milliseconds, and yield after each. If the next commit is full after a slice of
`close_undeclared`, `retire` or `close_removed`, the caller commits before it resumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, islice
from typing import Any

import numpy as np

from stream_svt.errors import ConfigError, Problem, UnreadableState
from stream_svt.monitor.engine import OTHER_FILE, Engine
from stream_svt.monitor.released import PERIOD_OVER, EventType
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.monitor.state.mutes import Mutes
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.state.queue_journal import Queue, record_number
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.state.shard_datasets import AT_ONCE
from stream_svt.monitor.state.snapshot import (
    LookRecord,
    ProgressRecord,
    Signal,
    SpecRecord,
    State,
    TopicRecord,
    from_bytes,
    to_bytes,
)
from stream_svt.monitor.testing.retry import RetryQueue
from stream_svt.monitor.testing.sweep import OpenSets
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import RetiredDatasets
from stream_svt.settings.monitors import Declared, MonitorSpec, changed_fields, changes_refused, ends_runs
from stream_svt.settings.periods import is_over

KINDS: Mapping[int, type[Queue[Any]]] = {kind.kind: kind for kind in (OpenSets, RetryQueue, Mutes)}

LOADED_AT_ONCE = 80_000
"""Bytes of state records that are loaded between two yields."""
QUEUES_AT_ONCE = 10
"""Queues that are loaded between two yields: a thousand entries take a millisecond."""
NAMES_AT_ONCE = 500
"""Names that are compared with periods between two yields: ten microseconds each."""

Named = list[tuple[str, bytes]]
"""State records of one kind: the rest of the key after the kind, and the content."""


def load(engine: Engine, records: Mapping[bytes, bytes], progress: bytes | None) -> None:
    """Load the state without slices (see `load_in_slices`), and check it."""
    for _ in chain(load_in_slices(engine, records, progress), check_declared(engine, may_retire=False)):
        pass


def load_in_slices(engine: Engine, records: Mapping[bytes, bytes], progress: bytes | None) -> Iterator[None]:
    """Load the live state records into a new engine; ``progress`` is None at the first start.

    The engine may be used after the last slice, once `check_declared` has accepted the declared datasets. Raises
    `UnreadableState` for unusable records, and `ConfigError` for unusable declarations.
    """
    if progress is None:
        return
    by_kind = yield from _by_kind(records)
    same: set[str] = set()
    if by_kind["m"]:
        engine.declared = {topic: _declared(data, f"t/{topic}") for topic, data in by_kind["t"]}
        same = _load_monitors(engine, by_kind["m"])
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
            runner.read_ms = clock_ms
    engine.retired = dict(by_kind["r"])
    engine.watermarks |= stored.watermarks
    engine.carried_mutes = stored.carried_mutes
    engine.deciles.last = {name: from_bytes(LookRecord, data, key=f"l/{name}") for name, data in by_kind["l"]}
    yield from _load_datasets(engine, by_kind["d"], same)
    yield from _load_queues(engine, by_kind["w"])


def take_mutes(engine: Engine) -> Iterator[None]:
    """Mute the series that an earlier application had muted, in slices; those of incidents are tested for their ends.

    To be called before any query is read. Yields after each line of the file; if the next commit is full then, the
    caller commits before it resumes. The next takeover continues after the last line that became durable.
    """
    for line in engine.spec.carried.mutes[engine.carried_mutes :]:
        number, runner = engine.number.get(line.dataset), engine.runners.get(line.monitor)
        if number is not None and runner is not None and runner.runs.covers[number]:
            mutes, most = runner.runs.mutes, runner.runs.spec.max_mutes
            for series, until in line.ends:
                mutes.add(number, mutes.hash_of(series), until, runner.clock_ms, most)
        engine.carried_mutes += 1
        yield


def _by_kind(records: Mapping[bytes, bytes]) -> Generator[None, None, Mapping[str, Named]]:
    by_kind: dict[str, Named] = defaultdict(list)
    for count, (key, data) in enumerate(records.items(), start=1):
        kind, _, rest = key.decode().partition("/")
        by_kind[kind].append((rest, data))
        if count % AT_ONCE == 0:
            yield
    return by_kind


def _declared(data: bytes, key: str) -> Declared:
    record = from_bytes(TopicRecord, data, key=key)
    try:
        return Declared(Fraction(record.sensitivity), not record.general)
    except (ValueError, ZeroDivisionError):
        message = (
            f"state record {key} holds a sensitivity that is not a number; use the release that wrote it"
        )
        raise UnreadableState(message) from None


def _load_monitors(engine: Engine, named: Named) -> set[str]:
    """Add the monitors of the state; return those whose hash, and therefore noise, is unchanged in this release."""
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
    engine.accounts.covered.clear()
    engine.accounts.next.records = {}
    # The order in which runners act must not depend on the compaction of the state topic.
    order = [monitor.name for monitor in engine.spec.monitors if monitor.name in current]
    for name in [*order, *sorted(current.keys() - set(order))]:
        engine.add(current[name], journal=name not in same)
    return same


def _load_datasets(engine: Engine, named: Named, same: Container[str]) -> Iterator[None]:
    size = 0
    for name, data in named:
        account = from_bytes(DatasetAccount, data, key=f"d/{name}")
        number = engine.number.get(name)
        account.check(None if number is None else engine.datasets[number], same)
        if number is None:
            engine.undeclared.append(account)
        else:
            engine.accounts.hold(number, data)
            engine.projection.add(number, account)
            for monitor, run_state in account.run_states.items():
                if monitor in engine.runners:
                    engine.runners[monitor].runs.show(number, run_state)
        size += len(data)
        if size > LOADED_AT_ONCE:
            size = 0
            yield


def _load_queues(engine: Engine, named: Named) -> Iterator[None]:
    size = 0
    for number, data in sorted((record_number(rest), data) for rest, data in named):
        engine.accounts.queues.load(number, data, KINDS)
        size += len(data)
        if size > LOADED_AT_ONCE:
            size = 0
            yield
    queues = engine.accounts.queues.loaded()
    while some := [*islice(queues, QUEUES_AT_ONCE)]:
        muted: defaultdict[str, dict[int, Mutes]] = defaultdict(dict)
        for queue in some:
            dataset = _load_queue(engine, queue)
            if isinstance(queue, Mutes) and dataset is not None:
                muted[queue.monitor][dataset] = queue
        for monitor, held in muted.items():
            if monitor in engine.runners:
                engine.runners[monitor].runs.mutes.load(held)
        yield


def _load_queue(engine: Engine, queue: Queue[Any]) -> int | None:
    """Give a queue to its monitor, and return the number of its dataset; drop it without monitor or dataset."""
    number, runner = engine.number.get(queue.dataset), engine.runners.get(queue.monitor)
    if number is not None and isinstance(queue, Mutes):
        engine.accounts.mutes.setdefault(queue.monitor, {})[number] = queue
    elif number is None or runner is None:
        queue.drop()
        return None
    elif type(queue) is not runner.append.queue:
        message = f"queries of {queue.dataset} wait for monitor {queue.monitor} in a queue of another kind"
        raise UnreadableState(f"state records w/* are damaged: {message}")
    else:
        runner.runs.queues[number] = queue
    engine.projection.count_queue(queue)
    return number


# -- datasets that the configuration no longer declares --------------------------------------------------
#
# A record ``r/`` keeps name and ledger of a retired dataset, to refuse a second ledger of that name. A generated
# period that is over leaves no record: its generator's watermark, the end of the last such period, refuses it.


def retired_datasets(spec: ApplicationSpec, keys: Iterable[bytes], progress: bytes | None) -> RetiredDatasets:
    """Return the permanently retired datasets, from the carried-over file and a state's keys and progress."""
    watermarks = dict(spec.carried.watermarks)
    if progress is not None:
        watermarks |= from_bytes(ProgressRecord, progress, key="meta").watermarks
    return RetiredDatasets(watermarks, frozenset(key[2:].decode() for key in keys if key.startswith(b"r/")))


def check_declared(engine: Engine, *, may_retire: bool) -> Iterator[None]:
    """Raise `ConfigError` for declared datasets that were retired before, and for undeclared ones in the state.

    ``may_retire``: the configuration was applied, so that `retire` may end the ledgers of the latter. Works in slices.
    """
    again = f"at shard {engine.shard}: its name cannot be used again. Declare another one"
    for name in engine.retired:
        if name in engine.number:
            message = f"dataset {name} was retired {again}; only a successor of the application can continue the ledger"
            raise ConfigError([Problem(0, "datasets", message)])
    for count, dataset in enumerate(engine.datasets if engine.watermarks else (), start=1):
        if not dataset.terms.pattern and is_over(dataset.name, engine.watermarks):
            message = f"dataset {dataset.name} has the name of a period that a generator made and that is over {again}"
            raise ConfigError([Problem(0, "datasets", message)])
        if count % NAMES_AT_ONCE == 0:
            yield
    for account in () if may_retire else engine.undeclared:
        if not is_over(account.name, engine.watermarks):
            message = (
                f"the state holds dataset {account.name}, which the configuration does not declare for shard "
                f"{engine.shard}; declare it again, or apply a configuration without it, which retires it"
            )
            raise ConfigError([Problem(0, "datasets", message)])
        yield


def close_undeclared(engine: Engine) -> Iterator[None]:
    """Close the open runs of undeclared datasets: at full price, except runs of past periods.

    To be called before any query is read again. Queries of these datasets are skipped from now on, although an
    earlier owner may have tested them and lost the outcomes. No owner replays queries of a past period.
    """
    accounts = engine.accounts
    for account in engine.undeclared:
        for name, run_state in account.run_states.items():
            if run_state.state is State.RUNNING:
                over = is_over(account.name, engine.watermarks)
                lost = account.end_run(run_state, Signal.ENDED, full_price=not over)
                reason = PERIOD_OVER if over else "retired"
                accounts.announce(EventType.RUN_CLOSED, account, reason, name, run_state.run, lost)
                accounts.next.records[f"d/{account.name}".encode()] = to_bytes(account)
        yield


def retire(engine: Engine) -> Iterator[None]:
    """End the ledgers of undeclared datasets, after `close_undeclared` has closed their runs.

    To be called once the configuration without them is adopted: a worker with an older one still needs the ledgers.
    """
    while engine.undeclared:
        account = engine.undeclared.pop()
        over = is_over(account.name, engine.watermarks)
        reason = PERIOD_OVER if over else "configuration"
        engine.accounts.announce(EventType.RETIRED, account, reason, unit=account.unit)
        engine.accounts.next.records[f"d/{account.name}".encode()] = None
        engine.deciles.forget(account.name)
        if not over:
            engine.keep_retired(account)
        yield


# -- another specification -------------------------------------------------------------------------------


def change_spec(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> None:
    """Change to another specification, `check_spec` to `announce_covered`, without slices."""
    check_spec(engine, spec)
    for _ in chain(
        close_removed(engine, spec, unread), change_spec_in_slices(engine, spec), announce_covered(engine)
    ):
        pass


def check_spec(engine: Engine, spec: ApplicationSpec) -> None:
    """Raise `ConfigError` if the engine cannot change to another specification; change nothing."""
    running = {name: runner.spec for name, runner in engine.runners.items()}
    refusals = changes_refused(running, engine.declared, spec.monitors)
    if spec.carried.digest != engine.spec.carried.digest:
        refusals.insert(0, Problem(0, "carried_over", OTHER_FILE))
    if refusals:
        raise ConfigError(refusals, "the configuration against the stored state")


def close_removed(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> Iterator[None]:
    """Close the open runs that cannot continue under another specification, and drop their waiting queries.

    These are the runs of removed monitors and datasets, and of monitors whose noise, price or layout of records
    changes: all runs of a monitor have one specification. Waiting queries are also dropped if the monitor's grid,
    the declaration of its topic or the layout changes. Runs on topics ``unread`` since the takeover close at full
    price: an earlier owner may have tested queries there and lost the outcomes.
    """
    wanted = {monitor.name: monitor for monitor in spec.monitors}
    for name, runner in engine.runners.items():
        monitor, runs = wanted.get(name), runner.runs
        stale = monitor is None or ends_runs(runs.spec, monitor)
        lost = stale and runs.spec.topic in unread
        gone = runs.covers if monitor is None else runs.covers & ~engine.datasets.covers(monitor)
        regrids = monitor is not None and (
            Plan.of(monitor).grid != runs.plan.grid
            or monitor.record != runs.spec.record
            or Declared.by(runs.spec) | Declared.by(monitor) != Declared.by(runs.spec)
        )
        for count, number in enumerate(np.flatnonzero(runs.covers if stale else gone).tolist(), start=1):
            if regrids or gone[number]:
                runs.drop_waiting(number)
            if runs.is_open(number):
                reason = "unread" if lost else "removed" if gone[number] else "changed"
                runs.end_run(number, reason, full_price=lost)
            if gone[number]:
                runs.uncover(number)
            if engine.full or count % AT_ONCE == 0:
                yield
        yield


def change_spec_in_slices(engine: Engine, spec: ApplicationSpec) -> Iterator[None]:
    """Change to another specification, after `check_spec` and `close_removed`; no commit before the last slice."""
    wanted = {monitor.name: monitor for monitor in spec.monitors}
    changed: list[Runs] = []
    engine.accounts.sources = spec.sources
    engine.projection.take()
    for name in [name for name in engine.runners if name not in wanted]:
        _remove(engine, name)
        yield
    for name, monitor in wanted.items():
        if name not in engine.runners:
            changed.append(engine.add(monitor).runs)
            _announce(engine, name, "added", monitor.hash())
            yield
        elif engine.runners[name].spec != monitor:
            changed.append(engine.runners[name].runs)
            _change(engine, changed[-1], monitor)
            yield
    # `max_runs: auto` depends on the number of monitors.
    timed = [one.runs for one in engine.runners.values() if one.runs.timed and one.runs not in changed]
    yield from _show_all(engine, changed, timed)
    engine.spec = spec


def announce_covered(engine: Engine) -> Iterator[None]:
    """Announce the pauses and stops on datasets that the configuration covers again, after the change to it."""
    for runner in engine.runners.values():
        for count, number in enumerate(sorted(runner.runs.covered_again), start=1):
            runner.runs.announce_again(number)
            if engine.full or count % AT_ONCE == 0:
                yield
    yield


def _announce(engine: Engine, name: str, reason: str, spec_hash: str, fields: Sequence[str] = ()) -> None:
    kind = EventType.SPEC_CHANGED
    engine.accounts.announce(kind, None, reason, name, spec_hash=spec_hash, fields=list(fields))


def _remove(engine: Engine, name: str) -> None:
    runs = engine.runners.pop(name).runs
    if runs.ended is not None:
        runs.ended.ending = None
    for queue in runs.queues.values():
        queue.drop()
    del engine.accounts.covered[name]
    engine.projection.remove(name)
    engine.accounts.next.records[f"m/{name}".encode()] = None
    _announce(engine, name, "removed", "")


def _change(engine: Engine, runs: Runs, spec: MonitorSpec) -> None:
    old, runs.plan = runs.spec, Plan.of(spec)
    runs.cover(engine.datasets.covers(spec))
    engine.projection.cover(runs.name)
    engine.store_plan(runs.plan)
    engine.declare(spec)
    _announce(engine, spec.name, "changed", runs.plan.hash, sorted(changed_fields(old, spec)))


def _show_all(engine: Engine, changed: Sequence[Runs], timed: Sequence[Runs]) -> Iterator[None]:
    """Read the states of changed monitors on all datasets, some from an earlier time, and of timed monitors again."""
    size = 0
    for number in engine.accounts.numbers() if changed or timed else ():
        account = engine.accounts.read(number)
        states = {} if account is None else account.run_states
        for runs in (one for one in (*changed, *timed) if one.name in states):
            runs.show(number, states[runs.name])
        for runs in (one for one in changed if one.name in states):
            engine.projection.add_state(runs.name, number, states[runs.name])
        size += 1 + len(states)
        if size > AT_ONCE:
            size = 0
            yield
