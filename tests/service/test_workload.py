"""What is known of the datasets before anything is served is gathered in slices, and is what would be found later."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest

from stream_svt.monitor import shard_datasets, spec
from stream_svt.monitor.spec import load_spec
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service import garbage, wire, workload
from stream_svt.service.config import parse_config
from stream_svt.service.reading import read
from stream_svt.service.worker import Worker
from stream_svt.service.workload import Workload
from tests.service.test_garbage import Name

TEXT = """
application: shop
datasets:
  - {{names: [{names}], limit: 4, unit: one basket}}
  - {{generate: "week-{{iso_week}}", from: 2026-01-05, until: 2026-03-02, lateness: 1h, limit: {{rho: 1}}, unit: event}}
monitors:
  - {{name: all, topic: counts, epsilon: "0.1", cutoff: 3, sensitivity: 1, bounds: [0, 9],
     threshold: 5, correction: none}}
  - {{name: odd, datasets: ["d*1", "d[35]?", "week-*"], topic: counts, epsilon: "0.1", cutoff: 3, sensitivity: 1,
     bounds: [0, 9], threshold: 5, correction: none}}
""".format(names=", ".join(f"d{number}" for number in range(200)))
PARTITIONS = 3


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_datasets, "AT_ONCE", 10)
    monkeypatch.setattr(spec, "MATCHED_AT_ONCE", 10)
    monkeypatch.setattr(wire, "NAMES_AT_ONCE", 10)
    monkeypatch.setattr(workload, "NAMES_AT_ONCE", 10)


@pytest.mark.usefixtures("small_slices")
def test_what_is_prepared_in_slices_is_what_is_found_at_once() -> None:
    prepared, plain = (Workload(load_spec(TEXT), PARTITIONS) for _ in range(2))
    count = len(plain.spec.datasets)
    slices = sum(1 for _ in prepared.prepare())
    # Patterns of one monitor, homes, directories and the shards' datasets: four looks at each.
    assert slices >= 4 * count // 10
    assert prepared.hash == plain.hash
    assert prepared.homes.tolist() == plain.homes.tolist()
    for shard in range(PARTITIONS):
        ours, theirs = prepared.directories[shard], plain.directories[shard]
        assert (ours.datasets, ours.index) == (theirs.datasets, theirs.index)
        one, other = (w.engine(shard, bytes(32)) for w in (prepared, plain))
        assert list(one.datasets) == list(other.datasets)
        assert [dataset.name for dataset in one.datasets] == ours.datasets
        assert one.number == other.number
        for mine, its in (
            (one.datasets.shown, other.datasets.shown),
            (one.datasets.limit, other.datasets.limit),
        ):
            assert np.array_equal(mine, its)
        for monitor in plain.spec.monitors:
            covers = one.runners[monitor.name].covers.tolist()
            assert covers == [monitor.covers(name) for name in ours.datasets]
            assert np.array_equal(one.runners[monitor.name].periods, other.runners[monitor.name].periods)


def test_nothing_is_looked_at_twice_once_it_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Workload(load_spec(TEXT), PARTITIONS)
    for _ in prepared.prepare("known"):
        pass
    assert prepared.hash == "known"

    def again(*_: object) -> None:
        raise AssertionError("the datasets are looked at again")

    monkeypatch.setattr(workload, "homes", again)
    monkeypatch.setattr(shard_datasets.ShardDatasets, "_gather", again)
    monkeypatch.setattr(wire.Directory, "making", again)
    monkeypatch.setattr(spec.MonitorSpec, "covers", again)
    for shard in range(PARTITIONS):
        prepared.engine(shard, bytes(32))
        prepared.decoders(shard)


async def test_what_nobody_runs_any_more_is_freed_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "FREED_AT_ONCE", 10)
    declared = load_spec(TEXT)
    many = len(declared.datasets)
    used = Workload(declared, PARTITIONS)
    del declared
    for _ in used.prepare():
        pass
    freed: list[str] = []
    for dataset in used.spec.datasets:
        name = Name(dataset.name)
        object.__setattr__(dataset, "name", name)
        weakref.finalize(name, freed.append, dataset.name[:])
    del dataset, name
    directories = [weakref.ref(directory.index) for directory in used.directories]
    gc.disable()  # as if all of it were set aside
    try:
        used.retire()
        await asyncio.sleep(0.01)
        assert freed == []
        del used
        turns = [len(freed)]
        async with asyncio.timeout(5):
            while len(freed) < many:
                await asyncio.sleep(0)
                turns.append(len(freed))
        assert max(after - before for before, after in pairwise(turns)) <= 20
        assert [directory() for directory in directories] == PARTITIONS * [None]
    finally:
        gc.enable()


async def test_another_version_retires_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    retired: list[Workload] = []
    monkeypatch.setattr(Workload, "retire", lambda self: retired.append(self))  # noqa: PLW0108  a method needs its self
    worker = Worker(parse_config(TEXT))
    before = worker.workload
    await worker.adopt(await read(Version(1, Bundle(TEXT.replace("threshold: 5", "threshold: 6")))))
    assert retired == [before]
    assert worker.workload is not before
