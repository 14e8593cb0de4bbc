"""The control partition of a shard: commands in order, each carried out exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from stream_svt.monitor.commands import Action, Command
from stream_svt.protocol.ports import Record

AT_ONCE = frozenset({Action.PAUSE, Action.RESUME})
"""Commands that need not wait for the replay after a takeover: they stop or start reading and skip nothing."""

COMMAND_LIMIT = 65_536
_DECODER = msgspec.json.Decoder(Command)

Verify = Callable[[Record], str | None]
"""Tells why a record is no command of somebody who may give one, in a fixed word; None where it is.

What it answers may depend on the record, its offset included, and on keys, never on what was read before: then a
takeover, which forgets what was read, cannot change an answer.
"""


class Malformed(StrEnum):
    """Why a record is no command; the words stand in the reject topic and in a metric's label."""

    EMPTY = "command-empty"
    TOO_LARGE = "command-too-large"
    NOT_JSON = "command-not-json"
    BAD_FIELD = "command-bad-field"


def trust_the_topic(record: Record) -> None:
    """Hear every command: who may give one is the control topic's access control list."""
    del record


def parse(value: bytes | None) -> Command | str:
    """Return the command, or the reason why the record is not one; the reason never repeats its content."""
    if value is None:
        return Malformed.EMPTY
    if len(value) > COMMAND_LIMIT:
        return Malformed.TOO_LARGE
    try:
        return _DECODER.decode(value)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return Malformed.BAD_FIELD
    except msgspec.DecodeError:
        return Malformed.NOT_JSON


class Controls:
    """Commands read and not yet done.

    After a takeover most commands wait until the shard has replayed what its predecessor had read; those of
    `AT_ONCE` overtake them. So what is done is an offset and a few offsets beyond it.

    Parameters
    ----------
    next_offset
        Offset from which the partition is read on: everything before it is done.
    ahead
        Offsets after it that are done.
    verify
        Asked before a record's content is looked at.
    """

    def __init__(
        self, next_offset: int, ahead: Iterable[int] = (), *, verify: Verify = trust_the_topic
    ) -> None:
        self._next = next_offset
        self._read = next_offset
        self._ahead = set(ahead)
        self._verify = verify
        self._waiting: dict[int, Command | str] = {}

    @property
    def position(self) -> tuple[int, list[int]]:
        """Offset from which to read on, and done offsets beyond it: what the journal keeps."""
        return self._next, sorted(self._ahead)

    @property
    def waiting(self) -> int:
        """Number of commands not yet done."""
        return len(self._waiting)

    def add(self, records: Sequence[Record]) -> list[tuple[int, str]]:
        """Take records of the control partition, in offset order; return which are refused, and why."""
        refused = []
        for record in records:
            if record.offset < self._read:
                continue
            self._read = record.offset + 1
            if record.offset not in self._ahead:
                self._waiting[record.offset] = found = self._read_one(record)
                if isinstance(found, str):
                    refused.append((record.offset, found))
        self._advance()
        return refused

    def due(self, *, replayed: bool) -> list[tuple[int, Command | str]]:
        """Return what may be done at this barrier, in order: all of it once ``replayed``."""
        return [
            (offset, command)
            for offset, command in self._waiting.items()
            if replayed or isinstance(command, str) or command.action in AT_ONCE
        ]

    def first(self, action: Action) -> tuple[int, Command] | None:
        """Return the oldest waiting command of a kind."""
        for offset, command in self._waiting.items():
            if isinstance(command, Command) and command.action is action:
                return offset, command
        return None

    def done(self, offset: int) -> None:
        """Note that a command has been carried out or refused."""
        del self._waiting[offset]
        self._ahead.add(offset)
        self._advance()

    def _read_one(self, record: Record) -> Command | str:
        if record.value is not None and len(record.value) <= COMMAND_LIMIT:
            reason = self._verify(record)
            if reason is not None:
                return reason
        return parse(record.value)

    def _advance(self) -> None:
        self._next = min(self._waiting, default=self._read)
        self._ahead = {offset for offset in self._ahead if offset >= self._next}
