"""The states of one worker, and what leads from one to the next.

A worker is *joining* until it becomes a *member* of its group. One that fails a test of its own, or whose membership
fails, is *outside* the group until it can join again. What cannot pass ends it at its start only: it has *failed*.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class WorkerState(StrEnum):
    """What a worker is doing."""

    JOINING = "joining"
    OUTSIDE = "outside"
    MEMBER = "member"
    FAILED = "failed"
    STOPPED = "stopped"


class WorkerSignal(StrEnum):
    """What can happen to a worker."""

    JOINED = "joined"
    FAULT = "fault"
    FAILED = "failed"
    STOPPED = "stopped"


_LATE = (WorkerSignal.JOINED, WorkerSignal.FAULT, WorkerSignal.FAILED)

TRANSITIONS: Mapping[tuple[WorkerState, WorkerSignal], WorkerState] = {
    (WorkerState.JOINING, WorkerSignal.JOINED): WorkerState.MEMBER,
    (WorkerState.OUTSIDE, WorkerSignal.JOINED): WorkerState.MEMBER,
    (WorkerState.JOINING, WorkerSignal.FAULT): WorkerState.OUTSIDE,
    (WorkerState.OUTSIDE, WorkerSignal.FAULT): WorkerState.OUTSIDE,
    (WorkerState.MEMBER, WorkerSignal.FAULT): WorkerState.OUTSIDE,
    **{
        (state, WorkerSignal.FAILED): WorkerState.FAILED
        for state in (WorkerState.JOINING, WorkerState.OUTSIDE, WorkerState.MEMBER)
    },
    **{(state, WorkerSignal.STOPPED): WorkerState.STOPPED for state in WorkerState},
    # What was under way when it ended may still be told.
    **{(state, signal): state for state in (WorkerState.FAILED, WorkerState.STOPPED) for signal in _LATE},
}
