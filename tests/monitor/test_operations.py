"""Commands: each is carried out and acknowledged, or is refused with the reason and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType, ReleasedEvent
from stream_svt.monitor.snapshot import State
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, TOPIC, assert_books_balance, engine_state, spec_of

_LIMIT = "{names: [a, b], limit: 3, unit: one basket}"


def _play(*forms: str, queries: int = 30, datasets: str = _LIMIT) -> Play:
    play = Play(spec_of(*(forms or (FORMS["never muted"],)), datasets=datasets))
    play.play(TOPIC, [Query(k % 2, 0) for k in range(queries)])
    return play


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
    assert play.commits[-1].skipped == {("m0", "halted"): 2}
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
