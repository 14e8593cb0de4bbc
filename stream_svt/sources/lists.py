"""The lists that a source had at each moment: what windows count that are opened then."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from stream_svt.settings.sources import WindowList


class Lists:
    """The history of a source's list in the applied configurations, all of which are read up to a moment.

    Each list comes with the moment at which its configuration was stored, the broker's, in ascending order.
    """

    def __init__(self, history: Iterable[tuple[int, WindowList]], known_to_ms: int) -> None:
        pairs = list(history)
        self.known_to_ms = known_to_ms
        self._stored = [stored for stored, _ in pairs]
        self._lists = [listed for _, listed in pairs]

    def at(self, ms: int) -> WindowList | None:
        """Return the list applied last before a moment, else the first; None if the moment's is not known yet."""
        if ms > self.known_to_ms or not self._lists:
            return None
        return self._lists[max(bisect_left(self._stored, ms) - 1, 0)]
