"""How far from the truth the outputs of AboveThreshold, Sparse and NumericSparse may be.

An output on k queries is alpha-accurate if no top has an answer below T - alpha and no bottom one above T + alpha.
`dwork_roth_alpha` gives the lecture's alpha for a failure probability beta, `alpha_accuracy` ours, for the noise in
use on the grid: with r the correction,

    a top  with q <= T - alpha - 1 needs  query noise - threshold noise - r >= alpha + 1
    a bottom with q >= T + alpha + 1 needs  query noise - threshold noise - r <= -alpha - 2

Each needs one of k query noises or of c threshold noises beyond some quantile, so the sum of those probabilities
bounds the failure; half of beta goes to either side, and the share of the threshold noise is searched for. Like the
lecture's theorems these hold for the queries tested: a run that has reported c tops tests no more.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Theorems 3.23 to 3.28.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.contract import Law
from stream_svt.mechanisms.noise import head, tail
from stream_svt.mechanisms.search import least
from stream_svt.mechanisms.sparse import NumericSparse, Sparse
from stream_svt.mechanisms.sparse_vector import SparseVector

_SHARES = 64
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaAccuracy:
    """How far from the truth an output may be, in grid steps, except with probability beta.

    Attributes:
        false_top: No top has an answer below threshold - false_top.
        missed: No bottom has an answer above threshold + missed.
        answer: No number of a top is farther than this from its answer; 0 where there are no numbers.
    """

    false_top: int
    missed: int
    answer: int = 0

    @property
    def alpha(self) -> int:
        """The largest of them, as in the lecture."""
        return max(self.false_top, self.missed, self.answer)


def alpha_accuracy(mechanism: SparseVector | Sparse, *, queries: int, beta: float) -> AlphaAccuracy:
    """Accuracy of a run of one branch on the grid, with the noise and the first correction it has.

    Args:
        mechanism: Of `above_threshold`, `sparse`, `numeric_sparse` or `sparse_vector`.
        queries: Tests in all, k.
        beta: Probability that the output is allowed to be farther off, in (0, 1).

    Raises:
        MisuseError: For several branches, no queries or a beta that is no probability.
    """
    single, thresholds = (
        (mechanism.per_top, mechanism.cutoff) if isinstance(mechanism, Sparse) else (mechanism, 1)
    )
    if len(single.branches) != 1:
        raise MisuseError("the accuracy of several branches has no closed form here")
    if queries < 1 or not 0 < beta < 1:
        raise MisuseError("accuracy needs at least one query and beta strictly between 0 and 1")
    numbers = mechanism.answer_law if isinstance(mechanism, NumericSparse) else None
    comparisons = beta / 2 if numbers else beta
    query, threshold, correction = (
        single.branch_laws[0],
        single.threshold_law,
        single.branches[0].correction(0),
    )
    false_top = _farthest(
        lambda share: _highest(query, share / queries),
        lambda share: _lowest(threshold, share / thresholds),
        comparisons / 2,
    )
    missed = _farthest(
        lambda share: _lowest(query, share / queries),
        lambda share: _highest(threshold, share / thresholds),
        comparisons / 2,
    )
    return AlphaAccuracy(
        false_top=max(0, false_top - correction),
        missed=max(0, missed + correction - 1),
        answer=_highest(numbers, beta / 4 / thresholds) if numbers else 0,
    )


def dwork_roth_alpha(
    *, epsilon: float, queries: int, beta: float, cutoff: int = 1, delta: float = 0.0, numeric: bool = False
) -> float:
    """The lecture's alpha, in units of the sensitivity, for Laplace noise at its own rates.

    * AboveThreshold (Theorem 3.24, cutoff 1) and Sparse (Theorem 3.26): 8 c (ln k + ln(2c/beta)) / epsilon; with
      delta (ln k + ln(2c/beta)) sqrt(512 c ln(1/delta)) / epsilon.
    * NumericSparse (Theorem 3.28): 9 c (ln k + ln(4c/beta)) / epsilon; with delta (ln k + ln(4c/beta))
      sqrt(c ln(2/delta)) (sqrt(512) + 1) / epsilon.

    Provided that at most c answers (for AboveThreshold: none but the last) reach threshold - alpha, since otherwise
    the run ends before the k queries do.
    """
    if numeric:
        scale = math.sqrt(cutoff * math.log(2 / delta)) * (math.sqrt(512) + 1) if delta else 9.0 * cutoff
        return scale * math.log(queries * 4 * cutoff / beta) / epsilon
    scale = math.sqrt(512 * cutoff * math.log(1 / delta)) if delta else 8.0 * cutoff
    return scale * math.log(queries * 2 * cutoff / beta) / epsilon


def _highest(law: Law, share: float) -> int:
    """Least t >= 0 with P(noise > t) <= share, a probability in floats with a margin for their error."""
    return least(lambda t: t >= 0 and tail(law.noise, law.rate, t + 1) * _ROUNDING <= share)


def _lowest(law: Law, share: float) -> int:
    """Least t >= 0 with P(noise < -t) <= share, with the same margin."""
    return least(lambda t: t >= 0 and head(law.noise, law.rate, -t - 1) * _ROUNDING <= share)


def _farthest(query: Callable[[float], int], threshold: Callable[[float], int], beta: float) -> int:
    """Least sum of the two quantiles, over the ways to divide beta between them."""
    return min(query(beta * (1 - i / _SHARES)) + threshold(beta * i / _SHARES) for i in range(1, _SHARES))
