"""The control partition of a shard: commands in order, each carried out exactly once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Sequence
from enum import StrEnum

import msgspec

from stream_svt.monitor.commands import Action, Command
from stream_svt.protocol.ports import Record

COMMAND_LIMIT = 65_536
WAITING_LIMIT = 10_000
"""Commands that may wait for a replay."""
WAITING_BYTES = 16 << 20
"""Bytes that their records may have together."""
_END = 1 << 63
_DECODER = msgspec.json.Decoder(Command)

Verify = Callable[[Record, int], str | None]
"""Tells why a record is no command of somebody who may give one, in a fixed word; None where it is.

What it answers may depend on the record, its offset included, on keys, and on the moment, in milliseconds since
1970, since which the books hear commands; never on what was read before: then a takeover, which forgets what was
read, cannot change an answer.
"""


class Malformed(StrEnum):
    """Why a record is no command; the words stand in the reject topic and in a metric's label."""

    EMPTY = "command-empty"
    TOO_LARGE = "command-too-large"
    NOT_JSON = "command-not-json"
    BAD_FIELD = "command-bad-field"
    TOO_MANY = "command-too-many"


def trust_the_topic(record: Record, since: int) -> None:
    """Hear every command: who may give one is the control topic's access control list."""
    del record, since


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
    except (msgspec.DecodeError, RecursionError):
        return Malformed.NOT_JSON


def acts_at_once(command: Command) -> bool:
    """Tell whether a command need not wait for the replay: a pause that pays in full for what it cuts off."""
    return command.action is Action.PAUSE and command.now


class Runs(Container[int]):
    """Offsets, kept as runs: as few numbers as there are gaps between them.

    Parameters
    ----------
    spans
        First offset and end of each run, in any order.
    """

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            elif start < end:
                self._starts.append(start)
                self._ends.append(end)

    @classmethod
    def unpacked(cls, numbers: Iterable[int]) -> Runs:
        """Return what `packed` made these of; numbers that it does not make say nothing."""
        spans: list[tuple[int, int]] = []
        for number in numbers:
            if 0 <= number < _END:
                spans.append((number, number + 1))
            elif number < 0 and spans:
                start, end = spans[-1]
                spans[-1] = start, min(end - number, _END)
        return cls(spans)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First offset and end of each run, in order."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def packed(self) -> list[int]:
        """The offsets as numbers: a negative one, -n, stands for the n offsets after the one before it."""
        numbers: list[int] = []
        for start, end in self.spans:
            numbers += [start] if end == start + 1 else [start, start + 1 - end]
        return numbers

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        place = bisect_right(self._starts, offset)
        return place > 0 and offset < self._ends[place - 1]


class Controls:
    """Commands read and not yet done.

    After a takeover commands wait until the shard has replayed what its predecessor may have read; a pause that is to
    act now overtakes them, and so do refusals. So what is done is an offset and some offsets beyond it. Of those only
    runs are kept, never more than commands wait, so that nobody's refused records make the books grow.

    Parameters
    ----------
    next_offset
        Offset from which the partition is read on: everything before it is done.
    ahead
        Offsets after it that are done, packed (see `Runs`).
    since
        Moment, in milliseconds since 1970, before which nothing that was signed is heard.
    verify
        Asked before a record's content is looked at.
    """

    def __init__(
        self,
        next_offset: int,
        ahead: Iterable[int] = (),
        *,
        since: int = 0,
        verify: Verify = trust_the_topic,
    ) -> None:
        self.since = since
        self._read = next_offset
        self._ahead = Runs.unpacked(ahead)
        self._verify = verify
        # In the order of offsets. Looked through once for a barrier, never for each record that is done: a flood of
        # refused ones would hold up everything else.
        self._waiting: dict[int, Command | str] = {}
        self._sizes: dict[int, int] = {}
        self._held = 0

    @property
    def position(self) -> tuple[int, list[int]]:
        """Offset from which to read on, and done offsets beyond it, packed: what the journal keeps."""
        spans = [(max(start, self._read), end) for start, end in self._ahead.spans]
        following = last = next(iter(self._waiting), self._read)
        for offset in self._waiting:
            spans.append((last, offset))
            last = offset + 1
        return following, Runs([*spans, (last, self._read)]).packed

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
                found = self._read_one(record)
                if isinstance(found, Command) and self._full(record):
                    found = Malformed.TOO_MANY
                self._waiting[record.offset] = found
                if isinstance(found, str):
                    refused.append((record.offset, found))
                else:
                    self._sizes[record.offset] = size = len(record.value or b"")
                    self._held += size
        return refused

    def search(
        self, records: Sequence[Record], action: Action
    ) -> tuple[tuple[int, Command] | None, list[tuple[int, str]]]:
        """Look for the oldest command of a kind, to a whole shard, that is not done.

        Also returns which records before it are refused, and why.

        Keeps nothing: while only this command can help, whatever else comes is left for later, to be read again.
        """
        refused: list[tuple[int, str]] = []
        for record in records:
            if record.offset < self._read or record.offset in self._ahead:
                continue
            found = self._read_one(record)
            if isinstance(found, str):
                refused.append((record.offset, found))
            elif found.action is action and not found.dataset:
                return (record.offset, found), refused
        return None, refused

    def due(self, *, replayed: bool) -> list[tuple[int, Command | str]]:
        """Return what may be done at this barrier, in order: all of it once ``replayed``."""
        return [
            (offset, command)
            for offset, command in self._waiting.items()
            if replayed or isinstance(command, str) or acts_at_once(command)
        ]

    def done(self, offset: int) -> None:
        """Note that a command has been carried out or refused; one that `search` found may not have been added yet."""
        if self._waiting.pop(offset, None) is None:
            self._ahead = Runs([*self._ahead.spans, (offset, offset + 1)])
        self._held -= self._sizes.pop(offset, 0)

    def _full(self, record: Record) -> bool:
        size = len(record.value or b"")
        return len(self._sizes) >= WAITING_LIMIT or self._held + size > WAITING_BYTES

    def _read_one(self, record: Record) -> Command | str:
        if record.value is not None and len(record.value) <= COMMAND_LIMIT:
            reason = self._verify(record, self.since)
            if reason is not None:
                return reason
        return parse(record.value)
