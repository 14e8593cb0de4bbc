"""Noisy top-k with gaps: the k largest answers in order, each with the gap to the next.

All answers of one `step` get noise and are ordered by noisy value, equal values by their public index, the smaller
first.

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

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, nonmember
from fractions import Fraction
from itertools import pairwise

import numpy as np

from stream_svt.mechanisms.arguments import BranchNoise, checked_noise, require
from stream_svt.mechanisms.contract import (
    Mechanism,
    Neighbours,
    Noises,
    Outcomes,
    Run,
    Top,
    rate_of,
    shifts_of_rows,
)
from stream_svt.mechanisms.grid import GAP_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise


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


class Ranking(Mechanism):
    """A mechanism that gives all answers noise in one step, and reports the largest."""

    __slots__ = ()

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Outcomes]:
        """Report the largest noisy values.

        Args:
            values: Grid values, shape (answers,), below 2^47 in magnitude; their number is public.
            noise: Noise of all answers; asked for branch 0 only.

        Raises:
            RunExhausted: When the run is over; nothing was drawn.
        """
        values = self.checked_values(run, values)
        outcomes = self.select(run, values, checked_noise(noise, len(values))(0))
        return run.after(outcomes), outcomes

    @abstractmethod
    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """What the step reports, and its charge."""

    @abstractmethod
    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Randomness alignment; see the class. It may read the noise drawn on the first, which tells what is hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Ranking):
    """Noisy top-k with gaps; see the module for the guarantee and its proof.

    Charge: `epsilon`, whatever comes out. With k = 1 it is Report Noisy Max with gap.

    Examples:
        >>> top = TopK(epsilon=10**9, count=2, monotonic=True)
        >>> top.rate
        Fraction(1, 2)
        >>> run = top.open(0, (0, 0))
        >>> run, outcomes = top.step(run, np.array([5, 9, 7, 7]), lambda branch: np.array([0, 1, 0, 2]))
        >>> [(one.row, one.gap) for one in outcomes.tops]  # noisy values 5, 10, 7, 9: answer 2 wins ties with 3
        [(1, 1), (3, 1)]
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
        moved = self.count + (self.last_gap is LastGap.PLAIN)
        return rate_of(self.epsilon, moved * self.query_sensitivity)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise of the answers."""
        return (Law(self.noise, self.rate),)

    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """The `count` largest of more than `count` answers; as many are enough without a last gap."""
        del run
        bare = self.last_gap is LastGap.NONE
        require(
            len(values) >= self.count + (not bare),
            f"the top {self.count} of {len(values)} answers{'' if bare else ' and the gap to the next'} "
            "cannot be told: lower the count",
        )
        noisy = values + noise
        order = largest(noisy, self.count if bare else self.count + 1)
        gaps = gaps_of(noisy, order, lexicographic=self.last_gap is LastGap.LEXICOGRAPHIC)
        tops = tops_of(order[: self.count], [*gaps, None] if bare else gaps)
        return Outcomes(consumed=len(values), tops=tops, charge=self.epsilon)

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Alignment; see the module. The noise tells the hidden runner-up."""
        noise, rows = drawn.queries[0], outcomes.rows
        if self.last_gap is LastGap.LEXICOGRAPHIC:
            moved = lexicographic_shifts(first, second, noise, rows, self.noise)
        else:
            if self.last_gap is LastGap.PLAIN:
                rows = largest(first + noise, self.count + 1)
            moved = shifts_of_rows(first, second, rows, self.threshold_shift(neighbours))
        return Noises(0, moved[np.newaxis])


def largest(noisy: Integers, count: int) -> Integers:
    """Indices of the largest values, from the largest; equal values by index."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(noisy, len(noisy) - count)[len(noisy) - count]
    candidates = np.flatnonzero(noisy >= least)
    return candidates[np.argsort(-noisy[candidates], kind="stable")][:count]


def gaps_of(noisy: Integers, order: Integers, *, lexicographic: bool = False) -> list[int]:
    """Differences of successive values, the last of which may be what its answer can lose and still come first.

    In Python's integers, for two saturated noises may be 2^63 apart.
    """
    values = noisy[order].tolist()
    gaps = [ahead - behind for ahead, behind in pairwise(values)]
    if lexicographic:
        gaps[-1] -= int(order[-1] < order[-2])
    return [min(gap, GAP_LIMIT) for gap in gaps]


def tops_of(order: Integers, gaps: Sequence[int | None]) -> tuple[Top, ...]:
    """Return the reported answers with their gaps."""
    return tuple(Top(row=row, gap=gap) for row, gap in zip(order.tolist(), gaps, strict=True))


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
    if family.may_move_down or least + rise >= 0:
        moved[rows] = fall[rows] + rise
    else:
        runner_up = hidden[np.argmax(before)]  # the first of equal ones, which is the best
        moved[rows] = fall[rows] - least
        moved[runner_up] = fall[runner_up] - least
    return moved
