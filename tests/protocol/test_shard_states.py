"""The life of a shard on a worker: one table, and what a status makes of it."""

from __future__ import annotations

import itertools

import pytest

from stream_svt.errors import MisuseError
from stream_svt.protocol.shard_states import OPEN, TRANSITIONS, Cause, ShardSignal, ShardState, ShardStatus


def test_every_state_but_the_last_may_park_all_may_open_and_only_a_takeover_leads_to_an_open_shard() -> None:
    for state in ShardState:
        assert TRANSITIONS[state, ShardSignal.OPENED] is ShardState.OPENING
        assert ((state, ShardSignal.PARKED) in TRANSITIONS) is (state is not ShardState.STOPPED)
    into = {pair for pair, follows in TRANSITIONS.items() if follows in OPEN and pair[0] not in OPEN}
    assert into == {(ShardState.OPENING, ShardSignal.TAKEN_OVER)}


def test_a_signal_that_cannot_happen_raises_and_changes_nothing() -> None:
    for state, signal in set(itertools.product(ShardState, ShardSignal)) - TRANSITIONS.keys():
        status = ShardStatus(0, state)
        with pytest.raises(MisuseError, match=f"a shard that is {state} cannot take the signal '{signal}'"):
            status.signal(signal, Cause.ERROR, "x")
        assert (status.state, status.cause, status.reason) == (state, Cause.NONE, "")


def test_cause_and_reason_stay_until_another_cause_is_given() -> None:
    status = ShardStatus(0)
    status.signal(ShardSignal.PARKED, Cause.CONFIGURATION, "a dataset was removed")
    status.signal(ShardSignal.OPENED)
    assert (status.cause, status.reason) == (Cause.CONFIGURATION, "a dataset was removed")
    status.signal(ShardSignal.TAKEN_OVER, Cause.NONE)
    assert (status.cause, status.reason) == (Cause.NONE, "")
