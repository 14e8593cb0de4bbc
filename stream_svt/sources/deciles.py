"""The deciles of closed counts, or of answers to a question about them: the values at nine fixed ranks of all values.

A value of a fixed rank moves by no more than all values do: if one unit moves each by -a to b, so it moves the decile.
So no value may be left out for what it is, and none is interpolated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stream_svt.columns.query_batch import DECILES, Integers

_MERGED = 1 << 20
"""Values that wait until they are counted."""


class ValueCounts:
    """Values, counted by value: as many as windows times series, of which few are different."""

    def __init__(self) -> None:
        self._steps = self._times = np.zeros(0, np.int64)
        self._waiting: list[Integers] = []
        self._wait = self.number = 0

    def add(self, steps: Integers) -> None:
        """Add values."""
        self._waiting.append(steps)
        self._wait, self.number = self._wait + len(steps), self.number + len(steps)
        if self._wait >= _MERGED:
            self._merge()

    def deciles(self) -> Iterator[int]:
        """Yield the values of ranks n/10, 2n/10, .., 9n/10 of n values, rounded up, from the smallest, rank 1."""
        self._merge()
        last = np.cumsum(self._times)
        for tenth in range(1, DECILES + 1):
            yield int(self._steps[np.searchsorted(last, -(-tenth * self.number // 10))])

    def _merge(self) -> None:
        steps = np.concatenate([self._steps, *self._waiting])
        times = np.ones(len(steps), np.int64)
        times[: len(self._times)] = self._times
        self._steps, places = np.unique(steps, return_inverse=True)
        self._times = np.zeros(len(self._steps), np.int64)
        np.add.at(self._times, places, times)
        self._waiting, self._wait = [], 0
