"""The metrics of metrics.md and forwarding.md, the windows of the burn rates, and the alerts of runbook.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.prometheus.budget_rules import CLASSES, WINDOWS, duration
from docs.generator.markdown import listed, table
from stream_svt.counting.metrics import METRICS as COUNTER_METRICS
from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.worker.metrics import METRICS, Metric

_Blocks = Mapping[str, Callable[[], str]]
_ALERTS: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "alerts.yml"


def _metrics(metrics: Iterable[Metric]) -> str:
    rows = []
    known = {metric.name: metric for metric in metrics}
    for metric in known.values():
        twin = known.get(metric.name.replace("_rho", "_epsilon"))
        if metric.name.endswith("_rho") and twin and not metric.name.endswith("_left_rho"):
            continue  # the page describes those in epsilon
        kind = ["histogram"] if metric.kind == "histogram" else []  # a counter's name ends in _total
        rows.append(
            (metric.name, ", ".join([*kind, *(f"`{label}`" for label in metric.labels)]), metric.help)
        )
    return listed(rows)


def _windows() -> str:
    rows = []
    for one in CLASSES:
        bounds = [
            f"from {duration(one.least)}" if one.least else "",
            f"below {duration(one.most)}" if one.most else "",
        ]
        lengths = [duration(one.seconds(window)) for window in WINDOWS]
        rows.append([f"`{one.name}`", ", ".join(filter(None, bounds)), *lengths, duration(one.occasion)])
    alarms = ["", "", *(f"{window.alarm:g}" if window.alarm else "" for window in WINDOWS), ""]
    head = ["`horizon`", "horizons", *(f"`{window.name}`" for window in WINDOWS), "one payment"]
    return table(head, [*rows, ["**alarm**", *alarms[1:]]])


def _alerts() -> str:
    """Return the alerts by severity."""
    rules: list[dict[str, Any]] = [
        rule
        for group in yaml.load(_ALERTS.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
    ]
    lines: dict[str, list[str]] = {}
    for rule in rules:
        link = f"[{rule['alert']}](#{rule['alert'].lower()})"
        lines.setdefault(rule["labels"]["severity"], []).append(link)
    return "\n".join(f"- **{severity}**: {', '.join(links)}" for severity, links in lines.items())


METRICS_BLOCKS: Final[_Blocks] = {
    "metrics": partial(_metrics, METRICS),
    "counter-metrics": partial(_metrics, COUNTER_METRICS),
    "windows": _windows,
}
FORWARD_BLOCKS: Final[_Blocks] = {"forward-metrics": partial(_metrics, FORWARD_METRICS)}
RUNBOOK_BLOCKS: Final[_Blocks] = {"alerts": _alerts}
