"""What the shards of an application run: the specification, and engine and decoders built from it."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.engine import Engine
from stream_svt.monitor.shard_datasets import ShardDatasets
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.service import columnar  # noqa: F401 - pyarrow is there before a shard is open: it takes long
from stream_svt.service.garbage import let_go
from stream_svt.service.wire import NAMES_AT_ONCE, Directory, QueryDecoder, homes


@dataclass(frozen=True)
class Workload:
    """A specification over a number of partitions; replaced as a whole where another version is applied.

    With many datasets, `prepare` comes before anything else: what it leaves out is done at once where it is needed.
    """

    spec: ApplicationSpec
    partitions: int
    version: tuple[int, str] = (0, "")
    _shards: dict[int, ShardDatasets] = field(default_factory=dict, init=False, repr=False, compare=False)

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

    @cached_property
    def homes(self) -> NDArray[np.int64]:
        """The shard of each dataset, in the order declared."""
        return homes([dataset.name for dataset in self.spec.datasets], self.partitions)

    def prepare(self, known_hash: str | None = None) -> Iterator[None]:
        """Look at every dataset, in slices of a few milliseconds.

        Parameters
        ----------
        known_hash
            The specification's digest; None computes it, in one piece.
        """
        found = vars(self)
        found["hash"] = self.spec.hash() if known_hash is None else known_hash
        yield from self.spec.prepare()
        names: list[str] = []
        parts = []
        for at in range(0, len(self.spec.datasets), NAMES_AT_ONCE):
            part = [dataset.name for dataset in self.spec.datasets[at : at + NAMES_AT_ONCE]]
            names += part
            parts.append(homes(part, self.partitions))
            yield
        found["homes"] = np.concatenate(parts) if parts else np.empty(0, np.int64)
        found["directories"] = yield from Directory.making(names, self.homes, self.partitions)
        for shard in range(self.partitions):
            self._shards[shard] = yield from ShardDatasets.gathering(self.spec, self._places(shard))

    def retire(self) -> None:
        """Have what is held of every dataset freed little by little, once no shard runs this workload any more."""
        directories = vars(self).get("directories", [])
        loop = asyncio.get_running_loop()
        parts = [*self._shards.values(), *directories]
        gone = weakref.finalize(self, _free, loop, parts, [*self.spec.datasets], directories)
        gone.atexit = False

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return a new engine for one shard; ``key`` derives its query noise."""
        datasets = self._shards.get(shard)
        if datasets is None:
            datasets = self._shards[shard] = ShardDatasets(self.spec, self._places(shard))
        return Engine(self.spec, shard=shard, datasets=datasets, key=key, entropy=os.urandom)

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

    def _places(self, shard: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.homes == shard)


def _free(
    loop: asyncio.AbstractEventLoop, parts: list[Any], datasets: list[Any], directories: list[Directory]
) -> None:
    """Free the parts one by one, each in a turn of the event loop, then the datasets, which they refer to."""
    for directory in directories:
        directory.index.others = []  # they name one another, and no collection looks at what is old
    if not loop.is_closed():
        loop.call_soon(_free_next, loop, parts, datasets)


def _free_next(loop: asyncio.AbstractEventLoop, parts: list[Any], datasets: list[Any]) -> None:
    del parts[-1:]
    if parts:
        loop.call_soon(_free_next, loop, parts, datasets)
    else:
        let_go(datasets)
