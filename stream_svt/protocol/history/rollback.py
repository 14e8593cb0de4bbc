"""Whether a shard's state belongs to the same history as its alert partition.

Each event carries its number in the shard and its origin: the sequence of the transaction that charged it, and 64
random bits of that transaction. A number that was charged is durable before the event is sent, so in one history a
number has one origin. The state has number and origin of the event published last, and of the events that wait. So
the partition of the right state ends with the event published last, followed only by uncommitted copies of waiting
events. Any other content means another history: a restored older state, the state of another application, or a
recreated alert topic.
"""

from __future__ import annotations

from collections.abc import Container

from stream_svt.monitor.released import EventType, Lifecycle, event_in
from stream_svt.protocol.records import Record
from stream_svt.protocol.state_records import Meta

GIVEN_UP = "0-"
"""Prefix of the origin of the event that closes a shard whose state was given up: no owner charged it."""


class AlertScan:
    """The records of an alert partition against a state: a pass over them in order of offsets.

    ``last``: whether the event published last was seen. ``waiting``: number of the first event seen that the state
    still has to publish, or 0.
    """

    def __init__(self, meta: Meta, waiting: Container[int]) -> None:
        self._meta = meta
        self._waiting = waiting
        self.last = meta.published == 0
        self.waiting = 0
        self._unknown = 0
        self._behind = 0

    @property
    def foreign(self) -> int:
        """Number of the first event that does not belong to the state's history, or 0."""
        return self._unknown or self._behind

    def take(self, record: Record) -> None:
        """Take the next record in; records that are no events are skipped."""
        meta = self._meta
        if (event := event_in(record.value)) is None:
            return
        number, origin = event.sequence, event.origin
        if (number, origin) == (meta.published, meta.published_origin):
            # Earlier records were published earlier, or are copies from an aborted transaction.
            self.last, self._behind = True, 0
        elif number in self._waiting and origin == meta.origin:
            self.waiting = self.waiting or number
        elif number >= meta.published or origin.startswith(GIVEN_UP):
            self._unknown = self._unknown or number
        elif self.last:
            self._behind = self._behind or number


class LatestEvent:
    """The newest event of an alert partition: a pass over all records in order, even uncommitted ones.

    ``largest`` is the largest number of any event; ``successors`` are the applications that the shard was closed for.
    """

    def __init__(self) -> None:
        self.number = self.largest = 0
        self.origin = self.state_id = ""
        self.successors: set[str] = set()

    def take(self, record: Record) -> None:
        """Take the next record in; records that are no events are skipped."""
        if (event := event_in(record.value)) is None:
            return
        self.number, self.origin, self.state_id = event.sequence, event.origin, event.stateid
        self.largest = max(self.largest, self.number)
        if event.type == EventType.APPLICATION_CLOSED and isinstance(event.data, Lifecycle):
            self.successors.add(str(event.data.detail.get("successor", "")))


def contradiction(
    meta: Meta | None, seen: AlertScan, committed: AlertScan, first: int, end: int, *, replaced: bool = False
) -> str | None:
    """Return how the alert partition contradicts a state; None if it does not.

    Args:
        meta: The record `meta`; None if the state has no records.
        seen: All records from `meta.alert_offset` on, even uncommitted ones.
        committed: The committed ones among them: an aborted copy is no publication.
        first, end: First offset that the partition still has, and its end.
        replaced: Whether the topic's id differs from the id in the state.
    """
    if foreign := seen.foreign or committed.foreign:
        return f"shows event {foreign}, which the state does not know, or another one of this number"
    if committed.waiting:
        return f"shows event {committed.waiting} as published, which the state still has to publish"
    # All records past `alert_end` must still exist: a copy of the last event does not prove that.
    if first > (0 if meta is None else meta.alert_end):
        return f"begins at offset {first}: events were deleted that the state does not know of"
    if meta is None or not meta.published:
        return None
    if replaced:
        return f"was created again after event {meta.published} was published"
    if not committed.last and first <= (meta.alert_offset or 0):
        return f"does not show event {meta.published}, which was published last"
    # After the event that was published last, only the marker of a transaction must follow.
    if end < meta.alert_end - committed.last:
        return f"ends at offset {end}, before {meta.alert_end}, where the state saw its end"
    return None
