"""Engines of one shard, and batches of queries for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import TextList
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import ReleasedEvent
from stream_svt.settings.application import load_spec

Integers = NDArray[np.int64]


def engine_of(
    text: str, key: bytes, entropy: Callable[[int], bytes], lines: Sequence[str] | None = None
) -> Engine:
    """Return an engine that owns every dataset of a configuration and begins its topics at 0.

    ``lines`` are those of the file that the configuration names.
    """
    spec = load_spec(text, read_names=None if lines is None else lambda _: lines)
    names = [dataset.name for dataset in spec.datasets]
    engine = Engine(spec, shard=0, datasets=names, key=key, entropy=entropy)
    for topic in engine.topics():
        engine.begin(topic, 0)
    return engine


def batch(topic: str, first: int, whole: Integers, dataset: Integers | int = 0, **more: Any) -> QueryBatch:  # noqa: ANN401
    """Return queries at consecutive offsets; ``more`` adds fields of the batch or replaces them."""
    count = len(whole)
    zeros = np.zeros(count, dtype=np.int64)
    usual: dict[str, Any] = {
        "offset": np.arange(first, first + count, dtype=np.int64),
        "row": zeros,
        "timestamp_ms": zeros,
        "query_id": ["q"] * count,
    } | more
    texts = {name: usual.get(name, ()) for name in ("series", "query_id")}
    texts = {
        name: TextList(given) if isinstance(given, list | tuple) else given for name, given in texts.items()
    }
    return QueryBatch(
        topic=topic, first=first, end=first + count, dataset=zeros + dataset, whole=whole, **(usual | texts)
    )


def released(engine: Engine, queries: QueryBatch) -> Iterator[ReleasedEvent]:
    """Test a batch to its end, with a commit after each step, and yield what is released."""
    done = False
    while not done:
        done = engine.step(queries).done
        yield from engine.take_commit().events
        engine.committed()
