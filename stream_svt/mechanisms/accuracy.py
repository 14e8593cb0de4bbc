"""Accuracy of runs with one branch on the grid: the probability that an answer is reported or missed.

A margin is a value minus its threshold, in grid steps. All statements concern answers tested before the run is over;
none is a privacy guarantee. Given the threshold noise z, a query is reported by one of t tests with probability
1 - (1 - p)^t, p = P(query noise >= r + z - margin), and `report_probability` averages this over z. Liu et al. (section
4.4) use the sum t p, which exceeds 1 if p > 1/t. Averaging p over z first is too large, because the tests share z.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream_svt.mechanisms import estimates
from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.grid import Floats
from stream_svt.mechanisms.noise import Law, expectation, least_integer, require_laws, tails
from stream_svt.mechanisms.numbers import integer_of, listed
from stream_svt.mechanisms.sparse_vector import SparseVector


def report_probability(margin: int, *, corrections: Sequence[int], query: Law, threshold: Law) -> float:
    """Return the probability that a query is reported by one of its attempts, which share the threshold noise.

    `corrections` has one entry in grid steps for each attempt.
    """
    require(
        len(listed(corrections, "corrections")) > 0,
        "corrections must not be empty: give one for each attempt",
    )
    integer_of(margin, "margin", least=None)
    require_laws(query=query, threshold=threshold)

    def reported(z: Floats) -> Floats:
        missed = np.ones_like(z)
        for correction in corrections:
            missed *= 1 - tails(query.noise, query.rate, correction - margin + z)
        return 1 - missed

    return expectation(reported, threshold, scale=float(1 / query.rate))


def reported_margin(mechanism: SparseVector, chance: float, attempt: int = 0) -> int:
    """Return the least margin, in grid steps, at which one test reports with at least this probability.

    For the branch with the lowest bar. `MisuseError` for Gumbel noise.
    """

    def margin(correction: int, query: Law) -> int:
        law = mechanism.threshold_law
        return correction + least_integer(lambda steps: estimates.survival(query, law, -steps) >= chance)

    bars = (branch.correction(attempt) for branch in mechanism.branches)
    return min(map(margin, bars, mechanism.branch_laws))


def silence_probability(mechanism: SparseVector, margin: int, *, windows: int) -> float:
    """Return the probability that a query with this margin is reported in none of several windows of one run.

    Each window tests it once; all share the threshold noise. For a constant value, while the run can pay for each
    branch.
    """
    branches = [*zip(mechanism.branches, mechanism.branch_laws, strict=True)]

    def missed(z: Floats) -> Floats:
        found = np.ones_like(z)
        for branch, query in branches:
            found *= 1 - tails(query.noise, query.rate, branch.correction(0) - margin + z)
        return found**windows

    scale = min(float(1 / query.rate) for _, query in branches)
    return expectation(missed, mechanism.threshold_law, scale=scale)
