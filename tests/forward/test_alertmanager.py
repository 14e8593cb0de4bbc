"""What Alertmanager gets: labels that identify, annotations that tell, an end."""

from __future__ import annotations

import msgspec
import pytest

from stream_svt.forward.alertmanager import Alertmanager
from stream_svt.monitor.released import EventType
from tests.support.alerts import account, alert, lifecycle
from tests.support.forwarding import destination, moment, received

NOW = moment("2026-01-05T10:00:07+00:00")
PAGER = "{name: pager%s, alertmanager: {urls: ['http://127.0.0.1:9093']%s}}"


def alerts(directory, event, settings: str = "", outer: str = "", now=NOW) -> list[dict]:
    pager = Alertmanager(destination(directory, PAGER % (outer, settings)))
    assert pager.wants(event)
    request = pager.wrap(event, now)
    assert request.headers["Content-Type"] == "application/json"
    return msgspec.json.decode(request.body)


def test_a_top_becomes_an_alert_with_what_was_measured_as_annotations(tmp_path):
    (found,) = alerts(tmp_path, received(alert(books=account(0.05, 1.2, 0.5, 4.0))))
    assert found["labels"] == {
        "alertname": "AboveThreshold",
        "severity": "page",
        "application": "retail-watch",
        "dataset": "shop",
        "monitor": "hot",
        "series": "milk",
    }
    notes = found["annotations"]
    assert notes["summary"] == "milk of shop is above 500 (hot)"
    assert notes["description"] == (
        "The noisy answer passed the noisy threshold by a gap of 12; no bound is certified."
    )
    assert (notes["gap"], notes["estimate"], notes["threshold"]) == ("12", "562", "500")
    assert (notes["query_id"], notes["event_id"], notes["run"], notes["top"]) == ("q1", "shop-1", "1", "1")
    assert notes["budget"] == "1.2 of 4 epsilon spent"
    assert "bound" not in notes


def test_a_bound_is_told_with_how_certain_it_is(tmp_path):
    data = msgspec.structs.replace(alert(), bound=123456789.0, beta=0.001)
    (found,) = alerts(tmp_path, received(data))
    assert found["annotations"]["bound"] == "123456789"
    assert found["annotations"]["bound_certainty"] == "99.9%"
    assert found["annotations"]["description"].endswith("is at least 123456789 (99.9% certain).")


def test_labels_hold_no_measurement_so_that_a_series_stays_one_alert(tmp_path):
    """Negative control: with one_per: event, the same two are two."""
    first, second = received(alert(top=1), sequence=1), received(alert(top=2), sequence=2)
    assert alerts(tmp_path, first)[0]["labels"] == alerts(tmp_path, second)[0]["labels"]
    apart = ", one_per: event"
    assert alerts(tmp_path, first, apart)[0]["labels"] != alerts(tmp_path, second, apart)[0]["labels"]


def test_a_query_without_a_series_has_no_such_label(tmp_path):
    (found,) = alerts(tmp_path, received(alert(series=None)))
    assert "series" not in found["labels"]
    assert found["annotations"]["summary"].startswith("q1 of shop")


def test_an_alert_begins_when_it_was_charged_and_ends_a_while_after_its_delivery(tmp_path):
    (found,) = alerts(tmp_path, received(), ", resolve_after: 10m")
    assert found["startsAt"] == "2026-01-05T10:00:00.000Z"
    assert found["endsAt"] == "2026-01-05T10:10:07.000Z"


def test_no_alert_ends_before_it_begins_however_the_clocks_differ(tmp_path):
    (found,) = alerts(tmp_path, received(), ", resolve_after: 1s", now=moment("2026-01-05T09:00:00+00:00"))
    assert moment(found["startsAt"]) < moment(found["endsAt"])


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        (EventType.EXHAUSTED, "MonitorExhausted", "cannot pay for another run"),
        (EventType.RUN_HALTED, "RunHalted", "has used all tops of run 3"),
    ],
)
def test_halts_and_exhaustion_are_alerts_that_the_next_run_ends(tmp_path, kind, name, says):
    event = received(lifecycle("budget", run=3, books=account()), kind=kind)
    (found,) = alerts(tmp_path, event)
    assert found["labels"]["alertname"] == name
    assert found["labels"]["severity"] == "ticket"
    assert says in found["annotations"]["summary"]
    started = received(lifecycle("resampled", run=4, books=account()), kind=EventType.RUN_STARTED)
    ended = {one["labels"]["alertname"]: one for one in alerts(tmp_path, started)}
    assert ended[name]["labels"] == found["labels"]
    assert ended[name]["endsAt"] == "2026-01-05T10:00:07.000Z"


def test_a_run_ends_only_what_was_asked_for_and_what_it_is_about(tmp_path):
    started = received(lifecycle("resampled", run=4), kind=EventType.RUN_STARTED)
    for outer in (", types: alert", ", monitors: [cold]", ", datasets: [other]"):
        assert not Alertmanager(destination(tmp_path, PAGER % (outer, ""))).wants(started)
    both = alerts(tmp_path, started, outer=", types: all")
    assert [one["labels"]["alertname"] for one in both] == [
        "MonitorExhausted",
        "RunHalted",
        "ReleasedEvent",
    ]


def test_other_types_share_a_name_and_are_told_apart_by_a_label(tmp_path):
    event = received(lifecycle("raised", books=account(), detail={"limit": 8}), kind=EventType.BUDGET_RAISED)
    (found,) = alerts(tmp_path, event, outer=", types: all")
    assert (found["labels"]["alertname"], found["labels"]["type"]) == ("ReleasedEvent", "budget.raised")
    assert found["annotations"]["detail_limit"] == "8"


def test_labels_of_ones_own_are_added_and_may_replace_the_severity(tmp_path):
    (found,) = alerts(tmp_path, received(), ", labels: {team: privacy, severity: red}")
    assert (found["labels"]["team"], found["labels"]["severity"]) == ("privacy", "red")


def test_the_link_is_filled_in_and_encoded(tmp_path):
    """A dataset's name is text of somebody else: it must not break out of its place in the address."""
    template = ", generator_url: 'https://grafana.example/d/svt?var-dataset={dataset}&var-series={series}'"
    data = alert(dataset="a&b=c#d/../e", series='"><script>')
    (found,) = alerts(tmp_path, received(data), template)
    assert found["generatorURL"] == (
        "https://grafana.example/d/svt?var-dataset=a%26b%3Dc%23d%2F..%2Fe&var-series=%22%3E%3Cscript%3E"
    )
