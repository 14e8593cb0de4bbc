"""What a reader of released events knows: the books of datasets and the states of monitors, folded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.released import Account, Alert, Envelope, EventType, Lifecycle

CHARGES_KEPT = 50
"""Latest charges of a dataset: enough to know its pace, and no more than that."""

PAUSED = "paused"

_AFTER: Mapping[str, State] = {
    EventType.RUN_STARTED: State.RUNNING,
    EventType.RUN_HALTED: State.HALTED,
    EventType.RUN_CLOSED: State.HALTED,
    EventType.EXHAUSTED: State.EXHAUSTED,
}


@dataclass(slots=True)
class Budget:
    """A dataset's books after its latest event, in epsilon or rho as ``measure`` says.

    Attributes
    ----------
    charges
        The latest ones as (Unix time in seconds, amount), oldest first.
    told
        Whether an event has told them: until then the limit is that of the declaration.
    """

    limit: float
    measure: str = "epsilon"
    spent: float = 0.0
    reserved: float = 0.0
    charges: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=CHARGES_KEPT))
    told: bool = False

    @property
    def left(self) -> float:
        """What may still be spent, what open runs have reserved included."""
        return max(self.limit - self.spent, 0.0)


@dataclass(slots=True)
class Seat:
    """A monitor on a dataset, as far as the events read tell.

    ``state`` is idle, running, halted or exhausted; ``run`` is the number of the latest run.
    """

    state: State = State.IDLE
    paused: bool = False
    run: int = 0
    tops: int = 0
    halts: int = 0

    @property
    def shown(self) -> str:
        """The state in one word: a pause hides what is behind it."""
        return PAUSED if self.paused else self.state.value


class Board:
    """Folds released events, in the order read, into books and states.

    Parameters
    ----------
    budgets
        The datasets to keep books of, as declared. Events about others leave no trace.
    covers
        The datasets of each monitor, by its name.
    """

    def __init__(self, budgets: Mapping[str, Budget], covers: Mapping[str, Iterable[str]]) -> None:
        self.budgets = dict(budgets)
        self.seats = {
            monitor: {dataset: Seat() for dataset in datasets} for monitor, datasets in covers.items()
        }

    def take(self, envelope: Envelope, data: Alert | Lifecycle) -> None:
        """Fold one event."""
        budget = self.budgets.get(data.dataset)
        if budget is None:
            return
        if data.account is not None:
            _book(budget, data.account, envelope.time)
        if envelope.type == EventType.BUDGET_RAISED:
            for woken in self.of_dataset(data.dataset).values():
                if woken.state is State.EXHAUSTED:
                    woken.state = State.IDLE
        seat = self.seats.get(data.monitor, {}).get(data.dataset)
        if seat is not None:
            _sit(seat, envelope.type, data)

    def of_dataset(self, dataset: str) -> dict[str, Seat]:
        """Return the monitors on a dataset, by name."""
        return {monitor: seats[dataset] for monitor, seats in self.seats.items() if dataset in seats}

    def exhausted(self) -> list[str]:
        """Return the datasets whose every monitor has nothing left to spend."""
        found = []
        for dataset in self.budgets:
            seats = self.of_dataset(dataset).values()
            if seats and all(seat.state is State.EXHAUSTED for seat in seats):
                found.append(dataset)
        return found


def _book(budget: Budget, account: Account, time: str) -> None:
    # Monitors of a dataset share its books: every event carries their whole.
    budget.measure, budget.limit = account.measure, account.limit
    budget.spent, budget.reserved = account.spent, account.reserved
    budget.told = True
    if account.charge > 0:
        budget.charges.append((datetime.fromisoformat(time).timestamp(), account.charge))


def _sit(seat: Seat, kind: str, data: Alert | Lifecycle) -> None:
    seat.run = data.run
    match kind:
        case EventType.ALERT:
            seat.tops += 1
            seat.state = State.RUNNING
        case EventType.RUN_HALTED:
            seat.halts += 1
        case EventType.PAUSED | EventType.RESUMED:
            seat.paused = kind == EventType.PAUSED
    seat.state = _AFTER.get(kind, seat.state)
