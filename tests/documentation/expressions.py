"""Validates expressions for Prometheus, and names of metrics."""

from __future__ import annotations

import re
from functools import cache

import yaml

from stream_svt.forward.metrics import METRICS as FORWARD_METRICS
from stream_svt.service.metrics import METRICS
from tests.documentation.documents import run_tool
from tests.documentation.pages import ROOT
from tests.documentation.stage import Stage, StepFailed


def check_promql(stage: Stage, text: str) -> None:
    """Validate expressions for Prometheus, one a line: their grammar, and that their metrics exist.

    Raises
    ------
    StepFailed
        Prometheus cannot read one, or there is no such metric.
    """
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    rules = [{"record": f"shown:{number}", "expr": line} for number, line in enumerate(lines) if line]
    run_tool("promtool", "check", "rules")(
        stage, None, yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]})
    )
    for name in re.findall(r"\bstream_svt[\w:]+", "\n".join(lines)):
        if not is_metric(name):
            raise StepFailed(f"there is no metric {name}")


def is_metric(name: str) -> bool:
    """Whether a worker, the forwarder or a recording rule has a metric of this name."""
    return re.sub(r"_(?:bucket|sum|count)$", "", name) in _metrics() or name in _metrics()


@cache
def _metrics() -> set[str]:
    found = {metric.name for metric in (*METRICS, *FORWARD_METRICS)}
    for path in (ROOT / "deploy/prometheus/rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            found |= {rule["record"] for rule in group["rules"] if "record" in rule}
    return found | {name.removesuffix("_total") for name in found}
