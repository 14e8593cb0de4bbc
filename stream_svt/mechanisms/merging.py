"""Estimates from gaps, merged with independent noisy measurements of the same answers.

A selection that costs half the budget releases gaps for free; the other half buys measurements of what was
selected. Both are unbiased **before selection**; their weighted mean has less variance than the measurement.
Results are floats in grid steps: estimates, never decisions. They read released numbers only, and cost nothing.

Selection bias: an answer is reported because its noise was high, so that its gap is biased upwards given the report
(up to three scales of the query noise where most reports were false). Merging then makes the estimate **worse** than
the measurement alone: mean squared error up to twice as large on real counts, elevenfold among those with a certified
bound. Merge only where a plan predicts a precision near 1.

References:
    Ding, Wang, Zhang & Kifer, Free Gap Information, PVLDB 13(3), 2019: Theorem 3 and Corollary 1 (BLUE); merging with
    sparse vector. Ding et al., VLDB Journal, 2023 (exponential noise).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.grid import Floats
from stream_svt.mechanisms.noise import RELATIVE_VARIANCE, Noise

Numbers = Sequence[float] | Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated answers in grid steps and their variances before selection, each of shape (answers,)."""

    values: Floats
    variances: Floats


def inverse_variance(
    first: Numbers | float,
    first_variance: Numbers | float,
    second: Numbers | float,
    second_variance: Numbers | float,
) -> Estimate:
    """Return the weighted mean of two independent unbiased estimates of the same answers with the least variance.

    >>> merged = inverse_variance(10.0, 4.0, 20.0, 12.0)
    >>> merged.values.tolist(), merged.variances.tolist()
    ([12.5], [3.0])
    """
    a, b = _positive(first_variance), _positive(second_variance)
    values = (np.atleast_1d(first) * b + np.atleast_1d(second) * a) / (a + b)
    return Estimate(values=values, variances=np.broadcast_to(a * b / (a + b), values.shape))


def joint(
    gaps: Numbers,
    query_variance: Numbers | float,
    threshold_variance: float,
    measurements: Numbers,
    measurement_variance: Numbers | float,
) -> Estimate:
    """Return the best linear unbiased estimates of all alerts under one threshold noise.

    With x_i = q_i + nu_i - rho and y_i = q_i + xi_i, the differences y_i - x_i estimate rho; its best linear
    predictor has the precision 1/Var rho + sum of 1/(Var nu_i + Var xi_i). Each gap estimate, freed of it, is then
    merged with its measurement by inverse variance. For one alert this is `inverse_variance` with Var nu + Var rho.

    Args:
        gaps: Estimates from the gaps alone, see `stream_svt.mechanisms.estimates.estimate`, shape (alerts,).
        query_variance, threshold_variance: Of nu, of each alert (branches differ) or of all; of rho.
        measurements, measurement_variance: Independent unbiased estimates, shape (alerts,); of each or of all.

    Raises:
        MisuseError: When a variance is not positive, or the numbers of gaps and measurements differ.
    """
    x, y = np.asarray(gaps, dtype=np.float64), np.asarray(measurements, dtype=np.float64)
    require(
        x.shape == y.shape and x.ndim == 1 and len(x) > 0,
        "joint estimates need one measurement for each gap, and at least one alert",
    )
    query = np.broadcast_to(_positive(query_variance), x.shape)
    measured = np.broadcast_to(_positive(measurement_variance), x.shape)
    precision = 1 / float(_positive(threshold_variance)[0]) + float(np.sum(1 / (query + measured)))
    rho = float(np.sum((y - x) / (query + measured))) / precision
    weight = measured / (query + measured)  # of the gap
    return Estimate(
        values=y + weight * (x + rho - y),
        variances=query * measured / (query + measured) + weight**2 / precision,
    )


def blue_top_k(measurements: Numbers, gaps: Numbers, ratio: float) -> Floats:
    """Return the best linear unbiased estimates of the k largest answers: Ding et al. 2019, Theorem 3.

    The deviations of the answers from their mean are the measured ones and those of the gaps, weighted lambda : 1,
    and the mean is the measured one: (X y + Y g)/((1 + lambda) k) of the paper, in k steps.

    Args:
        measurements: Of the answers reported by noisy top-k, in its order, shape (k,).
        gaps: The k - 1 gaps between them; a last gap, to an answer that was not measured, takes no part.
        ratio: lambda = Var(selection noise)/Var(measurement noise); 1 where the budget is halved and both noises are
            of one family and sensitivity.

    Raises:
        MisuseError: When there is not one gap less than there are measurements, or the ratio is not positive.

    Examples:
        >>> blue_top_k([10.0, 6.0], [2.0], 1.0).tolist()
        [9.5, 6.5]
    """
    y, g = np.asarray(measurements, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    require(y.ndim == 1 and g.shape == (len(y) - 1,), "k measurements go with the k - 1 gaps between them")
    relative = float(_positive(ratio)[0])
    shape = np.concatenate((np.cumsum(g[::-1])[::-1], [0.0]))  # the answers, but for a common term
    deviations = (relative * (y - y.mean()) + shape - shape.mean()) / (1 + relative)
    merged: Floats = y.mean() + deviations
    return merged


def blue_error_ratio(count: int, ratio: float) -> float:
    """Mean squared error of `blue_top_k` / that of the measurements, (1 + lambda k)/(k + lambda k): Corollary 1.

    >>> blue_error_ratio(10, 1.0)
    0.55
    """
    require(count >= 1, "count must be at least 1")
    relative = float(_positive(ratio)[0])
    return (1 + relative * count) / (count * (1 + relative))


def expected_reduction(count: int, *, noise: Noise, monotonic: bool = True) -> float:
    """Share of the mean squared error that merging an alert's gap with its measurement saves, for small rates.

    Half of the budget goes to a sparse-vector run with `count` alerts (k) and the split of least variance, half to
    Laplace measurements of each. With U/D = 1 for monotonic queries and 2 for others, the variance of a gap estimate
    is v (U/D)^2 (1 + (k U/D)^(-2/3))^3 times that of a measurement, v = 1 for Laplace and 1/2 for exponential noise.
    For answers far above the threshold only; see the module on selection bias.

    >>> [round(expected_reduction(10, noise=noise), 3) for noise in (Noise.LAPLACE, Noise.EXPONENTIAL)]
    [0.358, 0.527]
    """
    require(count >= 1, "count must be at least 1")
    width = 1 if monotonic else 2
    family = RELATIVE_VARIANCE[noise] / RELATIVE_VARIANCE[Noise.LAPLACE]
    spread = family * width**2 * (1 + math.pow(width * count, -2 / 3)) ** 3
    return 1 / (1 + spread)


def reduction(gap_variance: float, measurement_variance: float) -> float:
    """Share of the mean squared error saved by merging, Var y/(Var x + Var y), from the variances actually used."""
    x, y = float(_positive(gap_variance)[0]), float(_positive(measurement_variance)[0])
    return y / (x + y)


def _positive(numbers: Numbers | float) -> Floats:
    """Return variances, or a ratio of them, as an array."""
    result = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
    require(
        bool(((result > 0) & (result < math.inf)).all()),
        "variances, and ratios of them, are finite and greater than 0",
    )
    return result
