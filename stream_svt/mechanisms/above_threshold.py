"""AboveThreshold: the first answer that reaches a noisy threshold.

Guarantee:
    It is a sparse-vector run with one top: threshold_charge + charge, gap included, with any family of noise for
    either (Durfee 2023 needs equal rates for Gumbel noise; the one-sided Lipschitz condition does not). Under
    zCDP it costs (e0 + 2 e1)^2 / 8 for monotonic answers, since its log-ratio lies in an interval of that
    width: [-(e0 + e1), e1], and (e0 + e1)^2 / 2 for others.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithm 1. Durfee, Unbounded
    Differentially Private Quantile and Maximum Estimation, 2023: Laplace, Gumbel and exponential noise, and zCDP.
"""

from __future__ import annotations

from fractions import Fraction

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.constructors import sparse_vector
from stream_svt.mechanisms.correction import Correction, Uncorrected
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.run import UNITS_PER_EPSILON
from stream_svt.mechanisms.sparse_vector import SparseVector


def above_threshold(
    *,
    epsilon: int,
    monotonic: bool,
    sensitivity: int = 1,
    query_noise: Noise = Noise.EXPONENTIAL,
    threshold_noise: Noise = Noise.EXPONENTIAL,
    split: Fraction = Fraction(1),
    correction: Correction | None = None,
) -> SparseVector:
    """AboveThreshold (Dwork & Roth 2014, Algorithm 1): report the first answer that reaches a noisy threshold.

    With Laplace noise and answers that are not monotonic it is the lecture's, which halves epsilon (split 1).
    Charge: epsilon, of which the threshold's part is spent even if nothing is reported.

    Args:
        epsilon: Units of 10^-9.
        split: Epsilon of the query / epsilon of the threshold.
        correction: None for none, as in the lecture.

    See `stream_svt.mechanisms.sparse_vector.sparse_vector` for the others.
    """
    return sparse_vector(
        epsilon=epsilon,
        cutoff=1,
        monotonic=monotonic,
        correction=correction or Uncorrected(),
        sensitivity=sensitivity,
        query_noise=query_noise,
        threshold_noise=threshold_noise,
        split=split,
    )


def above_threshold_rho(mechanism: SparseVector) -> float:
    """Zero-concentrated loss of an AboveThreshold, top and gap included (Durfee 2023, Theorem 1).

    (e0 + 2 e1)^2 / 8 for monotonic answers: the log-ratio lies in an interval of width e0 + 2 e1, and a range of w
    costs w^2 / 8 (Cesar & Rogers 2021). (e0 + e1)^2 / 2 for others (Bun & Steinke 2016).

    Raises:
        MisuseError: For a mechanism of more than one top.
    """
    if mechanism.cutoff != 1 or len(mechanism.branches) != 1:
        raise MisuseError("this is the loss of one top; price longer runs with stream_svt.privacy.loss")
    e0, e1 = mechanism.threshold_charge / UNITS_PER_EPSILON, mechanism.smallest_charge / UNITS_PER_EPSILON
    return (e0 + 2 * e1) ** 2 / 8 if mechanism.monotonic else (e0 + e1) ** 2 / 2
