"""Metrics show committed outcomes, with every label there from the start and a bounded number of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_svt.monitor.engine import Commit
from stream_svt.monitor.released import DatasetView, MonitorView
from stream_svt.monitor.spec import ApplicationSpec, load_spec
from stream_svt.protocol.tenure import State, Status
from stream_svt.service.metrics import METRICS, OTHERS, Metrics

SPEC = """
application: shop
datasets: [{names: [a, b, c], limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


@pytest.fixture
def spec() -> ApplicationSpec:
    return load_spec(SPEC)


def view(
    dataset: str, *, tops: int = 0, runs: int = 1, spent: float = 0.5, state: str = "running"
) -> DatasetView:
    monitor = MonitorView(
        monitor="hot",
        state=state,
        run=runs,
        run_tops=tops,
        tops=tops,
        runs=runs,
        halts=0,
        spent=spent,
        run_left=1.0 - spent,
        muted=2,
        queued=0,
        top_branch_only=False,
    )
    return DatasetView(
        dataset=dataset,
        shard=0,
        unit="u",
        measure="epsilon",
        limit=4.0,
        spent=spent,
        reserved=0.5,
        monitors=[monitor],
    )


def owned(*views: DatasetView) -> Status:
    status = Status(0, State.RUNNING, lag={"counts": 7})
    status.views = {one.dataset: one for one in views}
    return status


def scrape(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return samples by name and label values, the latter in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_every_name_of_the_table_is_exposed_and_nothing_else(spec: ApplicationSpec) -> None:
    metrics = Metrics(spec, "hash", lambda: [owned(view("a"))])
    metrics.committed(0, Commit(rejects=[("counts", 1, "empty")]), 0.1, [0.1])
    families = {family.name for family in text_string_to_metric_families(metrics.text().decode())}
    assert families == {metric.name.removesuffix("_total") for metric in METRICS}


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith("stream_svt_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_labels_exist_before_anything_happens(spec: ApplicationSpec) -> None:
    found = scrape(Metrics(spec, "hash"))
    assert found["stream_svt_tops_total", "hot"] == 0
    assert found["stream_svt_queries_skipped_total", "hot", "muted"] == 0
    assert found["stream_svt_monitor_datasets", "hot", "exhausted"] == 0
    assert found["stream_svt_shards_owned",] == 0


def test_only_what_this_worker_committed_is_counted(spec: ApplicationSpec) -> None:
    metrics = Metrics(spec, "hash")
    metrics.baseline(0, [view("a", tops=5, runs=2)])
    assert scrape(metrics)["stream_svt_tops_total", "hot"] == 0
    metrics.committed(0, Commit(views=[view("a", tops=7, runs=3)], tested={"hot": 40}), 0.1, [])
    found = scrape(metrics)
    assert found["stream_svt_tops_total", "hot"] == 2
    assert found["stream_svt_runs_total", "hot"] == 1
    assert found["stream_svt_queries_total", "hot"] == 40


def test_a_takeover_of_a_rewound_state_never_counts_backwards(spec: ApplicationSpec) -> None:
    metrics = Metrics(spec, "hash")
    metrics.committed(0, Commit(views=[view("a", tops=7)]), 0.1, [])
    metrics.baseline(0, [view("a", tops=7)])
    metrics.committed(0, Commit(views=[view("a", tops=7)]), 0.1, [])
    assert scrape(metrics)["stream_svt_tops_total", "hot"] == 7


def test_gauges_come_from_the_shards_owned_now(spec: ApplicationSpec) -> None:
    statuses: Sequence[Status] = [owned(view("a"), view("b", state="halted"))]
    metrics = Metrics(spec, "hash", lambda: statuses)
    found = scrape(metrics)
    assert found["stream_svt_budget_spent_epsilon", "a"] == 0.5
    assert found["stream_svt_monitor_datasets", "hot", "halted"] == 1
    assert found["stream_svt_monitor_muted_series", "hot"] == 4
    assert found["stream_svt_lag_records", "0", "counts"] == 7
    statuses = []
    assert ("stream_svt_budget_spent_epsilon", "a") not in scrape(metrics)


def test_datasets_beyond_the_limit_are_summed_up(spec: ApplicationSpec) -> None:
    metrics = Metrics(spec, "hash", lambda: [owned(view("a"), view("b"), view("c"))], dataset_limit=1)
    found = scrape(metrics)
    assert found["stream_svt_budget_spent_epsilon", "a"] == 0.5
    assert found["stream_svt_budget_spent_epsilon", OTHERS] == 1.0
    assert ("stream_svt_budget_spent_epsilon", "b") not in found


def test_rejects_are_counted_by_reason(spec: ApplicationSpec) -> None:
    metrics = Metrics(spec, "hash")
    metrics.committed(0, Commit(rejects=[("counts", 1, "empty"), ("counts", 2, "empty")]), 0.1, [])
    assert scrape(metrics)["stream_svt_records_rejected_total", "empty", "counts"] == 2
