"""The life of a shard on a worker: one table, and the page made from it."""

from __future__ import annotations

import itertools

import pytest

from stream_svt.errors import MisuseError
from stream_svt.protocol.shard_states import OPEN, TRANSITIONS, Cause, ShardStatus, Signal, State
from stream_svt.transitions import follow


def test_the_way_from_a_takeover_to_the_end() -> None:
    status = ShardStatus(0)
    for signal, state in (
        (Signal.OPENED, State.OPENING),
        (Signal.TAKEN_OVER, State.REPLAYING),
        (Signal.REPLAYED, State.RUNNING),
        (Signal.APPLIED, State.OPENING),
        (Signal.STOPPED, State.STOPPED),
    ):
        status.signal(signal)
        assert status.state is state


@pytest.mark.parametrize("state", [state for state in State if state is not State.STOPPED])
def test_a_shard_parks_from_every_state_and_opens_again(state: State) -> None:
    assert follow(TRANSITIONS, state, Signal.PARKED, "a shard") is State.PARKED
    assert follow(TRANSITIONS, State.PARKED, Signal.OPENED, "a shard") is State.OPENING


@pytest.mark.parametrize(
    ("state", "signal"),
    [pair for pair in itertools.product(State, Signal) if pair not in TRANSITIONS],
    ids=str,
)
def test_a_signal_that_cannot_happen_raises_and_changes_nothing(state: State, signal: Signal) -> None:
    status = ShardStatus(0, state)
    with pytest.raises(MisuseError, match=f"a shard that is {state} cannot take the signal '{signal}'"):
        status.signal(signal, Cause.ERROR, "x")
    assert (status.state, status.cause, status.reason) == (state, Cause.NONE, "")


def test_only_a_takeover_leads_to_an_open_shard() -> None:
    into = {
        (state, signal)
        for (state, signal), follows in TRANSITIONS.items()
        if follows in OPEN and state not in OPEN
    }
    assert into == {(State.OPENING, Signal.TAKEN_OVER)}


def test_cause_and_reason_stay_until_another_cause_is_given() -> None:
    status = ShardStatus(0)
    status.signal(Signal.PARKED, Cause.CONFIGURATION, "a dataset was removed")
    status.signal(Signal.OPENED)
    assert (status.cause, status.reason) == (Cause.CONFIGURATION, "a dataset was removed")
    status.signal(Signal.TAKEN_OVER, Cause.NONE)
    assert (status.cause, status.reason) == (Cause.NONE, "")
