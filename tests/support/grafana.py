"""Reads dashboards the way Grafana does: which expressions they ask, with what in place of the variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GENERATED = Path(__file__).parents[2] / "deploy" / "grafana" / "generated"

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+),\s*(?P<label>\w+)\)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One expression of a dashboard, as it stands there.

    ``where`` names the panel or annotation; ``instant`` says whether one moment is asked for, or the time shown;
    ``marks`` that only what is above 0 is shown.
    """

    dashboard: str
    where: str
    expr: str
    instant: bool
    marks: bool = False

    def __str__(self) -> str:
        return f"{self.dashboard}, {self.where}: {self.expr}"


def load() -> dict[str, dict[str, Any]]:
    """Return the generated dashboards by uid."""
    found = [json.loads(path.read_text()) for path in sorted(GENERATED.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in found}


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return every panel but the rows, those inside collapsed rows included."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def expressions(dashboard: Mapping[str, Any]) -> Iterator[Asked]:
    """Return what the panels and the annotations ask."""
    uid = dashboard["uid"]
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            yield Asked(uid, f"panel {panel['title']!r}", target["expr"], bool(target.get("instant")))
    for mark in dashboard["annotations"]["list"]:
        yield Asked(uid, f"annotation {mark['name']!r}", mark["expr"], instant=False, marks=True)


def variables(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the variables whose values are looked up, in their order."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Put values in place of variables.

    Raises:
        KeyError: There is no such variable.
    """
    return _VARIABLE.sub(lambda match: values[match[1] or match[2] or match[3]], text)


def lookup(query: str) -> tuple[str, str]:
    """Return the label and the series that a variable's query asks the values of.

    Raises:
        ValueError: Grafana knows no such function, or the tests do not.
    """
    match = _LABEL_VALUES.fullmatch(query)
    if match is None:
        raise ValueError(f"not a query of a variable: {query}")
    return match["label"], match["selector"]
