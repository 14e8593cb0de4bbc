"""`max_runs`: how many runs of a monitor on a dataset may begin within a time."""

from __future__ import annotations

import random

import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.snapshot import RunState, State, to_bytes
from stream_svt.monitor.takeover import change_spec
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, ONE_TOP, TOPIC, spec_of, stream, uninterrupted

HIGH = 90_000
DAY_MS, HOUR_MS = 86_400_000, 3_600_000


def play_of(most: str, *, dataset: str = "name: a, limit: 20", more: str = "") -> Play:
    text = f"{ONE_TOP}, max_runs: {most}{more}"
    return Play(spec_of(text, datasets=f"{{{dataset}, unit: one basket}}"))


def at(*times_ms: int) -> list[Query]:
    """Queries far above the threshold: each is a top, and ends its run."""
    return [Query(0, HIGH, f"s{time}", time_ms=time) for time in times_ms]


def begun(play: Play) -> int:
    return play.run_state().run


def limited(play: Play) -> list[int]:
    """Return until when the monitor was limited, event by event."""
    return [event.data.detail["until"] for event in play.events if event.type is EventType.LIMITED]


def command(play: Play, action: Action, **options: str) -> None:
    assert operations.apply(play.engine, Command(id="c", action=action, dataset="a", **options))
    play.commit()


def test_sixty_high_values_in_a_second_spend_half_of_a_limit_at_most_by_default():
    for dataset, runs in (
        ("limit: 20", 10),
        ("limit: 20, horizon: 30d", 10),
        ("limit: 3", 1),
        ("limit: 1", 1),
    ):
        play = play_of("auto", dataset=f"name: a, {dataset}")
        play.more(*at(*range(1000, 2000, 16)))
        assert (begun(play), play.run_state().state) == (
            runs,
            State.EXHAUSTED if runs == 1 and "1" in dataset[-2:] else State.LIMITED,
        )
        assert play.ledger().spent <= max(play.ledger().limit // 2, 10**9)


def test_after_a_burst_the_default_begins_runs_again_within_six_hours_whatever_the_horizon():
    for horizon in ("", ", horizon: 30d", ", horizon: 365d"):
        play = play_of("auto", dataset=f"name: a, limit: 20{horizon}")
        play.more(*at(*range(1000, 2000, 16)))
        assert limited(play) == [1000 + 6 * HOUR_MS]
        play.more(*at(1000 + 6 * HOUR_MS))
        assert begun(play) == 11


def test_monitors_of_a_dataset_share_what_begins_by_default():
    spec = spec_of(
        *[f"{ONE_TOP}, max_runs: auto"] * 4, datasets="{name: a, limit: 20, horizon: 30d, unit: b}"
    )
    play = Play(spec)
    play.more(*at(*range(1000, 2000, 16)))
    assert [play.run_state(monitor=f"m{k}").run for k in range(4)] == [2] * 4


def test_at_the_limit_queries_are_skipped_and_counted_and_the_next_run_begins_with_the_first_query_after_it():
    play = play_of("2 per 10s")
    play.more(*at(1000, 4000, 5000, 10_999))
    assert limited(play) == [11_000]
    assert play.commits[-1].skipped == {("m0", "limited"): 2}
    assert play.run_state().state is State.LIMITED
    (view,) = play.views()
    assert (view.monitors[0].state, view.monitors[0].until) == ("limited", 11_000)
    for act, shown in ((play.runs().pause, ("paused", 0)), (play.runs().resume, ("limited", 11_000))):
        act(0)
        play.commit()
        (view,) = play.views()
        assert (view.monitors[0].state, view.monitors[0].until) == shown
    play.more(*at(11_000, 12_000))
    assert (begun(play), limited(play)) == (3, [11_000, 14_000])
    play.more(*at(14_000))
    assert begun(play) == 4


def test_at_most_so_many_runs_begin_within_any_window():
    for most, window_ms in ((1, 1000), (3, 3000)):
        spec = spec_of(
            f"{ONE_TOP}, max_runs: {most} per {window_ms}ms", datasets="{name: a, limit: 900, unit: b}"
        )
        rng = random.Random(most)
        times = sorted(rng.randrange(1, 60_000) for _ in range(900))
        play = Play(spec)
        play.play(TOPIC, at(*times))
        alerts = [times[alert.position.offset] for alert in play.alerts()]
        assert len(alerts) > 15 * most
        starts = [later - earlier for earlier, later in zip(alerts, alerts[most:], strict=False)]
        assert min(starts) >= window_ms


@pytest.mark.parametrize("form", [form for form in FORMS if "limited" in form])
def test_every_form_that_is_limited_in_the_tests_reaches_its_limit_and_goes_on_after_it(form):
    play = uninterrupted(spec_of(FORMS[form]), stream(7, 1200, monitors=["m0"]))
    kinds = [event.type for event in play.events if event.data.dataset == "a"]
    first = kinds.index(EventType.LIMITED)
    assert (EventType.RUN_STARTED in kinds[first:]) is (form != "limited for the stream")


def test_a_takeover_keeps_the_limit():
    play = play_of("1 per 10s")
    play.more(*at(1000, 2000))
    play.crash()
    play.more(*at(10_999))
    assert (begun(play), play.run_state().state) == (1, State.LIMITED)
    play.crash()
    play.more(*at(11_000))
    assert begun(play) == 2


def test_an_operators_resample_is_allowed_and_counts():
    play = play_of("2 per 10s")
    play.more(*at(1000, 2000, 3000))
    command(play, Action.RESAMPLE)
    assert play.run_state().state is State.HALTED
    play.more(*at(3500, 3600))
    assert (begun(play), play.run_state().state) == (3, State.LIMITED)
    assert limited(play) == [11_000, 11_000]
    play.more(*at(11_000, 12_000, 13_500))
    assert (begun(play), limited(play)) == (5, [11_000, 11_000, 13_500])


def test_a_resample_below_the_limit_takes_nothing_from_it():
    play = play_of("2 per 10s")
    play.more(*at(1000))
    command(play, Action.RESAMPLE)
    play.more(*at(2000, 3000))
    assert (begun(play), limited(play)) == (2, [11_000])


def test_a_resample_begins_a_run_after_the_maximum_was_lowered_below_the_runs_that_count():
    play = play_of("3 per 10s")
    play.more(*at(1000, 2000, 3000))
    change_spec(play.engine, play_of("1 per 10s").spec)
    play.commit()
    command(play, Action.RESAMPLE)
    play.more(*at(4000, 5000))
    assert (begun(play), limited(play)) == (4, [14_000])


@pytest.mark.parametrize(("limit", "before"), [(5, State.LIMITED), (1, State.EXHAUSTED)])
def test_a_raised_limit_begins_one_run_as_a_resample_does(limit, before):
    """Without it, an exhausted monitor would be limited at once: nobody would see that the raise did anything."""
    play = play_of("1 per 10s", dataset=f"name: a, limit: {limit}")
    play.more(*at(1000, 2000))
    assert play.run_state().state is before
    command(play, Action.RAISE_BUDGET, limit="50")
    play.crash()
    play.more(*at(3000, 4000))
    assert (begun(play), play.run_state().state, limited(play)[-1]) == (2, State.LIMITED, 13_000)
    command(play, Action.CLOSE)
    play.more(*at(20_000))
    assert (begun(play), play.run_state().state) == (2, State.HALTED)


def test_a_raised_limit_takes_nothing_from_runs_that_may_begin_anyway():
    play = play_of("2 per 10s", dataset="name: a, limit: 5")
    play.more(*at(1000))
    command(play, Action.RAISE_BUDGET, limit="50")
    play.more(*at(2000, 3000))
    assert (begun(play), limited(play)) == (2, [11_000])


def test_another_maximum_keeps_open_runs_and_holds_at_once_for_limited_datasets():
    play = play_of("1 per 10s", more=", on_halt: resample")
    play.more(Query(0, 0, time_ms=1000))
    change_spec(play.engine, play_of("1 per 20s").spec)
    play.commit()
    assert play.run_state().state is State.RUNNING
    play.more(*at(2000, 11_500))
    assert limited(play) == [21_000]
    change_spec(play.engine, play_of("off").spec)
    play.commit()
    play.more(*at(11_600))
    assert begun(play) == 2


def test_a_monitor_that_joins_lowers_the_default_of_those_on_the_same_datasets():
    datasets = "{name: a, limit: 20, horizon: 40s, unit: b}"
    play = Play(spec_of(f"{ONE_TOP}, max_runs: auto", datasets=datasets))
    play.more(*at(*range(1000, 2100, 100)))
    assert limited(play) == [11_000]
    both = spec_of(f"{ONE_TOP}, max_runs: auto", f"{ONE_TOP}, max_runs: auto", datasets=datasets)
    change_spec(play.engine, both)
    play.commit()
    (view,) = play.views()
    assert view.monitors[0].until == 11_500


def test_a_run_by_schedule_goes_on_while_no_other_may_begin():
    play = play_of("1 per 10s", more=", resample_every: 2s")
    low = [Query(0, 0, time_ms=time) for time in (1000, 3500, 10_999, 11_000)]
    play.more(*low[:3])
    assert (begun(play), play.run_state().state, limited(play)) == (1, State.RUNNING, [])
    assert sum(commit.tested["m0"] for commit in play.commits) == 3
    play.crash()
    play.more(low[3])
    assert begun(play) == 2


def test_with_the_default_a_scheduled_run_ends_where_it_did_whatever_the_horizon_is_in_the_replay():
    play = play_of("auto", dataset="name: a, limit: 3, horizon: 40s", more=", resample_every: 8s")
    play.more(*at(1000), Query(0, 0, time_ms=2000))
    for horizon in ("36s", "40s"):
        other = play_of("auto", dataset=f"name: a, limit: 3, horizon: {horizon}", more=", resample_every: 8s")
        play.take_over(other.spec)
        assert play.runs().deadline[0] == 10_000
    play.more(Query(0, 0, time_ms=10_500))
    assert (begun(play), play.run_state().state, limited(play)) == (2, State.LIMITED, [11_000])


def test_a_schedule_adds_its_runs_to_the_default():
    play = play_of("auto", more=", resample_every: 2h", dataset="name: a, limit: 60")
    play.more(*[Query(0, 0, time_ms=1 + half * HOUR_MS // 2) for half in range(49)])
    assert (begun(play), limited(play)) == (13, [])


def test_a_query_stamped_far_ahead_delays_nobody():
    """The clock of mutes and periods never falls; the timestamps that count here are those of the queries."""
    play = Play(
        spec_of(f"{ONE_TOP}, max_runs: 1 per 10s", datasets="{names: [a, b], limit: 9, unit: one basket}")
    )
    far = 100 * 365 * DAY_MS
    play.more(*at(1000), Query(1, HIGH, "b", time_ms=far), Query(0, HIGH, "a", time_ms=11_000))
    assert begun(play) == 2
    play.more(Query(1, HIGH, "c", time_ms=12_000))
    assert (play.run_state(1).run, limited(play)) == (2, [])


def test_under_zcdp_a_run_that_waits_for_another_monitor_is_not_limited():
    forms = [f"{ONE_TOP}, max_runs: 1 per 10s"] * 2
    play = Play(spec_of(*forms, datasets="{name: a, limit: {rho: 9}, unit: one basket}"))
    for time_ms, runs in ((1000, [1, 0]), (2000, [1, 1]), (3000, [1, 1]), (11_000, [2, 1]), (13_000, [2, 2])):
        play.more(*at(time_ms))
        assert [play.run_state(monitor=name).run for name in ("m0", "m1")] == runs


def test_one_run_takes_two_bytes_more_of_state_and_each_further_one_that_counts_eight():
    state = RunState(started_ms=1_767_571_200_000)
    empty = len(state.earlier)
    state.remember([1_767_571_100_000])
    assert (empty, len(state.earlier)) == (0, 8)
    play = play_of("3 per 1h")
    play.more(*at(1000, 2000, 3000, 4000), *at(3_601_500))
    assert play.run_state().begins == [2000, 3000, 3_601_500]
    assert len(to_bytes(play.engine.accounts.account(0))) < 400


@pytest.mark.parametrize("factor", [1_000, 1_000_000])
def test_runs_that_began_with_stamps_of_another_unit_limit_nothing(factor):
    now = 1_790_000_000_000
    play = play_of("2 per 1h")
    play.more(*at(now * factor, now * factor + 1, now * factor + 2))
    assert play.run_state().state is State.LIMITED
    for number in range(4):  # whoever takes over
        play.crash()
        play.more(*at(now + number))
    assert (begun(play), limited(play)[-1]) == (4, now + HOUR_MS)
    play.more(*at(now + HOUR_MS))
    assert begun(play) == 5


@pytest.mark.parametrize(("behind", "runs"), [(HOUR_MS, 2), (HOUR_MS + 1, 3)])
def test_a_begin_counts_up_to_the_window_ahead_of_a_query(behind, runs):
    """A clock that goes back, or a query that is late, by less than the window changes nothing."""
    play = play_of("2 per 1h")
    play.more(*at(2 * DAY_MS, 2 * DAY_MS, 2 * DAY_MS))
    play.more(*at(2 * DAY_MS - behind))
    assert begun(play) == runs


@pytest.mark.parametrize("stamp", [-1, 0, -(2**63), 2**63 - 1])
def test_a_run_counts_whatever_the_timestamp_of_its_begin_is(stamp):
    """Kafka's clients write -1 for no timestamp."""
    play = play_of("1 per 1h")
    play.more(*at(stamp, stamp, stamp))
    assert (begun(play), play.run_state().state) == (1, State.LIMITED)


def test_a_clock_before_1970_is_a_clock_as_any_other():
    """Queries of negative timestamps open no run again and again."""
    play = play_of("1 per 3h", more=", resample_every: 1h")
    play.more(*at(5 * HOUR_MS, -15 * HOUR_MS, -15 * HOUR_MS + 1, -13 * HOUR_MS, -11 * HOUR_MS))
    assert begun(play) == 3
    assert limited(play) == [-12 * HOUR_MS]
