"""The life of a shard on a worker: one table, and the page made from it."""

from __future__ import annotations

import itertools

import pytest

from stream_svt.errors import MisuseError
from stream_svt.protocol.shard_states import OPEN, TRANSITIONS, Cause, ShardSignal, ShardState, ShardStatus
from stream_svt.transitions import follow


def test_the_way_from_a_takeover_to_the_end() -> None:
    status = ShardStatus(0)
    for signal, state in (
        (ShardSignal.OPENED, ShardState.OPENING),
        (ShardSignal.TAKEN_OVER, ShardState.REPLAYING),
        (ShardSignal.REPLAYED, ShardState.RUNNING),
        (ShardSignal.APPLIED, ShardState.OPENING),
        (ShardSignal.STOPPED, ShardState.STOPPED),
    ):
        status.signal(signal)
        assert status.state is state


@pytest.mark.parametrize("state", [state for state in ShardState if state is not ShardState.STOPPED])
def test_a_shard_parks_from_every_state_and_opens_again(state: ShardState) -> None:
    assert follow(TRANSITIONS, state, ShardSignal.PARKED, "a shard") is ShardState.PARKED
    assert follow(TRANSITIONS, ShardState.PARKED, ShardSignal.OPENED, "a shard") is ShardState.OPENING


@pytest.mark.parametrize(
    ("state", "signal"),
    [pair for pair in itertools.product(ShardState, ShardSignal) if pair not in TRANSITIONS],
    ids=str,
)
def test_a_signal_that_cannot_happen_raises_and_changes_nothing(
    state: ShardState, signal: ShardSignal
) -> None:
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
    assert into == {(ShardState.OPENING, ShardSignal.TAKEN_OVER)}


def test_cause_and_reason_stay_until_another_cause_is_given() -> None:
    status = ShardStatus(0)
    status.signal(ShardSignal.PARKED, Cause.CONFIGURATION, "a dataset was removed")
    status.signal(ShardSignal.OPENED)
    assert (status.cause, status.reason) == (Cause.CONFIGURATION, "a dataset was removed")
    status.signal(ShardSignal.TAKEN_OVER, Cause.NONE)
    assert (status.cause, status.reason) == (Cause.NONE, "")
