"""The counter of a source, step by step: what it reads, writes and refuses. Random histories are in test_neighbours."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.protocol.records import LOG_APPEND_TIME, Records
from stream_svt.settings.periods import EPOCH_MS
from stream_svt.settings.sources import ListedMeasure, SourceSpec, WindowList
from stream_svt.sources.counter import FAR_AHEAD_MS, FLUSH, FULL, Counter
from stream_svt.sources.events import Fate
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import (
    MAX_KEYS,
    Accepted,
    Began,
    Done,
    Entry,
    Look,
    Pairs,
    Park,
    Parked,
    Read,
    WindowOpened,
    decode,
    encode,
)
from stream_svt.sources.looks import CounterStep, Spans
from stream_svt.sources.ticks import OPENING_MS
from tests.support.counter_play import fingerprint, query_of

SECOND, MINUTE = 1_000, 60_000
T = EPOCH_MS + 20_000 * 86_400_000
"""Begin of a window."""
TOPIC = "one"


def source_of(**changes: object) -> SourceSpec:
    fields: dict[str, object] = {
        "name": "s",
        "topic": "raw",
        "unit": "user",
        "series": {"field": "page", "names": ["/", "/a"]},
        "time": {"field": "ts", "in": "ms"},
        "dataset": "web",
        "window": "1m",
        "lateness": "20s",
        "ahead": "30s",
        "every": "10s",
        "settle": "5s",
    }
    return SourceSpec.model_validate({key: one for key, one in (fields | changes).items() if one is not None})


class Raw:
    """A record as aiokafka returns it."""

    def __init__(self, offset: int, at: int, user: str, event: int, page: str, kind: int) -> None:
        self.offset, self.timestamp, self.timestamp_type, self.headers = offset, at, kind, ()
        self.key, self.value = None, json.dumps({"user": user, "page": page, "ts": event}).encode()


def records_at(*times: int, first: int = 0, kind: int = LOG_APPEND_TIME) -> Records:
    """Return records of different users at some moments, which are their own times, too."""
    each = enumerate(times, first)
    return Records.of([Raw(offset, at, f"u{offset}", at, "/", kind) for offset, at in each])


class Drive:
    """A counter with the log that it writes."""

    def __init__(self, source: SourceSpec | None = None, log: Sequence[tuple[int, bytes]] = ()) -> None:
        self.source = source or source_of()
        self.log, self.counts, self.drawn = list(log), [], 0
        self.steps: list[CounterStep] = []
        self.counter = Counter(self.source, self.draw)
        for offset, entry in self.log:
            self.counter.replay(offset, decode(entry))

    def draw(self) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(16, "big")

    def begin(self, spans: Spans, now: int = T, *, by_broker: bool = True) -> Drive:
        self.counter.begin(spans, now, by_broker=by_broker, topic_id=TOPIC)
        self.write()
        return self

    def write(self) -> list[Entry]:
        """Write all steps; return their entries."""
        found: list[Entry] = []
        while (step := self.counter.step()) is not None:
            self.steps.append(step)
            found += step.entries
            self.counts += step.counts
            if step.entries:
                self.counter.stepped(self.append(step.entries))
        return found

    def append(self, entries: Sequence[Entry]) -> list[int]:
        end = self.log[-1][0] + 2 if self.log else 5
        offsets = list(range(end, end + len(entries)))
        self.log += zip(offsets, map(encode, entries), strict=True)
        return offsets

    def look(
        self,
        now: int,
        spans: Spans,
        topic: str = TOPIC,
        lists: Lists | None = None,
        *,
        by_broker: bool = True,
    ) -> list[Entry]:
        """Open windows and take the look that is due; return what was written."""
        self.counter.open_windows(now, lists or Lists([(0, self.source.window_list())], now))
        found = self.write()
        if (moment := self.counter.look_due(now)) is not None:
            self.counter.look(moment, spans, topic, by_broker=by_broker)
            found += self.write()
        return found

    def fold(self, records: Records, until: int | None = None, partition: int = 0) -> int:
        return self.counter.fold(partition, records, int(records.offset[-1]) + 1 if until is None else until)

    def taken_over(self, *, trimmed: bool = False) -> Drive:
        needed = self.counter.needed_offset if trimmed else 0
        assert needed is not None
        return Drive(self.source, [one for one in self.log if one[0] >= needed])

    @property
    def fates(self) -> dict[Fate, int]:
        return {fate: count for fate, count in self.counter.fates.items() if count}

    @property
    def asked(self) -> list[tuple[int, tuple[int, ...]]]:
        """Ticks, in seconds after `T`, with their counts."""
        return [((one.timestamp_ms - T) // SECOND, query_of(one).values) for one in self.counts]


def looked(now: int, spans: Spans, source: SourceSpec | None = None) -> Drive:
    """Return a counter whose source has begun at `T`, and has taken a look."""
    drive = Drive(source).begin({0: (0, 0)})
    drive.look(now, spans)
    return drive


# The begin


def test_on_brokers_timestamps_a_source_begins_with_the_open_window_and_reads_back_by_ahead():
    drive = Drive()
    now = T + 25 * SECOND
    assert drive.counter.reads_back_to(now) == T - 30 * SECOND
    drive.begin({0: (3, 9)}, now)
    drive.look(T + 85 * SECOND, {0: (0, 9)})
    assert drive.counter.ranges() == {0: (3, 9)}
    times = [T - 40 * SECOND, T - 30 * SECOND, T, T + 1, T + 2, T + 3]
    drive.fold(Records.of([Raw(3 + n, at, f"u{n}", T, "/", LOG_APPEND_TIME) for n, at in enumerate(times)]))
    drive.write()
    assert drive.asked == [(80, (5, 0))], "the first is appended too long before"


def test_on_producers_timestamps_it_begins_at_the_ends_with_the_next_window():
    drive = Drive().begin({0: (3, 9)}, T + 25 * SECOND, by_broker=False)
    drive.look(T + 145 * SECOND, {0: (0, 12)}, by_broker=False)
    assert drive.counter.ranges() == {0: (9, 12)}
    drive.fold(records_at(T + 70 * SECOND, T + 30 * SECOND, T + 140 * SECOND, first=9, kind=0))
    drive.write()
    assert drive.asked == [(140, (1, 0))]
    assert drive.fates == {Fate.COUNTED: 2, Fate.NOT_ASKED: 1}


def test_records_from_before_the_begin_with_producers_timestamps_count_nothing():
    drive = Drive().begin({0: (0, 2)})
    drive.look(T + 85 * SECOND, {0: (0, 3)})
    drive.fold(records_at(T + 1, T + 2, T + 3, kind=0))
    assert drive.fates == {Fate.NOT_ASKED: 2, Fate.COUNTED: 1}


def test_a_source_begins_once():
    drive = Drive()
    drive.counter.open_windows(T, Lists([(0, drive.source.window_list())], T))
    assert drive.write() == [], "no window is opened before"
    assert not drive.counter.has_begun
    assert drive.counter.needed_offset is drive.counter.state.asked is None
    drive.counter.begin({}, T, by_broker=True, topic_id=TOPIC)
    assert drive.counter.has_begun
    with pytest.raises(MisuseError, match="has begun"):
        drive.counter.begin({}, T, by_broker=True, topic_id=TOPIC)


# Windows and lists


def test_windows_open_in_order_by_the_clock_with_the_list_applied_before_however_late():
    first, second = source_of(), source_of(series={"field": "page", "names": ["/b"]})
    changed = T - OPENING_MS + 40 * SECOND  # after the second window's time to open, and before the third's
    lists = Lists([(0, first.window_list()), (changed, second.window_list())], T + 60 * MINUTE)
    drive = Drive().begin({0: (0, 0)})
    drive.counter.open_windows(T + 60 * MINUTE, lists)
    opened = [one for one in drive.write() if isinstance(one, WindowOpened)]
    assert [one.window for one in opened[:4]] == [T, T + MINUTE, T + 2 * MINUTE, T + 3 * MINUTE]
    assert [one.list.series for one in opened[:4]] == [("/", "/a")] * 2 + [("/b",)] * 2
    assert opened[-1].window == T + 75 * MINUTE
    assert len({one.key for one in opened}) == len(opened) == 76


def test_a_window_is_not_opened_before_its_list_is_known_and_nothing_is_read_meanwhile():
    drive = Drive().begin({0: (0, 0)})
    behind = Lists([(0, drive.source.window_list())], T - OPENING_MS - 20 * SECOND)
    found = drive.look(T + 15 * SECOND, {0: (0, 5)}, lists=behind)
    assert [type(one) for one in found] == [WindowOpened, Look]
    assert drive.counter.ranges() == {}
    drive.look(T + 16 * SECOND, {0: (0, 5)})
    assert drive.counter.ranges() == {0: (0, 5)}


def test_a_list_with_a_measure_that_the_counter_does_not_know_waits_for_its_configuration():
    more = source_of(measures=[{"name": "units"}, {"name": "more"}])
    drive = Drive().begin({0: (0, 0)})
    lists = Lists([(0, more.window_list())], T)
    drive.counter.open_windows(T, lists)
    assert drive.write() == []
    drive.counter.adopt(more)
    drive.counter.open_windows(T, lists)
    assert drive.write()


def test_another_source_of_the_same_name_is_refused():
    with pytest.raises(MisuseError, match="another digest"):
        Drive().counter.adopt(source_of(unit="id"))


def test_lists_give_what_was_applied_last_before_a_moment_else_the_first():
    one, two = (WindowList(("",), (ListedMeasure("units", 1),), (name,)) for name in ("/", "/a"))
    lists = Lists([(10, one), (20, two)], 30)
    assert [lists.at(ms) for ms in (5, 10, 20, 21, 30)] == [one, one, one, two, two]
    assert lists.at(31) is None
    assert Lists([], 30).at(10) is None


def test_a_long_list_takes_entries_that_a_broker_takes_and_its_window_opens_with_the_last():
    names = [f"{number}{'x' * 200}" for number in range(5_000)]
    source = source_of(series={"field": "page", "names": names})
    drive = Drive(source).begin({0: (0, 0)})
    drive.counter.open_windows(T - OPENING_MS, Lists([(0, source.window_list())], T))
    first = drive.counter.step()
    assert first is not None
    [*parts] = first.entries
    assert all(len(encode(one)) < 500_000 for one in parts)
    assert len(parts) == 3
    drive.counter.stepped(drive.append(parts))
    [window] = drive.counter.state.windows.values()
    assert window.is_whole
    assert window.cells.list == source.window_list()
    # A process that ends between the parts leaves a window that was never used: it is opened anew, with another key.
    halved = Drive(source, drive.log[:-1])
    assert halved.counter.state.next_window == T
    halved.drawn = 7
    halved.counter.open_windows(T - OPENING_MS, Lists([(0, source.window_list())], T))
    halved.write()
    [again] = halved.counter.state.windows.values()
    assert (again.is_whole, again.key, again.cells.list) == (
        True,
        (8).to_bytes(16, "big"),
        source.window_list(),
    )


def test_windows_with_equal_lists_share_one_in_memory_after_a_takeover_too():
    drive = looked(T + 5 * SECOND, {0: (0, 0)})
    for state in (drive.counter.state, drive.taken_over().counter.state):
        assert len({id(window.cells) for window in state.windows.values()}) == 1
        assert len(state.windows) > 2


# Looks


def test_a_look_is_due_once_its_moment_is_passed_by_settle_and_only_the_latest_is_taken():
    drive = Drive().begin({0: (0, 0)})
    assert drive.counter.look_due(T + 14_999) is None
    assert drive.counter.look_due(T + 15_000) == T + 10_000
    assert drive.counter.look_due(T + 47_000) == T + 40_000
    drive.look(T + 47_000, {0: (0, 4)})
    assert drive.counter.look_due(T + 48_000) is None
    assert drive.counter.look_due(T + 55_000) == T + 50_000, "also while the look before waits"


def test_a_look_serves_once_it_is_durable():
    drive = looked(T + 5 * SECOND, {0: (0, 0)})
    drive.counter.look(T + 10 * SECOND, {0: (0, 4)}, TOPIC, by_broker=True)
    assert drive.counter.ranges() == {}
    assert drive.counter.look_due(T + 30 * SECOND) is None, "one at a time"
    drive.write()
    assert drive.counter.ranges() == {0: (0, 4)}


def test_looks_are_served_in_order_and_keep_their_records_after_a_takeover():
    drive = Drive(source_of(ask="tick")).begin({0: (0, 0)}, by_broker=False, now=T - 1)
    drive.look(T + 15 * SECOND, {0: (0, 1)}, by_broker=False)
    drive.look(T + 25 * SECOND, {0: (0, 2)}, by_broker=False)
    later = drive.taken_over()
    for one in (drive, later):
        assert one.counter.ranges() == {0: (0, 1)}
        one.fold(records_at(T + 1, T + 2, kind=0))
        one.write()
        assert one.counter.ranges() == {0: (1, 2)}
        one.fold(records_at(T + 1, T + 2, kind=0))
        one.write()
        assert one.asked == [(10, (1, 0)), (20, (2, 0))]


def test_a_partition_that_is_missing_blocks_the_tick_and_one_that_is_added_counts_from_its_begin():
    drive = Drive(source_of(ask="tick")).begin({0: (0, 0), 1: (0, 0)})
    assert not any(isinstance(one, Look) for one in drive.look(T + 15 * SECOND, {0: (0, 1)}))
    assert drive.counter.missing == (1,)
    [look] = drive.look(T + 16 * SECOND, {0: (0, 0), 1: (0, 0), 2: (7, 9)})[:1]
    assert look == Look(T + 10 * SECOND, {0: 0, 1: 0, 2: 9}, {2: 7}, 5 * SECOND, by_broker=True)
    assert drive.counter.missing == ()
    assert drive.counter.ranges() == {2: (7, 9)}


def test_what_is_above_a_look_is_left_even_if_it_is_offered():
    drive = looked(T + 15 * SECOND, {0: (0, 2)}, source_of(ask="tick"))
    records = records_at(T + 1, T + 2, T + 3)
    assert drive.fold(records) == 2
    assert drive.fold(records) == 2, "the tick is to be asked first"
    drive.write()
    drive.look(T + 25 * SECOND, {0: (0, 3)})
    assert drive.fold(records) == 3
    drive.write()
    assert drive.asked == [(10, (2, 0)), (20, (3, 0))]
    assert drive.counter.late_records == 1


def test_records_stamped_before_a_look_that_did_not_cover_them_are_told_of():
    drive = looked(T + 15 * SECOND, {0: (0, 1)})
    drive.fold(records_at(T + 9_999))
    drive.write()
    drive.look(T + 25 * SECOND, {0: (0, 4)})
    drive.fold(records_at(T + 9_999, T + 10_000, T + 1, first=1))
    assert drive.counter.late_records == 2
    assert drive.fates == {Fate.COUNTED: 4}, "the window is not closed"


def test_a_stamp_more_than_ten_minutes_after_its_look_is_dropped_with_the_settle_that_the_look_had():
    drive = looked(T + 15 * SECOND, {0: (0, 2)})
    drive.counter.adopt(source_of(settle="1s"))
    taken = T + 15 * SECOND
    each = [Raw(n, taken + FAR_AHEAD_MS + n, "u", T, "/", LOG_APPEND_TIME) for n in range(2)]
    drive.fold(Records.of(each))
    assert drive.fates == {Fate.LATE: 1, Fate.FAR_AHEAD: 1}


# Pieces


def test_behind_each_partition_is_read_to_the_first_record_a_minute_after_the_tick_and_found_again_after_a_takeover():
    drive = looked(T + 5 * SECOND, {0: (0, 0)}, source_of(ask="tick"))
    drive.look(T + 10 * MINUTE, {0: (0, 5)})
    times = (T + 1, T + 69_999, T + 2, T + 70_000, T + 80_000)
    for one in (drive, drive.taken_over()):
        assert one.fold(records_at(*times)) == 3
        assert one.counter.ranges() == {}
        one.write()
        assert one.asked[0] == (10, (2, 0))
        assert one.counter.state.asked == T + 10 * SECOND
        again = one.taken_over()
        assert again.counter.ranges() == {0: (3, 5)}
        assert again.fold(records_at(*times[3:], first=3)) == 4


def test_a_record_that_is_dropped_for_its_time_ends_no_piece_and_neither_does_a_producers_time():
    drive = looked(T + 5 * SECOND, {0: (0, 0)}, source_of(ask="tick"))
    drive.look(T + 10 * MINUTE, {0: (0, 3)})
    far = [
        Raw(0, T + 86_400_000, "a", T, "/", 1),
        Raw(1, T + 300_000, "b", T, "/", 0),
        Raw(2, T, "c", T, "/", 1),
    ]
    assert drive.fold(Records.of(far)) == 3


def test_on_producers_timestamps_a_backlog_is_read_whole_and_belongs_to_the_oldest_tick_that_waits():
    drive = Drive(source_of(ask="tick")).begin({0: (0, 0)}, T - 1, by_broker=False)
    drive.look(T + 15 * SECOND, {0: (0, 0)}, by_broker=False)
    drive.look(T + 10 * MINUTE, {0: (0, 2)}, by_broker=False)
    assert drive.fold(records_at(T + 1, T + 5 * MINUTE, kind=0)) == 2
    drive.write()
    assert drive.asked[:2] == [(10, (0, 0)), (20, (1, 0))]


# Transactions


def test_a_transaction_holds_at_most_8_mb_and_entries_of_at_most_60_000_keys_with_the_read_that_they_come_from():
    measures = [{"name": f"m{number}", "of": {"events": {"at_most": 2}}} for number in range(10)]
    drive = Drive(source_of(measures=measures)).begin({0: (0, 0)})
    count = 70_000
    drive.look(T + 85 * SECOND, {0: (0, count)})
    records = records_at(*[T + 1] * count)
    read, sizes = 0, []
    while read < count:
        read = drive.fold(records, count)
        assert drive.counter._buffer.size < FULL + FLUSH
        if (step := drive.counter.step()) is None:
            continue
        *pairs, last = step.entries
        assert last == Read({0: read})
        assert all(isinstance(one, Pairs) and len(one.keys) <= 8 * MAX_KEYS for one in pairs)
        sizes.append(sum(len(encode(one)) for one in step.entries))
        drive.counter.stepped(drive.append(step.entries))
    drive.write()
    assert max(sizes) < 8_000_000
    assert min(sizes[:-1]) > 8 * FLUSH, "transactions are not many"
    assert drive.asked == [(80, (count, 0))] * 10


def test_records_are_not_asked_for_while_too_many_keys_wait_for_their_transaction():
    measures = [{"name": f"m{number}"} for number in range(100)]
    drive = looked(T + 85 * SECOND, {0: (0, 9_000)}, source_of(measures=measures))
    records = records_at(*[T + 1] * 9_000)
    while drive.counter.ranges():
        read = drive.fold(records)
    assert read < 9_000
    assert drive.fold(records) == read
    drive.write()
    assert drive.counter.ranges() == {0: (read, 9_000)}


def test_reading_goes_on_while_a_transaction_is_written():
    drive = looked(T + 15 * SECOND, {0: (0, 2)})
    drive.look(T + 25 * SECOND, {0: (0, 4)})
    drive.fold(records_at(T + 1, T + 2))
    step = drive.counter.step()
    assert step is not None
    with pytest.raises(MisuseError, match="not durable"):
        drive.counter.step()
    drive.counter.stepped(drive.append(step.entries))
    drive.fold(records_at(T + 3, T + 4, first=2))
    drive.write()
    assert drive.counter.state.offsets == {0: 4}


def test_a_tick_is_asked_in_many_short_steps():
    drive = looked(T + 85 * SECOND, {0: (0, 1_000)})
    drive.fold(records_at(*[T + 1] * 1_000))
    steps = []
    while (step := drive.counter.step()) is not None:
        steps.append(step)
        if step.entries:
            drive.counter.stepped(drive.append(step.entries))
    kinds = [type(one) for step in steps for one in step.entries]
    assert kinds == [Pairs, Read, Done, Done], "at the close of the window before nothing is due"
    assert sum(not step.entries for step in steps) == 16, "one for each part of the tally"


def test_nothing_is_read_while_a_tick_is_asked_and_a_look_may_be_taken():
    drive = looked(T + 15 * SECOND, {0: (0, 1)}, source_of(ask="tick"))
    drive.fold(records_at(T + 1))
    entries: tuple[Entry, ...] = ()
    while Read not in map(type, entries):
        step = drive.counter.step()
        assert step is not None
        entries = step.entries
        drive.counter.stepped(drive.append(entries))
    assert drive.counter.step() == CounterStep()
    assert drive.counter.ranges() == {}
    drive.look(T + 25 * SECOND, {0: (0, 2)})
    assert drive.asked == [(10, (1, 0))]


# The log


def test_the_log_is_needed_from_the_opening_of_the_oldest_window_that_is_open():
    drive = Drive().begin({0: (0, 0)})
    for minute in range(30):
        drive.look(T + minute * MINUTE + 25 * SECOND, {0: (0, 0)})
    needed = drive.counter.needed_offset
    [first] = [decode(entry) for offset, entry in drive.log if offset == needed]
    assert isinstance(first, WindowOpened)
    assert first.window == T + 29 * MINUTE
    again = drive.taken_over(trimmed=True)
    assert fingerprint(again.counter.state) == fingerprint(drive.counter.state)
    assert again.counter.parked is None


def test_looks_that_are_over_are_not_served_again_although_the_log_still_has_them():
    # The topic that is created again ends below what the old looks saw; the first tick is asked after that.
    drive = looked(T + 15 * SECOND, {0: (0, 3)}, source_of(ahead="0s"))
    drive.fold(records_at(T + 1, T + 2, T + 3))
    drive.write()
    drive.look(T + 25 * SECOND, {0: (0, 1)}, "two")
    drive.counter.accept_loss(T + 26 * SECOND, {0: (0, 1)}, "two")
    drive.write()
    drive.look(T + 145 * SECOND, {0: (0, 1)}, "two")
    assert drive.counter.state.asked == T + 140 * SECOND
    again = drive.taken_over(trimmed=True)
    kinds = [type(decode(entry)) for _, entry in again.log]
    assert kinds.index(Look) < kinds.index(Done)
    assert Began not in kinds
    assert fingerprint(again.counter.state) == fingerprint(drive.counter.state)
    assert not again.counter.state.queue


def test_a_log_that_lacks_what_an_open_window_needs_parks_the_source():
    drive = looked(T + 85 * SECOND, {0: (0, 0)})
    assert drive.counter.needed_offset == drive.log[2][0], "of the second window"
    for lost in (3, len(drive.log) - 1, len(drive.log)):
        left = Drive(drive.source, drive.log[lost:])
        assert left.counter.parked is (Park.LOG_INCOMPLETE if lost < len(drive.log) else None)
        assert left.counter.has_begun is (lost < len(drive.log))
        assert left.counter.look_due(T + 200 * SECOND) is None


def test_after_an_incomplete_log_is_accepted_windows_are_opened_anew_with_other_keys():
    drive = looked(T + 85 * SECOND, {0: (0, 0)})
    left = Drive(drive.source, drive.log[3:])
    left.drawn = 1_000
    left.counter.accept_loss(T + 90 * SECOND, {0: (0, 7)}, TOPIC)
    left.write()
    found = left.look(T + 105 * SECOND, {0: (0, 7)})
    assert left.counter.parked is None
    first = min(one.window for one in found if isinstance(one, WindowOpened)) if found else None
    assert left.counter.state.first == T + 3 * MINUTE
    assert first is None or first >= T + 3 * MINUTE
    assert T + 3 * MINUTE in left.counter.state.windows


# Losses


PARKS = {
    Park.TOPIC_CREATED_AGAIN: ({0: (0, 9)}, "two"),
    Park.END_FELL: ({0: (0, 4)}, TOPIC),
    Park.RECORDS_LOST: ({0: (6, 9)}, TOPIC),
}


@pytest.mark.parametrize(("reason", "seen"), PARKS.items(), ids=str)
def test_a_source_parks_and_says_why_also_after_a_takeover(reason: Park, seen):
    drive = looked(T + 15 * SECOND, {0: (0, 5)})
    drive.fold(records_at(*[T + 1] * 5))
    drive.write()
    [parked] = drive.look(T + 25 * SECOND, *seen)
    assert parked == Parked(reason, serves=True)
    for one in (drive, drive.taken_over()):
        assert one.counter.parked is reason
        assert one.counter.look_due(T + 300 * SECOND) is None
        assert not one.look(T + 300 * SECOND, {0: (0, 9)}), "no window is opened either"


def test_records_of_a_partition_that_no_tick_has_read_yet_can_be_lost():
    drive = looked(T + 15 * SECOND, {0: (0, 1)})
    drive.look(T + 25 * SECOND, {0: (0, 1), 1: (2, 3)})
    found = drive.look(T + 35 * SECOND, {0: (0, 1), 1: (3, 3)})
    assert found[-1] == Parked(Park.RECORDS_LOST, serves=False)


def test_what_waits_for_a_transaction_is_asked_although_another_partition_fell():
    drive = Drive(source_of(ask="tick")).begin({0: (0, 0), 1: (0, 0)})
    drive.look(T + 15 * SECOND, {0: (0, 5), 1: (0, 1)})
    drive.fold(records_at(*[T + 1] * 5))
    drive.look(T + 25 * SECOND, {0: (0, 4), 1: (0, 1)})
    drive.counter.accept_loss(T + 30 * SECOND, {0: (0, 4), 1: (0, 1)}, TOPIC)
    drive.write()
    assert not drive.asked
    drive.fold(records_at(T + 2), partition=1)
    drive.write()
    assert drive.asked == [(10, (5, 0))], "users of both partitions have the same names"
    assert drive.counter.state.offsets == {0: 4, 1: 1}
    assert drive.counter.state.first == T + 2 * MINUTE


def test_what_cannot_be_read_any_more_is_not_waited_for():
    drive = looked(T + 15 * SECOND, {0: (0, 5)}, source_of(ask="tick"))
    drive.look(T + 25 * SECOND, {0: (2, 5)})
    assert drive.counter.parked is Park.RECORDS_LOST
    assert drive.counter.ranges() == {}
    assert drive.write() == []
    drive.counter.accept_loss(T + 30 * SECOND, {0: (2, 5)}, TOPIC)
    [accepted] = drive.write()
    assert accepted == Accepted(T + 40 * SECOND, T + 2 * MINUTE, TOPIC, {0: 5}, clears=True)
    assert drive.counter.look_due(T + 45 * SECOND) is None, (
        "the first look comes after the moment of acceptance"
    )
    drive.look(T + 145 * SECOND, {0: (2, 6)})
    drive.fold(records_at(T + 121 * SECOND, first=5))
    drive.write()
    assert drive.asked == [(130, (1, 0)), (140, (1, 0))]


def test_nothing_that_was_read_before_a_loss_is_taken_for_read_after_it():
    drive = looked(T + 5 * SECOND, {0: (0, 0)}, source_of(ask="tick"))
    drive.look(T + 5 * MINUTE, {0: (0, 5)})
    assert drive.fold(records_at(T + 1, T + 2 * MINUTE)) == 1, "its piece is read, and not durable"
    drive.counter.look(T + 6 * MINUTE, {0: (0, 5)}, "two", by_broker=True)
    found = drive.write()
    assert (found[0], drive.counter.parked) == (
        Parked(Park.TOPIC_CREATED_AGAIN, serves=False),
        found[0].reason,
    )
    drive.counter.accept_loss(T + 6 * MINUTE, {0: (0, 0)}, "two")
    drive.write()
    drive.look(T + 495 * SECOND, {0: (0, 1)}, "two")
    assert drive.counter.ranges() == {0: (0, 1)}
    drive.fold(records_at(T + 8 * MINUTE))
    drive.write()
    assert drive.asked[-1] == (490, (1, 0))


def test_before_each_look_the_registry_is_asked_again_for_schemas_that_it_lacked():
    asked = []
    drive = Drive().begin({0: (0, 0)})
    drive.counter._reader.forget_absences = lambda: asked.append(1)
    for number in range(1, 3):
        drive.look(T + (5 + 10 * number) * SECOND, {0: (0, 0)})
        assert len(asked) == number


def test_what_can_be_read_when_a_source_parks_may_be_lost_until_that_is_accepted():
    drive = Drive(source_of(ask="tick")).begin({0: (0, 0), 1: (0, 0)})
    drive.look(T + 15 * SECOND, {0: (0, 0), 1: (0, 3)})
    drive.counter.park(Park.COMPACTED)
    drive.write()
    drive.counter.accept_loss(T + 30 * SECOND, {0: (0, 0), 1: (1, 3)}, TOPIC)
    drive.write()
    assert not drive.counter.state.queue
    assert drive.counter.state.offsets == {0: 0, 1: 3}
    assert not drive.asked


def test_only_a_parked_source_has_a_loss_to_accept():
    drive = Drive().begin({0: (0, 0)})
    with pytest.raises(MisuseError, match="not parked"):
        drive.counter.accept_loss(T, {0: (0, 0)}, TOPIC)
    drive.counter.park(Park.COMPACTED)
    assert drive.counter.parked is Park.COMPACTED
    with pytest.raises(MisuseError, match="not parked"):
        drive.counter.accept_loss(T, {0: (0, 0)}, TOPIC)


# What is counted


def test_a_counter_tells_how_its_source_stands():
    drive = looked(T + 15 * SECOND, {0: (0, 3)})
    drive.fold(records_at(T + 1, T + 2, T + 3))
    state = drive.counter.state
    assert (state.asked, state.next_tick) == (None, T + 20 * SECOND), "the window before T is not asked"
    assert state.looked_ms == T + 10 * SECOND
    assert len(state.windows) == 16
    assert drive.counter.pairs == 3
    drive.write()
    assert drive.counter.pairs == 3


def test_each_event_meets_one_fate():
    drive = looked(T + 95 * SECOND, {0: (0, 6)})
    rows = [
        (T + 1, T + 1, "/"),
        (T + 1, T + 1, "/b"),
        (T + 80_000, T + 1, "/"),
        (T + 1, T + 10 * MINUTE, "/"),
        (T + 1, T - 1, "/"),
        (T + 79_999, T + 2, "/a"),
    ]
    records = [Raw(n, at, f"u{n}", event, page, LOG_APPEND_TIME) for n, (at, event, page) in enumerate(rows)]
    for _ in range(2):  # the first piece ends at the late one
        drive.fold(Records.of(records))
        drive.write()
    assert drive.asked == [(80, (1, 1))]
    assert drive.fates == {
        Fate.COUNTED: 2,
        Fate.OTHER_SERIES: 1,
        Fate.LATE: 1,
        Fate.EARLY: 1,
        Fate.NOT_ASKED: 1,
    }


def test_of_events_that_count_it_is_known_which_measures_they_match():
    measures = [
        {"name": "all"},
        {"name": "some", "where": {"user": ["u1"]}},
        {"name": "none", "where": {"usr": ["u1"]}},
    ]
    drive = looked(T + 15 * SECOND, {0: (0, 4)}, source_of(measures=measures))
    pages = ["/", "/", "/a", "/b"]  # the last one does not count
    drive.fold(
        Records.of([Raw(n, T + 1, f"u{n % 2}", T + 1, page, LOG_APPEND_TIME) for n, page in enumerate(pages)])
    )
    assert drive.fates == {Fate.COUNTED: 3, Fate.OTHER_SERIES: 1}
    assert drive.counter.measured == {"all": 3, "some": 1, "none": 0}


def test_a_tally_of_millions_of_pairs_is_taken_over_from_the_log():
    drive = looked(T + 5 * SECOND, {0: (0, 0)})
    keys = np.arange(300_000, dtype="<u8")
    parts = [Pairs(T, T + 80 * SECOND, part.tobytes()) for part in np.split(keys, 5)]
    drive.append([*parts, *parts])
    again = drive.taken_over()
    assert again.counter.state.pairs < 600_000, "copies are cut while they are merged"
    again.look(T + 85 * SECOND, {0: (0, 0)})
    assert again.asked == [(80, (300_000, 0))]
