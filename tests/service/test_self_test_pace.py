"""How often a worker tests itself while a shard, or a broker's clock, gives it a reason to."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from stream_svt.service import worker as module
from stream_svt.service.config import parse_config
from stream_svt.service.worker import Worker

TEXT = """
application: shop
datasets: [{names: [a], limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
     correction: none}
"""


async def test_a_broker_whose_clock_is_off_has_the_worker_tested_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TEST_EVERY", 0.2)
    tests: list[float] = []

    async def self_test(*arguments: object, **options: object) -> None:
        tests.append(time.monotonic())

    monkeypatch.setattr(module, "self_test", self_test)
    worker = Worker(parse_config(TEXT))
    worker._group = SimpleNamespace(shards={})
    worker._topology = SimpleNamespace(cluster_id="c")
    worker.epoch = lambda: 1_000_000.0
    keeping = asyncio.create_task(worker._keep())
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        worker._compare_clocks(2_000_000.0)  # with every commit
        await asyncio.sleep(0.005)
    assert tests[0] - began < 0.1  # the first one at once
    assert 2 <= len(tests) <= 3
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
