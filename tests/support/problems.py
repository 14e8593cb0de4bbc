"""A good configuration, and the table of changes that make it wrong."""

from __future__ import annotations

from pathlib import Path

import yaml

GOOD = """\
application: shop
datasets:
  - name: week-1
    limit: {epsilon: 4}
    unit: one basket
monitors:
  - name: hot-items
    topic: counts
    epsilon: 1
    cutoff: 10
    sensitivity: 1
    monotonic: true
    bounds: [0, 1000]
    threshold: 500
    correction: exposure
    expected_queries: 1000
"""

TABLE = yaml.safe_load((Path(__file__).parents[1] / "settings" / "problems.yaml").read_text())


def rows(*sections: str) -> list[tuple]:
    """Return the rows of sections of the table, each behind the name of its section."""
    return [(section, *row) for section in sections for row in TABLE[section]]
