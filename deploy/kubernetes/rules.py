# ruff: noqa: INP001  a script beside what it makes
"""Writes the rules of deploy/prometheus/rules as a PrometheusRule: ``python -m deploy.kubernetes.rules``.

The groups are taken over as they stand, comments included, so that a difference shows what changed in a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DEPLOY = Path(__file__).parents[1]
RULES = DEPLOY / "prometheus" / "rules"
MANIFEST = Path(__file__).parent / "monitoring" / "prometheusrule.yaml"

_HEAD = """\
# Made from deploy/prometheus/rules by `python -m deploy.kubernetes.rules`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: stream-svt
  labels:
    app.kubernetes.io/name: stream-svt
spec:
  groups:
"""


def manifest() -> str:
    """Return the manifest with the groups of every file of rules, by name of the file."""
    return _HEAD + "".join(
        f"    {line}".rstrip() + "\n" for path in sorted(RULES.glob("*.yml")) for line in _groups(path)
    )


def _groups(path: Path) -> Iterator[str]:
    """Yield the lines of a file of rules below its ``groups:``, without their common indentation."""
    head, _, body = path.read_text(encoding="utf-8").partition("groups:\n")
    lines = body.splitlines()
    indent = next((len(line) - len(line.lstrip()) for line in lines if line.lstrip().startswith("- ")), 0)
    yield from (line for line in head.splitlines() if line.strip())
    for line in lines:
        yield line[indent:]


if __name__ == "__main__":
    MANIFEST.write_text(manifest(), encoding="utf-8")
