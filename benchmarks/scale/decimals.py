"""What a decimal costs beside an integer: decoding a JSON batch and testing it, in ns of processor time for each query.

All values have six digits; those of the second workload have a point among them, those of the third are what a
program prints of a random double (17 digits). The grid has steps of 0.01. Medians of interleaved turns.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from benchmarks.timing import Record
from stream_svt.monitor.engine import Engine
from stream_svt.service.codec import DatasetIndex, QueryDecoder
from stream_svt.settings.application_document import load_spec

BATCH = 5000
TURNS = 30
SPEC = """
application: app
datasets:
  - {names: [a], limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 1000000],
     granularity: 0.01, threshold: 900000, expected_queries: 1000000}
"""


def measure() -> dict[str, float]:
    """Return the medians, and the ratio of decimals to integers."""
    chance = random.Random(1)
    kinds: dict[str, Callable[[], str]] = {
        "integer": lambda: str(chance.randint(100_000, 500_000)),
        "decimal": lambda: f"{chance.randint(100_000, 500_000) / 1000:.3f}",
        "double": lambda: repr(chance.uniform(0.1, 0.9)),
    }
    spec = load_spec(SPEC)
    decoder = QueryDecoder("t", 0, DatasetIndex(["a"], partition=0, partitions=1), ["hot"])
    engine = Engine(spec, shard=0, datasets=["a"], key=bytes(32), entropy=random.Random(2).randbytes)
    engine.begin("t", 0)
    offset = 0
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(TURNS):
        for kind, value in kinds.items():
            records = [
                Record(offset + place, b"a", f'{{"id":"q{place}","value":{value()}}}'.encode())
                for place in range(BATCH)
            ]
            offset += BATCH
            began = time.process_time()
            batch = decoder.decode(records)
            while not engine.step(batch).done:
                engine.take_commit()
                engine.committed()
            taken[kind].append((time.process_time() - began) / BATCH * 1e9)
            engine.take_commit()
            engine.committed()
    median = {kind: statistics.median(times[3:]) for kind, times in taken.items()}
    return {f"{kind}_ns": value for kind, value in median.items()} | {
        "decimal_to_integer": median["decimal"] / median["integer"],
        "double_to_integer": median["double"] / median["integer"],
    }
