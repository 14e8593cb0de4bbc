"""Configurations with one source, as users begin with, and changes of them."""

from __future__ import annotations

WEB = """\
application: web
kafka: {bootstrap_servers: "127.0.0.1:9092"}
sources:
  - name: requests
    topic: web.requests
    unit: user
    series: {field: page, names: [/, /search, /product, /cart, /checkout]}
    time: {field: ts, in: ms}
    window: 1h
    dataset: "web-{date}"
    measures:
      - {name: visitors}
      - {name: errors, where: {status: [500, 502, 503, 504]}}
      - {name: slow, where: {ms: {at_least: 2000}}}
datasets:
  - {generate: "web-{date}", from: 2026-11-28, lateness: 1h, limit: {epsilon: 2}}
monitors:
  - {name: many-users, source: requests, measure: visitors, epsilon: 1, cutoff: 5, threshold: 500, mute: 1h}
  - {name: many-errors, source: requests, measure: errors, epsilon: 1, cutoff: 5, threshold: 50, mute: 1h}
"""

ANSWERS = """\
application: shop
sources:
  - name: hits
    topic: flink.hits
    answers: {value: payload.hits, series: page, dataset: {field: store}, sensitivity: 2, bounds: [0, 1e6]}
datasets:
  - {names: [north, south], limit: 40, unit: one user}
monitors:
  - {name: busy, source: hits, datasets: [north, south], epsilon: 1, cutoff: 5, threshold: 500, expected_queries: 1000}
"""


def changed(*changes: tuple[str, str], text: str = WEB) -> str:
    """Return the configuration with parts replaced, each of which occurs there once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
