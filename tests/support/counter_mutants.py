"""Counters with one mistake each that breaks the guarantee or the counts, and the streams that show it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np

from stream_svt.queries.avro.records import schema_numbers
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
from tests.support.counter_play import Log
from tests.support.raw_streams import LONG_MS, RawTopic

Change = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        name: The mistake.
        owners, attribute: What is replaced: an attribute of each of these.
        change: What stands in its place; its first argument is what was there.
        histories: What the streams that show it are like.
        is_inexact: Whether it may be the counts alone that are wrong, on both streams alike.
    """

    name: str
    owners: tuple[object, ...]
    attribute: str
    change: Change
    histories: Mapping[str, Any]
    is_inexact: bool

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the mistake; what it keeps is forgotten at the end."""
        kept = deepcopy(self.change.__kwdefaults__)
        with ExitStack() as stack:
            for owner in self.owners:
                found = getattr(owner, self.attribute)
                made = _around(found, self.change)
                made = property(made) if isinstance(found, cached_property) else made
                stack.enter_context(patch.object(owner, self.attribute, made))
            stack.callback(setattr, self.change, "__kwdefaults__", kept)
            yield


def _around(found: object, change: Change) -> Any:
    def made(*given: Any, **more: Any) -> Any:
        return change(found, *given, **more)

    return made


MUTANTS: list[Mutant] = []


def mutant(
    name: str, *owners: object, at: str, is_inexact: bool = False, **histories: Any
) -> Callable[[Change], Change]:
    """List a mistake: the decorated function replaces an attribute, and gets what was there before its arguments."""

    def listed(change: Change) -> Change:
        MUTANTS.append(Mutant(name, owners, at, change, histories, is_inexact))
        return change

    return listed


# Ticks and windows


@mutant("the largest event time closes windows", TickClock, at="place")
def _(place, self, event_ms, *times, largest=[0]):  # noqa: B006  it is kept
    placed = place(self, event_ms, *times)
    largest[0] = max(largest[0], int(event_ms[event_ms < np.int64(2**50)].max(initial=0)))
    return replace(placed, late=placed.window + self.closes_after_ms <= largest[0])


@mutant("a record belongs to the tick that is asked next", TickClock, at="place", stamps="broker", ask="tick")
def _(place, self, event_ms, _, reading, stamped):
    return place(self, event_ms, reading - 1, reading, stamped)


_LATE = {"stamps": "producer", "outages": 6}


@mutant("a record belongs to the tick in which its look is", TickClock, at="place", is_inexact=True, **_LATE)
def _(place, self, event_ms, appended, reading, _):
    return place(self, event_ms, appended, reading)


@mutant(
    "ahead counts from the look on brokers' timestamps, too", Counter, at="_count", stamps="broker", outages=6
)
def _(count, self, partition, records, limit):
    place = TickClock.place

    def by_look(clock, *times):
        placed = place(clock, *times)
        return replace(placed, early=placed.window > limit.moment_ms + clock.ahead_ms)

    with patch.object(TickClock, "place", by_look):
        count(self, partition, records, limit)


# Queries


@mutant("only series that exist are asked", counters, at="records_of", wants={"series": {"field": "page"}})
def _(records_of, source, listed, window, tick, values):
    table = values.reshape(-1, len(listed.series))
    some = np.flatnonzero(table.any(axis=0))
    if len(some):
        few = WindowList(listed.datasets, listed.measures, tuple(listed.series[one] for one in some))
        yield from records_of(source, few, window, tick, table[:, some].ravel())


@mutant("a window is opened by its first record", TickClock, at="queries_due", others=(5, 15))
def _(queries_due, self, tick_ms, windows):
    return [begin for begin in queries_due(self, tick_ms, windows) if windows[begin].tallies]


@mutant(
    "a window gets the list of its counter's progress", Counter, at="open_windows",
    stamps="broker", outages=9, longer_ms=LONG_MS,
    wants={"every": "30s", "window": "2m", "ahead": "0s", "series": {"field": "page"}},
)  # fmt: skip
def _(open_windows, self, now_ms, lists):
    newest = [(0, lists._lists[-1])] if lists._lists else []
    open_windows(self, now_ms, Lists(newest, lists.known_to_ms))


@mutant("totals are in the ids", counters, at="records_of")
def _(records_of, source, listed, window, tick, values):
    for record in records_of(source, listed, window, tick, values):
        yield replace(record, headers=(*record.headers, ("id", str(values.sum()).encode())))


@mutant("offsets are in the ids", Counter, at="_ask")
def _(ask, self, tick):
    for step in ask(self, tick):
        named = ("id", str(self._positions()).encode())
        yield replace(step, counts=[replace(one, headers=(*one.headers, named)) for one in step.counts])


# When a tick is asked


@mutant("a tick is asked once one partition is read", Counter, at="_unread", stamps="broker")
def _(unread, self, limit):
    found = unread(self, limit)
    return {} if limit.moment_ms >= self.state.next_tick and len(found) < len(limit.ends) else found


@mutant("a tick is asked only if a record came since the last one", Counter, at="_ask", others=(5, 15))
def _(ask, self, tick):
    has_moved = self._positions() != getattr(self, "_asked_at", {})
    self._asked_at = self._positions()
    for step in ask(self, tick):
        yield step if has_moved else replace(step, counts=())


@mutant("looks take the last stable offset", RawTopic, at="spans")
def _(spans, self):
    return {one: (begin, self.stable_end(one)) for one, (begin, _) in spans(self).items()}


@mutant("a look is taken after the wait", Counter, at="look_due", stamps="producer")
def _(look_due, self, now_ms):
    return None if self.state.limit else look_due(self, now_ms)


@mutant("looks are lost at a takeover", Counter, at="open_windows", stamps="producer")
def _(open_windows, self, now_ms, lists):
    if not hasattr(self, "_is_new") and not self._is_waiting(Look):
        self._is_new = False
        looks = [one for one in self.state.queue if isinstance(one[1], Look)]
        if looks and not self.state.parked:
            self.state.queue.clear()
            self.state.looked_ms = looks[0][1].moment_ms - 1
    open_windows(self, now_ms, lists)


_DENSE = {"stamps": "broker", "outages": 9, "clock_changes": 80, "others": (200, 250), "unit": (200,)}


@mutant("a partition is cut at its first later record", Counter, at="_cut_at", ask="tick", **_DENSE)
def _(_, self, records, tick, limit):
    later = records.stamped & (records.timestamp >= tick) & ~self._is_far_ahead(records, limit)
    return int(later.argmax()) if later.any() else None


@mutant("a record that is dropped for its time ends a piece", Counter, at="_cut_at", far_ahead=1.0, **_DENSE)
def _(_, self, records, tick, limit):
    later = records.stamped & (records.timestamp >= tick + 60_000)
    return int(later.argmax()) if later.any() else None


@mutant("a partition that is missing is left out", Counter, at="look", stamps="broker", is_inexact=True)
def _(look, self, moment_ms, spans, topic_id, **more):
    ends = self.state.ends
    self.state.ends = {one: end for one, end in ends.items() if one in spans}
    look(self, moment_ms, spans, topic_id, **more)
    self.state.ends = ends


# Losses


@mutant("a record parks the source", Counter, at="_count")
def _(count, self, partition, records, limit):
    count(self, partition, records, limit)
    if self.fates[Fate.UNREADABLE] and not self.parked:
        self._queued.append(Parked(Park.COMPACTED, serves=False))


_GONE = {"loss": "topic-created-again", "stamps": "producer"}
_WAITING = {"loss": "compacted", "waits": 9}


@mutant("the first record left bounds a loss", Counter, at="_count", **_GONE)
def _(count, self, partition, records, limit):
    if self.state.jumps and not hasattr(self, "_is_bounded"):
        self._is_bounded = True
        begin = self.state.clock.window_at(int(records.timestamp[0])) + self.state.clock.window_ms
        self.state.first = max(begin, self.state.first)
    count(self, partition, records, limit)


@mutant("what waits at a loss is given up", Counter, at="accept_loss", **_WAITING)
def _(accept_loss, self, now_ms, spans, topic_id):
    accept_loss(self, now_ms, spans, topic_id)
    one = self._queued[-1]
    self._queued[-1] = Accepted(one.moment_ms, one.first, one.topic_id, one.offsets, clears=True)


@mutant("an accepted loss takes effect before the looks that wait", CounterState, at="_accept", **_WAITING)
def _(accept, self, offset, entry):
    accept(self, offset, entry)
    self.queue.rotate(1)


@mutant("ends of a topic that is gone bound what counts", CounterState, at="_jump", **_GONE)
def _(jump, self, accepted):
    floors = self.floors
    jump(self, accepted)
    self.floors = floors


@mutant(
    "older producers' timestamps count at the begin",
    CounterState,
    at="_stand",
    is_inexact=True,
    stamps="mixed",
)
def _(stand, self, standing):
    stand(self, standing)
    self.floors = {}


# What a unit adds


@mutant("a unit counts on each partition", Counter, at="_count")
def _(count, self, partition, records, limit):
    keep = Counter._keep

    def by_partition(self, window, cells, hashes, *more):
        keep(self, window, cells, hashes ^ np.uint64(partition), *more)

    with patch.object(Counter, "_keep", by_partition):
        count(self, partition, records, limit)


class _Sum:
    """Tallies whose counts are added."""

    def __init__(self, each):
        self._each = each

    def count_in_steps(self):
        yield sum(one.counts() for one in self._each)


@mutant("a unit counts in each tick", OpenWindow, at="counted", ask="tick")
def _(_, self, tick):
    due = [self.tallies[one] for one in sorted(self.tallies) if one <= tick]
    return _Sum(due) if due else None


@mutant("records are read again after a takeover", Counter, at="replay", stamps="broker")
def _(replay, self, offset, entry):
    if not isinstance(entry, Read):
        replay(self, offset, entry)


@mutant("copies of a key are not cut", counters, tallies, at="cut")
def _(_, keys, most):
    return keys


@mutant(
    "the hash is of undecoded bytes",
    EventReader,
    at="read",
    format="json",
    hostile=1.0,
    wants={"unit": "user"},
)
def _(read, self, records):
    pattern = re.compile(rb'"(?:user|\\u0075ser)": ("[^"]*"|[^,}]*)')
    found = [pattern.search(value or b"") for value in records.values()]
    parts = [one[1][:1000] if one else b"?" for one in found]
    length = np.array([*map(len, parts)], np.int64)
    unit = b"  " + b"".join(parts) + bytes(16), 2 + np.cumsum(length) - length, length
    return replace(read(self, records), unit=unit)


@mutant("a takeover draws a second hash key", OpenWindow, at="hash")
def _(_, self):
    self._anew = getattr(self, "_anew", None) or UnitHash(os.urandom(16))
    return self._anew


@mutant("memory has a limit at which records are dropped", Counter, at="_keep")
def _(keep, self, *given):
    if self.state.pairs + self._buffer.size < 20:
        keep(self, *given)


@mutant("every fifth record is left out", Counter, at="_keep")
def _(keep, self, window, cells, hashes, matches, ticks):
    first = getattr(self, "_kept", 0)
    self._kept = first + len(ticks)
    rows = (np.arange(len(ticks)) + first) % 5 > 0
    keep(self, window, tuple(one[rows] for one in cells), hashes[rows], matches[rows], ticks[rows])


# What can be read


@mutant("a record that cannot be read spoils its batch", EventReader, at="read", hostile=1.0)
def _(read, self, records):
    events = read(self, records)
    if (events.fate == Fate.UNREADABLE).any():
        events.fate[:] = Fate.UNREADABLE
    return events


_AVRO = {"format": "avro", "hostile": 1.0, "unit": (60,)}


@mutant("a schema that cannot be used drops also the records behind it", EventReader, at="read", **_AVRO)
def _(read, self, records):
    events = read(self, records)
    is_behind = np.maximum.accumulate(events.fate == Fate.UNUSABLE_SCHEMA)
    events.fate[is_behind] = Fate.UNUSABLE_SCHEMA
    return events


@mutant("a record that fails moves the next one's start", EventReader, at="_read_avro", **_AVRO)
def _(read_avro, self, records, number):
    failed = read_avro(self, records, number).fate == Fate.UNREADABLE
    moves = np.concatenate((failed[:1] & False, failed[:-1])).astype(np.int64)
    start, length = records.value_start + moves, records.value_length - moves
    return read_avro(self, replace(records, value_start=start, value_length=length), number)


@mutant("a record whose schema is refused is waited for", EventReader, at="lack", **_AVRO)
def _(lack, self, records):
    count, why = lack(self, records)
    refused = [number for number, schema in self._known.items() if schema is None]
    rows = np.flatnonzero(np.isin(schema_numbers(records[:count]), refused))
    return (int(rows[0]), "refused") if len(rows) else (count, why)


@mutant("that a schema was absent is known for ever", EventReader, at="forget_absences", **_AVRO)
def _(_, self):
    """Forget nothing."""


# What is durable


@mutant("the log is trimmed to its last tick", CounterState, at="_done", is_inexact=True)
def _(done, self, offset, entry):
    done(self, offset, entry)
    self.needed = offset


@mutant(
    "it is durable that records are read before their pairs are", Counter, at="_take_pairs", is_inexact=True
)
def _(take_pairs, self):
    *pairs, read = take_pairs(self)
    self._queued += pairs
    return (read,)


@mutant("pairs of a later tick count at once", Counter, at="_take_pairs", ask="tick", stamps="broker")
def _(take_pairs, self):
    tick, entries = self.state.next_tick, take_pairs(self)
    return tuple(Pairs(one.window, tick, one.keys) if isinstance(one, Pairs) else one for one in entries)


@mutant("a counter that another one replaced goes on writing", Log, at="refuses", is_inexact=True)
def _(_, self, counter):
    return False
