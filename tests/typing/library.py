"""What a type checker makes of the library: every form of a number is accepted, and results have types of their own."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import assert_type

import numpy as np
import pandas as pd
import polars as pl

import stream_svt
from stream_svt.mechanisms import TopK, UnboundedQuantile, sparse_vector
from stream_svt.mechanisms.correction import Annealed


def library() -> None:
    """Call the functions of arrays."""
    found = stream_svt.svt(np.array([1.5, 2]), threshold=Decimal("1.5"), epsilon=0.5, sensitivity="1/3")
    assert_type(found, stream_svt.SvtResult)
    assert_type(found.charge, float)
    assert_type(found.charge_units, int)
    stream_svt.top_k(pd.Series([1, 2]), 1)
    stream_svt.quantile(pl.Series([1, 2]), 0.5)
    assert_type(found.answers[0].bound, float | None)
    assert_type(stream_svt.top_k([1, Fraction(1, 2), "3"], 2).answers[0].index, int)
    assert_type(stream_svt.quantile((1, 2), 0.9).value, float | None)
    stream_svt.svt({1, 2}, 3)  # type: ignore[arg-type]
    stream_svt.svt([1], 3, epsilon=None)  # type: ignore[arg-type]
    _ = stream_svt.nothing  # type: ignore[attr-defined]


def mechanisms() -> None:
    """Build mechanisms."""
    for epsilon in (1, 0.5, "1/3", Decimal("0.1"), Fraction(1, 7)):
        assert_type(TopK(epsilon=epsilon, k=2, monotonic=True).epsilon, Fraction)
    svt = sparse_vector(epsilon="0.5", cutoff=2, monotonic=True, correction=Annealed(step=0.5), split=2)
    assert_type(svt.epsilon, Fraction)
    assert_type(svt.epsilon_units, int)
    assert_type(UnboundedQuantile(epsilon=1, level=0.5, adjacency="swap").level, Fraction)  # type: ignore[arg-type]
    TopK(epsilon=[1], k=2, monotonic=True)  # type: ignore[arg-type]
