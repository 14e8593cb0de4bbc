"""Sparse vector with gap: report the answers of a stream that reach a noisy threshold; only reports are charged.

One class covers plain SVT and AboveThreshold (one branch), Adaptive SVT (two) and the ladder (more); a function for
each divides epsilon. Branches test each query in order, the cheap and noisy ones first. The first branch that reaches
the noisy threshold reports a top, and the run pays its charge.

    gap = value + query noise - (threshold + correction + threshold noise),  top if gap >= 0

Guarantee:
    With rates threshold_charge/D and charge/U (D the sensitivity in grid steps, U = D for monotonic queries and
    2D for others), an output with tops of charges e_1, e_2, .. under one threshold noise has likelihood ratio at
    most exp(threshold_charge + e_1 + e_2 + ..). This includes the gap, the branch, the attempt and the units left.
    Bottoms, retries with fresh noise, corrections, order and number of tests cost nothing if the schedule depends on
    past outputs only. Proof: move the threshold noise up by D and the noise of each branch that reported by at most
    U; every family satisfies P(k) <= e^(rate s) P(k + s) for s >= 0, and the map is one-to-one. Rates follow from
    charges in integer units of 10^-9 epsilon, so noise and charge match exactly.

References:
    Dwork & Roth 2014, Algorithm 1 (AboveThreshold); Durfee 2023 (other families of noise, and zCDP); Lyu, Su & Li 2017
    (split of plain SVT); Ding, Wang, Zhang & Kifer, PVLDB 13(3), 2019, and JPC 2023 (gaps; Adaptive SVT, its margin and
    split); Liu et al. 2024 (exponential noise, corrections, retries, splits by correction).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from stream_svt.mechanisms.arguments import (
    BranchNoise,
    Reaching,
    checked_integer_or_array,
    checked_noise,
    is_integer,
    reaching,
    require,
)
from stream_svt.mechanisms.contract import (
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
from stream_svt.mechanisms.grid import CORRECTION_LIMIT, GAP_LIMIT, UNREACHABLE, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import RELATIVE_VARIANCE, Law, Noise, mean, variance
from stream_svt.mechanisms.numbers import (
    UNITS_PER_EPSILON,
    Epsilon,
    Number,
    exact,
    integer_of,
    listed,
    loss_of,
    number_of,
    shown,
)

_MAX_BRANCHES = 16
_ATTEMPT_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One comparison of a query with the noisy threshold.

    Attributes:
        name: Name in alerts: "top", "middle", ..
        charge_units: Units of 10^-9 epsilon that a report by this branch costs.
        rate: Rate of its query noise, charge / U, per grid step.
        corrections: Grid steps added to the threshold, by attempt; the last entry applies to later attempts.
    """

    name: str
    charge_units: int
    rate: Fraction
    corrections: tuple[int, ...]

    @property
    def charge(self) -> Fraction:
        """Epsilon that a report by this branch costs."""
        return loss_of(self.charge_units)

    def correction(self, attempt: int) -> int:
        """Return the grid steps added to the threshold at this attempt; 0 is the first."""
        return self.corrections[min(attempt, len(self.corrections) - 1)]

    def steps(self, attempt: Integers | int) -> Integers | int:
        """Return `correction` of one attempt, or of each of an array."""
        if len(self.corrections) == 1:
            return self.corrections[0]
        return np.array(self.corrections, dtype=np.int64).take(attempt, mode="clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVector(Mechanism):
    """Sparse vector with gap; see the module for guarantee and sources. Build it with a function of this module.

    Charge: `threshold_charge` when a run is opened, plus the charge of the branch for each top.

    Attributes:
        epsilon_units: Units of 10^-9 epsilon that one run costs at most, threshold included.
        sensitivity: D: the largest change of an answer between neighbours, in grid steps.
        monotonic: Whether neighbours move all answers of a run in one direction, as counts under adding or removing a
            record. It halves the query noise. A wrong declaration voids the guarantee: the loss is then up to
            (threshold + 2 queries) / (threshold + queries) times the charge, 1.83 at 10 tops, at most 2.
        threshold_units, threshold_rate: Units that the threshold costs, charged before its first comparison, and the
            rate of its noise.
        branches: In the order in which they test a query.
        smallest_units: Units of the cheapest top; a run with fewer units left is over.

    Examples:
        >>> from stream_svt.mechanisms import Uncorrected, sparse_vector
        >>> svt = sparse_vector(epsilon=1, cutoff=1, monotonic=True, correction=Uncorrected())
        >>> svt.threshold_charge, svt.branches[0].charge, svt.branches[0].rate
        (Fraction(1, 2), Fraction(1, 2), Fraction(1, 2))
        >>> run = svt.open(threshold_noise=3, salt=(0, 0))
        >>> values, thresholds, attempts = np.array([90, 110]), np.array([100, 100]), np.array([0, 0])
        >>> run, outcomes = svt.step(run, values, thresholds, attempts, lambda branch: np.array([0, 5]))
        >>> outcomes.tops
        (Top(row=1, branch=0, gap=12, charge_units=500000000, left_units=0, answer=None),)
    """

    epsilon_units: int = field()
    sensitivity: int
    monotonic: bool
    threshold_noise: Noise = Noise.EXPONENTIAL
    query_noise: Noise = Noise.EXPONENTIAL
    threshold_units: int = field()
    threshold_rate: Fraction
    branches: tuple[Branch, ...]
    smallest_units: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        few = 1 <= len(self.branches) <= _MAX_BRANCHES
        require(few, f"a mechanism must have 1 to {_MAX_BRANCHES} branches")
        object.__setattr__(self, "smallest_units", min(branch.charge_units for branch in self.branches))
        Mechanism.__post_init__(self)
        follows = self.threshold_rate == rate_of(self.threshold_units, self.sensitivity)
        require(follows, "threshold_rate must be threshold_units / sensitivity")
        for branch in self.branches:
            require(
                branch.rate == rate_of(branch.charge_units, self.query_sensitivity),
                f"branch {branch.name!r}: its rate must be charge / sensitivity for monotonic queries and "
                "charge / (2 * sensitivity) for others",
            )
            require(
                bool(branch.corrections) and max(map(abs, branch.corrections)) < CORRECTION_LIMIT,
                f"branch {branch.name!r}: corrections must be one or more numbers below 2^48 in magnitude",
            )
        require(not self.is_spent(self.top_units), "epsilon must pay for the threshold and one top")

    @property
    def epsilon(self) -> Fraction:
        """Epsilon that one run costs at most, threshold included."""
        return loss_of(self.epsilon_units)

    @property
    def threshold_law(self) -> Law:
        """Law of a run's threshold noise."""
        return Law(self.threshold_noise, self.threshold_rate)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Laws of the query noise, by branch."""
        return tuple(Law(self.query_noise, branch.rate) for branch in self.branches)

    @property
    def largest_units(self) -> int:
        """Units of the most expensive top."""
        return max(branch.charge_units for branch in self.branches)

    @property
    def cutoff(self) -> int:
        """Number of tops that a run pays for if the most expensive branch reports all of them."""
        return self.top_units // self.largest_units

    def shortened(self, units: int) -> SparseVector | None:
        """Return this mechanism with runs of at most `units`, or None if they cannot pay for one top.

        Noise and corrections stay the same. `epsilon_units` leaves out units that no number of tops could use.
        """
        tops = min(units, self.epsilon_units) - self.threshold_units
        if self.is_spent(tops):
            return None
        smallest = self.smallest_units
        if all(branch.charge_units % smallest == 0 for branch in self.branches):
            tops -= tops % smallest
        return replace(self, epsilon_units=self.threshold_units + tops)

    def top_of(self, gaps: Sequence[int], left: int) -> tuple[int, int, int] | None:
        """Return the top of a test as branch, gap and units left after it; None for a bottom.

        The first branch with gap >= 0 that `left` units pay for reports it.
        """
        for number, branch in enumerate(self.branches):
            if gaps[number] >= 0 and branch.charge_units <= left:
                return number, gaps[number], left - branch.charge_units
        return None

    def reached(
        self,
        values: Integers,
        thresholds: Integers | int,
        rho: Integers | int,
        left: Integers | int,
        attempt: Integers | int,
        noise: Reaching,
    ) -> tuple[Integers, Integers]:
        """Return the tests that reach the noisy threshold at some branch, ascending, and their gaps at all branches.

        Gaps are in grid steps, shape (branches, reaching tests), -1 at branches that a test does not reach. A branch
        that the run of a test cannot pay is never reached, because it could not report. The arguments are the
        unchecked arguments of `step`; `rho` and `left` are the threshold noise and the units left of each test's
        run.
        """
        leasts = []
        for branch in self.branches:
            bars = thresholds + branch.steps(attempt) + rho
            if len(self.branches) > 1:
                is_paid = left >= branch.charge_units
                if isinstance(is_paid, np.ndarray):
                    bars = np.where(is_paid, bars, UNREACHABLE)
                elif not is_paid:
                    bars = UNREACHABLE
            leasts.append(bars - values)
        found = [
            (tests, np.minimum(drawn - least[tests], GAP_LIMIT))
            for least, (tests, drawn) in zip(leasts, noise(leasts), strict=True)
        ]
        if len(found) == 1:
            return found[0][0], found[0][1][np.newaxis]
        reached = np.unique(np.concatenate([tests for tests, _ in found]))
        gaps = np.full((len(found), len(reached)), -1, dtype=np.int64)
        for number, (tests, gap) in enumerate(found):
            gaps[number, np.searchsorted(reached, tests)] = gap
        return reached, gaps

    def step(
        self,
        run: Run,
        values: Integers,
        thresholds: Integers | int,
        attempts: Integers | int,
        noise: BranchNoise,
    ) -> tuple[Run, Outcomes]:
        """Test answers in order until they or the run end; return the next run and the outcomes.

        The caller stores the new run durably before it publishes the outcomes; otherwise a crash could lose the
        charge of a visible top.

        Args:
            values: Answers in grid steps, int64, shape (tests,), below 2^47 in magnitude.
            thresholds, attempts: Public thresholds in grid steps and the number of earlier tests of the same query;
                integers for all tests or shape (tests,).
            noise: Returns the query noise of a branch, int64, shape (tests,); fresh at every attempt.

        Raises:
            RunExhausted: If the run is over; nothing was drawn.
            MisuseError: If another mechanism opened the run, or an argument is not of this form.
        """
        values = self.checked_values(run, values)
        tests = len(values)
        reached, gaps = self.reached(
            values,
            checked_integer_or_array(thresholds, tests, "threshold", 1 - VALUE_LIMIT, VALUE_LIMIT),
            run.threshold_noise,
            run.left_units,
            checked_integer_or_array(attempts, tests, "attempt", 0, _ATTEMPT_LIMIT),
            reaching(checked_noise(noise, tests)),
        )
        left, consumed, tops = run.left_units, tests, list[Top]()
        for row, column in zip(reached.tolist(), gaps.T.tolist(), strict=True):
            if (top := self.top_of(column, left)) is not None:
                branch, gap, rest = top
                tops.append(Top(row=row, branch=branch, gap=gap, charge_units=left - rest, left_units=rest))
                left = rest
                if self.is_spent(left):
                    consumed = row + 1
                    break
        outcomes = Outcomes(consumed=consumed, tops=tuple(tops), charge_units=run.left_units - left)
        return run.after(outcomes), outcomes

    def shifts(self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours) -> Noises:
        """Return the randomness alignment: shifts of the noise with which the values `second` give the same outcomes.

        The threshold noise moves up by D, or 0 if answers only fall, once for all batches of a run. The noise of a
        branch that reported moves by the same plus the fall of its answer, 0 to U in all. Bottoms keep their noise,
        since their answers rise by at most the threshold's shift.
        """
        threshold = self.threshold_shift(neighbours)
        queries = np.zeros((len(self.branches), len(first)), dtype=np.int64)
        for top in outcomes.tops:
            queries[top.branch, top.row] = threshold + int(first[top.row]) - int(second[top.row])
        return Noises(threshold, queries)


class AnswerOptions(TypedDict, total=False):
    """Options of all constructors: properties of the answers, and noise families."""

    monotonic: Required[bool]
    """Declared: neighbours move all answers in one direction."""
    sensitivity: int
    """Declared: largest change of an answer, in grid steps. Default 1."""
    query_noise: Noise
    """Family. Default exponential."""
    threshold_noise: Noise
    """Family. Default exponential."""


class RunOptions(AnswerOptions, total=False):
    """Options of the constructors of mechanisms with several tops."""

    epsilon: Required[Number]
    """Epsilon of one run, all of which is used, rounded down to a multiple of 10^-9."""
    cutoff: Required[int]
    """Number of tops that epsilon pays for at the price of the last branch."""
    correction: Required[Correction]
    """Distance of the bar above the threshold."""


def sparse_vector(*, split: Number | None = None, **options: Unpack[RunOptions]) -> SparseVector:
    """Return plain sparse vector with gap: one branch, `cutoff` tops a run (Lyu, Su & Li 2017; Ding et al. 2019).

    `split` is epsilon of all queries / epsilon of the threshold; None for the default of the correction.
    """
    return _RunOptions.of(options, split=split).build((1,))


def above_threshold(
    *,
    epsilon: Number,
    split: Number = 1,
    correction: Correction | None = None,
    **options: Unpack[AnswerOptions],
) -> SparseVector:
    """Return AboveThreshold (Dwork & Roth 2014, Algorithm 1): report the first answer that reaches a noisy threshold.

    Charge: epsilon, gap included; the threshold's share is spent even if nothing is reported. All noise families are
    allowed, with any rates: the proof by the one-sided Lipschitz condition does not need the equal rates that Durfee
    2023 needs for Gumbel noise. `split` is epsilon of the query / epsilon of the threshold. Dwork & Roth use split 1,
    no correction, Laplace noise and answers that are not monotonic.
    """
    rule = correction or Uncorrected()
    return _RunOptions.of(options, epsilon=epsilon, cutoff=1, correction=rule, split=split).build((1,))


def adaptive(
    *, theta: Number | None = None, margin: int | None = None, **options: Unpack[RunOptions]
) -> SparseVector:
    """Return Adaptive SVT (Ding et al. 2023): a top branch at half the price for large answers, then a middle branch.

    `cutoff` is the number of middle tops that epsilon pays for; a run reports up to twice as many answers.

    Args:
        theta: Share of epsilon of the threshold. None minimises the variance of the middle branch's comparison, or
            uses the default split of `Annealed`.
        margin: Grid steps added to the top branch's corrections. None adds two standard deviations of its noise, as in
            the paper, but nothing for `Exposure` and `Annealed`, which set each branch's bar by its own noise and
            account for the number of branches.
    """
    run = _RunOptions.of(options, split=None)
    share = None if theta is None else number_of(theta, "theta", above=0, below=1)
    if share is None and not isinstance(run.correction, Annealed):
        share = run.least_variance_theta()
    steps = None if margin is None else integer_of(margin, "margin", least=0, limit=CORRECTION_LIMIT)
    return run.build((2, 1), theta=share, margin=steps)


def ladder(
    *,
    split: Number | None = None,
    shares: Sequence[int] = (8, 4, 2, 1),
    margin_scales: Number = 9,
    **options: Unpack[RunOptions],
) -> SparseVector:
    """Return Adaptive SVT with more branches: branch i costs 1/shares[i] of the last branch, called the base.

    If answers lie far above the threshold, it reports up to twice as many as `adaptive` for the same epsilon.

    Args:
        split: As for `sparse_vector`.
        shares: Divisors of the base branch's charge, strictly falling to 1.
        margin_scales: Correction of the other branches in scales of their own noise, except for `Exposure` and
            `Annealed`. Two standard deviations, as in Adaptive SVT, would spend the budget on false alerts.
    """
    parts = [one for one in listed(shares, "shares") if is_integer(one)]
    require(
        len(parts) > 0
        and len(parts) == len(shares)
        and parts[-1] == 1
        and all(a > b for a, b in pairwise(parts)),
        f"shares must be integers that fall strictly and end with 1, such as (8, 4, 2, 1); found {shown(shares)}",
    )
    scales = number_of(margin_scales, "margin_scales", least=0)
    return _RunOptions.of(options, split=split).build(tuple(parts), scales=scales)


_MEANINGS = {
    "epsilon": "the charge of a whole run",
    "cutoff": "the tops that a run pays for",
    "monotonic": "whether neighbours move all answers in one direction, as for counts",
    "correction": "the distance of the bar above the threshold, such as Uncorrected()",
}
"""Arguments without a default, with their descriptions."""


@dataclass(frozen=True, kw_only=True)
class _RunOptions:
    """The options, checked before epsilon is divided; a split of None is the default of the correction."""

    epsilon: Epsilon = Epsilon()
    cutoff: int
    monotonic: bool
    correction: Correction
    sensitivity: int = 1
    query_noise: Noise = Noise.EXPONENTIAL
    threshold_noise: Noise = Noise.EXPONENTIAL
    split: Number | None = None

    @classmethod
    def of(cls, options: AnswerOptions | RunOptions, **others: object) -> _RunOptions:
        """Return options given as keyword arguments; `TypeError` names missing and unknown options."""
        given: dict[str, Any] = {**options, **others}
        required = [name for name in _MEANINGS if name not in given]
        if required:
            listed_names = ", ".join(f"{name} ({_MEANINGS[name]})" for name in required)
            raise TypeError(f"missing keyword arguments: {listed_names}")
        unknown = sorted((set(given) - {one.name for one in fields(cls)}) | (set(options) & set(others)))
        if unknown:
            known = ", ".join(one.name for one in fields(cls) if one.name not in others)
            raise TypeError(f"no such keyword argument: {', '.join(unknown)}. There are {known}")
        return cls(**given)

    def __post_init__(self) -> None:
        check_fields(self)
        a_rule = isinstance(self.correction, Correction)
        require(
            a_rule,
            f"correction must be one of this package, such as Annealed(); found {shown(self.correction)}",
        )

    def least_variance_theta(self) -> Fraction:
        """Return the threshold's share that minimises Var(threshold noise) + Var(noise of the middle branch).

        The closed form for small rates is within 3 % of the minimum up to rates of about 1; above, a search finds it.
        """
        width = 1 if self.monotonic else 2
        families = RELATIVE_VARIANCE[self.query_noise] / RELATIVE_VARIANCE[self.threshold_noise]
        theta = 1 / (1 + (families * width**2 * self.cutoff**2) ** (1 / 3))
        total = float(self.epsilon) / self.sensitivity

        def spread(share: float) -> float:
            of_query = variance(self.query_noise, (1 - share) * total / self.cutoff / width)
            return variance(self.threshold_noise, share * total) + of_query

        if max(theta * total, (1 - theta) * total / self.cutoff / width) > 1:
            bound = math.log(1e6)  # of the log-odds of the share, over which the search runs
            centre, reach = math.log(theta / (1 - theta)), bound
            for _ in range(6):
                grid = [min(bound, max(-bound, centre + reach * (i - 50) / 50)) for i in range(101)]
                centre = min(grid, key=lambda odds: spread(1 / (1 + math.exp(-odds))))
                reach /= 10
            theta = 1 / (1 + math.exp(-centre))
        return Fraction(round(theta * 10**9), 10**9)

    def build(
        self,
        shares: tuple[int, ...],
        *,
        theta: Fraction | None = None,
        margin: int | None = None,
        scales: Fraction | None = None,
    ) -> SparseVector:
        """Divide epsilon into integer units, then derive the rates from the rounded charges.

        The threshold's share theta follows from the split if it is None. The bars of all branches but the last rise by
        `margin` grid steps, by `scales` scales of their noise or by two standard deviations.
        """
        if theta is None:
            split = self.split
            if split is None:
                split = self.correction.default_split(self.cutoff, self.monotonic)
            theta = 1 / (1 + exact(split))
        units = int(self.epsilon * UNITS_PER_EPSILON)
        if margin is None and isinstance(self.correction, Exposure | Annealed):
            margin = 0
        # Every charge is a multiple of the smallest one, so that tops can use all units.
        divisor = math.lcm(*shares)
        base = math.floor(units * (1 - theta) / (self.cutoff * divisor)) * divisor
        require(base > 0, "epsilon is too small to divide among the threshold and this many tops")
        threshold_units = units - self.cutoff * base
        threshold_rate = rate_of(threshold_units, self.sensitivity)
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
            if share == 1:
                name = "middle" if len(shares) > 1 else "top"
            else:
                name = "top" if len(shares) == 2 else f"top/{share}"
                if margin is not None:
                    steps = margin
                elif scales is not None:
                    steps = math.ceil(scales / rate)
                else:
                    steps = math.ceil(2 * math.sqrt(variance(self.query_noise, rate)))
                table = tuple(r + steps for r in table)
            branches.append(Branch(name=name, charge_units=base // share, rate=rate, corrections=table))
        return SparseVector(
            epsilon_units=units,
            sensitivity=self.sensitivity,
            monotonic=self.monotonic,
            threshold_noise=self.threshold_noise,
            query_noise=self.query_noise,
            threshold_units=threshold_units,
            threshold_rate=threshold_rate,
            branches=tuple(branches),
        )
