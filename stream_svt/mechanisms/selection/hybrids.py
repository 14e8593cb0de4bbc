"""Hybrids of noisy top-k and sparse vector: the largest answers that reach a threshold.

`step` adds noise to all answers and sorts them by noisy value, equal values by index. Gaps between reported answers,
and gaps to the noisy threshold, are plain differences of noisy values.

References:
    Ding, Wang, Xiao, Wang, Zhang & Kifer, Free Gap Estimates from the Exponential Mechanism, Sparse Vector, Noisy Max
    and Related Algorithms, VLDB Journal, 2023: Algorithms 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.contract import Neighbours, Noises, Outcomes, Run, rate_of
from stream_svt.mechanisms.correction import least_variance_split
from stream_svt.mechanisms.grid import GAP_LIMIT, Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.numbers import Epsilon, Number, exact, loss_of
from stream_svt.mechanisms.selection.top_k import Ranking, gaps_of, largest, lexicographic_shifts, tops_of


@dataclass(frozen=True, kw_only=True)
class HybridIdentity(Ranking):
    """Top-k with gaps that stops at a noisy threshold: Ding et al. 2023, Algorithm 5 ("prioritizing identity").

    The threshold ranks as an answer of value `threshold`, public and in grid steps, with noise of the same rate
    epsilon/(k U). Its index precedes all others, so it wins ties. The charge depends on the output:

    * The threshold is among the first k ranks, after m answers. These are released with plain gaps, that of the last
      one to the noisy threshold. Charge (m + D/U) epsilon/k: the threshold's noise moves by D and the noise of the m
      answers by at most U. `threshold_gap` also releases the gap from the threshold to the next answer, as in the
      paper: a top-(m + 1), which costs (m + 1) epsilon/k. The threshold wins all ties, so this gap is plain.
    * k answers rank before the threshold. They are released with a lexicographic last gap, since the runner-up (an
      answer or the threshold) stays hidden. Charge epsilon, by the proof in `top_k`.

    The lower charge of short lists is valid for pure differential privacy only; a zCDP ledger charges epsilon in full.

    Examples:
        >>> hybrid = HybridIdentity(epsilon=1, k=4, threshold=100, monotonic=False)
        >>> run = hybrid.open(3, (0, 0))
        >>> run, outcomes = hybrid.step(run, np.array([90, 120, 103]), lambda branch: np.array([2, 0, 0]))
        >>> [(top.row, top.gap) for top in outcomes.tops], outcomes.charge, run.left
        ([(1, 17)], Fraction(3, 8), Fraction(5, 8))
    """

    epsilon: Epsilon = Epsilon()
    k: int
    threshold: int
    monotonic: bool
    sensitivity: int = 1
    noise: Noise = Noise.EXPONENTIAL
    threshold_gap: bool = False

    @property
    def threshold_law(self) -> Law:
        """Law of all noise, of rate epsilon/(k U). The threshold is charged with the output."""
        return Law(self.noise, rate_of(self.epsilon_units, self.k * self.query_sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise, equal to that of the threshold."""
        return (self.threshold_law,)

    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """Return up to `k` of the largest noisy values above the noisy threshold; `MisuseError` without answers."""
        require(len(values) > 0, "a selection needs at least one answer")
        noisy = np.concatenate(([self.threshold + run.threshold_noise], values + noise))
        order = largest(noisy, min(self.k + 1, len(noisy)))
        rank = np.flatnonzero(order == 0)  # of the threshold
        answers = min(int(rank[0]), self.k) if len(rank) else self.k
        gaps = gaps_of(noisy, order, lexicographic=answers == self.k)
        with_gap = self.threshold_gap and answers < min(self.k, len(gaps))
        of_threshold = Fraction(1) if with_gap else Fraction(self.sensitivity, self.query_sensitivity)
        return Outcomes(
            consumed=len(values),
            tops=tops_of(order[:answers] - 1, gaps[:answers]),
            charge_units=min(self.epsilon_units, -(-(answers + of_threshold) * self.epsilon_units // self.k)),
            threshold_gap=gaps[answers] if with_gap else None,
        )

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Return the alignment of sparse vector if the threshold ended the list and no gap leads to a hidden answer.

        Otherwise it is the lexicographic one of `top_k` with the threshold as index 0.
        """
        rows = outcomes.rows + 1
        before, after = (np.concatenate(([self.threshold], values)) for values in (first, second))
        stopped = len(rows) < self.k
        if stopped:
            rows = np.append(rows, 0)
        if stopped and outcomes.threshold_gap is None:
            moved = self.shifts_of_rows(before, after, rows, self.threshold_shift(neighbours))
        else:
            noise = np.concatenate(([drawn.threshold], drawn.queries[0]))
            moved = lexicographic_shifts(before, after, noise, rows, self.noise)
        return Noises(int(moved[0]), moved[np.newaxis, 1:])


@dataclass(frozen=True, kw_only=True)
class HybridEstimates(Ranking):
    """The largest answers above a noisy threshold: Ding et al. 2023, Algorithm 6 ("prioritizing estimates").

    A step lists up to k of the largest noisy values that reach threshold + threshold noise, each with its gap to that
    noisy threshold. `threshold` is in grid steps. The noise rates are threshold_charge/D and query_charge/U. Charge of
    t answers: threshold_charge when the run is opened, plus t * query_charge. The alignment is that of sparse vector:
    the threshold and the reported noisy values move up by D, which keeps their order and gaps. After a step that lists
    fewer than k, the run stays open, and the next step with fresh noise is charged for its own list.

    `split` is epsilon of all answers / epsilon of the threshold; None is that of `least_variance_split`.

    >>> hybrid = HybridEstimates(epsilon=1, k=8, threshold=50, monotonic=True)
    >>> hybrid.threshold_charge, hybrid.query_charge
    (Fraction(1, 5), Fraction(1, 10))
    """

    epsilon: Epsilon = Epsilon()
    k: int
    threshold: int
    monotonic: bool
    sensitivity: int = 1
    threshold_noise: Noise = Noise.EXPONENTIAL
    query_noise: Noise = Noise.EXPONENTIAL
    split: Number | None = None

    @property
    def query_charge(self) -> Fraction:
        """Epsilon that each listed answer costs."""
        return loss_of(self.query_units)

    @property
    def query_units(self) -> int:
        """Units that each listed answer costs."""
        noises = {"query_noise": self.query_noise, "threshold_noise": self.threshold_noise}
        least = least_variance_split(self.k, monotonic=self.monotonic, **noises)
        split = least if self.split is None else exact(self.split)
        return int(self.epsilon_units * split / (1 + split) // self.k)

    @property
    def threshold_units(self) -> int:
        """Units that opening a run costs: the rest of epsilon after k answers."""
        return self.epsilon_units - self.k * self.query_units

    @property
    def threshold_law(self) -> Law:
        """Law of the threshold noise, of rate threshold_charge/D."""
        return Law(self.threshold_noise, rate_of(self.threshold_units, self.sensitivity))

    @property
    def branch_laws(self) -> tuple[Law, ...]:
        """Law of the query noise, of rate query_charge/U."""
        return (Law(self.query_noise, rate_of(self.query_units, self.query_sensitivity)),)

    @property
    def smallest_units(self) -> int:
        """Units of a listed answer; a run with fewer units left is over."""
        return self.query_units

    def select(self, run: Run, values: Integers, noise: Integers) -> Outcomes:
        """Return the largest noisy values above the noisy threshold, as many as the run can pay for."""
        gaps = values + noise - (self.threshold + run.threshold_noise)
        above = np.flatnonzero(gaps >= 0)
        order = above[largest(gaps[above], min(run.left_units // self.query_units, len(above)))]
        tops = tops_of(order, np.minimum(gaps[order], GAP_LIMIT).tolist())
        return Outcomes(consumed=len(values), tops=tops, charge_units=len(tops) * self.query_units)

    def shifts(
        self, outcomes: Outcomes, first: Integers, second: Integers, neighbours: Neighbours, drawn: Noises
    ) -> Noises:
        """Return the alignment of sparse vector, see the class; it does not depend on the noise."""
        del drawn
        lift = self.threshold_shift(neighbours)
        return Noises(lift, self.shifts_of_rows(first, second, outcomes.rows, lift)[np.newaxis])
