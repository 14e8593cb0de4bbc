"""The books: every charge is an event, and the sum never passes the limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.snapshot import State
from stream_svt.privacy.loss import Kind
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import (
    FORMS,
    TOPIC,
    assert_books_balance,
    interrupted,
    spec_of,
    stream,
    transcript,
    uninterrupted,
)

_HIGH = 10**7


def _only(form: str, limit: str, queries: int = 60) -> Play:
    play = Play(spec_of(form, datasets=f"{{name: a, limit: {limit}, unit: one basket}}"))
    play.play(TOPIC, [Query(0, _HIGH) for _ in range(queries)])
    assert_books_balance(play)
    return play


@pytest.mark.parametrize("limit", ["1", "1.3", "1.65", "2", "2.9", "10/3"])
@pytest.mark.parametrize("form", ["never muted", "ladder", "adaptive"])
def test_the_last_run_is_as_long_as_the_budget_allows(form, limit):
    play = _only(FORMS[form] + ("" if "mute" in FORMS[form] else ", mute: none"), limit, queries=200)
    account = play.engine.accounts.account(0)
    mechanism = play.runs().plan.mechanism
    assert account.run_states["m0"].state is State.EXHAUSTED
    assert account.ledger.available < mechanism.threshold_units + mechanism.smallest_units
    assert account.ledger.reserved == 0


def test_a_shortened_run_has_fewer_tops_and_the_same_noise():
    play = _only(FORMS["never muted"], "1.8")
    runs = [alert.run for alert in play.alerts()]
    assert runs.count(1) == 3
    assert 1 <= runs.count(2) < 3
    laws = {(one.query_noise.scale, one.threshold_noise.scale) for one in play.alerts()}
    assert len(laws) == 1


def test_adaptive_goes_on_with_the_top_branch_alone():
    play = Play(
        spec_of(FORMS["adaptive"] + ", mute: none, on_halt: stop", datasets="{name: a, limit: 1, unit: u}")
    )
    mechanism = play.runs().plan.mechanism
    top, middle = (branch.charge_units for branch in mechanism.branches)
    seen = False
    for last in range(1, 40):
        play.feed(TOPIC, [Query(0, _HIGH)] * 40, last)
        play.commit()
        run_state = play.run_state()
        view = play.views()[0].monitors[0]
        assert view.top_branch_only == (run_state.state is State.RUNNING and run_state.left < middle)
        seen |= view.top_branch_only
    assert len(play.alerts()) == (mechanism.epsilon_units - mechanism.threshold_units) // top
    assert {alert.branch for alert in play.alerts()} == {"top"}
    # an odd number of cheap tops leaves a run that pays no middle top
    assert seen


def test_a_middle_top_that_the_run_cannot_pay_is_a_bottom():
    """With less left than a middle top, a query that reaches only the middle branch is not reported."""
    spec = spec_of(
        "topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
        "mechanism: adaptive, expected_queries: 10, mute: none",
        datasets="{name: a, limit: 1, unit: u}",
    )
    play = Play(spec)
    play.play(TOPIC, [Query(0, _HIGH), *[Query(0, 500 + k % 40) for k in range(300)]])
    tops = play.alerts()
    assert len(tops) <= 2
    assert {alert.branch for alert in tops} == {"top"}
    assert_books_balance(play)


def test_a_reserve_is_left_for_others():
    play = _only(FORMS["never muted"] + ", reserve: 0.8", "3")
    assert 800_000_000 <= play.ledger().available < 1_800_000_000
    assert play.run_state().state is State.EXHAUSTED


def test_runs_resampled_on_schedule_release_what_they_did_not_spend():
    form = FORMS["resampled"]
    play = Play(spec_of(form, datasets="{name: a, limit: 5, unit: one basket}"))
    queries = [Query(0, 0, time_ms=1000 * k) for k in range(26)]
    play.play(TOPIC, queries)
    mechanism = play.runs().plan.mechanism
    run_state = play.run_state()
    assert run_state.run == 6
    assert play.ledger().spent == 6 * mechanism.threshold_units
    assert play.ledger().reserved == mechanism.epsilon_units - mechanism.threshold_units
    closed = [e for e in play.events if e.type is EventType.RUN_CLOSED]
    assert [e.data.reason for e in closed] == ["schedule"] * 5
    assert_books_balance(play)


def test_a_schedule_goes_on_for_a_monitor_that_stops_on_halt():
    """`on_halt` applies after a run's last top, not after its scheduled end."""
    play = Play(
        spec_of(FORMS["resampled"] + ", on_halt: stop", datasets="{name: a, limit: 5, unit: one basket}")
    )
    play.play(TOPIC, [Query(0, 0, time_ms=1000 * k) for k in range(13)])
    assert play.run_state().run == 3
    play.more(*[Query(0, _HIGH, time_ms=13_000)] * 5)
    assert play.run_state().state is State.HALTED
    play.more(*[Query(0, _HIGH, time_ms=60_000)] * 5)
    assert play.run_state().run == 3


@pytest.mark.parametrize("form", ["never muted", "adaptive", "general", "ladder"])
def test_under_zcdp_a_run_is_paid_whole_when_it_opens_and_nothing_comes_back(form):
    spec = spec_of(
        FORMS[form] + ", resample_every: 5s", datasets="{name: a, limit: {rho: 3}, unit: one basket}"
    )
    play = Play(spec)
    price = play.runs().plan.spec.run_price(Kind.ZCDP)
    assert price == spec.monitors[0].run_price(Kind.ZCDP)
    play.play(TOPIC, [Query(0, 0, time_ms=0), Query(0, _HIGH, time_ms=1), Query(0, 0, time_ms=7000)])
    ledger = play.ledger()
    assert ledger.spent == 2 * price
    assert ledger.reserved == 0
    charges = [
        (e.type, e.data.account.charge) for e in play.events if e.data.account and e.data.account.charge
    ]
    assert [kind for kind, _ in charges] == [EventType.RUN_STARTED] * 2
    assert_books_balance(play)
    play.more(*[Query(0, 0, time_ms=7000 * k) for k in range(2, 60)])
    assert play.run_state().state is State.EXHAUSTED
    ledger = play.ledger()
    assert ledger.spent == ledger.limit // price * price
    assert_books_balance(play)


def test_under_zcdp_one_run_is_open_at_a_time():
    limit = "{name: a, limit: {rho: 90}, unit: one basket}"
    spec = spec_of(FORMS["never muted"], FORMS["stopped"] + ", mute: none", datasets=limit)
    play = Play(spec)
    for last in range(1, 200):
        play.feed(TOPIC, [Query(0, _HIGH if k % 3 == 0 else 0) for k in range(200)], last)
        play.commit()
        open_now = [
            name for name, s in play.engine.accounts.account(0).run_states.items() if s.state is State.RUNNING
        ]
        assert len(open_now) <= 1
        assert bool(open_now) == play.ledger().run_open
        if last % 50 == 0:
            play.crash()
    assert_books_balance(play)


def test_under_zcdp_a_closed_run_and_a_loss_are_not_charged_again():
    play = Play(spec_of(FORMS["plain"], datasets="{name: a, limit: {rho: 90}, unit: one basket}"))
    play.play(TOPIC, [Query(0, 0)])
    spent = play.ledger().spent
    play.accept_loss(TOPIC, 10)
    play.commit()
    assert play.ledger().spent == spent
    assert not play.ledger().run_open
    assert_books_balance(play)


def test_the_first_event_of_a_dataset_declares_it():
    play = uninterrupted(spec_of(FORMS["plain"]), stream(1, 50))
    first = {}
    for event in play.events:
        first.setdefault(event.data.dataset, event)
    assert {event.type for event in first.values()} == {EventType.DECLARED}
    assert {event.data.detail["unit"] for event in first.values()} == {"one basket"}


@given(
    limit=st.integers(10**9, 4 * 10**9),
    form=st.sampled_from(["plain", "adaptive", "ladder", "sweep", "retry", "resampled", "few mutes"]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_books_balance_for_every_limit_to_the_last_unit(limit, form, seed):
    spec = spec_of(FORMS[form], datasets=f"{{names: [a, b, c], limit: {limit}e-9, unit: u}}")
    play = interrupted(spec, stream(seed, 150), random.Random(seed).randrange)
    assert_books_balance(play)
    assert transcript(play) == transcript(uninterrupted(spec, stream(seed, 150)))
    for number in range(3):
        account = play.engine.accounts.account(number)
        reserved = sum(run_state.left for run_state in account.run_states.values())
        assert reserved == account.ledger.reserved
