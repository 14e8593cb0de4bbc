"""The life cycle as a table: every state takes every signal, or refuses it and stays as it is."""

from __future__ import annotations

import itertools

import pytest

from stream_svt.errors import MisuseError
from stream_svt.monitor.snapshot import TRANSITIONS, RunState, Signal, State
from tests.golden.regenerate import STATE_MACHINE, state_machine

_EVERY = list(itertools.product(State, Signal))


@pytest.mark.parametrize(("state", "signal"), _EVERY)
def test_a_signal_leads_where_the_table_says_or_is_refused_and_changes_nothing(state, signal):
    run_state = RunState(state=state)
    if (state, signal) in TRANSITIONS:
        run_state.signal(signal)
        assert run_state.state is TRANSITIONS[state, signal]
        return
    with pytest.raises(MisuseError, match=f"{state} cannot take the signal '{signal}'"):
        run_state.signal(signal)
    assert run_state.state is state


def test_only_admission_by_the_ledger_leads_to_running():
    assert {signal for (state, signal), to in TRANSITIONS.items() if to is State.RUNNING} == {
        Signal.ADMITTED,
        Signal.TOP,
    }
    assert [state for (state, signal), to in TRANSITIONS.items() if signal is Signal.TOP] == [State.RUNNING]


def test_an_exhausted_monitor_is_never_admitted_before_its_budget_is_raised_or_it_is_closed():
    leads = {signal: to for (state, signal), to in TRANSITIONS.items() if state is State.EXHAUSTED}
    assert leads == {Signal.BUDGET_RAISED: State.IDLE, Signal.CLOSED: State.HALTED}


def test_every_state_is_reached_and_left():
    assert set(TRANSITIONS.values()) == set(State)
    assert {state for (state, _), to in TRANSITIONS.items() if to is not state} == set(State)


def test_the_page_in_the_docs_shows_the_table():
    assert STATE_MACHINE.read_text(encoding="utf-8") == state_machine(), (
        "docs/state-machine.md is not what the table says: run python -m tests.golden.regenerate"
    )
