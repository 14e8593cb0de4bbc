"""Prometheus metrics of the forwarder: counts of released events and of what receivers answered."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest

import stream_svt
from stream_svt.service.metrics import lines_of, registered

OUTCOMES = ("delivered", "filtered", "parked")
_PREFIX = "stream_svt_forward_"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 10800.0)


_gauge, _counter, _histogram = lines_of(_PREFIX, _SECONDS)

METRICS = (
    _gauge("build_info", "version topic", "1, with what runs."),
    _counter("events_total", "destination outcome", "Events done with: delivered, filtered or parked."),
    _counter(
        "attempts_total",
        "destination result",
        "Requests by result: accepted, refused, throttled, failed, timeout or unreachable.",
    ),
    _histogram("delay_seconds", "destination", "From an event's charge to its delivery, by two clocks."),
    _gauge("waiting_events", "destination", "Events read and not delivered."),
    _gauge("oldest_waiting_seconds", "destination", "Age of the oldest of them, 0 where none waits."),
    _gauge("stopped", "destination", "1 where a destination stopped and waits for you."),
    _gauge("partitions", "destination", "Partitions this process reads for it."),
    _gauge(
        "last_poll_timestamp_seconds",
        "destination",
        "When the brokers last answered a read, of the partition that waits longest; 0 where they never did.",
    ),
    _gauge("lag_records", "destination partition", "Records after the committed position."),
)


class Result(StrEnum):
    """How an attempt ended; the words are labels of a metric. Of several receivers' answers the first of these counts.

    Refused comes last: what another receiver did not answer, it may take later.
    """

    ACCEPTED = "accepted"
    THROTTLED = "throttled"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


Samples: TypeAlias = dict[tuple[str, ...], float]
"""Values of gauges by the metric's name, without the prefix, and the values of its labels."""


class ForwardMetrics:
    """All metrics of one forwarder; labels exist before anything happens, for a rate needs a zero to start from."""

    def __init__(self, topic: str, destinations: Iterable[str]) -> None:
        self._registry = CollectorRegistry()
        self._metrics = registered(METRICS, self._registry)
        self.events = self._metrics[f"{_PREFIX}events_total"]
        self.attempts = self._metrics[f"{_PREFIX}attempts_total"]
        self.delay_seconds = self._metrics[f"{_PREFIX}delay_seconds"]
        self._metrics[f"{_PREFIX}build_info"].labels(stream_svt.__version__, topic).set(1)
        for name in destinations:
            for outcome in OUTCOMES:
                self.events.labels(name, outcome)
            for result in Result:
                self.attempts.labels(name, result)
            self.delay_seconds.labels(name)

    def text(self, gauges: Samples) -> bytes:
        """Return everything in Prometheus' text format, with these gauges."""
        self._metrics[f"{_PREFIX}lag_records"].clear()  # of partitions that others have now
        for (name, *labels), value in gauges.items():
            self._metrics[_PREFIX + name].labels(*labels).set(value)
        return generate_latest(self._registry)
