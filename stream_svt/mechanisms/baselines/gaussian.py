"""SVT-Gau: sparse vector with discrete Gaussian noise and without gaps, a baseline for comparisons.

A Gaussian density falls faster than any exponential, so the alignment that makes gaps free for other noise has
unbounded cost here: with gaps, the exact loss reached 2.3 times the charge. Without gaps an (epsilon, delta) guarantee
remains, weaker than that of every other mechanism here.

Guarantee:
    Let the threshold's variance make a shift by D (e0, d0)-private, and the query's a shift by U (e1, d1)-private. A
    run of k tests and at most c tops is **(e0 + c e1, d0 + k d1)**-private. Proof: move the threshold noise up by D,
    at ratio e^e0 except for mass d0. Given that noise, a bottom is at least as likely on the neighbour, and a top at
    most e^e1 times as likely except for an excess d1. Outputs outside these exceptions have ratio at most
    e^(e0 + c e1), and the exceptions have probability at most d0 + k d1. Liu et al. compose over the c + 1 releases,
    d0 + c d1; we know no proof of that, and `gaussian` divides delta that way only with `as_published=True`.

References:
    Canonne, Kamath & Steinke, The Discrete Gaussian for Differential Privacy, 2020: Algorithms 1 and 3 (sampler),
    Theorem 7 (delta). Balle & Wang 2018, Theorem 8 (the continuous delta). Liu et al. 2024: SVT-Gau as a baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stream_svt.errors import RunExhausted
from stream_svt.mechanisms.arguments import require, require_bool
from stream_svt.mechanisms.contract import Outcomes, Run, Top, check_run, new_run
from stream_svt.mechanisms.grid import CORRECTION_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.numbers import Number, epsilon_units, integer_of, loss_of, number_of
from stream_svt.mechanisms.sampler import draw_threshold

WIDEST = 10**5
"""Largest standard deviation in grid steps, since `discrete_gaussian_delta` sums the law point by point."""

Entropy = Callable[[int], bytes]
"""Returns this number of fresh random bytes."""


def draw_discrete_gaussian(variance: Fraction, entropy: Entropy) -> int:
    """Draw an integer k exactly, with probability proportional to e^(-k^2 / (2 variance)), in grid steps.

    It accepts a discrete Laplace draw of scale t = floor(sigma) + 1 with probability
    exp(-(|k| - variance/t)^2 / (2 variance)) (Canonne, Kamath & Steinke 2020, Algorithm 3).
    """
    require(variance > 0, "the variance of a noise must be greater than 0")
    t = math.isqrt(math.floor(variance)) + 1
    while True:
        drawn = draw_threshold(Law(Noise.LAPLACE, Fraction(1, t)), entropy)
        if _happens_exp((abs(drawn) - variance / t) ** 2 / (2 * variance), entropy):
            return drawn


def discrete_gaussian_delta(variance: Fraction | float, shift: int, epsilon: float) -> float:
    """Return the least delta for which a shift in grid steps is (epsilon, delta)-private; smaller shifts are too.

    It is P(Y > epsilon variance/shift - shift/2) - e^epsilon P(Y > epsilon variance/shift + shift/2) for the noise Y
    (Canonne, Kamath & Steinke 2020, Theorem 7), computed as the sum of the positive differences at all points.
    `MisuseError` for noise wider than `WIDEST`.
    """
    sigma = math.sqrt(variance)
    require(sigma <= WIDEST, "the noise is too wide to sum: use a coarser granularity or a larger epsilon")
    reach = math.ceil(12 * sigma) + 1  # the probability beyond is about e^-72
    first = math.floor(epsilon * float(variance) / shift - shift / 2)
    if first > 38 * sigma:  # the probability there, e^-722, is near the least float
        return 0.0
    here = np.arange(max(first, -reach), max(first, 0) + reach + 1, dtype=np.float64)
    total = np.exp(-(np.arange(-reach, reach + 1, dtype=np.float64) ** 2) / (2 * float(variance))).sum()
    there = here + shift
    excess = np.exp(-(here**2) / (2 * float(variance))) - np.exp(epsilon - there**2 / (2 * float(variance)))
    return float(np.maximum(excess, 0).sum() / total)


def least_variance(*, epsilon: float, delta: float, shift: int) -> Fraction:
    """Return the least variance, within 0.1 %, that makes a shift in grid steps (epsilon, delta)-private."""
    fits = epsilon > 0 and 0 < delta < 1 and shift >= 1
    require(fits, "Gaussian noise needs epsilon > 0, 0 < delta < 1 and a shift of at least one grid step")
    low, high = 0.0, 1.0
    while discrete_gaussian_delta(high, shift, epsilon) > delta:
        low, high = high, 4 * high
    while high - low > high / 1000:
        middle = (low + high) / 2
        fits = discrete_gaussian_delta(middle, shift, epsilon) <= delta
        low, high = (low, middle) if fits else (middle, high)
    return Fraction(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianSparseVector:
    """Sparse vector with Gaussian noise, see the module; build it with `gaussian`. `Run.left_units` counts tops.

    It has no `shifts`, no gap and no pure charge. `threshold_epsilon` and `query_epsilon` are those of one threshold
    and one top, `delta` is that of one release, and variances are in squared grid steps.
    """

    cutoff: int
    threshold_epsilon: float
    query_epsilon: float
    delta: float
    threshold_variance: Fraction
    query_variance: Fraction
    correction: int = 0

    @property
    def epsilon(self) -> float:
        """Epsilon of a run: e0 + c e1."""
        return self.threshold_epsilon + self.cutoff * self.query_epsilon

    def proved_delta(self, tests: int) -> float:
        """Return the proved delta of a run with this number of tests: (1 + tests) delta."""
        return (1 + tests) * self.delta

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run with a fresh threshold noise of variance `threshold_variance`, in grid steps."""
        return new_run(self, threshold_noise, salt, self.cutoff)

    def is_over(self, run: Run) -> bool:
        """Whether the run has used all its tops."""
        return run.left_units < 1

    def step(
        self, run: Run, values: Integers, thresholds: Integers | int, noise: Integers
    ) -> tuple[Run, Outcomes]:
        """Test answers in order until they or the run end; arrays have shape (tests,), noise is fresh.

        `RunExhausted` if the run is over, `MisuseError` if another mechanism opened it.
        """
        check_run(run, self, self.cutoff)
        if self.is_over(run):
            raise RunExhausted("this run has used all its tops; open a new run")
        reached = np.flatnonzero(values + noise >= thresholds + self.correction + run.threshold_noise)
        tops = tuple(Top(row=row, gap=None) for row in reached[: run.left_units].tolist())
        consumed = tops[-1].row + 1 if len(tops) == run.left_units else len(values)
        outcomes = Outcomes(consumed=consumed, tops=tops, charge_units=len(tops))
        return run.after(outcomes), outcomes


def gaussian(
    *,
    epsilon: Number,
    delta: Number,
    cutoff: int,
    monotonic: bool,
    sensitivity: int = 1,
    split: Number = 1,
    correction: int = 0,
    tests: int | None,
    as_published: bool = False,
) -> GaussianSparseVector:
    """Return SVT-Gau for a total epsilon and delta.

    Args:
        cutoff, sensitivity: Largest number of tops; D in grid steps.
        split: Epsilon of all queries / epsilon of the threshold.
        tests: Largest number of tests in a run, for which delta is proved; None only with `as_published`.
        as_published: Divide delta among the threshold and the c tops, as Liu et al. 2024 do, for comparison with their
            results. The delta of such a run is not proved, since bottoms are not counted.
    """
    require_bool(as_published, "as_published")
    require(
        as_published == (tests is None),
        "delta is proved for a number of tests: pass tests. To divide delta among the tops instead, as published "
        "without a proof, pass as_published=True and tests=None",
    )
    if tests is not None:
        integer_of(tests, "tests", least=1)
    integer_of(cutoff, "cutoff", least=1)
    integer_of(sensitivity, "sensitivity", least=1)
    integer_of(correction, "correction", least=1 - CORRECTION_LIMIT, limit=CORRECTION_LIMIT)
    require_bool(monotonic, "monotonic")
    total, chance = (
        float(loss_of(epsilon_units(epsilon))),
        float(number_of(delta, "delta", above=0, below=1)),
    )
    threshold = total / (1 + float(number_of(split, "split", above=0)))
    query = (total - threshold) / cutoff
    each = chance / (1 + (tests or cutoff))
    reach = sensitivity if monotonic else 2 * sensitivity
    return GaussianSparseVector(
        cutoff=cutoff,
        threshold_epsilon=threshold,
        query_epsilon=query,
        delta=each,
        threshold_variance=least_variance(epsilon=threshold, delta=each, shift=sensitivity),
        query_variance=least_variance(epsilon=query, delta=each, shift=reach),
        correction=correction,
    )


def _happens_exp(exponent: Fraction, entropy: Entropy) -> bool:
    """Return True with probability e^-exponent, exactly (Canonne, Kamath & Steinke 2020, Algorithm 1)."""
    while exponent > 1:
        if not _happens_exp(Fraction(1), entropy):
            return False
        exponent -= 1
    k = 1
    while _happens(exponent / k, entropy):
        k += 1
    return k % 2 == 1


def _happens(probability: Fraction, entropy: Entropy) -> bool:
    """Return True with a rational probability, exactly, by rejection sampling of a uniform integer."""
    size = (probability.denominator.bit_length() + 7) // 8
    limit = 256**size // probability.denominator * probability.denominator
    while (drawn := int.from_bytes(entropy(size), "big")) >= limit:
        pass
    return drawn % probability.denominator < probability.numerator
