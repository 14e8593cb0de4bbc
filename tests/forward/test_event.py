"""Filters of destinations, and requests made from events."""

from __future__ import annotations

import base64
import re
import runpy
from pathlib import Path

import msgspec
import pytest

from stream_svt.forward.event import ENDING, STANDING, Request, message_id, request_of, signatures, wants
from stream_svt.monitor.released import AnyEvent, EventType, decode
from tests.support.alerts import account_of, alert, encoded, event, lifecycle
from tests.support.forwarding import KEY, OLD_KEY, destination, moment

NOW = moment("2026-01-05T10:00:07Z")
RECEIVER = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "webhook_receiver.py"))
HOOK = "{name: hook, %swebhook: {url: https://example.org/hook, key_files: [hook.key%s]}}"
PAGER = "{name: pager, %salertmanager: {urls: ['http://127.0.0.1:9093']%s}}"


def hook(directory, outer: str = "", more_keys: str = ""):
    return destination(directory, HOOK % (outer, more_keys))


def pager(directory, outer: str = "", settings: str = ""):
    return destination(directory, PAGER % (outer, settings))


POSITION = {"topic": "counts", "partition": 0, "offset": -1, "row": 0}
REPORTED = {"branch": "top", "attempt": 1, "gap": 1.0, "number": 1, "spec_hash": "", "position": POSITION}
"""What an end of an incident has in common with an alert."""


def of(kind: EventType) -> AnyEvent:
    detail = REPORTED if kind is EventType.ALERT_ENDED else {}
    return event(alert() if kind is EventType.ALERT else lifecycle("x", detail=detail), kind=kind)


# Filters


def test_an_event_of_a_newer_service_is_read_by_its_attributes_and_passes_only_with_all(tmp_path):
    document = msgspec.json.decode(encoded(1, alert()))
    newer = decode(msgspec.json.encode(document | {"type": "io.stream-svt.later.v1", "data": {"new": [1]}}))
    assert not wants(hook(tmp_path), newer)
    assert wants(hook(tmp_path, "types: ['*'], "), newer)


def test_without_filters_alerts_pass_and_what_begins_a_state_that_skips_queries(tmp_path):
    plain = hook(tmp_path)
    passing = {EventType.ALERT, *ENDING, *STANDING}
    assert {kind for kind in EventType if wants(plain, of(kind))} == passing


def test_every_type_can_be_asked_for_by_its_word(tmp_path):
    for kind in EventType:
        word = kind.value.removeprefix("io.stream-svt.").removesuffix(".v1")
        one = hook(tmp_path, f"types: [{word}], ")
        assert [other for other in EventType if wants(one, of(other))] == [kind]


def test_monitors_and_datasets_are_patterns(tmp_path):
    one = hook(tmp_path, "monitors: ['hot-*', slow], datasets: ['week-?'], ")
    for monitor, dataset, passes in [
        ("hot-items", "week-1", True),
        ("slow", "week-2", True),
        ("slower", "week-2", False),
        ("hot-items", "week-12", False),
        ("hot-items", "WEEK-1", False),
    ]:
        assert wants(one, event(alert(monitor=monitor, dataset=dataset))) is passes


@pytest.mark.parametrize(("pattern", "passing"), [("hot", [True, True]), ("hot.end", [False, True])])
def test_a_monitor_stands_for_its_ends_and_they_have_a_name_of_their_own(tmp_path, pattern, passing):
    one = hook(tmp_path, f"monitors: [{pattern}], ")
    ended = event(lifecycle("below", monitor="hot.end", detail=REPORTED), EventType.ALERT_ENDED)
    assert [wants(one, each) for each in (event(), ended)] == passing


# Webhooks


def posted(one, now=NOW, **fields) -> Request:
    body = encoded(1, alert(**fields))
    return request_of(one, decode(body), body, now)


def verified(request, keys, *, now=NOW, body=None, **changes) -> bool:
    headers = {name.lower(): text for name, text in (request.headers | changes).items()}
    return RECEIVER["verified"](keys, headers, request.body if body is None else body, now.timestamp())


def test_the_signature_is_the_published_one_of_standard_webhooks():
    """Secret, message and signature stand in the test suite of that specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    then = moment("2021-02-25T15:02:10+00:00")
    found = signatures([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", then, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_body_is_the_record_byte_for_byte_and_without_a_key_nothing_is_signed(tmp_path):
    unsigned = destination(tmp_path, "{name: hook, webhook: {url: https://example.org/}}")
    request = request_of(unsigned, event(), b"{ }", NOW)
    assert request.body == b"{ }"
    assert request.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert set(request.headers) == {"Content-Type", "webhook-id", "webhook-timestamp"}


def test_the_example_receiver_accepts_signed_requests_only(tmp_path):
    request = posted(hook(tmp_path), series="caf\u00e9")
    assert verified(request, [KEY])
    assert not verified(request, [OLD_KEY])
    assert not verified(request, [KEY], body=request.body.replace(b"12.0", b"13.0"))
    assert not verified(request, [KEY], **{"webhook-id": "evt_other"})
    assert not verified(request, [KEY], **{"webhook-timestamp": str(int(NOW.timestamp()) + 1)})
    assert not verified(request, [KEY], **{"webhook-signature": ""})
    assert not verified(request, [KEY], now=moment("2026-01-05T10:06:00Z"))
    assert not verified(request, [KEY], now=moment("2026-01-05T09:54:00Z"))
    assert request.headers["webhook-signature"] not in repr(request)


def test_every_attempt_has_the_same_id_a_time_of_its_own_and_a_signature_for_each_key(tmp_path):
    later = moment("2026-01-05T11:00:00Z")
    one = hook(tmp_path, more_keys=", old.key")
    first, second = (posted(one, now) for now in (NOW, later))
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert [verified(second, [key], now=later) for key in (KEY, OLD_KEY, bytes(32))] == [True, True, False]


def test_ids_differ_between_events_and_applications_and_hold_only_what_a_header_may_hold():
    """For any name of a dataset."""
    names = ["1", "shop/week", "caf\u00e9", "\r\nX-Injected: 1", "\U0001f6d2" * 50, "a.b.c"]
    pairs = [*(("/stream-svt/a", name) for name in names), ("/stream-svt/b", "1"), ("/stream-svt/a1", "")]
    found = {message_id(*pair) for pair in pairs}
    assert len(found) == len(pairs)
    assert all(re.fullmatch("evt_[0-9a-f]{32}", identity) for identity in found)


# Alertmanager


def alerts(directory, event, settings: str = "", outer: str = "", now=NOW) -> list[dict]:
    one = pager(directory, outer, settings)
    assert wants(one, event)
    request = request_of(one, event, b"", now)
    assert request.headers["Content-Type"] == "application/json"
    return msgspec.json.decode(request.body)


def test_a_top_becomes_an_alert_with_its_figures_as_annotations(tmp_path):
    (found,) = alerts(tmp_path, event(alert(account=account_of(0.05, 1.2, 0.5, 4.0))))
    assert found["labels"] == {
        "alertname": "AboveThreshold",
        "severity": "page",
        "application": "retail-watch",
        "dataset": "shop",
        "monitor": "hot",
        "series": "milk",
    }
    assert found["annotations"] == {
        "summary": "monitor hot reports milk of shop: the value that it tests is above 500",
        "description": "With noise, the value passed the noisy threshold by a gap of 12; no bound is certified. "
        "What value that is: stream-svt explain -c FILE shop-1",
        "gap": "12",
        "estimate": "562",
        "threshold": "500",
        "query_id": "q1",
        "event_id": "shop-1",
        "event_time": "2026-01-05T10:00:00.000+00:00",
        "run": "1",
        "number": "1",
        "attempt": "1",
        "branch": "top",
        "budget": "1.2 of 4 epsilon spent",
        "charge": "0.05 epsilon",
    }


@pytest.mark.parametrize(("settings", "severity"), [("", "call"), (", labels: {severity: info}", "info")])
def test_the_severity_of_an_alert_is_its_label_unless_the_destination_has_its_own(
    tmp_path, settings, severity
):
    (found,) = alerts(tmp_path, event(alert(severity="call")), settings)
    assert found["labels"]["severity"] == severity


def test_annotations_are_for_people_and_labels_are_the_names(tmp_path):
    series = "milk\x1b[2J\r\nFORGED\u202e"
    (found,) = alerts(tmp_path, event(alert(series=series, query_id=series)))
    assert found["labels"]["series"] == series
    assert all(text.isprintable() for text in found["annotations"].values())
    assert found["annotations"]["summary"].startswith(
        r"monitor hot reports milk\x1b[2J\r\nFORGED\u202e of shop: "
    )


def test_a_bound_has_its_certainty_and_a_query_without_a_series_is_named_by_its_id(tmp_path):
    (found,) = alerts(tmp_path, event(alert(bound=123456789.0, beta=0.001, series=None)))
    assert found["annotations"]["bound"] == "123456789"
    assert "that value is at least 123456789 (99.9% certain). What" in found["annotations"]["description"]
    assert found["annotations"]["summary"].startswith("monitor hot reports q1 of shop: ")
    assert "series" not in found["labels"]


@pytest.mark.parametrize(
    ("now", "ends"),
    [(NOW, "2026-01-05T10:10:07.000+00:00"), (moment("2026-01-05T09:00Z"), "2026-01-05T10:00:00.001+00:00")],
    ids=["later", "clock an hour behind"],
)
def test_an_alert_starts_at_its_charge_and_ends_resolve_after_its_delivery(tmp_path, now, ends):
    (found,) = alerts(tmp_path, event(), ", resolve_after: 10m", now=now)
    assert (found["startsAt"], found["endsAt"]) == ("2026-01-05T10:00:00.000+00:00", ends)


def test_an_alert_that_is_watched_ends_resolve_after_its_watch(tmp_path):
    until = round(moment("2026-01-05T13:00Z").timestamp()) * 1000
    for now, ends in ((NOW, "13:10:00"), (moment("2026-01-05T14:00Z"), "14:10:00")):
        (found,) = alerts(tmp_path, event(alert(watched_until=until)), ", resolve_after: 10m", now=now)
        assert found["endsAt"] == f"2026-01-05T{ends}.000+00:00"


WATCHED = {"series": "milk", "alert": "a/shop/hot/1/4", "windows": 3, "severity": "call"}
ODDS = {"silent_half": 150.0, "silent_rarely": 183.0}


@pytest.mark.parametrize(
    ("kind", "reason", "more", "says"),
    [
        (
            EventType.NOT_RENEWED,
            "tested",
            ODDS,
            "not renewed: 3 windows were tested, none was reported; 150 above the threshold is silent so long half",
        ),
        (EventType.UNTESTED, "paused", {}, "the 3 windows after its mute were not all tested (paused)"),
    ],
)
def test_the_end_of_a_watch_ends_the_alert_and_says_why(tmp_path, kind, reason, more, says):
    ended = event(lifecycle(reason, monitor="hot", detail=WATCHED | more), kind)
    for outer in ("", "types: [alert], "):
        (found,) = alerts(tmp_path, ended, outer=outer)
        (begun,) = alerts(tmp_path, event(alert(severity="call")), outer=outer)
        assert found["labels"] == begun["labels"]
        assert found["endsAt"] == "2026-01-05T10:00:00.000+00:00"
        assert found["startsAt"] < found["endsAt"]
        assert says in found["annotations"]["summary"]
    assert not wants(pager(tmp_path, "types: [run.halted], "), ended)
    assert not wants(hook(tmp_path, "types: [alert], "), ended)


def test_the_end_of_an_incident_ends_its_alerts_of_any_severity_and_says_the_bound(tmp_path):
    detail = {"series": "milk", "below": 400.0, "bound": 377.5, "severities": ["call", "ticket"]}
    detail |= REPORTED
    ended = event(lifecycle("below", monitor="hot.end", detail=detail), EventType.ALERT_ENDED)
    found = alerts(tmp_path, ended, outer="monitors: [hot], ")
    for one, severity in zip(found, ("call", "ticket"), strict=True):
        (begun,) = alerts(tmp_path, event(alert(severity=severity)))
        assert one["labels"] == begun["labels"]
        assert one["endsAt"] == "2026-01-05T10:00:00.000+00:00"
        assert (
            one["annotations"]["summary"]
            == "milk of shop (hot): ended: the value tested for the end is below 400; that value is at most 377.5"
        )
        assert one["annotations"]["detail_gap"] == "1"
        assert not {"detail_position", "detail_severities"} & {*one["annotations"]}
    bare = event(
        lifecycle("below", monitor="hot.end", detail=detail | {"severities": []}), EventType.ALERT_ENDED
    )
    (one,) = alerts(tmp_path, bare)
    assert one["labels"]["severity"] == "page"
    assert not wants(hook(tmp_path, "types: [alert], "), ended)


def test_the_end_of_an_incident_ends_the_alert_of_the_predecessor_too(tmp_path):
    detail = REPORTED | {"series": "milk", "below": 400.0, "severities": ["call"], "carried_from": "retail"}
    ended = event(lifecycle("below", monitor="hot.end", detail=detail), EventType.ALERT_ENDED)
    own, earlier = (one["labels"] for one in alerts(tmp_path, ended))
    assert own["application"] == "retail-watch"
    assert earlier == own | {"application": "retail"}


@pytest.mark.parametrize("kind", sorted(STANDING))
def test_what_stands_is_no_alert_with_an_end_and_a_webhook_gets_its_event(tmp_path, kind):
    standing = event(lifecycle("budget", run=3, account=account_of()), kind=kind)
    assert not wants(pager(tmp_path, "types: ['*'], "), standing)
    assert wants(hook(tmp_path), standing)


def test_other_types_share_a_name_and_configured_labels_are_added(tmp_path):
    data = lifecycle("raised", account=account_of(), detail={"limit": 8})
    raised = event(data, EventType.BUDGET_RAISED)
    (found,) = alerts(tmp_path, raised, ", labels: {team: privacy, severity: red}", outer="types: ['*'], ")
    own = {"alertname": "ReleasedEvent", "type": "budget.raised", "team": "privacy", "severity": "red"}
    assert own.items() <= found["labels"].items()
    assert found["annotations"]["detail_limit"] == "8"
