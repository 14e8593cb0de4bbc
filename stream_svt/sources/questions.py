"""Values of questions, from the counts of closed windows.

Which windows are read is public: it follows from the question, the clock and the period, never from what was counted.
Where one of them is missing (it was lost, lies before the source's begin, or its list lacked the series), nothing is
asked. A value that moves by more than `Question.moves` says would void the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.settings.questions import BOUND, Question

_SMALL: Final = 2**31


class Values(NamedTuple):
    """Values by dataset and series, in steps, and which of them are known: both of shape (datasets, series)."""

    steps: Integers
    known: Mask


class ClosedCounts:
    """Counts of closed windows: of each dataset and measure, by the series of the window's list.

    A dataset's name tells its period. Of weeks of windows with many series four bytes a count are kept.

    Attributes:
        since: The windows that begin from then on are here.
        measures: Those whose counts are kept.
    """

    def __init__(self, since: int = 0, measures: Iterable[str] = ()) -> None:
        self.since, self.measures = since, frozenset(measures)
        self._counts: dict[int, dict[tuple[str, str], tuple[tuple[str, ...], NDArray[np.integer]]]] = {}
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, window: int, dataset: str, measure: str, series: tuple[str, ...], counts: Integers) -> None:
        """Add the counts of a measure of one dataset, by series; those of further series are added to them."""
        if window < self.since or measure not in self.measures:
            return
        of_window = self._counts.setdefault(window, {})
        kept: NDArray[np.integer] = counts if counts.max(initial=0) >= _SMALL else counts.astype(np.int32)
        if (dataset, measure) in of_window:
            earlier, before = of_window[dataset, measure]
            series, kept = earlier + series, np.concatenate((before, kept))
        of_window[dataset, measure] = self._lists.setdefault(series, series), kept

    def forget_before(self, window: int) -> None:
        """Forget the windows that begin before a moment."""
        self.since = max(self.since, window)
        for begin in [one for one in self._counts if one < window]:
            del self._counts[begin]
        lists = (names for of_window in self._counts.values() for names, _ in of_window.values())
        # Windows share their lists: each is hashed once, and not once a window.
        self._lists = {names: names for names in {id(names): names for names in lists}.values()}

    def of(self, window: int, datasets: Sequence[str], measure: str, series: tuple[str, ...]) -> Values:
        """Return the counts of a window by datasets and series."""
        values = _nothing(len(datasets), len(series))
        of_window = self._counts.get(window, {})
        for row, dataset in enumerate(datasets):
            names, counts = of_window.get((dataset, measure), ((), values.steps[0]))
            if names is series or names == series:
                values.steps[row], values.known[row] = counts, True
            elif names:
                places = _places(names, series)
                values.known[row] = places >= 0
                values.steps[row] = np.where(values.known[row], counts[places], 0)
        return values


@lru_cache(maxsize=16)
def _places(names: tuple[str, ...], series: tuple[str, ...]) -> Integers:
    """Return where each of some series stands among names, -1 for none."""
    known = {name: number for number, name in enumerate(names)}
    return np.array([known.get(name, -1) for name in series], np.int64)


class Asked:
    """The values of a question about windows of one list.

    Args:
        question: The question.
        counts: The counts of closed windows.
        names: Returns the datasets of a window by its begin, in the order of the list.
        series: The series of the list.
        window_ms: Length of a window.
    """

    def __init__(
        self,
        question: Question,
        counts: ClosedCounts,
        names: Callable[[int], Sequence[str]],
        series: tuple[str, ...],
        window_ms: int,
    ) -> None:
        self._question, self._counts, self._names = question, counts, names
        self._series, self._window_ms = series, window_ms

    def about(self, window: int) -> Values:
        """Return the values about a closed window."""
        datasets = [*self._names(window)]
        # The windows of its own period, as far as they are read, the last one first.
        begins = [window - number * self._window_ms for number in range(self._question.earlier + 1)]
        inside = [begin for begin in begins if [*self._names(begin)] == datasets]
        values = [self._compared(begin) for begin in inside]
        short, long = self._question.over
        values = _means(values, self._question.mean)
        chosen = np.maximum if self._question.ends else np.minimum
        values = [
            Values(chosen(one.steps, other.steps), one.known & other.known)
            for one, other in zip(_means(values, short), _means(values, long), strict=False)
        ]
        windows, at_least = self._question.holds
        if len(values) < windows:
            return _nothing(len(datasets), len(self._series))
        sums = [_sums(values[first:], *self._question.excess) for first in range(windows)]
        found = _ordered(sums, at_least)
        return Values(-found.steps, found.known) if self._question.ends else found

    def _compared(self, window: int) -> Values:
        """Return what a window has more than usual, or its share, or its counts."""
        value = self._share(window)
        if self._question.usual is None:
            return value
        every, times, factor, per = self._question.usual
        earlier = [self._share(window - number * every * self._window_ms) for number in range(1, times + 1)]
        [mean] = _means(earlier, times)
        return _limited(per * value.steps - factor * mean.steps, value.known & mean.known)

    def _share(self, window: int) -> Values:
        question = self._question
        whole = self._count(window, question.measures[0])
        taken = np.array(question.thresholds or (0,), np.int64)
        if question.share is None:
            return _limited(whole.steps - taken, whole.known)
        measure, part, of = question.share
        found = self._count(window, measure)
        return _limited(of * (found.steps - taken) - part * whole.steps, found.known & whole.known)

    def _count(self, window: int, measure: str) -> Values:
        return self._counts.of(window, self._names(window), measure, self._series)


def _limited(steps: Integers, known: Mask) -> Values:
    return Values(np.clip(steps, -BOUND, BOUND), known)


def _nothing(datasets: int, series: int) -> Values:
    return Values(np.zeros((datasets, series), np.int64), np.zeros((datasets, series), np.bool_))


def _means(values: Sequence[Values], count: int) -> list[Values]:
    """Return the means of the last ``count`` values, rounded down."""
    if count == 1:
        return [*values]
    found = list[Values]()
    steps = known = np.zeros(1, np.int64)
    for number, one in enumerate(values):
        steps, known = steps + one.steps, known + one.known
        if number >= count:
            before = values[number - count]
            steps, known = steps - before.steps, known - before.known
        if number >= count - 1:
            found.append(Values(steps // count, known == count))
    return found


def _sums(values: Sequence[Values], usual: int, most: int) -> Values:
    """Return the largest sum of what the last 1 to ``most`` values, or all there are, have more than usual."""
    if most == 1:
        return values[0]
    highest = total = values[0].steps - usual
    known = values[0].known
    for one in values[1:most]:
        total = total + one.steps - usual
        highest, known = np.maximum(highest, total), known & one.known
    return _limited(highest, known)


def _ordered(values: Sequence[Values], at_least: int) -> Values:
    """Return what at least so many of some values have."""
    if len(values) == 1:
        return values[0]
    known = np.logical_and.reduce([one.known for one in values])
    return Values(np.sort(np.stack([one.steps for one in values]), axis=0)[len(values) - at_least], known)
