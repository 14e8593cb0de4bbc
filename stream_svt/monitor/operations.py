"""Operators' commands, which a shard carries out between two commits. A refused command changes nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from heapq import merge
from itertools import chain, islice
from typing import Annotated, Any, Literal

import msgspec

from stream_svt.errors import CommandRefused, MisuseError
from stream_svt.mechanisms.numbers import exact
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.state.shard_datasets import AT_ONCE
from stream_svt.monitor.state.snapshot import State, from_bytes
from stream_svt.privacy.loss import Kind, as_text, to_units
from stream_svt.settings.document import quote
from stream_svt.settings.fields import END, LAST_MS
from stream_svt.settings.periods import in_words
from stream_svt.wording import counted, listed

REASONS_SHOWN = 3
"""Number of refusals whose reasons are in the reply to a command to many datasets."""
DATASETS_AT_ONCE = 200
"""Datasets that `apply_to_many` processes between two yields: a few milliseconds of work."""
NAMES_SHOWN = 10
"""Number of monitors that a reply names."""
ID_LENGTH = 100
"""Maximum length of a command's id: the state holds the last one."""
SERIES_LENGTH = 256
"""Maximum length of a series, as in queries."""
_Id = Annotated[str, msgspec.Meta(max_length=ID_LENGTH)]
_Series = Annotated[str, msgspec.Meta(max_length=SERIES_LENGTH)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)]


class Action(StrEnum):
    """The commands.

    `accept-loss`, `close-application` and `withdraw` address a shard, all others one, several or all of its datasets.
    """

    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"
    RESAMPLE = "resample"
    MUTE = "mute"
    UNMUTE = "unmute"
    RAISE_BUDGET = "raise-budget"
    ACCEPT_LOSS = "accept-loss"
    CLOSE_APPLICATION = "close-application"
    WITHDRAW = "withdraw"


TO_MONITORS = frozenset(
    {Action.PAUSE, Action.RESUME, Action.CLOSE, Action.RESAMPLE, Action.MUTE, Action.UNMUTE}
)
"""Commands that address monitors on datasets, and may name several. Each raise of a budget has its own answer."""
FOR_ALL = TO_MONITORS | {Action.CLOSE_APPLICATION}
"""Commands that may address all datasets of a shard; `close-application` always does."""


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command on the control topic (JSON, key = dataset).

    Attributes:
        id: Chosen by the issuer; the reply on the alert topic repeats it.
        dataset: The dataset addressed; empty for several or all datasets of the shard, and for a command to the shard
            itself (`accept-loss`, `close-application`).
        datasets: Several datasets, instead of ``dataset``: each counts once, in the order of names.
        monitor: One monitor of the datasets; empty for all of them.
        limit: For `raise-budget`: the new limit, as exact text in the dataset's own measure ("5", "11/2").
        now: For `pause`: act before a replay has ended, and close the open run at its full price.
        until: For `pause`: the timestamp of a query that ends it, in milliseconds since 1970; 0 if only `resume`
            does. For `mute`: the end, unless ``until_word`` is set.
        series: For `mute` and `unmute`: the series.
        until_word: For `mute`: "period" or "run", as `muted_until` of alerts.
        topic, offset: For `accept-loss`: the query topic, and the offset that the shard needs and the topic has lost.
        successor: For `close-application`: the application that may use the rest of each budget.
        cluster, event, origin: For `close-application` of a shard whose state is given up: the cluster id, and number
            and origin of the newest event on its alert partition (0 and empty if it has none).
        expires: End of validity, in milliseconds since 1970 by the brokers' clock. `withdraw` needs none: it changes
            only the number, and so never expires.
        state, number: The `stateid` of the shard's events, and the last command's number plus one; a shard refuses any
            other command.
    """

    id: _Id
    action: Action
    dataset: str = ""
    datasets: tuple[str, ...] = ()
    monitor: str = ""
    limit: str = ""
    now: bool = False
    until: _Time = 0
    series: _Series = ""
    until_word: Literal["", "period", "run"] = ""
    topic: str = ""
    offset: _Number = 0
    successor: _Id = ""
    cluster: str = ""
    event: _Number = 0
    origin: str = ""
    issued_by: str = ""
    expires: _Number = 0
    state: str = ""
    number: _Number = 0

    @property
    def for_many(self) -> bool:
        """Whether it addresses several datasets of the shard, or all of them."""
        return bool(self.datasets) or (not self.dataset and self.action in FOR_ALL and not self.gives_up)

    @property
    def is_sound(self) -> bool:
        """Whether several datasets, if it names some, stand without a single one, and its action takes them."""
        return not self.datasets or (not self.dataset and self.action in TO_MONITORS)

    @property
    def gives_up(self) -> bool:
        """Whether it closes a shard whose state cannot be verified."""
        return self.action is Action.CLOSE_APPLICATION and bool(self.cluster)


class CommandProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a command to many datasets of a shard, by name; ``after`` is the last dataset done.

    ``done`` and ``refused`` count the datasets on which it was carried out and refused; ``reasons`` are the first
    ones.
    """

    command: Command
    after: str = ""
    done: _Number = 0
    refused: _Number = 0
    reasons: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether it was carried out on any dataset; closing the application needs none."""
        return self.done > 0 or self.closes

    @property
    def closes(self) -> bool:
        """Whether it closes the application, which then tests no more queries."""
        return self.command.action is Action.CLOSE_APPLICATION


def reply(
    engine: Engine, command: Command, *, accepted: bool, message: str, expired: bool = False, **more: int
) -> None:
    """Reply to a command on the alert topic, with the next commit; ``more`` are further details."""
    accounts = engine.accounts
    detail: dict[str, Any] = {
        "command": command.id,
        "number": command.number,
        "action": command.action.value,
        "message": message,
        **more,
    }
    number = engine.number.get(command.dataset)
    account = None if number is None else accounts.account(number)
    reason = "expired" if expired else "accepted" if accepted else "refused"
    accounts.announce(EventType.COMMAND_REPLY, account, reason, **detail)


def apply(engine: Engine, command: Command) -> bool:
    """Carry out a command and reply to it in the next commit; return whether it was carried out."""
    if command.for_many:
        *_, last = CommandProgress(command), *apply_to_many(engine, CommandProgress(command))
        return last.accepted
    try:
        message = _carry_out(engine, command)
    except CommandRefused as refusal:
        reply(engine, command, accepted=False, message=str(refusal))
        return False
    reply(engine, command, accepted=True, message=message)
    return True


def expire(engine: Engine, command: Command, now_ms: int) -> None:
    """Reply to a command that expired before ``now_ms``, milliseconds since 1970 by the brokers' clock."""
    came = f"the shard came to it at {utc(now_ms)} by the brokers' clock"
    message = f"expired at {utc(command.expires)}: {came}; nothing was changed"
    reply(engine, command, accepted=False, expired=True, message=message)


def withdraw(engine: Engine, command: Command, waiting: Command | None, before: str) -> bool:
    """Reply to a withdrawal; return whether it took back the command that waited.

    ``before`` is the outcome of the last command, for a reply if no command waited.
    """
    if waiting is None:
        message = f"no command waits: {before}; nothing was changed"
    else:
        several = counted(len(waiting.datasets), "dataset") if waiting.datasets else f"shard {engine.shard}"
        target = f"dataset '{waiting.dataset}'" if waiting.dataset else several
        message = f"{waiting.action.value} of {target} is withdrawn, and changed nothing"
    reply(engine, command, accepted=waiting is not None, message=message)
    return waiting is not None


def apply_to_many(engine: Engine, progress: CommandProgress) -> Iterator[CommandProgress]:
    """Carry out a command on the remaining datasets, in the order of their names, and reply to it at the end.

    Yields the progress after each slice; if the next commit is full then, the caller commits before it resumes.
    Datasets on which no addressed monitor runs are skipped, unless the command names them: then it is refused there.
    """
    command = progress.command
    names = yield from _remaining_names(engine, progress)
    while part := list(islice(names, DATASETS_AT_ONCE)):
        for name in part:
            progress = _apply_to_one(engine, msgspec.structs.replace(progress, after=name))
            if engine.full:
                yield progress
        yield progress
    done = progress.done
    if progress.closes:
        message = f"shard {engine.shard} is closed with {counted(done, 'balance')}; it opens no more"
    elif done or progress.refused:
        why = f": {'; '.join(progress.reasons)}" if progress.reasons else ""
        counts = f"carried out on {counted(done, 'dataset')}, refused on {progress.refused}"
        message = _in_words(command, counts) + why
    else:
        message = f"no such monitor runs on a dataset of shard {engine.shard}; nothing was changed"
    reply(engine, command, accepted=progress.accepted, message=message, done=done, refused=progress.refused)
    if progress.closes:
        shown = {name: at for name, at in engine.positions().items() if not engine.is_counts(at.topic)}
        positions = msgspec.to_builtins(shown)
        detail: dict[str, Any] = {"successor": command.successor, "balances": done}
        detail |= {"positions": positions, "watermarks": {**engine.watermarks}}
        engine.accounts.announce(EventType.APPLICATION_CLOSED, None, "command", **detail)


def _remaining_names(
    engine: Engine, progress: CommandProgress
) -> Generator[CommandProgress, None, Iterator[str]]:
    """Return the remaining datasets in order, sorted in slices; a close includes the retired ones."""
    if progress.command.datasets:
        named = sorted(set(progress.command.datasets))
        return iter(named[bisect_right(named, progress.after) :])
    retired = engine.retired if progress.closes else ()
    names, parts = chain(engine.number, (name for name in retired if name not in engine.number)), []
    while part := sorted(islice(names, AT_ONCE)):
        parts.append(part[bisect_right(part, progress.after) :])
        yield progress
    return merge(*parts)


def _apply_to_one(engine: Engine, progress: CommandProgress) -> CommandProgress:
    name, command = progress.after, progress.command
    try:
        if progress.closes:
            done = _close_ledger(engine, name)
        elif command.datasets:
            done = bool(_carry_out(engine, msgspec.structs.replace(command, dataset=name, datasets=())))
        else:
            done = bool(_operate(engine, engine.number[name], command))
    except CommandRefused as refusal:
        reasons = (*progress.reasons, str(refusal))[:REASONS_SHOWN]
        return msgspec.structs.replace(progress, refused=progress.refused + 1, reasons=reasons)
    return msgspec.structs.replace(progress, done=progress.done + done)


def _carry_out(engine: Engine, command: Command) -> str:
    number = engine.number.get(command.dataset)
    if command.action is Action.ACCEPT_LOSS:
        why = f"the shard does not wait for offset {command.offset} of topic '{command.topic}'"
    elif command.action is Action.CLOSE_APPLICATION:
        why = "an application is closed shard by shard, not by dataset"
    elif command.action is Action.WITHDRAW:
        why = "no command waits"
    elif number is None:
        why = f"dataset '{command.dataset}' is not homed at shard {engine.shard}"
    elif command.action is Action.RAISE_BUDGET:
        return _raise_budget(engine, number, command)
    elif command.action not in TO_MONITORS:
        why = f"{command.action.value} is no command to monitors"
    elif names := ", ".join(runs.name for runs in _operate(engine, number, command)):
        return _in_words(command, f"carried out for {names} on {command.dataset}")
    else:
        named = f"monitor '{command.monitor}' does not run" if command.monitor else "no monitor runs"
        why = f"{named} on dataset '{command.dataset}'"
    raise CommandRefused(f"{why}; nothing was changed")


def _in_words(command: Command, happened: str) -> str:
    """Return the outcome of a command in words, with its series and the end of its effect."""
    series = f" of series {quote(command.series)}" if command.series else ""
    until = f" until {utc(command.until)}" if command.until else ""
    until = f" until the {command.until_word} ends" if command.until_word else until
    return f"{command.action.value}{series}{until} {happened}"


def _operate(engine: Engine, number: int, command: Command) -> list[Runs]:
    """Pause, resume, close or resample all addressed monitors, and return them. If one refuses, none changes.

    A monitor and the one that tests for its ends are addressed together, by either name: the second refuses nothing.
    """
    addressed = [
        runner.runs
        for name, runner in engine.runners.items()
        if runner.runs.covers[number]
        and not runner.spec.ends
        and command.monitor.removesuffix(END) in ("", name)
    ]
    if command.action in (Action.MUTE, Action.UNMUTE) and not command.series:
        raise CommandRefused(f"{command.action.value} names no series; nothing was changed")
    if command.action is Action.MUTE and not (command.until or command.until_word):
        raise CommandRefused("mute names no end; nothing was changed")
    for runs in addressed:
        if why := _refusal(runs, number, command):
            subject = f"monitor '{runs.name}' on dataset '{engine.datasets[number].name}'"
            raise CommandRefused(f"{subject} {why}; nothing was changed")
    if command.action not in (Action.MUTE, Action.UNMUTE):
        pairs = [runs.ending for runs in addressed if runs.ending is not None]
        addressed += [runs for runs in pairs if not _refusal(runs, number, command)]
    for runs in addressed:
        if command.action is Action.PAUSE:
            runs.pause(number, full_price=command.now, until_ms=command.until)
        elif command.action is Action.RESUME:
            runs.resume(number)
        elif command.action is Action.CLOSE:
            runs.end_run(number, "command", close=True)
        elif command.action is Action.MUTE:
            runs.mute_on_command(number, command.series, command.until_word or command.until)
        elif command.action is Action.UNMUTE:
            runs.unmute(number, command.series)
        else:
            runs.reopen(number)
    return addressed


def _refusal(runs: Runs, number: int, command: Command) -> str:
    """Return why a monitor refuses a command on a dataset, "" if it does not."""
    run_state = runs.run_state(number)
    if command.action is Action.RESUME and not run_state.paused:
        return "is not paused"
    if command.action is Action.PAUSE and run_state.paused and run_state.paused_until == command.until:
        return "is already paused"
    if command.action is Action.UNMUTE and not runs.mutes.holds(number, command.series, runs.clock_ms):
        return f"has not muted series {quote(command.series)}"
    if command.action is Action.RESAMPLE and run_state.state is State.EXHAUSTED:
        return "is exhausted: raise the budget first"
    return ""


def _raise_budget(engine: Engine, number: int, command: Command) -> str:
    ledger, renewal = engine.accounts.account(number).ledger, engine.datasets[number].terms.renewal
    if renewal is not None:
        message = f"a limit for any {in_words(renewal.per_ms)} never changes, and the next period has its own"
        raise CommandRefused(f"dataset '{command.dataset}': {message}; nothing was changed")
    try:
        limit = to_units(exact(command.limit), ledger.kind)
        old = as_text(ledger.limit, ledger.kind)
        engine.accounts.raise_limit(number, limit)
    except (ValueError, MisuseError) as error:
        raise CommandRefused(f"limit '{command.limit}': {error}; nothing was changed") from None
    covering = [runner.runs for runner in engine.runners.values() if runner.runs.covers[number]]
    for runs in covering:
        runs.allow_run(number)
    raised = (
        f"limit of {command.dataset} raised from {ledger.kind.measure} {old} to {as_text(limit, ledger.kind)}"
    )
    alike: dict[str, list[str]] = {}
    for runs in covering:
        alike.setdefault(_what_follows(runs, number), []).append(runs.name)
    follows = [f"{listed(names, NAMES_SHOWN)} {text}" for text, names in alike.items()]
    return "; ".join([raised, *follows])


def _what_follows(runs: Runs, number: int) -> str:
    """Return what a monitor will do with its next query of a dataset, or all reasons why it will not test it."""
    run_state, follows = runs.run_state(number), _without_pause(runs, number)
    if not run_state.paused:
        return follows
    until = f" until {utc(run_state.paused_until)}" if run_state.paused_until else ""
    return f"is paused{until} ('control resume' ends that), after which it {follows}"


def _without_pause(runs: Runs, number: int) -> str:
    account, run_state = runs.accounts.account(number), runs.run_state(number)
    if run_state.state is State.RUNNING:
        return "has a run open"
    if run_state.stopped:
        return "is stopped: 'control resample' begins a run"
    mechanism, ledger = runs.plan.mechanism, account.ledger
    if account.payable(runs.spec, mechanism) is not None:
        return "begins a run with its next query"
    if ledger.kind is Kind.ZCDP and ledger.run_open:
        return "begins a run once that of another monitor has ended"
    # Under zCDP a run is charged as a whole; only pure epsilon can pay for a shorter one.
    is_pure, measure = ledger.kind is Kind.PURE, ledger.kind.measure
    least = (
        mechanism.threshold_units + mechanism.smallest_units if is_pure else runs.spec.run_price(ledger.kind)
    )
    price, left = (as_text(units, ledger.kind) for units in (least, ledger.available))
    reserve = runs.spec.reserve_units(ledger.kind)
    kept = f", of which it leaves {as_text(reserve, ledger.kind)} to others" if reserve else ""
    which = "its shortest run" if is_pure else "a run"
    return f"is exhausted: {which} costs {measure} {price}, and {measure} {left} is left{kept}"


def _close_ledger(engine: Engine, name: str) -> bool:
    """Close a dataset's open runs and announce its final balance; return whether it has a ledger."""
    retired = engine.retired.get(name)
    if retired is not None:
        account = from_bytes(DatasetAccount, retired, key=f"r/{name}")
    else:
        number = engine.number[name]
        if engine.accounts.read(number) is None:
            return False
        for runner in engine.runners.values():
            if runner.runs.is_open(number):
                runner.runs.end_run(number, "application-closed")
        account = engine.accounts.account(number)
    engine.accounts.announce(EventType.BALANCE, account, "application-closed", unit=account.unit)
    if retired is not None:
        engine.keep_retired(account)
    return True


def close_runs_of_topic(engine: Engine, topic: str) -> Iterator[None]:
    """Close the open runs of a topic whose records are lost at full price, and drop its waiting queries.

    Yields after a slice of work; if the next commit is full then, the caller commits before it resumes.
    """
    for runner in engine.runners_of(topic):
        runs = runner.runs
        for count, number in enumerate(sorted({*runs.queues, *runs.open_datasets()}), start=1):
            runs.drop_waiting(number)
            if runs.is_open(number):
                runs.end_run(number, "loss", full_price=True)
            if engine.full or count % AT_ONCE == 0:
                yield
        yield


def skip_lost_records(engine: Engine, topic: str, offset: int, end: int | None = None) -> None:
    """Continue at ``offset`` although earlier records are lost, after `close_runs_of_topic` for the topic.

    A monitor whose offset lies beyond ``end``, the end of the topic, read a topic of this name that was deleted: it
    continues at ``offset``, too.
    """
    for runner in engine.runners_of(topic):
        kept = offset <= runner.offset and (end is None or runner.offset <= end)
        if not kept or runner.offset == end:  # it may have tested the first rows of the lost record
            runner.row = 0
        runner.offset, runner.started = runner.offset if kept else offset, True
    detail: dict[str, Any] = (
        {"topic": topic} if engine.is_counts(topic) else {"topic": topic, "offset": offset}
    )
    engine.accounts.announce(EventType.LOSS_ACCEPTED, None, "command", **detail)


def utc(milliseconds: int) -> str:
    """Return milliseconds since 1970 as UTC in text, to the second."""
    try:
        return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms after 1970"
