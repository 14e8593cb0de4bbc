"""What the counters of all sources have in common: looks by the clock, positions, parks, and durable steps.

A counter is a state machine: it decides what to read, what to write, and when a tick is asked. It has no clock and no
clients. Its owner tells it the time, the applied lists, the ends of the raw partitions and their records, and writes
what `SourceCounter.step` returns, each step in one transaction. All that outlasts a step is in `CounterState`.

Looks are served in order: what lies below the first one is read, and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.protocol.records import Records
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counts import CountsRecord
from stream_svt.sources.events import Fate
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import Accepted, Began, Done, Entry, Look, Offsets, Park, Parked, Standing, encode
from stream_svt.sources.questions import ClosedCounts
from stream_svt.sources.state import CounterState
from stream_svt.sources.ticks import TickClock

Spans: TypeAlias = Mapping[int, tuple[int, int]]
"""Begin and end of each partition: the offset of its first record, and its high watermark."""

MAX_ENTRIES_BYTES: Final = 4_000_000
"""Bytes of a transaction's entries, other than pairs, from which on the next ones wait."""


class Reader(Protocol):
    """Reads the records of a source's topic."""

    def lack(self, records: Records) -> tuple[int, str]:
        """Return how many records, from the first, can be read, and why the next one cannot yet, if there is one."""

    def forget_absences(self) -> None:
        """Ask the registry again for schemas that it did not have."""


@dataclass(frozen=True, slots=True)
class CounterStep:
    """What one transaction writes; without ``entries`` nothing is to be written, and `SourceCounter.step` goes on.

    ``counts`` are made when they are taken, and can be taken once.
    """

    entries: tuple[Entry, ...] = ()
    counts: Iterable[CountsRecord] = ()


class SourceCounter(ABC):
    """The counter of one source.

    After an error, and after a transaction whose outcome is not known, it is of no use any more: its owner makes
    another one, and replays the log. How it stands is for the trusted zone: only the newest tick that was asked, and
    why the source is parked, may leave it.

    Attributes:
        source: The source, as applied last.
        fates: Events by what became of them.
        measured: Events that counted, by each measure that they match.
        late_records: How many records a broker stamped before a look that did not cover them.
        missing: Partitions that the last attempt at a look did not find; no look is taken meanwhile.
    """

    def __init__(self, source: SourceSpec, reader: Reader) -> None:
        self.source, self.state = source, CounterState(TickClock.of(source))
        self.fates: dict[Fate, int] = dict.fromkeys(Fate, 0)
        self.measured: dict[str, int] = {}
        self.late_records = 0
        self.missing: tuple[int, ...] = ()
        self._reader = reader
        self._queued: list[Entry] = []
        self._flight: tuple[Entry, ...] = ()
        self._at: Offsets = {}

    def adopt(self, source: SourceSpec) -> None:
        """Go on with the source as applied now: with the same digest, other names, more measures, another `settle`."""
        if source.digest != self.source.digest:
            raise MisuseError(f"source {source.name} has another digest: it is another source")
        self.source = source

    # -- takeover

    def replay(self, offset: int, entry: Entry) -> None:
        """Apply an entry of this source that is durable in the log, in the order of offsets."""
        self.state.apply(offset, entry)
        self._at.clear()

    @property
    def has_begun(self) -> bool:
        """Whether the log has entries of the source, or its begin waits to be written."""
        return self.state.oldest is not None or self._is_waiting(Began)

    @property
    def needed_offset(self) -> int | None:
        """Offset of the oldest entry that the source needs of its log, None without any: older ones may be deleted."""
        return self.state.needed

    @property
    def parked(self) -> Park | None:
        """Why the source is parked, None if it is not."""
        waiting = (entry.reason for entry in (*self._queued, *self._flight) if isinstance(entry, Parked))
        return next(waiting, self.state.parked)

    @property
    def pairs(self) -> int:
        """Pairs in memory."""
        return self.state.pairs

    @property
    def to_recall(self) -> ClosedCounts | None:
        """What to fill with durable counts, and give to `recall`, before the next tick is asked; None for nothing."""
        return None

    def recall(self, closed: ClosedCounts) -> None:  # noqa: B027  a source may have no windows
        """Take the durable counts of closed windows."""

    # -- what the clock decides

    def reads_back_to(self, now_ms: int) -> int:
        """Return from when on a source that begins now needs the records with brokers' timestamps."""
        return self.state.clock.window_at(now_ms) - self.source.ahead

    def begin(self, spans: Spans, now_ms: int, *, by_broker: bool, topic_id: str) -> None:
        """Begin a source that has no log.

        Without ``by_broker``, and if it passes answers on, it begins at the ends, with the next window.

        Args:
            spans: Begin and end of each partition. With ``by_broker`` the begin is the offset of the first record
                stamped at `reads_back_to` or later, or the end if there is none.
            now_ms: The time, later than the ends were asked for.
            by_broker: Whether records have brokers' timestamps, and the topic keeps them for long enough.
            topic_id: The topic's id.
        """
        if self.has_begun:
            raise MisuseError(f"source {self.source.name} has begun")
        clock, by_broker = self.state.clock, by_broker and self.source.answers is None
        first = clock.window_at(now_ms) + (0 if by_broker else clock.window_ms)
        ends = {partition: end for partition, (_, end) in spans.items()}
        offsets = {partition: begin for partition, (begin, _) in spans.items()} if by_broker else dict(ends)
        self._queued.append(Began(Standing(topic_id, first, first, now_ms, dict(ends), offsets, ends)))

    def open_windows(self, now_ms: int, lists: Lists) -> None:  # noqa: B027  a source may have no windows
        """Open the windows whose time to open has come, in order, as far as their lists are known."""

    def look_due(self, now_ms: int) -> int | None:
        """Return the moment of the look that is due now, by the earlier of both clocks; None if none is."""
        state = self.state
        if not state.has_begun or self.parked or self._is_waiting(Look, Accepted):
            return None
        # The tick of an answer is that of the look that covers it: all its looks are at the end of one.
        look_by = state.clock.look_by if self.source.answers is None else state.clock.window_at
        moment = look_by(now_ms - self.source.settle)
        return moment if moment > state.looked_ms else None

    def look(self, moment_ms: int, spans: Spans, topic_id: str, *, by_broker: bool) -> None:
        """Take the look that is due, or park.

        The spans are asked for since `look_due` gave this moment. Without a partition that the last look has, there is
        no look yet. ``by_broker``: whether the topic has brokers' timestamps by its settings.
        """
        state = self.state
        self._reader.forget_absences()
        self.missing = tuple(sorted(state.ends.keys() - spans.keys()))
        if topic_id != state.topic_id:
            self._queue_park(Park.TOPIC_CREATED_AGAIN, spans, topic_id)
        elif any(end < state.ends.get(partition, 0) for partition, (_, end) in spans.items()):
            self._queue_park(Park.END_FELL, spans, topic_id)
        elif any(begin > at for one, (begin, _) in spans.items() if (at := self._position(one)) is not None):
            self._queue_park(Park.RECORDS_LOST, spans, topic_id)
        elif not self.missing:
            ends = {partition: end for partition, (_, end) in sorted(spans.items())}
            begins = {partition: spans[partition][0] for partition in ends if partition not in state.ends}
            self._queued.append(Look(moment_ms, ends, begins, self.source.settle, by_broker))

    def park(self, reason: Park) -> None:
        """Park the source: no more looks are taken, but those before are served."""
        if self.parked is None:
            self._queued.append(Parked(reason, serves=True))

    def accept_loss(self, now_ms: int, spans: Spans, topic_id: str) -> None:
        """Accept the loss for which the source is parked; the spans were asked for before this moment."""
        state, clock = self.state, self.state.clock
        if state.parked is None or self._is_waiting(Parked, Accepted):
            raise MisuseError(f"source {self.source.name} is not parked")
        # No record below these ends has an append time from this moment on, also where brokers' clocks are ahead.
        moment = now_ms + 2 * self.source.settle
        first = clock.window_at(moment + self.source.ahead - 1) + clock.window_ms
        clears = not state.serves or not self._can_serve(spans, topic_id)
        ends = {partition: end for partition, (_, end) in spans.items()}
        self._queued.append(Accepted(moment, first, topic_id, ends, clears))

    # -- reading

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Return the partitions to read on, with the next offset and the end up to which they may be read now."""
        limit = self.state.limit
        if limit is None or not self.state.serves or self._is_waiting(Done, Parked, Accepted):
            return {}
        return self._unread(limit) if self._has_room(limit) else {}

    def lack(self, records: Records) -> tuple[int, str]:
        """Return how many records, from the first, can be folded, and why the next one cannot yet."""
        return self._reader.lack(records)

    def fold(self, partition: int, records: Records, next_offset: int) -> int:
        """Take records of a partition, as many as may be now; return the offset up to which they are folded.

        They are its next committed ones, up to an offset, and none has a `lack`. Those folded already are left out.
        """
        if partition not in (ranges := self.ranges()):
            return self._position(partition) or 0
        at, end = ranges[partition]
        first, last = np.searchsorted(records.offset, (at, end)).tolist()
        records, until = records[first:last], min(next_offset, end)
        if len(records):
            count = self._take(partition, records)
            until = int(records.offset[count]) if count < len(records) else until
        self._at[partition] = max(until, at)
        return self._at[partition]

    # -- writing

    def step(self) -> CounterStep | None:
        """Return what the next transaction writes, or a part of the work for it; None if nothing is to be done."""
        if self._flight:
            raise MisuseError("the last step is not durable yet")
        if self._queued:
            return self._fly(self._take_queued())
        limit = self.state.limit
        return None if limit is None or not self.state.serves else self._step(limit)

    def stepped(self, offsets: Sequence[int]) -> None:
        """Take note that the last step is durable, its entries at these offsets of the log."""
        jumps = self.state.jumps
        for offset, entry in zip(offsets, self._flight, strict=True):
            self.state.apply(offset, entry)
        self._flight = ()
        if self.state.jumps != jumps:
            self._at = {}
            self._discard()

    # -- inside

    @abstractmethod
    def _has_room(self, limit: Look) -> bool:
        """Return whether more records may be read below a look now."""

    @abstractmethod
    def _take(self, partition: int, records: Records) -> int:
        """Take some records, at least one, from the first; return how many."""

    @abstractmethod
    def _step(self, limit: Look) -> CounterStep | None:
        """Return the next step of serving the first look, as `step` does."""

    @abstractmethod
    def _discard(self) -> None:
        """Discard what is read and not durable: an accepted loss took effect."""

    @property
    def _limit(self) -> Look:
        assert self.state.limit is not None  # noqa: S101 - there are ranges
        return self.state.limit

    def _is_waiting(self, *kinds: type[Entry]) -> bool:
        """Return whether an entry of some kinds is decided and not durable."""
        return any(isinstance(entry, kinds) for entry in (*self._queued, *self._flight))

    def _position(self, partition: int) -> int | None:
        """Return the next offset of a partition, None if no look has seen it."""
        if partition in (known := self._at if partition in self._at else self.state.offsets):
            return known[partition]
        looks = (one.begins for _, one in self.state.queue if isinstance(one, Look))
        return next((begins[partition] for begins in looks if partition in begins), None)

    def _positions(self) -> Offsets:
        return self.state.offsets | self._at

    def _unread(self, limit: Look) -> dict[int, tuple[int, int]]:
        """Return the partitions with records to read for the next tick, with the next offset and the end."""
        spans = ((one, self._position(one) or 0, end) for one, end in limit.ends.items())
        return {one: (at, end) for one, at, end in spans if at < end}

    def _can_serve(self, spans: Spans, topic_id: str) -> bool:
        """Return whether all that the looks cover, and is not read yet, can still be read."""
        looks = (one for _, one in self.state.queue if isinstance(one, Look))
        spans = spans if topic_id == self.state.topic_id else {}
        unread = (each for look in looks for each in SourceCounter._unread(self, look).items())
        return all(one in spans and spans[one][0] <= at and end <= spans[one][1] for one, (at, end) in unread)

    def _queue_park(self, reason: Park, spans: Spans, topic_id: str) -> None:
        self._queued.append(Parked(reason, self._can_serve(spans, topic_id)))

    def _take_queued(self) -> tuple[Entry, ...]:
        """Return the first entries that wait, as many as fit a transaction."""
        size, count = 0, 0
        while count < len(self._queued) and size < MAX_ENTRIES_BYTES:
            size += len(encode(self._queued[count]))
            count += 1
        taken, self._queued = tuple(self._queued[:count]), self._queued[count:]
        return taken

    def _fly(self, entries: tuple[Entry, ...], counts: Iterable[CountsRecord] = ()) -> CounterStep:
        self._flight = entries
        return CounterStep(entries, counts)
