"""The control partition of a shard: each command names the number that it is for, and no number is used twice.

A shard numbers the commands that it uses up. It carries out only the command that names its state and the next number;
the number becomes durable in the transaction of the command's effect. A copy, a replay, or a command that somebody was
faster than, names a number that is not the next one: it is refused, wherever and whenever it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from stream_svt.monitor.commands import Action, Command, UnderWay
from stream_svt.protocol.ports import Record

COMMAND_LIMIT = 65_536
_DECODER = msgspec.json.Decoder(Command)
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

Verify = Callable[[Record], str | None]
"""Returns the reason for which a record is rejected, a fixed word, or None if its sender is authorised."""


class Malformed(StrEnum):
    """Why a record is no command; the words stand in the reject topic and in a metric's label."""

    EMPTY = "command-empty"
    TOO_LARGE = "command-too-large"
    NOT_JSON = "command-not-json"
    BAD_FIELD = "command-bad-field"


class Untimely(StrEnum):
    """Why a command is not the next one; the words stand in the same places."""

    OTHER_STATE = "command-other-state"
    STALE = "command-stale"
    AHEAD = "command-ahead"


class Gate(StrEnum):
    """Which commands may be carried out."""

    REPLAY = "only what acts at once"
    LOSS = "only accept-loss"
    OPEN = "all"


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard's state knows of its commands.

    Attributes:
        next: Offset from which the control partition is read on. Only a place: numbers decide what is carried
            out.
        number, id, accepted: Number of the last command that was used up, its id, and whether it was carried
            out; 0 before the first one.
        under_way: The last command, where it addresses all datasets and some of them are left.
        closed: Name of the successor, once `close-application` was carried out: nothing follows.
    """

    next: _Count = 0
    number: _Count = 0
    id: str = ""
    accepted: bool = False
    under_way: UnderWay | None = None
    closed: str = ""

    @property
    def closing(self) -> bool:
        """Whether the application is being closed: from then on nothing is tested."""
        return self.under_way is not None and self.under_way.closes


@dataclass(frozen=True, slots=True)
class Repeated:
    """The last command once more: it is answered, and nothing else happens."""

    command: Command
    accepted: bool


def trust_the_topic(record: Record) -> None:
    """Accept every record: the control topic's access control list authorises senders."""
    del record


def parse(value: bytes | None) -> Command | str:
    """Return the command, or the reason why the record is not one; the reason never repeats its content."""
    if value is None:
        return Malformed.EMPTY
    if len(value) > COMMAND_LIMIT:
        return Malformed.TOO_LARGE
    try:
        command = _DECODER.decode(value)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return Malformed.BAD_FIELD
    except (msgspec.DecodeError, RecursionError):
        return Malformed.NOT_JSON
    return command if command.gives_up or (command.state and command.number) else Malformed.BAD_FIELD


def heard(record: Record, verify: Verify) -> Command | str:
    """Return the command in a record of an authorised sender, or the reason for which it is rejected."""
    if record.value is not None and len(record.value) <= COMMAND_LIMIT and (reason := verify(record)):
        return reason
    return parse(record.value)


def acts_at_once(command: Command) -> bool:
    """Tell whether a command need not wait for the replay: a pause that pays in full for what it cuts off."""
    return command.action is Action.PAUSE and command.now


class Controls:
    """Which command is the next one.

    At most one waits: what comes later under the same number is stale, unless it may be carried out before.

    Args:
        standing: As it is durable.
        state: Id of the shard's state, as commands name it.
    """

    def __init__(self, standing: Standing, state: str, verify: Verify = trust_the_topic) -> None:
        self._standing = standing
        self._state = state
        self._verify = verify
        self._read = standing.next
        self._waiting: tuple[int, Command] | None = None
        self._found: tuple[int, Command] | None = None

    @property
    def standing(self) -> Standing:
        """What the next transaction makes durable: a command is read again until its number is used up."""
        held = [place[0] for place in (self._waiting, self._found) if place is not None]
        return msgspec.structs.replace(self._standing, next=min(held, default=self._read))

    @property
    def under_way(self) -> UnderWay | None:
        """The command to all datasets of which some are left."""
        return self._standing.under_way

    @property
    def closing(self) -> bool:
        """Whether the application is being closed: from then on nothing is tested."""
        return self._standing.closing

    @property
    def closed(self) -> bool:
        """Whether it is closed: nothing follows."""
        return bool(self._standing.closed)

    def begin_at(self, first: int, end: int) -> int:
        """Read on within a partition that now has these offsets: at its beginning where the place is not among them."""
        if not first <= self._read <= end:
            self._read = first
        return self._read

    def read(self, record: Record, gate: Gate) -> Command | Repeated | str | None:
        """Take the next record in.

        Returns:
            A command to be carried out now, one to be answered again, why the record is refused, or nothing to do.
        """
        if record.offset < self._read:
            return None
        self._read = record.offset + 1
        command = heard(record, self._verify)
        if isinstance(command, str):
            return command
        known = self._standing
        if command.state != self._state:
            return Untimely.OTHER_STATE
        if known.number and (command.number, command.id) == (known.number, known.id):
            return Repeated(command, known.accepted) if known.under_way is None else None
        if command.number > known.number + 1:
            return Untimely.AHEAD
        if command.number <= known.number:
            return Untimely.STALE
        if self._passes(command, gate):
            self._found = record.offset, command
            return command
        if self._waiting is None:
            self._waiting = record.offset, command
        return None if self._waiting[1].id == command.id else Untimely.STALE

    def ready(self, gate: Gate) -> Command | None:
        """Return the command that waited, where it may be carried out."""
        if self._waiting is None or not self._passes(self._waiting[1], gate):
            return None
        return self._waiting[1]

    def use_up(
        self, command: Command, *, accepted: bool, under_way: UnderWay | None = None
    ) -> tuple[int, Command] | None:
        """Note that a command was the next one; return the one that waited for the same number, with its offset."""
        self._standing = Standing(0, command.number, command.id, accepted, under_way or self.under_way)
        waited, self._waiting, self._found = self._waiting, None, None
        return None if waited is None or waited[1] is command else waited

    def go_on(self, under_way: UnderWay) -> None:
        """Note how far the command to all datasets has come."""
        self._standing = msgspec.structs.replace(self._standing, under_way=under_way)

    def end(self, *, accepted: bool) -> None:
        """Note that the command to all datasets is done."""
        known = self._standing
        mine = known.under_way is not None and known.under_way.command.id == known.id
        closed = known.under_way.command.successor if known.under_way is not None and known.closing else ""
        self._standing = msgspec.structs.replace(
            known, accepted=accepted if mine else known.accepted, under_way=None, closed=closed
        )

    def _passes(self, command: Command, gate: Gate) -> bool:
        if gate is Gate.LOSS:
            return command.action is Action.ACCEPT_LOSS
        is_free = self.under_way is None and not self.closed
        return is_free and (gate is Gate.OPEN or acts_at_once(command))


class Allowance:
    """Rate limit of what is reported about refused records: a burst, and a number each second.

    Args:
        most, each_second: Size of the bucket, and what flows into it.
        now: Seconds of a clock that never goes back.
    """

    def __init__(self, most: int, each_second: float, now: float) -> None:
        self._most, self._each_second = most, each_second
        self._left, self._at = float(most), now

    def take(self, now: float) -> bool:
        """Tell whether one more may be said."""
        self._left = min(self._most, self._left + (now - self._at) * self._each_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
