"""Accuracy of runs with one branch on the grid: the probability that an answer is reported or missed.

A margin is a value minus its threshold, in grid steps. All statements concern answers tested before the run is over;
none is a privacy guarantee. Given the threshold noise z, a query is reported by one of t tests with probability
1 - (1 - p)^t, p = P(query noise >= r + z - margin), and `report_probability` averages this over z. Liu et al. (section
4.4) use the sum t p, which exceeds 1 if p > 1/t. Averaging p over z first is too large, because the tests share z.

References:
    Liu et al. 2024: accuracy theorem for exponential query noise, a correction and several rounds. Dwork & Roth 2014:
    Theorems 3.23 to 3.28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_svt.mechanisms import estimates
from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.baselines.sparse import Sparse
from stream_svt.mechanisms.grid import Floats
from stream_svt.mechanisms.noise import (
    MONITORED,
    Law,
    expectation,
    head,
    least_integer,
    require_laws,
    tail,
    tails,
)
from stream_svt.mechanisms.numbers import Number, integer_of, listed, number_of, shown
from stream_svt.mechanisms.sparse_vector import SparseVector

_SHARES = 64
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Margins, in grid steps, beyond which no decision is wrong, except with probability beta.

    Every query of at least threshold + above is reported, in `accuracy` by its first test with the lowest correction.
    No query of at most threshold - below is reported, and no released answer is off by more than `answer`.
    """

    above: int
    below: int
    answer: int = 0

    @property
    def alpha(self) -> int:
        """The largest margin: the alpha of an (alpha, beta)-accurate mechanism."""
        return max(self.above, self.below, self.answer)


def report_probability(
    margin: int, *, corrections: Sequence[int], query: Law, threshold: Law | None = None
) -> float:
    """Return the probability that a query is reported by one of its attempts, which share the threshold noise.

    `corrections` has one entry in grid steps for each attempt. If the threshold noise is known, pass None as its law
    and subtract the noise from the margin.
    """
    require(
        len(listed(corrections, "corrections")) > 0,
        "corrections must not be empty: give one for each attempt",
    )
    integer_of(margin, "margin", least=None)
    require_laws(query=query, **({} if threshold is None else {"threshold": threshold}))

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


def accuracy(
    *, queries: int, corrections: Sequence[int], query: Law, threshold: Law, beta: Number
) -> Accuracy:
    """Return margins beyond which, with probability 1 - beta, no decision is wrong (Liu et al. 2024).

    Exponential query noise of rate l is at least 0, so a query with margin m >= min(r) + z is always reported when it
    is tested at min(r). A query with margin -m is reported by some attempt with probability at most

        sum over j of P(query noise >= r_j + z + m) <= e^(-l (m + z)) sum over j of e^(-l r_j)

    if every r_j + z + m >= 0, and some of `queries` such queries with at most `queries` times that probability. Each
    side gets half of beta. The threshold noise stays below its (1 - beta/2) quantile A and above -B, where B = 0 for
    exponential noise and costs half of the second half for Laplace noise:

        above = min(r) + A
        below = B + ln(queries * sum over j of e^(-l r_j) / beta') / l,   beta' = beta/2, or beta/4 if B > 0

    rounded outwards, with below at least B - min(r). Laplace query noise may be negative: `above` grows by its
    (1 - beta/(4 queries)) quantile, A uses the other quarter of beta, and higher corrections do not count.

    `corrections` has one entry in grid steps for each attempt, in any order. `MisuseError` for Gumbel noise, no query
    or attempt, or beta outside (0, 1).
    """
    integer_of(queries, "queries", least=1)
    require(
        len(listed(corrections, "corrections")) > 0,
        "corrections must not be empty: give one for each attempt",
    )
    require_laws(query=query, threshold=threshold)
    proved = {query.noise, threshold.noise} <= set(MONITORED)
    require(proved, "the accuracy theorem holds for exponential and Laplace noise, not for gumbel")
    beta, lowest, rate = _checked_beta(beta), min(corrections), float(query.rate)
    if query.noise.is_one_sided:
        above = lowest + _quantile(threshold, beta / 2, 1) + 1
    else:
        above = lowest + _quantile(threshold, beta / 4, 1) + 1 + _quantile(query, beta / 4 / queries, 1)
    one_sided = threshold.noise.is_one_sided
    low, chance = (0, beta / 2) if one_sided else (_quantile(threshold, beta / 4, 1) + 1, beta / 4)
    # The tails of both families are at most e^(-rate k) for k >= 0. The largest power is factored out of the sum.
    exposure = math.fsum(math.exp(-rate * (correction - lowest)) for correction in corrections)
    reach = (math.log(queries * exposure) - math.log(chance)) / rate - lowest
    return Accuracy(above=above, below=low + max(math.ceil(reach), -lowest))


def alpha_accuracy(mechanism: SparseVector | Sparse, *, queries: int, beta: Number) -> Accuracy:
    """Return margins for k `queries` of one run of a mechanism with one branch, whose first correction is r.

    A top with margin at most -below needs query noise - threshold noise >= r + below, a bottom with margin at least
    above needs less than r - above: one of k query noises or of c threshold noises beyond a quantile. Each side gets
    half of beta; a search divides it between the two noises. The result is never worse than alpha of Dwork & Roth 2014
    for Laplace noise, 8 c (ln k + ln(2c/beta)) / epsilon, or 9 c (ln k + ln(4c/beta)) / epsilon with released answers.

    `MisuseError` for several branches, which have no closed form, no query, or beta outside (0, 1).
    """
    of_kind = isinstance(mechanism, SparseVector | Sparse)
    require(of_kind, f"mechanism must be a SparseVector or a Sparse; found {shown(mechanism)}")
    thresholds, numbers = 1, None
    if isinstance(mechanism, Sparse):
        thresholds, numbers = mechanism.cutoff, mechanism.answer_law if mechanism.answer_units else None
        mechanism = mechanism.per_top
    single = len(mechanism.branches) == 1
    require(single, "the accuracy of a mechanism with several branches has no closed form")
    integer_of(queries, "queries", least=1)
    chance, threshold = _checked_beta(beta), mechanism.threshold_law
    side = chance / (4 if numbers else 2)
    (query,), correction = mechanism.branch_laws, mechanism.branches[0].correction(0)

    def least_sum(of_query: int, of_threshold: int) -> int:
        return min(
            _quantile(query, side * (1 - i / _SHARES) / queries, of_query)
            + _quantile(threshold, side * i / _SHARES / thresholds, of_threshold)
            for i in range(1, _SHARES)
        )

    return Accuracy(
        above=max(1, least_sum(-1, 1) + correction),
        below=max(1, least_sum(1, -1) - correction + 1),
        answer=_quantile(numbers, chance / 4 / thresholds, 1) if numbers else 0,
    )


def _quantile(law: Law, share: float, sign: int) -> int:
    """Return the least t >= 0 with P(sign * noise > t) <= share, allowing for the rounding error of floats."""

    def beyond(t: int) -> float:
        return tail(law.noise, law.rate, t + 1) if sign > 0 else head(law.noise, law.rate, -t - 1)

    return least_integer(lambda t: t >= 0 and beyond(t) * _ROUNDING <= share)


def _checked_beta(beta: Number) -> float:
    return float(number_of(beta, "beta", above=0, below=1))
