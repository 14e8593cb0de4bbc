"""Metrics show committed outcomes, with every label there from the start and a bounded number of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_svt.monitor.released import EventType, NoiseLaw, ReleasedEvent, Totals
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.shard_states import Cause, ShardSignal, ShardState, ShardStatus
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.worker import metrics as metrics_module
from stream_svt.worker.metrics import COMMON_LABELS, METRICS, OTHERS, Metrics
from tests.support import alerts
from tests.support.shop import SPEC, owned, view

PERIODS = """
application: shop
datasets:
  - {generate: "week-{iso_week}", from: 2026-01-05, until: 2026-01-19, lateness: 1h, limit: 4, unit: one event}
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none, expected_queries: 100}
"""
SOURCE = """
sources:
  - {name: clicks, topic: web.clicks, unit: user, window: 1h, settle: 20s, dataset: "week-{iso_week}"}
"""
COUNTED = """
application: shop
datasets:
  - {generate: "week-{iso_week}", from: 2026-01-05, until: 2026-01-19, lateness: 1h, limit: 4}
monitors:
  - {name: hot, source: clicks, measure: units, epsilon: 1, cutoff: 3, threshold: 5,
  correction: none, expected_queries: 100}
"""


@pytest.fixture
def spec() -> ApplicationSpec:
    return load_spec(SPEC)


def scrape(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return samples by name and the values of their own labels, the latter in the order of the labels' names."""
    return {
        (
            sample.name,
            *(value for name, value in sorted(sample.labels.items()) if name not in COMMON_LABELS),
        ): sample.value
        for family in text_string_to_metric_families(metrics.rendering()().decode())
        for sample in family.samples
    }


def top(gap: float) -> ReleasedEvent:
    """Return the event of an alert with query noise of scale 2."""
    data = alerts.alert(gap=gap, query_noise=NoiseLaw(family="exponential", scale=2.0))
    return ReleasedEvent(type=EventType.ALERT, id="1", sequence=1, subject="a", data=data)


def lifecycle(kind: EventType) -> ReleasedEvent:
    return ReleasedEvent(type=kind, id="1", sequence=1, subject="a", data=alerts.lifecycle(""))


def test_every_sample_has_the_labels_of_the_table_and_says_its_application() -> None:
    """No name is exposed beside those of the table, and what no code fills would show, too: this fills every line."""
    views = [view("week-2026-w02", state="limited", until=1, since=1), view("week-2026-w03", measure="rho")]
    renewing = COUNTED.replace("limit: 4", "limit: {epsilon: 12, per: 13d}") + SOURCE
    metrics = Metrics(load_spec(renewing), "hash", lambda: [owned(*views), parked])
    parked, metrics.fault = ShardStatus(1), "clock"
    parked.signal(ShardSignal.PARKED, Cause.CONFIGURATION)
    metrics.committed(Commit(rejects=[("counts", 1, "empty")], events=[top(1.0)]))
    found: dict[str, set[frozenset[str]]] = {}
    for family in text_string_to_metric_families(metrics.rendering()().decode()):
        for sample in family.samples:
            assert sample.labels["application"] == "shop"
            found.setdefault(family.name, set()).add(frozenset(sample.labels.keys() - {"le"}))
    assert found == {
        metric.name.removesuffix("_total"): {frozenset(COMMON_LABELS + metric.labels)} for metric in METRICS
    }


def test_labels_exist_from_the_start_and_only_what_this_worker_committed_is_counted(spec):
    """A shard that comes with a history of 7 tops adds nothing; each event of a commit adds one; gaps in scales."""
    counted = {
        ("alerts_total", "hot"): 2,
        ("runs_total", "hot"): 1,
        ("halts_total", "hot"): 1,
        ("queries_total", "hot"): 40,
        ("queries_skipped_total", "hot", "muted"): 0,
        ("monitor_datasets", "hot", "exhausted"): 0,
        ("alert_gap_scales_bucket", "0.5", "hot"): 1,
        ("alert_gap_scales_bucket", "4.0", "hot"): 1,
        ("alert_gap_scales_bucket", "6.0", "hot"): 2,
        ("alert_gap_scales_bucket", "+Inf", "hot"): 2,
        ("alert_gap_scales_sum", "hot"): 5.0,
    }
    wanted = {(f"stream_svt_{name}", *labels): value for (name, *labels), value in counted.items()}
    metrics = Metrics(spec, "hash", lambda: [owned(view("a", alerts=7, runs=3))])
    fresh = scrape(Metrics(spec, "hash", shards=6))
    assert (fresh["stream_svt_shards_owned",], fresh["stream_svt_shards_configured",]) == (0, 6)
    for found in (fresh, scrape(metrics)):
        assert {key: found[key] for key in wanted} == dict.fromkeys(wanted, 0)
    events = [lifecycle(EventType.RUN_STARTED), top(1.0), top(9.0), lifecycle(EventType.RUN_HALTED)]
    rejects = [("counts", 1, "empty"), ("counts", 2, "empty")]
    metrics.committed(Commit(events=events, tested={"hot": 40}, rejects=rejects))
    wanted["stream_svt_records_rejected_total", "empty", "counts"] = 2
    found = scrape(metrics)
    assert {key: found[key] for key in wanted} == wanted


def test_a_dataset_shows_the_horizon_by_which_its_pace_is_measured_a_month_if_none_is_declared() -> None:
    metrics = Metrics(load_spec(SPEC), "hash", lambda: [owned(view("a"))])
    assert scrape(metrics)["stream_svt_budget_horizon_seconds", "a"] == 30 * 86_400
    metrics.configure(load_spec(SPEC.replace("unit:", "horizon: 90d, unit:")), "hash")
    found, week = scrape(metrics), "week-2026-w02"
    assert found["stream_svt_budget_horizon_seconds", "a"] == 90 * 86_400
    assert ("stream_svt_budget_end_timestamp_seconds", "a") not in found
    found = scrape(Metrics(load_spec(PERIODS), "hash", lambda: [owned(view(week))]))
    assert found["stream_svt_budget_horizon_seconds", week] == 7 * 86_400
    # The Monday after, and the hour for what comes late.
    assert found["stream_svt_budget_end_timestamp_seconds", week] == 1_768_176_000 + 3600


def test_a_limit_that_renews_shows_what_it_promises_and_when_the_next_period_begins() -> None:
    weekly = 'generate: "week-{iso_week}", from: 2026-01-05, until: 2026-01-19'
    renewing = 'generate: "d-{date}", every: 7d, from: 2026-01-05, until: 2026-01-19'
    spec = load_spec(PERIODS.replace(weekly, renewing).replace("limit: 4", "limit: {epsilon: 12, per: 13d}"))
    shown = [owned(view("d-2026-01-05"), view("d-2026-01-12"))]
    found = scrape(Metrics(spec, "hash", lambda: shown))
    assert found["stream_svt_budget_promise_epsilon", "d-2026-01-05", "13d"] == 12
    assert found["stream_svt_budget_renewal_timestamp_seconds", "d-2026-01-05"] == 1_768_176_000
    assert found["stream_svt_budget_promise_epsilon", "d-2026-01-12", "13d"] == 12
    assert ("stream_svt_budget_renewal_timestamp_seconds", "d-2026-01-12") not in found, "no period follows"
    endless = load_spec(
        PERIODS.replace(weekly, renewing.replace(", until: 2026-01-19", "")).replace(
            "limit: 4", "limit: {epsilon: 12, per: 13d}"
        )
    )
    assert endless.renewal_ms(endless.dataset("d-2026-01-12").terms) == 1_768_780_800_000
    assert "renewal" not in str(
        scrape(Metrics(load_spec(PERIODS), "hash", lambda: [owned(view("week-2026-w02"))]))
    )


@pytest.mark.parametrize(("ask", "then"), [("close", 3600 + 20), ("tick", 10 + 20)])
def test_a_source_shows_when_its_counts_are_due(ask: str, then: int) -> None:
    """A source that begins with the next window has its first count when that one closes."""
    source = SOURCE.replace("window: 1h", f"window: 1h, ask: {ask}")
    found = scrape(Metrics(load_spec(COUNTED + source), "hash"))
    due = {
        query: found["stream_svt_source_due_seconds", query, "shop.clicks.counts"]
        for query in ("first", "next")
    }
    assert due == {"first": 2 * 3600 + 60 + 20, "next": then}


@pytest.mark.parametrize(
    ("text", "topics"), [(PERIODS, {"control", "counts"}), (COUNTED + SOURCE, {"control"})]
)
def test_of_a_topic_of_counts_no_refused_record_is_counted(text: str, topics: set[str]) -> None:
    found = scrape(Metrics(load_spec(text), "hash"))
    assert {labels[-1] for name, *labels in found if name == "stream_svt_records_rejected_total"} == topics


def test_gauges_come_from_the_shards_owned_now(spec: ApplicationSpec) -> None:
    """Charges are thresholds and tops in epsilon, and whole runs in rho."""
    views = [view("a", alerts=7, runs=3), view("b", alerts=7, runs=3, measure="rho", state="halted")]
    statuses: Sequence[ShardStatus] = [replace(owned(*views), outbox=3)]
    metrics = Metrics(spec, "hash", lambda: statuses)
    wanted = {
        ("budget_spent_epsilon", "a"): 0.5,
        ("budget_charges", "a"): 10,
        ("budget_charges", "b"): 3,
        ("monitor_datasets", "hot", "halted"): 1,
        ("monitor_state", "a", "hot", "running"): 1,
        ("monitor_state", "b", "hot", "halted"): 1,
        ("outbox_events", "0"): 3,
        ("monitor_muted_series", "hot"): 4,
        ("lag_records", "0", "counts"): 7,
    }
    found = scrape(metrics)
    assert {key: found[f"stream_svt_{key[0]}", *key[1:]] for key in wanted} == wanted
    assert ("stream_svt_monitor_state", "b", "hot", "running") not in found
    assert not any(key[0] == "stream_svt_monitor_state_until_timestamp_seconds" for key in found)
    statuses = []
    assert ("stream_svt_budget_spent_epsilon", "a") not in scrape(metrics)


def test_a_limited_monitor_shows_until_when_it_skips_queries(spec: ApplicationSpec) -> None:
    limited = view("a", state="limited", until=21_601_000)
    found = scrape(Metrics(spec, "hash", lambda: [owned(limited, view("b"))]))
    shown = {key[1:]: value for key, value in found.items() if "until" in key[0]}
    assert shown == {("a", "hot", "limited"): 21_601}


def test_a_shard_is_open_while_its_worker_replays_or_runs_it(spec: ApplicationSpec) -> None:
    statuses = [ShardStatus(number, state) for number, state in enumerate(ShardState)]
    found = scrape(Metrics(spec, "hash", lambda: statuses))
    open_ones = {
        state for number, state in enumerate(ShardState) if found["stream_svt_shard_open", str(number)] == 1
    }
    assert open_ones == {ShardState.REPLAYING, ShardState.RUNNING}


def test_datasets_that_are_not_shown_one_by_one_are_summed_up(spec: ApplicationSpec) -> None:
    metrics = Metrics(spec, "hash", lambda: [owned(view("a"), others=2), owned(others=1)])
    found = scrape(metrics)
    assert found["stream_svt_budget_spent_epsilon", "a"] == 0.5
    assert found["stream_svt_budget_spent_epsilon", OTHERS] == 1.5
    assert found["stream_svt_budget_limit_epsilon", OTHERS] == 12.0
    assert found["stream_svt_budget_charges", OTHERS] == 3
    assert found["stream_svt_monitor_spent_epsilon", OTHERS, "hot"] == 1.5
    assert found["stream_svt_monitor_datasets", "hot", "running"] == 4
    assert found["stream_svt_monitor_muted_series", "hot"] == 8
    assert ("stream_svt_budget_spent_rho", OTHERS) not in found


def test_the_number_of_series_is_bounded_by_datasets_and_monitors_together(monkeypatch):
    """With 1,000 datasets x 40 monitors, each pair has three series; only so many pairs have their own."""
    monitor = SPEC[SPEC.index("  - {name: hot") :]
    monitors = "".join(monitor.replace("name: hot", f"name: m{number}") for number in range(40))
    text = (
        SPEC.replace("epsilon: 4", "epsilon: 40")
        .replace(monitor, monitors)
        .replace("[a, b, c]", f"[{', '.join(f'd{n}' for n in range(1_000))}]")
    )
    assert len(load_spec(text).shown) == 125
    assert len(load_spec(text.replace("topic: counts", "topic: counts, datasets: [d1]")).shown) == 1_000
    monkeypatch.setattr("stream_svt.settings.application.PAIRS_SHOWN", 1)
    assert len(load_spec(text).shown) == 1  # one is always shown


def test_a_scrape_takes_no_more_of_a_shard_than_views_and_sums(spec: ApplicationSpec) -> None:
    """What is proportional to the datasets happens in the rendering, away from the event loop."""
    status = owned(view("a"), others=300_000)
    metrics = Metrics(spec, "hash", lambda: [status])
    render = metrics.rendering()
    status.views, status.totals = {"a": view("a", spent=3.0)}, Totals()  # the next commit
    families = text_string_to_metric_families(render().decode())
    (spent,) = [one.samples for one in families if one.name == "stream_svt_budget_spent_epsilon"]
    assert {one.labels["dataset"]: one.value for one in spent} == {"a": 0.5, OTHERS: 150_000.0}


def test_only_datasets_that_changed_are_rendered_again(spec: ApplicationSpec, monkeypatch) -> None:
    """With thousands of them the rest takes most of the time, and the text is as if all were."""
    rendered: list[str] = []
    samples = metrics_module._samples
    monkeypatch.setattr(
        metrics_module,
        "_samples",
        lambda spec, terms, view: (rendered.append(view.dataset), samples(spec, terms, view))[1],
    )
    status = owned(*map(view, "abc"))
    metrics = Metrics(spec, "hash", lambda: [status])
    first = metrics.rendering()()
    assert rendered == ["a", "b", "c"]
    assert metrics.rendering()() == first
    status.views["b"] = view("b", spent=2.25)
    text = metrics.rendering()()
    assert rendered == ["a", "b", "c", "b"]
    assert b'stream_svt_budget_spent_epsilon{application="shop",dataset="b"} 2.25' in text
    fresh = Metrics(spec, "hash", lambda: [status]).rendering()()
    own = [[line for line in one.split(b"\n") if b"dataset=" in line] for one in (text, fresh)]
    assert own[0] == own[1]
    del status.views["a"]
    assert b'dataset="a"' not in metrics.rendering()()


@pytest.mark.parametrize("name", ['a"b', "a\\b", "line\nbreak", "\\n", "é☃"])
def test_odd_names_of_datasets_are_read_back(name: str) -> None:
    spec = load_spec(SPEC.replace("[a, b, c]", json.dumps(["a"])))
    odd = replace(spec, datasets=(msgspec.structs.replace(spec.datasets[0], name=name),))
    text = Metrics(odd, "hash", lambda: [owned(view(name))]).rendering()().decode()
    labels = [
        one.labels.get("dataset") for family in text_string_to_metric_families(text) for one in family.samples
    ]
    assert labels.count(name) == 8
    assert {one for one in labels if one is not None} == {name}
