"""A counter on a real broker: raw events in, exact counts and private alerts out."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.kafka


async def test_raw_events_become_counts_and_counts_become_alerts(scene):
    await scene.publish()
    worker = await scene.start()
    await scene.count()
    await scene.visit(600)
    await scene.visit(50, "b")
    await scene.visit(50, "b")
    found = await scene.agrees()
    assert sum(one.value for one in found if one.series == "a") >= 2 * 600
    [alert, *_] = await scene.alerted()
    assert (alert.monitor, alert.dataset, alert.series) == ("many", "shop", "a")
    await scene.stop(worker)
