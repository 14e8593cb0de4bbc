"""Visits: the units that count in a window, where each counts in few windows only, for sums of what comes rarely.

A key counts in a window if it counted in fewer than ``at_most`` of the ``among`` - 1 windows before. So it counts in at
most ``at_most`` of any ``among`` consecutive windows: those before the last one in which it counts are among the
windows that this one looked up. That holds whatever the hash, and whichever earlier windows are known.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stream_svt.settings.questions import Visits
from stream_svt.sources.state import OpenWindow
from stream_svt.sources.tally import NO_KEYS, Integers, Keys, cells_of, in_cells


class Counting:
    """Says which units count in a closed window.

    Args:
        visits: In how many windows a unit counts.
        window: The window.
        before: The closed ones among the windows that it looks up. Those of another hash key are left out: they are of
            another period, or lie before a window that was lost.
    """

    def __init__(self, visits: Visits, window: OpenWindow, before: Iterable[OpenWindow]) -> None:
        self._listed, self._at_most = window.cells.list, visits.at_most
        self._measure = self._listed.index_of(visits.measure)
        known = [one for one in before if one.key == window.key and visits in one.counting]
        # Most windows share their lists.
        lists = {id(one.cells): one.cells for one in known if one.cells is not window.cells}
        numbers = {key: one.numbers_in(window.cells) for key, one in lists.items()}
        self._before = [(one.counting[visits], numbers.get(id(one.cells))) for one in known]

    def keys(self, part: int, keys: Keys) -> Keys:
        """Return the keys that count, of those of a part of the window's tally: sorted, with their copies."""
        measures = cells_of(keys) // len(self._listed.series) % len(self._listed.measures)
        keys = keys[measures == self._measure]
        earlier = [_once(parts[part], numbers) for parts, numbers in self._before]
        known = np.concatenate([NO_KEYS, *earlier])
        known.sort(kind="stable")  # merges sorted arrays
        times = np.searchsorted(known, keys, "right") - np.searchsorted(known, keys, "left")
        return keys[times < self._at_most]


def _once(keys: Keys, numbers: Integers | None) -> Keys:
    """Return sorted keys without their copies, given new numbers of their cells."""
    keys = keys[np.diff(keys, prepend=keys[:1] + np.uint64(1)) != 0]
    return keys if numbers is None else in_cells(keys, numbers)
