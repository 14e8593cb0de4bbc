"""Prometheus metrics of the forwarder: counts of released events and of what receivers answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge

import stream_svt
from stream_svt.forward.posting import Result
from stream_svt.service.metrics import Metric, recorders, text_of

OUTCOMES = ("delivered", "filtered", "parked")
_PREFIX = "stream_svt_forward_"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 10800.0)
_TABLE = {
    "build_info": ("gauge", "version topic", "1, with what runs."),
    "events_total": (
        "counter",
        "destination outcome",
        "Events that are done with: delivered, filtered or parked.",
    ),
    "attempts_total": (
        "counter",
        "destination result",
        "Requests by result: accepted, refused, throttled, failed, timeout or unreachable.",
    ),
    "delay_seconds": (
        "histogram",
        "destination",
        "Time from an event being charged to its delivery, by two clocks.",
    ),
    "waiting_events": ("gauge", "destination", "Events read and not delivered."),
    "oldest_waiting_seconds": ("gauge", "destination", "Age of the oldest of them, 0 where none waits."),
    "stopped": ("gauge", "destination", "1 where a destination stopped and waits for you."),
    "partitions": ("gauge", "destination", "Partitions this process reads for it."),
    "last_poll_timestamp_seconds": (
        "gauge",
        "destination",
        "When the brokers last answered a read, of the partition that waits longest; 0 where they never did.",
    ),
    "lag_records": ("gauge", "destination partition", "Records after the committed position."),
}
METRICS = tuple(
    Metric(_PREFIX + name, kind, tuple(labels.split()), told, _SECONDS)
    for name, (kind, labels, told) in _TABLE.items()
)


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """What the gauges show of one destination: values by the metric's name, and the lag of each partition."""

    destination: str
    gauges: dict[str, float]
    lag: dict[int, int]


class ForwardMetrics:
    """All metrics of one forwarder; labels exist before anything happens, for a rate needs a zero to start from."""

    def __init__(self, topic: str, destinations: Iterable[str]) -> None:
        self._registry = CollectorRegistry()
        counters, histograms = recorders(METRICS, self._registry)
        self._events = counters[f"{_PREFIX}events_total"]
        self._attempts = counters[f"{_PREFIX}attempts_total"]
        self._delay_seconds = histograms[f"{_PREFIX}delay_seconds"]
        self._gauges = {
            metric.name: Gauge(metric.name, metric.help, metric.labels, registry=self._registry)
            for metric in METRICS
            if metric.kind == "gauge"
        }
        self._gauges[f"{_PREFIX}build_info"].labels(stream_svt.__version__, topic).set(1)
        for name in destinations:
            for outcome in OUTCOMES:
                self._events.labels(name, outcome)
            for result in Result:
                self._attempts.labels(name, result)
            self._delay_seconds.labels(name)

    def text(self, statuses: Iterable[RouteStatus]) -> bytes:
        """Return everything in Prometheus' text format."""
        lag = self._gauges[f"{_PREFIX}lag_records"]
        lag.clear()  # of partitions that others have now
        for status in statuses:
            for name, value in status.gauges.items():
                self._gauges[_PREFIX + name].labels(status.destination).set(value)
            for partition, records in status.lag.items():
                lag.labels(status.destination, partition).set(records)
        return text_of(self._registry)

    def attempted(self, destination: str, result: Result) -> None:
        """Count a request."""
        self._attempts.labels(destination, result).inc()

    def done(self, destination: str, outcome: str) -> None:
        """Count an event that needs no further attempt."""
        self._events.labels(destination, outcome).inc()

    def delivered(self, destination: str, charged: datetime, now: datetime) -> None:
        """Count a delivery, and note how long it took."""
        self.done(destination, "delivered")
        self._delay_seconds.labels(destination).observe(max(0.0, (now - charged).total_seconds()))
