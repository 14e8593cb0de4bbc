"""Prometheus metrics of the forwarder: counts of released events and of receivers' answers."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

from prometheus_client import generate_latest

import stream_svt
from stream_svt.worker.metrics import Registry, lines_of, registered

OUTCOMES = ("delivered", "filtered", "parked")
_PREFIX = "stream_svt_forward_"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 10800.0)


_gauge, _counter, _histogram = lines_of(_PREFIX, _SECONDS)

METRICS = (
    _gauge("build_info", "version topic", "Always 1; labels name what runs."),
    _counter("events_total", "destination outcome", "Events by outcome: delivered, filtered or parked."),
    _counter(
        "attempts_total",
        "destination result",
        "Requests by result: accepted, refused, throttled, failed, timeout or unreachable.",
    ),
    _histogram(
        "delay_seconds",
        "destination",
        "Time from an event's charge to its delivery, by the clocks of two machines.",
    ),
    _gauge("waiting_events", "destination", "Events read and not delivered."),
    _gauge("oldest_waiting_seconds", "destination", "Age of the oldest of these events, or 0."),
    _gauge("stopped", "destination", "1 if the destination has stopped and needs an operator, else 0."),
    _gauge("standing_alerts", "destination", "Monitors that skip queries, by the last post to Alertmanager."),
    _gauge("partitions", "destination", "Partitions that this process reads for the destination."),
    _gauge(
        "last_poll_timestamp_seconds",
        "destination",
        "Time of the brokers' last answer to a read, for the partition where it is oldest; 0 before the first answer.",
    ),
    _gauge("lag_records", "destination partition", "Records after the committed position."),
)


class Result(StrEnum):
    """Outcome of an attempt; the values are labels of a metric.

    The first in this order counts if receivers differ. Refused comes last: a receiver that failed may accept the
    event later.
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
    """All metrics of one forwarder. Counters start at 0 for all labels: a rate needs a first sample."""

    def __init__(self, topic: str, destinations: Iterable[str]) -> None:
        self._registry = Registry()
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
        """Return all metrics in Prometheus' text format, with the values of gauges."""
        self._metrics[f"{_PREFIX}lag_records"].clear()  # partitions that other forwarders read now
        for (name, *labels), value in gauges.items():
            self._metrics[_PREFIX + name].labels(*labels).set(value)
        return generate_latest(self._registry)
