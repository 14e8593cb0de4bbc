"""Data sets of the accuracy benchmarks: item counts, sorted, with the threshold of a cutoff.

Three files of item counts (`data/README.md` says where they come from) and the Zipf scores of Liu et al. (2024).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Counting queries of sensitivity 1, monotonic under adding or removing a record.

    Attributes
    ----------
    name
        Used in the names of figures.
    counts
        Counts in falling order, shape (items,).
    """

    name: str
    counts: NDArray[np.int64]

    def threshold(self, rank: int) -> int:
        """Return the count of that rank; 1 is the largest."""
        return int(self.counts[rank - 1])


def zipf() -> Dataset:
    """Item i of 10,000 has the count floor(10000 / i)."""
    return Dataset(name="zipf", counts=10_000 // np.arange(1, 10_001, dtype=np.int64))


def retail() -> Dataset:
    """Market baskets of a Belgian store."""
    return _read("retail", "retail")


def t10i4d100k() -> Dataset:
    """Synthetic transactions of the IBM Quest generator."""
    return _read("t10i4d100k", "t10i4d100k")


def kosarak() -> Dataset:
    """First part of the click stream of a Hungarian news portal."""
    return _read("kosarak", "kosarak-prefix")


DATASETS: dict[str, Callable[[], Dataset]] = {
    "zipf": zipf,
    "retail": retail,
    "t10i4d100k": t10i4d100k,
    "kosarak": kosarak,
}


def _read(name: str, stem: str) -> Dataset:
    with gzip.open(DATA / f"{stem}-item-counts.csv.gz", "rt", encoding="ascii", newline="") as file:
        counts = [int(row["count"]) for row in csv.DictReader(file)]
    return Dataset(name=name, counts=np.sort(np.array(counts, dtype=np.int64))[::-1].copy())
