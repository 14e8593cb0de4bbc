"""The dashboards are what the code says, ask for what exists, and keep to what makes a dashboard readable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest
from grafana_foundation_sdk.models import units

from deploy.grafana.dashboards import pages
from deploy.grafana.dashboards.__main__ import GENERATED, main, texts
from stream_svt.counting.metrics import METRICS as COUNTING
from stream_svt.forward.metrics import METRICS as FORWARDING
from stream_svt.worker.metrics import METRICS as SERVICE
from tests.support.grafana import expressions, load, panels, variables

DASHBOARDS = load()
UIDS = sorted(DASHBOARDS)
UNITS = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}
KINDS = {metric.name: metric.kind for metric in (*SERVICE, *COUNTING, *FORWARDING)}


# What can be wrong with a dashboard. Each returns a line for everything it finds.


def layout_problems(dashboard: Mapping[str, Any]) -> list[str]:
    """Return places of the grid that no panel or several take; panels are rectangles of a grid 24 wide."""
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    taken = Counter(
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    wanted = Counter(product(range(24), range(max(place["y"] + place["h"] for place in places))))
    return [
        f"taken {taken[place]} times: {place}" for place in taken | wanted if taken[place] != wanted[place]
    ]


def panel_problems(dashboard: Mapping[str, Any]) -> list[str]:
    found, titles = [], set()
    for panel in panels(dashboard):
        name = panel.get("title", "")
        if not name or name in titles:
            found.append(f"no title, or one used twice: {name!r}")
        titles.add(name)
        if not panel.get("description", "").endswith("."):
            found.append(f"{name!r} has no description")
        asked = panel.get("targets") or [{}]
        if any(target.get("datasource", {}).get("uid") != "${datasource}" for target in asked):
            found.append(f"{name!r} does not ask the data source chosen")
        shown = [panel["fieldConfig"]["defaults"].get("unit", "")]
        for override in panel["fieldConfig"]["overrides"]:
            shown += [one["value"] for one in override["properties"] if one["id"] == "unit"]
        found += [
            f"{name!r} has a unit that Grafana does not know: {unit!r}" for unit in shown if unit not in UNITS
        ]
    return found


def expression_problems(dashboard: Mapping[str, Any]) -> list[str]:
    """Return counters shown as they are, and rates of a fixed span; that all has an answer, test_observed_run shows."""
    found = []
    for where, expr in ((one.where, one.expr) for one in expressions(dashboard)):
        for match in re.finditer(r"\bstream_svt[\w:]*", expr):
            kind = KINDS.get(match[0]) or KINDS.get(re.sub(r"_(bucket|sum|count)$", "", match[0]))
            is_rate = re.search(r"\b(rate|increase)\($", expr[: match.start()])
            if kind in {"counter", "histogram"} and not is_rate:
                found.append(f"{where}: {match[0]} only ever grows, and is shown as it is")
        spans = set(re.findall(r"\b(?:rate|increase|changes)\([^[]*\[([^\]]+)\]", expr))
        found += [
            f"{where}: a rate over {span}, which does not fit every time shown"
            for span in spans - {"$__rate_interval", "$__range"}
        ]
    return found


def links(dashboard: Mapping[str, Any]) -> Iterator[str]:
    """Return the addresses of all links, of panels, columns and the dashboard itself."""
    yield from (one["url"] for one in dashboard["links"] if one.get("url"))
    for panel in panels(dashboard):
        config = panel["fieldConfig"]
        yield from (one["url"] for one in config["defaults"].get("links", ()))
        for override in config["overrides"]:
            for one in override["properties"]:
                if one["id"] == "links":
                    yield from (link["url"] for link in one["value"])


def link_problems(dashboard: Mapping[str, Any]) -> list[str]:
    found = []
    for url in links(dashboard):
        match = re.match(r"/d/([\w-]+)\?", url)
        if match is None or match[1] not in DASHBOARDS:
            found.append(f"there is no such dashboard: {url}")
            continue
        target = {variable["name"] for variable in DASHBOARDS[match[1]]["templating"]["list"]}
        found += [
            f"{match[1]} has no variable {name}" for name in set(re.findall(r"var-(\w+)=", url)) - target
        ]
    return found


PROBLEMS = [layout_problems, panel_problems, expression_problems, link_problems]


@pytest.mark.parametrize("problems", PROBLEMS)
@pytest.mark.parametrize("uid", UIDS)
def test_nothing_is_wrong_with(uid, problems):
    assert problems(DASHBOARDS[uid]) == []


def test_the_files_are_what_the_code_writes():
    written = {path.name: path.read_text() for path in GENERATED.glob("*.json")}
    assert written == texts(), "run: python -m deploy.grafana.dashboards"
    assert set(DASHBOARDS) == {value for name, value in vars(pages).items() if name.isupper()}


def test_writing_them_removes_what_is_no_dashboard_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr("deploy.grafana.dashboards.__main__.GENERATED", tmp_path / "generated")
    main()
    (tmp_path / "generated" / "gone.json").write_text("{}")
    main()
    assert {path.name: path.read_text() for path in (tmp_path / "generated").iterdir()} == texts()


@pytest.mark.parametrize("uid", UIDS)
def test_one_data_source_and_what_is_watched_are_chosen_above_every_dashboard(uid):
    listed = DASHBOARDS[uid]["templating"]["list"]
    assert [(one["type"], one["name"]) for one in listed[:2]] == [
        ("datasource", "datasource"),
        ("query", "topic" if uid == pages.FORWARDING else "application"),
    ]
    assert [one["name"] for one in listed if one["type"] == "datasource"] == ["datasource"]
    for variable in variables(DASHBOARDS[uid]):
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["refresh"] == 2, "looked up again when the time shown changes"
        assert variable["description"]


@pytest.mark.parametrize("uid", UIDS)
def test_a_dashboard_is_read_only_leads_to_the_others_and_marks_ask_the_same_of_every_grafana(uid):
    dashboard = DASHBOARDS[uid]
    assert dashboard["editable"] is False
    assert dashboard["description"]
    (others,) = [one for one in dashboard["links"] if one["type"] == "dashboards"]
    assert others["tags"] == dashboard["tags"] == ["stream-svt"]
    assert others["includeVars"]
    assert others["keepTime"]
    for mark in dashboard["annotations"]["list"]:
        assert (mark["target"]["expr"], mark["target"]["interval"]) == (mark["expr"], mark["step"])
        assert mark["datasource"]["uid"] == "${datasource}"
