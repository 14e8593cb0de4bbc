"""A small application that is played for the pages: what it reads and releases is made, not invented.

The noise is that of a fixed key, so the same code gives the same events. Nobody should run a monitor like that.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import encode
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import load_spec
from tests.simulation.log import Entry

CONFIGURATION: Final = """
application: retail-watch
datasets:
  - {name: retail-2026, limit: {epsilon: 4}, unit: one basket}
monitors:
  - {name: hot-items, topic: retail.counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true,
     bounds: [0, 100000], threshold: 500, expected_queries: 1000000}
"""
QUERY: Final = {"id": "q1", "value": 912, "series": "item-40"}
_OFFSET: Final = 41_237
_STATE: Final = "5e0c7a4f9d1b48b2a6e3f07c2d91b8a4"
_TIME: Final = "2026-11-21T09:30:00.000Z"
_ORIGIN: Final = "17-8f0c2b5d9e4a6173"


@cache
def events() -> dict[str, Any]:
    """Return what one query far above the threshold releases: documents by type of event."""
    spec = load_spec(CONFIGURATION)
    [dataset], [monitor] = spec.datasets, spec.monitors
    engine = Engine(spec, shard=0, datasets=[dataset.name], key=bytes(range(32)), entropy=_constant)
    engine.begin(monitor.topic, _OFFSET)
    dataset_index = DatasetIndex([dataset.name], partition=0, partitioning=Partitioning(1, "murmur2"))
    record = Entry(monitor.topic, _OFFSET, 0, dataset.name.encode(), json.dumps(QUERY).encode())
    batch = QueryDecoder(monitor.topic, dataset_index, [monitor.name]).decode([record])
    released = []
    while True:
        done = engine.step(batch).done
        released += engine.take_commit().events
        engine.committed()
        if done:
            break
    documents = [
        json.loads(
            encode(event, application=spec.application, shard=0, time=_TIME, origin=_ORIGIN, state_id=_STATE)
        )
        for event in released
    ]
    return {document["type"]: document for document in documents}


def _constant(count: int) -> bytes:
    return (b"\x9d\x31\x5a\xc4\x77\x02\xee\x18" * (count // 8 + 1))[:count]
