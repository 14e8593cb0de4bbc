"""Metrics of the forwarder: every label from the start, no name beyond the table, nothing but counts."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from stream_svt.forward.metrics import METRICS, OUTCOMES, ForwardMetrics, RouteStatus
from stream_svt.forward.retry import Result
from tests.support.forwarding import moment


def metrics() -> ForwardMetrics:
    made = ForwardMetrics("retail.alerts", ["pager", "tickets"])
    oldest = moment("2026-01-05T10:00:00+00:00")
    made.statuses = lambda: [
        RouteStatus("pager", 3, oldest, 1, stopped=False, lag={0: 7, 2: 0}, polled=1_767_600_000.5)
    ]
    return made


def scrape(made: ForwardMetrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(made.text().decode())
        for sample in family.samples
    }


def test_every_name_of_the_table_is_exposed_and_nothing_else():
    families = {family.name for family in text_string_to_metric_families(metrics().text().decode())}
    assert families == {metric.name.removesuffix("_total") for metric in METRICS}


def test_labels_exist_before_anything_happens():
    found = scrape(metrics())
    for name in ("pager", "tickets"):
        for outcome in OUTCOMES:
            assert found["stream_svt_forward_events_total", name, outcome] == 0
        for result in Result:
            assert found["stream_svt_forward_attempts_total", name, result.value] == 0
        assert found["stream_svt_forward_request_seconds_count", name] == 0
        assert found["stream_svt_forward_last_delivery_timestamp_seconds", name] == 0


def test_gauges_show_what_waits():
    found = scrape(metrics())
    assert found["stream_svt_forward_waiting_events", "pager"] == 3
    assert found["stream_svt_forward_oldest_waiting_seconds", "pager"] > 3600
    assert found["stream_svt_forward_retrying_events", "pager"] == 1
    assert found["stream_svt_forward_stopped", "pager"] == 0
    assert found["stream_svt_forward_partitions", "pager"] == 2
    assert found["stream_svt_forward_lag_records", "pager", "0"] == 7
    assert found["stream_svt_forward_last_poll_timestamp_seconds", "pager"] == 1_767_600_000.5


def test_a_delivery_is_counted_with_its_delay_which_no_clock_makes_negative():
    made = metrics()
    charged = moment("2026-01-05T10:00:00+00:00")
    made.delivered("pager", charged, moment("2026-01-05T10:00:40+00:00"))
    made.delivered("pager", charged, moment("2026-01-05T09:59:00+00:00"))
    found = scrape(made)
    assert found["stream_svt_forward_events_total", "pager", "delivered"] == 2
    assert found["stream_svt_forward_delay_seconds_sum", "pager"] == 40


def test_names_follow_the_conventions():
    for metric in METRICS:
        assert metric.name.startswith("stream_svt_forward_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
