"""Prometheus metrics of a worker, of durable state only: a scrape never shows an alert before its charge.

There are no metrics of the process: its memory and processor time may depend on values.
"""

from __future__ import annotations

import platform
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import prometheus_client as prometheus
from prometheus_client.utils import floatToGoString

from stream_svt.monitor.projection import STATES, sums_of
from stream_svt.monitor.released import Alert, DatasetView, EventType, MonitorTotals, OtherTotals, Totals
from stream_svt.monitor.state.accounts import Commit
from stream_svt.privacy.loss import Kind, to_float
from stream_svt.protocol.controls import Refusal
from stream_svt.protocol.shard_states import OPEN, ShardState, ShardStatus
from stream_svt.queries.reasons import OUTSIDE_PERIOD, Reason
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import Terms
from stream_svt.settings.fields import duration_text
from stream_svt.version import __version__

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
    "stopped",
    "halted",
    "idle",
    "limited",
    "paused",
    "outside-period",
    "maintenance",
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

    ``labels`` follow `COMMON_LABELS`; ``buckets`` are the bounds of a histogram.
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
    _gauge("build_info", "version python application_hash", "Always 1; labels name what runs."),
    _gauge("start_timestamp_seconds", "", "Start of the worker."),
    _gauge("budget_limit_epsilon", "dataset", "Limit of a dataset's ledger."),
    _gauge("budget_spent_epsilon", "dataset", "Privacy loss spent, from committed state."),
    _gauge("budget_reserved_epsilon", "dataset", "Privacy loss reserved by open runs."),
    _gauge("budget_limit_rho", "dataset", "Limit of a dataset's ledger in zCDP."),
    _gauge("budget_spent_rho", "dataset", "zCDP loss spent, from committed state."),
    _gauge("budget_reserved_rho", "dataset", "zCDP loss reserved by open runs."),
    _gauge(
        "budget_charges", "dataset", "Charges in a ledger: thresholds and alerts (epsilon) or runs (rho)."
    ),
    _gauge("budget_horizon_seconds", "dataset", "Horizon, or length of the period."),
    _gauge("budget_end_timestamp_seconds", "dataset", "End of a period and its lateness."),
    _gauge("budget_renewal_timestamp_seconds", "dataset", "Begin of the next period, if the limit renews."),
    _gauge(
        "budget_promise_epsilon",
        "dataset per",
        "Most that the events of any time per cost over all periods, if the limit renews.",
    ),
    _gauge("monitor_spent_epsilon", "dataset monitor", "Privacy loss spent by a monitor."),
    _gauge("monitor_spent_rho", "dataset monitor", "zCDP loss spent by a monitor."),
    _gauge("monitor_run_left_epsilon", "dataset monitor", "Privacy loss that the open run can still spend."),
    _gauge("monitor_run_left_rho", "dataset monitor", "Epsilon left to an open run that is charged in rho."),
    _gauge(
        "monitor_state", "dataset monitor state", "1 for the state of a monitor; other states are absent."
    ),
    _gauge(
        "monitor_state_until_timestamp_seconds",
        "dataset monitor state",
        "End of a limit or timed pause; absent otherwise.",
    ),
    _gauge(
        "monitor_blind_since_timestamp_seconds",
        "dataset monitor state",
        "Time since which a monitor skips queries; absent otherwise.",
    ),
    _gauge("monitor_datasets", "monitor state", "Datasets on which a monitor is in a state."),
    _gauge("monitor_expected_queries", "monitor", "Queries that one run must last for, as configured."),
    _gauge("monitor_muted_series", "monitor", "Series muted after an alert."),
    _gauge("monitor_queued_series", "monitor", "Queries that wait for another test."),
    _counter("alerts_total", "monitor", "Alerts charged."),
    _histogram("alert_gap_scales", "monitor", "Gaps of alerts, in scales of the query noise.", _SCALES),
    _counter("runs_total", "monitor", "Runs opened, each with a new threshold noise."),
    _counter("halts_total", "monitor", "Runs that reported their last alert."),
    _counter("records_total", "topic", "Records read, including replays."),
    _counter("queries_total", "monitor", "Queries tested."),
    _counter("queries_skipped_total", "monitor reason", "Queries not tested, by reason."),
    _counter("records_rejected_total", "topic reason", "Records refused, by structural reason."),
    _counter("events_published_total", "", "Events published on the alert topic."),
    _gauge("outbox_events", "shard", "Charged, durable events that are not yet published."),
    _histogram("commit_seconds", "", "Time of a transaction."),
    _histogram("alert_latency_seconds", "", "Time from reading a query to publishing its alert."),
    _counter("commits_total", "", "Transactions committed."),
    _counter("failures_total", "reason", "Sessions of shards that ended in an error, by reason."),
    _gauge(
        "lag_records", "topic shard", "Offsets after the committed position, including open transactions."
    ),
    _gauge(
        "topic_read_timestamp_seconds",
        "topic shard",
        "Broker's timestamp of the newest query read; 0 before the first.",
    ),
    _gauge(
        "source_due_seconds",
        "topic query",
        "Longest time to the first query of a source, and from a query to the next, by its configuration.",
    ),
    _gauge("last_commit_timestamp_seconds", "shard", "Time of a shard's last commit."),
    _gauge("shards_configured", "", "Shards of the application."),
    _gauge("shards_owned", "", "Shards this worker owns."),
    _gauge("shards", "state", "Shards this worker owns, by state."),
    _gauge("shard_open", "shard", "1 for an owned shard that is open, 0 for another owned shard."),
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

_OF_DATASETS = tuple(metric for metric in METRICS if "dataset" in metric.labels)
"""Gauges rendered here: thousands of samples, most of which are the same in the next scrape."""

_NOTHING = MonitorTotals(dict.fromkeys(STATES, 0), 0, 0, Counts(), Counts())


class MetricSample(NamedTuple):
    """A value of one of `_OF_DATASETS`, with its labels after the common ones."""

    name: str
    value: float
    labels: tuple[str, ...]


class Registry(prometheus.CollectorRegistry):
    """A registry whose counters and histograms do not show their creation, whatever the process has configured."""

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
    """Metrics of one worker, in a separate registry.

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
        kept = [metric for metric in METRICS if metric not in _OF_DATASETS]
        self._metrics = registered(kept, self._registry, COMMON_LABELS)
        self._rendered: dict[str, tuple[DatasetView, Terms, dict[str, str]]] = {}
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
        counts = spec.counts_topics()
        for topic in spec.topics():
            self._of("records_total", topic)
            for rejection in () if topic in counts else REJECT_REASONS:
                self._of("records_rejected_total", topic, rejection)

    def rendering(self) -> Callable[[], bytes]:
        """Copy all values, and return a function that renders them: long work, for one thread at a time."""
        spec, info, fault = self._spec, self._info, self.fault
        # Views and totals are immutable.
        shards = [
            replace(one, lag=dict(one.lag), read_ms=dict(one.read_ms), views=dict(one.views))
            for one in self._statuses()
        ]

        def render() -> bytes:
            # Remove values of shards that were handed over.
            for metric in METRICS:
                if metric.kind == "gauge" and metric.name in self._metrics:
                    self._metrics[metric.name].clear()
            self._set("build_info", 1, *info)
            self._set("start_timestamp_seconds", self._started)
            self._set("shards_configured", self._shards)
            if fault is not None:
                self._set("worker_outside_group", 1, fault)
            totals = sums_of([one.totals for one in shards if one.totals is not None])
            self._set_shards(shards)
            views = {view.dataset: view for one in shards for view in one.views.values()}
            shown = [(views[one.name], one.terms) for one in spec.shown if one.name in views]
            self._set_sums(spec, totals)
            return prometheus.generate_latest(self._registry) + self._of_datasets(spec, shown, totals)

        return render

    def refused_records(self) -> dict[str, int]:
        """Return how many records were refused since the worker started, by reason."""
        refused: Counts[str] = Counts()
        for sample in self._metrics[f"{_PREFIX}records_rejected_total"].collect()[0].samples:
            if not sample.name.endswith("_created"):
                refused[sample.labels["reason"]] += int(sample.value)
        return {reason: count for reason, count in sorted(refused.items()) if count}

    def committed(self, commit: Commit) -> None:
        """Count the events and tests of a durable commit."""
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
            for topic, read_ms in one.read_ms.items():
                self._set("topic_read_timestamp_seconds", read_ms / 1000, topic, shard)
            for topic, lag in one.lag.items():
                self._set("lag_records", lag, topic, shard)

    def _of_datasets(
        self, spec: ApplicationSpec, shown: Iterable[tuple[DatasetView, Terms]], totals: Totals
    ) -> bytes:
        """Render the gauges of datasets; the gauges of an unchanged dataset are rendered already."""
        rendered = {}
        for view, terms in shown:
            known = self._rendered.get(view.dataset)
            if known is None or known[0] is not view or known[1] is not terms:
                known = view, terms, _text(spec.application, _samples(spec, terms, view))
            rendered[view.dataset] = known
        self._rendered = rendered
        parts = [text for _, _, text in rendered.values()] + [_text(spec.application, _sums(spec, totals))]
        text = []
        for metric in _OF_DATASETS:
            text.append(f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} gauge\n")
            text += [part[metric.name] for part in parts if metric.name in part]
        return "".join(text).encode()

    def _set_sums(self, spec: ApplicationSpec, totals: Totals) -> None:
        """Set the gauges that count datasets, and the sums over those that are not shown individually."""
        for source in (one for one in spec.sources if one.answers is None):  # answers come when they come
            topic = source.counts_topic(spec.application)
            between = source.window if source.ask == "close" else source.every
            first = 2 * source.window + source.lateness + source.settle
            self._set("source_due_seconds", first / 1000, topic, "first")
            self._set("source_due_seconds", (between + source.settle) / 1000, topic, "next")
        for monitor in spec.monitors:
            if monitor.expected_queries is not None:
                self._set("monitor_expected_queries", monitor.expected_queries, monitor.name)
        for name, sums in _of_monitors(spec, totals).items():
            for state in STATES:
                self._set("monitor_datasets", sums.states[state], name, state)
            self._set("monitor_muted_series", sums.muted, name)
            self._set("monitor_queued_series", sums.queued, name)


def _samples(spec: ApplicationSpec, terms: Terms, view: DatasetView) -> Iterator[MetricSample]:
    """Yield the gauges of a dataset that is shown individually."""
    name = view.dataset
    yield from _amounts(view.measure, view, name)
    # Under zCDP a run is charged in full when it opens, and its tops cost nothing more.
    tops_cost = view.measure == Kind.PURE.measure
    charges = sum(monitor.runs + (monitor.alerts if tops_cost else 0) for monitor in view.monitors)
    yield MetricSample("budget_charges", charges, (name,))
    yield MetricSample("budget_horizon_seconds", terms.horizon_ms / 1000, (name,))
    if terms.ends_ms is not None:
        yield MetricSample("budget_end_timestamp_seconds", terms.ends_ms / 1000, (name,))
    if (begin := spec.renewal_ms(terms)) is not None:
        yield MetricSample("budget_renewal_timestamp_seconds", begin / 1000, (name,))
    if (renewal := terms.renewal) is not None:
        promised = to_float(renewal.limit, Kind.PURE)
        yield MetricSample("budget_promise_epsilon", promised, (name, duration_text(renewal.per_ms)))
    for monitor in view.monitors:
        yield MetricSample(f"monitor_spent_{view.measure}", monitor.spent, (name, monitor.monitor))
        yield MetricSample(f"monitor_run_left_{view.measure}", monitor.run_left, (name, monitor.monitor))
        state = name, monitor.monitor, monitor.state
        yield MetricSample("monitor_state", 1, state)
        if monitor.until:
            yield MetricSample("monitor_state_until_timestamp_seconds", monitor.until / 1000, state)
        if monitor.since:
            yield MetricSample("monitor_blind_since_timestamp_seconds", monitor.since / 1000, state)


def _of_monitors(spec: ApplicationSpec, totals: Totals) -> Mapping[str, MonitorTotals]:
    return {**{one.name: _NOTHING for one in spec.monitors}, **totals.monitors}


def _sums(spec: ApplicationSpec, totals: Totals) -> Iterator[MetricSample]:
    """Yield the sums over the datasets that are not shown individually."""
    for name, sums in _of_monitors(spec, totals).items():
        for measure in totals.others:
            yield MetricSample(f"monitor_spent_{measure}", sums.spent[measure], (OTHERS, name))
            yield MetricSample(f"monitor_run_left_{measure}", sums.run_left[measure], (OTHERS, name))
    for measure, others in totals.others.items():
        yield from _amounts(measure, others, OTHERS)
    if totals.others:
        yield MetricSample(
            "budget_charges", sum(others.charges for others in totals.others.values()), (OTHERS,)
        )


def _amounts(measure: str, account: DatasetView | OtherTotals, dataset: str) -> Iterator[MetricSample]:
    for name in ("limit", "spent", "reserved"):
        yield MetricSample(f"budget_{name}_{measure}", getattr(account, name), (dataset,))


def _text(application: str, samples: Iterable[MetricSample]) -> dict[str, str]:
    """Return the lines of samples by the name of their metric, in the text format of Prometheus."""
    lines: dict[str, str] = {}
    for sample in samples:
        name = _PREFIX + sample.name
        named = zip((*COMMON_LABELS, *_LABELS[name]), (application, *sample.labels), strict=True)
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in named)
        lines[name] = f"{lines.get(name, '')}{name}{{{labels}}} {_number(sample.value)}\n"
    return lines


_LABELS = {metric.name: metric.labels for metric in _OF_DATASETS}


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
