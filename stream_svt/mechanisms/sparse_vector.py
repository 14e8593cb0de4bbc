"""Sparse vector with gap: report which answers of a stream reach a noisy threshold, paying only for those.

One mechanism covers the plain form and AboveThreshold (one branch), Adaptive SVT (two) and the ladder (more); each has
a function that splits epsilon into whole units and derives the rates of the noise from the rounded charges. Each query
is tested by the branches in order, the cheap and noisy ones first; the first that reaches the noisy threshold reports a
top and its charge is taken from what the run has left.

    gap = value + query noise - (threshold + correction + threshold noise),  top if gap >= 0

Guarantee:
    With rates threshold_charge/D and charge/U (D the sensitivity in grid steps, U = D for monotonic queries and
    2D for others), an output with tops of charges e_1, e_2, .. under one threshold noise has likelihood ratio at
    most exp(threshold_charge + e_1 + e_2 + ..). The gap, the branch, the attempt and what is left are covered;
    bottoms, retries with fresh noise, corrections, order and number of tests cost nothing as long as the schedule
    reads past outputs only. Proof: move the threshold noise up by D and the noise of every branch that fired by at
    most U; every family satisfies P(k) <= e^(rate s) P(k + s) for s >= 0 and the map is one-to-one. Rates are
    computed from charges in whole units of 10^-9 epsilon, so that noise and charge agree exactly.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithm 1 (AboveThreshold); Durfee 2023
    (other families of noise, and zCDP).
    Lyu, Su & Li, Understanding the Sparse Vector Technique, PVLDB 10(6), 2017 (split of plain SVT).
    Ding, Wang, Zhang & Kifer, Free Gap Information, PVLDB 13(3), 2019; JPC 2023 (Adaptive SVT, its margin and split).
    Liu et al. 2024 (exponential noise, corrections, retries, splits by correction).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Required, TypedDict, Unpack

import numpy as np

from stream_svt.mechanisms.arguments import BranchNoise, checked_integer_or_array, checked_noise, require
from stream_svt.mechanisms.contract import (
    UNITS_PER_EPSILON,
    Mechanism,
    Neighbours,
    Noises,
    Outcomes,
    Run,
    Top,
    check_fields,
    rate_of,
)
from stream_svt.mechanisms.correction import Annealed, Comparison, Correction, Exposure, Uncorrected
from stream_svt.mechanisms.grid import CORRECTION_LIMIT, GAP_LIMIT, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import RELATIVE_VARIANCE, Law, Noise, mean, variance

_MAX_BRANCHES = 16
_ATTEMPT_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One comparison of a query with the noisy threshold.

    Attributes:
        name: Shown with every alert: "top", "middle", ..
        charge: Units of 10^-9 epsilon that a report by this branch costs.
        rate: Rate of its query noise, charge / U, per grid step.
        corrections: Grid steps added to the threshold, by attempt; the last entry holds for later attempts.
    """

    name: str
    charge: int
    rate: Fraction
    corrections: tuple[int, ...]

    def correction(self, attempt: int) -> int:
        """Grid steps added to the threshold at this attempt (0 is the first)."""
        return self.corrections[min(attempt, len(self.corrections) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVector(Mechanism):
    """Parameters of a sparse-vector run; see the module for the guarantee. Build it with a function below.

    Attributes:
        epsilon: Units one whole run may cost, threshold included.
        sensitivity: D: most that one answer changes between neighbours, in grid steps.
        monotonic: Whether neighbours move all answers of a run the same way (counts under add or remove do).
            Halves the query noise; declaring it wrongly voids the guarantee: the loss is up to (threshold + 2
            queries) / (threshold + queries) of the charge, 1.83 at 10 tops, and tends to 2.
        threshold_noise, query_noise: Noise families.
        threshold_charge, threshold_rate: Units the threshold costs, charged before its first comparison, and
            the rate of its noise.
        branches: Tested in this order.

    Examples:
        >>> from stream_svt.mechanisms import Uncorrected, sparse_vector
        >>> svt = sparse_vector(epsilon=1_000_000_000, cutoff=1, monotonic=True, correction=Uncorrected())
        >>> svt.threshold_charge, svt.branches[0].charge, svt.branches[0].rate
        (500000000, 500000000, Fraction(1, 2))
        >>> run = svt.open(threshold_noise=3, salt=(0, 0))
        >>> values, thresholds, attempts = np.array([90, 110]), np.array([100, 100]), np.array([0, 0])
        >>> run, outcomes = svt.step(run, values, thresholds, attempts, lambda branch: np.array([0, 5]))
        >>> outcomes.tops
        (Top(row=1, branch=0, gap=12, charge=500000000, left=0, answer=None),)
    """

    epsilon: int
    sensitivity: int
    monotonic: bool
    threshold_noise: Noise = Noise.EXPONENTIAL
    query_noise: Noise = Noise.EXPONENTIAL
    threshold_charge: int = field()
    threshold_rate: Fraction
    branches: tuple[Branch, ...]

    def __post_init__(self) -> None:
        require(1 <= len(self.branches) <= _MAX_BRANCHES, f"a mechanism has 1 to {_MAX_BRANCHES} branches")
        Mechanism.__post_init__(self)
        require(
            self.threshold_rate == rate_of(self.threshold_charge, self.sensitivity),
            "the threshold's rate must be its charge / sensitivity",
        )
        for branch in self.branches:
            require(
                branch.rate == rate_of(branch.charge, self.query_sensitivity),
                f"branch {branch.name!r}: its rate must be charge / sensitivity for monotonic queries and "
                "charge / (2 * sensitivity) for others",
            )
            require(
                bool(branch.corrections) and max(map(abs, branch.corrections)) < CORRECTION_LIMIT,
                f"branch {branch.name!r}: corrections are one or more numbers below 2^48",
            )
        require(
            self.threshold_charge + self.smallest_charge <= self.epsilon,
            "epsilon does not pay the threshold and one top",
        )

    @property
    def threshold_law(self) -> Law:
        """Law of a run's threshold noise."""
        return Law(self.threshold_noise, self.threshold_rate)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise, by branch."""
        return tuple(Law(self.query_noise, branch.rate) for branch in self.branches)

    @property
    def smallest_charge(self) -> int:
        """Units of the cheapest top; a run that has less left is over."""
        return min(branch.charge for branch in self.branches)

    @property
    def cutoff(self) -> int:
        """Tops a whole run pays for if every one is reported by the dearest branch."""
        return (self.epsilon - self.threshold_charge) // max(branch.charge for branch in self.branches)

    def shortened(self, units: int) -> SparseVector | None:
        """Return the same mechanism with a run of at most `units`, or None when not even one top fits.

        Noise and corrections stay as they are. What no number of tops could use is left out of `epsilon`.
        """
        tops = min(units, self.epsilon) - self.threshold_charge
        smallest = self.smallest_charge
        if tops < smallest:
            return None
        if all(branch.charge % smallest == 0 for branch in self.branches):
            tops -= tops % smallest
        return replace(self, epsilon=self.threshold_charge + tops)

    def branch_of(self, gaps: Sequence[int] | Integers, left: int) -> int | None:
        """Return the number of the branch that reports a test: the first with a gap >= 0 that `left` units pay for."""
        for number, branch in enumerate(self.branches):
            if gaps[number] >= 0 and branch.charge <= left:
                return number
        return None

    def branch_gaps(
        self,
        values: Integers,
        thresholds: Integers | int,
        rho: Integers | int,
        attempt: Integers | int,
        draw: BranchNoise,
    ) -> Integers:
        """Gaps of every test at every branch, (branches, tests) in grid steps. Secret, except where a top is.

        As `step`, with the threshold noise `rho` of each test's run; nothing is checked here.
        """
        gaps = np.empty((len(self.branches), len(values)), dtype=np.int64)
        margins = gaps[-1]  # the last branch's place until its turn: fresh memory is what costs most here
        np.subtract(values, thresholds, out=margins)
        margins -= rho
        for number, branch in enumerate(self.branches):
            gap = gaps[number]
            np.add(margins, draw(number), out=gap)
            if len(branch.corrections) == 1:
                gap -= branch.corrections[0]
            else:
                table = np.array(branch.corrections, dtype=np.int64)
                gap -= table[np.minimum(attempt, len(table) - 1)]
        return np.minimum(gaps, GAP_LIMIT, out=gaps)

    def step(
        self,
        run: Run,
        values: Integers,
        thresholds: Integers | int,
        attempts: Integers | int,
        noise: BranchNoise,
    ) -> tuple[Run, Outcomes]:
        """Test answers in order until they or the run end.

        The caller makes the new run durable before anyone sees the outcomes: a visible top whose charge was lost
        would be one top too many.

        Args:
            values, thresholds, attempts: Grid values and public thresholds, below 2^47 in magnitude, and the number
                of earlier tests of the same query.
            noise: Query noise of all tests for a branch; fresh at every attempt.

        Raises:
            RunExhausted: When the run is over already; nothing was drawn.
        """
        values = self.checked_values(run, values)
        tests = len(values)
        gaps = self.branch_gaps(
            values,
            checked_integer_or_array(thresholds, tests, "threshold", 1 - VALUE_LIMIT, VALUE_LIMIT),
            run.threshold_noise,
            checked_integer_or_array(attempts, tests, "attempt", 0, _ATTEMPT_LIMIT),
            checked_noise(noise, tests),
        )
        reached = np.flatnonzero((gaps >= 0).any(axis=0))
        left, consumed, tops = run.left, tests, list[Top]()
        for row, column in zip(reached.tolist(), gaps[:, reached].T.tolist(), strict=True):
            number = self.branch_of(column, left)
            if number is not None:
                charge = self.branches[number].charge
                left -= charge
                tops.append(Top(row=row, gap=column[number], branch=number, charge=charge, left=left))
            if left < self.smallest_charge:
                consumed = row + 1
                break
        outcomes = Outcomes(consumed=consumed, tops=tuple(tops), charge=run.left - left)
        return run.after(outcomes), outcomes

    def shifts(self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours) -> Noises:
        """Randomness alignment: how far noise moves so that the values `second` give these outcomes too.

        The threshold noise moves up by D (not at all where answers only fall), once for all batches of a run, and
        the noise of a branch that fired by as much plus what its answer fell: 0 to U. Bottoms keep their noise,
        since their answer rises by at most what the threshold does.
        """
        lift = self.threshold_shift(neighbours)
        queries = np.zeros((len(self.branches), len(first)), dtype=np.int64)
        for top in outcomes.tops:
            queries[top.branch, top.row] = lift + int(first[top.row]) - int(second[top.row])
        return Noises(lift, queries)


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
