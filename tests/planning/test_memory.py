"""The memory model, compared with the measured memory of an engine, its records and their hashes."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml

from stream_svt.monitor.engine import Engine
from stream_svt.planning import memory
from stream_svt.protocol.state_records import hashing
from stream_svt.settings.application import ApplicationSpec
from tests.support.engine_play import Query, batch_of
from tests.support.monitor_forms import spec_of

ROOT = Path(__file__).parents[2]
FACTOR = 1.5
"""Largest ratio of the model to the measurement; the smallest is 1."""


def _spec(datasets: int, monitors: int) -> ApplicationSpec:
    names = ", ".join(f"ward-{number:05}" for number in range(datasets))
    form = "topic: t, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, expected_queries: 1000000"
    forms = (f"{form}, bounds: [0, 100000], threshold: {5000 + number}" for number in range(monitors))
    return spec_of(*forms, datasets=f"{{names: [{names}], limit: 100, unit: u}}")


def _held(datasets: int, monitors: int) -> tuple[int, int]:
    """Return the bytes of an engine with all runs open and its records' hashes, and those of datasets' records."""
    spec = _spec(datasets, monitors)
    names = [dataset.name for dataset in spec.datasets]
    gc.collect()
    tracemalloc.start()
    try:
        engine = Engine(spec, shard=0, datasets=names, key=bytes(32), entropy=os.urandom)
        engine.begin("t", 0)
        batch = batch_of(
            "t", [Query(number, 0, time_ms=1_767_571_200_000) for number in range(datasets)], 0, datasets
        )
        hashes, sizes = dict[bytes, int](), dict[str, int]()
        done = False
        while not done:
            done = engine.step(batch).done
            for key, record in engine.take_commit().records.items():
                hashes[key] = hashing(bytes(32))(key, record or b"")
                sizes[key.decode()] = len(record or b"")
            engine.committed()
        stored = sum(size for key, size in sizes.items() if key.startswith("d/"))
        del batch, record, sizes
        gc.collect()
        return tracemalloc.get_traced_memory()[0], stored
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Return the memory of a further dataset with one monitor, and of a further monitor on it."""
    few, many, wide = (np.array(_held(*size)) for size in ((200, 1), (600, 1), (600, 9)))
    run, stored = (wide - many) / (600 * 8)
    dataset, record = (many - few) / 400 - (run, stored)
    return {"RUN": run, "STORED": stored, "DATASET": dataset, "RECORD": record}


@pytest.mark.parametrize("name", ["DATASET", "RUN", "RECORD", "STORED"])
def test_a_figure_of_the_model_is_what_is_measured(measured: dict[str, float], name: str) -> None:
    assert measured[name] <= getattr(memory, name) <= FACTOR * measured[name], measured


def test_a_worker_needs_most_with_every_shard_and_the_same_with_one_where_there_is_one() -> None:
    spec = _spec(30, 2)
    many, one = memory.needed(spec, 4), memory.needed(spec, 1)
    assert many.one_shard < many.all_shards < one.all_shards == one.one_shard
    opening = 2 * (30 * (memory.RECORD + memory.OBJECT) + 60 * memory.STORED)
    assert one.all_shards - many.all_shards == 3 * opening // 4


def test_the_limits_that_are_shipped_are_enough_for_800_000_runs_and_a_fifth_more() -> None:
    wanted = memory.needed(_spec(20_000, 40), 1).all_shards * 1.2
    manifest = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "service" / "deployment.yaml").read_text())
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert {stack["services"][name]["mem_limit"] for name in ("worker-1", "worker-2")} == {"1g"}
    assert 2**29 < wanted <= 2**30
