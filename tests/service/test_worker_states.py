"""The life of a worker: one table, by which it is a member of its group or not."""

from __future__ import annotations

import itertools

import pytest

from stream_svt.errors import MisuseError
from stream_svt.service.worker_states import TRANSITIONS, Signal, State
from stream_svt.transitions import follow


def advance(state: State, signal: Signal) -> State:
    return follow(TRANSITIONS, state, signal, "a worker")


def test_only_one_that_has_joined_is_a_member() -> None:
    into = {pair for pair, follows in TRANSITIONS.items() if follows is State.MEMBER}
    assert into == {(State.JOINING, Signal.JOINED), (State.OUTSIDE, Signal.JOINED)}


@pytest.mark.parametrize("state", [State.JOINING, State.OUTSIDE, State.MEMBER])
def test_a_fault_leads_out_of_the_group_and_back(state: State) -> None:
    assert advance(state, Signal.FAULT) is State.OUTSIDE
    assert advance(advance(state, Signal.FAULT), Signal.JOINED) is State.MEMBER


@pytest.mark.parametrize("signal", [Signal.JOINED, Signal.FAULT, Signal.FAILED])
@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED])
def test_one_that_has_ended_stays_so(state: State, signal: Signal) -> None:
    assert advance(state, signal) is state
    assert advance(state, Signal.STOPPED) is State.STOPPED


def test_a_member_does_not_join_twice() -> None:
    missing = [pair for pair in itertools.product(State, Signal) if pair not in TRANSITIONS]
    assert missing == [(State.MEMBER, Signal.JOINED)]
    with pytest.raises(MisuseError, match="a worker that is member cannot take the signal 'joined'"):
        advance(*missing[0])
