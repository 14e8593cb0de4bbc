"""Prometheus metrics of a worker.

Whatever depends on the outcome of a test is set from a commit that is durable, or read from views that were
committed: a scrape never runs ahead of the charge. Counters count what this worker committed, gauges of
budgets show the ledgers of the shards it owns now.

There are no metrics of the process: its memory and its processor time may depend on values.
"""

from __future__ import annotations

import platform
import re
import time
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stream_svt.monitor.engine import Commit
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.projection import STATES, Totals, sums_of
from stream_svt.monitor.released import Alert, DatasetView, EventType
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.controls import Malformed, Untimely
from stream_svt.protocol.session_parts import ShardStatus
from stream_svt.protocol.shard_states import OPEN, State
from stream_svt.service.codec import Reason
from stream_svt.service.signatures import Refusal
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec

_Values = defaultdict[str, dict[tuple[str, ...], float]]

try:
    VERSION = metadata.version("stream-svt")
except metadata.PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "source"

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = "(others)"
"""Label under which datasets that are not shown one by one are summed up; no dataset may have this name."""

COMMON_LABELS = ("application",)
"""Labels of every metric. A target's label would do, but one forgotten there would mix the budgets of two
applications whose datasets have the same names."""

_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?stream_svt_\w+_created[ {].*\n", re.MULTILINE)
SKIP_REASONS = ("muted", "exhausted", "halted", "idle", "outside-period", "retry-overflow", "set-overflow")
REJECT_REASONS = (*(reason.value for reason in Reason), "outside-period")
COMMAND_REASONS = tuple(reason.value for reasons in (Malformed, Untimely, Refusal) for reason in reasons)
FAILURES = ("fenced", "unavailable", "parked", "stuck", "error")


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SCALES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table from which the documentation is generated.

    ``labels`` come after `COMMON_LABELS`; ``buckets`` are a histogram's.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = _SECONDS


def _gauge(name: str, labels: str, text: str) -> Metric:
    return Metric(f"stream_svt_{name}", "gauge", tuple(labels.split()), text)


def _counter(name: str, labels: str, text: str) -> Metric:
    return Metric(f"stream_svt_{name}", "counter", tuple(labels.split()), text)


def _histogram(name: str, labels: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Metric:
    return Metric(f"stream_svt_{name}", "histogram", tuple(labels.split()), text, buckets)


METRICS: tuple[Metric, ...] = (
    _gauge("build_info", "version python spec_hash", "1, with what runs."),
    _gauge("start_timestamp_seconds", "", "When the worker started."),
    _gauge("budget_limit_epsilon", "dataset", "Limit of a dataset's ledger."),
    _gauge("budget_spent_epsilon", "dataset", "Privacy loss spent, from committed state."),
    _gauge("budget_reserved_epsilon", "dataset", "Privacy loss reserved by open runs."),
    _gauge("budget_limit_rho", "dataset", "Limit of a dataset's ledger in zCDP."),
    _gauge("budget_spent_rho", "dataset", "zCDP loss spent, from committed state."),
    _gauge("budget_reserved_rho", "dataset", "zCDP loss reserved by open runs."),
    _gauge("budget_charges", "dataset", "Charges in a ledger: thresholds and tops (epsilon) or runs (rho)."),
    _gauge("budget_horizon_seconds", "dataset", "Declared horizon, or length of the period."),
    _gauge("budget_end_timestamp_seconds", "dataset", "End of a period, lateness included."),
    _gauge("monitor_spent_epsilon", "dataset monitor", "Privacy loss spent by a monitor."),
    _gauge("monitor_spent_rho", "dataset monitor", "zCDP loss spent by a monitor."),
    _gauge("monitor_run_left_epsilon", "dataset monitor", "Loss the open run can still spend."),
    _gauge("monitor_run_left_rho", "dataset monitor", "Epsilon left to an open run that is charged in rho."),
    _gauge("monitor_state", "dataset monitor state", "1 for the state of a monitor; others are absent."),
    _gauge("monitor_datasets", "monitor state", "Datasets on which a monitor is in a state."),
    _gauge("monitor_threshold", "monitor", "Configured threshold, in real units."),
    _gauge("monitor_cutoff", "monitor", "Tops that one run pays for at full price."),
    _gauge("monitor_query_noise_scale", "monitor", "Scale of the narrowest query noise, in real units."),
    _gauge("monitor_muted_series", "monitor", "Series muted after a top."),
    _gauge("monitor_queued_series", "monitor", "Queries that wait for another test."),
    _counter("tops_total", "monitor", "Tops charged; each is one alert."),
    _histogram("top_gap_scales", "monitor", "Gaps of tops, in scales of the query noise.", _SCALES),
    _gauge("last_top_gap", "monitor", "Gap of the newest top, in real units."),
    _gauge("last_top_estimate", "monitor", "Estimate of the newest top's value, if certified."),
    _gauge("last_top_bound", "monitor", "Lower bound of the newest top's value, if certified."),
    _gauge("last_top_timestamp_seconds", "monitor", "When the newest top was committed."),
    _counter("runs_total", "monitor", "Runs opened, each with a new threshold noise."),
    _counter("halts_total", "monitor", "Runs that used all their tops."),
    _counter("records_total", "topic", "Records read, replays included."),
    _counter("queries_total", "monitor", "Queries tested."),
    _counter("queries_skipped_total", "monitor reason", "Queries not tested, by reason."),
    _counter("records_rejected_total", "topic reason", "Records refused, by structural reason."),
    _counter("events_published_total", "", "Events published on the alert topic."),
    _gauge("outbox_events", "shard", "Events charged and durable, and not yet published."),
    _histogram("step_seconds", "", "Engine time of a batch; only with `web.engine_times`."),
    _histogram("commit_seconds", "", "Time of a transaction."),
    _histogram("alert_latency_seconds", "", "From reading a query to its alert being published."),
    _counter("commits_total", "", "Transactions committed."),
    _counter("failures_total", "reason", "Sessions of shards that ended in an error, by reason."),
    _gauge("lag_records", "topic shard", "Records after the committed position."),
    _gauge("last_commit_timestamp_seconds", "shard", "When a shard last committed."),
    _gauge("shards_configured", "", "Partitions of the application's topics: shards in all."),
    _gauge("shards_owned", "", "Shards this worker owns."),
    _gauge("shards", "state", "Shards this worker owns, by state."),
    _gauge("shard_open", "shard", "1 for a shard that works, 0 for one that is owned and does not."),
    _gauge("shard_parked", "shard cause", "1 for a parked or closed shard; absent otherwise."),
    _gauge("worker_outside_group", "cause", "1 while a worker stays out of its group; absent otherwise."),
    _gauge("state_records", "shard", "Live records on the state topic."),
    _histogram("takeover_seconds", "", "Time from the start of a takeover to the first fetch."),
    _histogram("restore_seconds", "", "Time to fence, read and verify a shard's state."),
    _counter("rebalances_total", "", "Assignments received from the consumer group."),
)


ENGINE_TIMES: Final = "stream_svt_step_seconds"
"""How long tests took, which may depend on what was tested: shown on request only."""


@dataclass(frozen=True, slots=True)
class Families(Collector):
    """Gauges computed at each scrape, so that nothing stale of a shard handed over remains."""

    collect: Callable[[], Iterator[GaugeMetricFamily]]


def recorders(
    metrics: Iterable[Metric], registry: CollectorRegistry, common: tuple[str, ...] = ()
) -> tuple[dict[str, Counter], dict[str, Histogram]]:
    """Return the counters and the histograms of a table by name, registered; ``common`` labels come first."""
    counters, histograms = {}, {}
    for metric in metrics:
        told = (metric.name, metric.help, (*common, *metric.labels))
        if metric.kind == "counter":
            counters[metric.name] = Counter(*told, registry=registry)
        elif metric.kind == "histogram":
            histograms[metric.name] = Histogram(*told, registry=registry, buckets=metric.buckets)
    return counters, histograms


def text_of(registry: CollectorRegistry) -> bytes:
    """Return what a registry holds in Prometheus' text format.

    When a counter was created is of no use to anybody here and doubles the number of series.
    """
    return _CREATED.sub(b"", generate_latest(registry))


def _gauges(application: str, values: _Values) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges with these values, by the metric's name, then by its own labels."""
    for metric in METRICS:
        if metric.kind == "gauge":
            family = GaugeMetricFamily(metric.name, metric.help, labels=(*COMMON_LABELS, *metric.labels))
            for labels, value in values.get(metric.name, {}).items():
                family.add_metric((application, *labels), value)
            yield family


class Metrics:
    """All metrics of one worker in a registry of its own.

    Args:
        spec, spec_hash: What runs; decides which labels exist.
        statuses: Returns the status of each shard owned, for the gauges.
        shards: Partitions of the application's topics.
        control: Name of the control topic.
        engine_times: Whether to show how long the engine took: no part of the promise covers that.
        epoch: Seconds since 1970.
    """

    def __init__(
        self,
        spec: ApplicationSpec,
        spec_hash: str,
        statuses: Callable[[], Sequence[ShardStatus]] = tuple,
        *,
        shards: int = 1,
        control: str = "control",
        engine_times: bool = False,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self.registry = CollectorRegistry()
        self._epoch = epoch
        self._started = epoch()
        self._shards = shards
        self._statuses = statuses
        shown = [metric for metric in METRICS if engine_times or metric.name != ENGINE_TIMES]
        self._counters, self._histograms = recorders(shown, self.registry, COMMON_LABELS)
        self._last_tops: dict[str, tuple[Alert, float]] = {}
        self.fault: str | None = None
        self.configure(spec, spec_hash)
        for metric in shown:
            if not metric.labels and metric.kind != "gauge":
                (self._counter if metric.kind == "counter" else self._histogram)(metric.name)
        for reason in FAILURES:
            self._counter("stream_svt_failures_total", reason)
        for rejection in COMMAND_REASONS:
            self._counter("stream_svt_records_rejected_total", control, rejection)

    def configure(self, spec: ApplicationSpec, spec_hash: str) -> None:
        """Create the labels of a specification before anything happens: a rate needs a zero to start from."""
        self._spec = spec
        self._info = (VERSION, platform.python_version(), spec_hash)
        self._labelled = {dataset.name: dataset for dataset in spec.shown}
        for monitor in spec.monitors:
            self._histogram("stream_svt_top_gap_scales", monitor.name)
            for name in ("tops", "runs", "halts", "queries"):
                self._counter(f"stream_svt_{name}_total", monitor.name)
            for reason in SKIP_REASONS:
                self._counter("stream_svt_queries_skipped_total", monitor.name, reason)
        for topic in spec.topics():
            self._counter("stream_svt_records_total", topic)
            for rejection in REJECT_REASONS:
                self._counter("stream_svt_records_rejected_total", topic, rejection)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return self.rendering()()

    def rendering(self) -> Callable[[], bytes]:
        """Take all values now, and return what makes them a text: long work, for any thread and any time."""
        spec, info, labelled, fault = self._spec, self._info, self._labelled, self.fault
        last_tops, shards = dict(self._last_tops), [_as_now(status) for status in self._statuses()]

        def render() -> bytes:
            values: _Values = defaultdict(dict)
            values["stream_svt_build_info"][info] = 1
            values["stream_svt_start_timestamp_seconds"][()] = self._started
            values["stream_svt_shards_configured"][()] = self._shards
            if fault is not None:
                values["stream_svt_worker_outside_group"][(fault,)] = 1
            _add_monitors(values, spec, last_tops)
            _add_shards(values, shards, labelled)
            return text_of(self.registry) + generate_latest(
                Families(lambda: _gauges(spec.application, values))
            )

        return render

    # What shards tell

    def read(self, topic: str, records: int) -> None:
        """Count records as they are read: their number is public."""
        self._counter("stream_svt_records_total", topic).inc(records)

    def committed(self, shard: int, commit: Commit, seconds: float, steps: Iterable[float]) -> None:
        """Count what a durable commit holds."""
        del shard
        self._counter("stream_svt_commits_total").inc()
        self._histogram("stream_svt_commit_seconds").observe(seconds)
        if ENGINE_TIMES in self._histograms:
            for step in steps:
                self._histogram(ENGINE_TIMES).observe(step)
        for monitor, count in commit.tested.items():
            self._counter("stream_svt_queries_total", monitor).inc(count)
        for (monitor, reason), count in commit.skipped.items():
            self._counter("stream_svt_queries_skipped_total", monitor, reason).inc(count)
        for topic, _, reason in commit.rejects:
            self._counter("stream_svt_records_rejected_total", topic, reason).inc()
        counts = Counts((_COUNTED.get(event.type), event.data.monitor) for event in commit.events)
        for (counter, monitor), count in counts.items():
            if counter is not None:
                self._counter(counter, monitor).inc(count)
        now = self._epoch()
        for event in commit.events:
            top = event.data
            if isinstance(top, Alert):
                scales = top.gap / top.query_noise.scale
                self._histogram("stream_svt_top_gap_scales", top.monitor).observe(scales)
                self._last_tops[top.monitor] = (top, now)

    def refused(self, topic: str, reason: str) -> None:
        """Count a refused command that is not reported."""
        self._counter("stream_svt_records_rejected_total", topic, reason).inc()

    def flushed(self, seconds: float) -> None:
        """Count a transaction that only published."""
        self._counter("stream_svt_commits_total").inc()
        self._histogram("stream_svt_commit_seconds").observe(seconds)

    def published(self, events: int, latency: float | None) -> None:
        """Count events that a durable transaction published, and note how long the first of them took."""
        self._counter("stream_svt_events_published_total").inc(events)
        if latency is not None:
            self._histogram("stream_svt_alert_latency_seconds").observe(latency)

    def taken_over(self, seconds: float, restoring: float) -> None:
        """Note how long a takeover took, and how long of that reading the state."""
        self._histogram("stream_svt_takeover_seconds").observe(seconds)
        self._histogram("stream_svt_restore_seconds").observe(restoring)

    def failed(self, shard: int, reason: str) -> None:
        """Count a session that ended in an error."""
        del shard
        self._counter("stream_svt_failures_total", reason).inc()

    def rebalanced(self) -> None:
        """Count an assignment."""
        self._counter("stream_svt_rebalances_total").inc()

    # How they are kept

    def _counter(self, name: str, *labels: str) -> Counter:
        return self._counters[name].labels(self._spec.application, *labels)

    def _histogram(self, name: str, *labels: str) -> Histogram:
        return self._histograms[name].labels(self._spec.application, *labels)


_COUNTED = {
    EventType.ALERT: "stream_svt_tops_total",
    EventType.RUN_STARTED: "stream_svt_runs_total",
    EventType.RUN_HALTED: "stream_svt_halts_total",
}
"""Counters of a monitor by the events that raise them."""


def _as_now(status: ShardStatus) -> ShardStatus:
    """Return what a scrape takes of a shard: views and sums are never changed, only replaced."""
    now = copy(status)
    now.lag, now.views = dict(status.lag), dict(status.views)
    return now


def _add_monitors(
    values: _Values, spec: ApplicationSpec, last_tops: Mapping[str, tuple[Alert, float]]
) -> None:
    """Add what is configured, and each monitor's newest top."""
    for monitor in spec.monitors:
        name = (monitor.name,)
        values["stream_svt_monitor_datasets"].update({(monitor.name, state): 0 for state in STATES})
        values["stream_svt_monitor_muted_series"][name] = 0
        values["stream_svt_monitor_queued_series"][name] = 0
        values["stream_svt_monitor_threshold"][name] = float(monitor.threshold)
        values["stream_svt_monitor_cutoff"][name] = monitor.cutoff
        rate = max(branch.rate for branch in Plan.of(monitor).mechanism.branches)
        values["stream_svt_monitor_query_noise_scale"][name] = float(monitor.granularity / rate)
    for monitor_name, (top, committed_at) in last_tops.items():
        name = (monitor_name,)
        values["stream_svt_last_top_gap"][name] = top.gap
        values["stream_svt_last_top_timestamp_seconds"][name] = committed_at
        if top.estimate is not None:
            values["stream_svt_last_top_estimate"][name] = top.estimate
        if top.bound is not None:
            values["stream_svt_last_top_bound"][name] = top.bound


def _add_shards(values: _Values, shards: Sequence[ShardStatus], labelled: Mapping[str, DatasetSpec]) -> None:
    """Add what the shards owned now say of themselves and of their datasets."""
    values["stream_svt_shards_owned"][()] = len(shards)
    values["stream_svt_shards"].update({(str(state),): 0 for state in State})
    for one in shards:
        shard = str(one.shard)
        _add(values["stream_svt_shards"], (str(one.state),), 1)
        values["stream_svt_shard_open"][(shard,)] = one.state in OPEN
        if one.state is State.PARKED:
            values["stream_svt_shard_parked"][(shard, str(one.cause))] = 1
        values["stream_svt_state_records"][(shard,)] = one.state_records
        values["stream_svt_outbox_events"][(shard,)] = one.outbox
        values["stream_svt_last_commit_timestamp_seconds"][(shard,)] = one.committed_at
        for topic, lag in one.lag.items():
            values["stream_svt_lag_records"][(topic, shard)] = lag
        for view in one.views.values():
            if view.dataset in labelled:
                _add_view(values, labelled[view.dataset], view)
    _add_totals(values, sums_of([one.totals for one in shards if one.totals is not None]))


def _add_view(values: _Values, spec: DatasetSpec, view: DatasetView) -> None:
    """Add a dataset that is shown by itself."""
    dataset = (view.dataset,)
    for name in ("limit", "spent", "reserved"):
        values[f"stream_svt_budget_{name}_{view.measure}"][dataset] = getattr(view, name)
    # Under zCDP a run is charged as a whole when it begins, and its tops cost nothing more.
    tops_cost = view.measure == Kind.PURE.measure
    charges = sum(monitor.runs + (monitor.tops if tops_cost else 0) for monitor in view.monitors)
    values["stream_svt_budget_charges"][dataset] = charges
    if spec.horizon_ms is not None:
        values["stream_svt_budget_horizon_seconds"][dataset] = spec.horizon_ms / 1000
    if spec.ends_ms is not None:
        values["stream_svt_budget_end_timestamp_seconds"][dataset] = spec.ends_ms / 1000
    for monitor in view.monitors:
        labels = (view.dataset, monitor.monitor)
        values[f"stream_svt_monitor_spent_{view.measure}"][labels] = monitor.spent
        values[f"stream_svt_monitor_run_left_{view.measure}"][labels] = monitor.run_left
        values["stream_svt_monitor_state"][(*labels, monitor.state)] = 1


def _add_totals(values: _Values, totals: Totals) -> None:
    """Add what is counted over all datasets, and the sums of those that are not shown one by one."""
    for measure, others in totals.others.items():
        for amount in ("limit", "spent", "reserved"):
            values[f"stream_svt_budget_{amount}_{measure}"][(OTHERS,)] = getattr(others, amount)
        _add(values["stream_svt_budget_charges"], (OTHERS,), others.charges)
    for name, monitor in totals.monitors.items():
        for state, count in monitor.states.items():
            values["stream_svt_monitor_datasets"][name, state] = count
        values["stream_svt_monitor_muted_series"][(name,)] = monitor.muted
        values["stream_svt_monitor_queued_series"][(name,)] = monitor.queued
        for measure in totals.others:
            values[f"stream_svt_monitor_spent_{measure}"][(OTHERS, name)] = monitor.spent[measure]
            values[f"stream_svt_monitor_run_left_{measure}"][(OTHERS, name)] = monitor.run_left[measure]


def _add(values: dict[tuple[str, ...], float], labels: tuple[str, ...], amount: float) -> None:
    values[labels] = values.get(labels, 0.0) + amount
