"""A configuration that sets every field of a monitor, and a monitor with few."""

from __future__ import annotations

from stream_svt.settings.monitors import MonitorSpec

FULL = """
application: retail-watch
kafka: {bootstrap_servers: "127.0.0.1:9092"}
datasets:
  - name: retail-2026-w01
    limit: {epsilon: 4}
    unit: one basket
  - names: [other-a, other-b]
    limit: "1/3"
    unit: one user
monitors:
  - name: hot-items
    topic: retail.counts
    datasets: ["retail-*"]
    mechanism: adaptive
    epsilon: 0.1
    cutoff: 10
    sensitivity: 1
    monotonic: true
    granularity: 0.5
    bounds: [0, 100000]
    threshold: 500.2
    query_noise: laplace
    threshold_noise: exponential
    split: null
    correction: {exposure: {false_alerts: 2}}
    expected_queries: 1e6
    append: {retry: {attempts: 5, lifetime: 10m, capacity: 1000, every: 100}}
    mute: 1h30m
    max_mutes: 5
    on_halt: stop
    resample_every: 1d
    reserve: 0.2
    beta: 0.01
    maintenance: [{from: 2026-12-01T22:00Z, until: 2026-12-02T02:00:30Z}, {every: Sun 02:00-04:00}]
  - {name: plain, topic: other.counts, epsilon: 1/10, cutoff: 1, sensitivity: 1.5, bounds: [-5, 5], threshold: 1,
     expected_queries: 100}
"""


def monitor(**changes: object) -> MonitorSpec:
    """Return a monitor; ``changes`` replace or add fields."""
    fields = {
        "name": "m",
        "topic": "t",
        "epsilon": 1,
        "cutoff": 10,
        "sensitivity": 1,
        "monotonic": True,
        "bounds": (0, 1000),
        "threshold": 500,
        "expected_queries": 1000,
    }
    return MonitorSpec.model_validate(fields | changes)
