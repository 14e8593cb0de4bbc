"""Two monitors on one query share no noise; what it would cost if they did."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms import KeyedSampler, Noise

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


def draw(*, salt=(11, 22), attempt=0, branch=0, row=0, noise=Noise.EXPONENTIAL):
    return KeyedSampler(KEY).draw(
        noise,
        Fraction(1, 1000),
        salt=salt,
        offset=np.arange(COUNT),
        row=row,
        attempt=attempt,
        branch=branch,
        value=np.zeros(COUNT, dtype=np.int64),
    )


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


def shared_uniform_loss(rates, thresholds, gaps, first, second):
    """Log-ratio of two tops with gaps whose query noises are floor(E / rate) of the same exponential E."""

    def probability(answer):
        total = 0.0
        for rho_a in range(400):
            low_a, high_a = (rates[0] * (gaps[0] + rho_a - answer + step) for step in (0, 1))
            if low_a < 0:
                continue
            for rho_b in range(60):
                low_b, high_b = (rates[1] * (gaps[1] + rho_b - answer + step) for step in (0, 1))
                low, high = max(low_a, low_b), min(high_a, high_b)
                if low_b >= 0 and low < high:
                    weight = math.exp(-thresholds[0] * rho_a - thresholds[1] * rho_b)
                    total += weight * (math.exp(-low) - math.exp(-high))
        return total

    return math.log(probability(first) / probability(second))


def test_two_monitors_that_shared_bits_would_lose_five_where_one_and_a_tenth_is_charged(report):
    """One query, 0 and -1; rates (threshold 0.5, query 0.05) and (0.05, 0.5): hence a salt per run."""
    loss = shared_uniform_loss((0.05, 0.5), (0.5, 0.05), gaps=(1, 1), first=0, second=-1)
    report.catch("two runs that share bits", [f"exact loss {loss / 1.1:.2f} of the charge"])
    assert loss == pytest.approx(5)
    assert pytest.approx(1.1) == 0.5 + 0.05 + 0.05 + 0.5
