"""How accurate a sparse vector is: what it reports and misses, with which probability, on the grid.

After Liu et al. (2024), whose accuracy theorem is for exponential query noise, a correction and several rounds. Three
statements, for one branch; margins are values less their threshold, in grid steps. All hold for answers tested while
the run is not over, and none of them is a privacy guarantee.

* `report_probability` is exact. Given the threshold noise z, the noises of t tests are independent, so a query of
  margin m is reported with probability 1 - (1 - p)^t, p = P(query noise >= r + z - m); the mean over z follows.
  The paper (section 4.4) adds the rounds up, t p: an upper bound, and above 1 where p > 1/t. Nor may the mean over z
  be taken first: the tests share z, and 1 - (1 - E p)^t is too large.
* `accuracy` bounds how far from the threshold anything goes wrong among many queries, with probability 1 - beta.
* `attempts_for` turns the first around: the rounds needed for a wanted probability, given z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.difference import expectation, tails
from stream_svt.mechanisms.noise import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Margins beyond which nothing goes wrong, except with probability beta.

    Attributes:
        above: Grid steps. Every query whose value is at least threshold + above is reported at its first test
            with the lowest correction, at the latest.
        below: Grid steps. No query whose value is at most threshold - below is reported.
    """

    above: int
    below: int

    @property
    def alpha(self) -> int:
        """The larger of both: the alpha of an (alpha, beta)-accurate mechanism."""
        return max(self.above, self.below)


def report_probability(
    margin: int, *, corrections: Sequence[int], query: Law, threshold: Law | None = None
) -> float:
    """Probability that a query is reported by one of its attempts.

    Args:
        margin: Value less threshold, in grid steps. If the threshold noise is known, less that as well.
        corrections: Grid steps, one for each attempt.
        query: Law of the query noise.
        threshold: Law of the threshold noise, shared by the attempts; None where it is known.

    Raises:
        MisuseError: Without an attempt.
    """
    if not corrections:
        raise MisuseError("a query is tested at least once: give one correction for each attempt")

    def reported(z: NDArray[np.float64]) -> NDArray[np.float64]:
        missed = np.ones_like(z)
        for correction in corrections:
            missed *= 1 - tails(query.noise, query.rate, correction - margin + z)
        return 1 - missed

    if threshold is None:
        return float(reported(np.zeros(1))[0])
    return expectation(reported, threshold, scale=float(1 / query.rate))


def attempts_for(margin: int, *, correction: int, query: Law, probability: float) -> int:
    """Least number of tests at one correction that report a query with at least that probability.

    Args:
        margin: Value less noisy threshold, in grid steps.
        correction: Of every test, in grid steps.
        query: Law of the query noise.
        probability: Between 0 and 1, both excluded: ln(1 - probability) / ln(1 - p) tests, rounded up.

    Raises:
        MisuseError: When the probability is not between 0 and 1, or no number of tests that can be counted is
            enough.
    """
    if not 0 < probability < 1:
        raise MisuseError("the probability of a report lies strictly between 0 and 1")
    once = report_probability(margin, corrections=(correction,), query=query)
    if once >= probability:
        return 1
    if once < 1e-15:
        raise MisuseError("the query is too far below the bar to be reported: lower the correction")
    return math.ceil(math.log1p(-probability) / math.log1p(-once))


def accuracy(
    *, queries: int, corrections: Sequence[int], query: Law, threshold: Law, beta: Fraction | float
) -> Accuracy:
    """Accuracy theorem: with probability 1 - beta nothing goes wrong beyond these margins.

    For exponential query noise of rate l, at least 0, a query with margin m >= min(r) + z is reported for certain
    when it is tested at min(r). A query with margin -m is reported by some attempt with probability at most

        sum over j of P(query noise >= r_j + z + m) <= e^(-l (m + z)) sum over j of e^(-l r_j)

    as far as every r_j + z + m >= 0; all `queries` of them, with `queries` times that. Give half of beta to each
    side; the threshold noise stays below its (1 - beta/2) quantile A and, on the other side, above -B (B = 0 for
    exponential noise, else half of that half pays for it):

        above = min(r) + A
        below = B + ln(queries * sum over j of e^(-l r_j) / beta') / l,   beta' = beta/2, or beta/4 if B > 0

    rounded to whole steps outwards, and below at least B - min(r). With t equal corrections r the sum is t e^(-l r):
    above grows with r and below falls with it, by as much; every doubling of the tests costs ln 2 scales of below.
    For Laplace query noise nothing is certain above the bar, so a miss costs probability too: above grows by the
    noise's (1 - beta/(4 queries)) quantile and A takes the other quarter of beta; tests at higher corrections count for
    nothing there.

    Args:
        queries: Number of queries tested.
        corrections: Grid steps, one for each attempt, in any order.
        query, threshold: Laws of the noises; exponential or Laplace.
        beta: Probability of anything going wrong, between 0 and 1, both excluded.

    Raises:
        MisuseError: For Gumbel noise, without queries or attempts, or when beta is not between 0 and 1.
    """
    if queries < 1 or not corrections:
        raise MisuseError("accuracy is about at least one query and one attempt")
    if not 0 < beta < 1:
        raise MisuseError("beta, the probability of going wrong, lies strictly between 0 and 1")
    if Noise.GUMBEL in {query.noise, threshold.noise}:
        raise MisuseError("the accuracy theorem is for exponential and Laplace noise, not for gumbel")
    beta = float(beta)
    lowest = min(corrections)
    certain = query.noise is Noise.EXPONENTIAL
    high = _exceeded(threshold, beta / 2 if certain else beta / 4)
    above = lowest + high + (0 if certain else _exceeded(query, beta / 4 / queries) - 1)
    low, chance = (
        (0, beta / 2) if threshold.noise is Noise.EXPONENTIAL else (_exceeded(threshold, beta / 4), beta / 4)
    )
    rate = float(query.rate)
    # Both families' tails are at most e^(-rate k) for k >= 0. The largest term stays outside the sum of powers.
    exposure = math.fsum(math.exp(-rate * (correction - lowest)) for correction in corrections)
    reach = (math.log(queries * exposure) - math.log(chance)) / rate - lowest
    return Accuracy(above=above, below=low + max(math.ceil(reach), -lowest))


def _exceeded(law: Law, probability: float) -> int:
    """Grid steps that a noise reaches or exceeds with at most that probability (less than 1/2), at least 0."""
    powers = -math.log(probability)
    if law.noise is Noise.LAPLACE:
        powers -= math.log1p(math.exp(-float(law.rate)))
    return max(0, math.ceil(powers / float(law.rate)))
