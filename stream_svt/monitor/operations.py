"""Carries out an operator's command on a shard, at a barrier between two commits.

A command that cannot be carried out changes nothing; the reply on the alert topic says why. Replies hold public
facts only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from heapq import merge
from itertools import chain, islice

import msgspec

from stream_svt.errors import CommandRefused, MisuseError
from stream_svt.monitor.accounts import SLOTS_AT_ONCE
from stream_svt.monitor.commands import Action, Command, UnderWay
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.released import EventType
from stream_svt.monitor.run_arrays import RunArrays, status_of
from stream_svt.privacy.loss import as_text, exact, to_units

REASONS_SHOWN = 3
"""Refusals that the reply to a command to all datasets repeats."""
NAMES_AT_ONCE = 5_000
"""Names sorted between two yields: a few milliseconds of work."""
DATASETS_AT_ONCE = 200
"""Datasets that a command to all of them is carried out on between two yields: a few milliseconds of work."""


def apply(engine: Engine, command: Command) -> bool:
    """Carry out a command and reply to it; the reply is an event of the next commit.

    Returns whether it was carried out.
    """
    if command.for_all:
        *_, last = UnderWay(command), *going_on(engine, UnderWay(command))
        return last.accepted
    try:
        message = _carry_out(engine, command)
    except CommandRefused as refusal:
        engine.accounts.reply(command, accepted=False, message=str(refusal))
        return False
    engine.accounts.reply(command, accepted=True, message=message)
    return True


def going_on(engine: Engine, under_way: UnderWay) -> Iterator[UnderWay]:
    """Carry out a command on those datasets that are left, in the order of their names; reply to it at the end.

    Yields how far it has come after each slice; where the next commit is full then, the caller commits before it goes
    on. Datasets on which no monitor meant runs are passed over.
    """
    command = under_way.command
    names = yield from _names_behind(engine, under_way)
    while part := list(islice(names, DATASETS_AT_ONCE)):
        for name in part:
            under_way = _on_one(engine, msgspec.structs.replace(under_way, after=name))
            if engine.full:
                yield under_way
        yield under_way
    if under_way.done or under_way.refused:
        why = f": {'; '.join(under_way.reasons)}" if under_way.reasons else ""
        counts = f"carried out on {under_way.done} datasets, refused on {under_way.refused}"
        message = f"{command.action.value} {counts}{why}"
    else:
        message = f"no such monitor runs on a dataset of shard {engine.shard}; nothing was changed"
    if under_way.closes:
        balances = f"{under_way.done} balance{'s' * (under_way.done != 1)}"
        message = f"shard {engine.shard} is closed with {balances}; it opens no more"
    engine.accounts.reply(command, accepted=under_way.accepted, message=message)
    if under_way.closes:
        _announce_closed(engine, command.successor, under_way.done)


def _names_behind(engine: Engine, under_way: UnderWay) -> Generator[UnderWay, None, Iterator[str]]:
    """Return the names of the datasets that are left, in order; they are sorted in slices."""
    names, parts = _names_to_close(engine) if under_way.closes else iter(engine.number), []
    while part := sorted(islice(names, NAMES_AT_ONCE)):
        parts.append(part[bisect_right(part, under_way.after) :])
        yield under_way
    return merge(*parts)


def _on_one(engine: Engine, under_way: UnderWay) -> UnderWay:
    """Carry the command out on the dataset it has come to."""
    command, name = under_way.command, under_way.after
    if under_way.closes:
        closed = _close_ledger(engine, name)
        return msgspec.structs.replace(under_way, done=under_way.done + closed)
    number = engine.number[name]
    if not any(_meant(engine, number, command.monitor)):
        return under_way
    try:
        _operate(engine, number, command)
    except CommandRefused as refusal:
        reasons = (*under_way.reasons, str(refusal))[:REASONS_SHOWN]
        return msgspec.structs.replace(under_way, refused=under_way.refused + 1, reasons=reasons)
    return msgspec.structs.replace(under_way, done=under_way.done + 1)


def _carry_out(engine: Engine, command: Command) -> str:
    """Return what was done, in words."""
    if command.action is Action.ACCEPT_LOSS:
        raise CommandRefused(
            f"the shard does not wait for offset {command.offset} of topic '{command.topic}'; nothing was changed"
        )
    if command.action is Action.CLOSE_APPLICATION:
        raise CommandRefused("an application is closed shard by shard, not by dataset; nothing was changed")
    number = engine.number.get(command.dataset)
    if number is None:
        raise CommandRefused(
            f"dataset '{command.dataset}' is not homed at shard {engine.shard}; nothing was changed"
        )
    if command.action is Action.RAISE_BUDGET:
        return _raise_budget(engine, number, command)
    names = ", ".join(runs.name for runs in _operate(engine, number, command))
    return f"{command.action.value} carried out for {names} on {command.dataset}"


def _operate(engine: Engine, number: int, command: Command) -> list[RunArrays]:
    """Pause, resume, close or resample; return the monitors on which that was done."""
    meant = _meant_runs(engine, number, command.monitor)
    for runs in meant:
        _check(engine, runs, number, command.action)
    for runs in meant:
        if command.action is Action.PAUSE:
            pause(engine, runs, number, at_full_price=command.now)
        elif command.action is Action.RESUME:
            resume(engine, runs, number)
        elif command.action is Action.CLOSE:
            runs.end_run(number, "command", close=True)
        else:
            reopen(engine, runs, number)
    return meant


def pause(engine: Engine, runs: RunArrays, number: int, *, at_full_price: bool = False) -> None:
    """Skip the queries of a dataset from now on; an open run stays open, unless it is closed at its full price."""
    if at_full_price and runs.is_open(number):
        runs.end_run(number, "paused", full_price=True)
    runs.status[number] = status_of(engine.accounts.pause(runs.name, number, paused=True))


def resume(engine: Engine, runs: RunArrays, number: int) -> None:
    """Test the queries of a paused dataset again."""
    runs.status[number] = status_of(engine.accounts.pause(runs.name, number, paused=False))


def reopen(engine: Engine, runs: RunArrays, number: int) -> None:
    """Let the next query of a dataset open a new run with a new threshold."""
    run_state = engine.accounts.account(number).run_state(runs.name)
    if run_state.state is State.RUNNING:
        runs.end_run(number, "command")
    run_state.stopped = False
    runs.status[number] = status_of(run_state)


def _meant(engine: Engine, number: int, monitor: str) -> Iterator[RunArrays]:
    """Yield the monitors on a dataset that a command speaks of."""
    for name, runner in engine.runners.items():
        if runner.runs.covers[number] and (not monitor or name == monitor):
            yield runner.runs


def _meant_runs(engine: Engine, number: int, monitor: str) -> list[RunArrays]:
    meant = list(_meant(engine, number, monitor))
    if not meant:
        named = f"monitor '{monitor}' does not run" if monitor else "no monitor runs"
        raise CommandRefused(f"{named} on dataset '{engine.datasets[number].name}'; nothing was changed")
    return meant


def _check(engine: Engine, runs: RunArrays, number: int, action: Action) -> None:
    """Refuse what would not change anything, or what the budget forbids."""
    run_state = engine.accounts.run_state(runs.name, number)
    place = f"monitor '{runs.name}' on dataset '{engine.datasets[number].name}'"
    if action is Action.RESUME and not run_state.paused:
        raise CommandRefused(f"{place} is not paused; nothing was changed")
    if action is Action.PAUSE and run_state.paused:
        raise CommandRefused(f"{place} is paused already; nothing was changed")
    if action is Action.RESAMPLE and run_state.state is State.EXHAUSTED:
        raise CommandRefused(f"{place} is exhausted: raise the budget first; nothing was changed")


def _raise_budget(engine: Engine, number: int, command: Command) -> str:
    ledger = engine.accounts.account(number).ledger
    try:
        limit = to_units(exact(command.limit), ledger.kind)
        old = as_text(ledger.limit, ledger.kind)
        woken = engine.accounts.raise_limit(number, limit)
    except (ValueError, MisuseError) as error:
        raise CommandRefused(f"limit '{command.limit}': {error}; nothing was changed") from None
    for name, run_state in woken:
        if name in engine.runners:
            engine.runners[name].runs.status[number] = status_of(run_state)
    new = as_text(limit, ledger.kind)
    return f"limit of {command.dataset} raised from {ledger.kind.measure} {old} to {new}"


def _names_to_close(engine: Engine) -> Iterator[str]:
    """Return the names of all datasets that may have a ledger, retired ones included."""
    return chain(engine.number, (name for name in engine.retirement.retired if name not in engine.number))


def _close_ledger(engine: Engine, name: str) -> bool:
    """Close a dataset for ever, and announce its balance; return whether it has a ledger.

    Its open runs end: what they did not spend is released (pure only).
    """
    if name in engine.retirement.retired:
        engine.retirement.announce_balance(name)
        return True
    dataset = engine.number[name]
    if dataset not in engine.accounts.held:
        return False
    account = engine.accounts.account(dataset)
    for monitor, run_state in account.run_states.items():
        if run_state.state is State.RUNNING:
            engine.runners[monitor].runs.end_run(dataset, "application-closed")
    engine.accounts.announce_balance(account)
    return True


def _announce_closed(engine: Engine, successor: str, balances: int) -> None:
    """Announce that nothing of the shard is tested or charged any more; so many balances came before."""
    engine.accounts.events.shard_event(
        EventType.APPLICATION_CLOSED,
        reason="command",
        detail={"successor": successor, "balances": balances},
    )


def close_lost(engine: Engine, topic: str) -> Iterator[None]:
    """Close the open runs of a topic whose records are lost at full price, and drop what waits.

    Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
    """
    for name, runner in engine.runners.items():
        if runner.spec.topic != topic:
            continue
        held = [number for number, account in engine.accounts.held.items() if name in account.run_states]
        for count, number in enumerate(held, start=1):
            runner.runs.forget_waiting(number)
            if runner.runs.is_open(number):
                runner.runs.end_run(number, "loss", full_price=True)
            if engine.full or count % SLOTS_AT_ONCE == 0:
                yield
        yield


def pass_over(engine: Engine, topic: str, offset: int, end: int | None = None) -> None:
    """Go on at ``offset`` although records before it are gone; `close_lost` has closed the open runs of the topic.

    A monitor that stands behind ``end``, where the topic ended, was in a topic that is no longer: it goes on at
    ``offset``, too.
    """
    for runner in engine.runners.values():
        if runner.spec.topic != topic:
            continue
        kept = offset <= runner.offset and (end is None or runner.offset <= end)
        if not kept or runner.offset == end:  # the record is gone of which it may have tested rows
            runner.row = 0
        runner.offset, runner.started = runner.offset if kept else offset, True
    engine.accounts.events.shard_event(
        EventType.LOSS_ACCEPTED, reason="command", detail={"topic": topic, "offset": offset}
    )
