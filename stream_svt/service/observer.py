"""What a shard tells about a durable commit: metrics, and one line of the log for what becomes of runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from stream_svt.monitor.accounts import Commit
from stream_svt.monitor.released import EventType
from stream_svt.service.metrics import Metrics

log = logging.getLogger(__name__)

NAMES_SHOWN: Final = 3
"""Number of pairs of dataset and monitor that a line names."""
_LOGGED: Final[Mapping[str, str]] = {
    EventType.RUN_STARTED: "begun",
    EventType.RUN_HALTED: "halted",
    EventType.RUN_CLOSED: "closed",
    EventType.LIMITED: "limited",
    EventType.EXHAUSTED: "exhausted",
}
"""Counts of a line by event type."""
_LINE = "event=runs shard=%d " + "".join(f"{word}=%d " for word in _LOGGED.values()) + "on=%d first=%r"


class CommitObserver:
    """Observes the commits of one shard: see `stream_svt.protocol.ports.Observer`."""

    def __init__(self, shard: int, metrics: Metrics) -> None:
        self.shard = shard
        self.count = metrics.count
        self.time = metrics.time
        self._metrics = metrics

    def committed(self, commit: Commit) -> None:
        """Count what a durable commit holds, and log the runs that it begins after a first one, ends, or refuses.

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
            pairs = list(dict.fromkeys(f"{event.data.dataset}/{event.data.monitor}" for event in logged))
            named = ",".join(pairs[:NAMES_SHOWN])
            log.warning(_LINE, self.shard, *counts, len(pairs), named)
