"""What the shards of an application run: the specification, and engine and decoders built from it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from stream_svt.monitor.engine import Engine
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.service import columnar  # noqa: F401 - pyarrow is there before a shard is open: it takes long
from stream_svt.service.wire import Directory, QueryDecoder


@dataclass(frozen=True)
class Workload:
    """A specification over a number of partitions; replaced as a whole by a reload."""

    spec: ApplicationSpec
    partitions: int

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the query topics."""
        return self.spec.topics()

    @cached_property
    def hash(self) -> str:
        """Short digest of the specification: two live workers of one application agree on it."""
        return self.spec.hash()

    @cached_property
    def directories(self) -> list[Directory]:
        """Datasets homed at each shard."""
        return Directory.of_all([dataset.name for dataset in self.spec.datasets], self.partitions)

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return a new engine for one shard; ``key`` derives its query noise."""
        return Engine(
            self.spec, shard=shard, datasets=self.directories[shard].datasets, key=key, entropy=os.urandom
        )

    def decoders(self, shard: int, also: Iterable[tuple[str, str]] = ()) -> dict[str, QueryDecoder]:
        """Return a decoder for each query topic; ``also`` are topic and name of monitors that queries may name, too."""
        known = [*((monitor.topic, monitor.name) for monitor in self.spec.monitors), *also]
        return {
            topic: QueryDecoder(
                topic,
                shard,
                self.directories[shard],
                [name for read, name in known if read == topic],
            )
            for topic in self.topics
        }
