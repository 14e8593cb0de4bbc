"""The counter of a source of events: it counts units by windows, and asks the windows that are due.

The next tick is asked once all that a look at or after its end covers is read. So nothing that one unit does moves
another's record to another tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np

from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.records import EventSchemas
from stream_svt.settings.questions import HIGHEST, Question
from stream_svt.settings.sources import SourceSpec, WindowList
from stream_svt.sources.counts import cut_rows, records_of, records_of_question
from stream_svt.sources.events import EventReader, Fate
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import (
    MAX_KEYS,
    MAX_NAMES_BYTES,
    Accepted,
    Began,
    Counted,
    Done,
    Entry,
    Look,
    Pairs,
    Parked,
    Read,
    WindowOpened,
)
from stream_svt.sources.looks import CounterStep, SourceCounter
from stream_svt.sources.questions import Asked, ClosedCounts, Values
from stream_svt.sources.state import OpenWindow
from stream_svt.sources.tally import NO_KEYS, PARTS, Keys, cells_of, cut, pack, sorted_keys
from stream_svt.sources.visits import Counting

FAR_AHEAD_MS: Final = 600_000
"""How long after its look, which comes `settle` after its moment, a broker may stamp a record; others are dropped."""
PIECE_MS: Final = 60_000
"""How much further than the tick a piece is read; twice `settle`, if that is more."""
FULL: Final = 1 << 19
"""Keys that wait for a transaction, at most."""
FLUSH: Final = 1 << 18
"""Keys that are enough for a transaction."""
_MANY_KEYS: Final = 1 << 12
"""Keys of a part that are looked up in a step of its own."""
MANY, FEW = 200, 400
"""Open windows from which on fewer records are counted at once, and how many: each may be in another window."""


@dataclass
class _Buffer:
    """Keys that are not durable yet, by window and tick: arrays that are sorted and cut."""

    keys: dict[tuple[int, int], list[Keys]] = field(default_factory=dict)
    size: int = 0

    def add(self, window: int, tick: int, keys: Keys) -> None:
        self.keys.setdefault((window, tick), []).append(keys)
        self.size += len(keys)


class Counter(SourceCounter):
    """The counter of one source of events; ``draw_key`` returns 16 random bytes, the key of a window's hash."""

    _reader: EventReader

    def __init__(
        self, source: SourceSpec, draw_key: Callable[[], bytes], schemas: EventSchemas | None = None
    ) -> None:
        super().__init__(source, EventReader(source, schemas))
        self._draw_key, self._schemas = draw_key, schemas
        self._buffer = _Buffer()
        self._is_cut: set[int] = set()
        self._opened_to = 0
        self._asking: Iterator[CounterStep] | None = None
        self._closed: ClosedCounts | None = None

    def adopt(self, source: SourceSpec) -> None:
        """See `SourceCounter`."""
        super().adopt(source)
        self._reader = EventReader(source, self._schemas)

    # -- closed windows that questions read

    def _asked(self) -> list[tuple[int, Question]]:
        """Return the questions about open windows, each with the begin of the oldest window that it reads."""
        length, windows = self.state.clock.window_ms, self.state.windows.items()
        return [
            (begin - question.look_back * length, question)
            for begin, window in windows
            for question in window.cells.list.questions
        ]

    @property
    def to_recall(self) -> ClosedCounts | None:
        """See `SourceCounter`."""
        if not (asked := self._asked()):
            return None
        oldest, measures = (
            min(begin for begin, _ in asked),
            {one for _, each in asked for one in each.measures},
        )
        closed = self._closed
        is_known = closed is not None and closed.since <= oldest and measures <= closed.measures
        return None if is_known else ClosedCounts(oldest, measures)

    def recall(self, closed: ClosedCounts) -> None:
        """See `SourceCounter`."""
        self._closed = closed
        for begin, window in self.state.closed.items():
            self._add_visits(closed, begin, window)

    # -- what the clock decides

    def open_windows(self, now_ms: int, lists: Lists) -> None:
        """See `SourceCounter`."""
        state, clock = self.state, self.state.clock
        if not state.has_begun or self._is_waiting(Began, Parked, Accepted):
            return
        until = min(now_ms, state.last_look_ms) if state.parked else now_ms
        begin = max(self._opened_to, state.next_window)
        names = {measure.name for measure in self.source.measures}
        key = self._key_before(begin)
        while (opens := clock.opens_ms(begin)) <= until:
            listed = lists.at(opens)
            if listed is None or not names.issuperset(measure.name for measure in listed.measures):
                break
            window = state.windows.get(begin)
            goes_on = key and listed.visits and self._is_one_period(begin, listed)
            key = key if goes_on else self._draw_key()
            if window is None or not window.is_whole:
                self._queued += _openings(begin, key, listed)
            else:
                key = window.key
            begin += clock.window_ms
        self._opened_to = begin

    def _key_before(self, begin: int) -> bytes:
        """Return the key of the window before one, empty if it is not known."""
        before = begin - self.state.clock.window_ms
        entries = (one for one in (*self._flight, *self._queued) if isinstance(one, WindowOpened))
        if (queued := next((one.key for one in entries if one.window == before), None)) is not None:
            return queued
        window = self.state.windows.get(before) or self.state.closed.get(before)
        return b"" if window is None else window.key

    def _is_one_period(self, begin: int, listed: WindowList) -> bool:
        """Return whether a window and the one before are of the same datasets."""
        before, name = begin - self.state.clock.window_ms, listed.datasets[0]
        return self.source.dataset_at(before, name) == self.source.dataset_at(begin, name)

    # -- reading

    @property
    def pairs(self) -> int:
        """See `SourceCounter`."""
        return self.state.pairs + self._buffer.size

    def _has_room(self, limit: Look) -> bool:
        # All windows must be open of which there may be a record below the look: its append time is `FAR_AHEAD_MS`
        # after the look at most, and windows open longer before.
        return self._are_open(limit.taken_ms) and self._buffer.size < FULL and self._asking is None

    def _are_open(self, until_ms: int) -> bool:
        """Return whether the windows are open that open until a moment."""
        return self.state.clock.opens_ms(self.state.next_window) > until_ms

    def _take(self, partition: int, records: Records) -> int:
        limit, tick = self._limit, self.state.next_tick
        cut_at = self._cut_at(records, tick, limit) if limit.by_broker and limit.moment_ms > tick else None
        piece = records[:cut_at]
        room = max(FULL // len(self.source.measures), 1) if len(self.state.windows) < MANY else FEW
        count = min(self._reader.at_once(piece), room, len(piece))
        if count:
            self._count(partition, piece[:count], limit)
        if count == cut_at:
            self._is_cut.add(partition)
        return count

    # -- writing

    def _step(self, limit: Look) -> CounterStep | None:
        is_read = not self._unread(limit) and self._are_open(limit.moment_ms)
        if self._buffer.size >= FLUSH or (self._buffer.size and is_read):
            return self._fly(self._take_pairs())
        if is_read and limit.moment_ms >= self.state.next_tick and self.to_recall is None:
            self._asking = self._asking or self._ask(self.state.next_tick)
            return next(self._asking)
        if is_read and not self.state.is_read(limit):
            return self._fly((Read(self._positions()),))
        return None

    def stepped(self, offsets: Sequence[int]) -> None:
        """See `SourceCounter`."""
        is_over = any(isinstance(entry, Done | Parked) for entry in self._flight)
        super().stepped(offsets)
        if is_over:
            self._asking = None
            self._is_cut.clear()
        if is_over and self._closed is not None:
            if asked := self._asked():
                self._closed.forget_before(min(begin for begin, _ in asked))
            else:
                self._closed = None  # without end more windows would be kept

    # -- inside

    def _discard(self) -> None:
        self._buffer, self._opened_to, self._asking = _Buffer(), 0, None
        self._is_cut.clear()

    def _unread(self, limit: Look) -> dict[int, tuple[int, int]]:
        return {one: span for one, span in super()._unread(limit).items() if one not in self._is_cut}

    def _cut_at(self, records: Records, tick: int, limit: Look) -> int | None:
        """Return the index of the record at which the piece of a tick ends, None if it does not end among these.

        Records that are dropped for their time end no piece.
        """
        beyond = tick + max(PIECE_MS, 2 * limit.settle_ms)
        ends = records.stamped & (records.timestamp >= beyond) & ~self._is_far_ahead(records, limit)
        return int(ends.argmax()) if ends.any() else None

    def _is_far_ahead(self, records: Records, limit: Look) -> Mask:
        return records.stamped & (records.timestamp > limit.taken_ms + FAR_AHEAD_MS)

    def _count(self, partition: int, records: Records, limit: Look) -> None:
        """Put the keys of records into the buffer."""
        state, by_broker = self.state, records.stamped
        for window in state.windows.values():
            window.cells.register(self._reader)
        events = self._reader.read(records)
        fate = events.fate.copy()
        appended = np.where(by_broker, records.timestamp, limit.moment_ms - 1)
        # Brokers' timestamps say how far a piece is read: other records belong to the last tick of its look.
        last = state.clock.tick_after(limit.moment_ms - 1) if limit.by_broker else 0
        reading_for = np.where(by_broker, state.next_tick, max(state.next_tick, last))
        placed = state.clock.place(events.event_ms, appended, reading_for, by_broker)

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
        for placed_here in _by_value(placed.window, np.flatnonzero(fate == Fate.COUNTED)):
            begin = int(placed.window[placed_here[0]])
            opened = state.windows[begin]
            datasets, series = opened.cells.indexes(events, placed_here)
            fate[placed_here[series < 0]] = Fate.OTHER_SERIES
            fate[placed_here[datasets < 0]] = Fate.OTHER_DATASET
            listed = fate[placed_here] == Fate.COUNTED
            rows, cells = placed_here[listed], (datasets[listed], series[listed])
            hashes = opened.hash.of(buffer, start[rows], length[rows])
            self._keep(begin, cells, hashes, events.measures[rows], placed.tick[rows])
        for why, number in enumerate(np.bincount(fate, minlength=len(Fate)).tolist()):
            self.fates[Fate(why)] += number
        matching = events.measures[fate == Fate.COUNTED].sum(axis=0).tolist()
        for measure, number in zip(self.source.measures, matching, strict=True):
            self.measured[measure.name] = self.measured.get(measure.name, 0) + number

    def _keep(
        self, window: int, cells: tuple[Integers, Integers], hashes: Keys, matches: Mask, ticks: Integers
    ) -> None:
        """Put the keys of a window's events into the buffer: one for each measure of the source that an event matches.

        ``cells`` are the indexes of each event's dataset and series, ``ticks`` those from which on it counts.
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

    def _ask(self, tick: int) -> Iterator[CounterStep]:
        """Yield steps without entries, then the one that asks a tick."""
        state, counts = self.state, []
        for window in state.clock.queries_due(tick, state.windows):
            opened = state.windows[window]
            values = np.zeros(opened.cells.list.cells, np.int64)
            if (tally := opened.counted(tick)) is not None:
                for counted in tally.count_in_steps():
                    values = counted
                    yield CounterStep()
            counts.append((opened.cells.list, window, values))
        records = [records_of(self.source, *one[:2], tick, one[2]) for one in counts]
        for listed, window, values in counts:
            if state.clock.close_of(window) == tick:
                yield from self._count_visits(window)
            if (closed := self._closed) is not None and state.clock.close_of(window) == tick:
                self._close(closed, listed, window, values)
                for question in listed.questions:
                    answers = self._answers(closed, question, listed, window)
                    records.append(records_of_question(self.source, listed, question, window, tick, answers))
                    yield CounterStep()
        yield self._fly((state.done(tick, self._positions()),), chain.from_iterable(records))

    def _close(self, closed: ClosedCounts, listed: WindowList, window: int, values: Integers) -> None:
        """Keep the counts of a window that is asked for the last time."""
        names = [self.source.dataset_at(window, name) for name in listed.datasets]
        cells = values.reshape(len(names), len(listed.measures), -1)
        for dataset, of_dataset in zip(names, cells, strict=True):
            for measure, counts in zip(listed.measures, of_dataset, strict=True):
                closed.add(window, dataset, measure.name, listed.series, np.minimum(counts, HIGHEST))
        self._add_visits(closed, window, self.state.windows[window])

    def _count_visits(self, begin: int) -> Iterator[CounterStep]:
        """Yield steps that write which units count in a window that closes, for questions with visits."""
        state, window, length = self.state, self.state.windows[begin], self.state.clock.window_ms
        tally, entries = window.counted(state.clock.close_of(begin)), list[Entry]()
        if tally is None:
            return
        for visits in window.cells.list.visits:
            begins = range(begin - (visits.among - 1) * length, begin, length)
            counting = Counting(visits, window, (state.closed[one] for one in begins if one in state.closed))
            for part in range(PARTS):
                keys = counting.keys(part, tally.part(part))
                chunks = (keys[at : at + MAX_KEYS].tobytes() for at in range(0, len(keys), MAX_KEYS))
                entries += (Counted(begin, visits, part, one, at > 0) for at, one in enumerate(chunks))
                if len(entries) * MAX_KEYS >= FLUSH:
                    yield self._fly(tuple(entries))
                    entries = []
                elif len(keys) > _MANY_KEYS:
                    yield CounterStep()
        if entries:
            yield self._fly(tuple(entries))

    def _add_visits(self, closed: ClosedCounts, begin: int, window: OpenWindow) -> None:
        """Keep the counts of a closed window in which units count few times."""
        listed = window.cells.list
        shape = len(listed.datasets), len(listed.measures), len(listed.series)
        for visits in listed.visits:
            parts = window.counting.get(visits, [NO_KEYS])
            counts = np.bincount(cells_of(np.concatenate(parts)), minlength=listed.cells).reshape(shape)
            number = listed.index_of(visits.measure)
            for dataset, of_dataset in zip(listed.datasets, counts, strict=True):
                name = self.source.dataset_at(begin, dataset)
                closed.add(begin, name, visits.name, listed.series, of_dataset[number])

    def _answers(self, closed: ClosedCounts, question: Question, listed: WindowList, window: int) -> Values:
        def names(begin: int) -> list[str]:
            return [self.source.dataset_at(begin, name) for name in listed.datasets]

        window_ms = self.state.clock.window_ms
        return Asked(question, closed, names, listed.series, window_ms).about(window)


def _by_value(column: Integers, rows: Integers) -> list[Integers]:
    """Return some rows in groups of the same value in a column, in the order of these values."""
    if not len(rows):
        return []
    rows = rows[np.argsort(column[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(column[rows])) + 1)


def _openings(window: int, key: bytes, listed: WindowList) -> Iterator[WindowOpened]:
    """Yield the entries that open a window: several if its list is long."""
    each = 5 + sum(9 for one in listed.questions if one.thresholds)
    sizes = (len(name.encode(errors="surrogatepass")) + each for name in listed.series)
    parts = cut_rows(sizes, MAX_NAMES_BYTES)
    for number, (first, end) in enumerate(parts):
        yield WindowOpened(window, key, listed.part(first, end), number, len(parts))
