"""The counter of a source as a state machine: it decides what to read, what to write, and when a tick is asked.

It has no clock and no clients. Its owner tells it the time, the applied lists, the ends of the raw partitions and their
records, and writes what `Counter.step` returns, each step in one transaction. All that outlasts a step is in `State`.

Looks are served in order: what lies below the first one is read, and nothing else. The next tick is asked once all
that a look at or after its end covers is read. So nothing that one unit does moves another's record to another tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.errors import MisuseError
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.records import EventSchemas
from stream_svt.settings.sources import SourceSpec, WindowList
from stream_svt.sources.counts import CountsRecord, records_of
from stream_svt.sources.events import EventReader, Fate
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import (
    MAX_KEYS,
    MAX_NAMES_BYTES,
    Accepted,
    Began,
    Done,
    Entry,
    Look,
    Offsets,
    Opened,
    Pairs,
    Park,
    Parked,
    Read,
    Standing,
    encode,
)
from stream_svt.sources.state import State
from stream_svt.sources.tally import Keys, cut, pack, sorted_keys
from stream_svt.sources.ticks import TickClock

Spans: TypeAlias = Mapping[int, tuple[int, int]]
"""Begin and end of each partition: the offset of its first record, and its high watermark."""

FAR_AHEAD_MS: Final = 600_000
"""How long after its look, which comes `settle` after its moment, a broker may stamp a record; others are dropped."""
PIECE_MS: Final = 60_000
"""How much further than the tick a piece is read; twice `settle`, if that is more."""
FULL: Final = 1 << 19
"""Keys that wait for a transaction, at most."""
FLUSH: Final = 1 << 18
"""Keys that are enough for a transaction."""
MAX_ENTRIES_BYTES: Final = 4_000_000
"""Bytes of a transaction's entries, other than pairs, from which on the next ones wait."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction writes; without ``entries`` nothing is to be written, and `Counter.step` goes on.

    Attributes:
        entries: Entries of the event log.
        counts: Records of counts, made when they are taken; they can be taken once.
    """

    entries: tuple[Entry, ...] = ()
    counts: Iterable[CountsRecord] = ()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source stands, for the trusted zone; only ``tick_ms`` and ``parked`` may leave it.

    Attributes:
        tick_ms: Newest tick that was asked, None before the first.
        next_tick_ms: The next tick to ask, None before the source began.
        look_ms: Moment of the newest look, None before the first.
        waiting: Partitions of which records below the first look, or piece, are not read yet.
        missing: Partitions that the last attempt at a look did not find; no look is taken meanwhile.
        parked: Why the source is parked, None if it is not.
        fates: Events by what became of them, since this process began to count.
        pairs: Pairs in memory.
        open_windows: Number of windows.
    """

    tick_ms: int | None
    next_tick_ms: int | None
    look_ms: int | None
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    parked: Park | None
    fates: Mapping[Fate, int]
    pairs: int
    open_windows: int


@dataclass
class _Buffer:
    """Keys that are not durable yet, by window and tick: arrays that are sorted and cut."""

    keys: dict[tuple[int, int], list[Keys]] = field(default_factory=dict)
    size: int = 0

    def add(self, window: int, tick: int, keys: Keys) -> None:
        self.keys.setdefault((window, tick), []).append(keys)
        self.size += len(keys)


class Counter:
    """The counter of one source.

    After an error, and after a transaction whose outcome is not known, it is of no use any more: its owner makes
    another one, and replays the log. ``late_records`` counts records that a broker stamped before a look that did not
    cover them.

    Args:
        source: The source, as applied last.
        draw_key: Returns 16 random bytes, the key of a window's hash.
        schemas: Schemas of Avro records.
    """

    def __init__(
        self, source: SourceSpec, draw_key: Callable[[], bytes], schemas: EventSchemas | None = None
    ) -> None:
        self.source, self.state = source, State(TickClock.of(source))
        self.fates: dict[Fate, int] = dict.fromkeys(Fate, 0)
        self.late_records = 0
        self._draw_key, self._schemas = draw_key, schemas
        self._reader = EventReader(source, schemas)
        self._queued: list[Entry] = []
        self._flight: tuple[Entry, ...] = ()
        self._buffer = _Buffer()
        self._at: Offsets = {}
        self._is_cut: set[int] = set()
        self._opened_to = 0
        self._missing: tuple[int, ...] = ()
        self._asking: Iterator[Step] | None = None

    def adopt(self, source: SourceSpec) -> None:
        """Go on with the source as applied now: with the same digest, other names, more measures, another `settle`."""
        if source.digest != self.source.digest:
            raise MisuseError(f"source {source.name} has another digest: it is another source")
        self.source, self._reader = source, EventReader(source, self._schemas)

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

    # -- what the clock decides

    def reads_back_to(self, now_ms: int) -> int:
        """Return from when on a source that begins now needs the records with brokers' timestamps."""
        return self.state.clock.window_at(now_ms) - self.source.ahead

    def begin(self, spans: Spans, now_ms: int, *, by_broker: bool, topic_id: str) -> None:
        """Begin a source that has no log.

        Args:
            spans: Begin and end of each partition. With ``by_broker`` the begin is the offset of the first record
                stamped at `reads_back_to` or later, or the end if there is none.
            now_ms: The time, later than the ends were asked for.
            by_broker: Whether records have brokers' timestamps, and the topic keeps them for long enough. Otherwise the
                source begins at the ends, with the next window.
            topic_id: The topic's id.
        """
        if self.has_begun:
            raise MisuseError(f"source {self.source.name} has begun")
        clock = self.state.clock
        first = clock.window_at(now_ms) + (0 if by_broker else clock.window_ms)
        ends = {partition: end for partition, (_, end) in spans.items()}
        offsets = {partition: begin for partition, (begin, _) in spans.items()} if by_broker else dict(ends)
        self._queued.append(Began(Standing(topic_id, first, first, now_ms, dict(ends), offsets, ends)))

    def open_windows(self, now_ms: int, lists: Lists) -> None:
        """Open the windows whose time to open has come, in order, as far as their lists are known."""
        state, clock = self.state, self.state.clock
        if not state.has_begun or self._is_waiting(Began, Parked, Accepted):
            return
        until = min(now_ms, state.last_look_ms + self.source.settle) if state.parked else now_ms
        begin = max(self._opened_to, state.next_window)
        names = {measure.name for measure in self.source.measures}
        while (opens := clock.opens_ms(begin)) <= until:
            listed = lists.at(opens)
            if listed is None or not names.issuperset(measure.name for measure in listed.measures):
                break
            window = state.windows.get(begin)
            if window is None or not window.is_whole:
                self._queued += _openings(begin, self._draw_key(), listed)
            begin += clock.window_ms
        self._opened_to = begin

    def look_due(self, now_ms: int) -> int | None:
        """Return the moment of the look that is due now, by the earlier of both clocks; None if none is."""
        state = self.state
        if not state.has_begun or self.parked or self._is_waiting(Look, Accepted):
            return None
        moment = state.clock.look_by(now_ms - self.source.settle)
        return moment if moment > state.looked_ms else None

    def look(self, moment_ms: int, spans: Spans, topic_id: str) -> None:
        """Take the look that is due, or park.

        Args:
            moment_ms: Its moment, of `look_due`.
            spans: Begin and end of each partition, asked for since the look is due. Without a partition that the last
                look has, there is no look yet.
            topic_id: The topic's id.
        """
        state = self.state
        self._reader.forget_absences()
        self._missing = tuple(sorted(state.ends.keys() - spans.keys()))
        if topic_id != state.topic_id:
            self._queue_park(Park.TOPIC_CREATED_AGAIN, spans, topic_id)
        elif any(end < state.ends.get(partition, 0) for partition, (_, end) in spans.items()):
            self._queue_park(Park.END_FELL, spans, topic_id)
        elif any(begin > at for one, (begin, _) in spans.items() if (at := self._position(one)) is not None):
            self._queue_park(Park.RECORDS_LOST, spans, topic_id)
        elif not self._missing:
            ends = {partition: end for partition, (_, end) in sorted(spans.items())}
            begins = {partition: spans[partition][0] for partition in ends if partition not in state.ends}
            self._queued.append(Look(moment_ms, ends, begins))

    def park(self, reason: Park) -> None:
        """Park the source: no more looks are taken, but those before are served."""
        if self.parked is None:
            self._queued.append(Parked(reason, serves=True))

    def accept_loss(self, now_ms: int, spans: Spans, topic_id: str) -> None:
        """Accept the loss for which the source is parked.

        Args:
            now_ms: The time, later than ``spans`` were asked for.
            spans: Begin and end of each partition.
            topic_id: The topic's id.
        """
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
        state, limit = self.state, self.state.limit
        if (
            limit is None
            or not state.serves
            or self._buffer.size >= FULL
            or self._asking is not None
            or self._is_waiting(Done, Parked, Accepted)
            or not self._are_open(limit)
        ):
            return {}
        return self._unread(limit)

    def lack(self, records: Records) -> tuple[int, str]:
        """Return how many records, from the first, can be folded, and why the next one cannot yet."""
        return self._reader.lack(records)

    def fold(self, partition: int, records: Records, next_offset: int) -> int:
        """Count records of a partition, as many as may be now; return the offset up to which they are folded.

        Args:
            partition: The partition.
            records: Its next committed records, none of which has a `lack`. Those that are folded already are left out.
            next_offset: The offset up to which they are all.
        """
        if partition not in (ranges := self.ranges()):
            return self._position(partition) or 0
        at, end = ranges[partition]
        first, last = np.searchsorted(records.offset, (at, end)).tolist()
        records, until, is_cut = records[first:last], min(next_offset, end), False
        limit, tick = self._limit, self.state.next_tick
        if limit.moment_ms > tick and (cut_at := self._cut_at(records, tick, limit)) is not None:
            records, until, is_cut = records[:cut_at], int(records.offset[cut_at]), True
        room = max(FULL // len(self.source.measures), 1)
        count = min(self._reader.at_once(records), room) if len(records) else 0
        if count < len(records):
            records, until, is_cut = records[:count], int(records.offset[count]), False
        if count:
            self._count(partition, records, limit)
        self._at[partition] = max(until, at)
        if is_cut:
            self._is_cut.add(partition)
        return self._at[partition]

    # -- writing

    def step(self) -> Step | None:
        """Return what the next transaction writes, or a part of the work for it; None if nothing is to be done."""
        if self._flight:
            raise MisuseError("the last step is not durable yet")
        if self._queued:
            return self._fly(self._take_queued())
        limit = self.state.limit
        if limit is None or not self.state.serves:
            return None
        is_read = (
            not self._unread(limit) and self.state.clock.opens_ms(self.state.next_window) > limit.moment_ms
        )
        if self._buffer.size >= FLUSH or (self._buffer.size and is_read):
            return self._fly(self._take_pairs())
        if is_read and limit.moment_ms >= self.state.next_tick:
            self._asking = self._asking or self._ask(self.state.next_tick)
            return next(self._asking)
        if is_read and not self.state.is_read(limit):
            return self._fly((Read(self._positions()),))
        return None

    def stepped(self, offsets: Sequence[int]) -> None:
        """Take note that the last step is durable, its entries at these offsets of the log."""
        jumps = self.state.jumps
        for offset, entry in zip(offsets, self._flight, strict=True):
            self.state.apply(offset, entry)
            if isinstance(entry, Done | Parked):
                self._asking = None
            if isinstance(entry, Done):
                self._is_cut.clear()
        self._flight = ()
        if self.state.jumps != jumps:
            self._buffer, self._at, self._opened_to = _Buffer(), {}, 0
            self._is_cut.clear()

    @property
    def status(self) -> SourceStatus:
        """How the source stands."""
        state, limit = self.state, self.state.limit
        return SourceStatus(
            tick_ms=state.asked,
            next_tick_ms=state.next_tick if state.has_begun else None,
            look_ms=state.looked_ms if state.has_begun else None,
            waiting=tuple(sorted(self._unread(limit))) if limit else (),
            missing=self._missing,
            parked=self.parked,
            fates=self.fates,
            pairs=state.pairs + self._buffer.size,
            open_windows=len(state.windows),
        )

    # -- inside

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

    def _are_open(self, limit: Look) -> bool:
        """Return whether all windows are open of which there may be a record below a look.

        Its append time is `FAR_AHEAD_MS` after the look at most, and windows open longer before.
        """
        return self.state.clock.opens_ms(self.state.next_window) > limit.moment_ms + self.source.settle

    def _unread(self, limit: Look) -> dict[int, tuple[int, int]]:
        """Return the partitions with records to read for the next tick, with the next offset and the end."""
        spans = ((one, self._position(one) or 0, end) for one, end in limit.ends.items())
        return {one: (at, end) for one, at, end in spans if at < end and one not in self._is_cut}

    def _cut_at(self, records: Records, tick: int, limit: Look) -> int | None:
        """Return the index of the record at which the piece of a tick ends, None if it does not end among these.

        Records that are dropped for their time end no piece.
        """
        beyond = tick + max(PIECE_MS, 2 * self.source.settle)
        ends = records.stamped & (records.timestamp >= beyond) & ~self._is_far_ahead(records, limit)
        return int(ends.argmax()) if ends.any() else None

    def _is_far_ahead(self, records: Records, limit: Look) -> Mask:
        looked_ms = limit.moment_ms + self.source.settle
        return records.stamped & (records.timestamp > looked_ms + FAR_AHEAD_MS)

    def _can_serve(self, spans: Spans, topic_id: str) -> bool:
        """Return whether all that the looks cover, and is not read yet, can still be read."""
        looks = (one for _, one in self.state.queue if isinstance(one, Look))
        spans = spans if topic_id == self.state.topic_id else {}
        unread = ((one, self._position(one) or 0, end) for look in looks for one, end in look.ends.items())
        return all(
            one in spans and spans[one][0] <= at and end <= spans[one][1]
            for one, at, end in unread
            if at < end
        )

    def _queue_park(self, reason: Park, spans: Spans, topic_id: str) -> None:
        self._queued.append(Parked(reason, self._can_serve(spans, topic_id)))

    def _count(self, partition: int, records: Records, limit: Look) -> None:
        """Put the keys of records into the buffer."""
        state, by_broker = self.state, records.stamped
        for window in state.windows.values():
            window.cells.register(self._reader)
        events = self._reader.read(records)
        fate = events.fate.copy()
        # The counter has no append time of other records, but they are there before the look's moment.
        appended = np.where(by_broker, records.timestamp, limit.moment_ms - 1)
        placed = state.clock.place(events.event_ms, appended, state.next_tick)

        def drop(rows: Mask, why: Fate) -> None:
            fate[rows & (fate == Fate.COUNTED)] = why

        covered = max(state.served_ms, state.asked or 0)
        self.late_records += int((by_broker & (records.timestamp < covered)).sum())
        drop(self._is_far_ahead(records, limit), Fate.FAR_AHEAD)
        drop(~by_broker & (records.offset < state.floors.get(partition, 0)), Fate.NOT_ASKED)
        drop(placed.window < state.first, Fate.NOT_ASKED)
        drop(placed.late, Fate.LATE)
        drop(placed.early, Fate.EARLY)
        buffer, start, length = events.unit
        for begin in np.unique(placed.window[fate == Fate.COUNTED]).tolist():
            is_here, opened = placed.window == begin, state.windows[begin]
            datasets, series = opened.cells.indexes(events)
            drop(is_here & (datasets < 0), Fate.OTHER_DATASET)
            drop(is_here & (series < 0), Fate.OTHER_SERIES)
            rows = np.flatnonzero(is_here & (fate == Fate.COUNTED))
            hashes, cells = opened.hash.of(buffer, start[rows], length[rows]), (datasets[rows], series[rows])
            self._keep(begin, cells, hashes, events.measures[rows], placed.tick[rows])
        for why, number in enumerate(np.bincount(fate, minlength=len(Fate)).tolist()):
            self.fates[Fate(why)] += number

    def _keep(
        self, window: int, cells: tuple[Integers, Integers], hashes: Keys, matches: Mask, ticks: Integers
    ) -> None:
        """Put the keys of a window's events into the buffer: one for each measure that an event matches.

        Args:
            window: The window.
            cells: Index of each event's dataset and series.
            hashes: Hash of its unit.
            matches: Shape (events, measures of the source).
            ticks: The tick from which on it counts.
        """
        opened, names = self.state.windows[window], [measure.name for measure in self.source.measures]
        listed, (datasets, series) = opened.cells.list, cells
        for number, measure in enumerate(listed.measures):
            cell = (datasets * len(listed.measures) + number) * len(listed.series) + series
            matching = matches[:, names.index(measure.name)]
            for tick in np.unique(ticks[matching]).tolist():
                rows = matching & (ticks == tick)
                keys = sorted_keys(pack(cell[rows], hashes[rows]))
                self._buffer.add(window, tick, cut(keys, opened.cells.most))

    def _take_queued(self) -> tuple[Entry, ...]:
        """Return the first entries that wait, as many as fit a transaction."""
        size, count = 0, 0
        while count < len(self._queued) and size < MAX_ENTRIES_BYTES:
            size += len(encode(self._queued[count]))
            count += 1
        taken, self._queued = tuple(self._queued[:count]), self._queued[count:]
        return taken

    def _take_pairs(self) -> tuple[Entry, ...]:
        """Return the buffer's keys, and how far the records are read from which they come."""
        entries: list[Entry] = []
        for (window, tick), parts in sorted(self._buffer.keys.items()):
            keys = np.concatenate(parts)
            keys.sort(kind="stable")  # merges sorted arrays
            keys = cut(keys, self.state.windows[window].cells.most).astype("<u8", copy=False)
            starts = range(0, len(keys), MAX_KEYS)
            entries += (Pairs(window, tick, keys[at : at + MAX_KEYS].tobytes()) for at in starts)
        self._buffer = _Buffer()
        return (*entries, Read(self._positions()))

    def _ask(self, tick: int) -> Iterator[Step]:
        """Yield steps without entries, then the one that asks a tick."""
        state, counts = self.state, []
        for window in state.clock.queries_due(tick, state.windows):
            opened = state.windows[window]
            values = np.zeros(opened.cells.list.cells, np.int64)
            if (tally := opened.counted(tick)) is not None:
                counting = tally.count_in_steps()
                while True:
                    try:
                        next(counting)
                    except StopIteration as counted:
                        values = counted.value
                        break
                    yield Step()
            counts.append((opened.cells.list, window, values))
        records = chain.from_iterable(
            records_of(self.source, listed, window, tick, values) for listed, window, values in counts
        )
        yield self._fly((state.done(tick, self._positions()),), records)

    def _fly(self, entries: tuple[Entry, ...], counts: Iterable[CountsRecord] = ()) -> Step:
        self._flight = entries
        return Step(entries, counts)


def _openings(window: int, key: bytes, listed: WindowList) -> Iterator[Opened]:
    """Yield the entries that open a window: several if its list is long."""
    parts: list[list[str]] = [[]]
    size = 0
    for name in listed.series:
        size += len(name.encode(errors="surrogatepass")) + 5
        if size > MAX_NAMES_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(name)
    for number, names in enumerate(parts):
        some = WindowList(listed.datasets, listed.measures, tuple(names))
        yield Opened(window, key, some, number, len(parts))
