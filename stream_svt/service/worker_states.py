"""The states of one worker, and what leads from one to the next.

A worker is *joining* until it becomes a *member* of its group. One that fails a test of its own, or whose membership
fails, is *outside* the group until it can join again. What cannot pass ends it at its start only: it has *failed*.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """What a worker is doing."""

    JOINING = "joining"
    OUTSIDE = "outside"
    MEMBER = "member"
    FAILED = "failed"
    STOPPED = "stopped"


class Signal(StrEnum):
    """What can happen to a worker."""

    JOINED = "joined"
    FAULT = "fault"
    FAILED = "failed"
    STOPPED = "stopped"


_LATE = (Signal.JOINED, Signal.FAULT, Signal.FAILED)

TRANSITIONS: Mapping[tuple[State, Signal], State] = {
    (State.JOINING, Signal.JOINED): State.MEMBER,
    (State.OUTSIDE, Signal.JOINED): State.MEMBER,
    (State.JOINING, Signal.FAULT): State.OUTSIDE,
    (State.OUTSIDE, Signal.FAULT): State.OUTSIDE,
    (State.MEMBER, Signal.FAULT): State.OUTSIDE,
    **{(state, Signal.FAILED): State.FAILED for state in (State.JOINING, State.OUTSIDE, State.MEMBER)},
    **{(state, Signal.STOPPED): State.STOPPED for state in State},
    # What was under way when it ended may still be told.
    **{(state, signal): state for state in (State.FAILED, State.STOPPED) for signal in _LATE},
}
