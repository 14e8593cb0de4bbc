"""Sparse and NumericSparse of the lecture notes: AboveThreshold, again and again.

Guarantee:
    `sparse` repeats `above_threshold` c times on the rest of the stream, each time with a fresh noisy threshold
    (RESAMPLE): c (e0 + e1), or by advanced composition or zCDP an (epsilon, delta), see `Sparse.loss`. A threshold is
    charged when it is drawn, before its first comparison.

    `numeric_sparse` adds one release of q + noise to each top, with rate e2/D: the alignment moves that noise by
    q(D1) - q(D2), up or down, so that it must be of a family that may fall: discrete Laplace. The gap stays free.

Composition of k runs, select adaptively from what earlier ones told, their number and charges fixed at the start:
    * Pure: charges add up, delta = 0.
    * Advanced (Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20): k runs of charge e are
      (sqrt(2 k ln(1/delta)) e + k e (exp(e) - 1), delta)-private, for every delta > 0.
    * zCDP (Bun & Steinke 2016): rho adds up and is converted once. For every alpha > 1 a rho-zCDP release is
      (epsilon, delta)-private with delta = exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)
      (Canonne, Kamath & Steinke 2020, Proposition 12), solved for epsilon; any alpha gives a true bound, the search
      makes it small.

    Figures are floats, computed with a margin of 10^-9 to the safe side.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithms 2 (Sparse) and 3
    (NumericSparse); Theorems 3.25 to 3.28. Durfee, Unbounded Differentially Private Quantile and Maximum Estimation,
    2023: Theorem 1 (zCDP of a round).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import Unpack

import numpy as np

from stream_svt.errors import RunExhausted
from stream_svt.mechanisms.arguments import BranchNoise, checked_noise, parse_choice, require
from stream_svt.mechanisms.contract import (
    UNITS_PER_EPSILON,
    Mechanism,
    Neighbours,
    Noises,
    Outcomes,
    Run,
    check_run,
    mechanism_id,
    rate_of,
    shifts_of_rows,
)
from stream_svt.mechanisms.correction import Correction
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.sparse_vector import AnswerOptions, SparseVector, above_threshold

_SAFETY = 1e-9


class Composition(StrEnum):
    """How the loss of several runs is added up."""

    PURE = "pure"
    ADVANCED = "advanced"
    ZCDP = "zcdp"


def advanced_epsilon(charge: float, runs: int, delta: float) -> float:
    """Epsilon of so many runs, each of this charge under pure differential privacy, by advanced composition."""
    _require_delta(delta)
    total = math.sqrt(2 * runs * math.log(1 / delta)) * charge + runs * charge * math.expm1(charge)
    return total * (1 + _SAFETY)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon for which a rho-zCDP release is (epsilon, delta)-private; at most rho + 2 sqrt(rho ln(1/delta))."""
    from scipy.optimize import minimize_scalar

    _require_delta(delta)
    require(rho >= 0, "rho is 0 or more")
    if rho == 0:
        return 0.0

    def bound(t: float) -> float:
        above = math.exp(t)  # alpha - 1
        alpha = 1 + above
        return alpha * rho - (alpha * math.log1p(1 / above) + t + math.log(delta)) / above

    centre = math.log(math.log(1 / delta) / rho) / 2
    found = minimize_scalar(bound, bounds=(centre - 9, centre + 9), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(found.fun)) * (1 + _SAFETY)


def _require_delta(delta: float) -> None:
    require(0 < delta < 1, "delta lies strictly between 0 and 1; smaller than 1 / the number of people")


class RoundOptions(AnswerOptions, total=False):
    """Options of each round, those of `above_threshold`."""

    split: Fraction
    correction: Correction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse(Mechanism):
    """Repeated AboveThreshold, a fresh threshold after every top; build it with `sparse` or `numeric_sparse`.

    Attributes:
        per_top: The AboveThreshold that is repeated, `cutoff` times in a whole run.
        answer_charge: Units that the number of a top costs; 0 where tops have no numbers.
        answer_noise: Family of its noise, at rate answer_charge/D. Laplace: an alignment moves it down as well as up.
    """

    per_top: SparseVector
    cutoff: int
    answer_charge: int = 0
    answer_noise: Noise = Noise.LAPLACE

    def __post_init__(self) -> None:
        Mechanism.__post_init__(self)
        require(
            len(self.per_top.branches) == self.per_top.cutoff == 1,
            "Sparse repeats a mechanism with one branch and one top: see `above_threshold`",
        )
        require(
            self.answer_noise.may_move_down,
            f"the answers of NumericSparse cannot have {self.answer_noise.value} noise: a neighbour's answer may be "
            "higher, and noise of that family may be moved up only. Use laplace",
        )

    @property
    def epsilon(self) -> int:
        """Units of a whole run under pure differential privacy: cutoff * (threshold + top)."""
        return self.cutoff * self._round_charge

    @property
    def sensitivity(self) -> int:
        """D, in grid steps."""
        return self.per_top.sensitivity

    @property
    def monotonic(self) -> bool:
        """Whether neighbours move all answers the same way."""
        return self.per_top.monotonic

    @property
    def threshold_charge(self) -> int:
        """Units of every threshold drawn."""
        return self.per_top.threshold_charge

    @property
    def threshold_law(self) -> Law:
        """Law of every threshold noise."""
        return self.per_top.threshold_law

    @property
    def answer_law(self) -> Law:
        """Law of the noise of the numbers."""
        return Law(self.answer_noise, rate_of(self.answer_charge, self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Laws of the query noise and, where tops have numbers, of the noise of these."""
        return (*self.per_top.branch_laws, *([self.answer_law] if self.answer_charge else []))

    @property
    def smallest_charge(self) -> int:
        """Units of a top and its number."""
        return self.per_top.smallest_charge + self.answer_charge

    @property
    def _round_charge(self) -> int:
        """Units of a threshold, its top and that top's number."""
        return self.threshold_charge + self.smallest_charge

    @property
    def rho(self) -> float:
        """Zero-concentrated loss of a whole run, charged for a round when its threshold is drawn.

        (e0 + 2 e1)^2 / 8 a round for monotonic answers, the log-ratio lying in an interval of that width (Cesar &
        Rogers 2021; Durfee 2023, Theorem 1), (e0 + e1)^2 / 2 for others (Bun & Steinke 2016). A number adds e2^2 / 2.
        """
        charges = (self.threshold_charge, self.per_top.smallest_charge, self.answer_charge)
        e0, e1, e2 = (units / UNITS_PER_EPSILON for units in charges)
        comparison = (e0 + 2 * e1) ** 2 / 8 if self.monotonic else (e0 + e1) ** 2 / 2
        return self.cutoff * (comparison + e2**2 / 2)

    def loss(self, composition: Composition, delta: float = 0.0) -> float:
        """Epsilon of a whole run for a delta in (0, 1), by one of the ways to add up its rounds."""
        match parse_choice(Composition, composition, "composition"):
            case Composition.PURE:
                return self.epsilon / UNITS_PER_EPSILON
            case Composition.ADVANCED:
                return advanced_epsilon(self._round_charge / UNITS_PER_EPSILON, self.cutoff, delta)
            case Composition.ZCDP:
                return zcdp_epsilon(self.rho, delta)

    def needs_threshold(self, run: Run) -> bool:
        """Whether the threshold of the run is used up and the run can go on with a fresh one."""
        return run.left > 0 and run.left % self._round_charge == 0

    def resample(self, run: Run, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Go on after a top with a fresh threshold noise, which is charged; durable before the next test."""
        check_run(run, self, self.epsilon - self.threshold_charge)
        require(
            self.needs_threshold(run),
            "a fresh threshold is drawn after a top of a run that has more to spend",
        )
        return replace(self.open(threshold_noise, salt), left=run.left - self.threshold_charge, tops=run.tops)

    def step(
        self,
        run: Run,
        values: Integers,
        thresholds: Integers | int,
        attempts: Integers | int,
        noise: BranchNoise,
    ) -> tuple[Run, Outcomes]:
        """Test answers in order until they end or one is reported; then `resample` and go on with the rest.

        Arguments are those of `SparseVector.step`; the noise of branch 1 is that of the numbers.

        Raises:
            RunExhausted: When the run is over, or its threshold is used up; nothing was drawn.
        """
        values = self.checked_values(run, values)
        if self.needs_threshold(run):
            raise RunExhausted(
                "the threshold of this run has reported its top; draw a fresh one with `resample`, or open a new run"
            )
        part = replace(run, mechanism=mechanism_id(self.per_top), left=self.per_top.smallest_charge)
        _, outcomes = self.per_top.step(part, values, thresholds, attempts, noise)
        charge = len(outcomes.tops) * self.smallest_charge
        left, tops = run.left - charge, list(outcomes.tops)
        for number, top in enumerate(tops):
            answer = None
            if self.answer_charge:
                answer = int(values[top.row] + checked_noise(noise, len(values))(1)[top.row])
            tops[number] = replace(top, charge=charge, left=left, answer=answer)
        outcomes = replace(outcomes, tops=tuple(tops), charge=charge)
        return run.after(outcomes), outcomes

    def shifts(self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours) -> Noises:
        """Randomness alignment of the tests under one threshold: that of `SparseVector.shifts`.

        Besides, a number's noise makes up for its answer's change.
        """
        found = self.per_top.shifts(outcomes, first, second, neighbours)
        if not self.answer_charge:
            return found
        answers = shifts_of_rows(first, second, outcomes.rows, 0)
        return Noises(found.threshold, np.vstack([found.queries, answers]))


def sparse(
    *,
    epsilon: int,
    cutoff: int,
    delta: float = 0.0,
    composition: Composition = Composition.PURE,
    answer_share: Fraction = Fraction(0),
    answer_noise: Noise = Noise.LAPLACE,
    **options: Unpack[RoundOptions],
) -> Sparse:
    """Sparse (Dwork & Roth 2014, Algorithm 2): up to `cutoff` tops, each with a threshold of its own.

    Args:
        epsilon, delta: What the whole run may lose: units of 10^-9, and a probability (0 for pure composition).
        composition: How its rounds are added up. Each gets the largest charge that keeps the total within epsilon
            and delta; for few tops pure composition leaves more than advanced composition does.
        answer_share: Share of each round's charge that the number of a top gets; 0 for tops without numbers.
        answer_noise: Laplace; others are refused with the reason.
        options: Those of `above_threshold` for each round.
    """
    require(0 <= answer_share < 1, "the share of the answers is at least 0 and less than 1")
    require(cutoff >= 1, "cutoff must be at least 1")
    composition = parse_choice(Composition, composition, "composition")

    def build(units: int) -> Sparse:
        answer = math.floor(units * answer_share)
        require(not answer_share or answer > 0, "epsilon is too small to be divided among so many answers")
        per_top = above_threshold(epsilon=units - answer, **options)
        return Sparse(per_top=per_top, cutoff=cutoff, answer_charge=answer, answer_noise=answer_noise)

    if composition is Composition.PURE:
        require(
            not delta, "pure composition has no use for a delta: leave it out, or compose by zcdp or advanced"
        )
        return build(epsilon // cutoff)
    limit = epsilon / UNITS_PER_EPSILON
    # What fits still does with fewer units.
    most = bisect_left(
        range(1, epsilon + 1), True, key=lambda units: build(units).loss(composition, delta) > limit
    )
    require(most > 0, "epsilon is too small to be divided among so many runs")
    return build(most)


numeric_sparse = partial(sparse, answer_share=Fraction(1, 9))
"""NumericSparse (Dwork & Roth 2014, Algorithm 3): also gives the answers it reports; the share is the lecture's."""
