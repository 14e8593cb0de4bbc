"""Prometheus metrics of the forwarder: counts of released events and of what receivers answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

import stream_svt
from stream_svt.forward.retry import Result
from stream_svt.service.metrics import Families, Metric, recorders, text_of

OUTCOMES = ("delivered", "filtered", "parked")

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 10800.0)


METRICS: tuple[Metric, ...] = (
    Metric("stream_svt_forward_build_info", "gauge", ("version", "topic"), "1, with what runs."),
    Metric(
        "stream_svt_forward_events_total",
        "counter",
        ("destination", "outcome"),
        "Events that are done with: delivered, filtered or parked.",
    ),
    Metric(
        "stream_svt_forward_attempts_total",
        "counter",
        ("destination", "result"),
        "Requests by result: accepted, refused, throttled, failed, timeout or unreachable.",
    ),
    Metric(
        "stream_svt_forward_request_seconds",
        "histogram",
        ("destination",),
        "Time from a request to its answer.",
        _SECONDS,
    ),
    Metric(
        "stream_svt_forward_delay_seconds",
        "histogram",
        ("destination",),
        "Time from an event being charged to its delivery, by two clocks.",
        _SECONDS,
    ),
    Metric("stream_svt_forward_waiting_events", "gauge", ("destination",), "Events read and not delivered."),
    Metric(
        "stream_svt_forward_oldest_waiting_seconds",
        "gauge",
        ("destination",),
        "Age of the oldest of them, 0 where none waits.",
    ),
    Metric(
        "stream_svt_forward_retrying_events",
        "gauge",
        ("destination",),
        "Events of which an attempt failed and that wait for another.",
    ),
    Metric(
        "stream_svt_forward_stopped",
        "gauge",
        ("destination",),
        "1 where a destination stopped and waits for you.",
    ),
    Metric(
        "stream_svt_forward_partitions", "gauge", ("destination",), "Partitions this process reads for it."
    ),
    Metric(
        "stream_svt_forward_lag_records",
        "gauge",
        ("destination", "partition"),
        "Records after the committed position.",
    ),
    Metric(
        "stream_svt_forward_last_poll_timestamp_seconds",
        "gauge",
        ("destination",),
        "When the brokers last answered a read, of the partition that waits longest; 0 where they never did. It "
        "stands still while the window is full.",
    ),
    Metric(
        "stream_svt_forward_last_delivery_timestamp_seconds",
        "gauge",
        ("destination",),
        "When an event was last delivered; 0 where none was.",
    ),
)


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """What the gauges show of one destination; ``polled`` is in seconds since 1970."""

    destination: str
    waiting: int
    oldest: datetime | None
    retrying: int
    stopped: bool
    lag: dict[int, int]
    polled: float


class ForwardMetrics:
    """All metrics of one forwarder in a registry of its own.

    Parameters
    ----------
    topic
        The topic that is read.
    destinations
        Their names: labels exist before anything happens, for a rate needs a zero to start from.
    """

    def __init__(self, topic: str, destinations: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self.statuses: Callable[[], list[RouteStatus]] = list
        self._topic = topic
        self._delivered_at = dict.fromkeys(destinations, 0.0)
        self._counters, self._histograms = recorders(METRICS, self.registry)
        for name in self._delivered_at:
            for outcome in OUTCOMES:
                self._counters["stream_svt_forward_events_total"].labels(name, outcome)
            for result in Result:
                self._counters["stream_svt_forward_attempts_total"].labels(name, result.value)
            for histogram in self._histograms.values():
                histogram.labels(name)
        self.registry.register(Families(self._families))

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return text_of(self.registry)

    def attempted(self, destination: str, result: Result, seconds: float) -> None:
        """Count a request."""
        self._counters["stream_svt_forward_attempts_total"].labels(destination, result.value).inc()
        self._histograms["stream_svt_forward_request_seconds"].labels(destination).observe(seconds)

    def done(self, destination: str, outcome: str) -> None:
        """Count an event that needs no further attempt."""
        self._counters["stream_svt_forward_events_total"].labels(destination, outcome).inc()

    def delivered(self, destination: str, charged: datetime, now: datetime) -> None:
        """Count a delivery, and note how long it took."""
        self.done(destination, "delivered")
        seconds = max(0.0, (now - charged).total_seconds())
        self._histograms["stream_svt_forward_delay_seconds"].labels(destination).observe(seconds)
        self._delivered_at[destination] = now.timestamp()

    def _families(self) -> Iterator[GaugeMetricFamily]:
        family = {
            metric.name: GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in METRICS
            if metric.kind == "gauge"
        }
        prefix = "stream_svt_forward_"
        family[f"{prefix}build_info"].add_metric([stream_svt.__version__, self._topic], 1)
        now = datetime.now(UTC)
        for status in self.statuses():
            name = status.destination
            age = 0.0 if status.oldest is None else max(0.0, (now - status.oldest).total_seconds())
            family[f"{prefix}waiting_events"].add_metric([name], status.waiting)
            family[f"{prefix}oldest_waiting_seconds"].add_metric([name], age)
            family[f"{prefix}retrying_events"].add_metric([name], status.retrying)
            family[f"{prefix}stopped"].add_metric([name], status.stopped)
            family[f"{prefix}partitions"].add_metric([name], len(status.lag))
            family[f"{prefix}last_poll_timestamp_seconds"].add_metric([name], status.polled)
            for partition, lag in status.lag.items():
                family[f"{prefix}lag_records"].add_metric([name, str(partition)], lag)
        for name, moment in self._delivered_at.items():
            family[f"{prefix}last_delivery_timestamp_seconds"].add_metric([name], moment)
        yield from family.values()
