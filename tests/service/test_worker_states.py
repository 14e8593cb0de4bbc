"""The life of a worker: one table, by which it is a member of its group or not."""

from __future__ import annotations

import itertools

import pytest

from stream_svt.errors import MisuseError
from stream_svt.service.worker import TRANSITIONS, WorkerSignal, WorkerState
from stream_svt.transitions import follow


def advance(state: WorkerState, signal: WorkerSignal) -> WorkerState:
    return follow(TRANSITIONS, state, signal, "a worker")


def test_only_one_that_has_joined_is_a_member() -> None:
    into = {pair for pair, follows in TRANSITIONS.items() if follows is WorkerState.MEMBER}
    assert into == {(WorkerState.JOINING, WorkerSignal.JOINED), (WorkerState.OUTSIDE, WorkerSignal.JOINED)}


@pytest.mark.parametrize("state", [WorkerState.JOINING, WorkerState.OUTSIDE, WorkerState.MEMBER])
def test_a_fault_leads_out_of_the_group_and_back(state: WorkerState) -> None:
    assert advance(state, WorkerSignal.FAULT) is WorkerState.OUTSIDE
    assert advance(advance(state, WorkerSignal.FAULT), WorkerSignal.JOINED) is WorkerState.MEMBER


@pytest.mark.parametrize("signal", [WorkerSignal.JOINED, WorkerSignal.FAULT, WorkerSignal.FAILED])
@pytest.mark.parametrize("state", [WorkerState.FAILED, WorkerState.STOPPED])
def test_one_that_has_ended_stays_so(state: WorkerState, signal: WorkerSignal) -> None:
    assert advance(state, signal) is state
    assert advance(state, WorkerSignal.STOPPED) is WorkerState.STOPPED


def test_a_member_does_not_join_twice() -> None:
    missing = [pair for pair in itertools.product(WorkerState, WorkerSignal) if pair not in TRANSITIONS]
    assert missing == [(WorkerState.MEMBER, WorkerSignal.JOINED)]
    with pytest.raises(MisuseError, match="a worker that is member cannot take the signal 'joined'"):
        advance(*missing[0])
