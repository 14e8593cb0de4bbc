"""Changes of the specification: effective at once, with the next run, or refused."""

from __future__ import annotations

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.snapshot import State
from stream_svt.monitor.takeover import change_spec
from tests.support.engine_play import Play, Query, exhaust
from tests.support.monitor_forms import (
    FORMS,
    ample_play,
    ample_spec,
    assert_books_balance,
    changed_to,
    engine_state,
    spec_of,
)

_PLAIN = FORMS["never muted"]


def test_changing_to_the_same_specification_does_nothing():
    play = ample_play(_PLAIN)
    before, records = engine_state(play.engine), dict(play.records)
    assert changed_to(play, _PLAIN) == []
    assert (engine_state(play.engine), play.records) == (before, records)


def test_a_threshold_holds_from_the_next_query_on():
    play = ample_play(_PLAIN)
    play.more(Query(0, 3000))
    events = changed_to(play, _PLAIN.replace("threshold: 500", "threshold: 9000"))
    assert [(e.type, e.data.reason, e.data.detail["fields"]) for e in events] == [
        (EventType.SPEC_CHANGED, "changed", ["threshold"])
    ]
    play.more(Query(0, 3000), Query(0, 20_000))
    assert [(alert.threshold, alert.run) for alert in play.alerts()] == [(500, 1), (9000, 1)]


def test_mutes_and_what_follows_a_halt_change_at_once():
    play = ample_play(_PLAIN)
    play.more(Query(0, 10**5, "x"))
    changed_to(play, _PLAIN.replace("mute: none", "mute: period, on_halt: stop"))
    play.more(*[Query(0, 10**5, "x")] * 3, Query(0, 10**5, "y"), Query(0, 10**5, "z"))
    assert [alert.series for alert in play.alerts()] == ["x", "x", "y"]
    assert play.run_state().stopped


def test_caps_and_pace_of_append_change_at_once():
    play = ample_play(FORMS["retry"])
    assert play.runs().queued(0) == 4
    events = changed_to(
        play, FORMS["retry"].replace("every: 15", "every: 5").replace("capacity: 12", "capacity: 4")
    )
    assert events[0].data.detail["fields"] == ["append"]
    play.more(Query(0, 0, "new"))
    queue = play.runs().queues[0]
    assert [(entry.series, queue.attempt(entry)) for entry in queue.entries.values()] == [
        ("s3", 2), ("s6", 2), ("s9", 2), ("new", 2),
    ]  # fmt: skip
    assert play.run_state().run == 1


def test_fewer_mutes_are_kept_once_the_cap_falls():
    play = ample_play(FORMS["plain"].replace("cutoff: 3", "cutoff: 9"))
    play.more(*[Query(0, 10**5, f"x{k}") for k in range(6)])
    changed_to(play, FORMS["plain"].replace("cutoff: 3", "cutoff: 9") + ", max_mutes: 2")
    play.more(Query(0, 10**5, "y"))
    held = play.engine.accounts.mutes["m0"][0].entries
    assert list(held) == [play.runs().mutes.hash_of(series) for series in ("x5", "y")]


def test_a_schedule_applies_to_the_open_run_and_can_be_removed():
    play = ample_play(_PLAIN)
    changed_to(play, _PLAIN + ", resample_every: 5s")
    play.more(Query(0, 0, time_ms=6000))
    assert play.run_state().run == 2
    play.crash()
    play.more(Query(0, 0, time_ms=12_000))
    assert play.run_state().run == 3
    changed_to(play, _PLAIN)
    play.more(Query(0, 0, time_ms=30_000))
    assert play.run_state().run == 3


@pytest.mark.parametrize(
    "change",
    [
        ("epsilon: 1,", "epsilon: 2,"),
        ("mute: none", "mute: none, granularity: 1/2"),
        ("mute: none", "mute: none, mechanism: adaptive"),
        ("expected_queries: 1000", "correction: none"),
        ("mute: none", "mute: none, record: {value: n}"),
    ],
    ids=lambda change: change[1],
)
def test_a_change_of_noise_or_price_ends_the_open_run_also_across_a_restart(change):
    play = ample_play(_PLAIN)
    play.more(Query(0, 10**5))
    spent, reserved = play.ledger().spent, play.ledger().reserved
    assert reserved
    events = changed_to(play, _PLAIN.replace(*change))
    assert [(e.type, e.data.reason) for e in events] == [
        *[(EventType.RUN_CLOSED, "changed")] * 3,
        (EventType.SPEC_CHANGED, "changed"),
    ]
    assert (play.ledger().spent, play.ledger().reserved) == (spent, 0), "what it did not spend is released"
    play.crash()
    play.more(Query(0, 0))
    plan, run_state = play.runs().plan, play.run_state()
    assert (run_state.run, run_state.left) == (
        2,
        plan.mechanism.epsilon_units - plan.mechanism.threshold_units,
    )
    assert_books_balance(play)


@pytest.mark.parametrize("change", ["granularity: 2", "record: {value: n}"])
def test_a_new_grid_and_a_new_layout_drop_the_waiting_queries(change):
    for form in (FORMS["sweep"], FORMS["retry"]):
        play = ample_play(form)
        runner = play.engine.runners["m0"]
        assert runner.runs.queued(0) == 4
        changed_to(play, form + f", {change}")
        assert runner.runs.queued(0) == 0
        play.crash()
        play.more(*[Query(k % 2, 0, f"late{k}", "set1") for k in range(6)])
        assert [play.runs().queued(number) for number in (0, 1)] == [3, 3]


def test_a_halt_and_a_restart_keep_the_waiting_queries():
    for form in (FORMS["sweep"], FORMS["retry"]):
        play = ample_play(form)
        play.runs().reopen(0)
        play.commit()
        play.crash()
        play.more(Query(0, 0, "new", "set"))
        assert play.runs().queued(0) == 5


@pytest.mark.parametrize(
    ("form", "field"),
    [
        (_PLAIN.replace("topic: t", "topic: u"), "topic"),
        (_PLAIN + ", append: {retry: {attempts: 2}}", "append"),
        (_PLAIN + ", append: sweep", "append"),
    ],
)
def test_topic_and_append_cannot_change_and_a_refusal_changes_nothing(form, field):
    play = ample_play(_PLAIN, FORMS["plain"])
    before = engine_state(play.engine)
    with pytest.raises(ConfigError, match=rf"monitors\.m0\.{field}"):
        change_spec(play.engine, ample_spec(form, FORMS["plain"] + ", beta: 0.5"))
    assert engine_state(play.engine) == before
    assert not play.commit().events


def test_a_monitor_may_run_on_other_datasets_than_before():
    play = ample_play(f"{_PLAIN}, datasets: [a, b]", f"{FORMS['sweep']}, datasets: [a, b]")
    assert play.run_state(2).state is State.IDLE
    changed_to(play, f"{_PLAIN}, datasets: [b, c]", f"{FORMS['sweep']}, datasets: [b, c]")
    closed = [(e.data.dataset, e.data.monitor) for e in play.events if e.type is EventType.RUN_CLOSED]
    assert closed == [("a", "m0"), ("a", "m1")]
    assert play.ledger().reserved == 0
    for crash in (False, True):
        if crash:
            play.crash()
        tops = len(play.alerts())
        play.more(*[Query(number, 10**5, f"x{crash}") for number in range(3)])
        assert sorted((a.dataset, a.monitor) for a in play.alerts()[tops:]) == [
            ("b", "m0"), ("b", "m1"), ("c", "m0"), ("c", "m1"),
        ]  # fmt: skip
    assert not play.runs("m1").queued(0)
    assert_books_balance(play)


def test_an_added_monitor_starts_at_the_offset_of_its_topic_and_is_announced():
    play = ample_play(_PLAIN)
    events = changed_to(play, _PLAIN, FORMS["adaptive"])
    assert [(e.type, e.data.monitor, e.data.reason) for e in events] == [
        (EventType.SPEC_CHANGED, "m1", "added")
    ]
    assert play.engine.runners["m1"].offset == 12
    for crash in (False, True):
        if crash:
            play.crash()
        play.more(Query(0, 10**5, f"s{crash}"))
        assert [a.monitor for a in play.alerts()][-2:] == ["m0", "m1"]


@pytest.mark.parametrize("form", [FORMS["sweep"], FORMS["retry"], FORMS["plain"]])
def test_a_removed_monitor_ends_its_runs_and_leaves_no_record(form):
    play = ample_play(_PLAIN, form)
    play.more(Query(0, 10**5, "x", "set"))
    events = changed_to(play, _PLAIN)
    assert {e.data.reason for e in events if e.type is EventType.RUN_CLOSED} == {"removed"}
    assert events[-1].data.reason == "removed"
    assert not [key for key in play.records if b"/m1" in key]
    assert_books_balance(play)
    play.crash()
    assert list(play.engine.runners) == ["m0"]
    assert play.run_state(monitor="m1").spent > 0


def _paused(play, monitor):
    """Return the datasets whose queries a monitor covers and skips for a pause."""
    runs = play.runs(monitor)
    return [n for n in range(len(play.engine.datasets)) if runs.covers[n] and runs.run_state(n).paused]


def test_a_monitor_that_is_added_again_keeps_its_mutes_run_numbers_and_pause():
    form = FORMS["plain"] + ", max_mutes: 2"
    play = ample_play(_PLAIN, form)
    play.more(Query(0, 10**5, "x"), Query(0, 10**5, "y"))
    play.runs("m1").pause(0)
    changed_to(play, _PLAIN)
    play.crash()
    changed_to(play, _PLAIN, form)
    assert _paused(play, "m1") == [0]
    play.runs("m1").resume(0)
    assert _paused(play, "m1") == []
    tops = len(play.alerts())
    play.more(*[Query(0, 10**5, name, monitor="m1") for name in ("y", "z", "x")])
    assert [(a.series, a.run) for a in play.alerts()[tops:]] == [("z", 2), ("x", 2)]
    assert_books_balance(play)


def test_a_pause_holds_only_where_the_monitor_still_runs_and_waits_where_it_may_come_back():
    elsewhere = _PLAIN + ", datasets: [b, c]"
    play = ample_play(_PLAIN)
    for number in (0, 1):
        play.runs().pause(number)
    for spec, paused in ((elsewhere, [1]), (_PLAIN, [0, 1])):
        changed_to(play, spec)
        play.crash()
        assert _paused(play, "m0") == paused
    assert play.views()[0].monitors[0].state == "paused"
    for dataset in "ab":
        operations.apply(play.engine, Command(id="r", action=Action.RESUME, dataset=dataset))
        assert play.commit().events[-1].data.reason == "accepted"
    assert _paused(play, "m0") == []


def test_an_exhausted_monitor_that_is_added_again_is_exhausted_again_and_says_so():
    play = Play(spec_of(_PLAIN, FORMS["plain"]))
    exhaust(play.engine)
    play.commit()
    change_spec(play.engine, spec_of(_PLAIN))
    closed = [event.data for event in play.commit().events if event.type is EventType.RUN_CLOSED]
    assert {(one.monitor, one.reason) for one in closed} == {("m1", "removed")}
    change_spec(play.engine, spec_of(_PLAIN, FORMS["plain"]))
    play.commit()
    play.more(Query(0, 10**5))
    assert play.commits[-1].skipped == {("m0", "exhausted"): 1, ("m1", "exhausted"): 1}
    assert [e.data.monitor for e in play.events if e.type is EventType.EXHAUSTED] == ["m1"]


def test_order_of_monitors_does_not_depend_on_the_order_of_the_stored_records():
    play = ample_play(_PLAIN, FORMS["plain"], FORMS["retry"])
    play.records = dict(sorted(play.records.items(), reverse=True))
    play.crash()
    assert list(play.engine.runners) == ["m0", "m1", "m2"]
