"""Goes on with another specification, at a barrier between two commits.

`check_spec` refuses what cannot be gone on with, `close_removed` closes what the new one has no place for, and
`changing_spec` adds, changes and removes monitors. The last two do a slice of work at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.accounts import SLOTS_AT_ONCE
from stream_svt.monitor.engine import OTHER_FILE, Engine
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.run_arrays import RunArrays, Status, status_of
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.changes import Declared, changed_fields, changes_refused
from stream_svt.settings.monitors import MonitorSpec


def change_spec(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> None:
    """Go on with another specification as `check_spec`, `close_removed` and `changing_spec` do, at once.

    Raises:
        ConfigError: As `check_spec`; nothing was changed.
    """
    check_spec(engine, spec)
    for _ in close_removed(engine, spec, unread):
        pass
    for _ in changing_spec(engine, spec):
        pass


def changing_spec(engine: Engine, spec: ApplicationSpec) -> Iterator[None]:
    """Go on with another specification at a barrier; nothing happens where it is the one in use.

    Thresholds, mutes and pace hold from now on; what concerns noise and price from the next run on. The engine is
    of use, and may be committed, once no slice is left. `check_spec` has accepted the specification, and
    `close_removed` has closed what it has no place for.
    """
    wanted = {monitor.name: monitor for monitor in spec.monitors}
    for name in [name for name in engine.runners if name not in wanted]:
        _remove(engine, name)
        yield
    changed = False
    for name, monitor in wanted.items():
        if name not in engine.runners:
            yield from _take_back(engine, engine.add(monitor).runs)
            engine.accounts.events.spec_changed(name, "added", monitor.hash(), [])
            yield
        elif engine.runners[name].spec != monitor:
            changed = True
            yield from _change(engine, engine.runners[name].runs, monitor)
    if changed:
        yield from engine.forget_old_specs()
    engine.spec = spec
    yield from engine.projection.sum_up()


def check_spec(engine: Engine, spec: ApplicationSpec) -> None:
    """Refuse another specification that cannot be gone on with; changes nothing.

    Raises:
        ConfigError: The change needs a new application or a restart.
    """
    refusals = []
    if spec.carried_digest != engine.spec.carried_digest:
        refusals.append(Problem(0, "carried_over", OTHER_FILE))
    for monitor in spec.monitors:
        runner = engine.runners.get(monitor.name)
        if runner is not None:
            refusals += changes_refused(runner.spec, monitor)
    added = {monitor.name for monitor in spec.monitors if monitor.name not in engine.runners}
    refusals += engine.specs.refusals(spec.monitors, added)
    if refusals:
        raise ConfigError(list(dict.fromkeys(refusals)))


def _take_back(engine: Engine, runs: RunArrays) -> Iterator[None]:
    """Let a monitor that was added go on where one of its name stood before."""
    numbers = list(engine.accounts.held)
    for at in range(0, len(numbers), SLOTS_AT_ONCE):
        part = numbers[at : at + SLOTS_AT_ONCE]
        held = [number for number in part if runs.name in engine.accounts.held[number].run_states]
        if held:
            runs.take_over(held, [engine.accounts.held[number].run_states[runs.name] for number in held])
            engine.projection.changed.update(held)
        yield


def _change(engine: Engine, runs: RunArrays, spec: MonitorSpec) -> Iterator[None]:
    old = runs.spec
    engine.specs.keep_old(runs.plan)
    plan = Plan.of(spec)
    engine.accounts.plans[plan.hash] = plan
    running = _running(runs)
    runs.change(plan, running)
    yield
    yield from _cover(engine, runs, engine.datasets.covers(spec))
    for count, number in enumerate(np.flatnonzero(running).tolist(), start=1):
        runs.schedule(number, engine.accounts.run_state(runs.name, number))
        if count % SLOTS_AT_ONCE == 0:
            yield
    engine.specs.keep(plan)
    engine.specs.declare(spec)
    engine.accounts.events.spec_changed(spec.name, "changed", plan.hash, sorted(changed_fields(old, spec)))
    yield


def _running(runs: RunArrays) -> NDArray[np.bool_]:
    """Return on which datasets a run of a monitor is open, paused or not."""
    running = runs.status >= Status.PENDING
    for number in np.flatnonzero((runs.status == Status.SKIP) & runs.covers).tolist():
        running[number] = runs.is_open(number)
    return running


def close_removed(engine: Engine, spec: ApplicationSpec, unread: Container[str] = ()) -> Iterator[None]:
    """Close the open runs that another specification has no place for, and drop what waits there.

    Those of a monitor that declares a larger sensitivity, or is no longer monotonic, are among them: they would
    test new answers with the noise of the old declaration.

    Of the topics ``unread``, which were not read again since the takeover, an owner before may have tested queries
    and lost the outcomes: runs of a monitor that goes there close at full price.

    Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
    """
    wanted = {monitor.name: monitor for monitor in spec.monitors}
    for name, runner in engine.runners.items():
        monitor, runs = wanted.get(name), runner.runs
        raised = monitor is not None and Declared.by(runs.spec).raised(monitor)
        lost = (monitor is None or raised) and runs.spec.topic in unread
        if monitor is None or raised:
            gone = forgotten = runs.covers
        else:
            gone = runs.covers & ~engine.datasets.covers(monitor)
            # What waits was measured on the grid of the old specification.
            forgotten = gone if Plan.of(monitor).grid == runs.plan.grid else runs.covers
        for count, number in enumerate(np.flatnonzero(forgotten).tolist(), start=1):
            runs.forget_waiting(number)
            if gone[number] and runs.is_open(number):
                reason = "unread" if lost else "sensitivity" if raised else "removed"
                runs.end_run(number, reason, full_price=lost)
            if engine.full or count % SLOTS_AT_ONCE == 0:
                yield
        yield


def _cover(engine: Engine, runs: RunArrays, covers: NDArray[np.bool_]) -> Iterator[None]:
    """Let a monitor run on other datasets than before."""
    if not np.array_equal(runs.covers, covers):
        engine.projection.cover(runs.name, covers)
        engine.projection.changed |= engine.accounts.held.keys()
        runs.status[runs.covers & ~covers] = Status.SKIP
    for count, number in enumerate(np.flatnonzero(covers & ~runs.covers).tolist(), start=1):
        runs.status[number] = status_of(engine.accounts.run_state(runs.name, number))
        if count % SLOTS_AT_ONCE == 0:
            yield
    runs.covers = covers


def _remove(engine: Engine, name: str) -> None:
    engine.runners.pop(name).runs.drop_queues()
    engine.projection.remove(name)
    engine.specs.remove(name)
    engine.accounts.events.spec_changed(name, "removed", "", [])
