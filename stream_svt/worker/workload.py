"""The applied specification, and the engine and decoders that each shard builds from it."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from stream_svt.errors import ConfigError, Problem
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.state.shard_datasets import ShardDatasets
from stream_svt.queries.avro.records import Schemas
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import NAMES_AT_ONCE, DatasetIndex
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import MAX_DATASETS, DatasetSpec, RetiredDatasets
from stream_svt.settings.monitors import rows_asked
from stream_svt.settings.periods import is_over
from stream_svt.worker.event_loop import free_gradually

AHEAD_MS = 36 * 3_600_000
"""Milliseconds for which future periods are known: half a day longer than the time to the worker's next workload."""

LISTED = (-1, 0)
"""Key of the datasets that are listed one by one; other keys are a generator's index and the start of a period."""


class _ShardParts(NamedTuple):
    """The datasets of a shard without those that are ``gone``, and their numbers by record key."""

    gone: RetiredDatasets
    datasets: ShardDatasets
    dataset_index: DatasetIndex


@dataclass(frozen=True)
class AppliedWorkload:
    """A specification and the shards of its datasets; another version gets a new object.

    With many datasets, call `prepare` first: otherwise the first use computes everything without yielding.

    ``version`` is number and digest of the version applied. ``known_hash`` is the hash of the specification, if it
    is computed already; ``schemas`` are the worker's schemas of Avro records. Periods that begin later than
    `AHEAD_MS` from ``now_ms`` (UTC) are not known.
    """

    declared: ApplicationSpec
    partitioning: Partitioning
    version: tuple[int, str] = (0, "")
    known_hash: str = field(default="", compare=False)
    schemas: Schemas | None = field(default=None, compare=False, repr=False)
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000), compare=False)
    _by_home: dict[tuple[int, int], list[list[DatasetSpec]]] = field(
        default_factory=dict, init=False, compare=False
    )
    _parts: dict[int, _ShardParts] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def spec(self) -> ApplicationSpec:
        """The specification with the generated datasets that may get queries now."""
        return self.declared.at(self.now_ms)

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the query topics."""
        return self.declared.topics()

    @property
    def text_topics(self) -> dict[str, bool]:
        """The query topics, by name, and whether their records are text."""
        counts = self.declared.counts_topics()
        return {
            one.topic: one.topic not in counts and (one.record is None or one.record.is_text)
            for one in self.declared.monitors
        }

    @cached_property
    def hash(self) -> str:
        """Short digest of the specification."""
        return self.known_hash or self.declared.hash()

    @cached_property
    def _is_generated(self) -> bool:
        return bool(self.declared.generators) or any(
            dataset.terms.pattern for dataset in self.declared.datasets
        )

    def prepare(self) -> Iterator[None]:
        """Process every dataset in slices of a few milliseconds; the hash of the specification is one slice."""
        self.hash  # noqa: B018  cached
        yield from self._by_shard(*LISTED)
        self.spec.names_shown  # noqa: B018  cached
        yield
        if not self._is_generated:
            for shard in range(self.partitioning.partitions):
                yield from self.gather(shard, RetiredDatasets())

    def retire(self) -> None:
        """Free the datasets gradually once no shard uses this workload any more."""
        loop = asyncio.get_running_loop()
        parts = [part for shard in self._parts.values() for part in shard[1:]]
        finalizer = weakref.finalize(self, _free, loop, parts, [*self.declared.datasets])
        finalizer.atexit = False

    def gather(self, shard: int, gone: RetiredDatasets) -> Iterator[None]:
        """Collect in slices the datasets of one shard, without those gone, for the next `engine`."""
        if not self._is_generated:
            gone = RetiredDatasets()
        parts = self._parts.get(shard)
        if parts is None or parts.gone != gone:
            listed = yield from self._live_datasets(shard, gone)
            dataset_index = DatasetIndex(
                (), partition=shard, partitioning=self.partitioning, spec=self.declared
            )
            yield from dataset_index.fill_in_slices(dataset.name for dataset in listed)
            datasets = ShardDatasets(self.spec.names_shown)
            yield from datasets.fill_in_slices(listed)
            for monitor in self.spec.monitors:
                yield from datasets.cover_in_slices(monitor)
            self._parts[shard] = _ShardParts(gone, datasets, dataset_index)

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return a new engine for one shard, after `gather`; ``key`` derives its query noise."""
        datasets = self._parts[shard].datasets
        return Engine(self.spec, shard=shard, datasets=datasets, key=key, entropy=os.urandom)

    def decoders(self, engine: Engine) -> dict[str, QueryDecoder]:
        """Return a decoder of each query topic; queries may name monitors of the engine, too."""
        shard, parts = engine.shard, self._parts.get(engine.shard)
        running = [runner.spec for runner in engine.runners.values()]
        known = [*self.spec.monitors, *running]
        if parts is not None and parts.datasets is engine.datasets:
            dataset_index = parts.dataset_index
        else:
            dataset_index = DatasetIndex(
                engine.number, partition=shard, partitioning=self.partitioning, spec=self.declared
            )
        # Until the engine changes its specification, records have the layout that its monitors declare.
        layouts = {one.topic: one.record for one in (*self.spec.monitors, *running)}
        sources = {one.counts_topic(self.spec.application): one for one in self.spec.sources}
        return {
            topic: QueryDecoder(
                topic,
                dataset_index,
                [one.name for one in known if one.topic == topic],
                layouts[topic],
                self.schemas,
                sources.get(topic),
                rows_asked(one for one in known if one.topic == topic),
            )
            for topic in self.topics
        }

    def misrouted(self) -> str:
        """Return cause and remedy of misrouted records; "" unless the other partitioner explains all of them."""
        indexes = (parts.dataset_index for parts in [*self._parts.values()])
        return self.partitioning.misrouted() if any(one.follows_other_partitioner for one in indexes) else ""

    def _live_datasets(self, shard: int, gone: RetiredDatasets) -> Generator[None, None, list[DatasetSpec]]:
        """Return the datasets of a shard that can still have queries, in order."""
        listed = yield from self._by_shard(*LISTED)
        found = [
            dataset
            for dataset in listed[shard]
            if not (dataset.terms.pattern and is_over(dataset.name, gone.watermarks))
        ]
        for index, generator in enumerate(self.declared.generators):
            after = gone.watermarks.get(generator.pattern, 0)
            begins = generator.begins(after, self.now_ms + AHEAD_MS)
            count = len(generator.names) * len(begins)
            if len(found) + count > MAX_DATASETS:
                message = (
                    f"generator {generator.written!r} makes {count} datasets whose periods may still get queries: "
                    "declare a later first day with from, or find the topic that lags or whose monitor reads nothing"
                )
                raise ConfigError([Problem(0, "datasets", message)])
            for begin in begins:
                in_period = yield from self._by_shard(index, begin)
                found += [
                    dataset
                    for dataset in in_period[shard]
                    if dataset.name not in gone.retired and not is_over(dataset.name, gone.watermarks)
                ]
        return found

    def _by_shard(self, index: int, begin_ms: int) -> Generator[None, None, list[list[DatasetSpec]]]:
        """Return a generator's datasets of a period, or the listed ones, by shard; computed once for all shards."""
        key = index, begin_ms
        if key not in self._by_home:
            by_shard: list[list[DatasetSpec]] = [[] for _ in range(self.partitioning.partitions)]
            remaining = iter(self.declared.datasets)
            if key != LISTED:
                remaining = self.declared.generators[index].period(begin_ms)
            while part := list(islice(remaining, NAMES_AT_ONCE)):
                shards = self.partitioning.of_names([dataset.name for dataset in part]).tolist()
                for dataset, shard in zip(part, shards, strict=True):
                    by_shard[shard].append(dataset)
                yield
            self._by_home[key] = by_shard
        return self._by_home[key]


def _free(loop: asyncio.AbstractEventLoop, parts: list[Any], datasets: list[Any]) -> None:
    """Free the parts, one in each round of the event loop, then the datasets that they refer to."""
    if not loop.is_closed():
        loop.call_soon(free_gradually, parts, 1, datasets)
