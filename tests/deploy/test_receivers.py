"""The given receivers for Slack, PagerDuty and Opsgenie in a real Alertmanager, against servers of the tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_svt.forward.event import request_of
from stream_svt.monitor.released import EventType
from tests.support.alerts import alert, event, lifecycle
from tests.support.forwarding import destination
from tests.support.http_server import Posted, receiving
from tests.support.keys import write_secrets
from tests.support.prometheus import DEPLOY, Alertmanager, tool

pytestmark = [pytest.mark.debian, pytest.mark.loopback]
RECEIVERS = DEPLOY / "receivers"
SECRETS = "/etc/alertmanager/secrets"
PRODUCTS = sorted(path.stem for path in RECEIVERS.glob("*.yml"))
OPERATIONS = {
    "labels": {"alertname": "CommitFailures", "severity": "ticket", "application": "retail-watch"},
    "annotations": {"summary": "Commits of retail-watch fail", "description": "Each is tried again."},
}


def assembled(product: str) -> str:
    """Return alertmanager.yml with other receivers, as docs/forwarding.md says."""
    routes = (DEPLOY / "alertmanager.yml").read_text().partition("\nreceivers:")[0]
    return f"{routes}\n{(RECEIVERS / f'{product}.yml').read_text()}"


def hurried(route: dict[str, Any]) -> None:
    """Group alerts for a moment only, here and in the routes below."""
    route |= {"group_wait": "100ms", "group_interval": "1s"}
    for inner in route.get("routes", ()):
        hurried(inner)


@pytest.fixture
def sent(debian_program, tmp_path) -> Callable[[str], list[Posted]]:
    """Return the requests to a product for an alert of a series, and for an operations' alert, which then ends."""

    def run(name: str, series: str = "milk") -> list[Posted]:
        with receiving(200 if name == "slack" else 202) as (address, posted):
            config = yaml.safe_load(assembled(name).replace(SECRETS, str(tmp_path)))
            hurried(config["route"])
            config["global"] = {"pagerduty_url": f"{address}/v2/enqueue", "opsgenie_api_url": f"{address}/"}
            hook = f"{address}/services/T0/B0/x"
            write_secrets(
                tmp_path,
                {"slack.url": hook, "pagerduty.key": "the-key", "opsgenie.key": "the-key"},
            )
            path = tmp_path / "alertmanager.yml"
            path.write_text(yaml.safe_dump(config))
            with Alertmanager(debian_program("prometheus-alertmanager"), path, tmp_path) as alertmanager:
                target = destination(tmp_path, f"{{name: a, alertmanager: {{urls: ['{alertmanager.url}']}}}}")
                now = datetime.now(UTC)
                alertmanager.post(request_of(target, event(alert(series=series)), b"", now).body)
                alertmanager.post(json.dumps([OPERATIONS]).encode())
                _wait(lambda: len(posted) >= 2)
                ended = OPERATIONS | {"endsAt": (now + timedelta(milliseconds=10)).isoformat()}
                alertmanager.post(json.dumps([ended]).encode())
                _wait(lambda: len(posted) >= 3)
            return posted

    return run


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "not posted in time"
        time.sleep(0.05)


def test_the_end_of_a_watch_ends_its_alert(debian_program, tmp_path):
    path = tmp_path / "alertmanager.yml"
    path.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    with Alertmanager(debian_program("prometheus-alertmanager"), path, tmp_path) as alertmanager:
        target = destination(tmp_path, f"{{name: a, alertmanager: {{urls: ['{alertmanager.url}']}}}}")
        now = datetime.now(UTC)
        detail = {"series": "milk", "windows": 3, "severity": ""}
        ended = event(lifecycle("tested", monitor="hot", detail=detail), EventType.NOT_RENEWED)
        begun = event(alert(watched_until=round(now.timestamp() * 1000) + 3_600_000))
        alertmanager.post(request_of(target, begun, b"", now).body)
        _wait(lambda: len(alertmanager.alerts()) == 1)
        alertmanager.post(request_of(target, ended, b"", now).body)
        _wait(lambda: not alertmanager.alerts())


@pytest.mark.parametrize("name", PRODUCTS)
def test_alertmanager_accepts_the_receivers_and_their_keys_are_files(debian_program, tmp_path, name):
    file = tmp_path / "alertmanager.yml"
    file.write_text(assembled(name))
    tool(debian_program("amtool"), "check-config", file)
    document = yaml.safe_load(file.read_text())
    assert [one["name"] for one in document["receivers"]] == ["pages", "tickets"]
    for receiver in document["receivers"]:
        [(_, [config])] = [(key, value) for key, value in receiver.items() if key != "name"]
        [secret] = [value for key, value in config.items() if key.endswith("_file")]
        assert Path(secret).parent == Path(SECRETS)


def test_slack_gets_both_kinds_and_mentions_for_pages_only(sent):
    first, second, last = sorted(sent("slack"), key=lambda one: one[2]["attachments"][0]["title"])
    assert {path for path, _, _ in (first, second, last)} == {"/services/T0/B0/x"}
    [page], [ticket], [ended] = (body["attachments"] for _, _, body in (first, second, last))
    assert page["title"].startswith("FIRING AboveThreshold: retail-watch shop")
    assert page["text"].startswith(
        "<!channel> monitor hot reports milk of shop: the value that it tests is above 500"
    )
    assert "noisy" in page["text"]
    assert (page["color"], ticket["color"], ended["color"]) == ("danger", "warning", "good")
    assert ticket["text"].startswith("Commits of retail-watch fail")
    assert ended["title"].startswith("RESOLVED CommitFailures: retail-watch")


def test_slack_shows_a_series_as_it_is_written(sent):
    """Slack calls people by ``<!channel>``, and hides the address of a link: the series of a stranger may say so."""
    series = "</!channel>&amp;<https://stranger.example|Sign in>"
    page = min(sent("slack", series), key=lambda one: one[2]["attachments"][0]["title"])[2]["attachments"][0]
    series = "&lt;/!channel&gt;&amp;amp;&lt;https://stranger.example|Sign in&gt;"
    written = f"monitor hot reports {series} of shop: the value that it tests is above 500"
    assert page["text"].startswith(f"<!channel> {written}")
    assert written in page["fallback"]


def test_pagerduty_gets_events_that_it_can_group_and_resolve(sent):
    events = [body for path, _, body in sent("pagerduty") if path == "/v2/enqueue"]
    assert {event["routing_key"] for event in events} == {"the-key"}
    page, ticket, ended = sorted(
        events, key=lambda event: (event["event_action"] == "resolve", event["payload"]["severity"])
    )
    assert [one["event_action"] for one in (page, ticket, ended)] == ["trigger", "trigger", "resolve"]
    summary = "AboveThreshold: monitor hot reports milk of shop: the value that it tests is above 500"
    meant = {"summary": summary, "severity": "critical", "component": "shop", "group": "retail-watch"}
    assert meant.items() <= page["payload"].items()
    assert page["payload"]["source"]
    assert ticket["payload"]["severity"] == "warning"
    assert ticket["dedup_key"] == ended["dedup_key"] != page["dedup_key"]


def test_opsgenie_gets_alerts_that_it_can_close(sent):
    posted = sent("opsgenie")
    assert {headers["Authorization"] for _, headers, _ in posted} == {"GenieKey the-key"}
    made = {body["priority"]: body for path, _, body in posted if path == "/v2/alerts"}
    assert (
        made["P1"]["message"]
        == "AboveThreshold: monitor hot reports milk of shop: the value that it tests is above 500"
    )
    assert (made["P1"]["entity"], set(made["P1"]["tags"])) == ("shop", {"stream-svt", "retail-watch"})
    assert made["P3"]["message"] == "CommitFailures: Commits of retail-watch fail"
    [closed] = [path for path, _, _ in posted if path != "/v2/alerts"]
    assert closed == f"/v2/alerts/{made['P3']['alias']}/close?identifierType=alias"
