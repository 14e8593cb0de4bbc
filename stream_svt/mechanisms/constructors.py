"""Constructors of sparse vector: plain, AboveThreshold, adaptive with two branches, and the ladder with more.

Each splits epsilon into whole units and derives the rates of the noise from the rounded charges.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithm 1 (AboveThreshold); Durfee 2023
    (other families of noise, and zCDP). Ding et al. 2019 and 2023 (Adaptive SVT, its margin and its split); Lyu, Su &
    Li 2017 (split of plain SVT); Liu et al. 2024 (splits by correction).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Required, TypedDict, Unpack

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.contract import UNITS_PER_EPSILON, check_fields, rate_of
from stream_svt.mechanisms.correction import Annealed, Comparison, Correction, Exposure, Uncorrected
from stream_svt.mechanisms.noise import RELATIVE_VARIANCE, Noise, mean, variance
from stream_svt.mechanisms.sparse_vector import Branch, SparseVector


class AnswerOptions(TypedDict, total=False):
    """What all constructors take: of the answers, and of the noise."""

    monotonic: Required[bool]
    """Declared: neighbours move all answers the same way."""
    sensitivity: int
    """Declared: most that an answer changes, in grid steps. Default 1."""
    query_noise: Noise
    """Family. Default exponential."""
    threshold_noise: Noise
    """Family. Default exponential."""


class RunOptions(AnswerOptions, total=False):
    """What the constructors of runs with several tops take."""

    epsilon: Required[int]
    """Units of 10^-9 epsilon of one whole run; used to the last unit."""
    cutoff: Required[int]
    """Tops that the budget pays for at the full price."""
    correction: Required[Correction]
    """How far above the threshold the bar is set."""


def sparse_vector(*, split: Fraction | None = None, **options: Unpack[RunOptions]) -> SparseVector:
    """Plain sparse vector with gap: one branch, `cutoff` tops a run.

    Args:
        split: Epsilon of all queries / epsilon of the threshold; None for the correction's own choice.
        options: See `RunOptions`.
    """
    run = _Run(**options)
    return run.build(run.theta_of(split), (1,), 0)


def above_threshold(
    *,
    epsilon: int,
    split: Fraction = Fraction(1),
    correction: Correction | None = None,
    **options: Unpack[AnswerOptions],
) -> SparseVector:
    """AboveThreshold (Dwork & Roth 2014, Algorithm 1): report the first answer that reaches a noisy threshold.

    Charge: epsilon, gap included, of which the threshold's part is spent even if nothing is reported. Any family
    may be either noise: Durfee 2023 needs equal rates for Gumbel, the one-sided Lipschitz condition does not.
    `split` is epsilon of the query / epsilon of the threshold; 1 and no correction, with Laplace noise and answers
    that are not monotonic, are the lecture's.
    """
    rule = correction or Uncorrected()
    return sparse_vector(epsilon=epsilon, cutoff=1, correction=rule, split=split, **options)


def adaptive(
    *, theta: Fraction | None = None, margin: int | None = None, **options: Unpack[RunOptions]
) -> SparseVector:
    """Adaptive SVT: a top branch at half the price for answers far above, then a middle branch.

    `cutoff` is the number of middle tops the budget pays for; up to twice as many answers are reported.

    Args:
        theta: Share of epsilon that the threshold gets. None: what minimises the variance of the middle branch's
            comparison, except under annealing, which has its own split.
        margin: Grid steps added to the top branch's corrections. None: two standard deviations of its noise, as in
            the paper, for corrections that do not know the number of tests; none under exposure and annealing, which
            set each branch's bar by its own noise and count the branches.
        options: See `RunOptions`.
    """
    run = _Run(**options)
    if theta is None:
        theta = run.theta_of(None) if isinstance(run.correction, Annealed) else run.least_variance_theta()
    return run.build(theta, (2, 1), margin)


def ladder(
    *,
    split: Fraction | None = None,
    shares: Sequence[int] = (8, 4, 2, 1),
    margin_scales: Fraction | int = 9,
    **options: Unpack[RunOptions],
) -> SparseVector:
    """Adaptive SVT with more branches: rung i costs 1/shares[i] of the last one, which is the base.

    Where answers lie far above the threshold it finds up to twice as many as `adaptive` for the same epsilon.

    Args:
        split: As for `sparse_vector`.
        shares: Divisors of the base branch's charge, falling to 1.
        margin_scales: Correction of the upper rungs in scales of their own noise, for corrections that do not know
            the number of tests; two standard deviations, as in Adaptive SVT, would spend the ladder on false alerts.
        options: See `RunOptions`.
    """
    require(
        bool(shares) and shares[-1] == 1 and all(a > b for a, b in pairwise(shares)),
        "the shares of a ladder fall strictly and end with 1, such as (8, 4, 2, 1)",
    )
    run = _Run(**options)
    return run.build(run.theta_of(split), tuple(shares), scales=Fraction(margin_scales))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The options, checked before a split of epsilon is computed from them."""

    epsilon: int
    cutoff: int
    monotonic: bool
    correction: Correction
    sensitivity: int = 1
    query_noise: Noise = Noise.EXPONENTIAL
    threshold_noise: Noise = Noise.EXPONENTIAL

    def __post_init__(self) -> None:
        check_fields(self)

    def theta_of(self, split: Fraction | None) -> Fraction:
        """Return the share of the threshold for a split w = queries / threshold; None: the correction's own."""
        if split is None:
            split = self.correction.default_split(self.cutoff, self.monotonic)
        require(split > 0, "a split is epsilon of the queries / epsilon of the threshold and greater than 0")
        return 1 / (1 + Fraction(split))

    def least_variance_theta(self) -> Fraction:
        """Return the share of the threshold that minimises Var(threshold noise) + Var(middle branch's noise).

        The closed form of the small-rate limit is within 3 % of the least up to rates of about 1; beyond, it is
        searched for.
        """
        width = 1 if self.monotonic else 2
        families = RELATIVE_VARIANCE[self.query_noise] / RELATIVE_VARIANCE[self.threshold_noise]
        theta = 1 / (1 + (families * width**2 * self.cutoff**2) ** (1 / 3))
        total = self.epsilon / UNITS_PER_EPSILON / self.sensitivity

        def spread(share: float) -> float:
            of_query = variance(self.query_noise, (1 - share) * total / self.cutoff / width)
            return variance(self.threshold_noise, share * total) + of_query

        if max(theta * total, (1 - theta) * total / self.cutoff / width) > 1:
            most = math.log(1e6)  # of the odds, in which the minimum may lie far to either side
            centre, reach = math.log(theta / (1 - theta)), most
            for _ in range(6):
                grid = [min(most, max(-most, centre + reach * (i - 50) / 50)) for i in range(101)]
                centre = min(grid, key=lambda odds: spread(1 / (1 + math.exp(-odds))))
                reach /= 10
            theta = 1 / (1 + math.exp(-centre))
        return Fraction(round(theta * 10**9), 10**9)

    def build(
        self,
        theta: Fraction,
        shares: tuple[int, ...],
        margin: int | None = None,
        *,
        scales: Fraction | None = None,
    ) -> SparseVector:
        """Split epsilon into whole units, then derive the rates from the rounded charges.

        The upper branches' bars are raised by the margin or, where that is None, by so many scales of their noise.
        """
        require(0 < theta < 1, "the threshold's share of epsilon lies strictly between 0 and 1")
        # Every branch's charge is a multiple of the cheapest one, so that the tops can use the last unit.
        divisor = math.lcm(*shares)
        base = math.floor(self.epsilon * (1 - theta) / (self.cutoff * divisor)) * divisor
        require(base > 0, "epsilon is too small to be divided among the threshold and so many tops")
        threshold_charge = self.epsilon - self.cutoff * base
        threshold_rate = rate_of(threshold_charge, self.sensitivity)
        branches = []
        for share in shares:
            rate = rate_of(base // share, self.sensitivity if self.monotonic else 2 * self.sensitivity)
            comparison = Comparison(
                scale=1 / rate,
                branches=len(shares),
                noise=self.query_noise,
                base=share == 1,
                threshold_mean=mean(self.threshold_noise, threshold_rate),
            )
            table = self.correction.table(comparison)
            if share != 1:
                steps = self._margin(rate, scales) if margin is None else margin
                table = tuple(r + steps for r in table)
            name = _branch_name(share, shares)
            branches.append(Branch(name=name, charge=base // share, rate=rate, corrections=table))
        return SparseVector(
            epsilon=self.epsilon,
            sensitivity=self.sensitivity,
            monotonic=self.monotonic,
            threshold_noise=self.threshold_noise,
            query_noise=self.query_noise,
            threshold_charge=threshold_charge,
            threshold_rate=threshold_rate,
            branches=tuple(branches),
        )

    def _margin(self, rate: Fraction, scales: Fraction | None) -> int:
        if isinstance(self.correction, Exposure | Annealed):
            return 0
        if scales is not None:
            return math.ceil(scales / rate)
        return math.ceil(2 * math.sqrt(variance(self.query_noise, rate)))


def _branch_name(share: int, shares: tuple[int, ...]) -> str:
    """Return top; top, middle; or top/8, top/4, top/2, middle for a ladder."""
    if share == 1:
        return "middle" if len(shares) > 1 else "top"
    return "top" if len(shares) == 2 else f"top/{share}"
