"""The count data of the papers that are at hand, under the names that tables and figures use."""

from __future__ import annotations

from functools import cache

from benchmarks.datasets import DATASETS, Dataset

COUNTS = {"zipf": "Zipf", "retail": "Retail", "t10i4d100k": "T10I4D100K", "kosarak": "Kosarak, first part"}
"""Titles of the data sets of item counts, by name."""


@cache
def counts_of(name: str) -> Dataset:
    """Return a data set of item counts, read once."""
    return DATASETS[name]()
