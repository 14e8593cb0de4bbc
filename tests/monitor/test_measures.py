"""Counts of several measures on one ledger: whose monitors test what, whatever else is read, and when it is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from stream_svt.monitor.operations import Action, Command, apply
from stream_svt.monitor.released import Alert, EventType, Position
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.monitor.takeover import change_spec
from stream_svt.protocol.records import LOG_APPEND_TIME
from stream_svt.queries.counts import query_id
from stream_svt.settings.application import ApplicationSpec
from tests.support.counts import (
    ERRORS,
    HOUR_MS,
    LONG,
    SOURCE,
    TOPIC,
    VISITORS,
    WINDOW_MS,
    Counts,
    counting,
    hours,
)
from tests.support.engine_play import Play
from tests.support.monitor_forms import assert_same, of_monitors
from tests.support.watched import batches

AMPLE = "{names: [a, b, c], limit: 400}"
SMALL = Bounds(runs=2, records=4, rejects=3, cost=300)
"""Steps end within records."""
_SWEEP = "correction: {annealed: {start: 6, end: 1}}, append"
_OFF = ", max_runs: off"
FORMS = {
    "plain": _OFF,
    "ladder": f"{_OFF}, mechanism: ladder",
    "muted for a while": f"{_OFF}, mute: 3h",
    "muted for the run": f"{_OFF}, mute: run",
    "resampled": f"{_OFF}, resample_every: 4h, mute: none",
    "limited": ", max_runs: 1 per 5h, mute: none",
    "sweep": f"{_OFF}, {_SWEEP}: sweep",
    "sweep by clock": f"{_OFF}, {_SWEEP}: {{sweep: {{close_after: 2h, max_open_sets: 3}}}}, mute: 2h",
    "retry": f"{_OFF}, append: {{retry: {{attempts: 3, lifetime: 5h, capacity: 12, every: 9}}}}, mute: 2h",
}


def stream_of(spec: ApplicationSpec, seed: int, records: int, shown: int = 7) -> list[Counts]:
    """Return records with random counts of their first series, many near the threshold; the others are 0."""
    rng = random.Random(seed)
    near = [0, 1, 300, 470, 490, 500, 510, 900]
    return [*hours(spec.sources[0], [rng.choices(near, k=shown) for _ in range(records)])]


def played(spec: ApplicationSpec, records: Sequence[Counts], bounds: Bounds = BOUNDS) -> Play:
    """Play all records, with the commits that the engine asks for."""
    play = Play(spec, bounds=bounds)
    for batch in batches(play, records, 1 << 40):
        play.step(batch)
    play.commit()
    return play


def interrupted(
    spec: ApplicationSpec, records: Sequence[Counts], choose: Callable[[int], int], bounds: Bounds
) -> tuple[Play, int]:
    """Play in batches, with commits and crashes between any two steps; also return the restarts within a record."""
    play, inside, crashes = Play(spec, bounds=bounds), 0, 0
    while (at := play.engine.next_offset(TOPIC) or 0) <= records[-1].offset:
        for batch in batches(play, records, at + 1 + choose(len(records) // 3)):
            step = None
            while step is None or not step.done:
                step = play.engine.step(batch)
                if step.durable_first or not choose(4):
                    play.commit()
                if crashes < 30 and not choose(3):
                    break
            if not step.done:
                break
        if crashes < 30 and not choose(2):
            play.crash()
            crashes += 1
            inside += any(runner.row for runner in play.engine.runners.values())
    play.commit()
    return play, inside


@pytest.mark.parametrize("form", FORMS)
def test_batches_commits_and_restarts_change_no_outcome_of_any_measure(form):
    spec = counting(*(f"{monitor}{FORMS[form]}" for monitor in (VISITORS, ERRORS)), datasets=AMPLE)
    records = stream_of(spec, 5, 72)
    expected = played(spec, records)
    assert {alert.monitor for alert in expected.alerts()} == {"m0", "m1"}
    for seed in range(2):
        rng = random.Random(seed)
        play, _ = interrupted(spec, records, rng.randrange, BOUNDS if seed % 2 else SMALL)
        assert_same(play, expected)


def test_a_restart_within_a_record_continues_there_for_every_monitor():
    spec = counting(VISITORS, ERRORS, VISITORS, source=LONG, datasets=AMPLE)
    records = stream_of(spec, 6, 18, shown=700)
    expected, restarts = played(spec, records), 0
    for seed in range(2):
        play, inside = interrupted(spec, records, random.Random(seed).randrange, SMALL)
        assert_same(play, expected)
        restarts += inside
    assert restarts > 5


@pytest.mark.parametrize("form", FORMS)
def test_a_measures_monitors_do_what_they_would_do_alone_and_test_no_other_measure(form):
    texts = f"{VISITORS}{FORMS[form]}", f"{ERRORS}{FORMS[form]}", f"{VISITORS}{FORMS[form]}, on_halt: stop"
    spec = counting(*texts, datasets=AMPLE)
    records = stream_of(spec, 7, 72)
    together = of_monitors(played(spec, records))
    rows = Counter(one.measure for one in records for _ in one.values)
    for number, monitor in enumerate(spec.monitors):
        own = [one for one in records if one.measure == monitor.measure]
        alone = played(replace(spec, monitors=(monitor,)), own)
        assert alone.alerts()
        mine = {key: lines for key, lines in together.items() if key[1] == f"m{number}"}
        assert mine == of_monitors(alone)
        tested = sum(sum(one.tested.values()) for one in alone.commits)
        assert 0 < tested <= rows[monitor.measure]


def test_charges_come_in_the_order_of_the_records_of_all_measures():
    """Each record halts a run, until the limit pays for no other: the earlier record has it."""
    once = ", mute: none, max_runs: off"
    monitors = (f"{one.replace('cutoff: 3', 'cutoff: 1')}{once}" for one in (ERRORS, VISITORS))
    spec = counting(*monitors, datasets="{names: [a, b, c], limit: 3}")
    records = [*hours(spec.sources[0], [[90_000]] * 24)]
    play = played(spec, records)
    of_measure = {"visitors": "m1", "errors": "m0"}
    expected = [(one.dataset, of_measure[one.measure]) for one in records]
    for dataset in "abc":
        told = [alert.monitor for alert in play.alerts() if alert.dataset == dataset]
        assert told == [monitor for name, monitor in expected if name == dataset][: len(told)]
        assert len(told) == 3


def test_an_alert_names_the_window_and_the_row_and_no_offset():
    spec = counting(VISITORS, ERRORS, datasets=AMPLE)
    records = [*hours(spec.sources[0], [[0, 0, 90_000], [0], [0], [0], [0], [0, 90_000]])]
    places = {
        alert.monitor: (alert.position, alert.query_id, alert.series)
        for alert in played(spec, records).alerts()
    }
    identity = query_id(WINDOW_MS, WINDOW_MS + HOUR_MS + 60_000)
    assert places == {
        "m0": (Position(TOPIC, 0, -1, 2, identity), identity, "s2"),
        "m1": (Position(TOPIC, 0, -1, 1, identity), identity, "s1"),
    }
    shown = msgspec.json.encode(places["m0"][0])
    assert b'"offset":-1' in shown
    assert msgspec.json.decode(shown, type=Position) == places["m0"][0]
    assert msgspec.json.encode(Position("t", 0, 5, 0)) == b'{"topic":"t","partition":0,"offset":5,"row":0}'


def test_all_monitors_advance_over_all_records_and_their_clocks_are_ticks():
    spec = counting(VISITORS, ERRORS, datasets=AMPLE)
    records = [*hours(spec.sources[0], [[0]] * 7)]
    engine = played(spec, records).engine
    for runner in engine.runners.values():
        assert (runner.offset, runner.row) == (8, 0)
        assert runner.clock_ms == runner.read_ms == WINDOW_MS + 2 * HOUR_MS + 60_000


def test_the_clock_of_the_worker_moves_no_watermark_of_a_source():
    day = "{generate: 'web-{date}', from: 2026-09-21, lateness: 1h, limit: 9}"
    source = SOURCE.replace('{pattern: "{name}", field: ward, names: [a, b, c]}', "'web-{date}'")
    spec = counting(VISITORS, source=source, datasets=day).at(WINDOW_MS)
    play = Play(spec)
    (name,) = [one.name for one in spec.datasets if one.terms.from_ms == WINDOW_MS]
    last = WINDOW_MS + 23 * HOUR_MS
    values = [90_000, *[0] * 6]
    records = [Counts(spec.sources[0], "visitors", name, values, last, last + HOUR_MS + 60_000)]
    late = {"now_ms": WINDOW_MS + 400 * HOUR_MS}
    play.engine.advance_watermarks({TOPIC: 0}, **late)
    assert play.engine.watermarks == {}
    for batch in batches(play, records, 1):
        play.step(batch)
    play.engine.advance_watermarks({TOPIC: 1}, **late)
    assert play.engine.watermarks == {"web-{date}": WINDOW_MS}
    play.commit()
    assert [alert.dataset for alert in play.alerts()] == [name]  # the last window of an ended day


def test_what_is_refused_of_a_topic_of_counts_is_reported_nowhere():
    day = "{generate: 'web-{date}', from: 2026-09-21, lateness: 1h, limit: 9}"
    source = SOURCE.replace('{pattern: "{name}", field: ward, names: [a, b, c]}', "'web-{date}'")
    spec = counting(VISITORS, source=source, datasets=day).at(WINDOW_MS)
    play, (name,) = Play(spec), [one.name for one in spec.datasets if one.terms.from_ms == WINDOW_MS]
    outside = Counts(spec.sources[0], "visitors", name, [90_000], WINDOW_MS, WINDOW_MS + 26 * HOUR_MS)
    broken = replace(outside, offset=1, timestamp_type=LOG_APPEND_TIME)
    for batch in batches(play, [outside, broken], 2):
        assert batch.rejects
        play.step(batch)
    commit = play.commit()
    assert (commit.rejects, play.alerts()) == ([], [])
    assert commit.skipped == {("m0", "outside-period"): 1}
    assert play.engine.next_offset(TOPIC) == 2


def test_no_event_shows_an_offset_of_a_topic_of_counts():
    spec = counting(VISITORS, ERRORS, datasets=AMPLE)
    play = played(spec, stream_of(spec, 8, 24))
    play.accept_loss(TOPIC, 4711, 5000)
    apply(play.engine, Command("c1", Action.CLOSE_APPLICATION, successor="next"))
    play.commit()
    (loss,) = [event.data for event in play.events if event.type is EventType.LOSS_ACCEPTED]
    (closed,) = [event.data for event in play.events if event.type is EventType.APPLICATION_CLOSED]
    assert not isinstance(loss, Alert)
    assert not isinstance(closed, Alert)
    assert loss.detail == {"topic": TOPIC}
    assert closed.detail["positions"] == {}
    assert play.engine.positions()["m0"].offset == 4711
    assert b"4711" not in msgspec.json.encode([event.data for event in play.events])


def test_a_monitor_that_is_added_begins_where_the_others_of_its_source_are():
    spec = counting(VISITORS, datasets=AMPLE)
    play = played(spec, stream_of(spec, 9, 24))
    more = counting(VISITORS, ERRORS, datasets=AMPLE)
    change_spec(play.engine, more)
    assert {(one.offset, one.row) for one in play.engine.runners.values()} == {(27, 0)}
