"""Carries out an operator's command on a shard, at a barrier between two commits.

A command that cannot be carried out changes nothing; the reply on the alert topic says why. Replies hold public
facts only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream_svt.errors import CommandRefused, MisuseError
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.life_cycle import State
from stream_svt.privacy.loss import as_text, exact, to_units

if TYPE_CHECKING:
    from stream_svt.monitor.engine import Engine
    from stream_svt.monitor.runner import Runner


def apply(engine: Engine, command: Command) -> None:
    """Carry out a command and reply to it; the reply is an event of the next commit."""
    try:
        message = _carry_out(engine, command)
    except CommandRefused as refusal:
        engine.reply(command.id, command.action.value, command.dataset, accepted=False, message=str(refusal))
    else:
        engine.reply(command.id, command.action.value, command.dataset, accepted=True, message=message)


def _carry_out(engine: Engine, command: Command) -> str:
    """Return what was done, in words."""
    if command.action is Action.MARK_EXHAUSTED and not command.dataset:
        engine.mark_exhausted()
        return "every dataset of the shard is marked exhausted"
    if command.action is Action.ACCEPT_LOSS:
        raise CommandRefused(
            "no records were lost on this shard, or it did not wait yet when this was sent; nothing was changed"
        )
    number = engine.number.get(command.dataset)
    if number is None:
        raise CommandRefused(
            f"dataset '{command.dataset}' is not homed at shard {engine.shard}; nothing was changed"
        )
    if command.action is Action.RAISE_BUDGET:
        return _raise_budget(engine, number, command)
    if command.action is Action.MARK_EXHAUSTED:
        raise CommandRefused("mark-exhausted takes a whole shard, not one dataset; nothing was changed")
    runners = _runners(engine, number, command.monitor)
    for runner in runners:
        _check(engine, runner, number, command.action)
    for runner in runners:
        if command.action is Action.PAUSE:
            engine.pause(runner, number, at_full_price=command.now)
        elif command.action is Action.RESUME:
            engine.resume(runner, number)
        elif command.action is Action.CLOSE:
            engine.close_run(runner, number)
        else:
            engine.reopen(runner, number)
    names = ", ".join(runner.name for runner in runners)
    return f"{command.action.value} carried out for {names} on {command.dataset}"


def _runners(engine: Engine, number: int, monitor: str) -> list[Runner]:
    runners = [
        runner
        for name, runner in engine.runners.items()
        if runner.covers[number] and (not monitor or name == monitor)
    ]
    if not runners:
        named = f"monitor '{monitor}' does not run" if monitor else "no monitor runs"
        raise CommandRefused(f"{named} on dataset '{engine.datasets[number].name}'; nothing was changed")
    return runners


def _check(engine: Engine, runner: Runner, number: int, action: Action) -> None:
    """Refuse what would not change anything, or what the budget forbids."""
    slot = engine.slot(runner, number)
    place = f"monitor '{runner.name}' on dataset '{engine.datasets[number].name}'"
    if action is Action.RESUME and not slot.paused:
        raise CommandRefused(f"{place} is not paused; nothing was changed")
    if action is Action.PAUSE and slot.paused:
        raise CommandRefused(f"{place} is paused already; nothing was changed")
    if action is Action.RESAMPLE and slot.state is State.EXHAUSTED:
        raise CommandRefused(f"{place} is exhausted: raise the budget first; nothing was changed")


def _raise_budget(engine: Engine, number: int, command: Command) -> str:
    ledger = engine.books(number).ledger
    try:
        limit = to_units(exact(command.limit), ledger.kind)
        old = as_text(ledger.limit, ledger.kind)
        engine.raise_limit(number, limit)
    except (ValueError, MisuseError) as error:
        raise CommandRefused(f"limit '{command.limit}': {error}; nothing was changed") from None
    new = as_text(limit, ledger.kind)
    return f"limit of {command.dataset} raised from {ledger.kind.measure} {old} to {new}"
