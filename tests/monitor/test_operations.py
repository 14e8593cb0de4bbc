"""Commands: each is carried out and acknowledged, or is refused with the reason and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.monitor.released import EventType, ReleasedEvent
from stream_svt.monitor.state.snapshot import State
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, ONE_TOP, TOPIC, assert_books_balance, engine_state, spec_of

_LIMIT = "{names: [a, b], limit: 3, unit: one basket}"


def _play(*forms: str, queries: int = 30, datasets: str = _LIMIT) -> Play:
    play = Play(spec_of(*(forms or (FORMS["never muted"],)), datasets=datasets))
    play.play(TOPIC, [Query(k % 2, 0) for k in range(queries)])
    return play


def _limited_play() -> Play:
    """Return a play of a monitor whose runs end with a top, of which one may begin in ten seconds."""
    return Play(spec_of(f"{ONE_TOP}, max_runs: 1 per 10s", datasets="{name: a, limit: 9, unit: one basket}"))


def _more(play: Play, *values: int) -> None:
    play.more(*[Query(0, value) for value in values])


def _command(play: Play, action: str, dataset: str = "a", **fields: str) -> ReleasedEvent:
    operations.apply(play.engine, Command(id="c1", action=Action(action), dataset=dataset, **fields))
    events = play.commit().events
    (reply,) = [event for event in events if event.type is EventType.COMMAND_REPLY]
    assert events[-1] is reply
    assert (reply.data.detail["command"], reply.data.detail["action"]) == ("c1", action)
    return reply


@pytest.mark.parametrize(
    ("action", "fields", "reason"),
    [
        ("pause", {"dataset": "nowhere"}, "is not homed at shard 0"),
        ("raise-budget", {"dataset": "", "limit": "9"}, "is not homed at shard 0"),
        ("close", {"monitor": "m9"}, "monitor 'm9' does not run on dataset 'a'"),
        ("resume", {}, "is not paused"),
        ("raise-budget", {"limit": "3"}, "must be above the current limit of epsilon 3"),
        ("raise-budget", {"limit": "2.5"}, "must be above"),
        ("raise-budget", {"limit": "much"}, "not a number"),
        ("raise-budget", {"limit": ""}, "not a number"),
        ("raise-budget", {"limit": "-1"}, "limit"),
        ("raise-budget", {"limit": "1e30"}, "limit"),
        ("raise-budget", {"limit": "nan"}, "not a number"),
        ("accept-loss", {"topic": "t", "offset": 7}, "does not wait for offset 7 of topic 't'"),
    ],
)
def test_a_command_that_does_not_apply_is_refused_and_changes_nothing(action, fields, reason):
    play = _play()
    before = engine_state(play.engine)
    reply = _command(play, action, **{"dataset": "a", **fields})
    assert reply.data.reason == "refused"
    assert reason in reply.data.detail["message"]
    assert engine_state(play.engine) == before


def test_a_refused_command_for_several_monitors_changes_none():
    play = _play(FORMS["plain"], FORMS["plain"])
    assert _command(play, "pause", monitor="m1").data.reason == "accepted"
    before = engine_state(play.engine)
    assert _command(play, "pause").data.reason == "refused"
    assert engine_state(play.engine) == before
    assert not play.run_state().paused


def test_a_command_to_several_datasets_is_carried_out_on_each_once_and_refused_by_itself():
    play = _play(datasets="{names: [a, b, c], limit: 3, unit: one basket}")
    assert _command(play, "pause", "b").data.reason == "accepted"
    reply = _command(play, "pause", "", datasets=("c", "b", "nowhere", "c"))
    assert (reply.data.reason, reply.data.account) == ("accepted", None)
    assert (reply.data.detail["done"], reply.data.detail["refused"]) == (1, 2)
    said = reply.data.detail["message"]
    assert said.startswith("pause carried out on 1 dataset, refused on 2: ")
    assert "on dataset 'b' is already paused" in said
    assert "dataset 'nowhere' is not homed at shard 0" in said
    assert [play.run_state(number).paused for number in range(3)] == [False, True, True]
    reply = _command(play, "pause", "", datasets=("b", "nowhere"))
    assert (reply.data.reason, reply.data.detail["refused"]) == ("refused", 2)


def test_a_command_to_several_datasets_goes_on_where_a_takeover_found_it():
    play = _play(datasets="{names: [a, b, c], limit: 3, unit: one basket}")
    command = Command(id="c1", action=Action.PAUSE, datasets=("c", "a", "b"))
    begun = CommandProgress(command, after="a", done=1)
    *_, last = operations.apply_to_many(play.engine, begun)
    assert (last.after, last.done) == ("c", 3)
    assert [play.run_state(number).paused for number in range(3)] == [False, True, True]


def test_a_pause_skips_the_queries_of_its_dataset_until_resumed_and_survives_a_crash():
    play = _play()
    run, spent = play.run_state().run, play.ledger().spent
    assert _command(play, "pause").data.reason == "accepted"
    for crash in (False, True):
        if crash:
            play.crash()
        _more(play, 10**6)
        assert play.commits[-1].skipped == {("m0", "paused"): 1}
        assert play.commits[-1].tested == {}
    play.more(Query(1, 0))
    assert play.commits[-1].tested == {"m0": 1}
    assert (play.run_state().state, play.run_state().run, play.ledger().spent) == (State.RUNNING, run, spent)
    assert _command(play, "pause").data.reason == "refused"
    assert _command(play, "resume").data.reason == "accepted"
    for crash in (False, True):
        if crash:
            play.crash()
        _more(play, 0)
        assert play.commits[-1].tested == {"m0": 1}
    assert play.run_state().run == run
    kinds = [e.type for e in play.events if e.type in (EventType.PAUSED, EventType.RESUMED)]
    assert kinds == [EventType.PAUSED, EventType.RESUMED]


def _at(play: Play, *times_ms: int, value: int = 0, dataset: int = 0) -> None:
    play.more(*[Query(dataset, value, f"s{time}", time_ms=time) for time in times_ms])


@pytest.mark.parametrize("form", ["never muted", "retry", "sweep", "limited"])
def test_a_pause_with_an_end_ends_with_the_first_query_stamped_then_and_survives_a_crash(form):
    play = Play(spec_of(FORMS[form], datasets="{names: [a, b], limit: 300, unit: one basket}"))
    _at(play, 1000)
    run = play.run_state().run
    said = _command(play, "pause", until=5000)
    assert said.data.detail["message"] == "pause until 1970-01-01 00:00:05 UTC carried out for m0 on a"
    (view, _) = play.views()
    assert (view.monitors[0].state, view.monitors[0].until) == ("paused", 5000)
    tops = play.run_state().tops
    for crash in (False, True):
        if crash:
            play.crash()
        _at(play, 2000, 4999, value=10**6)
        assert play.commits[-1].skipped["m0", "paused"] == 2
    _at(play, 6000, dataset=1)  # a query of another dataset ends no pause
    assert play.run_state().paused
    play.crash()
    _at(play, 5000, 3000)
    assert (play.run_state().paused, play.run_state().run, play.run_state().tops) == (False, run, tops)
    assert sum(commit.tested["m0"] for commit in play.commits[-2:]) >= 1
    reasons = [e.data.reason for e in play.events if e.type in (EventType.PAUSED, EventType.RESUMED)]
    assert reasons == ["command", "time"]
    (paused,) = [e for e in play.events if e.type is EventType.PAUSED]
    assert paused.data.detail == {"until": 5000}
    assert_books_balance(play)


def test_a_query_that_ends_a_pause_opens_a_run_where_none_is_open_and_a_limit_behind_it_stays():
    play = _play()
    _command(play, "pause", now=True, until=5000)
    _at(play, 4000)
    assert play.run_state().run == 1
    _at(play, 5000)
    assert (play.run_state().run, play.run_state().state) == (2, State.RUNNING)
    play = _limited_play()
    _at(play, 1000, 2000, value=90_000)
    assert play.run_state().state is State.LIMITED
    _command(play, "pause", until=5000)
    _at(play, 6000, value=90_000)
    assert (play.run_state().shown, play.run_state().run) == ("limited", 1)
    _command(play, "pause", until=15_000)
    _at(play, 12_000, value=90_000)
    assert (play.run_state().shown, play.run_state().run) == ("paused", 1)
    _at(play, 15_000, value=90_000)
    assert play.run_state().run == 2


def test_a_query_stamped_long_before_the_last_run_ends_no_pause():
    for end in (0, 2_000_000):
        play = _limited_play()
        _at(play, 1_000_000, 1_000_001, value=90_000)
        assert play.run_state().state is State.LIMITED
        _command(play, "pause", until=end)
        _at(play, 100_000, value=90_000)
        assert (play.run_state().shown, play.run_state().run) == ("paused", 1)


@pytest.mark.parametrize("form", ["plain", "never muted", "muted for the run", "few mutes", "retry", "sweep"])
@pytest.mark.parametrize(("end", "shown"), [({"until": 5000}, 5000), ({"until_word": "run"}, "run")])
def test_a_muted_series_is_skipped_until_the_end_and_others_are_tested(form, end, shown):
    play = Play(spec_of(FORMS[form], datasets="{names: [a, b], limit: 300, unit: one basket}"))
    _at(play, 1000)
    _at(play, 1000, dataset=1)
    before = play.ledger().spent
    reply = _command(play, "mute", series="tea", **end)
    assert (reply.data.reason, play.ledger().spent) == ("accepted", before)
    (muted,) = [e for e in play.events if e.type is EventType.MUTED]
    assert (muted.data.detail, muted.data.account.charge) == ({"series": "tea", "muted_until": shown}, 0)
    for crash in (False, True):
        if crash:
            play.crash()
        play.more(Query(0, 10**6, "tea", time_ms=2000), Query(1, 0, "tea", time_ms=2000))
        assert play.commits[-1].skipped["m0", "muted"] == 1
    assert [alert for alert in play.alerts() if alert.series == "tea"] == []
    (view, _) = play.views()
    assert view.monitors[0].muted == 1
    if shown == "run":
        _command(play, "resample")
    play.more(Query(0, 10**6, "tea", time_ms=5000))
    assert play.run_state().tops == 1 or form == "sweep"
    assert_books_balance(play)


def test_an_operator_unmutes_what_an_alert_or_an_operator_muted():
    play = Play(spec_of(FORMS["plain"], datasets="{names: [a, b], limit: 300, unit: one basket}"))
    high = [Query(0, 10**6, "tea", time_ms=time) for time in (1000, 2000, 3000)]
    play.more(high[0], high[1])
    assert play.run_state().tops == 1
    _command(play, "unmute", series="tea")
    play.crash()
    play.more(high[2])
    assert play.run_state().tops == 2
    assert "has not muted series 'milk'" in _command(play, "unmute", series="milk").data.detail["message"]
    _command(play, "mute", series="milk", until=4000)
    assert _command(play, "unmute", series="milk").data.reason == "accepted"
    play.more(Query(0, 10**6, "milk", time_ms=3500))
    assert play.run_state().tops == 3


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        ("mute", {"series": "tea"}, "names no end"),
        ("mute", {"until": 5000}, "names no series"),
        ("unmute", {}, "names no series"),
    ],
)
def test_a_mute_without_a_series_or_an_end_is_refused(action, fields, says):
    play = _play()
    assert says in _command(play, action, **fields).data.detail["message"]


def test_a_mute_of_all_datasets_and_of_one_monitor():
    play = _play(FORMS["plain"], FORMS["plain"])
    operations.apply(
        play.engine, Command(id="c", action=Action.MUTE, monitor="m1", series="tea", until_word="period")
    )
    play.commit()
    muted = [(e.data.dataset, e.data.monitor) for e in play.events if e.type is EventType.MUTED]
    assert muted == [("a", "m1"), ("b", "m1")]


def test_another_end_of_a_pause_replaces_the_one_before_and_the_same_is_refused():
    play = _play()
    _command(play, "pause")
    assert _command(play, "pause", until=5000).data.reason == "accepted"
    assert "already paused" in _command(play, "pause", until=5000).data.detail["message"]
    assert _command(play, "pause").data.reason == "accepted"
    _at(play, 9000)
    assert play.run_state().paused
    assert _command(play, "resume").data.reason == "accepted"
    assert (play.run_state().paused, play.run_state().paused_until) == (False, 0)


def test_a_pause_that_acts_now_closes_the_run_at_its_full_price():
    play = _play()
    owed = play.ledger().spent + play.ledger().reserved
    assert _command(play, "pause", now=True).data.reason == "accepted"
    assert (play.ledger().spent, play.ledger().reserved) == (owed, 0)
    (closed,) = [e for e in play.commits[-1].events if e.type is EventType.RUN_CLOSED]
    assert closed.data.reason == "paused"
    _more(play, 10**6)
    assert play.commits[-1].skipped == {("m0", "paused"): 1}
    _command(play, "resume")
    _more(play, 0)
    assert play.run_state().run == 2


def test_closing_releases_what_was_not_spent_until_a_resample_opens_a_new_run():
    play = _play()
    spent = play.ledger().spent
    assert play.ledger().reserved
    _command(play, "close")
    assert (play.ledger().spent, play.ledger().reserved) == (spent, 0)
    assert play.run_state().state is State.HALTED
    _more(play, 10**6, 10**6)
    assert play.commits[-1].skipped == {("m0", "stopped"): 2}
    play.crash()
    _more(play, 10**6)
    assert play.run_state().tops == 0
    _command(play, "resample")
    _more(play, 10**6)
    assert play.run_state().tops == 1
    assert play.run_state().run == 2
    assert_books_balance(play)


def test_a_resample_ends_the_run_and_the_next_query_pays_a_new_threshold():
    play = _play()
    charge = play.runs().plan.mechanism.threshold_units
    spent = play.ledger().spent
    _command(play, "resample")
    assert play.run_state().state is State.HALTED
    assert play.ledger().spent == spent
    _more(play, 0)
    assert play.run_state().run == 2
    assert play.ledger().spent == spent + charge
    assert_books_balance(play)


def test_an_exhausted_monitor_is_announced_once_counts_skips_and_runs_again_after_a_raise():
    play = _play()
    _more(play, *[10**6] * 20)
    _more(play, *[10**6] * 5)
    assert play.run_state().state is State.EXHAUSTED
    assert play.commits[-1].skipped == {("m0", "exhausted"): 5}
    assert sum(e.type is EventType.EXHAUSTED for e in play.events) == 1
    assert play.ledger().spent <= play.ledger().limit
    refused = _command(play, "resample")
    assert "raise the budget first" in refused.data.detail["message"]
    accepted = _command(play, "raise-budget", limit="4.5", issued_by="me")
    assert "from epsilon 3 to 4.5" in accepted.data.detail["message"]
    assert play.ledger().limit == 4_500_000_000
    assert play.run_state().state is State.IDLE
    play.crash()
    assert play.ledger().limit == 4_500_000_000
    tops = play.run_state().tops
    _more(play, *[10**6] * 20)
    assert play.run_state().tops > tops
    assert sum(e.type is EventType.EXHAUSTED for e in play.events) == 2
    assert sum(e.type is EventType.BUDGET_RAISED for e in play.events) == 1
    assert_books_balance(play)


def _says(play, limit: str) -> str:
    return str(_command(play, "raise-budget", limit=limit).data.detail["message"])


def test_the_reply_to_a_raise_says_what_still_keeps_each_monitor_from_testing():
    play = _play()
    assert _says(play, "3.1").endswith("; m0 has a run open")
    _command(play, "pause")
    assert _says(play, "3.2").endswith(
        "; m0 is paused ('control resume' ends that), after which it has a run open"
    )
    _command(play, "close")
    stopped = "is stopped: 'control resample' begins a run"
    assert _says(play, "3.25").endswith(
        f"; m0 is paused ('control resume' ends that), after which it {stopped}"
    )
    _command(play, "resume")
    assert _says(play, "3.3").endswith(f"; m0 {stopped}")
    _command(play, "resample")
    _more(play, *[10**6] * 20)
    assert play.run_state().state is State.EXHAUSTED
    left = play.ledger().limit - play.ledger().spent
    few, enough = (f"{play.ledger().limit / 10**9 + more:.9f}" for more in (0.001, 2))
    said = _says(play, few)
    assert "; m0 is exhausted: its shortest run costs epsilon " in said
    assert said.endswith(f", and epsilon {left / 10**9 + 0.001:.9g} is left")
    assert _says(play, enough).endswith("; m0 begins a run with its next query")
    _more(play, 10**6)
    assert play.run_state().state is State.RUNNING


def test_the_reply_to_a_raise_in_rho_says_that_a_monitor_waits_for_the_run_of_another():
    monitor = (
        "topic: t, epsilon: 1, cutoff: 9, sensitivity: 1, bounds: [0, 9], threshold: 5, expected_queries: 9"
    )
    play = Play(spec_of(monitor, monitor, datasets="{name: a, limit: {rho: 1}, unit: one basket}"))
    play.more(Query(0, 0))
    said = _says(play, "2")
    assert said.endswith("; m0 has a run open; m1 begins a run once that of another monitor has ended")


def test_both_the_declared_and_the_raised_limit_are_accepted_at_a_restart():
    play = _play()
    _command(play, "raise-budget", limit="4")
    play.crash()
    play.spec = spec_of(
        FORMS["never muted"],
        datasets="{names: [a], limit: 4, unit: one basket}\n  - {names: [b], limit: 3, unit: one basket}",
    )
    play.crash()
    assert play.ledger().limit == 4_000_000_000


@pytest.mark.parametrize(("end", "position"), [(2, (1, 3)), (1, (1, 0))])
def test_accepting_a_loss_tests_no_row_a_second_time(end, position):
    """The position is kept, also inside a columnar record, unless the topic ends before that record."""
    play = Play(spec_of(FORMS["never muted"]))
    queries = [Query(0, 0), *[Query(0, 10**6, f"s{row}") for row in range(6)]]
    batch = batch_of(TOPIC, queries, 0, 7)
    batch.offset = np.array([0] + [1] * 6)
    batch.row = np.array([0, *range(6)])
    batch.end = 2
    while play.engine.next_offset(TOPIC) == 0:
        assert play.engine.step(batch).durable_first
        play.commit()
    runner = play.engine.runners["m0"]
    assert (runner.offset, runner.row) == (1, 3)
    play.accept_loss(TOPIC, 1, end)
    assert (runner.offset, runner.row) == position


def test_accepting_a_loss_closes_the_topics_runs_at_full_price_and_drops_waiting_queries():
    play = _play(FORMS["sweep"], FORMS["retry"], queries=0)
    play.play(TOPIC, [Query(k % 2, 0, f"s{k}", "set") for k in range(40)])
    assert play.runs().queued(0)
    assert play.runs("m1").queued(0)
    reserved, spent = play.ledger().reserved, play.ledger().spent
    play.accept_loss(TOPIC, 1000)
    commit = play.commit()
    closed = [e for e in commit.events if e.type is EventType.RUN_CLOSED]
    assert {e.data.reason for e in closed} == {"loss"}
    assert (play.ledger().reserved, play.ledger().spent) == (0, spent + reserved)
    assert play.engine.next_offset(TOPIC) == 1000
    assert not any(runner.runs.queued(0) for runner in play.engine.runners.values())
    assert_books_balance(play)
    play.crash()
    assert not any(runner.runs.queued(0) for runner in play.engine.runners.values())
    assert play.engine.next_offset(TOPIC) == 1000


def test_accepting_a_loss_of_another_topic_touches_no_run():
    play = _play()
    before = engine_state(play.engine)
    play.accept_loss("elsewhere", 1000)
    play.commit()
    assert engine_state(play.engine) == before


def test_a_command_for_a_monitor_that_never_ran_works():
    play = Play(spec_of(FORMS["plain"], datasets=_LIMIT))
    assert _command(play, "close").data.reason == "accepted"
    assert play.run_state().state is State.HALTED
    _more(play, 10**6)
    assert play.run_state().tops == 0
    assert _command(play, "resample").data.reason == "accepted"
    _more(play, 10**6)
    assert play.run_state().tops == 1
