"""Noisy top-k with gaps: the k largest answers in order, each with the gap to the next.

All answers of one `step` get noise and are ordered by noisy value, equal values by index, the smaller first;
index order is public.

Guarantee:
    With D the sensitivity in grid steps, U = D for monotonic answers and 2D for others, and every noise at the
    rate l = epsilon/(k U), all of `TopK`'s output is epsilon-private, if the last gap is the **lexicographic** one:

        need  = v_s + [s < j_k],  s the best of the answers not reported (the hidden runner-up)
        g_k   = v_jk - need  >= 0,  the number of grid steps that j_k could lose and still be reported

    Ding et al. prove the continuous case, where ties have probability 0. On a grid their last gap v_jk - v_s is
    not epsilon-private under any fixed rule for ties by index: a gap of 0 tells that the hidden runner-up has the
    larger index, so that k + 1 noises must move to repeat it. The exact worst ratio is (k + 1)/k times epsilon, and
    that is what `LastGap.PLAIN` is charged. Declaring the probability of a tie as a delta, the repair of Ding et al.
    2019, is of no use on a coarse grid. Ties broken uniformly at random showed no violation, but no proof is known.

    Proof (of the lexicographic gap). Let d_i be how far answer i falls from the first dataset to the second, u how
    far `need` rises with the noise unchanged, m the least d_i of the reported. Laplace noise may move either way:
    every reported i moves by d_i + u, at most U in magnitude. Exponential and Gumbel noise may move up only: the
    same where m + u >= 0; otherwise reported i move by d_i - m and the runner-up s of the **first** dataset by
    d_s - m, all in 0..U, with the least of the reported unmoved: k noises at most. The raised s is then the best
    loser of the second dataset, `need` is lower by m as is every reported noisy value, and the output is the same.
    The map is one-to-one: its image tells s, and which of the two cases it was.

    Ding et al. 2023, eq. (5), raises the best loser of the *second* dataset instead. Its new noise then does not
    depend on its old one: the map is many-to-one, not acyclic as their Lemma 6 says, and their Theorem 8 does not
    apply. (Counting queries (0,0,0) and (6,0,6), D = 6: noises (0,2,3) and (1,2,3) both go to (2,2,3).) The theorem
    is right; the map above proves it.

References:
    Ding, Wang, Zhang & Kifer, Free Gap Information from the Differentially Private Sparse Vector and Noisy Max
    Mechanisms, PVLDB 13(3), 2019: Noisy Top-K with Gap; Ding et al., VLDB Journal, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum, nonmember
from fractions import Fraction

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.arguments import noise_of_each
from stream_svt.mechanisms.contract import Neighbours, OneStep, Shifts
from stream_svt.mechanisms.grid import GAP_LIMIT, VALUE_LIMIT
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.run import UNITS_PER_EPSILON, BranchNoise, Integers, Run


class LastGap(StrEnum):
    """What is told about the gap between the last reported answer and the best one that is not."""

    LEXICOGRAPHIC = "lexicographic"
    """Grid steps that the last answer could lose and still be reported; free."""

    PLAIN = "plain"
    """The difference of the two noisy values; all noise is wider by (k + 1)/k for the same epsilon."""

    NONE = "none"
    """Nothing; free."""

    refused = nonmember(
        {
            "random": "breaking ties uniformly at random showed no violation where it was enumerated, but has no proof",
            "delta": "the probability of a tie, declared as a delta, is large on a coarse grid",
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """All noise of one run, laid out as `Shifts` are: what an alignment that reads the noise is given.

    Attributes:
        threshold: Threshold noise of the run; 0 where a mechanism has none.
        queries: Query noises, shape (branches, tests).
    """

    threshold: int = 0
    queries: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A reported answer.

    Attributes:
        row: Index of the answer in the batch.
        gap: Grid steps to what comes next, see the mechanism; at least 0. None where it is not released.
    """

    row: int
    gap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a selection may tell: the reported answers from the largest, and what they cost.

    Attributes:
        consumed: Number of answers it was made from.
        tops: The reported answers, in order of noisy value.
        charge: Units that this output costs, beyond what the threshold cost when the run was opened.
        threshold_gap: Gap from the noisy threshold to the next answer, where the mechanism releases it; else
            None.
    """

    consumed: int
    tops: tuple[Chosen, ...]
    charge: int
    threshold_gap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(OneStep):
    """Noisy top-k with gaps; see the module for the guarantee and its proof.

    Charge: `epsilon`, whatever comes out. With k = 1 it is Report Noisy Max with gap.

    Examples:
        >>> top = TopK(epsilon=10**9, count=2, monotonic=True)
        >>> top.rate
        Fraction(1, 2)
        >>> run = top.open(0, (0, 0))
        >>> run, selection = top.step(run, np.array([5, 9, 7, 7]), lambda branch: np.array([0, 1, 0, 2]))
        >>> selection.tops  # noisy values 5, 10, 7, 9: answer 3 could lose 2 steps, for answer 2 wins ties
        (Chosen(row=1, gap=1), Chosen(row=3, gap=1))
    """

    epsilon: int
    count: int
    monotonic: bool
    sensitivity: int = 1
    noise: Noise = Noise.EXPONENTIAL
    last_gap: LastGap = LastGap.LEXICOGRAPHIC

    @property
    def rate(self) -> Fraction:
        """Rate of the noise per grid step: epsilon/(k U); epsilon/((k + 1) U) with the plain last gap."""
        moved = self.count + 1 if self.last_gap is LastGap.PLAIN else self.count
        return Fraction(self.epsilon, UNITS_PER_EPSILON * moved * self.query_sensitivity)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise of the answers."""
        return (Law(self.noise, self.rate),)

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Selection]:
        """Report the `count` largest noisy values and end the run.

        Args:
            values: Grid values, shape (answers,), below 2^47 in magnitude; their number is public.
            noise: Noise of all answers; asked for branch 0 only.

        Raises:
            RunExhausted: When the run has made its step; nothing was drawn.
            MisuseError: When there are not more than `count` answers (as many are enough without a last gap),
                and for a run, answers or noise that `SparseVector.step` refuses.
        """
        values = self.entered(run, values)
        bare = self.last_gap is LastGap.NONE
        if len(values) < self.count + (not bare):
            raise MisuseError(
                f"the top {self.count} of {len(values)} answers{'' if bare else ' and the gap to the next'} "
                "cannot be told: lower the count"
            )
        noisy = values + noise_of_each(noise, len(values))(0)
        order = largest(noisy, self.count if bare else self.count + 1)
        gaps: list[int | None] = plain_gaps(noisy, order)
        if bare:
            gaps.append(None)
        elif self.last_gap is LastGap.LEXICOGRAPHIC:
            gaps[-1] = lexicographic_gap(noisy, int(order[-2]), int(order[-1]))
        tops = tuple(
            Chosen(row=row, gap=gap) for row, gap in zip(order[: self.count].tolist(), gaps, strict=True)
        )
        selection = Selection(consumed=len(values), tops=tops, charge=self.epsilon)
        return replace(run, left=0, tops=self.count), selection

    def shifts(
        self,
        outcomes: Selection,
        first: Integers,
        second: Integers,
        neighbours: Neighbours,
        noise_on_first: Drawn,
    ) -> Shifts:
        """Randomness alignment; see the module. It reads the noise, for that tells the hidden runner-up."""
        rows = rows_of(outcomes)
        if self.last_gap is LastGap.LEXICOGRAPHIC:
            moved = lexicographic_shifts(first, second, noise_on_first.queries[0], rows, self.noise)
        else:
            if self.last_gap is LastGap.PLAIN:
                rows = largest(first + noise_on_first.queries[0], self.count + 1)
            moved = lifted(first, second, rows, self.lift(neighbours))
        return Shifts(0, moved[np.newaxis])


def largest(noisy: Integers, count: int) -> Integers:
    """Indices of the largest values, from the largest; equal values by index."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(noisy, len(noisy) - count)[len(noisy) - count]
    candidates = np.flatnonzero(noisy >= least)
    return candidates[np.argsort(-noisy[candidates], kind="stable")][:count]


def plain_gaps(noisy: Integers, order: Integers) -> list[int | None]:
    """Differences of successive values; in Python's integers, for two saturated noises may be 2^63 apart."""
    values = noisy[order].tolist()
    return [min(values[i] - values[i + 1], GAP_LIMIT) for i in range(len(values) - 1)]


def lexicographic_gap(noisy: Integers, last: int, runner_up: int) -> int:
    """Grid steps that `last` could lose and still come before `runner_up`."""
    return min(int(noisy[last]) - int(noisy[runner_up]) - (runner_up < last), GAP_LIMIT)


def lexicographic_shifts(
    first: Integers, second: Integers, noise: Integers, rows: Integers, family: Noise
) -> Integers:
    """Alignment of the places `rows`, the last of which has a lexicographic gap; see the proof above."""
    fall = first - second
    losers = np.ones(len(first), dtype=np.bool_)
    losers[rows] = False
    hidden = np.flatnonzero(losers)
    ahead = (hidden < rows[-1]).astype(np.int64)
    before = first[hidden] + noise[hidden]
    need = before + ahead
    rise = int((second[hidden] + noise[hidden] + ahead).max()) - int(need.max())
    least = int(fall[rows].min())
    moved = np.zeros(len(first), dtype=np.int64)
    if family.may_fall or least + rise >= 0:
        moved[rows] = fall[rows] + rise
    else:
        runner_up = hidden[np.argmax(before)]  # the first of equal ones, which is the best
        moved[rows] = fall[rows] - least
        moved[runner_up] = fall[runner_up] - least
    return moved


def rows_of(outcomes: Selection) -> Integers:
    """Return the indices of the reported answers, in order."""
    return np.array([top.row for top in outcomes.tops], dtype=np.int64)


def lifted(first: Integers, second: Integers, rows: Integers, lift: int) -> Integers:
    """Alignment that moves the noise of `rows` up by what the threshold moves and their answers fall."""
    moved = np.zeros(len(first), dtype=np.int64)
    moved[rows] = lift + first[rows] - second[rows]
    return moved


def check_threshold(threshold: int) -> None:
    """Refuse a threshold that is no value of the grid."""
    if abs(threshold) >= VALUE_LIMIT:
        raise MisuseError("a threshold lies below 2^47 grid steps in magnitude")
