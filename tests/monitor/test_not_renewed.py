"""`alert.not_renewed`: exactly when each of n windows was tested behind a mute, which released events tell."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from msgspec.structs import replace

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import Alert, EventType, Lifecycle
from stream_svt.monitor.state import runs
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.takeover import change_spec
from stream_svt.monitor.testing import watch
from stream_svt.monitor.testing.query_tester import QueryTester
from stream_svt.monitor.testing.watch import Watch
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec, effects
from tests.support.counts import HOUR_MS, SOURCE, WINDOW_MS
from tests.support.engine_play import Play
from tests.support.monitor_forms import assert_same
from tests.support.watched import (
    ENDS,
    TWO,
    History,
    Oracle,
    Step,
    batches,
    counts_of,
    ended,
    played,
    released,
    watching,
)

TICKS = f"{SOURCE}, ask: tick, every: 20m, lateness: 20m"
REST = "maintenance: [{from: 2026-09-21T20:30Z, until: 2026-09-21T23:00Z}]"
LONG, ANY = "epsilon: 20, cutoff: 20", "max_runs: off"
FORMS = {
    "plain": f"epsilon: 1, cutoff: 3, {ANY}, mute: 2h, not_renewed: 3",
    "one window": f"epsilon: 1, cutoff: 3, {ANY}, mute: 30m, not_renewed: 1",
    "long runs": f"epsilon: 40, cutoff: 40, {ANY}, mute: 90m, not_renewed: 3",
    "limited": "epsilon: 1, cutoff: 3, max_runs: 1 per 9h, mute: 1h, not_renewed: 2",
    "stopped": f"epsilon: 9, cutoff: 9, {ANY}, on_halt: stop, mute: 1h, not_renewed: 2",
    "by schedule": f"{LONG}, {ANY}, resample_every: 9h, mute: 2h, not_renewed: 3",
    "in maintenance": f"{LONG}, {ANY}, {REST}, mute: 2h, not_renewed: 3",
    "by ticks": f"{LONG}, {ANY}, mute: 2h, not_renewed: 2",
}
SMALL = Bounds(runs=2, records=4, rejects=3, cost=300)
SEEDS = range(3)


def spec_of(form: str) -> ApplicationSpec:
    return watching(FORMS[form], source=TICKS if form == "by ticks" else SOURCE)


def judged(history: History, steps: list[Step]) -> Counter[str]:
    """Compare the silences of a history with those that must be there; return what became of its alerts."""
    found = Counter[str]()
    for dataset in history.spec.sources[0].dataset_names:
        oracle = Oracle(history, steps, dataset)
        assert released(steps, EventType.NOT_RENEWED, dataset) == oracle.told
        untested = Counter(alert for _, alert, _ in released(steps, EventType.UNTESTED, dataset))
        assert untested == Counter(one for one, why in oracle.over.items() if why not in ("told", "renewed"))
        found.update(oracle.over.values())
    return found


@cache
def histories(form: str) -> list[tuple[History, Play, list[Step]]]:
    each = (History.random(spec_of(form), seed, 36) for seed in SEEDS)
    return [(history, *played(history)) for history in each]


@cache
def judged_all(form: str) -> Counter[str]:
    return sum((judged(history, steps) for history, _, steps in histories(form)), Counter[str]())


@pytest.mark.parametrize("form", FORMS)
def test_silences_follow_from_the_other_events_and_the_schedule(form):
    assert judged_all(form)["told"] > 10


def test_the_histories_have_each_fate_of_an_alert():
    found = sum((judged_all(form) for form in FORMS), Counter[str]())
    each = {"told", "renewed", "not asked", "another run", "no run", "paused", "maintenance", "command"}
    assert {*found} == each


@pytest.mark.parametrize("form", FORMS)
def test_batches_commits_and_crashes_change_no_silence(form):
    for seed, (history, expected, _) in enumerate(histories(form)[:2]):
        play, _ = played(history, seed, SMALL if seed % 2 else BOUNDS)
        assert_same(play, expected)


def test_silences_cost_nothing_and_name_their_alert():
    ((_, play, _), *_) = histories("plain")
    events = {one.id: one for one in play.events}
    for event in play.events:
        if event.type in (EventType.NOT_RENEWED, EventType.UNTESTED):
            assert isinstance(event.data, Lifecycle)
            assert event.data.account is not None
            assert event.data.account.charge == 0
            detail, alert = event.data.detail, events[event.data.detail["alert"]].data
            assert isinstance(alert, Alert)
            assert (detail["series"], detail["severity"] or None) == (alert.series, alert.severity)
            assert detail["windows"] == 3


# Broken rules


def skips_a_test_by_its_value(patch):
    begin = QueryTester._begin

    def broken(self, view, start, stop):
        segment = begin(self, view, start, stop)
        segment.live &= view.batch.whole[start : segment.stop] != 300
        return segment

    patch.setattr(QueryTester, "_begin", broken)


def counts_muted_windows(patch):
    rule = Plan.watch
    patch.setattr(
        Plan, "watch", lambda self, sources, until, ends: rule(self, sources, until - HOUR_MS, ends)
    )
    counts_skipped_windows(patch)


def counts_skipped_windows(patch):
    count = Watch._count

    def broken(self, segment, row, *more):
        live, segment.live = segment.live, segment.live | True
        count(self, segment, row, *more)
        segment.live = live

    patch.setattr(Watch, "_count", broken)


def counts_across_runs(patch):
    patch.setattr(watch, "replace", lambda mute, **more: replace(mute, **more | {"run": 0}))


def counts_across_a_pause(patch):
    patch.setattr(runs, "replace", lambda mute, **_: mute)


def counts_windows_that_come_later(patch):
    rule = Plan.watch

    def broken(self, *given):
        found = rule(self, *given)
        return found and (*found[:2], found[2] + 24 * HOUR_MS, *found[3:])

    patch.setattr(Plan, "watch", broken)
    patch.setattr(watch, "_NOT_ASKED", "")


MUTANTS = {
    skips_a_test_by_its_value: "plain",
    counts_muted_windows: "plain",
    counts_skipped_windows: "limited",
    counts_across_runs: "plain",
    counts_across_a_pause: "by ticks",
    counts_windows_that_come_later: "limited",
}


@pytest.mark.parametrize("broken", MUTANTS)
def test_another_rule_is_detected(broken, monkeypatch):
    form = MUTANTS[broken]
    broken(monkeypatch)
    found = 0
    for history, _, _ in histories(form):
        try:
            judged(history, played(history)[1])
        except AssertionError:
            found += 1
    assert found


# Single cases


def fates(play: Play) -> list[tuple[EventType, str]]:
    watches = (EventType.NOT_RENEWED, EventType.UNTESTED)
    return [(one.type, one.data.reason) for one in play.events if one.type in watches]


TOLD = [(EventType.NOT_RENEWED, "tested")]


@pytest.mark.parametrize("reason", ENDS)
def test_each_end_of_a_watch_has_its_reason(reason):
    play = ended(reason)
    kind = EventType.NOT_RENEWED if reason == "tested" else EventType.UNTESTED
    assert fates(play) == [(kind, reason)]
    assert play.runs().mutes.watching == set()


def test_where_the_period_ends_before_the_windows_nothing_is_watched():
    days = '{generate: "{name}-{date}", names: [a, b, c], from: 2026-09-21, lateness: 4h, limit: 99}'
    spec = watching(TWO, days, SOURCE.replace('"{name}"', '"{name}-{date}"')).at(WINDOW_MS)
    in_time, late = (
        played(History(spec, counts_of(spec, "a-2026-09-21", hour, hour + 2, hour + 3)))[0]
        for hour in (20, 21)
    )
    assert [alert.watched_until for alert in in_time.alerts()] == [WINDOW_MS + 24 * HOUR_MS + 60_000]
    assert [alert.watched_until for alert in late.alerts()] == [None]
    assert (fates(in_time), fates(late)) == (TOLD, [])


def test_each_tick_is_watched_but_only_the_close_of_a_question():
    each = [watching(f"{TWO}{more}", source=TICKS) for more in ("", ", for: 2")]
    found = [Plan.of(*spec.monitors).watch(spec.sources, WINDOW_MS, None) for spec in each]
    assert [one and one[-1] for one in found] == [2 * 4, 2]


def test_a_watch_goes_on_under_the_terms_of_its_alert():
    spec, without = watching(TWO), watching(f"{LONG}, mute: 2h")
    play, _ = played(History(spec, counts_of(spec, "a", 0)))
    change_spec(play.engine, without)
    play.commit()
    play.take_over(without)
    for batch in batches(play, counts_of(without, "a", 0, 1, 2, 3), 9):
        play.step(batch)
    play.commit()
    assert fates(play) == TOLD


def test_a_source_without_series_is_refused():
    with pytest.raises(ConfigError, match="mutes are of series, and source 'requests' has none: remove it"):
        watching(
            TWO, source=SOURCE.replace("series: {field: page, names: [s0, s1, s2, s3, s4, s5, s6]}, ", "")
        )


def test_the_key_keeps_open_runs_and_without_it_nothing_changes():
    (plain,), (other,) = (watching(f"{LONG}, mute: 2h{more}").monitors for more in ("", ", not_renewed: 2"))
    assert effects(plain, other) == []
    assert plain.hash() != other.hash()
    assert "not_renewed" not in plain.to_json()
    assert MonitorSpec.from_json(other.to_json()) == other
