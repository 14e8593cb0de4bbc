"""The tables of metrics.md and runbook.md: metrics, windows of the burn rates, alerts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.prometheus.budget_rules import CLASSES, WINDOWS, duration
from docs.generator.markdown import table
from stream_svt.service.metrics import COMMON_LABELS, METRICS, Metric

_ALERTS: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "alerts.yml"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def metrics_table(metrics: Iterable[Metric], labels: str) -> str:
    """Return the table of metrics; ``labels`` heads the column of their labels."""
    rows = [[f"`{metric.name}`", metric.kind, _code(metric.labels), metric.help] for metric in metrics]
    return table(["metric", "kind", labels, "meaning"], rows)


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
    rules: list[dict[str, Any]] = [
        rule
        for group in yaml.safe_load(_ALERTS.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    rows = [
        [
            f"[{rule['alert']}](#{rule['alert'].lower()})",
            rule["labels"]["severity"],
            rule.get("for", "at once"),
        ]
        for rule in rules
    ]
    return table(["alert", "severity", "after"], rows)


METRICS_BLOCKS: Final = {
    "metrics": lambda: metrics_table(METRICS, f"labels, beside {_code(COMMON_LABELS)}"),
    "windows": _windows,
}
RUNBOOK_BLOCKS: Final = {"alerts": _alerts}
