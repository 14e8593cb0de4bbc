"""Two monitors on one query share no noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms import Identity, KeyedSampler, Law, Noise

KEY = bytes(range(32))
COUNT = 60_000


def joint_counts(first, second, cells=8):
    """Contingency table of two noises, each cut into cells of equal probability."""
    cut = [np.quantile(x, np.linspace(0, 1, cells + 1)[1:-1]) for x in (first, second)]
    rows, columns = (np.searchsorted(c, x) for c, x in zip(cut, (first, second), strict=True))
    return np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)


def dependence(table):
    """Chi-square statistic of independence, in standard deviations from its mean."""
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float((((table - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def draw(noise=Noise.EXPONENTIAL, **other):
    value = np.zeros(COUNT, dtype=np.int64)
    usual = Identity((11, 22), offset=np.arange(COUNT), row=0, attempt=0, branch=0, value=value)
    return KeyedSampler(KEY).draw(Law(noise, Fraction(1, 1000)), usual._replace(**other))


@pytest.mark.parametrize(
    "other",
    [{"salt": (11, 23)}, {"salt": (10, 22)}, {"attempt": 1}, {"branch": 1}, {"row": 1}],
    ids=str,
)
@pytest.mark.parametrize("noise", Noise)
def test_runs_attempts_branches_and_rows_meet_independent_noise(other, noise):
    assert dependence(joint_counts(draw(noise=noise), draw(noise=noise, **other))) < 5


def test_the_independence_test_would_notice_shared_bits():
    assert dependence(joint_counts(draw(), draw())) > 1000
