"""Item counts of the accuracy benchmarks: three files (`data/README.md` says where they come from) and Zipf scores.

They are counting queries of sensitivity 1, monotonic under adding or removing a record.
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
COUNTS = {"zipf": "Zipf", "retail": "Retail", "t10i4d100k": "T10I4D100K", "kosarak": "Kosarak, first part"}
"""Titles of the data sets, by name."""
_FILES = {"retail": "retail", "t10i4d100k": "t10i4d100k", "kosarak": "kosarak-prefix"}


@cache
def counts_of(name: str) -> NDArray[np.int64]:
    """Return the counts of a data set in falling order, shape (items,); Zipf's are those of Liu et al. (2024)."""
    if name == "zipf":
        return 10_000 // np.arange(1, 10_001, dtype=np.int64)
    with gzip.open(DATA / f"{_FILES[name]}-item-counts.csv.gz", "rt", encoding="ascii", newline="") as file:
        counts = [int(row["count"]) for row in csv.DictReader(file)]
    return np.sort(np.array(counts, dtype=np.int64))[::-1].copy()
