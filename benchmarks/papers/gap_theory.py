"""What Ding et al. state of free gaps: figures of their theorems, which measurements are compared with."""

from __future__ import annotations

import math

from stream_svt.mechanisms.estimates import survival
from stream_svt.mechanisms.noise import RELATIVE_VARIANCE, Law, Noise, least_integer, variance


def standard_deviation(*, query: Law, threshold: Law) -> float:
    """Return the standard deviation of `estimate` before selection, in grid steps."""
    return math.sqrt(variance(query.noise, query.rate) + variance(threshold.noise, threshold.rate))


def marginal_quantile(*, query: Law, threshold: Law, beta: float) -> int:
    """Return the grid steps by which the noise of a gap that was not selected exceeds 0 with probability beta at most.

    So bar + gap - this is a lower bound of the answer before selection. Among reported answers its coverage fails: 42 %
    was measured instead of 95 %.
    """
    return least_integer(lambda steps: survival(query, threshold, steps + 1) <= beta)


def blue_error_ratio(count: int, ratio: float) -> float:
    """Return the mean squared error of `blue_top_k` / that of the measurements (Ding et al. 2019, Corollary 1).

    >>> blue_error_ratio(10, 1.0)
    0.55
    """
    return (1 + ratio * count) / (count * (1 + ratio))


def expected_reduction(count: int, *, noise: Noise, monotonic: bool = True) -> float:
    """Return the share of the mean squared error that merging gaps with measurements saves, for small rates.

    A sparse-vector run with `count` alerts (k) and the split of least variance costs half of the budget, Laplace
    measurements of the alerts the other half. With U/D = 1 for monotonic queries and 2 for others, the variance of a
    gap estimate is v (U/D)^2 (1 + (k U/D)^(-2/3))^3 times that of a measurement, v = 1 for Laplace and 1/2 for
    exponential noise. This holds only for answers far above the threshold.

    >>> [round(expected_reduction(10, noise=noise), 3) for noise in (Noise.LAPLACE, Noise.EXPONENTIAL)]
    [0.358, 0.527]
    """
    width = 1 if monotonic else 2
    family = RELATIVE_VARIANCE[noise] / RELATIVE_VARIANCE[Noise.LAPLACE]
    spread = family * width**2 * (1 + math.pow(width * count, -2 / 3)) ** 3
    return 1 / (1 + spread)
