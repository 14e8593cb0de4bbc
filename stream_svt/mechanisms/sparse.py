"""Sparse and NumericSparse of the lecture notes: AboveThreshold, again and again.

`sparse` goes on with a fresh noisy threshold until it has found c (RESAMPLE); `numeric_sparse` also gives the
answers it found, with fresh noise.

Guarantee:
    `Sparse` repeats `above_threshold` c times on the rest of the stream: c (e0 + e1), or by advanced composition or
    zCDP an (epsilon, delta), see `Sparse.loss`. A threshold is charged when it is drawn, before its first
    comparison.

    `NumericSparse` adds one release of q + noise to each top, with rate e2/D: the alignment moves that noise by
    q(D1) - q(D2), up or down, so that it must be of a family that may fall: discrete Laplace. The gap stays
    free.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithms 2 (Sparse) and 3
    (NumericSparse); Theorems 3.25 to 3.28.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Required, TypedDict, TypeVar, Unpack

import numpy as np

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms.above_threshold import above_threshold, above_threshold_rho
from stream_svt.mechanisms.arguments import noise_of_each, one_of, require_own
from stream_svt.mechanisms.composition import (
    Composition,
    advanced_epsilon,
    largest_charge,
    zcdp_epsilon,
)
from stream_svt.mechanisms.contract import Law, Neighbours, Shifts
from stream_svt.mechanisms.correction import Correction
from stream_svt.mechanisms.grid import LEAST_RATE
from stream_svt.mechanisms.noise import Noise, set_families
from stream_svt.mechanisms.run import (
    UNITS_PER_EPSILON,
    BranchNoise,
    Integers,
    Outcomes,
    Run,
    Top,
    mechanism_id,
)
from stream_svt.mechanisms.sparse_vector import SparseVector

LECTURE_ANSWER_SHARE = Fraction(1, 9)
"""Share of NumericSparse's epsilon that its answers get in the lecture."""

_Repeated = TypeVar("_Repeated", bound="Sparse")


class RoundOptions(TypedDict, total=False):
    """Options of each round, those of `above_threshold`."""

    monotonic: Required[bool]
    sensitivity: int
    query_noise: Noise
    threshold_noise: Noise
    split: Fraction
    correction: Correction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericTop(Top):
    """A reported answer with a number of its own noise.

    Attributes:
        answer: The answer plus fresh discrete Laplace noise, in grid steps; unbiased.
    """

    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """Repeated AboveThreshold, a fresh threshold after every top; build it with `sparse`.

    Attributes:
        per_top: The AboveThreshold that is repeated.
        cutoff: Tops of a whole run.
    """

    per_top: SparseVector
    cutoff: int

    def __post_init__(self) -> None:
        """Refuse a part that would report more than one top."""
        if self.cutoff < 1:
            raise MisuseError("cutoff must be at least 1")
        if len(self.per_top.branches) != 1 or self.per_top.cutoff != 1:
            raise MisuseError("Sparse repeats a mechanism with one branch and one top: see `above_threshold`")

    @property
    def answer_charge(self) -> int:
        """Units that the number of a top costs: none here."""
        return 0

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
    def query_sensitivity(self) -> int:
        """U, in grid steps."""
        return self.per_top.query_sensitivity

    @property
    def threshold_charge(self) -> int:
        """Units of every threshold drawn."""
        return self.per_top.threshold_charge

    @property
    def threshold_law(self) -> Law:
        """Law of every threshold noise."""
        return self.per_top.threshold_law

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise."""
        return self.per_top.branch_laws

    @property
    def _round_charge(self) -> int:
        """Units of a threshold, its top and that top's number."""
        return self.threshold_charge + self._top_charge

    @property
    def _top_charge(self) -> int:
        return self.per_top.smallest_charge + self.answer_charge

    @property
    def rho(self) -> float:
        """Zero-concentrated loss of a whole run, charged for a round when its threshold is drawn."""
        return self.cutoff * (
            above_threshold_rho(self.per_top) + (self.answer_charge / UNITS_PER_EPSILON) ** 2 / 2
        )

    def loss(self, composition: Composition, delta: float = 0.0) -> float:
        """Epsilon of a whole run for a delta, by one of the ways to add up its rounds.

        Raises:
            MisuseError: For a delta outside (0, 1), where the composition needs one, and for what is no
                composition.
        """
        match one_of(Composition, composition, "composition"):
            case Composition.PURE:
                return self.epsilon / UNITS_PER_EPSILON
            case Composition.ADVANCED:
                return advanced_epsilon(self._round_charge / UNITS_PER_EPSILON, self.cutoff, delta)
            case Composition.ZCDP:
                return zcdp_epsilon(self.rho, delta)

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run with a fresh threshold noise; its charge is spent before the first test."""
        opened = self.per_top.open(threshold_noise, salt)
        return replace(opened, mechanism=mechanism_id(self), left=self.epsilon - self.threshold_charge)

    def needs_threshold(self, run: Run) -> bool:
        """Whether the threshold of the run is used up and the run can go on with a fresh one."""
        return run.left > 0 and run.left % self._round_charge == 0

    def resample(self, run: Run, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Go on after a top with a fresh threshold noise, which is charged; durable before the next test.

        Raises:
            MisuseError: When the threshold in force has not reported its top: a second draw would cost it
                again. For a run of another mechanism.
        """
        require_own(run, self, self.epsilon - self.threshold_charge)
        if not self.needs_threshold(run):
            raise MisuseError("a fresh threshold is drawn after a top of a run that has more to spend")
        opened = self.per_top.open(threshold_noise, salt)
        return replace(opened, mechanism=run.mechanism, left=run.left - self.threshold_charge, tops=run.tops)

    def is_over(self, run: Run) -> bool:
        """Whether all tops of the run are used."""
        return run.left < self._top_charge

    def step(
        self,
        run: Run,
        values: Integers,
        thresholds: Integers | int,
        attempts: Integers | int,
        noise: BranchNoise,
    ) -> tuple[Run, Outcomes]:
        """Test answers in order until they end or one is reported; then `resample` and go on with the rest.

        Arguments are those of `SparseVector.step`.

        Raises:
            RunExhausted: When the run is over, or its threshold is used up; nothing was drawn.
            MisuseError: As `SparseVector.step`.
        """
        require_own(run, self, self.epsilon - self.threshold_charge)
        if self.is_over(run) or self.needs_threshold(run):
            raise RunExhausted(
                "the threshold of this run has reported its top; draw a fresh one with `resample`, or open a new run"
            )
        part = replace(run, mechanism=mechanism_id(self.per_top), left=self.per_top.smallest_charge)
        _, outcomes = self.per_top.step(part, values, thresholds, attempts, noise)
        tops = tuple(self._reported(run, top, values, noise) for top in outcomes.tops)
        left = run.left - sum(top.charge for top in tops)
        return (
            replace(run, left=left, tops=run.tops + len(tops)),
            Outcomes(consumed=outcomes.consumed, tops=tops),
        )

    def _reported(self, run: Run, top: Top, _values: Integers, _noise: BranchNoise) -> Top:
        """Return the top with what the whole run has left."""
        return replace(top, left=run.left - top.charge)

    def shifts(self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours) -> Shifts:
        """Randomness alignment of the tests under one threshold: that of `SparseVector.shifts`."""
        return self.per_top.shifts(outcomes, first, second, neighbours)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericSparse(Sparse):
    """Sparse that gives every answer it reports, with fresh noise; build it with `numeric_sparse`.

    `step` asks `noise(0)` for the query noise and `noise(1)` for the noise of the answers.

    Attributes:
        charge: Units of 10^-9 epsilon that the number of one top costs.
        noise: Family of its noise, at rate charge/D. Laplace: an alignment moves it down as well as up.
    """

    charge: int
    noise: Noise = Noise.LAPLACE

    def __post_init__(self) -> None:
        """Refuse noise that may not move down, and noise wider than the grid."""
        Sparse.__post_init__(self)
        set_families(self, "noise")
        if not self.noise.may_fall:
            raise MisuseError(
                f"the answers of NumericSparse cannot have {self.noise.value} noise: a neighbour's answer may be "
                "higher, and noise of that family may be moved up only. Use laplace"
            )
        if self.answer_law.rate < LEAST_RATE:
            raise MisuseError("noise of the answers would be wider than the grid: raise epsilon")

    @property
    def answer_charge(self) -> int:
        """Units that the number of a top costs."""
        return self.charge

    @property
    def answer_law(self) -> Law:
        """Law of the noise of the answers."""
        return Law(self.noise, Fraction(self.charge, UNITS_PER_EPSILON * self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Laws of the query noise and of the noise of the answers."""
        return (*self.per_top.branch_laws, self.answer_law)

    def _reported(self, run: Run, top: Top, values: Integers, noise: BranchNoise) -> Top:
        """Return the top with its number."""
        charge = top.charge + self.charge
        return NumericTop(
            row=top.row,
            branch=top.branch,
            gap=top.gap,
            charge=charge,
            left=run.left - charge,
            answer=int(values[top.row]) + int(noise_of_each(noise, len(values))(1)[top.row]),
        )

    def shifts(self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours) -> Shifts:
        """Randomness alignment: besides that of `Sparse`, a number's noise makes up for its answer's change."""
        found = self.per_top.shifts(outcomes, first, second, neighbours)
        answers = np.zeros((1, len(first)), dtype=np.int64)
        for top in outcomes.tops:
            answers[0, top.row] = int(first[top.row]) - int(second[top.row])
        return Shifts(found.threshold, np.concatenate([found.queries, answers]))


def sparse(
    *,
    epsilon: int,
    cutoff: int,
    delta: float = 0.0,
    composition: Composition = Composition.PURE,
    **options: Unpack[RoundOptions],
) -> Sparse:
    """Sparse (Dwork & Roth 2014, Algorithm 2): up to `cutoff` tops, each with a threshold of its own.

    Args:
        epsilon, delta: What the whole run may lose: units of 10^-9, and a probability (0 for pure
            composition).
        composition: How its rounds are added up. Each round gets the largest charge that keeps the total
            within epsilon and delta; for few tops pure composition leaves more than advanced composition
            does.
        options: Those of `above_threshold` for each round.

    Raises:
        MisuseError: When epsilon is too small, or a delta is missing or given where it has no use.
    """

    def build(units: int) -> Sparse:
        return Sparse(per_top=above_threshold(epsilon=units, **options), cutoff=cutoff)

    return _fitted(build, epsilon=epsilon, cutoff=cutoff, composition=composition, delta=delta)


def numeric_sparse(
    *,
    epsilon: int,
    cutoff: int,
    delta: float = 0.0,
    composition: Composition = Composition.PURE,
    answer_share: Fraction = LECTURE_ANSWER_SHARE,
    answer_noise: Noise = Noise.LAPLACE,
    **options: Unpack[RoundOptions],
) -> NumericSparse:
    """NumericSparse (Dwork & Roth 2014, Algorithm 3): Sparse that also gives the answers it reports.

    Args:
        answer_share: Share of each round's charge that the number gets; one ninth in the lecture.
        answer_noise: Laplace; others are refused with the reason.

    See `sparse` for the others.
    """
    if not 0 < answer_share < 1:
        raise MisuseError("the share of the answers lies strictly between 0 and 1")

    def build(units: int) -> NumericSparse:
        answer = math.floor(units * answer_share)
        if answer == 0:
            raise MisuseError("epsilon is too small to be divided among so many answers")
        per_top = above_threshold(epsilon=units - answer, **options)
        return NumericSparse(per_top=per_top, cutoff=cutoff, charge=answer, noise=answer_noise)

    return _fitted(build, epsilon=epsilon, cutoff=cutoff, composition=composition, delta=delta)


def _fitted(
    build: Callable[[int], _Repeated], *, epsilon: int, cutoff: int, composition: Composition, delta: float
) -> _Repeated:
    """Return the repetition with the largest charge per round whose whole loss is within epsilon and delta."""
    if cutoff < 1:
        raise MisuseError("cutoff must be at least 1")
    composition = one_of(Composition, composition, "composition")
    if composition is Composition.PURE:
        if delta:
            raise MisuseError(
                "pure composition has no use for a delta: leave it out, or compose by zcdp or advanced"
            )
        return build(epsilon // cutoff)
    limit = epsilon / UNITS_PER_EPSILON
    return build(
        largest_charge(epsilon, lambda units: build(units).loss(composition, delta) <= limit),
    )
