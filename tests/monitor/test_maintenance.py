"""In maintenance nothing is tested: by public times alone, whatever is read when, and whatever the values are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.takeover import change_spec
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.maintenance import Maintenance
from stream_svt.settings.monitors import MonitorSpec, effects
from tests.support.counts import HOUR_MS, SOURCE, VISITORS, WINDOW_MS, Counts, counting
from tests.support.counts import TOPIC as COUNTS
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import (
    FORMS,
    TOPIC,
    assert_same,
    counts,
    interrupted,
    spec_of,
    stream,
    transcript,
    uninterrupted,
)
from tests.support.settings import monitor

SPANS = [(0, 3_000), (9_000, 10_000)]
"""Seconds of 1970 in which the streams of these tests have maintenance, in ms."""
RESTING = (
    ", maintenance: [{from: 1970-01-01T00:00:00Z, until: 1970-01-01T00:00:03Z}, "
    "{from: 1970-01-01T00:00:09Z, until: 1970-01-01T00:00:10Z}]"
)
NOBODY = "nobody"
"""A monitor that does not exist: a row for it alone is read by all others, and tested by none."""


def rests(query: Query) -> bool:
    return not query.closes and any(begin <= query.time_ms < end for begin, end in SPANS)


def without(queries: Sequence[Query], first: int = 0) -> list[Query]:
    """Return the queries with those in maintenance, from an offset on, for nobody."""
    return [
        replace(one, monitor=NOBODY) if at >= first and rests(one) else one for at, one in enumerate(queries)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_exactly_the_queries_stamped_in_maintenance_are_not_tested(form):
    queries = stream(7, 1200, monitors=["m0", "other"])
    play, expected = (
        uninterrupted(spec_of(FORMS[form] + more), given)
        for more, given in ((RESTING, queries), ("", without(queries)))
    )
    assert transcript(play) == transcript(expected)
    assert counts(play)[0] == counts(expected)[0]
    skipped = sum(rests(one) and one.monitor in (None, "m0") for one in queries)
    assert skipped > 100
    assert counts(play)[1] == counts(expected)[1] + Counter({("m0", "maintenance"): skipped})
    assert transcript(play) != transcript(uninterrupted(spec_of(FORMS[form]), queries))


@pytest.mark.parametrize("form", FORMS)
def test_any_batching_and_any_crashes_test_the_same(form):
    spec, queries = spec_of(FORMS[form] + RESTING), stream(7, 1200, monitors=["m0", "other"])
    expected = uninterrupted(spec, queries)
    for seed in range(2):
        assert_same(interrupted(spec, queries, random.Random(seed).randrange), expected)


@pytest.mark.parametrize("form", ["plain", "sweep", "retry by clock", "resampled"])
@pytest.mark.parametrize("declares", [True, False], ids=["declared", "removed"])
def test_a_change_changes_nothing_that_was_tested_before_it(form, declares):
    """What was tested, and not committed, is tested again as it was; the change holds from its commit on."""
    queries, plain, resting = stream(5, 900), spec_of(FORMS[form]), spec_of(FORMS[form] + RESTING)
    old, new = (plain, resting) if declares else (resting, plain)
    for seed in range(4):
        rng = random.Random(seed)
        middle = rng.randrange(250, 650)
        play = Play(old)
        play.feed(TOPIC, queries, middle // 2)
        play.commit()
        play.feed(TOPIC, queries, middle)
        play.crash()
        play.take_over(new)  # the stored specification holds until the replay is over
        play.feed(TOPIC, queries, middle)
        change_spec(play.engine, new)
        play.commit()
        play.crash()
        play.feed(TOPIC, queries, len(queries))
        play.commit()
        given = without(queries, middle) if declares else [*without(queries)[:middle], *queries[middle:]]
        ours, expected = transcript(play), transcript(uninterrupted(plain, given))
        ours["", "m0"] = [line for line in ours["", "m0"] if line[0] != "SPEC_CHANGED"]
        assert {key: lines for key, lines in ours.items() if lines} == expected


def test_a_change_keeps_open_runs_and_has_another_digest():
    rested = monitor(maintenance=[{"every": "Sun 02:00-04:00"}])
    assert effects(monitor(), rested) == []
    assert rested.hash() != monitor().hash()
    assert monitor(maintenance=()).hash() == monitor().hash()
    assert "maintenance" not in monitor().to_json()
    assert MonitorSpec.from_json(rested.to_json()) == rested
    assert rested.needs_broker_time
    assert not monitor().needs_broker_time


# Counts


INDEX = DatasetIndex(["a", "b", "c"], partition=0, partitioning=Partitioning(1, "murmur2"))


def counted(more: str, source: str = SOURCE) -> ApplicationSpec:
    return counting(
        f"{VISITORS}, max_runs: off{more}", source=source, datasets="{names: [a, b, c], limit: 9999}"
    )


def moment(hours: float) -> str:
    return f"{datetime.fromtimestamp(WINDOW_MS / 1000, UTC) + timedelta(hours=hours):%Y-%m-%dT%H:%M}Z"


def windows_tested(spec: ApplicationSpec, most: int = 12) -> set[int]:
    """Return the hours whose windows are tested, of twelve whose values are far above the threshold."""
    (source,) = spec.sources
    ticks = [HOUR_MS + 60_000] if source.ask == "close" else [600_000, HOUR_MS + 60_000]
    records = [
        Counts(source, "visitors", "a", [90_000] * 2, begin, begin + tick)
        for begin in range(WINDOW_MS, WINDOW_MS + most * HOUR_MS, HOUR_MS)
        for tick in ticks
    ]
    records = [one.at(offset) for offset, one in enumerate(sorted(records, key=lambda one: one.tick))]
    play = Play(spec)
    play.step(QueryDecoder(COUNTS, INDEX, ["m0"], source=source).decode(records))
    play.commit()
    asked = Counter(alert.position.window[:20] for alert in play.alerts())
    assert {*asked.values()} == {2 * len(ticks)}
    begins = (datetime.fromisoformat(text).timestamp() * 1000 for text in asked)
    return {int(begin - WINDOW_MS) // HOUR_MS for begin in begins}


@pytest.mark.parametrize("ask", ["close", "tick"])
@pytest.mark.parametrize(
    ("begin", "end", "resting"),
    [(3, 5, {3, 4}), (3.5, 4, {3}), (3.5, 4.5, {3, 4}), (3.25, 3.5, {3}), (-9, 0, set()), (-9, 0.5, {0})],
)
def test_a_count_rests_if_its_window_overlaps_maintenance_whenever_it_is_asked(ask, begin, end, resting):
    span = f"{{from: '{moment(begin)}', until: '{moment(end)}'}}"
    spec = counted(f", mute: none, maintenance: [{span}]", f"{SOURCE}, ask: {ask}")
    assert windows_tested(spec) == {*range(12)} - resting


def test_a_time_of_the_week_comes_back():
    day = f"{datetime.fromtimestamp(WINDOW_MS / 1000, UTC):%a}"
    spec = counted(f", mute: none, maintenance: [{{every: {day} 02:30-04:00}}]")
    assert windows_tested(spec, 24 * 15) == {*range(24 * 15)} - {
        week + hour for week in (0, 168, 336) for hour in (2, 3)
    }


def test_maintenance_of_the_application_is_that_of_every_monitor():
    own, all_ = "{every: Mon 00:00-01:00}", "{every: Sun 22:00-02:00}"
    monitors = (
        f"{{name: m{k}, {FORMS['plain']}{more}}}" for k, more in enumerate((f", maintenance: [{own}]", ""))
    )
    text = f"application: app\nmaintenance: [{all_}]\ndatasets: [{{name: a, limit: 9, unit: x}}]\n"
    spec = load_spec(f"{text}monitors: [{', '.join(monitors)}]\n")
    assert [[*map(str, one.maintenance)] for one in spec.monitors] == [[own, all_], [all_]]


@pytest.mark.parametrize("span", [(0, 7), (100, 101), (9_000, 20_300), (10_079, 10_081)], ids=str)
def test_a_window_overlaps_what_any_of_its_minutes_lies_in(span):
    """Minutes of a week from Monday; the last spans go into the next one."""
    minute, week = 60_000, 10_080
    begin, end = ((4 * 1_440 + at) * minute for at in span)
    weekly = Maintenance(begin, end, weekly=True)
    once = replace(weekly, weekly=False)
    chance = random.Random(str(span))
    for _ in range(300):
        first = 4 * 1_440 + chance.choice((0, week, -week, 3 * week)) + span[chance.randrange(2)]
        first += chance.randrange(-70, 70)
        length = chance.choice((1, 5, 60, 1_440, week))
        minutes = {*range(first, first + length)}
        spans = [
            range(4 * 1_440 + span[0] + at * week, 4 * 1_440 + span[1] + at * week) for at in range(-5, 9)
        ]
        columns = np.array([first * minute]), np.array([(first + length) * minute])
        assert once.overlaps(*columns) == [not minutes.isdisjoint(spans[5])]
        assert weekly.overlaps(*columns) == [any(not minutes.isdisjoint(one) for one in spans)]


# Broken rules


def by_the_clock(
    original: Callable[..., Any], self: Runner, batch: QueryBatch, start: int, clock: Any
) -> Any:
    return original(self, replace(batch, timestamp_ms=clock, window=None), start, clock)


def by_what_is_read_at_once(
    original: Callable[..., Any], self: Runner, batch: QueryBatch, start: int, clock: Any
) -> Any:
    stamp = np.full(len(batch), batch.timestamp_ms[start])
    return original(self, replace(batch, timestamp_ms=stamp), start, clock)


def by_its_runs(original: Callable[..., Any], self: Runner, batch: QueryBatch, start: int, clock: Any) -> Any:
    eligible, outside, resting = original(self, batch, start, clock)
    is_open = [row for row in resting if self.runs.is_open(int(batch.dataset[row]))]
    if eligible is not None:
        eligible[is_open] = True
    return eligible, outside, [row for row in resting if row not in is_open]


@pytest.mark.parametrize("broken", [by_the_clock, by_what_is_read_at_once, by_its_runs])
def test_another_rule_is_detected(broken, monkeypatch):
    original = Runner._eligible
    monkeypatch.setattr(Runner, "_eligible", lambda *given: broken(original, *given))
    chance = random.Random(1)
    queries = [
        replace(one, time_ms=max(0, one.time_ms - chance.choice((0, 0, 900)))) for one in stream(7, 1200)
    ]
    expected = transcript(uninterrupted(spec_of(FORMS["plain"]), without(queries)))
    found = transcript(uninterrupted(spec_of(FORMS["plain"] + RESTING), queries))
    assert found != expected
    monkeypatch.undo()
    assert transcript(uninterrupted(spec_of(FORMS["plain"] + RESTING), queries)) == expected


def test_a_window_that_counts_as_its_begin_is_detected(monkeypatch):
    monkeypatch.setattr(QueryBatch, "nominal_ms", property(lambda self: (self.window, self.window + 1)))
    spec = counted(f", mute: none, maintenance: [{{from: '{moment(3.5)}', until: '{moment(4)}'}}]")
    assert windows_tested(spec) == {*range(12)}
