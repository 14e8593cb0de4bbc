"""Workloads are prepared and freed in slices, and garbage is collected without long pauses."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec import structs

from stream_svt.application.config import parse_config
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.state import shard_datasets
from stream_svt.monitor.takeover import change_spec, load
from stream_svt.queries import dataset_index
from stream_svt.settings import application as spec
from stream_svt.settings.application import load_spec
from stream_svt.settings.datasets import RetiredDatasets
from stream_svt.worker import event_loop, workload
from stream_svt.worker.worker import Worker
from stream_svt.worker.workload import AppliedWorkload
from tests.simulation.log import Entry
from tests.support.counts import TOPIC as COUNTS
from tests.support.counts import VISITORS, Counts, counting
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, spec_of
from tests.support.partitioning import partition_of

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
PLAIN = "\n".join(line for line in TEXT.splitlines() if "generate" not in line).replace(', "week-*"', "")
PARTITIONS = 3
PLAIN_NAMES = [f"d{number}" for number in range(200)]


def engine(workload: AppliedWorkload, shard: int, gone: RetiredDatasets | None = None) -> Engine:
    for _ in workload.gather(shard, gone or RetiredDatasets()):
        pass
    return workload.engine(shard, bytes(32))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_datasets, "AT_ONCE", 10)
    monkeypatch.setattr(dataset_index, "NAMES_AT_ONCE", 10)
    monkeypatch.setattr(workload, "NAMES_AT_ONCE", 10)


@pytest.mark.usefixtures("small_slices")
def test_a_workload_prepared_in_slices_equals_one_computed_at_once() -> None:
    prepared, plain = (
        AppliedWorkload(load_spec(PLAIN), Partitioning(PARTITIONS, "murmur2")) for _ in range(2)
    )
    slices = sum(1 for _ in prepared.prepare())
    # Homes, dataset indexes, the shards' datasets and the patterns of one monitor: each processed four times.
    assert slices >= 4 * len(plain.declared.datasets) // 10
    assert prepared.hash == plain.hash
    for shard in range(PARTITIONS):
        one, other = (engine(workload, shard) for workload in (prepared, plain))
        names = [dataset.name for dataset in one.datasets]
        assert names == [name for name in PLAIN_NAMES if partition_of(name.encode(), PARTITIONS) == shard]
        assert list(one.datasets) == list(other.datasets)
        decoders = prepared.decoders(one)
        index = decoders["counts"].dataset_index
        assert [index.number(name.encode()) for name in names] == list(range(len(names)))
        assert one.number == other.number
        assert one.datasets.group == other.datasets.group
        assert one.datasets.limits == other.datasets.limits
        for monitor in plain.spec.monitors:
            covers = one.runners[monitor.name].runs.covers.tolist()
            assert covers == [monitor.covers(name) for name in names]
            assert np.array_equal(one.runners[monitor.name].periods, other.runners[monitor.name].periods)


def test_a_prepared_workload_computes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = AppliedWorkload(load_spec(PLAIN), Partitioning(PARTITIONS, "murmur2"), known_hash="known")
    for _ in prepared.prepare():
        pass
    assert prepared.hash == "known"

    def again(*_: object) -> None:
        raise AssertionError("the datasets are processed again")

    monkeypatch.setattr(Partitioning, "of_names", again)
    monkeypatch.setattr(shard_datasets.ShardDatasets, "fill_in_slices", again)
    monkeypatch.setattr(dataset_index.DatasetIndex, "fill_in_slices", again)
    monkeypatch.setattr(spec.MonitorSpec, "covers", property(again))
    for shard in range(PARTITIONS):
        assert not list(prepared.gather(shard, RetiredDatasets({"week-{iso_week}": 1}, frozenset({"d1"}))))
        prepared.decoders(prepared.engine(shard, bytes(32)))


async def test_an_unused_workload_is_freed_gradually(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "FREED_PER_TURN", 10)
    declared = load_spec(TEXT)
    many = len(declared.datasets)
    used = AppliedWorkload(declared, Partitioning(PARTITIONS, "murmur2"))
    del declared
    for shard in range(PARTITIONS):
        engine(used, shard)
    freed: list[str] = []
    for dataset in used.declared.datasets:
        name = Name(dataset.name)
        structs.force_setattr(dataset, "name", name)
        weakref.finalize(name, freed.append, dataset.name[:])
    del dataset, name
    indexes = [weakref.ref(held.dataset_index) for held in used._parts.values()]
    gc.disable()  # as if all of it were frozen
    try:
        used.retire()
        await asyncio.sleep(0.01)
        assert freed == []
        del used
        turns = await turns_until(freed, many)
        assert max(after - before for before, after in pairwise(turns)) <= 20
        assert [index() for index in indexes] == PARTITIONS * [None]
    finally:
        gc.enable()


async def test_another_version_retires_the_workload_that_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    retired: list[AppliedWorkload] = []
    monkeypatch.setattr(AppliedWorkload, "retire", lambda self: retired.append(self))  # noqa: PLW0108  a method needs its self
    worker = Worker(parse_config(TEXT))
    before = worker.workload
    await worker.adopt(
        AppliedWorkload(
            load_spec(TEXT.replace("threshold: 5", "threshold: 6")), Partitioning(PARTITIONS, "murmur2")
        )
    )
    assert retired == [before]
    assert worker.workload is not before


async def test_a_worker_adds_periods_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(parse_config(TEXT.replace(" until: 2026-03-02,", "")))
    begun, day = worker.workload.now_ms, 86_400_000
    midnight = begun - begun % day + day
    for now_ms, is_due in ((midnight - 1, False), (midnight + 600_000, True), (midnight + 700_000, False)):
        before = worker.workload
        worker.epoch = lambda now_ms=now_ms: now_ms / 1000
        await worker.advance_periods()
        assert (worker.workload is not before) == is_due
    assert worker.workload.now_ms == midnight + 600_000
    assert worker.workload.hash == before.hash
    known = [
        one.name
        for shard in range(worker.workload.partitioning.partitions)
        for one in engine(worker.workload, shard).datasets
    ]
    last = max(name for name in known if name.startswith("week-"))
    assert worker.workload.declared.dataset(last).terms.from_ms <= midnight + 600_000 + workload.AHEAD_MS
    assert worker.workload.declared.dataset(last).terms.until_ms > midnight + 600_000 + workload.AHEAD_MS


async def test_a_version_adopted_while_periods_are_added_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(parse_config(TEXT.replace(" until: 2026-03-02,", "")))
    prepare, version = AppliedWorkload.prepare, (2, "second")

    def takes_long(self: AppliedWorkload) -> Iterator[None]:
        yield from prepare(self)
        yield from [None] * (50 if self.version != version else 0)

    monkeypatch.setattr(AppliedWorkload, "prepare", takes_long)
    worker.epoch = lambda: worker.workload.now_ms / 1000 + 2 * 86_400
    second = replace(worker.workload, version=version)
    await asyncio.gather(worker.advance_periods(), worker.adopt(second))
    assert worker.workload.version == version


@pytest.mark.parametrize("pattern", ["week-{iso_week}", "{name}-{iso_week}"], ids=["its own", "another's"])
@pytest.mark.parametrize("watermark", ["2026-w03", "2026-w30"])
def test_a_shard_knows_the_periods_that_are_not_over(watermark: str, pattern: str) -> None:
    """A period that is over stays over for the datasets of every generator."""
    endless = load_spec(TEXT.replace(" until: 2026-03-02,", ""))
    ends = endless.dataset(f"week-{watermark}").terms.until_ms
    gone = RetiredDatasets({pattern: ends}, frozenset({"week-2026-w31"}))
    known = AppliedWorkload(endless, Partitioning(PARTITIONS, "murmur2"), now_ms=ends + 14 * 86_400_000)
    found = [[one.name for one in engine(known, shard, gone).datasets] for shard in range(PARTITIONS)]
    weeks = sorted(name for names in found for name in names if name.startswith("week-"))
    first = int(watermark[-2:]) + 1
    assert weeks == [f"week-2026-w{week:02}" for week in range(first, first + 3) if week != 31]
    assert all(
        partition_of(name.encode(), PARTITIONS) == shard
        for shard, names in enumerate(found)
        for name in names
    )


@contextmanager
def collections() -> Iterator[list[int]]:
    """Yield the generations of the collections that run inside the context."""
    seen: list[int] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            seen.append(info["generation"])

    gc.callbacks.append(collected)
    try:
        yield seen
    finally:
        gc.callbacks.remove(collected)
        gc.enable()


class Cyclic:
    def __init__(self) -> None:
        self.me = self


class Name(str):  # noqa: SLOT000  with slots no weak reference is possible
    """A string with weak references, to observe that a ledger is freed: ledgers have none."""


async def turns_until(freed: list[str], many: int) -> list[int]:
    """Return how much was freed after each round of the event loop, until ``many`` are."""
    turns = [len(freed)]
    async with asyncio.timeout(5):
        while len(freed) < many:
            await asyncio.sleep(0)
            turns.append(len(freed))
    return turns


@pytest.mark.usefixtures("collector")
async def test_cycles_left_by_a_session_are_collected_soon_and_sessions_share_one_collection(monkeypatch):
    event_loop.collect_rarely()
    monkeypatch.setattr(event_loop, "COLLECT_DELAY", 0.05)
    monkeypatch.setattr(event_loop, "_next_collection", None)
    with collections() as seen:
        gc.disable()
        for sessions, runs in ((2, 1), (1, 2)):
            left = weakref.ref(Cyclic())
            assert left() is not None
            for _ in range(sessions):
                event_loop.collect_soon()
            await asyncio.sleep(0.2)
            assert left() is None
            assert seen.count(2) == runs


def test_records_are_read_by_the_stored_layout_until_the_specification_changes() -> None:
    """A replay gets the rows that the earlier owner got, whatever was applied in between."""
    old, new = (spec_of(FORMS["plain"] + f", record: {{value: {name}}}") for name in ("before", "after"))
    play = Play(old)
    play.play(TOPIC, [Query(0, 1)])
    workload = AppliedWorkload(new, Partitioning(1, "murmur2"))
    for _ in workload.prepare():
        pass
    replaying = engine(workload, 0)
    load(replaying, play.records, play.progress)
    message = Entry(TOPIC, 0, 0, b"a", b'{"before":7,"after":8}')
    assert workload.decoders(replaying)[TOPIC].decode([message]).whole.tolist() == [7]
    change_spec(replaying, new)
    assert workload.decoders(replaying)[TOPIC].decode([message]).whole.tolist() == [8]


@pytest.fixture
def collector() -> Iterator[None]:
    """Restore the collector's settings after the test."""
    thresholds = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(event_loop._freeze)
        gc.unfreeze()


def _loaded(datasets: int) -> Play:
    names = ", ".join(f"d{number}" for number in range(datasets))
    play = Play(spec_of(FORMS["plain"], datasets=f"{{names: [{names}], limit: 90, unit: one basket}}"))
    play.play(TOPIC, [Query(number, 1) for number in range(datasets)])
    play.crash()
    return play


@pytest.mark.usefixtures("collector")
def test_collections_walk_young_objects_only_and_none_of_a_shards_state() -> None:
    event_loop.collect_rarely()
    with collections() as generations:
        loaded = _loaded(3_000)
        kept = [[] for _ in range(40 * event_loop.COLLECT_AFTER[0])]
    assert set(generations) == {0, 1}
    assert len(kept) > 1_000_000
    assert len(loaded.engine.accounts.numbers()) == 3_000
    walked = {id(one) for one in gc.get_objects()}
    assert len(walked) < event_loop.COLLECT_AFTER[0] * (event_loop.COLLECT_AFTER[1] + 2)


def test_a_worker_keeps_the_memory_of_a_batch_for_the_next_one() -> None:
    code = """
import numpy as np
from pathlib import Path
from stream_svt.worker import event_loop

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def kept():
    before = resident()
    arrays = [np.ones(1 << 17) for _ in range(24)]
    del arrays
    return resident() - before

assert kept() < 8 << 20
event_loop.keep_freed_memory()
assert kept() > 16 << 20
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_topic_of_counts_is_read_as_its_source_writes_it_and_is_no_text() -> None:
    spec = counting(VISITORS)
    loaded = AppliedWorkload(spec, Partitioning(1, "murmur2"))
    assert (loaded.topics, loaded.text_topics) == ((COUNTS,), {COUNTS: False})
    (decoder,) = loaded.decoders(engine(loaded, 0)).values()
    good = Counts(spec.sources[0], "visitors", "a", [5])
    batch = decoder.decode([good, Entry(COUNTS, 1, good.tick, b"a", good.value, good.headers[:1])])
    assert (batch.rejects, batch.measure_at(0)) == ([(1, "not-counts")], "visitors")
