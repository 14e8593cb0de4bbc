"""What the demo's screen knows: the released events, folded, and nothing else."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stream_svt.monitor.released import Account, Alert, Envelope, EventType, Lifecycle

RECENT = 200


@dataclass(slots=True)
class Budget:
    """A dataset's books after its latest event, in epsilon."""

    limit: float
    spent: float = 0.0
    reserved: float = 0.0


@dataclass(slots=True)
class Tally:
    """One monitor over all datasets.

    Attributes
    ----------
    states
        Latest state by dataset: running, halted or exhausted.
    """

    alerts: list[Alert] = field(default_factory=list)
    halts: int = 0
    resamples: int = 0
    states: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One released event as a line of the screen."""

    dataset: str
    monitor: str
    kind: str
    alert: Alert | None
    text: str


class Board:
    """Folds released events in the order read into what the screen and the summary show."""

    def __init__(self, limits: dict[str, float], monitors: tuple[str, ...]) -> None:
        self.budgets = {dataset: Budget(limit) for dataset, limit in limits.items()}
        self.tallies = {monitor: Tally() for monitor in monitors}
        self.recent: deque[Entry] = deque(maxlen=RECENT)
        self.alerts = 0

    def take(self, envelope: Envelope, data: Alert | Lifecycle) -> Entry | None:
        """Fold one event; return its line, or None for what needs no line."""
        if data.account is not None:
            self._book(data.dataset, data.account)
        entry = self._alert(data) if isinstance(data, Alert) else self._lifecycle(envelope.type, data)
        if entry is not None:
            self.recent.append(entry)
        return entry

    def exhausted(self) -> list[str]:
        """Return the datasets whose every monitor has nothing left to spend."""
        return [
            dataset
            for dataset in self.budgets
            if all(tally.states.get(dataset) == "exhausted" for tally in self.tallies.values())
        ]

    def _book(self, dataset: str, account: Account) -> None:
        budget = self.budgets.setdefault(dataset, Budget(account.limit))
        # Monitors of a dataset share its books: every event carries their whole.
        budget.limit, budget.spent, budget.reserved = account.limit, account.spent, account.reserved

    def _alert(self, alert: Alert) -> Entry:
        self.alerts += 1
        self.tallies.setdefault(alert.monitor, Tally()).alerts.append(alert)
        # On the demo's grid of whole counts all released figures but the estimate are whole numbers.
        estimate = "not certified" if alert.estimate is None else f"{alert.estimate:.1f}"
        bound = "not certified" if alert.bound is None else f">= {alert.bound:g} ({1 - alert.beta:.0%})"
        text = (
            f"gap {alert.gap:g}, estimate {estimate}, bound {bound}, {alert.branch} branch, "
            f"attempt {alert.attempt}, run {alert.run} top {alert.top}"
        )
        return Entry(alert.dataset, alert.monitor, "ALERT", alert, f"{alert.series}: {text}")

    def _lifecycle(self, kind: str, event: Lifecycle) -> Entry | None:
        tally = self.tallies.setdefault(event.monitor, Tally()) if event.monitor else Tally()
        match kind:
            case EventType.RUN_STARTED:
                tally.states[event.dataset] = "running"
                if event.run == 1:
                    return self._line(event, "started", "first run, threshold noise drawn and charged")
                tally.resamples += 1
                text = f"run {event.run}, fresh threshold noise drawn and charged"
                return self._line(event, "resampled", text)
            case EventType.RUN_HALTED:
                tally.halts += 1
                tally.states[event.dataset] = "halted"
                return self._line(event, "halted", f"run {event.run} has used all its alerts")
            case EventType.EXHAUSTED:
                tally.states[event.dataset] = "exhausted"
                return self._line(event, "exhausted", "the budget cannot pay another run")
        return None

    @staticmethod
    def _line(event: Lifecycle, kind: str, text: str) -> Entry:
        return Entry(event.dataset, event.monitor, kind, None, text)
