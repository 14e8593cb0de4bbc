"""What the demo knows: the released events, folded; how far it is; and the truth, which only it has.

An alert is *true* if the true count behind the query it names had reached the threshold. *Precision*: true alerts of
all alerts. *Recall*: of all (week, item) whose true count reached the threshold at some checkpoint asked, those that
the monitor alerted in that week. *Recall while funded* leaves out of both sides the weeks in which the monitor ran out
of budget. Whatever is shown of the truth is marked as truth: no user of a private monitor has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from stream_svt.demo.config import MONITORS
from stream_svt.demo.queries import SERIES, Baskets, WeekClock, running_counts
from stream_svt.monitor.released import Alert, Envelope, EventType, Lifecycle
from stream_svt.monitor.released_status import Budget, ReleasedStatus
from stream_svt.monitor.snapshot import State

Truth: TypeAlias = Mapping[str, frozenset[tuple[str, str]]]
"""Dataset and series of each item whose true count had reached the threshold, by the id of a checkpoint's set."""


def truth_of(baskets: Baskets, clock: WeekClock, threshold: int) -> Truth:
    """Count everything once."""
    return {
        point.set_id: frozenset(
            (point.dataset, SERIES % (column + 1)) for column in np.flatnonzero(counts >= threshold)
        )
        for point, counts in running_counts(baskets, clock)
    }


class Entry(NamedTuple):
    """One released event as a line of the screen; an alert's ``item`` and measurements, empty for others."""

    kind: str
    dataset: str
    monitor: str
    item: str = ""
    gap: str = ""
    estimate: str = ""
    bound: str = ""
    text: str = ""


class Board(ReleasedStatus):
    """Everything the screen and the summary show; whoever runs the demo keeps the attributes up to date.

    ``line`` is the public clock, ``asked`` has the sets that were closed, and ``seen`` counts the queries that the
    service has tested or skipped, each once.
    """

    def __init__(self, limits: Mapping[str, float], truth: Truth) -> None:
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
        if (entry := _entry(envelope.type, data)) is not None:
            self.recent.append(entry)
        return entry

    def figures(self, *monitors: str) -> dict[str, float | None]:
        """Return what monitors did over all datasets, and how good that was; None: nothing to divide by.

        Several monitors count an item once for each.
        """
        alerts = [alert for name in monitors for alert in self.alerts[name]]
        statuses = [status for name in monitors for status in self.statuses[name].values()]
        expected = frozenset[tuple[str, str]]().union(*(self._truth[set_id] for set_id in self.asked))
        right = sum((one.dataset, one.series) in self._truth[one.query_id.split("/")[0]] for one in alerts)
        hits = hot = funded_hits = funded = 0
        for name in monitors:
            told = expected & {(alert.dataset, alert.series or "") for alert in self.alerts[name]}
            unfunded = {
                dataset for dataset, one in self.statuses[name].items() if one.state is State.EXHAUSTED
            }
            hits, hot = hits + len(told), hot + len(expected)
            funded_hits += sum(dataset not in unfunded for dataset, _ in told)
            funded += sum(dataset not in unfunded for dataset, _ in expected)
        return {
            "alerts": len(alerts),
            "halts": sum(status.halts for status in statuses),
            "resamples": sum(max(status.run - 1, 0) for status in statuses),
            "alerts_at_later_attempts": sum(alert.attempt >= 2 for alert in alerts),
            "precision": _ratio(right, len(alerts)),
            "recall": _ratio(hits, hot),
            "recall_while_funded": _ratio(funded_hits, funded),
        }

    def document(self) -> dict[str, object]:
        """Return the summary as it is written to a file. Ratios are rounded to four decimals; epsilon to nine."""
        asked: dict[str, float | None] = {
            "queries": self.seen,
            "queries_per_second": round(self.rate, 1),
        }
        return {
            "seconds": round(self.seconds, 1),
            **asked,
            **self.figures(*MONITORS),
            "monitors": {name: asked | self.figures(name) for name in MONITORS},
            "datasets": {
                name: {"spent": round(budget.spent, 9), "limit": round(budget.limit, 9)}
                for name, budget in self.budgets.items()
            },
            "exhausted": self.exhausted(),
        }


def _entry(kind: str, event: Alert | Lifecycle) -> Entry | None:
    if isinstance(event, Alert):
        # On the demo's grid of whole counts all released figures but the estimate are whole numbers.
        return Entry(
            "ALERT",
            event.dataset,
            event.monitor,
            item=event.series or "",
            gap=f"{event.gap:g}",
            estimate="-" if event.estimate is None else f"{event.estimate:.0f}",
            bound="-" if event.bound is None else f"≥ {event.bound:g}",
            text=f"{event.branch} branch, attempt {event.attempt}, run {event.run} top {event.top}",
        )
    told = {
        EventType.RUN_STARTED: ("resampled", f"run {event.run}, fresh threshold noise drawn and charged"),
        EventType.RUN_HALTED: ("halted", f"run {event.run} has used all its alerts"),
        EventType.EXHAUSTED: ("exhausted", "the budget cannot pay another run"),
    }
    if kind == EventType.RUN_STARTED and event.run == 1:
        word, text = "started", "first run, threshold noise drawn and charged"
    elif kind in told:
        word, text = told[EventType(kind)]
    else:
        return None
    return Entry(word, event.dataset, event.monitor, text=text)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
