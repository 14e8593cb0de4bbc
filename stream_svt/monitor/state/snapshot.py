"""Engine state as bytes and back: the plain form of the records on the state topic.

Records, by key:

- ``d/<dataset>``: ledger and monitors of a dataset (`DatasetAccount`);
- ``r/<dataset>``: the same of a retired dataset, without monitors;
- ``m/<monitor>``: the monitor's specification as last applied (`SpecRecord`);
- ``t/<topic>``: the most cautious declaration about a query topic (`TopicRecord`);
- ``l/<dataset>``: the last look at a dataset (`LookRecord`);
- ``w/<number>``: changes of the queues of waiting queries and of mutes (`QueueRecord`), in order.

Every record starts with its format version; an unknown version is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from stream_svt.errors import MisuseError, UnreadableState
from stream_svt.transitions import follow


class State(StrEnum):
    """State of a monitor on a dataset; public, because it follows from released outcomes and commands alone.

    A monitor is *idle* until its first query. When the ledger *admits* a run, it is *running*, with fresh threshold
    noise; after the run's last top it is *halted*. Its policy may then request another run; if the ledger *refuses* it,
    the monitor is *exhausted* until its budget is raised. After an operator's *close* it is halted until a *reopen*.
    A monitor that has begun as many runs as `max_runs` allows is *limited* until the next run may begin.
    """

    IDLE = "idle"
    RUNNING = "running"
    HALTED = "halted"
    EXHAUSTED = "exhausted"
    LIMITED = "limited"


PAUSED = "paused"
STOPPED = "stopped"
"""What is shown of a monitor that is halted until an operator resamples it: `on_halt: stop`, or closed."""


UNCOVERED = -1
"""``RunState.blind_ms`` of a state that stays while the configuration does not cover the dataset."""
BLIND = frozenset({State.EXHAUSTED.value, State.LIMITED.value, PAUSED, STOPPED})
"""States, as shown, in which a monitor skips the queries of a dataset."""
_MAY_WAIT = frozenset({State.IDLE, State.HALTED, State.LIMITED})
"""States that a stop hides."""


class Signal(StrEnum):
    """Event that changes the state of a monitor."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    TOP = "top"
    LAST_TOP = "last top"
    ENDED = "ended"
    CLOSED = "closed"
    BUDGET_RAISED = "budget raised"
    LIMIT_REACHED = "limit reached"
    LIMIT_PASSED = "limit passed"
    PAUSED = "paused"
    RESUMED = "resumed"
    REOPENED = "reopened"


TRANSITIONS: Mapping[tuple[State, Signal], State] = {
    (State.IDLE, Signal.ADMITTED): State.RUNNING,
    (State.IDLE, Signal.REFUSED): State.EXHAUSTED,
    (State.IDLE, Signal.CLOSED): State.HALTED,
    (State.RUNNING, Signal.TOP): State.RUNNING,
    (State.RUNNING, Signal.LAST_TOP): State.HALTED,
    (State.RUNNING, Signal.ENDED): State.HALTED,
    (State.RUNNING, Signal.CLOSED): State.HALTED,
    (State.HALTED, Signal.ADMITTED): State.RUNNING,
    (State.HALTED, Signal.REFUSED): State.EXHAUSTED,
    (State.HALTED, Signal.CLOSED): State.HALTED,
    (State.EXHAUSTED, Signal.BUDGET_RAISED): State.IDLE,
    (State.EXHAUSTED, Signal.CLOSED): State.HALTED,
    (State.EXHAUSTED, Signal.ENDED): State.HALTED,
    (State.IDLE, Signal.LIMIT_REACHED): State.LIMITED,
    (State.HALTED, Signal.LIMIT_REACHED): State.LIMITED,
    (State.LIMITED, Signal.LIMIT_PASSED): State.HALTED,
    (State.LIMITED, Signal.CLOSED): State.HALTED,
    (State.LIMITED, Signal.ENDED): State.HALTED,
    **{(one, signal): one for one in State for signal in (Signal.PAUSED, Signal.RESUMED, Signal.REOPENED)},
}
FLAGS: Mapping[Signal, tuple[str, bool]] = {
    Signal.CLOSED: ("stopped", True),
    Signal.REOPENED: ("stopped", False),
    Signal.PAUSED: ("paused", True),
    Signal.RESUMED: ("paused", False),
}
"""Signals that also set a flag of `RunState`."""
VERSION = 1


class _Secret(msgspec.Struct, array_like=True):
    """A struct whose content is not printed."""

    def __repr__(self) -> str:
        """Return the type's name only."""
        return f"{type(self).__name__}()"


class StateRecord(_Secret, array_like=True):
    """A state record; its format version comes first."""

    version: int


SECRETS = np.dtype([("noise", "<i8"), ("salt_high", "<u8"), ("salt_low", "<u8")])
"""Threshold noise of a run, and the two halves of the salt of its query noise."""
NO_SECRETS = bytes(SECRETS.itemsize)
_TIMES = "<i8"
_Secrets = Annotated[bytes, msgspec.Meta(min_length=len(NO_SECRETS), max_length=len(NO_SECRETS))]


Figures = tuple[str, int, int]
"""A monitor's state on a dataset as shown, what its runs spent, and what the open run may still spend."""


class RunState(_Secret, array_like=True, gc=False):
    """State of one monitor on one dataset, stored in this layout.

    ``secrets`` holds `SECRETS` in 24 bytes, so that the length of a record does not depend on them; they are zero
    without an open run. ``left`` is what the open run may still spend, in epsilon units. ``started_ms`` is the
    timestamp of the query that opened the latest run, None if that does not count for `max_runs`; ``earlier``
    has those of earlier runs that count, in eight bytes each. ``blind_ms`` is the broker's timestamp since which
    queries are skipped, 0 while they are tested, or `UNCOVERED`. ``paused_until`` is the timestamp (ms) of a query that
    ends a pause, 0 if only an operator does.
    """

    state: State = State.IDLE
    stopped: bool = False
    paused: bool = False
    run: int = 0
    secrets: _Secrets = NO_SECRETS
    left: int = 0
    run_tops: int = 0
    started_ms: int | None = None
    tops: int = 0
    runs: int = 0
    halts: int = 0
    spent: int = 0
    earlier: bytes = b""
    blind_ms: int = 0
    paused_until: int = 0

    @property
    def begins(self) -> list[int]:
        """Timestamps (ms) at which the runs that count for `max_runs` began, in ascending order."""
        latest = [] if self.started_ms is None else [self.started_ms]
        return (
            sorted([*np.frombuffer(self.earlier, dtype=_TIMES).tolist(), *latest]) if self.earlier else latest
        )

    def remember(self, earlier: Sequence[int]) -> None:
        """Store the timestamps of earlier runs."""
        self.earlier = np.array(earlier, dtype=_TIMES).tobytes() if earlier else b""

    def signal(self, signal: Signal) -> None:
        """Change to the next state; MisuseError if the signal cannot occur in this one."""
        self.state = follow(TRANSITIONS, self.state, signal, "a monitor")
        if signal in FLAGS:
            setattr(self, *FLAGS[signal])

    @property
    def shown(self) -> str:
        """The state as shown."""
        return PAUSED if self.paused else self.beneath

    @property
    def beneath(self) -> str:
        """The state without a pause, which hides it; exhaustion hides a stop."""
        return STOPPED if self.stopped and self.state in _MAY_WAIT else self.state.value

    @property
    def figures(self) -> Figures:
        """What sums over datasets count."""
        return self.shown, self.spent, self.left

    def note_blind(self, time_ms: int) -> None:
        """Update ``blind_ms`` after a change of state at a time: it stays while one reason follows another."""
        self.blind_ms = (self.blind_ms or time_ms) if self.shown in BLIND else 0


WholeNumber = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""A number in a queue record; one beyond these limits means that the record is damaged."""
Grid = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
"""A grid value in eight bytes, little-endian, so that the length of a record does not depend on it."""
Hash = Annotated[int, msgspec.Meta(ge=0)]
"""A hash of 64 bits: no number of a record has more."""
Name = str | int | tuple[int, int]
"""Identity of an entry in its queue."""


class _Entry(_Secret, array_like=True, gc=False):
    """An immutable entry of a queue, stored in this layout; a change makes a new entry of the same number."""

    number: WholeNumber

    @property
    def name(self) -> Name:
        """Its identity in its queue."""
        return self.number


class Waiting(_Entry, array_like=True, gc=False, tag=0):
    """An entry of a retry queue: the latest query of a series, or a query without series.

    ``entered`` and ``entered_ms`` are offset and clock at which the series entered the queue, ``begun`` is the queue's
    count of sweeps before its first test.
    """

    offset: WholeNumber
    row: WholeNumber
    value: Grid
    threshold: WholeNumber
    entered: WholeNumber
    entered_ms: WholeNumber
    begun: WholeNumber
    series: str | None
    query_id: str

    @property
    def name(self) -> Name:
        """See `_Entry`."""
        return (self.offset, self.row) if self.series is None else self.series


class OpenSet(_Entry, array_like=True, gc=False, tag=1):
    """A finite set of queries that is still open: its identifier, and its number of tops so far."""

    name: str
    opened_ms: WholeNumber
    tops: WholeNumber


class Block(_Entry, array_like=True, gc=False, tag=2):
    """Waiting queries of an open set, in order of arrival; ``owner`` is the set's number.

    ``numbers`` has all offsets, then rows, values and thresholds, in eight bytes each.
    """

    owner: WholeNumber
    numbers: bytes
    series: list[str | None]
    query_id: list[str]


class StoredMute(_Entry, array_like=True, gc=False, tag=3):
    """A muted series, by hash, and the clock (ms) at which its mute ends, or a negative code."""

    series: Hash
    until: WholeNumber

    @property
    def name(self) -> Name:
        """See `_Entry`."""
        return self.series


class WatchedMute(StoredMute, array_like=True, gc=False, tag=4):
    """The mute of an alert whose series is watched behind it: whether the first windows after it are all tested.

    ``text`` is the series, ``alert_run`` and ``alert`` are the run of its alert and that event's number in the dataset.
    There are ``windows``, which begin from ``first`` to ``last`` (ms) and are asked until ``by`` (ms), in ``left``
    further queries. ``run`` is the run that tested the earlier ones, 0 before them, or why the windows cannot all be
    tested any more: `INTERRUPTED` or `RESTED`.
    """

    text: str
    alert_run: WholeNumber
    alert: WholeNumber
    severity: str | None
    windows: WholeNumber
    first: WholeNumber
    last: WholeNumber
    by: WholeNumber
    left: WholeNumber
    run: WholeNumber = 0


INTERRUPTED, RESTED = -1, -2
"""``WatchedMute.run`` if the run was paused between two of its tests, or a query was in maintenance."""

Entry = Waiting | OpenSet | Block | StoredMute | WatchedMute


class QueueGroup(_Secret, array_like=True):
    """Changes of a queue: counts, numbers of removed entries (None: the queue is removed), and new entries."""

    kind: Annotated[int, msgspec.Meta(ge=0, le=2)]
    monitor: str
    dataset: str
    count: WholeNumber
    sweeps: WholeNumber
    gone: list[WholeNumber] | None
    entries: list[Entry]


class QueueRecord(StateRecord, array_like=True):
    """Changes of the queues of a shard, and entries written again from older records."""

    groups: list[QueueGroup]


class ProgressRecord(StateRecord, array_like=True):
    """Position of every monitor in its topic, as (offset, row, clock in ms), and the shard's counters.

    ``carried`` is the digest of the file with the amounts that an earlier application spent, ``configuration`` is the
    number and digest of the last adopted version. ``watermarks`` of undeclared generators are kept. ``carried_mutes``
    counts the lines of that file with muted series that were taken over.
    """

    sequence: int
    shard_events: int
    positions: dict[str, tuple[int, int, int]]
    carried: str = ""
    configuration: tuple[int, str] = (0, "")
    watermarks: dict[str, int] = {}
    carried_mutes: int = 0


class SpecRecord(StateRecord, array_like=True):
    """A monitor's specification as JSON, and its hash by the release that wrote it."""

    hash: str
    spec: str


class TopicRecord(StateRecord, array_like=True):
    """The most cautious declaration ever made about a query topic: `Declared`, with the fraction as text."""

    sensitivity: str
    general: bool


class LookRecord(StateRecord, array_like=True):
    """Timestamp and offset of the last released look at a dataset: a topic that is read again has no later ones."""

    timestamp_ms: int
    offset: int


R = TypeVar("R", bound=StateRecord)

_ENCODER = msgspec.msgpack.Encoder()


def to_bytes(record: StateRecord) -> bytes:
    """Return the unsealed bytes of a record."""
    return _ENCODER.encode(record)


def from_bytes(kind: type[R], data: bytes, *, key: str) -> R:
    """Return the record in ``data``; `UnreadableState` if it is not of this kind and `VERSION`."""
    record = _decoded(kind, data) or _decoded(StateRecord, data)
    if record is not None and record.version != VERSION:
        message = (
            f"has format {record.version}, this release reads format {VERSION}; use the release that wrote it"
        )
    elif isinstance(record, kind):
        return record
    else:
        message = "cannot be decoded; the shard parks, so that no budget is spent twice"
    raise UnreadableState(f"state record {key} {message}")


def _decoded(kind: type[R], data: bytes) -> R | None:
    """Return a record, None if it is not of this kind; `StateRecord` accepts any kind, with its version only."""
    try:
        found: R = _decoder(kind).decode(data)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MisuseError):
        return None


@cache
def _decoder(kind: type[R]) -> msgspec.msgpack.Decoder[R]:
    return msgspec.msgpack.Decoder(kind)
