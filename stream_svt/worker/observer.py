"""Reports a shard's durable commit: metrics, and one log line for runs that begin, end or are refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import EventType, Lifecycle, ReleasedEvent
from stream_svt.monitor.state.accounts import Commit
from stream_svt.worker.metrics import Metrics

log = logging.getLogger(__name__)

NAMES_SHOWN: Final = 3
"""Number of pairs of dataset and monitor that a line names, beginning with monitors that now skip queries."""
_LOGGED: Final[Mapping[str, str]] = {
    EventType.RUN_STARTED: "begun",
    EventType.RUN_HALTED: "halted",
    EventType.RUN_CLOSED: "closed",
    EventType.LIMITED: "limited",
    EventType.EXHAUSTED: "exhausted",
}
"""Counts of a line by event type."""
_REMEDIES: Final[Mapping[str, str]] = {
    EventType.LIMITED: "control mute, pause or resample",
    EventType.EXHAUSTED: "control raise-budget",
}
"""Events after which a monitor skips queries, and the commands of stream-svt for it."""
_COUNTS: Final = "".join(f"{word}=%d " for word in _LOGGED.values())
_LINE: Final = f"event=runs shard=%d {_COUNTS}on=%d first=%r remedy=%r"


class CommitObserver:
    """Observes the commits of one shard: see `stream_svt.protocol.ports.Observer`."""

    def __init__(self, shard: int, metrics: Metrics) -> None:
        self.shard = shard
        self.count = metrics.count
        self.time = metrics.time
        self._metrics = metrics

    def committed(self, commit: Commit) -> None:
        """Count a durable commit, and log the runs that it begins after a first one, ends, or refuses.

        One line for a commit, whatever the number of datasets.
        """
        self._metrics.committed(commit)
        logged = [
            event
            for event in commit.events
            if event.type in _LOGGED and (event.type != EventType.RUN_STARTED or event.data.run > 1)
        ]
        if logged:
            found = Counter(_LOGGED[event.type] for event in logged)
            counts = [found[word] for word in _LOGGED.values()]
            latest = {(event.data.dataset, event.data.monitor): event for event in logged}
            ordered = sorted(latest.values(), key=lambda event: event.type not in _REMEDIES)
            first = ", ".join(map(_in_words, ordered[:NAMES_SHOWN]))
            remedy = " or ".join(_REMEDIES[kind] for kind in _REMEDIES if found[_LOGGED[kind]])
            log.warning(_LINE, self.shard, *counts, len(latest), first, remedy or "none")


def _in_words(event: ReleasedEvent) -> str:
    """Return dataset and monitor of an event, its kind and, if it is limited, until when."""
    data = event.data
    until = (
        f" until {utc(data.detail['until'])}"
        if isinstance(data, Lifecycle) and "until" in data.detail
        else ""
    )
    return f"{data.dataset}/{data.monitor} {_LOGGED[event.type]}{until}"
