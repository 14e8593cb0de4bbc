"""Engine state as bytes and back: the plain form of the records on the state topic.

Records, by key:

- ``d/<dataset>``: ledger and monitors of a dataset (:class:`DatasetRecord`);
- ``r/<dataset>``: ledger of a dataset that is declared no longer (:class:`RetiredRecord`);
- ``m/<monitor>``: the monitor's specification as last applied;
- ``h/<hash>``: an older specification under which a run is still open;
- ``t/<topic>``: what was ever declared about the answers on a query topic (:class:`TopicRecord`);
- ``w/<number>``: what changed in the queues of waiting queries (:class:`QueueRecord`), in order of the numbers;
- ``q/<dataset>/<monitor>/<number>``: muted series (:class:`MuteRecord`), where a dataset has many.

Every record starts with its format version; a version this code does not know is refused, never guessed.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from stream_svt.errors import UnreadableState
from stream_svt.monitor.life_cycle import Signal, State, advance

VERSION = 1
SPLIT = 2
"""Version of a dataset whose mutes are in records of their own, and of those records: a release that knows only
``VERSION`` would take such a dataset for one without mutes. Where the mutes fit, it can still read what is written."""


class _Secret(msgspec.Struct, array_like=True):
    """What must not show when it is printed."""

    def __repr__(self) -> str:
        """Nothing of the content."""
        return f"{type(self).__name__}()"


_SECRETS = struct.Struct("<qQQ")
SECRETS = np.dtype([("noise", "<i8"), ("salt_high", "<u8"), ("salt_low", "<u8")])
"""The same as a type of arrays."""
NO_SECRETS = bytes(_SECRETS.size)
_Secrets = Annotated[bytes, msgspec.Meta(min_length=len(NO_SECRETS), max_length=len(NO_SECRETS))]


class RunState(_Secret, array_like=True, gc=False):
    """One monitor on one dataset, in memory as it is stored.

    ``secrets`` holds threshold noise and salt in 24 bytes, so that the length of a record tells nothing of them;
    it is zero once the run is closed. ``spec_hash`` names the specification of the last run, "" where none is known:
    what waits was measured on its grid. ``left`` is what the open run may still spend, in epsilon units.

    A shard holds up to millions of these: they refer to nothing but text, bytes and numbers, so that Python's garbage
    collector need not know them.
    """

    state: State = State.IDLE
    stopped: bool = False
    paused: bool = False
    run: int = 0
    spec_hash: str = ""
    secrets: _Secrets = NO_SECRETS
    left: int = 0
    run_tops: int = 0
    started_ms: int = 0
    tops: int = 0
    runs: int = 0
    halts: int = 0
    spent: int = 0

    def signal(self, signal: Signal) -> None:
        """Go to the state that follows."""
        self.state = advance(self.state, signal)

    @property
    def shown(self) -> str:
        """The state in one word: a pause hides what is behind it."""
        return "paused" if self.paused else self.state.value


class DatasetRecord(_Secret, array_like=True, gc=False):
    """One dataset: its ledger, its number of released events and its monitors.

    ``mutes`` holds (series, until) by monitor, oldest first; none in a dataset of version ``SPLIT``.
    """

    version: int
    name: str
    unit: str
    declared_limit: int
    ledger: bytes
    events: int
    run_states: dict[str, RunState]
    mutes: dict[str, list[tuple[str, int]]]


class RetiredRecord(msgspec.Struct, array_like=True):
    """A dataset that is declared no longer: its ledger and its number of released events, kept for ever."""

    version: int
    name: str
    unit: str
    declared_limit: int
    ledger: bytes
    events: int


class MuteRecord(msgspec.Struct, array_like=True):
    """Muted series of one monitor on one dataset, as (series, until): oldest first, as are the records' numbers."""

    version: int
    mutes: list[tuple[str, int]]


WholeNumber = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""A number of a queue line: what a damaged record holds beyond these limits is refused by name."""
Grid = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
"""A grid value in eight bytes: the length of a record does not depend on it."""


class PlaceLine(_Secret, array_like=True, tag=0):
    """A place of a retry queue, whole.

    ``back`` is how far the queue's count was behind its present one when the place was entered, ``age`` how far the
    place's first offset lies behind its present one. Offset and clock count from those of the section.
    """

    back: WholeNumber
    offset: WholeNumber
    row: WholeNumber
    value: Grid
    threshold: WholeNumber
    attempt: WholeNumber
    age: WholeNumber
    entered_ms: WholeNumber
    series: str | None
    query_id: str


class ReplaceLine(_Secret, array_like=True, tag=1):
    """A newer query at a place that is stored."""

    back: WholeNumber
    offset: WholeNumber
    row: WholeNumber
    value: Grid
    threshold: WholeNumber
    query_id: str


class RemoveLine(_Secret, array_like=True, tag=2):
    """Stored places that are gone: all numbers below ``first``, and those in ``others``."""

    first: WholeNumber
    others: list[WholeNumber]


class SweepLine(_Secret, array_like=True, tag=3):
    """Sweeps of a retry queue, each one more attempt for the places stored before this record.

    ``whole`` sweeps reached all of them, the others each the places up to a number.
    """

    whole: WholeNumber
    partial: list[WholeNumber]


class DropLine(_Secret, array_like=True, tag=4):
    """The whole queue is gone."""


class SetLine(_Secret, array_like=True, tag=5):
    """An open set."""

    number: WholeNumber
    set_id: str
    opened_ms: WholeNumber
    tops: WholeNumber


class TopsLine(_Secret, array_like=True, tag=6):
    """The tops found so far in an open set that is stored."""

    number: WholeNumber
    tops: WholeNumber


class CloseLine(_Secret, array_like=True, tag=7):
    """Stored sets that have closed."""

    numbers: list[WholeNumber]


class BlockLine(_Secret, array_like=True, tag=8):
    """Waiting queries of an open set as columns; ``part`` orders the blocks of a set."""

    number: WholeNumber
    part: WholeNumber
    offset: list[WholeNumber]
    row: list[WholeNumber]
    value: bytes
    threshold: list[WholeNumber]
    series: list[str | None]
    query_id: list[str]


QueueLine = (
    PlaceLine | ReplaceLine | RemoveLine | SweepLine | DropLine | SetLine | TopsLine | CloseLine | BlockLine
)


class QueueGroup(_Secret, array_like=True):
    """Lines of one queue in order; ``head`` is the count of a retry queue, or the next number of a set."""

    dataset: str
    head: WholeNumber
    lines: list[QueueLine]


class QueueSection(_Secret, array_like=True):
    """Groups of one monitor, with the offset and clock that numbers in its lines count from."""

    monitor: str
    offset: WholeNumber
    clock_ms: WholeNumber
    groups: list[QueueGroup]


class QueueRecord(_Secret, array_like=True):
    """What changed in the queues of a shard, or was written again from an older record."""

    version: int
    sections: list[QueueSection]


class ProgressRecord(msgspec.Struct, array_like=True):
    """Where every monitor stands in its topic: (offset, row, clock in ms), and the shard's counters.

    ``carried`` is the digest of the file with what an earlier application spent, "" where there is none;
    ``configuration`` number and digest of the version adopted last, (0, "") where none was; ``watermarks`` the end of
    the last period that is over, by pattern of its generator. They stay where a generator is declared no longer.
    """

    version: int
    sequence: int
    shard_events: int
    positions: dict[str, tuple[int, int, int]]
    carried: str = ""
    configuration: tuple[int, str] = (0, "")
    watermarks: dict[str, int] = {}


class SpecRecord(msgspec.Struct, array_like=True):
    """A monitor's specification as JSON, and its hash when it was written."""

    version: int
    hash: str
    spec: str


class TopicRecord(msgspec.Struct, array_like=True):
    """The most cautious declaration ever made about a query topic; it outlives the monitors that made it.

    ``sensitivity`` is an exact fraction as text, in real units; ``general`` says that some monitor did not declare its
    answers monotonic.
    """

    version: int
    sensitivity: str
    general: bool


def pack_secrets(threshold_noise: int, salt_high: int, salt_low: int) -> bytes:
    """Return a run's secrets as a `RunState` holds them."""
    return _SECRETS.pack(threshold_noise, salt_high, salt_low)


def unpack_secrets(secrets: bytes) -> tuple[int, int, int]:
    """Return threshold noise and the two halves of the salt."""
    threshold_noise, salt_high, salt_low = _SECRETS.unpack(secrets)
    return threshold_noise, salt_high, salt_low


Record = TypeVar(
    "Record",
    DatasetRecord,
    RetiredRecord,
    MuteRecord,
    QueueRecord,
    ProgressRecord,
    SpecRecord,
    TopicRecord,
)
_READABLE: dict[type, tuple[int, ...]] = {DatasetRecord: (VERSION, SPLIT), MuteRecord: (SPLIT,)}

_ENCODER = msgspec.msgpack.Encoder()


def to_bytes(
    record: DatasetRecord | RetiredRecord | MuteRecord | ProgressRecord | SpecRecord | TopicRecord,
) -> bytes:
    """Return the record's plain bytes."""
    return _ENCODER.encode(record)


def from_bytes(kind: type[Record], data: bytes, *, key: str) -> Record:
    """Return the record in ``data``.

    Raises:
        UnreadableState: The bytes are not such a record, or of a format version this release does not know.
    """
    record: Record | None
    try:
        record = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        record = None
    version, readable = _version(data) if record is None else record.version, _READABLE.get(kind, (VERSION,))
    if version is not None and version not in readable:
        message = (
            f"state record {key} has format {version}, this release reads format "
            f"{' and '.join(map(str, readable))}; use the release that wrote it"
        )
        raise UnreadableState(message)
    if record is None:
        message = f"state record {key} cannot be decoded; the shard parks rather than start afresh"
        raise UnreadableState(message)
    return record


@cache
def _decoder(kind: type[Record]) -> msgspec.msgpack.Decoder[Record]:
    return msgspec.msgpack.Decoder(kind)


def _version(data: bytes) -> int | None:
    """Return the format version of a record, None where it cannot be told."""
    try:
        content = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(content, list) or not content or type(content[0]) is not int:
        return None
    return content[0]
