"""Events and audits, as text and as JSON."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import msgspec
import pytest
from click import unstyle

from stream_svt.cli.showing import _follow, in_words
from stream_svt.forward.event import ENDING
from stream_svt.monitor.released import Alert, Event, EventType, Position
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.audit import Audit, DatasetTally
from stream_svt.terminal import line
from tests.support.alerts import account_of, alert, encoded, event, lifecycle


def as_text(received: Event) -> str:
    return unstyle(line(*in_words(received)))


def test_an_alert_as_text_shows_gap_estimate_bound_and_budget():
    line = as_text(event(alert(number=2)))
    for part in (
        "ALERT",
        "shop/milk  hot",
        "gap 12  estimate 562  not certified",
        "run 1 alert 2",
        "epsilon 0.1 of 4",
    ):
        assert part in line
    assert "attempt" not in line


def test_an_alert_as_text_ends_with_its_id_and_has_severity_and_window():
    position = Position("counts", 0, -1, 3, "2026-11-28T09:00:00Z/2026-11-28T10:01:00Z")
    line = as_text(event(alert(severity="page", position=position)))
    assert "ALERT  page  shop/milk  hot  window from 2026-11-28T09:00:00Z  gap 12" in line
    assert line.endswith("  shop-1")
    assert "not certified: too little above the noisy threshold for a bound" in line
    plain = as_text(event(alert()))
    assert "ALERT  shop/milk" in plain
    assert "window" not in plain


class Given:
    """A subscription with three events."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def __aiter__(self):
        yield event(lifecycle("first"), EventType.RUN_STARTED)
        yield event(lifecycle("tested", detail={"windows": 3}), EventType.NOT_RENEWED)
        yield event(alert())


@pytest.mark.parametrize(
    ("lifecycles", "shown"),
    [(False, ["alert.not-renewed", "ALERT"]), (True, ["run.started", "alert.not-renewed"])],
)
async def test_what_follows_an_alert_is_shown_with_the_alerts(capsys, lifecycles, shown):
    await _follow(Given(), lifecycles, as_json=False, limit=2, greeting="")
    lines = capsys.readouterr().out.splitlines()
    assert [one.split()[1] for one in lines] == shown
    assert [one.endswith("  shop-1") for one in lines] == [word != "run.started" for word in shown]
    assert EventType.ALERT_ENDED in ENDING


def test_the_end_of_an_alert_as_text_is_a_sentence_with_series_and_id():
    detail = {
        "series": "milk",
        "below": 400.0,
        "bound": 377.5,
        "severities": ["page"],
        "position": {"topic": "counts", "partition": 0, "offset": -1, "row": 0},
        **dict.fromkeys(("branch", "spec_hash"), ""),
        **dict.fromkeys(("attempt", "gap", "number"), 1),
    }
    shown = as_text(event(lifecycle("below", detail=detail), EventType.ALERT_ENDED))
    says = "ended: the value tested for the end is below 400; that value is at most 377.5"
    assert f"  alert.ended  shop/milk  hot  {says}  shop-1" in shown


def test_the_time_of_an_event_as_text_is_utc(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        received = event(alert(number=2))
        assert as_text(received).startswith(f"{received.time:%H:%M:%S}Z  ALERT")
        assert received.time.utcoffset() == timedelta()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_lifecycle_event_as_text_shows_kind_reason_and_details():
    data = lifecycle("resampled", run=2, account=account_of(), detail={"alerts_charge_left": 0.9})
    line = as_text(event(data, EventType.RUN_STARTED))
    assert "run.started  shop  hot  resampled  alerts_charge_left=0.9  epsilon 0.1 of 4 spent" in line


def test_an_event_as_text_shows_a_moment_as_date_and_time():
    for until, shown in ((1_795_671_762_041, "until=2026-11-26 05:42:42 UTC"), ("run", "until=run")):
        data = lifecycle("max-runs", account=account_of(), detail={"until": until})
        assert f"max-runs  {shown}" in as_text(event(data, EventType.LIMITED))


@pytest.mark.parametrize(
    ("until", "shown"),
    [
        (1_795_671_762_041, "  muted until 2026-11-26 05:42:42 UTC  "),
        ("run", "  muted for the run  "),
        ("period", "  muted for the period  "),
    ],
)
def test_an_alert_as_text_shows_how_long_its_series_is_muted(until: str | int, shown: str):
    assert shown in as_text(event(alert(muted_until=until)))
    assert "muted" not in as_text(event(alert(muted_until=None)))


def test_a_json_line_holds_every_field_of_the_event_and_its_position():
    found = alert(number=2, severity="page", watched_until=1)
    written, document = json.loads(encoded(1, found)), json.loads(msgspec.json.encode(event(found)))
    assert document["id"] == "shop-1"
    assert document["data"] == written["data"]
    assert set(document["data"]) == set(Alert.__struct_fields__)
    assert set(document) == {*written, *Event.__struct_fields__}


@pytest.fixture
def topics_audited(monkeypatch) -> dict[str, Audit]:
    """Return the audit of each alert topic, which a test fills in."""
    audits: dict[str, Audit] = {}

    async def audited(cluster, topic, monitors=(), **_options) -> Audit:
        return audits[topic]

    monkeypatch.setattr("stream_svt.operate.audit.audit_topic", audited)
    return audits


AUDIT = ("audit", "--topic", "shop.alerts")


@pytest.mark.parametrize(
    ("findings", "unreadable", "code", "message"),
    [
        (1, [], 1, "do NOT balance: 1 finding in 2 events"),
        (0, ["its key is another"], 4, "of 1 shard could not be read"),
        (1, ["its key is another"], 1, "NOT balance"),
    ],
)
def test_a_state_that_cannot_be_read_is_no_finding(
    stream_svt, topics_audited, findings, unreadable, code, message
):
    audit = topics_audited["shop.alerts"] = Audit(events=2, ledgers=1, unreadable=unreadable)
    for number in range(findings):
        audit.report("is missing", f"offset {number}")
    ended = stream_svt(*AUDIT)
    assert (ended.code, message in ended.err, ended.out) == (code, True, "")
    assert all(text in ended.err for text in unreadable)
    as_json = stream_svt(*AUDIT, "--json")
    assert (as_json.code, json.loads(as_json.out)["balances"]) == (code, False)


@pytest.fixture
def chain(config, tmp_path) -> list:
    """Configurations of three applications, the newest first."""
    paths = []
    for name in ("third", "second", "first"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(config.read_text().replace("application: shop", f"application: {name}"))
        paths.append(path)
    return paths


def test_applications_that_follow_one_another_are_audited_together(stream_svt, topics_audited, chain):
    spent = {"third": 3, "second": 2, "first": 1}
    carried = {"third": "second", "second": "first"}
    for name, number in spent.items():
        before = (number - 1) * 10**9
        account = DatasetTally("today", Kind.PURE, 4 * 10**9, before=before, charged=10**9, events=1)
        account.carried = before if name == "third" else 0
        topics_audited[f"{name}.alerts"] = Audit(
            events=number,
            datasets={"today": account},
            carried_from={0: carried[name]} if name in carried else {},
        )
    newest, second, first = chain
    both = stream_svt("audit", "-c", newest, "--before", second, "--before", first)
    assert (both.code, both.err) == (0, "")
    assert both.out.splitlines() == [
        "today: epsilon 3 of 4 spent, 2 of it by an earlier application, 0 alerts, 1 event",
        "The ledgers balance: 3 events on third.alerts, 0 of them alerts.",
        "today: epsilon 2 of 4 spent, 1 of it before the oldest event, 0 alerts, 1 event",
        "The ledgers balance: 2 events on second.alerts, 0 of them alerts.",
        "today: epsilon 1 of 4 spent, 0 alerts, 1 event",
        "The ledgers balance: 1 event on first.alerts, 0 of them alerts.",
    ]
    shown = json.loads(stream_svt("audit", "-c", newest, "--before", second, "--json").out)
    assert (shown["balances"], shown["events"], [one["events"] for one in shown["before"]]) == (True, 3, [2])
    assert "before" not in json.loads(stream_svt("audit", "-c", newest, "--json").out)


@pytest.mark.parametrize(
    ("carried", "finding", "wrong", "right"),
    [
        ({}, "it does not continue the budgets of application 'second'", "third", "second"),
        ({0: "second"}, "partition 0 offset 7: is missing", "second", "third"),
    ],
)
def test_what_is_wrong_with_either_application_or_between_them_does_not_balance(
    stream_svt, topics_audited, chain, carried, finding, wrong, right
):
    newest, second, _ = chain
    topics_audited["third.alerts"] = Audit(events=1, carried_from=carried)
    topics_audited["second.alerts"] = Audit(events=1)
    if wrong == "second":
        topics_audited["second.alerts"].report("is missing", "partition 0 offset 7")
    ended = stream_svt("audit", "-c", newest, "--before", second)
    assert ended.code == 1
    assert f"FAIL {finding}" in ended.err
    assert f"The ledgers do NOT balance: 1 finding in 1 event on {wrong}.alerts" in ended.err
    assert f"The ledgers balance: 1 event on {right}.alerts" in ended.out
