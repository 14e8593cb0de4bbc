"""The state of a counter: the fold of the durable entries of its event log, and nothing else.

`CounterState.apply` is the only way in. A new owner applies the entries from the log, the present one applies them once
they are durable: so both have the same state, whenever one takes over from the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from stream_svt.columns.query_batch import Integers
from stream_svt.settings.questions import Visits
from stream_svt.settings.sources import WindowList
from stream_svt.sources.log import (
    Accepted,
    Began,
    Counted,
    Done,
    Entry,
    Look,
    Offsets,
    Pairs,
    Park,
    Parked,
    Read,
    Standing,
    WindowOpened,
)
from stream_svt.sources.tally import NO_KEYS, PARTS, Keys, Tally
from stream_svt.sources.ticks import TickClock
from stream_svt.sources.units import UnitHash

if TYPE_CHECKING:
    from stream_svt.sources.events import EventReader, Events

_NEVER: Final = -(1 << 62)


class Cells:
    """The cells of a list: their numbers, and how much of one unit each counts."""

    def __init__(self, listed: WindowList) -> None:
        self.list = listed
        self._reader: EventReader | None = None
        self._dataset = self._series = np.empty(0, np.int64)

    @cached_property
    def most(self) -> Integers:
        """The most that one unit adds, by cell."""
        each = np.array([measure.at_most for measure in self.list.measures], np.int64)
        return np.tile(np.repeat(each, len(self.list.series)), len(self.list.datasets))

    @cached_property
    def among(self) -> int:
        """In how many windows, from its own on, later ones look its units up, or read its counts of visits."""
        return self.list.remembered + 1 if self.list.visits else 0

    def numbers_in(self, other: Cells) -> Integers:
        """Return for each cell the number of the same one in another list, -1 for none."""
        known = {name: number for number, name in enumerate(other.names())}
        return np.array([known.get(name, -1) for name in self.names()], np.int64)

    def names(self) -> Iterator[tuple[str, str, str]]:
        """Yield dataset, measure and series of each cell, in order."""
        measures = (measure.name for measure in self.list.measures)
        return product(self.list.datasets, measures, self.list.series)

    def register(self, reader: EventReader) -> None:
        """Ask a reader for the codes of all names, before it reads."""
        if self._reader is not reader:
            self._reader = reader
            self._dataset, self._series = (
                _inverse([reader.code(name) for name in names])
                for names in (self.list.datasets, self.list.series)
            )

    def indexes(self, events: Events, rows: Integers) -> tuple[Integers, Integers]:
        """Return the index of the dataset of some events, and of their series, in the list; -1 for others."""
        return _at(self._dataset, events.dataset[rows]), _at(self._series, events.series[rows])


def _inverse(codes: list[int]) -> Integers:
    """Return the index of each code among some, -1 for others; last is the one of larger codes and of -1."""
    index = np.full(max(codes) + 2, -1, np.int64)
    index[codes] = np.arange(len(codes))
    return index


def _at(index: Integers, codes: Integers) -> Integers:
    return index[np.minimum(codes, len(index) - 1)]


@dataclass
class OpenWindow:
    """A window between its opening and its close.

    Attributes:
        offset: Offset of its first entry.
        key: Key of its units' hash.
        is_whole: Whether all parts of its list are there.
        tallies: Its pairs, by the tick from which on they count.
        counting: Once it is closed, the keys that count by parts, where later windows look them up.
    """

    offset: int
    key: bytes
    cells: Cells
    is_whole: bool
    tallies: dict[int, Tally] = field(default_factory=dict)
    counting: dict[Visits, list[Keys]] = field(default_factory=dict)

    @cached_property
    def hash(self) -> UnitHash:
        """The hash of its units."""
        return UnitHash(self.key)

    def tally(self, tick: int) -> Tally:
        """Return the tally of the pairs that count from a tick on."""
        if tick not in self.tallies:
            self.tallies[tick] = Tally(self.cells.most)
        return self.tallies[tick]

    def counted(self, tick: int) -> Tally | None:
        """Return the tally of all pairs that count at a tick, None without any; no pairs of it may come later."""
        due = sorted(each for each in self.tallies if each <= tick)
        for each in due[1:]:
            self.tallies[due[0]].merge(self.tallies.pop(each))
        return self.tallies[due[0]] if due else None


class CounterState:
    """The durable state of a source's counter.

    Attributes:
        clock: Ticks and windows of the source.
        has_begun: Whether the source began, as far as the log tells.
        oldest: Offset of the oldest entry that was applied.
        needed: Offset of the oldest entry that is needed.
        asked: The newest tick that was asked, None before the first.
        first: Begin of the first window that is asked.
        next_window: Begin of the next window to open.
        windows: Windows by their begin, opened and not yet asked for the last time.
        closed: Those asked for the last time whose units later ones look up.
        offsets: For each partition the offset up to which its records are folded.
        queue: Looks that are not served yet, with their offsets in the log; and among them accepted losses, which take
            effect in their turn. The first look is the limit of reading.
        jumps: Number of accepted losses that took effect.
        served_ms: Moment of the newest look of which all records are folded, long ago before the first.
    """

    def __init__(self, clock: TickClock) -> None:
        self.clock = clock
        self.has_begun = False
        self.oldest: int | None = None
        self.needed: int | None = None
        self.asked: int | None = None
        self.topic_id = ""
        self.first, self.next_window, self.looked_ms = 0, 0, 0
        self.ends: Offsets = {}
        self.offsets: Offsets = {}
        self.floors: Offsets = {}
        self.windows: dict[int, OpenWindow] = {}
        self.closed: dict[int, OpenWindow] = {}
        self.queue: deque[tuple[int, Look | Accepted]] = deque()
        self.jumps = 0
        self.served_ms = _NEVER
        self._park: tuple[int, Parked] | None = None
        self._is_incomplete = False

    @property
    def parked(self) -> Park | None:
        """Why the source is parked, None if it is not."""
        if self._is_incomplete or (self.oldest is not None and not self.has_begun):
            return Park.LOG_INCOMPLETE
        return self._park and self._park[1].reason

    @property
    def serves(self) -> bool:
        """Whether what the looks cover is read and asked: parked, a source may still serve the looks before."""
        return self.parked is not Park.LOG_INCOMPLETE and (self._park is None or self._park[1].serves)

    @property
    def next_tick(self) -> int:
        """The next tick to ask."""
        clock, after = self.clock, max(self.first, _NEVER if self.asked is None else self.asked)
        if clock.asks_ticks:
            return clock.tick_after(after)
        return clock.close_of(clock.window_at(after - clock.closes_after_ms) + clock.window_ms)

    @property
    def limit(self) -> Look | None:
        """The look up to which records may be read, None if there is none."""
        return self.queue[0][1] if self.queue and isinstance(self.queue[0][1], Look) else None

    @property
    def last_look_ms(self) -> int:
        """When the last look was taken that is not served yet, long ago if there is none."""
        return max((one.taken_ms for _, one in self.queue if isinstance(one, Look)), default=_NEVER)

    @property
    def pairs(self) -> int:
        """Pairs of all open windows."""
        return sum(tally.pairs for window in self.windows.values() for tally in window.tallies.values())

    def done(self, tick: int, offsets: Offsets) -> Done:
        """Return the entry that says that a tick is asked, and that records are folded up to some offsets."""
        looks = self.queue[0][0] if self.queue else None
        needed = [one.offset for begin, one in self.windows.items() if self.clock.close_of(begin) > tick]
        needed += [one.offset for one in self._remembered(tick).values()]
        needed += [one for one in (looks, self._park and self._park[0]) if one is not None]
        standing = Standing(
            topic_id=self.topic_id,
            first=self.first,
            next_window=self.next_window,
            looked_ms=self.looked_ms,
            ends=dict(self.ends),
            offsets=offsets,
            floors=dict(self.floors),
        )
        return Done(tick, min(needed, default=None), looks, standing)

    def apply(self, offset: int, entry: Entry) -> None:
        """Apply the durable entry at an offset of the log; in the order of offsets, from any offset on."""
        if self.oldest is None:
            self.oldest = self.needed = offset
        match entry:
            case Began():
                self._stand(entry.standing)
                self.has_begun = True
            case WindowOpened():
                self._open(offset, entry)
            case Look():
                self.looked_ms, self.ends = entry.moment_ms, dict(entry.ends)
                self.queue.append((offset, entry))
            case Pairs():
                if entry.window in self.windows:  # else the window is over, and its opening deleted
                    tally = self.windows[entry.window].tally(entry.tick)
                    tally.add(np.frombuffer(entry.keys, "<u8"))
            case Counted():
                if entry.window in self.windows:
                    parts = self.windows[entry.window].counting.setdefault(entry.visits, [NO_KEYS] * PARTS)
                    keys = np.frombuffer(entry.keys, "<u8")
                    before = parts[entry.part] if entry.goes_on else NO_KEYS
                    parts[entry.part] = np.concatenate((before, keys))
            case Read():
                self.offsets = dict(entry.offsets)
            case Done():
                self._done(offset, entry)
            case Parked():
                self._park = offset, entry
                if not entry.serves:
                    self.queue.clear()
            case Accepted():
                self._accept(offset, entry)
        if self.has_begun:
            self._advance()

    def is_read(self, look: Look) -> bool:
        """Return whether all that a look covers is folded."""
        return all(self.offsets.get(partition, 0) >= end for partition, end in look.ends.items())

    def _stand(self, standing: Standing) -> None:
        self.topic_id, self.first, self.next_window = standing.topic_id, standing.first, standing.next_window
        self.looked_ms, self.ends = standing.looked_ms, dict(standing.ends)
        self.offsets, self.floors = dict(standing.offsets), dict(standing.floors)

    def _open(self, offset: int, entry: WindowOpened) -> None:
        window = self.windows.get(entry.window)
        listed = entry.list
        if entry.part == 0 or window is None:
            window = self.windows[entry.window] = OpenWindow(offset, entry.key, Cells(listed), is_whole=False)
        else:
            window.cells = Cells(window.cells.list.continued(listed))
        if entry.part + 1 == entry.parts:
            window.is_whole = True
            # Most windows have the list of another: they share it.
            same = (one.cells for one in self.windows.values() if one.cells.list == window.cells.list)
            window.cells = next(same)
            self.next_window = max(self.next_window, entry.window + self.clock.window_ms)

    def _done(self, offset: int, entry: Done) -> None:
        self._stand(entry.standing)
        self.asked, self.has_begun = entry.tick, True
        needed = self.needed = offset if entry.needed is None else entry.needed
        # Of what came before only some entries may be left in the log: what they say may be over.
        looks = offset if entry.looks is None else entry.looks
        self.queue = deque(one for one in self.queue if one[0] >= looks)
        self._park = self._park if self._park and self._park[0] >= needed else None
        self._is_incomplete = self.oldest is None or needed < self.oldest
        self.closed = self._remembered(entry.tick)
        for begin, window in list(self.windows.items()):
            is_over = window.offset < needed or begin < self.first
            if is_over or self.clock.close_of(begin) <= entry.tick:
                del self.windows[begin]
                window.tallies.clear()
            else:
                window.counted(entry.tick)

    def _remembered(self, tick: int) -> dict[int, OpenWindow]:
        """Return the closed windows, once a tick is asked, whose units later ones look up."""
        clock = self.clock
        asked = {begin: one for begin, one in self.windows.items() if clock.close_of(begin) <= tick}
        last = clock.window_at(tick - clock.closes_after_ms)
        return {
            begin: one
            for begin, one in (self.closed | asked).items()
            if begin > last - (one.cells.among - 1) * clock.window_ms
        }

    def _accept(self, offset: int, entry: Accepted) -> None:
        if entry.clears:
            self.queue.clear()
            self.has_begun = True
        self._park, self._is_incomplete = None, False
        self.topic_id, self.ends = entry.topic_id, dict(entry.offsets)
        self.looked_ms = max(self.looked_ms, entry.moment_ms)
        self.queue.append((offset, entry))

    def _advance(self) -> None:
        """Leave the looks that are served, and let accepted losses take effect."""
        while self.queue:
            head = self.queue[0][1]
            if isinstance(head, Accepted):
                self._jump(head)
            else:
                for partition, begin in head.begins.items():
                    self.offsets.setdefault(partition, begin)
                if head.moment_ms >= self.next_tick or not self.is_read(head):
                    return
                self.served_ms = head.moment_ms
            self.queue.popleft()

    def _jump(self, accepted: Accepted) -> None:
        """Go on at the ends, without the windows that begin too early."""
        self.jumps += 1
        self.offsets, self.floors = dict(accepted.offsets), {}
        self.first = max(self.first, accepted.first)
        self.windows = {begin: one for begin, one in self.windows.items() if begin >= self.first}
        self.next_window = self.first
        while self.next_window in self.windows and self.windows[self.next_window].is_whole:
            self.next_window += self.clock.window_ms
