"""The true counts: only the demo knows them, and only to judge the alerts.

Whatever is shown of them is marked as truth.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_svt.demo.clock import Clock
from stream_svt.demo.data import Baskets
from stream_svt.demo.queries import SERIES, running_counts


@dataclass(frozen=True, slots=True)
class Truth:
    """True counts of every checkpoint.

    Attributes:
        threshold: From this count on an item is hot.
    """

    threshold: int
    _place: dict[str, int] = field(repr=False)
    _counts: NDArray[np.int32] = field(repr=False)
    _hot: list[frozenset[tuple[str, str]]] = field(repr=False)

    @classmethod
    def of(cls, baskets: Baskets, clock: Clock, threshold: int) -> Truth:
        """Count everything once."""
        place: dict[str, int] = {}
        rows: list[NDArray[np.int32]] = []
        hot: list[frozenset[tuple[str, str]]] = []
        for point, counts in running_counts(baskets, clock):
            place[point.set_id] = len(rows)
            rows.append(counts.astype(np.int32))
            columns = np.flatnonzero(counts >= threshold).tolist()
            hot.append(frozenset((point.dataset, SERIES % (column + 1)) for column in columns))
        return cls(threshold, place, np.array(rows), hot)

    def is_hot(self, query_id: str) -> bool:
        """Tell whether the true count behind a query, named ``set/item``, had reached the threshold."""
        set_id, item = query_id.split("/")
        return bool(self._counts[self._place[set_id], int(item) - 1] >= self.threshold)

    def hot_series(self, asked: Collection[str]) -> set[tuple[str, str]]:
        """Return (dataset, series) of every item that reached the threshold in the sets that were asked."""
        return set().union(*(self._hot[self._place[set_id]] for set_id in asked))
