"""Counters with one mistake each that breaks the guarantee or the counts, and the streams that show it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_svt.settings.sources import WindowList
from stream_svt.sources import counter as counters
from stream_svt.sources import tally as tallies
from stream_svt.sources.counter import Counter
from stream_svt.sources.events import EventReader, Fate
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import Accepted, Look, Pairs, Park, Parked, Read
from stream_svt.sources.state import CounterState, OpenWindow
from stream_svt.sources.ticks import TickClock
from stream_svt.sources.units import UnitHash
from tests.support.raw_streams import LONG_MS, RawTopic

Change = tuple[object, str, Callable[..., Any]]
"""What is changed, the name of its attribute, and a function from the present value to the new one."""


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        name: The mistake.
        changes: How it is made.
        histories: What the streams that show it are like.
        is_inexact: Whether it may be the counts alone that are wrong, on both streams alike.
    """

    name: str
    changes: tuple[Change, ...]
    histories: Mapping[str, Any] = field(default_factory=dict)
    is_inexact: bool = False

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the mistake."""
        with ExitStack() as stack:
            for owner, name, change in self.changes:
                stack.enter_context(patch.object(owner, name, change(getattr(owner, name))))
            yield


MUTANTS: list[Mutant] = []


def mutant(
    name: str, owner: object, attribute: str, *, is_inexact: bool = False, **histories: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """List a mistake: the decorated function gets the present value, and returns the one with the mistake."""

    def listed(change: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS.append(Mutant(name, ((owner, attribute, change),), histories, is_inexact))
        return change

    return listed


# Ticks and windows


@mutant("the largest event time closes windows", TickClock, "place")
def _(place):
    largest: dict[str, int] = {}

    def by_events(self, event_ms, *times):
        placed = place(self, event_ms, *times)
        key = "ms"
        known = event_ms[event_ms < np.int64(2**50)]
        largest[key] = max(largest.get(key, 0), int(known.max(initial=0)))
        return replace(placed, late=placed.window + self.closes_after_ms <= largest[key])

    return by_events


@mutant("a record belongs to the tick that is asked next", TickClock, "place", stamps="broker", ask="tick")
def _(place):
    return lambda self, event_ms, _, reading, stamped: place(self, event_ms, reading - 1, reading, stamped)


@mutant(
    "a record belongs to the tick in which its look is",
    TickClock,
    "place",
    is_inexact=True,
    stamps="producer",
    outages=6,
)
def _(place):
    return lambda self, event_ms, appended, reading, _: place(self, event_ms, appended, reading)


@mutant(
    "ahead counts from the look on brokers' timestamps, too", Counter, "_count", stamps="broker", outages=6
)
def _(count):
    def counted(self, partition, records, limit):
        clock = self.state.clock
        place = TickClock.place

        def by_look(clock, *times):
            placed = place(clock, *times)
            return replace(placed, early=placed.window > limit.moment_ms + clock.ahead_ms)

        with patch.object(type(clock), "place", by_look):
            count(self, partition, records, limit)

    return counted


# Queries


@mutant("only series that exist are asked", counters, "records_of", wants={"series": {"field": "page"}})
def _(records_of):
    def existing(source, listed, window, tick, values):
        table = values.reshape(-1, len(listed.series))
        some = np.flatnonzero(table.any(axis=0))
        names = tuple(listed.series[one] for one in some)
        if names:
            few = WindowList(listed.datasets, listed.measures, names)
            yield from records_of(source, few, window, tick, table[:, some].ravel())

    return existing


@mutant("a window is opened by its first record", TickClock, "queries_due", others=(5, 15))
def _(queries_due):
    def with_records(self, tick_ms, windows):
        return [begin for begin in queries_due(self, tick_ms, windows) if windows[begin].tallies]

    return with_records


@mutant(
    "a window gets the list of its counter's progress",
    Counter,
    "open_windows",
    stamps="broker",
    outages=9,
    longer_ms=LONG_MS,
    wants={"every": "30s", "window": "2m", "ahead": "0s", "series": {"field": "page"}},
)
def _(open_windows):
    def by_progress(self, now_ms, lists):
        newest = [(0, lists._lists[-1])] if lists._lists else []
        open_windows(self, now_ms, Lists(newest, lists.known_to_ms))

    return by_progress


@mutant("totals are in the ids", counters, "records_of")
def _(records_of):
    def with_totals(source, listed, window, tick, values):
        for record in records_of(source, listed, window, tick, values):
            yield replace(record, headers=(*record.headers, ("id", str(values.sum()).encode())))

    return with_totals


@mutant("offsets are in the ids", Counter, "_ask")
def _(ask):
    def with_offsets(self, tick):
        for step in ask(self, tick):
            offsets = str(self._positions()).encode()
            yield replace(
                step,
                counts=[replace(one, headers=(*one.headers, ("id", offsets))) for one in step.counts],
            )

    return with_offsets


# When a tick is asked


@mutant("a tick is asked once one partition is read", Counter, "_unread", stamps="broker")
def _(unread):
    def of_fastest(self, limit):
        found = unread(self, limit)
        is_due = limit.moment_ms >= self.state.next_tick
        return {} if is_due and len(found) < len(limit.ends) else found

    return of_fastest


@mutant("a tick is asked only if a record came since the last one", Counter, "_ask", others=(5, 15))
def _(ask):
    def by_progress(self, tick):
        has_moved = self._positions() != getattr(self, "_asked_at", {})
        self._asked_at = self._positions()
        for step in ask(self, tick):
            yield step if has_moved else replace(step, counts=())

    return by_progress


@mutant("looks take the last stable offset", RawTopic, "spans")
def _(spans):
    return lambda self: {one: (begin, self.stable_end(one)) for one, (begin, _) in spans(self).items()}


@mutant("a look is taken after the wait", Counter, "look_due", stamps="producer")
def _(look_due):
    return lambda self, now_ms: None if self.state.limit else look_due(self, now_ms)


@mutant("looks are lost at a takeover", Counter, "open_windows", stamps="producer")
def _(open_windows):
    def forgetful(self, now_ms, lists):
        if not hasattr(self, "_is_new") and not self._is_waiting(Look):
            self._is_new = False
            looks = [one for one in self.state.queue if isinstance(one[1], Look)]
            if looks and not self.state.parked:
                self.state.queue.clear()
                self.state.looked_ms = looks[0][1].moment_ms - 1
        open_windows(self, now_ms, lists)

    return forgetful


_DENSE = {
    "stamps": "broker",
    "outages": 9,
    "clock_changes": 80,
    "others": (200, 250),
    "unit": (200,),
}


@mutant("a partition is cut at its first later record", Counter, "_cut_at", ask="tick", **_DENSE)
def _(_):
    def first_later(self, records, tick, limit):
        later = records.stamped & (records.timestamp >= tick) & ~self._is_far_ahead(records, limit)
        return int(later.argmax()) if later.any() else None

    return first_later


@mutant(
    "a record that is dropped for its time ends a piece", Counter, "_cut_at", **_DENSE | {"far_ahead": 1.0}
)
def _(_):
    def any_later(self, records, tick, limit):
        later = records.stamped & (records.timestamp >= tick + 60_000)
        return int(later.argmax()) if later.any() else None

    return any_later


@mutant("a partition that is missing is left out", Counter, "look", stamps="broker", is_inexact=True)
def _(look):
    def without(self, moment_ms, spans, topic_id, **more):
        ends = self.state.ends
        self.state.ends = {one: end for one, end in ends.items() if one in spans}
        look(self, moment_ms, spans, topic_id, **more)
        self.state.ends = ends

    return without


# Losses


@mutant("a record parks the source", Counter, "_count")
def _(count):
    def parking(self, partition, records, limit):
        count(self, partition, records, limit)
        if self.fates[Fate.UNREADABLE] and not self.parked:
            self._queued.append(Parked(Park.COMPACTED, serves=False))

    return parking


@mutant(
    "the first record left bounds a loss", Counter, "_count", loss="topic-created-again", stamps="producer"
)
def _(count):
    def bounding(self, partition, records, limit):
        if self.state.jumps and not hasattr(self, "_is_bounded"):
            self._is_bounded = True
            begin = self.state.clock.window_at(int(records.timestamp[0])) + self.state.clock.window_ms
            self.state.first = max(begin, self.state.first)
        count(self, partition, records, limit)

    return bounding


@mutant("what waits at a loss is given up", Counter, "accept_loss", loss="compacted", waits=9)
def _(accept_loss):
    def giving_up(self, now_ms, spans, topic_id):
        accept_loss(self, now_ms, spans, topic_id)
        accepted = self._queued[-1]
        self._queued[-1] = Accepted(
            accepted.moment_ms, accepted.first, accepted.topic_id, accepted.offsets, clears=True
        )

    return giving_up


@mutant(
    "an accepted loss takes effect before the looks that wait",
    CounterState,
    "_accept",
    loss="compacted",
    waits=9,
)
def _(accept):
    def at_once(self, offset, entry):
        accept(self, offset, entry)
        self.queue.rotate(1)

    return at_once


@mutant(
    "ends of a topic that is gone bound what counts",
    CounterState,
    "_jump",
    loss="topic-created-again",
    stamps="producer",
)
def _(jump):
    def keeping(self, accepted):
        floors = self.floors
        jump(self, accepted)
        self.floors = floors

    return keeping


@mutant(
    "older producers' timestamps count at the begin", CounterState, "_stand", is_inexact=True, stamps="mixed"
)
def _(stand):
    def without_floors(self, standing):
        stand(self, standing)
        self.floors = {}

    return without_floors


# What a unit adds


def _noting_partition(count):
    def noting(self, partition, records, limit):
        self._partition = np.uint64(partition)
        count(self, partition, records, limit)

    return noting


def _by_partition(keep):
    def by_partition(self, window, cells, hashes, matches, ticks):
        keep(self, window, cells, hashes ^ self._partition, matches, ticks)

    return by_partition


MUTANTS.append(
    Mutant(
        "a unit counts on each partition",
        ((Counter, "_count", _noting_partition), (Counter, "_keep", _by_partition)),
    )
)


class _Sum:
    """Tallies whose counts are added."""

    def __init__(self, each):
        self._each = each

    def count_in_steps(self):
        yield
        return sum(one.counts() for one in self._each)


@mutant("a unit counts in each tick", OpenWindow, "counted", ask="tick")
def _(counted):
    def each(self, tick):
        due = [self.tallies[one] for one in sorted(self.tallies) if one <= tick]
        return _Sum(due) if due else None

    return each


@mutant("records are read again after a takeover", Counter, "replay", stamps="broker")
def _(replay):
    def without_reads(self, offset, entry):
        if not isinstance(entry, Read):
            replay(self, offset, entry)

    return without_reads


def _uncut(_):
    return lambda keys, most: keys


MUTANTS.append(Mutant("copies of a key are not cut", ((counters, "cut", _uncut), (tallies, "cut", _uncut))))


@mutant("the hash is of undecoded bytes", EventReader, "read", hostile=1.0, wants={"unit": "user"})
def _(read):
    pattern = re.compile(rb'"(?:user|\\u0075ser)": ("[^"]*"|[^,}]*)')

    def undecoded(self, records):
        events = read(self, records)
        parts, start, length, at = [b"  "], [], [], 2
        for value in records.values():
            found = pattern.search(value or b"")
            part = found[1][:1000] if found else b"?"
            parts.append(part)
            start.append(at)
            length.append(len(part))
            at += len(part)
        unit = b"".join([*parts, bytes(16)]), np.array(start, np.int64), np.array(length, np.int64)
        return replace(events, unit=unit)

    return undecoded


@mutant("a takeover draws a second hash key", OpenWindow, "hash")
def _(_):
    known: dict[int, UnitHash] = {}

    def anew(self):
        return known.setdefault(id(self), UnitHash(os.urandom(16)))

    return property(anew)


@mutant("memory has a limit at which records are dropped", Counter, "_keep")
def _(keep):
    def limited(self, window, cells, hashes, matches, ticks):
        if self.state.pairs + self._buffer.size < 20:
            keep(self, window, cells, hashes, matches, ticks)

    return limited


@mutant("every fifth record is left out", Counter, "_keep")
def _(keep):
    def sampled(self, window, cells, hashes, matches, ticks):
        first = getattr(self, "_kept", 0)
        self._kept = first + len(ticks)
        rows = (np.arange(len(ticks)) + first) % 5 > 0
        some = tuple(one[rows] for one in cells)
        keep(self, window, some, hashes[rows], matches[rows], ticks[rows])

    return sampled


@mutant("a record that cannot be read spoils its batch", EventReader, "read", hostile=1.0)
def _(read):
    def spoilt(self, records):
        events = read(self, records)
        if (events.fate == Fate.UNREADABLE).any():
            events.fate[:] = Fate.UNREADABLE
        return events

    return spoilt


# What is durable


@mutant("the log is trimmed to its last tick", CounterState, "_done", is_inexact=True)
def _(done):
    def forgetting(self, offset, entry):
        done(self, offset, entry)
        self.needed = offset

    return forgetting


@mutant("it is durable that records are read before their pairs are", Counter, "_take_pairs", is_inexact=True)
def _(take_pairs):
    def apart(self):
        *pairs, read = take_pairs(self)
        self._queued += pairs
        return (read,)

    return apart


@mutant("pairs of a later tick count at once", Counter, "_take_pairs", ask="tick", stamps="broker")
def _(take_pairs):
    def at_once(self):
        tick = self.state.next_tick
        return tuple(
            Pairs(one.window, tick, one.keys) if isinstance(one, Pairs) else one for one in take_pairs(self)
        )

    return at_once
