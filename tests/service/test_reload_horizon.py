"""A horizon bears on no outcome: it changes by a reload, and workers with different ones agree."""

from __future__ import annotations

from stream_svt.service import worker
from stream_svt.service.config import parse_config

CONFIG = """
application: shop
datasets: [{name: a, SAID limit: 4, unit: one basket}]
monitors:
  - {name: m, topic: counts, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
     expected_queries: 10}
"""


async def test_a_reload_takes_another_horizon_and_no_other_unit() -> None:
    """The unit is the control: it may never change."""
    old, longer, other = (
        parse_config(CONFIG.replace("SAID ", said).replace("one basket", unit))
        for said, unit in (
            ("", "one basket"),
            ("horizon: 90d, ", "one basket"),
            ("horizon: 90d, ", "one user"),
        )
    )
    assert worker._restart_needed(old, longer) == []
    assert [problem async for problem in worker._refused(old.spec, longer.spec, lambda _: None)] == []
    assert old.spec.hash() == longer.spec.hash()
    refused = [problem async for problem in worker._refused(old.spec, other.spec, lambda _: None)]
    assert [problem.field for problem in refused] == ["datasets.a"]
