"""The states of one monitor on one dataset, and what leads from one to the next.

A monitor is *idle* until its first query. *Admitted* by the ledger it runs, with a fresh threshold noise; its
last top halts it. A halted monitor is admitted again where its policy says so, unless the ledger refuses: then
it is exhausted until its budget is raised. An operator's *close* halts it for good, until a *reopen*.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a monitor stands; public, because it follows from released outcomes and commands alone."""

    IDLE = "idle"
    RUNNING = "running"
    HALTED = "halted"
    EXHAUSTED = "exhausted"


class Signal(StrEnum):
    """What can happen to a monitor."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    TOP = "top"
    LAST_TOP = "last top"
    ENDED = "ended"
    CLOSED = "closed"
    BUDGET_RAISED = "budget raised"


TRANSITIONS: Mapping[tuple[State, Signal], State] = {
    (State.IDLE, Signal.ADMITTED): State.RUNNING,
    (State.IDLE, Signal.REFUSED): State.EXHAUSTED,
    (State.IDLE, Signal.CLOSED): State.HALTED,
    (State.RUNNING, Signal.TOP): State.RUNNING,
    (State.RUNNING, Signal.LAST_TOP): State.HALTED,
    (State.RUNNING, Signal.ENDED): State.HALTED,
    (State.RUNNING, Signal.CLOSED): State.HALTED,
    (State.HALTED, Signal.ADMITTED): State.RUNNING,
    (State.HALTED, Signal.REFUSED): State.EXHAUSTED,
    (State.HALTED, Signal.CLOSED): State.HALTED,
    (State.EXHAUSTED, Signal.BUDGET_RAISED): State.IDLE,
    (State.EXHAUSTED, Signal.CLOSED): State.HALTED,
}
