"""One version of a monitor's specification, ready to test: its mechanism, its grid and its identity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from stream_svt.mechanisms.grid import PARTS, VALUE_LIMIT
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.batch import Integers, QueryBatch

if TYPE_CHECKING:
    from stream_svt.settings.monitors import MonitorSpec


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of a monitor: ``granularity`` real units (a multiple of 10^-18) a step, clamped to [low, high] steps."""

    granularity: Fraction
    low: int
    high: int

    def values(self, batch: QueryBatch, first: int, last: int) -> Integers:
        """Return the grid values of rows [first, last): floor(value / granularity) after clamping.

        What is not a number becomes the lower bound, like any low value. All rows take the same steps.
        """
        numerator, denominator = self.granularity.numerator, self.granularity.denominator
        steps = batch.whole[first:last]
        if numerator != 1 or denominator != 1:
            least = math.floor(self.low * self.granularity) - 1
            most = math.ceil((self.high + 1) * self.granularity)
            steps = np.clip(steps, least, most)
            if denominator != 1:
                steps *= denominator
                if batch.fraction is not None:
                    steps += batch.fraction[first:last] // (PARTS // denominator)
            if numerator != 1:
                steps //= numerator
        return np.clip(steps, self.low, self.high)

    def threshold(self, number: Fraction) -> int:
        """Return a threshold in steps: the least step not below it."""
        steps = math.ceil(number / self.granularity)
        return min(max(steps, 1 - VALUE_LIMIT), VALUE_LIMIT - 1)

    def real(self, steps: int) -> float:
        """Return steps as real units, for reports."""
        return float(steps * self.granularity)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is opened under; it keeps this until it ends, whatever the specification becomes."""

    spec: MonitorSpec
    hash: str
    mechanism: SparseVector
    grid: Grid

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, spec: MonitorSpec) -> Plan:
        """Return the plan of a specification; every takeover of every shard asks for the same few."""
        low, high = spec.grid_bounds
        return cls(spec, spec.hash(), spec.mechanism(), Grid(spec.granularity, low, high))
