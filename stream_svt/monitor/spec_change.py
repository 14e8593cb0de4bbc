"""Goes on with another specification, at a barrier between two commits, in slices of a few milliseconds."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.engine import OTHER_FILE, Engine
from stream_svt.monitor.released import EventType
from stream_svt.monitor.runs import Plan, Runs
from stream_svt.monitor.shard_datasets import AT_ONCE
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import Declared, MonitorSpec, changed_fields, changes_refused, ends_runs


def change_spec(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> None:
    """Go on with another specification as `check_spec`, `close_removed` and `changing_spec` do, at once."""
    check_spec(engine, spec)
    for _ in close_removed(engine, spec, unread):
        pass
    for _ in changing_spec(engine, spec):
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


def changing_spec(engine: Engine, spec: ApplicationSpec) -> Iterator[None]:
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
            yield from _look_up(engine, engine.add(monitor).runs)
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
    yield from _look_up(engine, runs)
    engine.keep(runs.plan)
    engine.declare(spec)
    _announce(engine, spec.name, "changed", runs.plan.hash, sorted(changed_fields(old, spec)))
    yield


def _look_up(engine: Engine, runs: Runs) -> Iterator[None]:
    """Let a monitor go on where its slots stand, of which it may have had some before."""
    numbers = list(engine.accounts.held)
    for at in range(0, len(numbers), AT_ONCE):
        engine.projection.changed.update(runs.look_up(numbers[at : at + AT_ONCE]))
        yield
