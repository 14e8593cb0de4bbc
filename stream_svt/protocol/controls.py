"""The control partition of a shard: each command has a number, and no number is used twice.

A shard carries out only a command that names its state and the next number; the number becomes durable in the same
transaction as the command's effect. A copy, a replay, or a command that lost a race has another number and is
refused. A withdrawal names the number of the command that it takes back, and takes precedence over that command
wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.protocol.records import Record

COMMAND_LIMIT = 65_536
CLOCK_KEY = b"clock"
"""Key of an empty record whose timestamp tells a sender of commands the brokers' time; shards skip it."""
_WITHDRAWAL = f'"{Action.WITHDRAW}"'.encode()
_DECODER = msgspec.json.Decoder(Command)
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

Verify = Callable[[Record], str | None]
"""Returns the reason for which a record is rejected, a fixed word, or None if its sender is authorised."""


class Refusal(StrEnum):
    """Why a record is not the next command: a reason on the reject topic and a label of a metric."""

    EMPTY = "command-empty"
    TOO_LARGE = "command-too-large"
    NOT_JSON = "command-not-json"
    BAD_FIELD = "command-bad-field"
    OTHER_STATE = "command-other-state"
    STALE = "command-stale"
    AHEAD = "command-ahead"
    WITHDRAWN = "command-withdrawn"
    UNSIGNED = "command-unsigned"
    UNKNOWN_KEY = "command-unknown-key"
    BAD_SIGNATURE = "command-bad-signature"


class CommandPhase(StrEnum):
    """Which commands may be carried out."""

    REPLAY = "only what acts at once"
    LOSS = "only accept-loss"
    OPEN = "all"


class CommandState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a shard's state about commands.

    Reading of the control partition continues at offset ``next``; numbers, not offsets, decide what is carried out.
    ``number``, ``id``, ``action``, ``accepted`` and ``expired`` describe the last command whose number is used.
    ``in_progress`` is the command to many datasets that is not complete yet. ``closed`` names the successor after
    `close-application`.
    """

    next: _Count = 0
    number: _Count = 0
    id: str = ""
    accepted: bool = False
    in_progress: CommandProgress | None = msgspec.field(default=None, name="under_way")
    closed: str = ""
    action: str = ""
    expired: bool = False

    @property
    def outcome(self) -> str:
        """What happened to the last command, in words."""
        if self.in_progress is not None and self.in_progress.command.id == self.id:
            return "has begun"
        return "had expired" if self.expired else "was carried out" if self.accepted else "was refused"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A copy of the last command: it is answered, without any other effect."""

    command: Command
    stored: CommandState


def accept_all(record: Record) -> None:
    """Accept every record: the control topic's access control list authorises senders."""
    del record


def decode_command(record: Record, verify: Verify) -> Command | str:
    """Return the command of an authorised sender, or the reason of the rejection, which never repeats content."""
    value = record.value
    if value is None:
        return Refusal.EMPTY
    if len(value) > COMMAND_LIMIT:
        return Refusal.TOO_LARGE
    if (reason := verify(record)) is not None:
        return reason
    try:
        command = _DECODER.decode(value)
    except msgspec.ValidationError:
        return Refusal.BAD_FIELD
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Refusal.NOT_JSON
    names_target = command.is_sound and (command.gives_up or (command.state and command.number))
    ends = command.expires or command.action is Action.WITHDRAW
    return command if names_target and ends else Refusal.BAD_FIELD


def acts_at_once(command: Command) -> bool:
    """Return whether a command need not wait for the replay: a pause at full price."""
    return command.action is Action.PAUSE and command.now


class Controls:
    """Decides which command is the next one, by the stored command state and the id of the shard's state.

    At most one command waits; a later one with the same number is stale, unless it may be carried out first. A
    command waits for its withdrawal if a later record withdraws it (`note_withdrawal`).
    """

    def __init__(self, stored: CommandState, state_id: str, verify: Verify = accept_all) -> None:
        self._stored = stored
        self._state_id = state_id
        self._verify = verify
        self._read = stored.next
        self._waiting: tuple[int, Command] | None = None
        self._current: tuple[int, Command] | None = None
        self._withdrawn = 0  # the number that a later withdrawal names

    @property
    def snapshot(self) -> CommandState:
        """The command state for the next transaction: an unused command is read again after a takeover."""
        held = [position[0] for position in (self._waiting, self._current) if position is not None]
        return msgspec.structs.replace(self._stored, next=min(held, default=self._read))

    @property
    def waiting(self) -> Command | None:
        """The command that waits for its phase or its withdrawal."""
        return None if self._waiting is None else self._waiting[1]

    @property
    def in_progress(self) -> CommandProgress | None:
        """The command to many datasets that is not complete yet."""
        return self._stored.in_progress

    @property
    def closing(self) -> bool:
        """Whether the application is being closed: no query is tested any more."""
        return self.in_progress is not None and self.in_progress.closes

    @property
    def closed(self) -> bool:
        """Whether the application is closed."""
        return bool(self._stored.closed)

    def may_continue(self, *, replayed: bool) -> bool:
        """Return whether a command to many datasets, other than `close-application`, may continue."""
        if (in_progress := self.in_progress) is None or in_progress.closes:
            return False
        return replayed or acts_at_once(in_progress.command)

    def begin_at(self, first: int, end: int, *, replaced: bool = False) -> int:
        """Return the offset to continue at, given the partition's first offset and end: the stored one if it is inside.

        ``replaced``: the topic was created again, so the stored offset is void.
        """
        if replaced or not first <= self._read <= end:
            self._read = first
        return self._read

    def note_withdrawal(self, record: Record) -> None:
        """Note a withdrawal that will be read later, so that the command that it names waits for it."""
        if record.offset < self._read or record.value is None or _WITHDRAWAL not in record.value:
            return
        command = decode_command(record, self._verify)
        if (
            isinstance(command, Command)
            and command.action is Action.WITHDRAW
            and (command.state, command.number) == (self._state_id, self._stored.number + 1)
        ):
            self._withdrawn = command.number

    def read(self, record: Record, phase: CommandPhase) -> Command | Repeated | str | None:
        """Return a command to carry out now, a copy to answer, the reason for a refusal, or None for a wait."""
        if record.offset < self._read:
            return None
        self._read = record.offset + 1
        if record.key == CLOCK_KEY and not record.value:
            return None
        command = decode_command(record, self._verify)
        if isinstance(command, str):
            return command
        known = self._stored
        if command.state != self._state_id:
            return Refusal.OTHER_STATE
        if known.number and (command.number, command.id) == (known.number, known.id):
            return Repeated(command, known) if known.in_progress is None else None
        if command.number > known.number + 1:
            return Refusal.AHEAD
        if command.number <= known.number:
            return Refusal.STALE
        if self._passes(command, phase):
            self._current = record.offset, command
            return command
        if self._waiting is None:
            self._waiting = record.offset, command
        return None if self._waiting[1].id == command.id else Refusal.STALE

    def ready(self, phase: CommandPhase, now_ms: int) -> Command | None:
        """Return the waiting command, if it may be carried out or has expired."""
        command = self.waiting
        if command is None or not (now_ms > command.expires or self._passes(command, phase)):
            return None
        return command

    def consume_number(
        self,
        command: Command,
        *,
        accepted: bool,
        in_progress: CommandProgress | None = None,
        expired: bool = False,
    ) -> int | None:
        """Mark the next number as used by a command; return the offset of another command that waited for it."""
        self._stored = CommandState(
            number=command.number,
            id=command.id,
            action=command.action.value,
            accepted=accepted,
            expired=expired,
            in_progress=in_progress or self.in_progress,
        )
        waited, self._waiting, self._current = self._waiting, None, None
        return None if waited is None or waited[1] is command else waited[0]

    def advance(self, in_progress: CommandProgress) -> None:
        """Store the progress of the command to many datasets."""
        self._stored = msgspec.structs.replace(self._stored, in_progress=in_progress)

    def end(self, *, accepted: bool) -> None:
        """Mark the command to many datasets as complete."""
        if (done := self.in_progress) is not None:
            known, closed = self._stored, done.command.successor if done.closes else ""
            accepted = accepted if done.command.id == known.id else known.accepted
            self._stored = msgspec.structs.replace(known, in_progress=None, closed=closed, accepted=accepted)

    def _passes(self, command: Command, phase: CommandPhase) -> bool:
        if command.action is Action.WITHDRAW:
            return True
        if command.number == self._withdrawn:
            return False
        if phase is CommandPhase.LOSS:
            return command.action is Action.ACCEPT_LOSS
        is_free = self.in_progress is None and not self.closed
        return is_free and (phase is CommandPhase.OPEN or acts_at_once(command))
