"""The control partition of a shard: each command names the number that it is for, and no number is used twice.

A shard numbers the commands that it uses up. It carries out only the command that names its state and the next number;
the number becomes durable in the transaction of the command's effect. A copy, a replay, or a command that somebody was
faster than, names a number that is not the next one: it is refused, wherever and whenever it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.protocol.ports import Record

COMMAND_LIMIT = 65_536
_DECODER = msgspec.json.Decoder(Command)
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

Verify = Callable[[Record], str | None]
"""Returns the reason for which a record is rejected, a fixed word, or None if its sender is authorised."""


class Refusal(StrEnum):
    """Why a record is no command, or not the next one; the words stand in the reject topic and in a metric's label."""

    EMPTY = "command-empty"
    TOO_LARGE = "command-too-large"
    NOT_JSON = "command-not-json"
    BAD_FIELD = "command-bad-field"
    OTHER_STATE = "command-other-state"
    STALE = "command-stale"
    AHEAD = "command-ahead"
    UNSIGNED = "command-unsigned"
    UNKNOWN_KEY = "command-unknown-key"
    BAD_SIGNATURE = "command-bad-signature"


class Gate(StrEnum):
    """Which commands may be carried out."""

    REPLAY = "only what acts at once"
    LOSS = "only accept-loss"
    OPEN = "all"


class CommandState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard's state knows of its commands.

    Attributes:
        next: Offset from which the control partition is read on. Only a place: numbers decide what is carried out.
        number, id, accepted: The last command that was used up, and whether it was carried out; 0 before the first one.
        in_progress: The last command to all datasets of which some are left.
        closed: Name of the successor, once `close-application` was carried out: nothing follows.
    """

    next: _Count = 0
    number: _Count = 0
    id: str = ""
    accepted: bool = False
    in_progress: CommandProgress | None = msgspec.field(default=None, name="under_way")
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The last command once more: it is answered, and nothing else happens."""

    command: Command
    accepted: bool


def accept_all(record: Record) -> None:
    """Accept every record: the control topic's access control list authorises senders."""
    del record


def decode_command(record: Record, verify: Verify) -> Command | str:
    """Return the command in a record of an authorised sender, or why it is rejected, which never repeats content."""
    value = record.value
    if value is None:
        return Refusal.EMPTY
    if len(value) > COMMAND_LIMIT:
        return Refusal.TOO_LARGE
    if (reason := verify(record)) is not None:
        return reason
    try:
        command = _DECODER.decode(value)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return Refusal.BAD_FIELD
    except (msgspec.DecodeError, RecursionError):
        return Refusal.NOT_JSON
    return command if command.gives_up or (command.state and command.number) else Refusal.BAD_FIELD


def acts_at_once(command: Command) -> bool:
    """Tell whether a command need not wait for the replay: a pause that pays in full for what it cuts off."""
    return command.action is Action.PAUSE and command.now


class Controls:
    """Which command is the next one, by what is durable and the id of the shard's state.

    At most one waits: what comes later under the same number is stale, unless it may be carried out before.
    """

    def __init__(self, stored: CommandState, state_id: str, verify: Verify = accept_all) -> None:
        self._stored = stored
        self._state_id = state_id
        self._verify = verify
        self._read = stored.next
        self._waiting: tuple[int, Command] | None = None
        self._found: tuple[int, Command] | None = None

    @property
    def snapshot(self) -> CommandState:
        """What the next transaction makes durable: a command is read again until its number is used up."""
        held = [place[0] for place in (self._waiting, self._found) if place is not None]
        return msgspec.structs.replace(self._stored, next=min(held, default=self._read))

    @property
    def in_progress(self) -> CommandProgress | None:
        """The command to all datasets of which some are left."""
        return self._stored.in_progress

    @property
    def closing(self) -> bool:
        """Whether the application is being closed: from then on nothing is tested."""
        return self.in_progress is not None and self.in_progress.closes

    @property
    def closed(self) -> bool:
        """Whether it is closed: nothing follows."""
        return bool(self._stored.closed)

    def may_continue(self, *, replayed: bool) -> bool:
        """Tell whether a command to all datasets is under way that need not wait, nor closes the application."""
        in_progress = self.in_progress
        return (
            in_progress is not None
            and not in_progress.closes
            and (replayed or acts_at_once(in_progress.command))
        )

    def begin_at(self, first: int, end: int) -> int:
        """Read on within a partition that now has these offsets: at its beginning where the place is not among them."""
        if not first <= self._read <= end:
            self._read = first
        return self._read

    def read(self, record: Record, gate: Gate) -> Command | Repeated | str | None:
        """Take the next record in.

        Return a command to be carried out now, one to be answered again, why the record is refused, or None.
        """
        if record.offset < self._read:
            return None
        self._read = record.offset + 1
        command = decode_command(record, self._verify)
        if isinstance(command, str):
            return command
        known = self._stored
        if command.state != self._state_id:
            return Refusal.OTHER_STATE
        if known.number and (command.number, command.id) == (known.number, known.id):
            return Repeated(command, known.accepted) if known.in_progress is None else None
        if command.number > known.number + 1:
            return Refusal.AHEAD
        if command.number <= known.number:
            return Refusal.STALE
        if self._passes(command, gate):
            self._found = record.offset, command
            return command
        if self._waiting is None:
            self._waiting = record.offset, command
        return None if self._waiting[1].id == command.id else Refusal.STALE

    def ready(self, gate: Gate) -> Command | None:
        """Return the command that waited, where it may be carried out."""
        return self._waiting[1] if self._waiting and self._passes(self._waiting[1], gate) else None

    def use_up(
        self, command: Command, *, accepted: bool, in_progress: CommandProgress | None = None
    ) -> int | None:
        """Note that a command was the next one; return the offset of one that waited for the same number."""
        self._stored = CommandState(0, command.number, command.id, accepted, in_progress or self.in_progress)
        waited, self._waiting, self._found = self._waiting, None, None
        return None if waited is None or waited[1] is command else waited[0]

    def advance(self, in_progress: CommandProgress) -> None:
        """Note how far the command to all datasets has come."""
        self._stored = msgspec.structs.replace(self._stored, in_progress=in_progress)

    def end(self, *, accepted: bool) -> None:
        """Note that the command to all datasets is done."""
        if (done := self.in_progress) is not None:
            changed: dict[str, Any] = {
                "in_progress": None,
                "closed": done.command.successor if done.closes else "",
            }
            if done.command.id == self._stored.id:
                changed["accepted"] = accepted
            self._stored = msgspec.structs.replace(self._stored, **changed)

    def _passes(self, command: Command, gate: Gate) -> bool:
        if gate is Gate.LOSS:
            return command.action is Action.ACCEPT_LOSS
        is_free = self.in_progress is None and not self.closed
        return is_free and (gate is Gate.OPEN or acts_at_once(command))
