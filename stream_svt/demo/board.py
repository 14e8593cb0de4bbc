"""What the demo knows: the released events, folded; how far it is; and the truth, which only it has.

An alert is *true* if the true count behind the query it names had reached the threshold. *Precision*: true alerts of
all alerts. *Recall*: of all (week, item) whose true count reached the threshold at some checkpoint asked, those that
the monitor alerted in that week. *Recall while funded* leaves out of both sides the weeks in which the monitor ran out
of budget. Whatever is shown of the truth is marked as truth: no user of a private monitor has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_svt.demo.config import MONITORS
from stream_svt.demo.data import Baskets
from stream_svt.demo.queries import SERIES, Clock, running_counts
from stream_svt.monitor.released import Alert, Envelope, EventType, Lifecycle
from stream_svt.monitor.released_status import Budget, ReleasedStatus
from stream_svt.monitor.snapshot import State


@dataclass(frozen=True, slots=True)
class Truth:
    """True counts of every checkpoint: those from ``threshold`` on are hot."""

    threshold: int
    _place: dict[str, int] = field(repr=False)
    _counts: NDArray[np.int32] = field(repr=False)
    _hot: list[frozenset[tuple[str, str]]] = field(repr=False)

    @classmethod
    def of(cls, baskets: Baskets, clock: Clock, threshold: int) -> Truth:
        """Count everything once."""
        place: dict[str, int] = {}
        rows: list[NDArray[np.int32]] = []
        hot: list[frozenset[tuple[str, str]]] = []
        for point, counts in running_counts(baskets, clock):
            place[point.set_id] = len(rows)
            rows.append(counts.astype(np.int32))
            columns = np.flatnonzero(counts >= threshold).tolist()
            hot.append(frozenset((point.dataset, SERIES % (column + 1)) for column in columns))
        return cls(threshold, place, np.array(rows), hot)

    def is_hot(self, query_id: str) -> bool:
        """Tell whether the true count behind a query, named ``set/item``, had reached the threshold."""
        set_id, item = query_id.split("/")
        return bool(self._counts[self._place[set_id], int(item) - 1] >= self.threshold)

    def hot_series(self, asked: Collection[str]) -> set[tuple[str, str]]:
        """Return (dataset, series) of every item that reached the threshold in the sets that were asked."""
        return set().union(*(self._hot[self._place[set_id]] for set_id in asked))


@dataclass(frozen=True, slots=True)
class Entry:
    """One released event as a line of the screen."""

    dataset: str
    monitor: str
    kind: str
    text: str
    alert: Alert | None = None


class Board(ReleasedStatus):
    """Everything the screen and the summary show; whoever runs the demo keeps the attributes up to date.

    Args:
        limits: Of the datasets.
        truth: None: nothing is judged.

    Attributes:
        alerts: All of each monitor.
        recent: The latest entries.
        asked: Sets that were closed, and can be read.
        line: The public clock.
        sent, seen: Queries sent, and queries that the service has tested or skipped, each counted once.
        seconds: Since the first query was sent.
    """

    def __init__(self, limits: Mapping[str, float], truth: Truth | None = None) -> None:
        super().__init__(
            {name: Budget(limit) for name, limit in limits.items()}, dict.fromkeys(MONITORS, limits)
        )
        self.alerts: dict[str, list[Alert]] = {monitor: [] for monitor in MONITORS}
        self.recent: deque[Entry] = deque(maxlen=200)
        self.asked: list[str] = []
        self.line = self.sent = self.seen = 0
        self.seconds = 0.0
        self.phase = "streaming"
        self._truth = truth

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.seen / self.seconds if self.seconds else 0.0

    def tell(self, envelope: Envelope, data: Alert | Lifecycle) -> Entry | None:
        """Fold one event; return its line, or None for what needs no line."""
        self.take(envelope, data)
        if isinstance(data, Alert):
            self.alerts[data.monitor].append(data)
            entry = Entry(data.dataset, data.monitor, "ALERT", _alert_text(data), data)
        elif (told := _told(envelope.type, data)) is not None:
            entry = Entry(data.dataset, data.monitor, *told)
        else:
            return None
        self.recent.append(entry)
        return entry

    def states(self, dataset: str) -> dict[str, str]:
        """Return the states of the monitors on a dataset that are no longer idle."""
        found = self.of_dataset(dataset).items()
        return {name: status.shown for name, status in found if status.state is not State.IDLE}

    def counts(self, *monitors: str) -> dict[str, int]:
        """Return what monitors did, over all datasets."""
        alerts = [alert for name in monitors for alert in self.alerts[name]]
        statuses = [status for name in monitors for status in self.statuses[name].values()]
        return {
            "alerts": len(alerts),
            "halts": sum(status.halts for status in statuses),
            "resamples": sum(max(status.run - 1, 0) for status in statuses),
            "alerts_at_later_attempts": sum(alert.attempt >= 2 for alert in alerts),
        }

    def judged(self, *monitors: str) -> dict[str, float | None]:
        """Return precision and recall; several monitors count an item once for each. None: nothing to divide by."""
        if self._truth is None:
            return dict.fromkeys(("precision", "recall", "recall_while_funded"))
        right = alerts = 0
        hits, hot = [0, 0], [0, 0]
        expected = self._truth.hot_series(self.asked)
        for name in monitors:
            alerts += len(self.alerts[name])
            right += sum(self._truth.is_hot(alert.query_id) for alert in self.alerts[name])
            told = {(alert.dataset, alert.series) for alert in self.alerts[name]}
            statuses = self.statuses[name]
            funded = {pair for pair in expected if statuses[pair[0]].state is not State.EXHAUSTED}
            for place, pairs in enumerate((expected, funded)):
                hits[place] += len(pairs & told)
                hot[place] += len(pairs)
        return {
            "precision": _ratio(right, alerts),
            "recall": _ratio(hits[0], hot[0]),
            "recall_while_funded": _ratio(hits[1], hot[1]),
        }

    def document(self) -> dict[str, object]:
        """Return the summary as it is written to a file. Rounded to four decimals; epsilon to nine."""
        return {
            "seconds": round(self.seconds, 1),
            **self._part(MONITORS),
            "monitors": {name: self._part([name]) for name in MONITORS},
            "datasets": {
                name: {"spent": round(budget.spent, 9), "limit": round(budget.limit, 9)}
                for name, budget in self.budgets.items()
            },
            "exhausted": self.exhausted(),
        }

    def _part(self, monitors: Sequence[str]) -> dict[str, object]:
        judged = {
            name: None if ratio is None else round(ratio, 4) for name, ratio in self.judged(*monitors).items()
        }
        asked = {"queries": self.seen, "queries_per_second": round(self.rate, 1)}
        return {**asked, **self.counts(*monitors), **judged}


def _alert_text(alert: Alert) -> str:
    # On the demo's grid of whole counts all released figures but the estimate are whole numbers.
    estimate = "not certified" if alert.estimate is None else f"{alert.estimate:.1f}"
    bound = "not certified" if alert.bound is None else f">= {alert.bound:g} ({1 - alert.beta:.0%})"
    return (
        f"{alert.series}: gap {alert.gap:g}, estimate {estimate}, bound {bound}, {alert.branch} branch, "
        f"attempt {alert.attempt}, run {alert.run} top {alert.top}"
    )


def _told(kind: str, event: Lifecycle) -> tuple[str, str] | None:
    """Return an event in a word and in words; None for what needs no line."""
    match kind:
        case EventType.RUN_STARTED if event.run == 1:
            return "started", "first run, threshold noise drawn and charged"
        case EventType.RUN_STARTED:
            return "resampled", f"run {event.run}, fresh threshold noise drawn and charged"
        case EventType.RUN_HALTED:
            return "halted", f"run {event.run} has used all its alerts"
        case EventType.EXHAUSTED:
            return "exhausted", "the budget cannot pay another run"
    return None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
