"""Noisy top-k with gaps: the k largest answers in order, each with the gap to the next.

`step` adds noise to all answers and sorts them by noisy value; among equal values the smaller public index is first.

Guarantee:
    With D the sensitivity in grid steps, U = D for monotonic answers and 2D for others, and all noise at rate l =
    epsilon/(k U), the whole output of `TopK` is epsilon-private if the last gap is the **lexicographic** one:

        need  = v_s + [s < j_k],  s the best of the answers not reported (the hidden runner-up)
        g_k   = v_jk - need  >= 0,  the number of grid steps that j_k could lose and still be reported

    Ding et al. prove the continuous case, where ties have probability 0. On a grid their last gap v_jk - v_s is
    not epsilon-private under any fixed rule for ties by index: a gap of 0 reveals that the hidden runner-up has the
    larger index, so k + 1 noises must move to give the same output. The exact worst ratio is (k + 1)/k times epsilon,
    and `LastGap.PLAIN` is charged accordingly. `LastGap` says why neither a delta nor random ties replace this.

    Proof for the lexicographic gap. Let d_i be the fall of answer i from the first dataset to the second, u the rise
    of `need` with the noise unchanged, and m the least d_i among the reported. Laplace noise may move both ways:
    every reported i moves by d_i + u, at most U in magnitude. Exponential and Gumbel noise may move up only. If
    m + u >= 0, the moves are the same. Otherwise each reported i moves by d_i - m and the runner-up s of the
    **first** dataset by d_s - m. These are all in 0..U, and the reported answer with d_i = m does not move, so at most
    k noises move. The raised s is then the best unreported answer of the second dataset, `need` and every reported
    noisy value fall by m, and the output is the same. The map is one-to-one: its image determines s and the case.

    Ding et al. 2023, eq. (5), raises the best unreported answer of the *second* dataset instead. Its new noise does
    not depend on its old noise, so the map is many-to-one, and their Theorem 8 does not apply. (Counting queries
    (0,0,0) and (6,0,6), D = 6: noises (0,2,3) and (1,2,3) both map to (2,2,3).) Their theorem on noisy top-k holds; the
    map above proves it.

References:
    Ding, Wang, Zhang & Kifer, PVLDB 13(3), 2019: Noisy Top-K with Gap; Ding et al., VLDB Journal, 2023.
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
from stream_svt.mechanisms.contract import Mechanism, Neighbours, Noises, Outcomes, Run, Top, rate_of
from stream_svt.mechanisms.grid import GAP_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.numbers import Epsilon


class LastGap(StrEnum):
    """What a ranking releases about the gap between the last reported answer and the best unreported one."""

    LEXICOGRAPHIC = "lexicographic"
    """Grid steps that the last answer could lose and still be reported; free of charge."""

    PLAIN = "plain"
    """Difference of the two noisy values; for the same epsilon all noise is wider by (k + 1)/k."""

    NONE = "none"
    """Nothing; free of charge."""

    refused = nonmember(
        {
            "random": "breaking ties uniformly at random showed no violation in enumerations, but has no proof",
            "delta": "the probability of a tie, declared as a delta, is large on a coarse grid",
        }
    )


class Ranking(Mechanism):
    """Base of the mechanisms that add noise to all answers in one step and report the largest."""

    __slots__ = ()

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Outcomes]:
        """Report the largest noisy values; return the next run and the outcomes.

        `RunExhausted` if the run is over, `MisuseError` if another mechanism opened it or there are too few answers.

        Args:
            values: Answers in grid steps, int64, shape (answers,), below 2^47 in magnitude; their number is public.
            noise: Returns the noise of all answers, int64, shape (answers,); called for branch 0 only.
        """
        values = self.checked_values(run, values)
        outcomes = self.select(run, values, checked_noise(noise, len(values))(0))
        return run.after(outcomes), outcomes

    @abstractmethod
    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """Return the outcomes of a step and their charge."""

    @abstractmethod
    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Return the randomness alignment; it may depend on the noise `drawn` for the first dataset. See the class."""


@dataclass(frozen=True, kw_only=True)
class TopK(Ranking):
    """Noisy top-k with gaps (Ding et al. 2019); see the module for the guarantee and its proof.

    Charge: `epsilon` for every output. With k = 1 it is Report Noisy Max with gap.

    Examples:
        >>> top = TopK(epsilon=1, k=2, monotonic=True)
        >>> top.rate
        Fraction(1, 2)
        >>> run = top.open(0, (0, 0))
        >>> run, outcomes = top.step(run, np.array([5, 9, 7, 7]), lambda branch: np.array([0, 1, 0, 2]))
        >>> [(one.row, one.gap) for one in outcomes.tops]  # noisy values 5, 10, 7, 9: answer 2 wins ties with 3
        [(1, 1), (3, 1)]
    """

    epsilon: Epsilon = Epsilon()
    k: int
    monotonic: bool
    sensitivity: int = 1
    noise: Noise = Noise.EXPONENTIAL
    last_gap: LastGap = LastGap.LEXICOGRAPHIC

    @property
    def rate(self) -> Fraction:
        """Rate of the noise per grid step: epsilon/(k U), or epsilon/((k + 1) U) with the plain last gap."""
        moved = self.k + (self.last_gap is LastGap.PLAIN)
        return rate_of(self.epsilon_units, moved * self.query_sensitivity)

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise."""
        return (Law(self.noise, self.rate),)

    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """Return the `k` largest answers; `MisuseError` unless there are more, or as many without a last gap."""
        del run
        no_gap = self.last_gap is LastGap.NONE
        require(
            len(values) >= self.k + (not no_gap),
            f"the top {self.k}{'' if no_gap else ' and the gap to the next'} cannot be reported of {len(values)} "
            "answers: lower k",
        )
        noisy = values + noise
        order = largest(noisy, self.k if no_gap else self.k + 1)
        gaps = gaps_of(noisy, order, lexicographic=self.last_gap is LastGap.LEXICOGRAPHIC)
        tops = tops_of(order[: self.k], [*gaps, None] if no_gap else gaps)
        return Outcomes(consumed=len(values), tops=tops, charge_units=self.epsilon_units)

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Return the alignment, see the module; the noise determines the hidden runner-up."""
        noise, rows = drawn.queries[0], outcomes.rows
        if self.last_gap is LastGap.LEXICOGRAPHIC:
            moved = lexicographic_shifts(first, second, noise, rows, self.noise)
        else:
            if self.last_gap is LastGap.PLAIN:
                rows = largest(first + noise, self.k + 1)
            moved = self.shifts_of_rows(first, second, rows, self.threshold_shift(neighbours))
        return Noises(0, moved[np.newaxis])


def largest(noisy: Integers, k: int) -> Integers:
    """Return the indices of the `k` largest values, largest first, equal values by index."""
    if k == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(noisy, len(noisy) - k)[len(noisy) - k]
    candidates = np.flatnonzero(noisy >= least)
    return candidates[np.argsort(-noisy[candidates], kind="stable")][:k]


def gaps_of(noisy: Integers, order: Integers, *, lexicographic: bool = False) -> list[int]:
    """Return the differences of successive values in `order`, the last one lexicographic on request.

    They are Python integers, since two saturated noises may be 2^63 apart.
    """
    values = noisy[order].tolist()
    gaps = [ahead - behind for ahead, behind in pairwise(values)]
    if lexicographic:
        gaps[-1] -= int(order[-1] < order[-2])
    return [min(gap, GAP_LIMIT) for gap in gaps]


def tops_of(order: Integers, gaps: Sequence[int | None]) -> tuple[Top, ...]:
    """Return the reported answers in `order` with their gaps."""
    return tuple(Top(row=row, gap=gap) for row, gap in zip(order.tolist(), gaps, strict=True))


def lexicographic_shifts(
    first: Integers, second: Integers, noise: Integers, rows: Integers, family: Noise
) -> Integers:
    """Return the shifts of all noise if `rows` are reported, the last with a lexicographic gap; see the proof above."""
    fall = first - second
    unreported = np.ones(len(first), dtype=np.bool_)
    unreported[rows] = False
    hidden = np.flatnonzero(unreported)
    ahead = (hidden < rows[-1]).astype(np.int64)
    before = first[hidden] + noise[hidden]
    need = before + ahead
    rise = int((second[hidden] + noise[hidden] + ahead).max()) - int(need.max())
    least = int(fall[rows].min())
    moved = np.zeros(len(first), dtype=np.int64)
    if family.may_move_down or least + rise >= 0:
        moved[rows] = fall[rows] + rise
    else:
        runner_up = hidden[np.argmax(before)]  # the first of equal ones, which ranks highest
        moved[rows] = fall[rows] - least
        moved[runner_up] = fall[runner_up] - least
    return moved
