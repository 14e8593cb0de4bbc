"""The states of one shard on one worker, and the signals that change them.

A shard is *opened*: its state is read, verified and taken over, then *replayed*, then *running*. A transient error
leads to *retrying*; a permanent one *parks* the shard: it stays assigned to its worker and does nothing until the cause
is repaired. A worker that lost the partition to another one is *not a member*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stream_svt.monitor.released import DatasetView, Totals
from stream_svt.transitions import follow


class ShardState(StrEnum):
    """State of a shard, as shown by metrics and the status API."""

    OPENING = "opening"
    REPLAYING = "replaying"
    RUNNING = "running"
    RETRYING = "retrying"
    PARKED = "parked"
    NOT_MEMBER = "not-member"
    STOPPED = "stopped"


OPEN = frozenset({ShardState.REPLAYING, ShardState.RUNNING})
"""States in which a shard works on its queries."""


class ShardSignal(StrEnum):
    """Events that change the state of a shard."""

    OPENED = "opened"
    TAKEN_OVER = "taken over"
    REPLAYED = "replayed"
    APPLIED = "applied"
    FAILED = "failed"
    PARKED = "parked"
    DISOWNED = "disowned"
    STOPPED = "stopped"


class Cause(StrEnum):
    """Why a shard is parked or a worker is outside its group, in one word; `ShardStatus.reason` is for people."""

    NONE = ""
    STATE_UNREADABLE = "state-unreadable"
    STATE_ROLLED_BACK = "state-rolled-back"
    RECORDS_LOST = "records-lost"
    TIMESTAMP_AHEAD = "timestamp-ahead"
    CLOSED = "closed"
    CONFIGURATION = "configuration"
    REFUSED_DATA = "refused-data"
    TOPIC_MISSING = "topic-missing"
    PERMISSION = "permission"
    BROKER_REFUSED = "broker-refused"
    SEALING_KEY = "sealing-key"
    CLOCK = "clock"
    OTHER_CLUSTER = "other-cluster"
    GROUP = "group"
    SCHEMA_MISSING = "schema-missing"
    UNAVAILABLE = "unavailable"
    FENCED = "fenced"
    ERROR = "error"


_EVERY = tuple(ShardState)
_ALIVE = tuple(state for state in ShardState if state is not ShardState.STOPPED)

TRANSITIONS: Mapping[tuple[ShardState, ShardSignal], ShardState] = {
    **{(state, ShardSignal.OPENED): ShardState.OPENING for state in _EVERY},
    (ShardState.OPENING, ShardSignal.TAKEN_OVER): ShardState.REPLAYING,
    (ShardState.REPLAYING, ShardSignal.REPLAYED): ShardState.RUNNING,
    # A signal between two awaits of a session, which continues to its next barrier.
    (ShardState.OPENING, ShardSignal.REPLAYED): ShardState.OPENING,
    (ShardState.REPLAYING, ShardSignal.APPLIED): ShardState.OPENING,
    (ShardState.RUNNING, ShardSignal.APPLIED): ShardState.OPENING,
    **{(state, ShardSignal.FAILED): ShardState.RETRYING for state in _ALIVE},
    **{(state, ShardSignal.PARKED): ShardState.PARKED for state in _ALIVE},
    **{(state, ShardSignal.DISOWNED): ShardState.NOT_MEMBER for state in _ALIVE},
    **{(state, ShardSignal.STOPPED): ShardState.STOPPED for state in _EVERY},
}


@dataclass(slots=True)
class ShardStatus:
    """The published status of a shard; all of it is committed or public.

    ``outbox`` is the number of charged events that are not published yet. ``totals`` is None until the shard's state
    was read. ``read_ms`` has by topic the broker's timestamp of the newest query read, 0 for none; ``ticks`` has it
    again for topics of counts, of which ``offsets`` and ``lag`` have nothing. ``topic_ids`` are the ids at the
    takeover. ``cause`` and ``reason`` are why the shard is not open, or why one of its topics waits: in one word, and
    for people.
    """

    shard: int
    state: ShardState = ShardState.OPENING
    reason: str = ""
    cause: Cause = Cause.NONE
    key_id: str = ""
    sequence: int = 0
    state_records: int = 0
    outbox: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    read_ms: dict[str, int] = field(default_factory=dict)
    ticks: dict[str, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    views: dict[str, DatasetView] = field(default_factory=dict)
    totals: Totals | None = None
    committed_at: float = 0.0
    beat: float = 0.0

    def signal(self, signal: ShardSignal, cause: Cause | None = None, reason: str = "") -> None:
        """Move to the next state; without a cause, ``cause`` and ``reason`` stay unchanged."""
        self.state = follow(TRANSITIONS, self.state, signal, "a shard")
        if cause is not None:
            self.cause, self.reason = cause, reason
