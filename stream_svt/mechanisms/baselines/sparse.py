"""Sparse and NumericSparse of Dwork & Roth 2014: AboveThreshold, repeated.

Guarantee:
    `sparse` runs `above_threshold` c times in succession on the stream, each time with a fresh noisy threshold
    (RESAMPLE). The loss is c (e0 + e1), or an (epsilon, delta) by advanced composition or zCDP, see `Sparse.loss`. A
    threshold is charged when it is drawn, before its first comparison.

    `numeric_sparse` also releases q + noise for each top, with rate e2/D. The alignment moves this noise by
    q(D1) - q(D2), up or down, so it must be discrete Laplace noise. The gap remains free.

Composition of k runs, chosen adaptively from earlier outputs, with number and charges fixed at the start:
    * Pure: charges add up, delta = 0.
    * Advanced (Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20): k runs of charge e are
      (sqrt(2 k ln(1/delta)) e + k e (exp(e) - 1), delta)-private, for every delta > 0.
    * zCDP (Bun & Steinke 2016): rho adds up and is converted once. For every alpha > 1 a rho-zCDP release is
      (epsilon, delta)-private with delta = exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)
      (Canonne, Kamath & Steinke 2020, Proposition 12), solved for epsilon. Every alpha gives a valid bound; a search
      finds a small one.

    Results are floats, rounded up by a relative margin of 10^-9.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithms 2 (Sparse) and 3
    (NumericSparse); Theorems 3.25 to 3.28.
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
    Mechanism,
    Neighbours,
    Noises,
    Outcomes,
    Run,
    check_run,
    mechanism_id,
    rate_of,
)
from stream_svt.mechanisms.correction import Correction
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.numbers import Number, epsilon_units, integer_of, loss_of, number_of
from stream_svt.mechanisms.sparse_vector import AnswerOptions, SparseVector, above_threshold

_SAFETY = 1e-9


class Composition(StrEnum):
    """How the loss of several runs is composed."""

    PURE = "pure"
    ADVANCED = "advanced"
    ZCDP = "zcdp"


def advanced_epsilon(charge: Number, runs: int, delta: Number) -> float:
    """Return epsilon of `runs` runs, each of the given charge in epsilon, by advanced composition."""
    each, chance = float(number_of(charge, "charge", least=0)), _checked_delta(delta)
    integer_of(runs, "runs", least=1)
    total = math.sqrt(2 * runs * math.log(1 / chance)) * each + runs * each * math.expm1(each)
    return total * (1 + _SAFETY)


def zcdp_epsilon(rho: Number, delta: Number) -> float:
    """Return an epsilon, at most rho + 2 sqrt(rho ln(1/delta)), for which rho-zCDP is (epsilon, delta)-private."""
    from scipy.optimize import minimize_scalar

    loss, chance = float(number_of(rho, "rho", least=0)), _checked_delta(delta)
    if loss == 0:
        return 0.0

    def bound(t: float) -> float:
        above = math.exp(t)  # alpha - 1
        alpha = 1 + above
        return alpha * loss - (alpha * math.log1p(1 / above) + t + math.log(chance)) / above

    centre = math.log(math.log(1 / chance) / loss) / 2
    bounds = (centre - 9, centre + 9)
    smallest = minimize_scalar(bound, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(smallest.fun)) * (1 + _SAFETY)


def _checked_delta(delta: Number) -> float:
    """Return a delta, which should be below 1 / the number of people; `MisuseError` unless 0 < delta < 1."""
    return float(number_of(delta, "delta", above=0, below=1))


class RoundOptions(AnswerOptions, total=False):
    """Options of each round, as for `above_threshold`."""

    split: Number
    correction: Correction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse(Mechanism):
    """Repeated AboveThreshold with a fresh threshold after every top (Dwork & Roth 2014, Algorithms 2 and 3).

    Build it with `sparse` or `numeric_sparse`. Charge: that of the threshold when drawn, then that of the top.

    Attributes:
        per_top: The AboveThreshold of each round.
        cutoff: Number of rounds in a run.
        answer_units: Units that the released answer of a top costs; 0 if answers are not released.
        answer_noise: Family of its noise, at rate answer_units/D. Laplace, since an alignment moves it both ways.
    """

    per_top: SparseVector
    cutoff: int
    answer_units: int = 0
    answer_noise: Noise = Noise.LAPLACE

    def __post_init__(self) -> None:
        Mechanism.__post_init__(self)
        single = len(self.per_top.branches) == self.per_top.cutoff == 1
        require(single, "Sparse needs a mechanism with one branch and one top, built with `above_threshold`")
        require(
            self.answer_noise.may_move_down,
            f"the answers of NumericSparse cannot have {self.answer_noise.value} noise: an alignment must move it both "
            "ways, and noise of this family only up. Use laplace",
        )

    @property
    def epsilon(self) -> Fraction:
        """Epsilon of a run under pure differential privacy: cutoff * (threshold + top + answer)."""
        return loss_of(self.epsilon_units)

    @property
    def epsilon_units(self) -> int:
        """The same in units."""
        return self.cutoff * self._round_units

    @property
    def sensitivity(self) -> int:
        """D, in grid steps."""
        return self.per_top.sensitivity

    @property
    def monotonic(self) -> bool:
        """Whether neighbours move all answers in one direction."""
        return self.per_top.monotonic

    @property
    def threshold_units(self) -> int:
        """Units that each drawn threshold costs."""
        return self.per_top.threshold_units

    @property
    def threshold_law(self) -> Law:
        """Law of each threshold noise."""
        return self.per_top.threshold_law

    @property
    def answer_law(self) -> Law:
        """Law of the noise of released answers."""
        return Law(self.answer_noise, rate_of(self.answer_units, self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Laws of the query noise and, if answers are released, of their noise."""
        return (*self.per_top.branch_laws, *([self.answer_law] if self.answer_units else []))

    @property
    def smallest_units(self) -> int:
        """Units of a top and its released answer."""
        return self.per_top.smallest_units + self.answer_units

    @property
    def _round_units(self) -> int:
        """Units of a threshold, its top and the released answer."""
        return self.threshold_units + self.smallest_units

    @property
    def rho(self) -> float:
        """Loss of a run under zCDP; each round is charged when its threshold is drawn.

        A round costs (e0 + 2 e1)^2 / 8 for monotonic answers (Cesar & Rogers 2021; Durfee 2023, Theorem 1) and
        (e0 + e1)^2 / 2 for others (Bun & Steinke 2016). A released answer adds e2^2 / 2.
        """
        charges = (self.threshold_units, self.per_top.smallest_units, self.answer_units)
        e0, e1, e2 = (float(loss_of(units)) for units in charges)
        comparison = (e0 + 2 * e1) ** 2 / 8 if self.monotonic else (e0 + e1) ** 2 / 2
        return self.cutoff * (comparison + e2**2 / 2)

    def loss(self, composition: Composition | str, delta: Number = 0) -> float:
        """Return epsilon of a run by a composition of its rounds, for a delta in (0, 1) unless it is pure."""
        match parse_choice(Composition, composition, "composition"):
            case Composition.PURE:
                return float(self.epsilon)
            case Composition.ADVANCED:
                return advanced_epsilon(loss_of(self._round_units), self.cutoff, delta)
            case Composition.ZCDP:
                return zcdp_epsilon(self.rho, delta)

    def needs_threshold(self, run: Run) -> bool:
        """Whether the run has reported a top and can continue with a fresh threshold."""
        return run.left_units > 0 and run.left_units % self._round_units == 0

    def resample(self, run: Run, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Return the run with a fresh threshold noise after a top, charged; store it durably before the next test."""
        check_run(run, self, self.top_units)
        require(
            self.needs_threshold(run), "a fresh threshold is drawn only after a top, in a run with units left"
        )
        left = run.left_units - self.threshold_units
        return replace(self.open(threshold_noise, salt), left_units=left, tops=run.tops)

    def step(
        self,
        run: Run,
        values: Integers,
        thresholds: Integers | int,
        attempts: Integers | int,
        noise: BranchNoise,
    ) -> tuple[Run, Outcomes]:
        """Test answers in order until they end or one is reported; then call `resample` and test the rest.

        Arguments are those of `SparseVector.step`; `noise(1)` is the noise of released answers.

        Raises:
            RunExhausted: If the run is over or needs a fresh threshold; nothing was drawn.
        """
        values = self.checked_values(run, values)
        if self.needs_threshold(run):
            raise RunExhausted(
                "the threshold of this run has reported its top; draw a fresh one with `resample`, or open a new run"
            )
        round_run = replace(run, mechanism=mechanism_id(self.per_top), left_units=self.per_top.smallest_units)
        _, outcomes = self.per_top.step(round_run, values, thresholds, attempts, noise)
        if outcomes.tops:
            (top,), charge, answer = outcomes.tops, self.smallest_units, None
            if self.answer_units:
                answer = int(values[top.row] + checked_noise(noise, len(values))(1)[top.row])
            top = replace(top, charge_units=charge, left_units=run.left_units - charge, answer=answer)
            outcomes = replace(outcomes, tops=(top,), charge_units=charge)
        return run.after(outcomes), outcomes

    def shifts(self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours) -> Noises:
        """Return the alignment of `SparseVector.shifts`; the noise of a released answer moves by the answer's fall."""
        shifts = self.per_top.shifts(outcomes, first, second, neighbours)
        if not self.answer_units:
            return shifts
        answers = self.shifts_of_rows(first, second, outcomes.rows, 0)
        return Noises(shifts.threshold, np.vstack([shifts.queries, answers]))


def sparse(
    *,
    epsilon: Number,
    cutoff: int,
    delta: Number = 0,
    composition: Composition | str = Composition.PURE,
    answer_share: Number = 0,
    answer_noise: Noise = Noise.LAPLACE,
    **options: Unpack[RoundOptions],
) -> Sparse:
    """Return Sparse (Dwork & Roth 2014, Algorithm 2): up to `cutoff` tops, each with its own noisy threshold.

    Args:
        epsilon, delta: Limits of the loss of a run; delta is 0 for pure composition.
        composition: How rounds compose. Each round gets the largest charge within the limits; for few tops pure
            composition allows a larger one than advanced composition.
        answer_share: Share of each round's charge for the released answer; 0 to release no answers.
        answer_noise: Laplace; other families are a `MisuseError` that gives the reason.
        options: Options of `above_threshold` for each round.
    """
    share = number_of(answer_share, "answer_share", least=0, below=1)
    total, rounds = epsilon_units(epsilon), integer_of(cutoff, "cutoff", least=1)
    composition = parse_choice(Composition, composition, "composition")

    def build(units: int) -> Sparse:
        answer = math.floor(units * share)
        require(
            units > 0 and (not share or answer > 0), "epsilon is too small to divide among this many answers"
        )
        per_top = above_threshold(epsilon=loss_of(units - answer), **options)
        return Sparse(per_top=per_top, cutoff=rounds, answer_units=answer, answer_noise=answer_noise)

    if composition is Composition.PURE:
        require(not delta, "pure composition takes no delta: leave it out, or compose by zcdp or advanced")
        return build(total // rounds)
    limit = float(loss_of(total))  # the loss grows with the units of a round
    charges = range(1, total + 1)
    largest = bisect_left(charges, True, key=lambda units: build(units).loss(composition, delta) > limit)
    require(largest > 0, "epsilon is too small to divide among this many rounds")
    return build(largest)


numeric_sparse = partial(sparse, answer_share=Fraction(1, 9))
"""NumericSparse (Dwork & Roth 2014, Algorithm 3): `sparse` that also releases reported answers, with their share."""
