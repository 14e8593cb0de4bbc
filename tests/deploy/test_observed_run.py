"""What a real Prometheus and Alertmanager show of two applications: a busy one, and one that becomes blind.

Each query of a dashboard and each rule has an answer, and each row of docs/blindness.md is what is seen.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import yaml

from deploy.grafana.dashboards import pages
from stream_svt.application.config import parse_config
from stream_svt.errors import ConfigError
from tests.support.blindness import NAMES, ROWS, TOO_SMALL, Night, Seen, Told, play, told
from tests.support.grafana import Asked, expressions, load, lookup, panels, substituted, variables
from tests.support.observed import (
    COUNTED,
    PARTITIONS,
    RHO,
    SCRAPE,
    SMALL,
    Fleet,
    alertmanager_config,
    prometheus_config,
)
from tests.support.process import Service
from tests.support.prometheus import DEPLOY, Alertmanager, Prometheus, numbers
from tests.support.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.debian, pytest.mark.timeout(300)]

DASHBOARDS = load()
SHOWN = 300
"""Seconds before and after the end of the run that the dashboards show."""
INTERVAL = 2
"""Seconds between two points of a graph, which lie at multiples of it."""
EXPECTED = {"MonitorExhausted", "BudgetEndsSoon", "MonitorStopped"}
"""Alerts of the rules that this run brings about."""
BUILT_IN = {"__rate_interval": f"{12 * SCRAPE}s", "__interval": f"{INTERVAL}s", "__range": f"{2 * SHOWN}s"}
"""What Grafana puts in for its own variables.

Its rate interval is four scrapes; it is twelve here, since a busy machine misses scrapes that take over a second.
"""


def _has_nothing_to_show(asked: Asked, choice: Mapping[str, str]) -> bool:
    """Tell whether an expression is rightly without an answer: what it asks for does not exist."""
    dataset = choice.get("dataset")
    if "stream_svt:budget_exhaustion:seconds" in asked.expr and dataset == SMALL:
        return True  # nothing is left of this budget
    if asked.where == "panel 'Limit'":
        return ("_rho{" in asked.expr) != (dataset == RHO)
    return False


@dataclass
class Observed:
    """The run, when it is over: Prometheus and Alertmanager go on answering about it.

    Attributes:
        spent: What the workers said at the end, of each dataset.
        held: The alerts of the fleet that Alertmanager had at the end.
        night: What was seen of the application that became blind.
    """

    fleet: Fleet
    prometheus: Prometheus
    alertmanager: Alertmanager
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    held: list[dict[str, Any]] = field(default_factory=list)
    night: Seen = field(default_factory=Seen)

    def ask(self, asked: Asked, choice: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return what Prometheus answers, as Grafana would ask it."""
        expr = substituted(asked.expr, BUILT_IN | choice)
        if asked.instant:
            return self.prometheus.instant(expr, self.ended)
        until = (self.ended + SHOWN) // INTERVAL * INTERVAL
        return self.prometheus.ranged(expr, until - 2 * SHOWN, until, INTERVAL)

    def choices(self, uid: str) -> list[dict[str, str]]:
        """Return every choice of a dashboard's variables, each looked up with what was chosen before it."""
        choices = [{"datasource": "prometheus", "week": self.fleet.week}]
        for variable in variables(DASHBOARDS[uid]):
            choices = [
                choice | {variable["name"]: value}
                for choice in choices
                for value in self._offered(variable, choice)
            ]
        return choices

    def _offered(self, variable: Mapping[str, Any], choice: Mapping[str, str]) -> list[str]:
        label, selector = lookup(variable["query"]["query"])
        found = sorted(self.prometheus.label_values(label, substituted(selector, choice)))
        return [value for value in found if label == "dataset" or value.startswith(self.fleet.application)]

    def without_data(self, asked: Asked, choices: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
        """Return the choices for which an expression shows nothing, though there is something to show."""
        should = [choice for choice in choices if not _has_nothing_to_show(asked, choice)]
        assert should, f"nothing in this run would show whether this works: {asked}"
        return [choice for choice in should if not self._shows(asked, choice)]

    def _shows(self, asked: Asked, choice: Mapping[str, str]) -> bool:
        found = numbers(self.ask(asked, choice))
        return any(number > 0 for number in found) if asked.marks else bool(found)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts of the fleet that Alertmanager has now."""
        found = self.alertmanager.alerts()
        return [one for one in found if one["labels"].get("application") == self.fleet.application]


@pytest.fixture(scope="module")
def observed(broker, debian_program, tmp_path_factory) -> Iterator[Observed]:
    program = debian_program("prometheus-alertmanager")
    directory: Path = tmp_path_factory.mktemp("observed")
    places = [directory / name for name in ("fleet", "night")]
    for place in places:
        place.mkdir()
    servers, topics = broker.bootstrap_servers, Topics(broker.bootstrap_servers)
    fleet, night = [
        scene(servers, topics.name(place.name), directory=place)
        for scene, place in zip((Fleet, Night), places, strict=True)
    ]
    config = alertmanager_config(directory)
    with (
        Alertmanager(program, config, places[0]) as ruled,
        Alertmanager(program, config, places[1]) as posted,
    ):
        ports = [*fleet.all_ports, *night.all_ports]
        watching = prometheus_config(directory, ports, ruled.address)
        with Prometheus(debian_program("prometheus"), watching, directory) as prometheus:
            run = Observed(fleet, prometheus, ruled)
            asyncio.run(_both(run, night, posted))
            yield run


async def _both(run: Observed, night: Night, posted: Alertmanager) -> None:
    begun = asyncio.Event()
    async with asyncio.TaskGroup() as playing:
        playing.create_task(_run(run, begun))
        await begun.wait()  # processes that start at the same time take longer
        blind = playing.create_task(play(night, run.alertmanager, posted))
    run.night = blind.result()


async def _run(run: Observed, begun: asyncio.Event) -> None:
    """Two workers, of which one is killed and started again, a counter and a forwarder; on until all has been seen."""
    fleet = run.fleet
    ours = f'{{application="{fleet.application}"}}'

    def seen(expr: str, least: float = 1) -> Callable[[], bool]:
        return lambda: any(float(one["value"][1]) >= least for one in run.prometheus.instant(expr))

    until = run.prometheus.until

    async with fleet.feeding() as feed:
        first, second = [fleet.serve(file=file) for file in fleet.files]
        fleet.count()
        fleet.forward(run.alertmanager.url)
        # What happens before the first scrape is no increase.
        await until(seen(f"count(stream_svt_shards_owned{ours} == 1)", 2), 120)
        begun.set()
        fleet.newsworthy = {*fleet.names} - {SMALL}
        await asyncio.sleep(3)
        await second.end(SIGKILL)
        await until(lambda: len(first.shards()) == PARTITIONS, 30)
        second = fleet.serve(file=fleet.files[1])
        await until(second.shards, 30)
        fleet.newsworthy.add(SMALL)  # its few charges are seen by scrapes of the worker that makes them
        projected = (
            f'count(stream_svt:budget_exhaustion:seconds{{application="{fleet.application}", bound="late"}})'
        )
        await until(seen(projected, len({*fleet.names, COUNTED} - {SMALL})), 60)
        await until(seen(f"count(stream_svt:budget_burning:ratio{ours})"), 60)
        await until(lambda: {one["labels"]["alertname"] for one in run.alerts()} >= EXPECTED, 60)
        delivered = f'{{instance="127.0.0.1:{fleet.forward_port}", outcome="delivered"}}'
        await until(seen(f"sum(stream_svt_forward_events_total{delivered})"), 30)
        feed.cancel()
        await until(lambda: _is_settled(first, second), 30)
        await asyncio.sleep(4 * SCRAPE)
        run.ended = time.time()
        run.held = run.alerts()
        run.spent = {
            dataset["dataset"]: dataset["spent"]
            for worker in (first, second)
            for dataset in worker.status()["datasets"]
        }


def _is_settled(*workers: Service) -> bool:
    shards = {number: shard for worker in workers for number, shard in worker.shards().items()}
    return len(shards) == PARTITIONS and not any(sum(shard["lag"].values()) for shard in shards.values())


@pytest.mark.parametrize("uid", sorted(DASHBOARDS))
def test_everything_that_a_dashboard_asks_has_an_answer(observed, uid):
    choices = observed.choices(uid)
    assert choices, "the variables offer something to choose"
    if uid == pages.DATASET:
        assert {choice["dataset"] for choice in choices} == {*observed.fleet.names, COUNTED}
    dashboard = DASHBOARDS[uid]
    missing = [
        f"{asked}\n  shows nothing for {choice}"
        for asked in expressions(dashboard)
        for choice in observed.without_data(asked, choices)
    ]
    assert not missing, "\n".join(missing)


def test_every_rule_is_evaluated_and_every_record_has_data(observed):
    rules = [rule for group in observed.prometheus.groups() for rule in group["rules"]]
    declared = [
        rule
        for path in (DEPLOY / "rules").glob("*.y*ml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len(rules) == len(declared)
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    without = []
    for rule in rules:
        if rule["type"] == "recording":
            labels = ", ".join(f'{name}="{value}"' for name, value in rule.get("labels", {}).items())
            series = f"{rule['name']}{{{labels}}}"
            # Nothing is closed in this run; `deploy/prometheus/rules_tests/service.yml` closes applications.
            if "_closed:" not in rule["name"] and not numbers(
                observed.prometheus.ranged(series, observed.began, observed.ended)
            ):
                without.append(series)
    assert without == []


def test_released_alerts_reach_the_alertmanager_of_the_rules(observed):
    released = [one for one in observed.held if one["labels"]["alertname"] == "AboveThreshold"]
    assert {one["labels"]["dataset"] for one in released} & set(observed.fleet.names)


def test_what_alerts_say_is_complete(observed):
    names = {alert["labels"]["alertname"] for alert in observed.held}
    assert names >= EXPECTED
    for alert in observed.held:
        for text in alert["annotations"].values():
            assert text
            assert "<no value>" not in text
            assert "error" not in text


def test_the_projection_goes_on_from_what_was_spent_towards_the_limit(observed):
    (budget,) = [one for one in panels(DASHBOARDS[pages.DATASET]) if one["title"] == "Budget over time"]
    for choice in observed.choices(pages.DATASET):
        if choice["dataset"] == SMALL:
            continue
        last = {}
        for target in budget["targets"]:
            asked = Asked(pages.DATASET, "panel", target["expr"], instant=False)
            (series,) = observed.ask(asked, choice)
            last[target["legendFormat"]] = float(series["values"][-1][1])
        order = ("spent", "at the least", "expected", "at the most", "limit")
        assert all(last[one] < last[next_one] for one, next_one in pairwise(order))


def test_the_budgets_shown_are_those_of_the_workers(observed):
    shown = {
        series["metric"]["dataset"]: float(series["value"][1])
        for measure in ("epsilon", "rho")
        for series in observed.prometheus.instant(
            f'max by (dataset) (stream_svt_budget_spent_{measure}{{application="{observed.fleet.application}"}})',
            observed.ended,
        )
    }
    assert set(shown) == {*observed.fleet.names, COUNTED}
    spent = dict(observed.spent)
    assert 0 < shown.pop(COUNTED) <= spent.pop(COUNTED)  # its counts go on while the others rest
    assert shown == pytest.approx(spent)


# Ways to be blind


def test_the_page_of_blindness_has_a_row_for_each_part_of_the_play():
    assert set(told()) == {*ROWS, TOO_SMALL}


def test_a_limit_too_small_never_begins(tmp_path):
    assert told()[TOO_SMALL] == Told("refused", "none", "no", "none")
    night, limited = Night("127.0.0.1:1", "night", directory=tmp_path), NAMES["limited"]
    with pytest.raises(ConfigError, match="whole run"):
        parse_config(night.text().replace(f"{limited}, limit: 9", f"{limited}, limit: 1/2"))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_page_is_what_is_seen(observed, row):
    assert observed.night.rows[ROWS[row]] == told()[row]


@pytest.mark.parametrize("part", ["exhausted", "limited", "stopped", "closed", "paused", "timed"])
def test_both_alerts_name_dataset_monitor_since_when_and_the_command(observed, part):
    assert len(observed.night.texts[part]) == 2
    for notes in observed.night.texts[part]:
        text = " ".join(notes.values())
        assert NAMES[part] in text
        assert f"m-{part}" in text
        assert re.search(r"[Ss]ince 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", text)
        assert re.search(rf"stream-svt control (raise-budget|resample|resume) -c FILE {NAMES[part]}", text)


def test_each_ends_as_the_page_says(observed):
    assert observed.night.left == set()
