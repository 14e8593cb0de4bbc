"""Prometheus metrics of a worker, of durable state only: a scrape never shows what is not charged yet.

There are no metrics of the process: its memory and processor time may depend on values.
"""

from __future__ import annotations

import platform
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import prometheus_client as prometheus

from stream_svt.monitor.accounts import Commit
from stream_svt.monitor.projection import STATES, sums_of
from stream_svt.monitor.released import Alert, DatasetView, EventType, MonitorTotals, OtherTotals, Totals
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.controls import Refusal
from stream_svt.protocol.shard_states import OPEN, ShardState, ShardStatus
from stream_svt.service import __version__
from stream_svt.service.reasons import OUTSIDE_PERIOD, Reason
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import Terms

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "stream_svt_"
OTHERS = "(others)"
"""Label of the sums over datasets that are not shown individually; no dataset may have this name."""
COMMON_LABELS = ("application",)
"""Labels of every metric: without them, a scrape configuration that forgets the target's label would mix the budgets of
two applications whose datasets have the same names."""

SKIP_REASONS = (
    "muted",
    "exhausted",
    "halted",
    "idle",
    "limited",
    "outside-period",
    "retry-overflow",
    "set-overflow",
)
REJECT_REASONS = (*(reason.value for reason in Reason), OUTSIDE_PERIOD)
FAILURES = ("fenced", "unavailable", "parked", "stuck", "error")

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SCALES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, from which its documentation is generated.

    ``labels`` follow `COMMON_LABELS`; ``buckets`` are those of a histogram.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = _SECONDS


def lines_of(prefix: str, seconds: tuple[float, ...]) -> Iterator[Callable[..., Metric]]:
    """Yield functions that make gauges, counters, and histograms, whose buckets are ``seconds`` by default."""

    def line(kind: str, name: str, labels: str, text: str, buckets: tuple[float, ...] = seconds) -> Metric:
        return Metric(prefix + name, kind, tuple(labels.split()), text, buckets)

    return (partial(line, kind) for kind in ("gauge", "counter", "histogram"))


_gauge, _counter, _histogram = lines_of(_PREFIX, _SECONDS)

METRICS: tuple[Metric, ...] = (
    _gauge("build_info", "version python application_hash", "1, with what runs."),
    _gauge("start_timestamp_seconds", "", "When the worker started."),
    _gauge("budget_limit_epsilon", "dataset", "Limit of a dataset's ledger."),
    _gauge("budget_spent_epsilon", "dataset", "Privacy loss spent, from committed state."),
    _gauge("budget_reserved_epsilon", "dataset", "Privacy loss reserved by open runs."),
    _gauge("budget_limit_rho", "dataset", "Limit of a dataset's ledger in zCDP."),
    _gauge("budget_spent_rho", "dataset", "zCDP loss spent, from committed state."),
    _gauge("budget_reserved_rho", "dataset", "zCDP loss reserved by open runs."),
    _gauge(
        "budget_charges", "dataset", "Charges in a ledger: thresholds and alerts (epsilon) or runs (rho)."
    ),
    _gauge("budget_horizon_seconds", "dataset", "Declared horizon, or length of the period."),
    _gauge("budget_end_timestamp_seconds", "dataset", "End of a period, lateness included."),
    _gauge("monitor_spent_epsilon", "dataset monitor", "Privacy loss spent by a monitor."),
    _gauge("monitor_spent_rho", "dataset monitor", "zCDP loss spent by a monitor."),
    _gauge("monitor_run_left_epsilon", "dataset monitor", "Loss the open run can still spend."),
    _gauge("monitor_run_left_rho", "dataset monitor", "Epsilon left to an open run that is charged in rho."),
    _gauge("monitor_state", "dataset monitor state", "1 for the state of a monitor; others are absent."),
    _gauge("monitor_datasets", "monitor state", "Datasets on which a monitor is in a state."),
    _gauge("monitor_expected_queries", "monitor", "Queries that one run must last for, as configured."),
    _gauge("monitor_muted_series", "monitor", "Series muted after an alert."),
    _gauge("monitor_queued_series", "monitor", "Queries that wait for another test."),
    _counter("alerts_total", "monitor", "Alerts charged."),
    _histogram("alert_gap_scales", "monitor", "Gaps of alerts, in scales of the query noise.", _SCALES),
    _counter("runs_total", "monitor", "Runs opened, each with a new threshold noise."),
    _counter("halts_total", "monitor", "Runs that reported their last alert."),
    _counter("records_total", "topic", "Records read, replays included."),
    _counter("queries_total", "monitor", "Queries tested."),
    _counter("queries_skipped_total", "monitor reason", "Queries not tested, by reason."),
    _counter("records_rejected_total", "topic reason", "Records refused, by structural reason."),
    _counter("events_published_total", "", "Events published on the alert topic."),
    _gauge("outbox_events", "shard", "Events charged and durable, and not yet published."),
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


_COUNTED: Mapping[str, str] = {
    EventType.ALERT: "alerts_total",
    EventType.RUN_STARTED: "runs_total",
    EventType.RUN_HALTED: "halts_total",
}
"""Counters of a monitor by event type."""

_NOTHING = MonitorTotals(dict.fromkeys(STATES, 0), 0, 0, Counts(), Counts())


class Registry(prometheus.CollectorRegistry):
    """A registry whose counters and histograms do not show when they were created, whatever the process shows."""

    def collect(self) -> Iterator[prometheus.Metric]:
        """Yield every metric with its samples."""
        for metric in super().collect():
            if metric.type in {"counter", "histogram"}:
                metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric


def registered(
    metrics: Iterable[Metric], registry: prometheus.CollectorRegistry, common: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Register metrics and return them by name; ``common`` labels come first."""
    kinds = {"counter": prometheus.Counter, "gauge": prometheus.Gauge, "histogram": prometheus.Histogram}
    return {
        one.name: kinds[one.kind](
            *(one.name, one.help, (*common, *one.labels)),
            registry=registry,
            **({"buckets": one.buckets} if one.kind == "histogram" else {}),
        )
        for one in metrics
    }


class Metrics:
    """Metrics of one worker, in a registry of its own.

    ``shards`` is the number of shards of the application, ``statuses`` returns those owned.
    """

    def __init__(
        self,
        spec: ApplicationSpec,
        application_hash: str,
        statuses: Callable[[], Sequence[ShardStatus]] = tuple,
        *,
        shards: int = 1,
        control: str = "control",
    ) -> None:
        self._registry = Registry()
        self._started = time.time()
        self._shards = shards
        self._statuses = statuses
        self._metrics = registered(METRICS, self._registry, COMMON_LABELS)
        self.fault: str | None = None
        self.configure(spec, application_hash)
        for metric in METRICS:
            if not metric.labels and metric.kind != "gauge":
                self._metrics[metric.name].labels(spec.application)
        for reason in FAILURES:
            self._of("failures_total", reason)
        for rejection in Refusal:
            self._of("records_rejected_total", control, rejection)

    def configure(self, spec: ApplicationSpec, application_hash: str) -> None:
        """Create the labels of a specification with zeros: rates need a first value."""
        self._spec = spec
        self._info = (__version__, platform.python_version(), application_hash)
        for monitor in spec.monitors:
            self._of("alert_gap_scales", monitor.name)
            for name in ("alerts", "runs", "halts", "queries"):
                self._of(f"{name}_total", monitor.name)
            for reason in SKIP_REASONS:
                self._of("queries_skipped_total", monitor.name, reason)
        for topic in spec.topics():
            self._of("records_total", topic)
            for rejection in REJECT_REASONS:
                self._of("records_rejected_total", topic, rejection)

    def rendering(self) -> Callable[[], bytes]:
        """Copy all values, and return a function that renders them: long work, for one thread at a time."""
        spec, info, fault = self._spec, self._info, self.fault
        # Views and totals are immutable.
        shards = [replace(one, lag=dict(one.lag), views=dict(one.views)) for one in self._statuses()]

        def render() -> bytes:
            # Remove values of shards that were handed over.
            for metric in METRICS:
                if metric.kind == "gauge":
                    self._metrics[metric.name].clear()
            self._set("build_info", 1, *info)
            self._set("start_timestamp_seconds", self._started)
            self._set("shards_configured", self._shards)
            if fault is not None:
                self._set("worker_outside_group", 1, fault)
            totals = sums_of([one.totals for one in shards if one.totals is not None])
            self._set_shards(shards)
            views = {view.dataset: view for one in shards for view in one.views.values()}
            for dataset in spec.shown:
                if dataset.name in views:
                    self._set_view(dataset.terms, views[dataset.name])
            self._set_sums(spec, totals)
            return prometheus.generate_latest(self._registry)

        return render

    def refused_records(self) -> dict[str, int]:
        """Return how many records were refused since the worker started, by reason."""
        refused: Counts[str] = Counts()
        for sample in self._metrics[f"{_PREFIX}records_rejected_total"].collect()[0].samples:
            if not sample.name.endswith("_created"):
                refused[sample.labels["reason"]] += int(sample.value)
        return {reason: count for reason, count in sorted(refused.items()) if count}

    def committed(self, commit: Commit) -> None:
        """Count what a durable commit holds."""
        for monitor, tested in commit.tested.items():
            self.count("queries_total", monitor, by=tested)
        for labels, skipped in commit.skipped.items():
            self.count("queries_skipped_total", *labels, by=skipped)
        for topic, _, reason in commit.rejects:
            self.count("records_rejected_total", topic, reason)
        counted = Counts(
            (event.type, event.data.monitor) for event in commit.events if event.type in _COUNTED
        )
        for (kind, monitor), number in counted.items():
            self.count(_COUNTED[kind], monitor, by=number)
        tops = [event.data for event in commit.events if isinstance(event.data, Alert)]
        gaps = {monitor: self._of("alert_gap_scales", monitor) for monitor in {top.monitor for top in tops}}
        for top in tops:
            gaps[top.monitor].observe(top.gap / top.query_noise.scale)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Raise a counter."""
        self._of(name, *labels).inc(by)

    def time(self, name: str, seconds: float) -> None:
        """Add a duration to a histogram."""
        self._of(name).observe(seconds)

    def _of(self, name: str, *labels: str) -> Any:  # noqa: ANN401  of any kind
        return self._metrics[_PREFIX + name].labels(self._spec.application, *labels)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._of(name, *labels).set(value)

    def _set_shards(self, shards: Sequence[ShardStatus]) -> None:
        self._set("shards_owned", len(shards))
        counts = Counts(one.state for one in shards)
        for state in ShardState:
            self._set("shards", counts[state], str(state))
        for one in shards:
            shard = str(one.shard)
            self._set("shard_open", one.state in OPEN, shard)
            if one.state is ShardState.PARKED:
                self._set("shard_parked", 1, shard, str(one.cause))
            self._set("state_records", one.state_records, shard)
            self._set("outbox_events", one.outbox, shard)
            self._set("last_commit_timestamp_seconds", one.committed_at, shard)
            for topic, lag in one.lag.items():
                self._set("lag_records", lag, topic, shard)

    def _set_view(self, terms: Terms, view: DatasetView) -> None:
        """Set the gauges of a dataset that is shown individually."""
        self._set_amounts(view.measure, view, view.dataset)
        # Under zCDP a run is charged in full when it opens, and its tops cost nothing more.
        tops_cost = view.measure == Kind.PURE.measure
        charges = sum(monitor.runs + (monitor.alerts if tops_cost else 0) for monitor in view.monitors)
        self._set("budget_charges", charges, view.dataset)
        if terms.horizon_ms is not None:
            self._set("budget_horizon_seconds", terms.horizon_ms / 1000, view.dataset)
        if terms.ends_ms is not None:
            self._set("budget_end_timestamp_seconds", terms.ends_ms / 1000, view.dataset)
        for monitor in view.monitors:
            self._set(f"monitor_spent_{view.measure}", monitor.spent, view.dataset, monitor.monitor)
            self._set(f"monitor_run_left_{view.measure}", monitor.run_left, view.dataset, monitor.monitor)
            self._set("monitor_state", 1, view.dataset, monitor.monitor, monitor.state)

    def _set_sums(self, spec: ApplicationSpec, totals: Totals) -> None:
        """Set the gauges that count datasets, and the sums over those that are not shown individually."""
        for monitor in spec.monitors:
            if monitor.expected_queries is not None:
                self._set("monitor_expected_queries", monitor.expected_queries, monitor.name)
        for name, sums in {**{one.name: _NOTHING for one in spec.monitors}, **totals.monitors}.items():
            for state in STATES:
                self._set("monitor_datasets", sums.states[state], name, state)
            self._set("monitor_muted_series", sums.muted, name)
            self._set("monitor_queued_series", sums.queued, name)
            for measure in totals.others:
                self._set(f"monitor_spent_{measure}", sums.spent[measure], OTHERS, name)
                self._set(f"monitor_run_left_{measure}", sums.run_left[measure], OTHERS, name)
        for measure, others in totals.others.items():
            self._set_amounts(measure, others, OTHERS)
        if totals.others:
            self._set("budget_charges", sum(others.charges for others in totals.others.values()), OTHERS)

    def _set_amounts(self, measure: str, account: DatasetView | OtherTotals, dataset: str) -> None:
        for name in ("limit", "spent", "reserved"):
            self._set(f"budget_{name}_{measure}", getattr(account, name), dataset)
