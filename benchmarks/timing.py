"""What the time of a batch tells of its values where the released outcomes are the same.

An adversary who times batches is given the best case: two workloads of which it knows everything but which one is
run, no other load, thousands of observations. All queries are bottoms in both, so nothing is released in either. The
figure is the advantage of the best threshold on the time of one batch, 0 for no better than guessing and 1 for
certainty: the largest distance between the two distribution functions (Kolmogorov and Smirnov), over repetitions that
are interleaved at random. `null` is the same between two halves of one workload: what chance alone gives.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stream_svt.monitor.engine import Engine
from stream_svt.monitor.spec import load_spec
from stream_svt.service.wire import Directory, QueryDecoder

BATCH = 2000
REPETITIONS = 1200
CADENCE = 0.02
"""Seconds between ticks, where batches end at ticks: longer than any batch takes."""
SPEC = """
application: app
datasets:
  - {names: [a], limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 1000000],
     threshold: 900000, expected_queries: 1000000}
"""


@dataclass
class Record:
    """What a decoder sees of a Kafka record."""

    offset: int
    key: bytes
    value: bytes
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes], ...] = ()


class Shard:
    """Decoder and engine of one shard, fed one batch after the other."""

    def __init__(self) -> None:
        spec = load_spec(SPEC)
        self._decoder = QueryDecoder("t", 0, Directory(["a"], partition=0, partitions=1), ["hot"])
        self._engine = Engine(
            spec, shard=0, datasets=["a"], key=bytes(32), entropy=random.Random(1).randbytes
        )
        self._engine.begin("t", 0)
        self._offset = 0
        self.seconds(lambda _: b"1")

    def seconds(self, value: Callable[[random.Random], bytes]) -> float:
        """Return how long a batch of such values takes, from bytes to outcomes."""
        chance = random.Random(self._offset)
        records = [
            Record(offset, b"a", b'{"id":"q%d","value":%b}' % (offset, value(chance)))
            for offset in range(self._offset, self._offset + BATCH)
        ]
        self._offset += BATCH
        began = time.perf_counter()
        batch = self._decoder.decode(records)
        done = self._engine.step(batch).done
        taken = time.perf_counter() - began
        while not done:
            self._engine.take_commit()
            self._engine.committed()
            done = self._engine.step(batch).done
        commit = self._engine.take_commit()
        self._engine.committed()
        assert not any(hasattr(event.data, "gap") for event in commit.events), "every query is a bottom"
        return taken


WORKLOADS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[random.Random], bytes]]] = {
    "near_vs_far": (
        lambda c: b"%d" % c.randrange(840_000, 850_000),
        lambda c: b"%d" % c.randrange(100_000, 110_000),
    ),
    "long_vs_short": (lambda c: b"%d" % c.randrange(100_000, 850_000), lambda c: b"%d" % c.randrange(10)),
    "decimal_vs_integer": (
        lambda c: b"%d.5" % c.randrange(10_000),
        lambda c: b"%d" % c.randrange(100_000, 850_000),
    ),
    "one_text_vs_none": (
        lambda c: b'"none"' if c.randrange(BATCH) == 0 else b"%d" % c.randrange(100_000, 850_000),
        lambda c: b"%d" % c.randrange(100_000, 850_000),
    ),
}


def advantage(first: list[float], second: list[float]) -> float:
    """Largest distance between the distribution functions of two samples."""
    points = np.sort(np.concatenate([first, second]))
    below = [
        np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (first, second)
    ]
    return float(np.abs(below[0] - below[1]).max())


def figures(repetitions: int = REPETITIONS) -> dict[str, float]:
    """Return the advantage for each pair of workloads, with and without a cadence, and what chance alone gives."""
    shard, chance = Shard(), random.Random(3)
    found = {}
    for name, pair in WORKLOADS.items():
        for prefix, ticking in (("advantage", False), ("cadence_advantage", True)):
            order = [0, 1] * repetitions
            chance.shuffle(order)
            times: tuple[list[float], list[float]] = ([], [])
            for which in order:
                times[which].append(_observed(shard, pair[which], ticking=ticking))
            found[f"{prefix}_{name}"] = advantage(*times)
    found["null"] = advantage(times[1][::2], times[1][1::2])
    return found


def _observed(shard: Shard, value: Callable[[random.Random], bytes], *, ticking: bool) -> float:
    """Return what the adversary can time: the batch, or the moment after the tick at which it is done."""
    if not ticking:
        return shard.seconds(value)
    shard.seconds(value)
    now = time.perf_counter()
    tick = (now // CADENCE + 1) * CADENCE
    time.sleep(tick - now)
    return time.perf_counter() - tick


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    for name, figure in figures(parser.parse_args().repetitions).items():
        print(f"timing.{name} {figure:.3f}")


if __name__ == "__main__":
    main()
