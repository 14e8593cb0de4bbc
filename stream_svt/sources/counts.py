"""Records of counts: the queries of a window at a tick, as a worker reads them (see `queries/counts.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stream_svt.columns.query_batch import Integers
from stream_svt.settings.sources import SourceSpec, WindowList


@dataclass(frozen=True, slots=True)
class CountsRecord:
    """A record of a topic of counts.

    Attributes:
        dataset: Its key.
        headers: Names and values.
        content: Its value, an Arrow stream.
        timestamp_ms: The end of the tick, which is its timestamp.
    """

    dataset: str
    headers: tuple[tuple[str, bytes], ...]
    content: bytes
    timestamp_ms: int


def records_of(
    source: SourceSpec, listed: WindowList, window: int, tick: int, values: Integers
) -> Iterator[CountsRecord]:
    """Yield the records of a window at a tick, zeros included, in declared order.

    Args:
        source: The source.
        listed: The window's list.
        window: Its begin, in ms.
        tick: The tick's end, in ms.
        values: The count of each cell.
    """
    raise NotImplementedError
