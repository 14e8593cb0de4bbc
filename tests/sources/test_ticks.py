"""Where records belong: equal to a search through all ticks, windows and looks, one after the other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from stream_svt.settings.periods import EPOCH_MS
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.ticks import LOOKS_APART_MS, OPENING_MS, TickClock

HOUR = 3_600_000
LIMITS = [-(2**63), -(2**62), -(2**61), -1, 0, 2**61, 2**62, 2**63 - 1]


def clock(
    every: int, ticks: int, lateness: int = 0, ahead: int = 0, *, asks_ticks: bool = False
) -> TickClock:
    return TickClock(every, every * ticks, lateness, ahead, asks_ticks=asks_ticks)


def ends_of(length: int) -> Iterator[int]:
    """Yield the ends of ticks or windows of a length around `EPOCH_MS`, one by one."""
    return itertools.count(EPOCH_MS - 200 * length, length)


def clocks(count: int) -> Iterator[tuple[TickClock, random.Random]]:
    """Yield small clocks of all kinds, whose edges random times often hit."""
    for seed in range(count):
        chance = random.Random(seed)
        every = chance.randrange(1, 8)
        yield (
            clock(
                every,
                chance.randrange(1, 5),
                lateness=chance.randrange(20),
                ahead=chance.randrange(20),
                asks_ticks=chance.random() < 0.5,
            ),
            chance,
        )


def slow_place(ticks: TickClock, event: int, appended: int, reading_for: int) -> tuple[int, int, str]:
    """Return window, first tick that counts it, and fate of a record, by looking through ticks and windows."""
    window = max(itertools.takewhile(lambda begin: begin <= event, ends_of(ticks.window_ms)))
    close = next(
        end for end in ends_of(ticks.every_ms) if end >= window + ticks.window_ms + ticks.lateness_ms
    )
    belongs = next(end for end in ends_of(ticks.every_ms) if end > appended and end >= reading_for)
    asked = [end for end in range(window + ticks.every_ms, close + 1, ticks.every_ms) if ticks.asks_ticks]
    counting = next((end for end in [*asked, close] if end >= belongs), -1)
    if counting == -1:
        return window, counting, "late"
    return window, counting, "early" if window - appended > ticks.ahead_ms else "counted"


def test_records_belong_where_a_search_through_all_ticks_and_windows_finds_them():
    seen = set()
    for ticks, chance in clocks(300):
        events = [EPOCH_MS + chance.randrange(-40, 40) for _ in range(60)]
        appended = [event + chance.randrange(-40, 40) for event in events]
        reading_for = ticks.tick_after(EPOCH_MS + chance.randrange(-40, 40))
        placed = ticks.place(np.array(events), np.array(appended), reading_for)
        for row, (event, append) in enumerate(zip(events, appended, strict=True)):
            window, tick, fate = slow_place(ticks, event, append, reading_for)
            seen.add((ticks.asks_ticks, fate))
            assert placed.window[row] == window
            assert placed.late[row] == (fate == "late")
            if fate != "late":
                assert placed.early[row] == (fate == "early")
                assert placed.tick[row] == tick
    assert len(seen) == 6, "both ways of asking met every fate"


def test_a_record_without_a_brokers_time_belongs_to_the_next_tick_to_ask_however_late_its_look():
    ticks = clock(10, 6, lateness=20, ahead=30)
    event, look, tick = np.full(2, EPOCH_MS + 5), EPOCH_MS + 999, EPOCH_MS + 80
    placed = ticks.place(event, look, tick, np.array([True, False]))
    assert placed.late.tolist() == [True, False]
    ahead = ticks.place(np.full(2, EPOCH_MS + 119), EPOCH_MS + np.array([29, 30]), tick, np.zeros(2, bool))
    assert ahead.early.tolist() == [True, False]


def test_every_record_is_placed_as_if_it_were_alone():
    ticks, chance = clock(10_000, 360, lateness=60_000, ahead=600_000, asks_ticks=True), random.Random(1)
    events = np.array([chance.choice([chance.randrange(3 * HOUR), *LIMITS]) for _ in range(500)])
    appended = np.array([chance.choice([chance.randrange(3 * HOUR), *LIMITS]) for _ in range(500)])
    together = ticks.place(events, appended, 20_000)
    for row in range(500):
        alone = ticks.place(events[row : row + 1], int(appended[row]), 20_000)
        for column in ("window", "tick", "late", "early"):
            assert getattr(alone, column)[0] == getattr(together, column)[row]


@pytest.mark.parametrize("length", [1, 10_000, 86_400_000, 100 * 365 * 86_400_000])
def test_times_of_any_64_bits_are_placed_without_overflow(length: int):
    ticks = clock(length, 1, lateness=length, ahead=length, asks_ticks=True)
    both = list(itertools.product(LIMITS, repeat=2))
    placed = ticks.place(*np.array(both).T, EPOCH_MS + length)
    for row, times in enumerate(both):
        event, appended = (max(-(2**61), min(time, 2**61)) for time in times)
        window = (event - EPOCH_MS) // length * length + EPOCH_MS
        tick = max((appended - EPOCH_MS) // length * length + EPOCH_MS + length, EPOCH_MS + length)
        assert placed.window[row] == window
        assert placed.tick[row] == max(tick, window + length)
        assert placed.late[row] == (tick > window + 2 * length)
        assert placed.early[row] == (window > appended + length)


def test_lateness_is_rounded_up_to_the_end_of_a_tick():
    closes = [clock(10, 6, lateness=late).close_of(EPOCH_MS) - EPOCH_MS for late in (0, 1, 10, 11)]
    assert closes == [60, 70, 70, 80]


def test_a_window_opens_ahead_and_a_quarter_of_an_hour_before_its_begin():
    assert (
        clock(10_000, 360, ahead=600_000).opens_ms(HOUR) == HOUR - 600_000 - OPENING_MS == HOUR - 25 * 60_000
    )


def test_a_window_that_is_asked_at_its_close_has_one_query():
    ticks = clock(10, 6, lateness=15)
    assert [tick for tick in range(0, 200, 10) if ticks.is_asked(60, tick)] == [140]


def test_a_window_that_is_asked_at_ticks_has_all_from_its_begin_to_its_close():
    ticks = clock(10, 6, lateness=15, asks_ticks=True)
    assert [tick for tick in range(0, 200, 10) if ticks.is_asked(60, tick)] == list(range(70, 150, 10))


def test_a_record_is_first_counted_by_a_tick_at_which_its_window_is_asked():
    for ticks, chance in clocks(200):
        events = EPOCH_MS + np.array([chance.randrange(-40, 40) for _ in range(40)])
        placed = ticks.place(events, events + chance.randrange(-20, 20), ticks.tick_after(EPOCH_MS))
        counted = ~(placed.late | placed.early)
        for window, tick in zip(placed.window[counted], placed.tick[counted], strict=True):
            assert ticks.is_asked(int(window), int(tick))


def test_the_windows_due_at_a_tick_come_in_order():
    ticks = clock(10, 1, lateness=30, asks_ticks=True)
    assert ticks.queries_due(50, [20, 50, 0, 10, 30, 40]) == [10, 20, 30, 40]
    assert clock(10, 1, lateness=30).queries_due(50, [20, 50, 0, 10, 30, 40]) == [10]


def test_weeks_begin_on_mondays_and_days_at_midnight_in_utc():
    week, day = clock(86_400_000, 7), clock(HOUR, 24)
    wednesday = np.datetime64("2026-11-25T13:00", "ms").astype(int).item()
    assert np.datetime64(week.window_at(wednesday), "ms") == np.datetime64("2026-11-23")
    assert np.datetime64(day.window_at(wednesday), "ms") == np.datetime64("2026-11-25")


def test_looks_are_at_the_end_of_each_tick_and_at_most_ten_seconds_apart():
    for every in (1, 7_001, 10_000, 10_001, 15_000, 59_999, 60_000):
        ticks = clock(every, 1)
        moments = range(EPOCH_MS, EPOCH_MS + 2 * every + 1)
        looks = sorted({ticks.look_by(ms) for ms in moments})
        assert {EPOCH_MS, EPOCH_MS + every, EPOCH_MS + 2 * every} <= set(looks)
        assert len(looks) - 1 == 2 * -(-every // LOOKS_APART_MS), "no more than are needed"
        assert 0 < np.diff(looks).min() <= np.diff(looks).max() <= LOOKS_APART_MS
        behind = np.searchsorted(looks, moments, side="right")
        assert [ticks.look_by(ms) for ms in moments] == [looks[at - 1] for at in behind]


def test_the_clock_of_a_source_is_as_it_is_declared():
    written = {"name": "requests", "topic": "raw", "unit": "user", "dataset": "web", "ask": "tick"}
    durations = {"window": "1h", "every": "20s", "lateness": "50s", "ahead": "5m"}
    source = SourceSpec.model_validate(written | durations)
    assert TickClock.of(source) == TickClock(20_000, HOUR, 60_000, 300_000, asks_ticks=True)
