"""How accurate runs of one branch are: what is reported and missed, with which probability, on the grid.

Margins are values less their threshold, in grid steps. All statements are of answers tested while the run is not
over, and none is a privacy guarantee. Given the threshold noise z, the noises of t tests are independent: a query is
reported with probability 1 - (1 - p)^t, p = P(query noise >= r + z - margin), and the mean over z is exact. Liu et
al. (section 4.4) add the rounds up, t p: above 1 where p > 1/t. Nor may the mean over z be taken first, for the tests
share z: 1 - (1 - E p)^t is too large.

References:
    Liu et al. 2024: accuracy theorem for exponential query noise, a correction and several rounds. Dwork & Roth, The
    Algorithmic Foundations of Differential Privacy, 2014: Theorems 3.23 to 3.28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.grid import Floats
from stream_svt.mechanisms.noise import MONITORED, Law, expectation, head, least_integer, tail, tails
from stream_svt.mechanisms.sparse import Sparse
from stream_svt.mechanisms.sparse_vector import SparseVector

_SHARES = 64
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Margins beyond which nothing goes wrong, except with probability beta, in grid steps.

    Every query of at least threshold + above is reported (by `accuracy` at the latest at its first test with the
    lowest correction), none of at most threshold - below, and no number of a top is farther than `answer` from it.
    """

    above: int
    below: int
    answer: int = 0

    @property
    def alpha(self) -> int:
        """The largest of them: the alpha of an (alpha, beta)-accurate mechanism."""
        return max(self.above, self.below, self.answer)


def report_probability(
    margin: int, *, corrections: Sequence[int], query: Law, threshold: Law | None = None
) -> float:
    """Probability that a query is reported by one of its attempts, each at its correction in grid steps.

    The attempts share the threshold noise; where that is known, its law is None and the margin is less it as well.
    """
    require(bool(corrections), "a query is tested at least once: give one correction for each attempt")

    def reported(z: Floats) -> Floats:
        missed = np.ones_like(z)
        for correction in corrections:
            missed *= 1 - tails(query.noise, query.rate, correction - margin + z)
        return 1 - missed

    return expectation(reported, threshold, scale=float(1 / query.rate))


def accuracy(
    *, queries: int, corrections: Sequence[int], query: Law, threshold: Law, beta: Fraction | float
) -> Accuracy:
    """Accuracy theorem: with probability 1 - beta nothing goes wrong beyond these margins.

    For exponential query noise of rate l, at least 0, a query with margin m >= min(r) + z is reported for certain
    when it is tested at min(r). A query with margin -m is reported by some attempt with probability at most

        sum over j of P(query noise >= r_j + z + m) <= e^(-l (m + z)) sum over j of e^(-l r_j)

    as far as every r_j + z + m >= 0; all `queries` of them, with `queries` times that. Half of beta goes to each
    side; the threshold noise stays below its (1 - beta/2) quantile A and above -B (B = 0 for exponential noise,
    else half of that half pays for it):

        above = min(r) + A
        below = B + ln(queries * sum over j of e^(-l r_j) / beta') / l,   beta' = beta/2, or beta/4 if B > 0

    rounded outwards, and below at least B - min(r). For Laplace query noise a miss costs probability too: above grows
    by the noise's (1 - beta/(4 queries)) quantile, A takes the other quarter of beta, higher corrections do not
    count.

    The corrections are in grid steps, one for each attempt, in any order; Gumbel noise is refused.
    """
    require(queries >= 1 and len(corrections) >= 1, "accuracy is about at least one query and one attempt")
    require(
        {query.noise, threshold.noise} <= set(MONITORED),
        "the accuracy theorem is for exponential and Laplace noise, not for gumbel",
    )
    beta, lowest = _share(beta), min(corrections)
    certain = query.noise.is_one_sided
    high = _quantile(threshold, beta / 2 if certain else beta / 4, 1) + 1
    above = lowest + high + (0 if certain else _quantile(query, beta / 4 / queries, 1))
    one_sided = threshold.noise.is_one_sided
    low, chance = (0, beta / 2) if one_sided else (_quantile(threshold, beta / 4, 1) + 1, beta / 4)
    rate = float(query.rate)
    # Both families' tails are at most e^(-rate k) for k >= 0. The largest term stays outside the sum of powers.
    exposure = math.fsum(math.exp(-rate * (correction - lowest)) for correction in corrections)
    reach = (math.log(queries * exposure) - math.log(chance)) / rate - lowest
    return Accuracy(above=above, below=low + max(math.ceil(reach), -lowest))


def alpha_accuracy(mechanism: SparseVector | Sparse, *, queries: int, beta: float) -> Accuracy:
    """Accuracy of a run of one branch on the grid, with the noise and the first correction r it has.

    A top with margin at most -below needs query noise - threshold noise >= r + below, a bottom with margin at least
    above needs less than r - above. Each needs one of k query noises or of c threshold noises beyond some quantile,
    so that the sum of those probabilities bounds the failure; half of beta goes to either side, and the share of the
    threshold noise is searched for. It is never worse than the lecture's alpha for Laplace noise, 8 c (ln k +
    ln(2c/beta)) / epsilon, with numbers 9 c (ln k + ln(4c/beta)) / epsilon. Several branches have no closed form and
    are refused.
    """
    thresholds, numbers = 1, None
    if isinstance(mechanism, Sparse):
        thresholds, numbers = mechanism.cutoff, mechanism.answer_law if mechanism.answer_charge else None
        mechanism = mechanism.per_top
    require(len(mechanism.branches) == 1, "the accuracy of several branches has no closed form here")
    require(queries >= 1, "accuracy is about at least one query")
    side = _share(beta) / (4 if numbers else 2)
    (query,), threshold, correction = (
        mechanism.branch_laws,
        mechanism.threshold_law,
        mechanism.branches[0].correction(0),
    )

    def farthest(of_query: int, of_threshold: int) -> int:
        """Least sum of the two quantiles, over the ways to divide the side's beta between them."""
        return min(
            _quantile(query, side * (1 - i / _SHARES) / queries, of_query)
            + _quantile(threshold, side * i / _SHARES / thresholds, of_threshold)
            for i in range(1, _SHARES)
        )

    return Accuracy(
        above=max(1, farthest(-1, 1) + correction),
        below=max(1, farthest(1, -1) - correction + 1),
        answer=_quantile(numbers, beta / 4 / thresholds, 1) if numbers else 0,
    )


def _quantile(law: Law, share: float, sign: int) -> int:
    """Least t >= 0 with P(sign * noise > t) <= share, a probability in floats with a margin for their error."""

    def beyond(t: int) -> float:
        return tail(law.noise, law.rate, t + 1) if sign > 0 else head(law.noise, law.rate, -t - 1)

    return least_integer(lambda t: t >= 0 and beyond(t) * _ROUNDING <= share)


def _share(beta: Fraction | float) -> float:
    require(0 < beta < 1, "beta, the probability of going wrong, lies strictly between 0 and 1")
    return float(beta)
