"""What stands is folded from released events: it is posted until it is over, with what ended it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stream_svt.forward.conditions import (
    CONDITIONS,
    LARGEST_NUMBER,
    OTHERS,
    Conditions,
    Ended,
    Subject,
    standing_alerts,
)
from stream_svt.forward.delivery import Route
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.standing import StandingAlerts
from stream_svt.monitor.released import EventType
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.forwarding import configured, destination

BEGAN = datetime(2026, 1, 5, 10, tzinfo=UTC)
NOW = BEGAN + timedelta(hours=8)
LASTS = 300_000
UNTIL = int((BEGAN + timedelta(hours=12)).timestamp() * 1000)
STOP = {"stopped": True}

BEGINS: dict[str, tuple[EventType, dict[str, Any]]] = {
    "exhausted": (EventType.EXHAUSTED, {}),
    "limited": (EventType.LIMITED, {"until": UNTIL}),
    "stopped": (EventType.RUN_HALTED, STOP),
    "closed": (EventType.RUN_CLOSED, STOP),
    "paused": (EventType.PAUSED, {}),
    "paused for a while": (EventType.PAUSED, {"until": UNTIL}),
}
"""The event that begins a condition, and its detail."""

ENDS: dict[str, tuple[str, EventType, str, dict[str, Any]]] = {
    "a run": ("exhausted limited stopped closed", EventType.RUN_STARTED, "run 2 began", {}),
    "a raise": ("exhausted", EventType.BUDGET_RAISED, "raised the limit", {}),
    "a resample": ("limited stopped closed", EventType.RUN_CLOSED, "its next query begins a run", {}),
    "a close": ("exhausted limited", EventType.RUN_CLOSED, "an operator closed it", STOP),
    "a resume": ("paused", EventType.RESUMED, "resumed", {}),
    "a pause": ("exhausted limited stopped closed", EventType.PAUSED, "an operator paused it", {}),
    "a retirement": ("*", EventType.RETIRED, "retired", {}),
    "another configuration": ("*", EventType.RUN_CLOSED, "no longer covers", {"reason": "removed"}),
    "a removed monitor": (
        "*",
        EventType.SPEC_CHANGED,
        "removed from the configuration",
        {"reason": "removed"},
    ),
    "a close of the application": (
        "*",
        EventType.APPLICATION_CLOSED,
        "new-shop continues",
        {"successor": "new-shop"},
    ),
}
"""What ends conditions: which, by what event, and what the alert says then."""


def event(
    kind: EventType, detail: dict[str, Any] | None = None, *, at: datetime = BEGAN, **more: Any
) -> bytes:
    detail = dict(detail or {})
    reason = detail.pop("reason", "command")
    data = lifecycle(reason, detail=detail, **more)
    return encoded(1, data, kind=kind, time=at.isoformat())


def shown(one: Conditions, directory, now: datetime = NOW, text: str = "") -> list[dict[str, Any]]:
    text = f"name: pager, {text} alertmanager: {{urls: ['http://127.0.0.1:9093']}}"
    one.pass_time(int(now.timestamp() * 1000), LASTS)
    alerts, number = standing_alerts(destination(directory, f"{{{text}}}"), [one], now, LASTS)
    assert number == sum("ended_by" not in found["annotations"] for found in alerts)
    return alerts


@pytest.mark.parametrize("cause", BEGINS)
def test_a_condition_stands_names_what_and_since_when_and_how_to_end_it(tmp_path, cause):
    one, (kind, detail) = Conditions(), BEGINS[cause]
    assert one.take(event(kind, detail))
    assert not one.take(encoded(2, alert(number=3)))
    state = {"closed": "stopped", "paused for a while": "paused"}.get(cause, cause)
    (found,) = shown(one, tmp_path)
    names = {"application": "retail-watch", "dataset": "shop", "monitor": "hot"}
    own = {"alertname": CONDITIONS[state].name, "severity": "ticket" if state == "paused" else "page"}
    assert found["labels"] == own | names
    assert found["startsAt"] == "2026-01-05T10:00:00.000+00:00"
    assert found["endsAt"] == "2026-01-05T18:05:00.000+00:00"  # later each time it is posted
    notes = found["annotations"]
    assert (notes["since"], notes["until"]) == (
        "2026-01-05 10:00:00 UTC",
        "2026-01-05 22:00:00 UTC" if "until" in detail else "somebody acts",
    )
    own_run = "the dataset of a next period would have its own run" in notes["description"]
    assert own_run == (state in {"exhausted", "stopped"})
    assert "-c FILE shop" in notes["remedy"]
    assert all(name in notes["summary"] + notes["description"] for name in names.values())


@pytest.mark.parametrize(
    ("cause", "end"), [(c, e) for c in BEGINS for e in ENDS if ENDS[e][0] == "*" or c in ENDS[e][0].split()]
)
def test_its_end_says_what_ended_it_and_is_forgotten_later(tmp_path, cause, end):
    one, (kind, detail), ended = Conditions(), BEGINS[cause], NOW - timedelta(seconds=10)
    one.take(event(kind, detail))
    _, ends, says, more = ENDS[end]
    about = {"monitor": ""} if ends in (EventType.RETIRED, EventType.BUDGET_RAISED) else {}
    if ends in (EventType.SPEC_CHANGED, EventType.APPLICATION_CLOSED):
        about = {"dataset": "", "monitor": "" if ends == EventType.APPLICATION_CLOSED else "hot"}
    assert one.take(event(ends, more, at=ended, run=2, **about))
    over = [found for found in shown(one, tmp_path) if "ended_by" in found["annotations"]]
    assert len(over) == 1
    assert says in over[0]["annotations"]["summary"]
    assert over[0]["endsAt"] == "2026-01-05T17:59:50.000+00:00"
    later = shown(one, tmp_path, NOW + timedelta(minutes=6))
    assert not any("ended_by" in found["annotations"] for found in later)
    assert len(later) == (end in ("a close", "a pause"))  # it is blind for another reason


def test_a_filter_for_a_monitor_lets_the_conditions_of_its_ends_pass(tmp_path):
    one = Conditions()
    one.take(event(*BEGINS["exhausted"], monitor="hot.end"))
    for pattern, passes in (("hot", True), ("hot.end", True), ("cold", False)):
        found, number = standing_alerts(
            destination(
                tmp_path,
                f"{{name: p, monitors: [{pattern}], alertmanager: {{urls: ['http://127.0.0.1:9']}}}}",
            ),
            [one],
            NOW,
            LASTS,
        )
        assert (len(found), number) == (passes, passes)


@pytest.mark.parametrize("cause", ["limited", "paused for a while"])
def test_a_condition_ends_at_the_time_that_its_event_named(tmp_path, cause):
    one = Conditions()
    one.take(event(*BEGINS[cause]))
    (found,) = shown(one, tmp_path, BEGAN + timedelta(hours=12, seconds=1))
    assert found["endsAt"] == "2026-01-05T22:00:00.000+00:00"
    assert "its time is over" in found["annotations"]["summary"]


def test_a_pause_that_ends_by_itself_shows_what_it_hid(tmp_path):
    one = Conditions()
    one.take(event(*BEGINS["exhausted"]))
    one.take(event(*BEGINS["paused for a while"]))
    (found,) = [found for found in shown(one, tmp_path) if "remedy" in found["annotations"]]
    assert found["labels"]["alertname"] == "MonitorPaused"
    after = shown(one, tmp_path, BEGAN + timedelta(hours=12, seconds=1))
    (found,) = [found for found in after if "remedy" in found["annotations"]]
    assert found["labels"]["alertname"] == "MonitorExhausted"


def test_what_goes_on_by_itself_is_no_condition(tmp_path):
    one = Conditions()
    for kind in (EventType.RUN_STARTED, EventType.RUN_HALTED, EventType.RUN_CLOSED, EventType.COMMAND_REPLY):
        assert not one.take(event(kind))
    for body in (b"", b"{", b"null", encoded(1, lifecycle("x"), kind=EventType.LIMITED, time="never")):
        assert not one.take(body)
    assert shown(one, tmp_path) == []
    # A time that is none, as in a forged event, is no end.
    one.take(event(EventType.LIMITED, {"until": "soon"}))
    (found,) = shown(one, tmp_path)
    assert found["annotations"]["until"] == "somebody acts"


def test_a_clock_that_is_ahead_begins_no_alert_in_the_future(tmp_path):
    one = Conditions()
    one.take(event(EventType.PAUSED, at=NOW + timedelta(hours=2)))
    (found,) = shown(one, tmp_path)
    assert found["startsAt"] == "2026-01-05T18:00:00.000+00:00"
    assert found["endsAt"] > found["startsAt"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("types: [alert],", 0),
        ("types: [monitor.limited],", 0),
        ("types: ['monitor.*'],", 1),
        ("datasets: [other],", 0),
        ("monitors: [cold],", 0),
    ],
)
def test_filters_hold_for_what_stands(tmp_path, text, expected):
    one = Conditions()
    one.take(event(EventType.PAUSED))
    assert len(shown(one, tmp_path, text=text)) == expected


def test_of_very_many_the_oldest_are_posted_one_by_one(tmp_path):
    one = Conditions()
    for number in range(LARGEST_NUMBER + 7):
        one.take(event(EventType.EXHAUSTED, at=BEGAN + timedelta(seconds=number), dataset=f"d{number}"))
    alerts, number = standing_alerts(
        destination(tmp_path, "{name: pager, alertmanager: {urls: ['http://127.0.0.1:9093']}}"),
        [one],
        NOW,
        LASTS,
    )
    assert (len(alerts), number) == (LARGEST_NUMBER + 1, LARGEST_NUMBER + 7)
    (others,) = [found for found in alerts if found["labels"]["dataset"] == OTHERS]
    assert "7 further monitors" in others["annotations"]["summary"]


def test_an_end_is_kept_until_the_destination_with_the_longest_interval_can_post_it(tmp_path):
    alertmanager = "alertmanager: {{urls: ['http://127.0.0.1:9093'], renew: {}}}"
    often, seldom = (
        f"{{name: {name}, {alertmanager.format(renew)}}}"
        for name, renew in zip("ab", ("1s", "1h"), strict=True)
    )
    config = configured(tmp_path, f"[{often}, {seldom}]")
    metrics = ForwardMetrics("alerts", ["a", "b"])
    standing = StandingAlerts(config, [Route(config, one, None, metrics) for one in config.destinations])
    now_ms = int(time.time() * 1000)
    for hours_ago, kept in ((4, 1), (6, 0)):
        ended = {
            (Subject("retail", "shop", "hot"), "exhausted"): Ended(0, now_ms - hours_ago * 3_600_000, "")
        }
        standing._conditions = {0: Conditions(ended=ended)}
        standing._pass_time()
        assert len(standing._conditions[0].ended) == kept
