"""Prometheus metrics of a worker.

Whatever depends on the outcome of a test is set from a commit that is durable, or read from views that were
committed: a scrape never runs ahead of the charge. Counters count what this worker committed, gauges of
budgets show the books of the shards it owns now.
"""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stream_svt.monitor.engine import Commit
from stream_svt.monitor.released import DatasetView
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.service.wire import Reason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DATASET_LIMIT = 1_000
OTHERS = "(others)"
"""Label under which datasets beyond the limit are summed up; no dataset may have this name."""

_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?stream_svt_\w+_created[ {].*\n", re.MULTILINE)
STATES = ("idle", "running", "halted", "exhausted", "paused")
SKIP_REASONS = ("muted", "exhausted", "halted", "idle", "outside-period")
FAILURES = ("fenced", "unavailable", "records_lost", "rolled_back", "stuck", "error")
SHARD_STATES = (
    "opening",
    "replaying",
    "running",
    "records-lost",
    "rolled-back",
    "parked",
    "retrying",
    "failed",
    "stopped",
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table from which the documentation is generated."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

METRICS: tuple[Metric, ...] = (
    Metric(
        "stream_svt_build_info",
        "gauge",
        ("version", "python", "application", "spec_hash"),
        "1, with what runs.",
    ),
    Metric("stream_svt_budget_limit_epsilon", "gauge", ("dataset",), "Limit of a dataset's ledger."),
    Metric(
        "stream_svt_budget_spent_epsilon", "gauge", ("dataset",), "Privacy loss spent, from committed state."
    ),
    Metric(
        "stream_svt_budget_reserved_epsilon", "gauge", ("dataset",), "Privacy loss reserved by open runs."
    ),
    Metric("stream_svt_budget_limit_rho", "gauge", ("dataset",), "Limit of a dataset's ledger in zCDP."),
    Metric("stream_svt_budget_spent_rho", "gauge", ("dataset",), "zCDP loss spent, from committed state."),
    Metric("stream_svt_budget_reserved_rho", "gauge", ("dataset",), "zCDP loss reserved by open runs."),
    Metric(
        "stream_svt_monitor_spent_epsilon",
        "gauge",
        ("dataset", "monitor"),
        "Privacy loss spent by a monitor.",
    ),
    Metric("stream_svt_monitor_spent_rho", "gauge", ("dataset", "monitor"), "zCDP loss spent by a monitor."),
    Metric(
        "stream_svt_monitor_run_left_epsilon",
        "gauge",
        ("dataset", "monitor"),
        "Loss the open run can still spend.",
    ),
    Metric(
        "stream_svt_monitor_run_left_rho",
        "gauge",
        ("dataset", "monitor"),
        "zCDP loss the open run can still spend.",
    ),
    Metric(
        "stream_svt_monitor_datasets",
        "gauge",
        ("monitor", "state"),
        "Datasets on which a monitor is in a state.",
    ),
    Metric("stream_svt_monitor_muted_series", "gauge", ("monitor",), "Series muted after a top."),
    Metric("stream_svt_monitor_queued_series", "gauge", ("monitor",), "Queries that wait for another test."),
    Metric("stream_svt_tops_total", "counter", ("monitor",), "Tops charged; each is one alert."),
    Metric("stream_svt_runs_total", "counter", ("monitor",), "Runs opened, each with a new threshold noise."),
    Metric("stream_svt_halts_total", "counter", ("monitor",), "Runs that used all their tops."),
    Metric("stream_svt_records_total", "counter", ("topic",), "Records read, replays included."),
    Metric("stream_svt_queries_total", "counter", ("monitor",), "Queries tested."),
    Metric(
        "stream_svt_queries_skipped_total", "counter", ("monitor", "reason"), "Queries not tested, by reason."
    ),
    Metric(
        "stream_svt_records_rejected_total",
        "counter",
        ("topic", "reason"),
        "Records refused, by structural reason.",
    ),
    Metric("stream_svt_events_published_total", "counter", (), "Events published on the alert topic."),
    Metric(
        "stream_svt_step_seconds",
        "histogram",
        (),
        "Time the engine took for a batch; shown after the commit.",
    ),
    Metric("stream_svt_commit_seconds", "histogram", (), "Time of a transaction."),
    Metric(
        "stream_svt_alert_latency_seconds",
        "histogram",
        (),
        "From reading a query to its alert being published.",
    ),
    Metric("stream_svt_commits_total", "counter", (), "Transactions committed."),
    Metric("stream_svt_failures_total", "counter", ("reason",), "Tenures that ended in an error, by reason."),
    Metric("stream_svt_lag_records", "gauge", ("topic", "shard"), "Records after the committed position."),
    Metric("stream_svt_last_commit_timestamp_seconds", "gauge", ("shard",), "When a shard last committed."),
    Metric("stream_svt_shards_owned", "gauge", (), "Shards this worker owns."),
    Metric("stream_svt_shards", "gauge", ("state",), "Shards this worker owns, by state."),
    Metric("stream_svt_state_records", "gauge", ("shard",), "Live records on the state topic."),
    Metric(
        "stream_svt_takeover_seconds",
        "histogram",
        (),
        "Time from the start of a takeover to the first fetch.",
    ),
    Metric("stream_svt_restore_seconds", "histogram", (), "Time to fence, read and verify a shard's state."),
    Metric("stream_svt_rebalances_total", "counter", (), "Assignments received from the consumer group."),
)


class _Families(Collector):
    """Families computed at each scrape, so that nothing stale of a shard handed over remains."""

    def __init__(self, read: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return self._read()


class Metrics:
    """All metrics of one worker in a registry of its own.

    Parameters
    ----------
    spec, spec_hash
        What runs; decides which labels exist.
    statuses
        Returns the status of each shard owned, for the gauges.
    dataset_limit
        Datasets with labels of their own, the first ones declared; the others are summed up.
    """

    def __init__(
        self,
        spec: ApplicationSpec,
        spec_hash: str,
        statuses: Callable[[], Sequence[Any]] = tuple,
        dataset_limit: int = DATASET_LIMIT,
    ) -> None:
        self.registry = CollectorRegistry()
        self._statuses = statuses
        self._limit = dataset_limit
        self._counted: dict[tuple[int, str], dict[str, tuple[int, int, int]]] = {}
        self._counters = {
            metric.name: Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            for metric in METRICS
            if metric.kind == "counter"
        }
        self._histograms = {
            metric.name: Histogram(metric.name, metric.help, registry=self.registry, buckets=_SECONDS)
            for metric in METRICS
            if metric.kind == "histogram"
        }
        self.reload(spec, spec_hash)
        self._counter("stream_svt_events_published_total")
        for reason in FAILURES:
            self._counter("stream_svt_failures_total", reason)
        self.registry.register(_Families(self._families))

    def reload(self, spec: ApplicationSpec, spec_hash: str) -> None:
        """Create the labels of a specification before anything happens: a rate needs a zero to start from."""
        self._spec = spec
        self._info = (
            metadata.version("stream-svt") if _is_installed() else "source",
            platform.python_version(),
            spec.application,
            spec_hash,
        )
        self._labelled = {dataset.name for dataset in spec.datasets[: self._limit]}
        for monitor in spec.monitors:
            for name in ("tops", "runs", "halts", "queries"):
                self._counter(f"stream_svt_{name}_total", monitor.name)
            for reason in SKIP_REASONS:
                self._counter("stream_svt_queries_skipped_total", monitor.name, reason)
        for topic in spec.topics():
            self._counter("stream_svt_records_total", topic)
            for rejection in Reason:
                self._counter("stream_svt_records_rejected_total", topic, rejection.value)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        # When a counter was created is of no use to anybody here and doubles the number of series.
        return _CREATED.sub(b"", generate_latest(self.registry))

    # What shards tell

    def read(self, topic: str, records: int) -> None:
        """Count records as they are read: their number is public."""
        self._counter("stream_svt_records_total", topic).inc(records)

    def baseline(self, shard: int, views: Iterable[DatasetView]) -> None:
        """Note the counts a shard came with, so that only what this worker adds is counted."""
        self._counted = {key: counts for key, counts in self._counted.items() if key[0] != shard}
        for view in views:
            self._count(shard, view, add=False)

    def committed(self, shard: int, commit: Commit, seconds: float, steps: Iterable[float]) -> None:
        """Count what a durable commit holds."""
        self._counter("stream_svt_commits_total").inc()
        self._histogram("stream_svt_commit_seconds").observe(seconds)
        for step in steps:
            self._histogram("stream_svt_step_seconds").observe(step)
        for monitor, count in commit.tested.items():
            self._counter("stream_svt_queries_total", monitor).inc(count)
        for (monitor, reason), count in commit.skipped.items():
            self._counter("stream_svt_queries_skipped_total", monitor, reason).inc(count)
        for topic, _, reason in commit.rejects:
            self._counter("stream_svt_records_rejected_total", topic, reason).inc()
        for view in commit.views:
            self._count(shard, view, add=True)

    def flushed(self, seconds: float) -> None:
        """Count a transaction that only published."""
        self._counter("stream_svt_commits_total").inc()
        self._histogram("stream_svt_commit_seconds").observe(seconds)

    def published(self, events: int) -> None:
        """Count events that a durable transaction published."""
        self._counter("stream_svt_events_published_total").inc(events)

    def alert_latency(self, seconds: float) -> None:
        """Note how long an alert took from its query being read to being published."""
        self._histogram("stream_svt_alert_latency_seconds").observe(seconds)

    def restored(self, seconds: float) -> None:
        """Note how long reading the books took."""
        self._histogram("stream_svt_restore_seconds").observe(seconds)

    def taken_over(self, seconds: float) -> None:
        """Note how long a takeover took."""
        self._histogram("stream_svt_takeover_seconds").observe(seconds)

    def failed(self, shard: int, reason: str) -> None:
        """Count a tenure that ended in an error."""
        del shard
        self._counter("stream_svt_failures_total", reason).inc()

    def rebalanced(self) -> None:
        """Count an assignment."""
        self._counter("stream_svt_rebalances_total").inc()

    # How they are kept

    def _counter(self, name: str, *labels: str) -> Counter:
        counter = self._counters[name]
        return counter.labels(*labels) if labels else counter

    def _histogram(self, name: str) -> Histogram:
        return self._histograms[name]

    def _count(self, shard: int, view: DatasetView, *, add: bool) -> None:
        counted = self._counted.setdefault((shard, view.dataset), {})
        for monitor in view.monitors:
            now = (monitor.tops, monitor.runs, monitor.halts)
            if add:
                before = counted.get(monitor.monitor, (0, 0, 0))
                for name, new, old in zip(("tops", "runs", "halts"), now, before, strict=True):
                    self._counter(f"stream_svt_{name}_total", monitor.monitor).inc(max(new - old, 0))
            counted[monitor.monitor] = now

    def _families(self) -> Iterator[GaugeMetricFamily]:
        statuses = self._statuses()
        values: Mapping[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        values["stream_svt_build_info"][self._info] = 1
        values["stream_svt_shards_owned"][()] = len(statuses)
        values["stream_svt_shards"].update({(state,): 0 for state in SHARD_STATES})
        for monitor in self._spec.monitors:
            values["stream_svt_monitor_datasets"].update({(monitor.name, state): 0 for state in STATES})
            values["stream_svt_monitor_muted_series"][(monitor.name,)] = 0
            values["stream_svt_monitor_queued_series"][(monitor.name,)] = 0
        for status in statuses:
            shard = str(status.shard)
            _add(values["stream_svt_shards"], (str(status.state),), 1)
            values["stream_svt_state_records"][(shard,)] = status.state_records
            values["stream_svt_last_commit_timestamp_seconds"][(shard,)] = status.committed_at
            for topic, lag in status.lag.items():
                values["stream_svt_lag_records"][(topic, shard)] = lag
            for view in status.views.values():
                self._add_view(values, view)
        for metric in METRICS:
            if metric.kind == "gauge":
                family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in values.get(metric.name, {}).items():
                    family.add_metric(labels, value)
                yield family

    def _add_view(self, values: Mapping[str, dict[tuple[str, ...], float]], view: DatasetView) -> None:
        dataset = view.dataset if view.dataset in self._labelled else OTHERS
        for name, amount in (("limit", view.limit), ("spent", view.spent), ("reserved", view.reserved)):
            _add(values[f"stream_svt_budget_{name}_{view.measure}"], (dataset,), amount)
        for monitor in view.monitors:
            labels = (dataset, monitor.monitor)
            _add(values[f"stream_svt_monitor_spent_{view.measure}"], labels, monitor.spent)
            _add(values[f"stream_svt_monitor_run_left_{view.measure}"], labels, monitor.run_left)
            _add(values["stream_svt_monitor_datasets"], (monitor.monitor, monitor.state), 1)
            _add(values["stream_svt_monitor_muted_series"], (monitor.monitor,), monitor.muted)
            _add(values["stream_svt_monitor_queued_series"], (monitor.monitor,), monitor.queued)


def _add(values: dict[tuple[str, ...], float], labels: tuple[str, ...], amount: float) -> None:
    values[labels] = values.get(labels, 0.0) + amount


def _is_installed() -> bool:
    try:
        metadata.version("stream-svt")
    except metadata.PackageNotFoundError:
        return False
    return True
