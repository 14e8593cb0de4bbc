"""AboveThreshold, Sparse and NumericSparse of the lecture notes, with their accuracy as functions.

`above_threshold` finds the first answer that reaches a noisy threshold; `sparse` goes on with a fresh noisy
threshold until it has found c (RESAMPLE); `numeric_sparse` also gives the answers it found, with fresh noise.

Guarantee:
    `above_threshold` is a sparse-vector run with one top: threshold_charge + charge, gap included, with any
    family of noise for either (Durfee 2023 needs equal rates for Gumbel noise; the one-sided Lipschitz
    condition does not). Under zCDP it costs (e0 + 2 e1)^2 / 8 for monotonic answers, since its log-ratio lies
    in an interval of that width: [-(e0 + e1), e1], and (e0 + e1)^2 / 2 for others.

    `Sparse` repeats it c times on the rest of the stream: c (e0 + e1), or by advanced composition or zCDP an
    (epsilon, delta), see `Sparse.loss`. A threshold is charged when it is drawn, before its first comparison.

    `NumericSparse` adds one release of q + noise to each top, with rate e2/D: the alignment moves that noise by
    q(D1) - q(D2), up or down, so that it must be of a family that may fall: discrete Laplace. The gap stays
    free.

Accuracy:
    An output on k queries is alpha-accurate if no top has an answer below T - alpha and no bottom one above T +
    alpha. `dwork_roth_alpha` gives the lecture's alpha for a failure probability beta, `accuracy` ours, for the
    noise in use on the grid: with r the correction,

        a top  with q <= T - alpha - 1 needs  query noise - threshold noise - r >= alpha + 1
        a bottom with q >= T + alpha + 1 needs  query noise - threshold noise - r <= -alpha - 2

    Each needs one of k query noises or of c threshold noises beyond some quantile, so the sum of those
    probabilities bounds the failure; half of beta goes to either side, and the share of the threshold noise is
    searched for. Like the lecture's theorems these hold for the queries tested: a run that has reported c tops
    tests no more.

References:
    Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014: Algorithms 1 (AboveThreshold), 2
    (Sparse), 3 (NumericSparse); Theorems 3.23 to 3.28. Durfee, Unbounded Differentially Private Quantile and
    Maximum Estimation, 2023: AboveThreshold with Laplace, Gumbel and exponential noise, and its zCDP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms.arguments import noise_of_each, one_of, require_own
from stream_svt.mechanisms.composition import (
    Composition,
    advanced_epsilon,
    largest_charge,
    zcdp_epsilon,
)
from stream_svt.mechanisms.contract import Law, Neighbours, Shifts
from stream_svt.mechanisms.correction import Correction, Uncorrected
from stream_svt.mechanisms.grid import LEAST_RATE
from stream_svt.mechanisms.noise import Noise, head, set_families, tail
from stream_svt.mechanisms.run import (
    UNITS_PER_EPSILON,
    BranchNoise,
    Integers,
    Outcomes,
    Run,
    Top,
    mechanism_id,
)
from stream_svt.mechanisms.search import least
from stream_svt.mechanisms.sparse_vector import SparseVector, sparse_vector

LECTURE_ANSWER_SHARE = Fraction(1, 9)
"""Share of NumericSparse's epsilon that its answers get in the lecture."""

_Repeated = TypeVar("_Repeated", bound="Sparse")

_SHARES = 64
_ROUNDING = 1 + 1e-9


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


def above_threshold(
    *,
    epsilon: int,
    monotonic: bool,
    sensitivity: int = 1,
    query_noise: Noise = Noise.EXPONENTIAL,
    threshold_noise: Noise = Noise.EXPONENTIAL,
    split: Fraction = Fraction(1),
    correction: Correction | None = None,
) -> SparseVector:
    """AboveThreshold (Dwork & Roth 2014, Algorithm 1): report the first answer that reaches a noisy threshold.

    With Laplace noise and answers that are not monotonic it is the lecture's, which halves epsilon (split 1).
    Charge: epsilon, of which the threshold's part is spent even if nothing is reported.

    Args:
        epsilon: Units of 10^-9.
        split: Epsilon of the query / epsilon of the threshold.
        correction: None for none, as in the lecture.

    See `stream_svt.mechanisms.sparse_vector.sparse_vector` for the others.
    """
    return sparse_vector(
        epsilon=epsilon,
        cutoff=1,
        monotonic=monotonic,
        correction=correction or Uncorrected(),
        sensitivity=sensitivity,
        query_noise=query_noise,
        threshold_noise=threshold_noise,
        split=split,
    )


def sparse(
    *,
    epsilon: int,
    cutoff: int,
    monotonic: bool,
    delta: float = 0.0,
    composition: Composition = Composition.PURE,
    sensitivity: int = 1,
    query_noise: Noise = Noise.EXPONENTIAL,
    threshold_noise: Noise = Noise.EXPONENTIAL,
    split: Fraction = Fraction(1),
    correction: Correction | None = None,
) -> Sparse:
    """Sparse (Dwork & Roth 2014, Algorithm 2): up to `cutoff` tops, each with a threshold of its own.

    Args:
        epsilon, delta: What the whole run may lose: units of 10^-9, and a probability (0 for pure
            composition).
        composition: How its rounds are added up. Each round gets the largest charge that keeps the total
            within epsilon and delta; for few tops pure composition leaves more than advanced composition
            does.

    See `above_threshold` for the others.

    Raises:
        MisuseError: When epsilon is too small, or a delta is missing or given where it has no use.
    """

    def build(units: int) -> Sparse:
        return Sparse(
            per_top=above_threshold(
                epsilon=units,
                monotonic=monotonic,
                sensitivity=sensitivity,
                query_noise=query_noise,
                threshold_noise=threshold_noise,
                split=split,
                correction=correction,
            ),
            cutoff=cutoff,
        )

    return _fitted(build, epsilon=epsilon, cutoff=cutoff, composition=composition, delta=delta)


def numeric_sparse(
    *,
    epsilon: int,
    cutoff: int,
    monotonic: bool,
    delta: float = 0.0,
    composition: Composition = Composition.PURE,
    answer_share: Fraction = LECTURE_ANSWER_SHARE,
    sensitivity: int = 1,
    query_noise: Noise = Noise.EXPONENTIAL,
    threshold_noise: Noise = Noise.EXPONENTIAL,
    answer_noise: Noise = Noise.LAPLACE,
    split: Fraction = Fraction(1),
    correction: Correction | None = None,
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
        return NumericSparse(
            per_top=above_threshold(
                epsilon=units - answer,
                monotonic=monotonic,
                sensitivity=sensitivity,
                query_noise=query_noise,
                threshold_noise=threshold_noise,
                split=split,
                correction=correction,
            ),
            cutoff=cutoff,
            charge=answer,
            noise=answer_noise,
        )

    return _fitted(build, epsilon=epsilon, cutoff=cutoff, composition=composition, delta=delta)


def above_threshold_rho(mechanism: SparseVector) -> float:
    """Zero-concentrated loss of an AboveThreshold, top and gap included (Durfee 2023, Theorem 1).

    (e0 + 2 e1)^2 / 8 for monotonic answers: the log-ratio lies in an interval of width e0 + 2 e1, and a range of w
    costs w^2 / 8 (Cesar & Rogers 2021). (e0 + e1)^2 / 2 for others (Bun & Steinke 2016).

    Raises:
        MisuseError: For a mechanism of more than one top.
    """
    if mechanism.cutoff != 1 or len(mechanism.branches) != 1:
        raise MisuseError("this is the loss of one top; price longer runs with stream_svt.privacy.loss")
    e0, e1 = mechanism.threshold_charge / UNITS_PER_EPSILON, mechanism.smallest_charge / UNITS_PER_EPSILON
    return (e0 + 2 * e1) ** 2 / 8 if mechanism.monotonic else (e0 + e1) ** 2 / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far from the truth an output may be, in grid steps, except with probability beta.

    Attributes:
        false_top: No top has an answer below threshold - false_top.
        missed: No bottom has an answer above threshold + missed.
        answer: No number of a top is farther than this from its answer; 0 where there are no numbers.
    """

    false_top: int
    missed: int
    answer: int = 0

    @property
    def alpha(self) -> int:
        """The largest of them, as in the lecture."""
        return max(self.false_top, self.missed, self.answer)


def accuracy(mechanism: SparseVector | Sparse, *, queries: int, beta: float) -> Accuracy:
    """Accuracy of a run of one branch on the grid, with the noise and the first correction it has.

    Args:
        mechanism: Of `above_threshold`, `sparse`, `numeric_sparse` or `sparse_vector`.
        queries: Tests in all, k.
        beta: Probability that the output is allowed to be farther off, in (0, 1).

    Raises:
        MisuseError: For several branches, no queries or a beta that is no probability.
    """
    single, thresholds = (
        (mechanism.per_top, mechanism.cutoff) if isinstance(mechanism, Sparse) else (mechanism, 1)
    )
    if len(single.branches) != 1:
        raise MisuseError("the accuracy of several branches has no closed form here")
    if queries < 1 or not 0 < beta < 1:
        raise MisuseError("accuracy needs at least one query and beta strictly between 0 and 1")
    numbers = mechanism.answer_law if isinstance(mechanism, NumericSparse) else None
    comparisons = beta / 2 if numbers else beta
    query, threshold, correction = (
        single.branch_laws[0],
        single.threshold_law,
        single.branches[0].correction(0),
    )
    false_top = _farthest(
        lambda share: _highest(query, share / queries),
        lambda share: _lowest(threshold, share / thresholds),
        comparisons / 2,
    )
    missed = _farthest(
        lambda share: _lowest(query, share / queries),
        lambda share: _highest(threshold, share / thresholds),
        comparisons / 2,
    )
    return Accuracy(
        false_top=max(0, false_top - correction),
        missed=max(0, missed + correction - 1),
        answer=_highest(numbers, beta / 4 / thresholds) if numbers else 0,
    )


def dwork_roth_alpha(
    *, epsilon: float, queries: int, beta: float, cutoff: int = 1, delta: float = 0.0, numeric: bool = False
) -> float:
    """The lecture's alpha, in units of the sensitivity, for Laplace noise at its own rates.

    * AboveThreshold (Theorem 3.24, cutoff 1) and Sparse (Theorem 3.26): 8 c (ln k + ln(2c/beta)) / epsilon; with
      delta (ln k + ln(2c/beta)) sqrt(512 c ln(1/delta)) / epsilon.
    * NumericSparse (Theorem 3.28): 9 c (ln k + ln(4c/beta)) / epsilon; with delta (ln k + ln(4c/beta))
      sqrt(c ln(2/delta)) (sqrt(512) + 1) / epsilon.

    Provided that at most c answers (for AboveThreshold: none but the last) reach threshold - alpha, since otherwise
    the run ends before the k queries do.
    """
    if numeric:
        scale = math.sqrt(cutoff * math.log(2 / delta)) * (math.sqrt(512) + 1) if delta else 9.0 * cutoff
        return scale * math.log(queries * 4 * cutoff / beta) / epsilon
    scale = math.sqrt(512 * cutoff * math.log(1 / delta)) if delta else 8.0 * cutoff
    return scale * math.log(queries * 2 * cutoff / beta) / epsilon


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


def _highest(law: Law, share: float) -> int:
    """Least t >= 0 with P(noise > t) <= share, a probability in floats with a margin for their error."""
    return least(lambda t: t >= 0 and tail(law.noise, law.rate, t + 1) * _ROUNDING <= share)


def _lowest(law: Law, share: float) -> int:
    """Least t >= 0 with P(noise < -t) <= share, with the same margin."""
    return least(lambda t: t >= 0 and head(law.noise, law.rate, -t - 1) * _ROUNDING <= share)


def _farthest(query: Callable[[float], int], threshold: Callable[[float], int], beta: float) -> int:
    """Least sum of the two quantiles, over the ways to divide beta between them."""
    return min(query(beta * (1 - i / _SHARES)) + threshold(beta * i / _SHARES) for i in range(1, _SHARES))
