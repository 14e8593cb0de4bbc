"""What the demo's screen knows: the released events, folded, and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.released import Alert, Envelope, EventType, Lifecycle
from stream_svt.monitor.released_status import Budget, MonitorStatus, ReleasedStatus

RECENT = 200


@dataclass(frozen=True, slots=True)
class Tally:
    """One monitor over all datasets, of which ``statuses`` knows each."""

    alerts: list[Alert]
    statuses: Mapping[str, MonitorStatus]

    @property
    def halts(self) -> int:
        """Runs that have used all their alerts."""
        return sum(status.halts for status in self.statuses.values())

    @property
    def resamples(self) -> int:
        """Runs after the first of a dataset."""
        return sum(max(status.run - 1, 0) for status in self.statuses.values())

    @property
    def states(self) -> dict[str, str]:
        """Latest state by dataset, where it is no longer idle."""
        return {
            name: status.shown for name, status in self.statuses.items() if status.state is not State.IDLE
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One released event as a line of the screen."""

    dataset: str
    monitor: str
    kind: str
    alert: Alert | None
    text: str


class DemoStatus(ReleasedStatus):
    """Counts what the screen and the summary show: every alert, and a line for what happened."""

    def __init__(self, limits: dict[str, float], monitors: tuple[str, ...]) -> None:
        super().__init__(
            {dataset: Budget(limit) for dataset, limit in limits.items()}, dict.fromkeys(monitors, limits)
        )
        self.tallies = {monitor: Tally([], statuses) for monitor, statuses in self.statuses.items()}
        self.recent: deque[Entry] = deque(maxlen=RECENT)

    def tell(self, envelope: Envelope, data: Alert | Lifecycle) -> Entry | None:
        """Fold one event; return its line, or None for what needs no line."""
        self.take(envelope, data)
        entry = self._alert(data) if isinstance(data, Alert) else _lifecycle(envelope.type, data)
        if entry is not None:
            self.recent.append(entry)
        return entry

    def _alert(self, alert: Alert) -> Entry:
        self.tallies[alert.monitor].alerts.append(alert)
        # On the demo's grid of whole counts all released figures but the estimate are whole numbers.
        estimate = "not certified" if alert.estimate is None else f"{alert.estimate:.1f}"
        bound = "not certified" if alert.bound is None else f">= {alert.bound:g} ({1 - alert.beta:.0%})"
        text = (
            f"gap {alert.gap:g}, estimate {estimate}, bound {bound}, {alert.branch} branch, "
            f"attempt {alert.attempt}, run {alert.run} top {alert.top}"
        )
        return Entry(alert.dataset, alert.monitor, "ALERT", alert, f"{alert.series}: {text}")


def _lifecycle(kind: str, event: Lifecycle) -> Entry | None:
    match kind:
        case EventType.RUN_STARTED if event.run == 1:
            return _line(event, "started", "first run, threshold noise drawn and charged")
        case EventType.RUN_STARTED:
            return _line(event, "resampled", f"run {event.run}, fresh threshold noise drawn and charged")
        case EventType.RUN_HALTED:
            return _line(event, "halted", f"run {event.run} has used all its alerts")
        case EventType.EXHAUSTED:
            return _line(event, "exhausted", "the budget cannot pay another run")
    return None


def _line(event: Lifecycle, kind: str, text: str) -> Entry:
    return Entry(event.dataset, event.monitor, kind, None, text)
