"""What a reader of released events knows: the accounts of datasets and the states of monitors, folded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stream_svt.monitor.released import Account, Alert, Envelope, EventType, Lifecycle
from stream_svt.monitor.snapshot import RunState, State

CHARGES_KEPT = 50
"""Latest charges of a dataset: enough to know its pace, and no more than that."""

_AFTER: Mapping[str, State] = {
    EventType.ALERT: State.RUNNING,
    EventType.RUN_STARTED: State.RUNNING,
    EventType.RUN_HALTED: State.HALTED,
    EventType.RUN_CLOSED: State.HALTED,
    EventType.EXHAUSTED: State.EXHAUSTED,
}


@dataclass(slots=True)
class Budget:
    """A dataset's account after its latest event, in epsilon or rho as ``measure`` says.

    Attributes:
        charges: The latest ones as (Unix time in seconds, amount), oldest first.
        told: Whether an event has told them: until then the limit is that of the declaration.
    """

    limit: float
    measure: str = "epsilon"
    spent: float = 0.0
    reserved: float = 0.0
    charges: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=CHARGES_KEPT))
    told: bool = False

    def take(self, account: Account, time: str) -> None:
        """Take an event's account: monitors of a dataset share it, and every event carries all of it."""
        self.measure, self.limit = account.measure, account.limit
        self.spent, self.reserved, self.told = account.spent, account.reserved, True
        if account.charge > 0:
            self.charges.append((datetime.fromisoformat(time).timestamp(), account.charge))

    @property
    def left(self) -> float:
        """What may still be spent, what open runs have reserved included."""
        return max(self.limit - self.spent, 0.0)


class ReleasedStatus:
    """Folds released events, in the order read, into accounts and states; those about other datasets leave no trace.

    ``statuses`` has by monitor and dataset the state, run, tops and halts, as far as the events tell.
    """

    def __init__(self, budgets: Mapping[str, Budget], covers: Mapping[str, Iterable[str]]) -> None:
        self.budgets = dict(budgets)
        self.statuses = {
            monitor: {dataset: RunState() for dataset in datasets} for monitor, datasets in covers.items()
        }

    def take(self, envelope: Envelope, data: Alert | Lifecycle) -> None:
        """Fold one event."""
        budget, kind = self.budgets.get(data.dataset), envelope.type
        if budget is None:
            return
        if data.account is not None:
            budget.take(data.account, envelope.time)
        if kind == EventType.BUDGET_RAISED:
            for woken in self.of_dataset(data.dataset).values():
                if woken.state is State.EXHAUSTED:
                    woken.state = State.IDLE
        status = self.statuses.get(data.monitor, {}).get(data.dataset)
        if status is not None:
            status.run = data.run
            status.tops += kind == EventType.ALERT
            status.halts += kind == EventType.RUN_HALTED
            if kind in (EventType.PAUSED, EventType.RESUMED):
                status.paused = kind == EventType.PAUSED
            status.state = _AFTER.get(kind, status.state)

    def of_dataset(self, dataset: str) -> dict[str, RunState]:
        """Return the monitors on a dataset, by name."""
        return {
            monitor: statuses[dataset] for monitor, statuses in self.statuses.items() if dataset in statuses
        }

    def exhausted(self) -> list[str]:
        """Return the datasets whose every monitor has nothing left to spend."""
        return [
            dataset
            for dataset in self.budgets
            if (statuses := self.of_dataset(dataset).values())
            and all(status.state is State.EXHAUSTED for status in statuses)
        ]
