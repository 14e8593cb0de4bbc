"""Estimates and bounds of an answer q from its reported gap, alone or merged with a measurement of the same answer.

gap = q - bar + N, where N = query noise - threshold noise and the bar is the threshold plus the correction of the
branch and attempt that reported. `query` and `threshold` are the laws of the two noises. All numbers are in grid
steps; the true value lies up to one grid step above q. These functions read released outputs only and cost nothing.

* `estimate` is unbiased over the noise, and so biased upwards given that the gap was reported.
* `lower_bound` holds for reported answers, given all earlier outputs, under exponential threshold noise.

If half of the budget pays for measurements of the selected answers, gap and measurement are unbiased **before
selection**, and their weighted mean has less variance than the measurement. But answers are reported because their
noise was high. Merging can then be **worse** than the measurement alone: the mean squared error was up to twice as
large on real counts, and eleven times among answers with a certified bound. Merge only if the plan predicts a
precision near 1.

References:
    Ding, Wang, Zhang & Kifer, Free Gap Information, PVLDB 13(3), 2019: Theorem 3 and Corollary 1 (BLUE); merging with
    sparse vector. Ding et al., VLDB Journal, 2023 (exponential noise).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

import numpy as np

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.grid import Floats
from stream_svt.mechanisms.noise import (
    MONITORED,
    Law,
    Noise,
    mean,
    require_laws,
    to_decimal,
)
from stream_svt.mechanisms.numbers import Number, integer_of, number_of

Real = TypeVar("Real", float, Decimal, Fraction)
Numbers = Sequence[float] | Floats

_DIGITS = 60


def estimate(bar: int, gap: int, *, query: Law, threshold: Law) -> float:
    """Return the answer estimated from its gap, in grid steps: bar + gap - E[query noise] + E[threshold noise].

    It is unbiased before selection only. Averaging tops of one run does not remove the threshold noise they share.
    """
    _check_gap(bar, gap, query, threshold)
    return bar + gap - _bias(query, threshold)


def certain_gap(query_rate: Number, beta: Number) -> int:
    """Return g* = ceil(ln(1/beta) / rate), the grid steps that query noise exceeds with probability at most beta."""
    level = _level(beta)
    with decimal.localcontext(prec=_DIGITS):
        return math.ceil(Fraction(-level.ln()) / number_of(query_rate, "query_rate", above=0))


def lower_bound(bar: int, gap: int, *, query: Law, threshold: Law, beta: Number) -> int | None:
    """Return a lower bound of a reported answer at level 1 - beta, in grid steps, or None if the gap is too small.

    It holds given the report and everything before it: retries, annealing, other tops of the run. The proof needs
    threshold noise >= 0, so the bound is None for Laplace threshold noise (measured coverage 85 % instead of 95 %).
    `MisuseError` for beta outside (0, 1) and for Gumbel query noise, whose excess over a low bar exceeds g with
    probability up to 1.6 e^(-rate g).

    The level is per alert: use beta / c for all c alerts of a run. At most a share beta of the **reports** gets a wrong
    bound. If most reports are false, most bounds given may be wrong: compare with the precision that the plan predicts.
    """
    _check_gap(bar, gap, query, threshold)
    return GapBounds.of(query, threshold, beta).lower_bound(bar, gap)


@dataclass(frozen=True, slots=True)
class GapBounds:
    """`estimate` and `lower_bound` of many gaps under the same laws; ``least`` is the smallest gap with a bound."""

    bias: float
    least: int | None

    @classmethod
    def of(cls, query: Law, threshold: Law, beta: Number) -> GapBounds:
        """Return the bounds for these laws and this level."""
        _refuse_gumbel(query.noise)
        certain = certain_gap(query.rate, beta) if threshold.noise.is_one_sided else None
        return cls(_bias(query, threshold), certain)

    def estimate(self, bar: int, gap: int) -> float:
        """Return the estimate of an answer; see `estimate`."""
        return bar + gap - self.bias

    def lower_bound(self, bar: int, gap: int) -> int | None:
        """Return the bound of a reported answer; see `lower_bound`."""
        return None if self.least is None or gap < self.least else bar + gap - self.least + 1


def survival(query: Law, threshold: Law, t: int) -> float:
    """Return P(query noise - threshold noise >= t); `MisuseError` for Gumbel noise, which has no closed form."""
    with decimal.localcontext(prec=_DIGITS):
        return float(_survival(query, threshold, t))


def _survival(query: Law, threshold: Law, t: int) -> Decimal:
    """Return the survival in sixty digits, since the closed form suffers from cancellation."""
    a, b = (-to_decimal(threshold.rate)).exp(), (-to_decimal(query.rate)).exp()
    return exact_survival(query.noise, b, threshold.noise, a, t)


def exact_survival(query_noise: Noise, b: Real, threshold_noise: Noise, a: Real, t: int) -> Real:
    """Return P(query noise - threshold noise >= t), a = e^-threshold rate, b = e^-query rate; exact in Fractions."""
    _refuse_gumbel(query_noise, threshold_noise)
    if t < 0:  # the complement, with the two noises exchanged
        return 1 - exact_survival(threshold_noise, a, query_noise, b, 1 - t)
    two_sided = query_noise.draw == "difference"
    one = b**0  # a Fraction or a Decimal
    reached = one / (1 + b) if two_sided else one  # P(query noise >= 0)
    # The sum over threshold noise 0, 1, ..; exponential noise has no other values.
    from_zero = (1 - a) * reached * b**t / (1 - a * b)
    if threshold_noise.is_one_sided:
        return from_zero
    # The sums over threshold noise -1, .., -t, and over all that is less, without the factor (1 - a).
    above = t * a**t if a == b else a * (b**t - a**t) / (b - a)
    below = a ** (t + 1) * (one / (1 - a) - (reached * b**2 / (1 - a * b) if two_sided else 0))
    return (from_zero + (1 - a) * (reached * above + below)) / (1 + a)


def _bias(query: Law, threshold: Law) -> float:
    return mean(query.noise, query.rate) - mean(threshold.noise, threshold.rate)


def _check_gap(bar: int, gap: int, query: Law, threshold: Law) -> None:
    integer_of(bar, "bar", least=None)
    integer_of(gap, "gap", least=None)
    require_laws(query=query, threshold=threshold)


def _refuse_gumbel(*noises: Noise) -> None:
    require(
        set(noises) <= set(MONITORED),
        "no bound is certified for gaps with gumbel noise: its tail is not a power of e^-rate below its middle, and "
        "its differences have no closed form. Use exponential or laplace noise, or `estimate`",
    )


def _level(beta: Number) -> Decimal:
    with decimal.localcontext(prec=_DIGITS):
        return to_decimal(number_of(beta, "beta", above=0, below=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated answers in grid steps and their variances before selection, float arrays of shape (answers,)."""

    values: Floats
    variances: Floats


def inverse_variance(
    first: Numbers | float,
    first_variance: Numbers | float,
    second: Numbers | float,
    second_variance: Numbers | float,
) -> Estimate:
    """Return the weighted mean of least variance of two independent unbiased estimates of the same answers.

    Arguments are numbers or arrays of shape (answers,). `MisuseError` unless variances are finite and above 0.

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
    """Return the best linear unbiased estimates of all alerts that share one threshold noise.

    With x_i = q_i + nu_i - rho and y_i = q_i + xi_i, the differences y_i - x_i estimate rho; its best linear
    predictor has precision 1/Var rho + sum of 1/(Var nu_i + Var xi_i). The function adds it to each gap estimate, then
    merges this with its measurement by inverse variance. One alert gives `inverse_variance` with Var nu + Var rho.

    `gaps` are values of `estimate` and `measurements` independent unbiased estimates, in grid steps, shape (alerts,).
    The variances of nu and of the measurements are one number or of shape (alerts,); that of rho is a number.
    `MisuseError` if one is not positive, there is no alert, or gaps and measurements differ in number.
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
    """Return the best linear unbiased estimates of the k largest answers, shape (k,) (Ding et al. 2019, Theorem 3).

    This is (X y + Y g)/((1 + lambda) k) of the paper, in k steps: the mean of the measurements, plus the deviations
    from the mean in the measurements and in the gaps, weighted lambda : 1.

    Args:
        measurements: Measurements of the answers reported by noisy top-k, in its order, shape (k,).
        gaps: Gaps between successive answers, shape (k - 1,); other numbers of them are a `MisuseError`.
        ratio: lambda = Var(selection noise)/Var(measurement noise) > 0; 1 if each gets half of the budget and both
            noises have the same family and sensitivity.

    >>> blue_top_k([10.0, 6.0], [2.0], 1.0).tolist()
    [9.5, 6.5]
    """
    y, g = np.asarray(measurements, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    require(y.ndim == 1 and g.shape == (len(y) - 1,), "k measurements need the k - 1 gaps between them")
    relative = float(number_of(ratio, "ratio", above=0))
    shape = np.concatenate((np.cumsum(g[::-1])[::-1], [0.0]))  # the answers up to a common term
    merged: Floats = y.mean() + (relative * (y - y.mean()) + shape - shape.mean()) / (1 + relative)
    return merged


def _positive(numbers: Numbers | float) -> Floats:
    """Return variances, or a ratio of them, as an array; `MisuseError` unless finite and above 0."""
    result = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
    require(
        bool(((result > 0) & (result < math.inf)).all()),
        "variances, and ratios of them, must be finite and greater than 0",
    )
    return result
