"""Rules and alerts hold what they say: promtool runs their own tests, and every name in them is one that exists."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.prometheus.budget_rules import RULES, document
from stream_svt.counting.metrics import FATES
from stream_svt.counting.metrics import METRICS as COUNTER_METRICS
from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.forward.metrics import OUTCOMES
from stream_svt.protocol.controls import Refusal
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.sources.log import Park
from stream_svt.worker.metrics import COMMON_LABELS, FAILURES, METRICS, REJECT_REASONS, SKIP_REASONS, STATES
from tests.support.blindness import tables
from tests.support.prometheus import Alertmanager, tool

TOP = Path(__file__).parents[2]
HERE = TOP / "deploy" / "prometheus"
RULE_FILES = sorted((HERE / "rules").glob("*.yml"))
TEST_FILES = sorted((HERE / "rules_tests").glob("*.yml"))
RUNBOOK = TOP / "docs" / "runbook.md"

_SELECTOR = re.compile(r"\b(?P<name>(?:stream_svt[_:][a-z0-9_:]+)|up)\b(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<operator>=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|group_left|group_right|ignoring)\s*\((?P<labels>[^)]*)\)")
_COMMAND = re.compile("`stream-svt [^`]+`")
TARGET_LABELS = {"job", "instance"}


def groups(path: Path) -> list[dict[str, Any]]:
    """Return the groups of rules in a file."""
    return yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]


ALL_RULES: list[tuple[Path, dict[str, Any]]] = [
    (path, rule) for path in RULE_FILES for group in groups(path) for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for _, rule in ALL_RULES if "alert" in rule}
RECORDED = {rule["record"]: rule for _, rule in ALL_RULES if "record" in rule}
ANNOTATED = {
    label: {rule["labels"][label] for _, rule in ALL_RULES if label in rule.get("labels", {})}
    for label in ("horizon", "window", "bound")
}


def metrics() -> dict[str, set[str]]:
    """Return every name that a worker, a counter or a forwarder exposes, with its labels."""
    found = {}
    for metric in (*METRICS, *COUNTER_METRICS, *FORWARD_METRICS):
        common = () if metric in FORWARD_METRICS else COMMON_LABELS
        labels = {*common, *metric.labels} | TARGET_LABELS
        if metric.kind == "histogram":
            found |= {f"{metric.name}_bucket": labels | {"le"}}
            found |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
        else:
            found[metric.name] = labels
    return found


WORDS = ANNOTATED | {
    "state": {*map(str, ShardState), *STATES},
    "outcome": set(OUTCOMES),
    "fate": set(FATES.values()),
    "query": {"first", "next"},
    "cause": set(map(str, Cause)),
    "reason": {*SKIP_REASONS, *FAILURES, *REJECT_REASONS, *Refusal, *Park},
}
"""Values that a label can have, where they are known here."""


def problems(expr: str) -> list[str]:
    """Return what an expression names that nothing exposes or records."""
    exposed, found = metrics(), []
    known = set().union(*exposed.values(), ANNOTATED)
    for selector in _SELECTOR.finditer(expr):
        name = selector["name"]
        if name not in exposed and name not in RECORDED and name != "up":
            found.append(f"nothing is called {name}")
            continue
        for matcher in _MATCHER.finditer(selector["matchers"] or ""):
            label, possible = matcher["label"], WORDS.get(matcher["label"])
            if label not in exposed.get(name, known):
                found.append(f"{name} has no label {label}")
            elif possible is not None:
                wanted = re.compile(
                    matcher["value"] if "~" in matcher["operator"] else re.escape(matcher["value"])
                )
                if not any(wanted.fullmatch(value) for value in possible):
                    found.append(f"{label} of {name} is never {matcher['value']}")
    for grouping in _GROUPING.finditer(expr):
        unknown = {label.strip() for label in grouping["labels"].split(",") if label.strip()} - known
        found += [f"no label is called {label}" for label in sorted(unknown)]
    return found


def test_every_name_label_and_word_in_the_rules_exists() -> None:
    for path, rule in ALL_RULES:
        assert problems(rule["expr"]) == [], f"{path.name}: {rule.get('record') or rule.get('alert')}"


@pytest.mark.debian
def test_promtool_finds_no_fault_in_rules_and_configuration(debian_program) -> None:
    tool(debian_program("promtool"), "check", "rules", "--lint-fatal", *RULE_FILES)
    for config in ("prometheus.yml", "trusted.yml"):
        tool(debian_program("promtool"), "check", "config", HERE / config)


@pytest.mark.debian
@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_the_rules_own_tests_pass(path, debian_program) -> None:
    tool(debian_program("promtool"), "test", "rules", path)


def expectations() -> dict[str, list[bool]]:
    """Return for each alert whether it fires, at every moment at which a test looks."""
    found: dict[str, list[bool]] = {name: [] for name in ALERTS}
    for path in TEST_FILES:
        for scene in yaml.load(path.read_text(), yaml.CSafeLoader)["tests"]:
            for look in scene.get("alert_rule_test", []):
                found[look["alertname"]].append(bool(look["exp_alerts"]))
    return found


def test_of_every_alert_a_test_shows_that_it_fires_and_that_it_does_not() -> None:
    found = expectations()
    assert {name for name, looks in found.items() if True not in looks} == set()
    assert {name for name, looks in found.items() if False not in looks} == set()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_urgent_it_is_what_happened_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"runbook.html#{name.lower()}"
    assert len(rule["annotations"]["summary"]) < 120
    # Sentences about the application that it concerns, or the topic, for a forwarder knows no more; of what never
    # answered only the address is known.
    of = "$labels.topic" if name.startswith("Forward") else "$labels.application"
    of = "$labels.instance" if name == "TargetDown" else of
    assert of in rule["annotations"]["summary"] + rule["annotations"]["description"]
    assert rule["annotations"]["description"].endswith(".")


def test_a_command_has_the_name_of_a_dataset_as_one_word_of_the_shell() -> None:
    """The names of monitors and applications need no quotes: letters, digits and dashes."""
    quoted = r'''$labels.dataset | reReplaceAll "'" "'\"'\"'" | reReplaceAll "^.*[^\\w@%+=:,.-].*$" "'$0'"'''
    commands = [
        one for rule in ALERTS.values() for one in _COMMAND.findall(rule["annotations"]["description"])
    ]
    assert sum("$labels.dataset" in one for one in commands) == 5
    for one in commands:
        assert set(re.findall(r"\{\{ (.*?) \}\}", one)) <= {quoted, "$labels.monitor"}, one


def test_the_runbook_names_each_reason_for_which_a_source_is_parked() -> None:
    section = RUNBOOK.read_text().partition("## SourceParked\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"`([a-z-]+)`", section.partition("**Do.**")[0])} - {"reason"} == {*Park}


def test_the_alarms_of_a_source_that_is_blind_are_those_of_its_page() -> None:
    """That a record came late is no way to be blind: it counts later."""
    _, rows = tables()
    (group,) = [
        one for path in RULE_FILES for one in groups(path) if one["name"] == "stream-svt-source-alerts"
    ]
    alarms = [f"{rule['labels']['severity']} {rule['alert']}" for rule in group["rules"]]
    assert [alarm for _, alarm, _ in rows] == [one for one in alarms if "SourceRecordsLate" not in one]


def test_every_alert_has_a_section_in_the_runbook_with_its_meaning_where_to_look_and_what_to_do() -> None:
    found = {}
    for section in re.split(r"^## (?=[A-Z]\w+$)", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]:
        name, body = section.split("\n", 1)
        parts = re.findall(r"^\*\*(.+?)\.\*\*", body, re.MULTILINE)
        found[name] = [part for part in parts if part != "Privacy"]
    assert found == {name: ["Meaning", "Check", "Do"] for name in ALERTS}
    assert list(found) == list(ALERTS)


def test_the_budget_rules_are_those_of_the_program_that_makes_them() -> None:
    """Out of date: `python -m deploy.prometheus.budget_rules`."""
    assert RULES.read_text() == document()


@pytest.mark.debian
def test_alertmanager_pages_for_pages_and_files_the_rest(debian_program) -> None:
    amtool, config = debian_program("amtool"), HERE / "alertmanager.yml"
    tool(amtool, "check-config", config)
    for severity, receiver in (("page", "pages"), ("ticket", "tickets")):
        route = "config", "routes", "test", f"--config.file={config}", f"severity={severity}"
        assert tool(amtool, *route).strip() == receiver


@pytest.mark.debian
@pytest.mark.loopback
def test_a_cause_silences_its_consequences(debian_program, tmp_path) -> None:
    """A real Alertmanager, told of several alerts at once, shows which of them it keeps quiet."""
    told = [
        ("MonitorExhausted", "shop", "a"),
        ("BudgetBurningFast", "shop", "a"),
        ("BudgetBurningFast", "shop", "b"),
        ("BudgetBurningSlow", "shop", "b"),
        ("BudgetEndsSoon", "clinic", "b"),
    ]
    program = debian_program("prometheus-alertmanager")
    with Alertmanager(program, HERE / "alertmanager.yml", tmp_path) as alertmanager:
        names = ("alertname", "application", "dataset")
        labels = [dict(zip(names, one, strict=True)) for one in told]
        alertmanager.post(json.dumps([{"labels": one} for one in labels]).encode())
        end = time.monotonic() + 20
        quiet: set[tuple[str, ...]] = set()
        while len(quiet) < 2 and time.monotonic() < end:
            time.sleep(0.2)
            shown = alertmanager.alerts()
            quiet = {tuple(alert["labels"].values()) for alert in shown if alert["status"]["inhibitedBy"]}
    assert quiet == {("BudgetBurningFast", "shop", "a"), ("BudgetBurningSlow", "shop", "b")}


def test_what_silences_what_names_alerts_that_exist() -> None:
    config = yaml.safe_load((HERE / "alertmanager.yml").read_text())
    named = [
        matcher
        for rule in config["inhibit_rules"]
        for side in ("source_matchers", "target_matchers")
        for matcher in rule[side]
    ]
    for matcher in named:
        (match,) = _MATCHER.finditer(matcher)
        for name in match["value"].split("|"):
            assert name in ALERTS
    assert len(named) == 2 * len(config["inhibit_rules"])
