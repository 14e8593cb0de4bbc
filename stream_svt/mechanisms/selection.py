"""Noisy top-k with gaps and its hybrids with sparse vector: which answers are the largest, and by how much.

All answers of one `step` get noise and are ordered by noisy value, equal values by index, the smaller first;
index order is public. What is released:

* `TopK`: the k first, in order, each with the gap to the next.
* `HybridIdentity`: the same, with a public threshold taking part: where it comes before k answers did, the list
  ends there, and costs only what it holds.
* `HybridEstimates`: up to k answers above a noisy threshold, each with its gap to that threshold.

Guarantee
---------
With D the sensitivity in grid steps, U = D for monotonic answers and 2D for others, and every noise at the rate
l = epsilon/(k U), all of `TopK`'s output is epsilon-private, if the last gap is the **lexicographic** one:

    need  = v_s + [s < j_k],  s the best of the answers not reported (the hidden runner-up)
    g_k   = v_jk - need  >= 0,  the number of grid steps that j_k could lose and still be reported

Ding et al. prove the continuous case, where ties have probability 0. On a grid their last gap v_jk - v_s
is not epsilon-private under any fixed rule for ties by index: a gap of 0 tells that the hidden runner-up has the
larger index, so that k + 1 noises must move to repeat it. The exact worst ratio is (k + 1)/k times epsilon, and that
is what `LastGap.PLAIN` is charged, which is what naming the runner-up as well would cost. Declaring
the probability of a tie as a delta, the repair of Ding et al. 2019, is of no use on a coarse grid.

Proof (of the lexicographic gap). Let d_i be how far answer i falls from the first dataset to the second, u how
far `need` rises with the noise unchanged, m the least d_i of the reported. Laplace noise may move either way: every
reported i moves by d_i + u, at most U in magnitude. Exponential and Gumbel noise may move up only: the same where
m + u >= 0; otherwise reported i move by d_i - m and the runner-up s of the **first** dataset by d_s - m, all in
0..U, with the least of the reported unmoved: k noises at most. The raised s is then the best loser of the second
dataset, `need` is lower by m as is every reported noisy value, and the output is the same. The map is one-to-one:
its image tells s, and which of the two cases it was.

Ding et al. 2023, eq. (5), raises the best loser of the *second* dataset instead. Its new noise then does not
depend on its old one: two noises have the same image, the map is many-to-one, not acyclic as their Lemma 6
says, and their Theorem 8 does not apply. (Counting queries (0,0,0) and (6,0,6), D = 6: noises (0,2,3) and
(1,2,3) both go to (2,2,3).) The theorem is right; the map above proves it.

Gaps between reported answers, and those to a threshold whose noise is of the same run, are plain differences. Ties
broken uniformly at random showed no violation, but no proof is known: they are not offered.

References
----------
Ding, Wang, Zhang & Kifer, Free Gap Information from the Differentially Private Sparse Vector and Noisy Max
Mechanisms, PVLDB 13(3), 2019: Noisy Top-K with Gap.
Ding, Wang, Xiao, Wang, Zhang & Kifer, Free Gap Estimates from the Exponential Mechanism, Sparse Vector, Noisy Max and
Related Algorithms, VLDB Journal, 2023: Algorithms 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

import numpy as np

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms.arguments import (
    grid_values,
    noise_of_each,
    one_of,
    require_bool,
    require_own,
)
from stream_svt.mechanisms.contract import Law, Neighbours, Shifts
from stream_svt.mechanisms.grid import GAP_LIMIT, LEAST_RATE, THRESHOLD_NOISE_LIMIT, VALUE_LIMIT
from stream_svt.mechanisms.noise import Noise, set_families, variance
from stream_svt.mechanisms.run import UNITS_PER_EPSILON, BranchNoise, Integers, Run, mechanism_id

_UNPROVED = {
    "random": "breaking ties uniformly at random showed no violation where it was enumerated, but has no proof",
    "delta": "the probability of a tie, declared as a delta, is large on a coarse grid",
}

_SMALL_RATE = 1e-6
"""Where the variances of the families have their limiting ratio."""


class LastGap(StrEnum):
    """What is told about the gap between the last reported answer and the best one that is not."""

    LEXICOGRAPHIC = "lexicographic"
    """Grid steps that the last answer could lose and still be reported; free."""

    PLAIN = "plain"
    """The difference of the two noisy values; all noise is wider by (k + 1)/k for the same epsilon."""

    NONE = "none"
    """Nothing; free."""

    @classmethod
    def parse(cls, name: LastGap | str) -> LastGap:
        """Option of that name; what has no proof is refused with the reason.

        Raises
        ------
        MisuseError
            For an unknown or unproved option.
        """
        return one_of(cls, name, "last gap", _UNPROVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """All noise of one run, laid out as `Shifts` are: what an alignment that reads the noise is given.

    Attributes
    ----------
    threshold
        Threshold noise of the run; 0 where a mechanism has none.
    queries
        Query noises, shape (branches, tests).
    """

    threshold: int = 0
    queries: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A reported answer.

    Attributes
    ----------
    row
        Index of the answer in the batch.
    gap
        Grid steps to what comes next, see the mechanism; at least 0. None where it is not released.
    """

    row: int
    gap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a selection may tell: the reported answers from the largest, and what they cost.

    Attributes
    ----------
    consumed
        Number of answers it was made from.
    tops
        The reported answers, in order of noisy value.
    charge
        Units that this output costs, beyond what the threshold cost when the run was opened.
    threshold_gap
        Gap from the noisy threshold to the next answer, where the mechanism releases it; else None.
    """

    consumed: int
    tops: tuple[Chosen, ...]
    charge: int
    threshold_gap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """Noisy top-k with gaps; see the module for the guarantee and its proof.

    Charge: `epsilon`, whatever comes out. With k = 1 it is Report Noisy Max with gap.

    Attributes
    ----------
    epsilon
        Units that the one step costs.
    count
        k, the number of answers reported.
    monotonic
        Whether neighbours move all answers the same way.
    sensitivity
        D: most that one answer changes between neighbours, in grid steps.
    noise
        Family of the noise.
    last_gap
        What is told about the last gap.

    Raises
    ------
    MisuseError
        When a parameter is out of range, or the noise would be wider than the grid.

    Examples
    --------
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

    def __post_init__(self) -> None:
        """Check the parameters."""
        set_families(self, "noise")
        object.__setattr__(self, "last_gap", LastGap.parse(self.last_gap))
        require_bool(self.monotonic, "monotonic")
        _check(self.epsilon, self.count, self.sensitivity, self.rate)

    @property
    def query_sensitivity(self) -> int:
        """U: the farthest that one noise must move between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity

    @property
    def rate(self) -> Fraction:
        """Rate of the noise per grid step: epsilon/(k U); epsilon/((k + 1) U) with the plain last gap."""
        moved = self.count + 1 if self.last_gap is LastGap.PLAIN else self.count
        return _rate(self.epsilon, moved * self.query_sensitivity)

    @property
    def threshold_law(self) -> None:
        """There is no threshold."""
        return

    @property
    def threshold_charge(self) -> int:
        """There is no threshold to pay for."""
        return 0

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise of the answers."""
        return (Law(self.noise, self.rate),)

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run; it is charged by its step.

        Parameters
        ----------
        threshold_noise
            0, for there is no threshold.
        salt
            128 fresh secret bits.
        """
        if threshold_noise:
            raise MisuseError("top-k has no threshold: its threshold noise is 0")
        return Run(threshold_noise=0, salt=salt, mechanism=mechanism_id(self), left=self.epsilon)

    def is_over(self, run: Run) -> bool:
        """Whether the run has made its step."""
        return run.left < self.epsilon

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Selection]:
        """Report the `count` largest noisy values and end the run.

        Parameters
        ----------
        values
            Grid values, shape (answers,), below 2^47 in magnitude; their number is public.
        noise
            Noise of all answers; asked for branch 0 only.

        Raises
        ------
        RunExhausted
            When the run has made its step; nothing was drawn.
        MisuseError
            When there are not more than `count` answers (as many are enough without a last gap), and for a run,
            answers or noise that `SparseVector.step` refuses.
        """
        require_own(run, self, self.epsilon)
        if self.is_over(run):
            raise _used()
        values = grid_values(values)
        bare = self.last_gap is LastGap.NONE
        if len(values) < self.count + (not bare):
            raise MisuseError(
                f"the top {self.count} of {len(values)} answers{'' if bare else ' and the gap to the next'} "
                "cannot be told: lower the count"
            )
        noisy = values + noise_of_each(noise, len(values))(0)
        order = _largest(noisy, self.count if bare else self.count + 1)
        gaps: list[int | None] = _plain_gaps(noisy, order)
        if bare:
            gaps.append(None)
        elif self.last_gap is LastGap.LEXICOGRAPHIC:
            gaps[-1] = _lexicographic_gap(noisy, int(order[-2]), int(order[-1]))
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
        rows = _rows(outcomes)
        if self.last_gap is LastGap.LEXICOGRAPHIC:
            moved = _lexicographic_shifts(first, second, noise_on_first.queries[0], rows, self.noise)
        else:
            if self.last_gap is LastGap.PLAIN:
                rows = _largest(first + noise_on_first.queries[0], self.count + 1)
            lift = 0 if one_of(Neighbours, neighbours, "neighbours") is Neighbours.DOWN else self.sensitivity
            moved = np.zeros(len(first), dtype=np.int64)
            moved[rows] = lift + first[rows] - second[rows]
        return Shifts(0, moved[np.newaxis])


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridIdentity:
    """Top-k with gaps that stops at a noisy threshold: Ding et al. 2023, Algorithm 5 ("prioritizing identity").

    The threshold takes part as an answer of value `threshold` and index before all others, with noise of the
    same rate epsilon/(k U): it wins ties. Two outputs are possible, and each is charged for what it holds:

    * The threshold is among the first k places, after m answers: those m with plain gaps, the last one's to the
      noisy threshold. Charge (m + D/U) epsilon/k: the threshold's noise moves by D and those of the m answers by
      at most U. With `threshold_gap` the gap from the threshold to the next answer is released too (as the
      paper's algorithm does); then m + 1 places are a top-(m + 1) and cost (m + 1) epsilon/k. Since the threshold
      wins all ties, its lexicographic gap is the plain one.
    * k answers come first: those, the last one's gap lexicographic, for the runner-up (an answer or the threshold)
      stays hidden. Charge epsilon.

    A refund by output is valid for pure differential privacy only; a zCDP ledger charges epsilon in full.

    Attributes
    ----------
    threshold
        Public threshold in grid steps.
    threshold_gap
        Whether the threshold's own gap is released.

    See `TopK` for the others.

    Raises
    ------
    MisuseError
        When a parameter is out of range, or the noise would be wider than the grid.

    Examples
    --------
    >>> hybrid = HybridIdentity(epsilon=10**9, count=4, threshold=100, monotonic=False)
    >>> run = hybrid.open(3, (0, 0))
    >>> run, selection = hybrid.step(run, np.array([90, 120, 103]), lambda branch: np.array([2, 0, 0]))
    >>> selection.tops, selection.charge, run.left
    ((Chosen(row=1, gap=17),), 375000000, 625000000)
    """

    epsilon: int
    count: int
    threshold: int
    monotonic: bool
    sensitivity: int = 1
    noise: Noise = Noise.EXPONENTIAL
    threshold_gap: bool = False

    def __post_init__(self) -> None:
        """Check the parameters."""
        set_families(self, "noise")
        require_bool(self.monotonic, "monotonic")
        require_bool(self.threshold_gap, "threshold_gap")
        _check(self.epsilon, self.count, self.sensitivity, self.rate)
        _check_threshold(self.threshold)

    @property
    def query_sensitivity(self) -> int:
        """U: the farthest that one noise must move between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity

    @property
    def rate(self) -> Fraction:
        """Rate of all noise per grid step: epsilon/(k U)."""
        return _rate(self.epsilon, self.count * self.query_sensitivity)

    @property
    def threshold_law(self) -> Law:
        """Law of the threshold's noise."""
        return Law(self.noise, self.rate)

    @property
    def threshold_charge(self) -> int:
        """Nothing is charged before the output is known; reserve `epsilon`."""
        return 0

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise of the answers."""
        return (Law(self.noise, self.rate),)

    def charge_of(self, answers: int, *, threshold_gap: bool | None = None) -> int:
        """Units that an output with so many answers costs, rounded up.

        Parameters
        ----------
        answers
            m, 0 to k.
        threshold_gap
            Whether the output holds the threshold's gap; None for what the mechanism says.
        """
        if answers == self.count:
            return self.epsilon
        released = self.threshold_gap if threshold_gap is None else threshold_gap
        threshold = Fraction(1) if released else Fraction(self.sensitivity, self.query_sensitivity)
        return -(-(answers + threshold) * self.epsilon // self.count)

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run; it is charged by its step.

        Parameters
        ----------
        threshold_noise
            A fresh draw of `threshold_law`.
        salt
            128 fresh secret bits.
        """
        _check_threshold_noise(threshold_noise)
        return Run(
            threshold_noise=threshold_noise, salt=salt, mechanism=mechanism_id(self), left=self.epsilon
        )

    def is_over(self, run: Run) -> bool:
        """Whether the run has made its step: every output costs something."""
        return run.left < self.epsilon

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Selection]:
        """Report the largest noisy values, no more than `count`, down to the noisy threshold; end the run.

        Parameters
        ----------
        values
            Grid values, shape (answers,), below 2^47 in magnitude; their number is public.
        noise
            Noise of all answers; asked for branch 0 only.

        Raises
        ------
        RunExhausted
            When the run has made its step; nothing was drawn.
        MisuseError
            When there is no answer, and for a run, answers or noise that `SparseVector.step` refuses.
        """
        require_own(run, self, self.epsilon)
        if self.is_over(run):
            raise _used()
        values = grid_values(values)
        if not len(values):
            raise MisuseError("a selection needs at least one answer")
        noisy = np.concatenate(
            ([self.threshold + run.threshold_noise], values + noise_of_each(noise, len(values))(0))
        )
        order = _largest(noisy, min(self.count + 1, len(noisy)))
        place = np.flatnonzero(order == 0)
        answers = min(int(place[0]), self.count) if len(place) else self.count
        gaps = _plain_gaps(noisy, order)
        after = None
        if answers == self.count:
            gaps[-1] = _lexicographic_gap(noisy, int(order[-2]), int(order[-1]))
        elif self.threshold_gap and answers < len(gaps):
            after = gaps[answers]
        tops = tuple(
            Chosen(row=row - 1, gap=gap)
            for row, gap in zip(order[:answers].tolist(), gaps[:answers], strict=True)
        )
        charge = self.charge_of(answers, threshold_gap=after is not None)
        selection = Selection(consumed=len(values), tops=tops, charge=charge, threshold_gap=after)
        return replace(run, left=run.left - charge, tops=answers), selection

    def shifts(
        self,
        outcomes: Selection,
        first: Integers,
        second: Integers,
        neighbours: Neighbours,
        noise_on_first: Drawn,
    ) -> Shifts:
        """Randomness alignment; like `TopK` it reads the noise.

        Where the threshold ended the list and no gap leads to a hidden answer, the threshold moves up by D (not at
        all where answers only fall) and the reported answers by as much plus what they fell. Otherwise it is the
        lexicographic alignment with the threshold as index 0.
        """
        rows = _rows(outcomes) + 1
        before, after = (np.concatenate(([self.threshold], values)) for values in (first, second))
        if len(rows) == self.count or outcomes.threshold_gap is not None:
            if len(rows) < self.count:
                rows = np.append(rows, 0)
            noise = np.concatenate(([noise_on_first.threshold], noise_on_first.queries[0]))
            moved = _lexicographic_shifts(before, after, noise, rows, self.noise)
        else:
            lift = 0 if one_of(Neighbours, neighbours, "neighbours") is Neighbours.DOWN else self.sensitivity
            moved = np.zeros(len(before), dtype=np.int64)
            moved[0] = lift
            moved[rows] = lift + before[rows] - after[rows]
        return Shifts(int(moved[0]), moved[np.newaxis, 1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridEstimates:
    """The largest answers above a noisy threshold: Ding et al. 2023, Algorithm 6 ("prioritizing estimates").

    The up to k largest noisy values of at least threshold + threshold noise are listed in order, each with its
    gap to that noisy threshold. Rates: threshold_charge/D and charge/U. Charge of t answers: threshold_charge + t *
    query_charge, the former when the run is opened. The alignment is that of sparse vector: the threshold
    moves up by D and the reported noisy values with it, which keeps their order and their gaps; ties are harmless.

    A step that lists fewer than k leaves the run open, as sparse vector does: the next step, with fresh noise,
    is charged for what it lists.

    Attributes
    ----------
    epsilon
        Units of a whole run: threshold_charge + count * query_charge. Build it with `hybrid_estimates`.
    threshold
        Public threshold in grid steps.
    threshold_charge, query_charge
        Units that the threshold and each listed answer cost.
    threshold_noise, query_noise
        Families.

    See `TopK` for the others.

    Raises
    ------
    MisuseError
        When charges do not add up, a parameter is out of range, or the noise would be wider than the grid.
    """

    epsilon: int
    count: int
    threshold: int
    monotonic: bool
    threshold_charge: int
    query_charge: int
    sensitivity: int = 1
    threshold_noise: Noise = Noise.EXPONENTIAL
    query_noise: Noise = Noise.EXPONENTIAL

    def __post_init__(self) -> None:
        """Check the parameters."""
        set_families(self, "threshold_noise", "query_noise")
        require_bool(self.monotonic, "monotonic")
        rates = [law.rate for law in (self.threshold_law, *self.branch_laws)]
        _check(self.epsilon, self.count, self.sensitivity, min(rates))
        _check_threshold(self.threshold)
        if self.threshold_charge + self.count * self.query_charge != self.epsilon:
            raise MisuseError("epsilon is the threshold's charge and that of `count` answers")

    @property
    def query_sensitivity(self) -> int:
        """U: the farthest that one answer's noise must move between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity

    @property
    def threshold_law(self) -> Law:
        """Law of the threshold's noise, of rate threshold_charge/D."""
        return Law(self.threshold_noise, _rate(self.threshold_charge, self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the noise of the answers, of rate query_charge/U."""
        return (Law(self.query_noise, _rate(self.query_charge, self.query_sensitivity)),)

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run, whose threshold charge is spent and whose secrets are durable before its step.

        Parameters
        ----------
        threshold_noise
            A fresh draw of `threshold_law`.
        salt
            128 fresh secret bits.
        """
        _check_threshold_noise(threshold_noise)
        return Run(
            threshold_noise=threshold_noise,
            salt=salt,
            mechanism=mechanism_id(self),
            left=self.epsilon - self.threshold_charge,
        )

    def is_over(self, run: Run) -> bool:
        """Whether the run cannot pay another answer."""
        return run.left < self.query_charge

    def step(self, run: Run, values: Integers, noise: BranchNoise) -> tuple[Run, Selection]:
        """List the largest noisy values above the noisy threshold, no more than the run can pay.

        Parameters
        ----------
        values
            Grid values, shape (answers,), below 2^47 in magnitude.
        noise
            Noise of all answers; asked for branch 0 only.

        Raises
        ------
        RunExhausted
            When the run cannot pay another answer; nothing was drawn.
        MisuseError
            For a run, answers or noise that `SparseVector.step` refuses.
        """
        require_own(run, self, self.epsilon - self.threshold_charge)
        if self.is_over(run):
            raise RunExhausted("this run has listed all its answers; a new one pays for a new threshold")
        values = grid_values(values)
        gaps = values + noise_of_each(noise, len(values))(0)
        gaps -= self.threshold + run.threshold_noise
        above = np.flatnonzero(gaps >= 0)
        order = above[_largest(gaps[above], min(run.left // self.query_charge, len(above)))]
        tops = tuple(Chosen(row=row, gap=min(int(gaps[row]), GAP_LIMIT)) for row in order.tolist())
        charge = len(tops) * self.query_charge
        return (
            replace(run, left=run.left - charge, tops=run.tops + len(tops)),
            Selection(consumed=len(values), tops=tops, charge=charge),
        )

    def shifts(
        self,
        outcomes: Selection,
        first: Integers,
        second: Integers,
        neighbours: Neighbours,
        noise_on_first: Drawn | None = None,  # noqa: ARG002 - the same verb for all selections
    ) -> Shifts:
        """Randomness alignment of sparse vector; the noise is not needed. See the class."""
        rows = _rows(outcomes)
        lift = 0 if one_of(Neighbours, neighbours, "neighbours") is Neighbours.DOWN else self.sensitivity
        moved = np.zeros(len(first), dtype=np.int64)
        moved[rows] = lift + first[rows] - second[rows]
        return Shifts(lift, moved[np.newaxis])


def hybrid_estimates(
    *,
    epsilon: int,
    count: int,
    threshold: int,
    monotonic: bool,
    sensitivity: int = 1,
    threshold_noise: Noise = Noise.EXPONENTIAL,
    query_noise: Noise = Noise.EXPONENTIAL,
    split: Fraction | None = None,
) -> HybridEstimates:
    """Divide epsilon between the threshold and `count` answers, in whole units used to the last.

    Parameters
    ----------
    epsilon
        Units of 10^-9 epsilon of one whole run.
    split
        Epsilon of all answers / epsilon of the threshold. None: what minimises the variance of a gap,
        (v (k U/D)^2)^(1/3) for small rates, v the variance of the query noise / that of the threshold noise at
        equal rates.

    See `HybridEstimates` for the others.

    Raises
    ------
    MisuseError
        When epsilon is too small to be divided so, or a parameter is out of range.

    Examples
    --------
    >>> hybrid = hybrid_estimates(epsilon=10**9, count=8, threshold=50, monotonic=True)
    >>> hybrid.threshold_charge, hybrid.query_charge
    (200000000, 100000000)
    """
    if count < 1:
        raise MisuseError("count must be at least 1")
    require_bool(monotonic, "monotonic")
    if split is None:
        families = variance(query_noise, _SMALL_RATE) / variance(threshold_noise, _SMALL_RATE)
        width = 1 if monotonic else 2
        split = Fraction(round((families * (width * count) ** 2) ** (1 / 3) * 10**6), 10**6)
    if split <= 0:
        raise MisuseError("a split is epsilon of the answers / epsilon of the threshold and greater than 0")
    query_charge = int(epsilon * split / (1 + split) // count)
    return HybridEstimates(
        epsilon=epsilon,
        count=count,
        threshold=threshold,
        monotonic=monotonic,
        threshold_charge=epsilon - count * query_charge,
        query_charge=query_charge,
        sensitivity=sensitivity,
        threshold_noise=threshold_noise,
        query_noise=query_noise,
    )


def _largest(noisy: Integers, count: int) -> Integers:
    """Indices of the largest values, from the largest; equal values by index."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(noisy, len(noisy) - count)[len(noisy) - count]
    candidates = np.flatnonzero(noisy >= least)
    return candidates[np.argsort(-noisy[candidates], kind="stable")][:count]


def _plain_gaps(noisy: Integers, order: Integers) -> list[int | None]:
    """Differences of successive values; in Python's integers, for two saturated noises may be 2^63 apart."""
    values = noisy[order].tolist()
    return [min(values[i] - values[i + 1], GAP_LIMIT) for i in range(len(values) - 1)]


def _lexicographic_gap(noisy: Integers, last: int, runner_up: int) -> int:
    """Grid steps that `last` could lose and still come before `runner_up`."""
    return min(int(noisy[last]) - int(noisy[runner_up]) - (runner_up < last), GAP_LIMIT)


def _lexicographic_shifts(
    first: Integers, second: Integers, noise: Integers, rows: Integers, family: Noise
) -> Integers:
    """Alignment of the places `rows`, the last of which has a lexicographic gap; see the module's proof."""
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


def _rows(outcomes: Selection) -> Integers:
    """Return the indices of the reported answers, in order."""
    return np.array([top.row for top in outcomes.tops], dtype=np.int64)


def _rate(units: int, steps: int) -> Fraction:
    """Rate of a noise whose move by `steps` costs `units`."""
    return Fraction(units, UNITS_PER_EPSILON * steps) if steps > 0 else Fraction(0)


def _check(epsilon: int, count: int, sensitivity: int, rate: Fraction) -> None:
    """Refuse parameters that no selection can have."""
    if count < 1:
        raise MisuseError("count, the number of answers to report, must be at least 1")
    if sensitivity < 1:
        raise MisuseError("sensitivity must be at least one grid step")
    if epsilon < 1:
        raise MisuseError("epsilon must be at least one unit, 1e-9")
    if rate < LEAST_RATE:
        raise MisuseError(
            "noise would be wider than the grid: raise epsilon, lower the count, or use a coarser granularity"
        )


def _check_threshold(threshold: int) -> None:
    """Refuse a threshold that is no value of the grid."""
    if abs(threshold) >= VALUE_LIMIT:
        raise MisuseError("a threshold lies below 2^47 grid steps in magnitude")


def _check_threshold_noise(threshold_noise: int) -> None:
    """Refuse what no sampler returns; the number stays out of the message, for it is secret."""
    if abs(threshold_noise) > THRESHOLD_NOISE_LIMIT:
        raise MisuseError("threshold noise lies within 2^60 grid steps")


def _used() -> RunExhausted:
    """Return the error of a second step."""
    return RunExhausted("this run has made its one step; a new one pays again")
