"""Which answers are the largest, and by how much: what noisy top-k and its hybrids with sparse vector share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.grid import GAP_LIMIT, VALUE_LIMIT
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.run import Integers


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
    """Alignment of the places `rows`, the last of which has a lexicographic gap; see the proof in `top_k`."""
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
