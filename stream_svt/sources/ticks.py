"""Ticks and windows: which query a record belongs to by its own times, and which queries are due. Integers only.

Time is divided into ticks and windows, both counted from `EPOCH_MS`. A record belongs to the first tick that ends after
its own append time, and to the window in which its event lies. Nothing else decides: not what stands before it, not
when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.settings.fields import LAST_MS
from stream_svt.settings.periods import EPOCH_MS

if TYPE_CHECKING:
    from stream_svt.settings.sources import SourceSpec

_Ms = TypeVar("_Ms", int, Integers)

OPENING_MS: Final = 15 * 60_000
"""A window opens so long, and `ahead`, before it begins."""
LOOKS_APART_MS: Final = 10_000
"""The longest time between two looks: a long tick has several."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where records belong.

    Attributes:
        window: Begin of each record's window, in ms.
        tick: End of the tick whose query is the first to count it, in ms; of a late record it says nothing.
        late: Whether its tick ends after the window's close.
        early: Whether its window begins more than `ahead` after its append time. Such records count nowhere.
    """

    window: Integers
    tick: Integers
    late: Mask
    early: Mask


@dataclass(frozen=True, slots=True)
class TickClock:
    """The ticks and windows of a source. All times are in ms since 1970.

    Attributes:
        every_ms: Length of a tick; it divides the window.
        window_ms: Length of a window.
        lateness_ms: How long after its end a window closes, before this is rounded up to the end of a tick.
        ahead_ms: How long after its append time a record's window may begin.
        asks_ticks: Whether a window is asked at each tick until its close, not at its close alone.
    """

    every_ms: int
    window_ms: int
    lateness_ms: int
    ahead_ms: int
    asks_ticks: bool

    @classmethod
    def of(cls, source: SourceSpec) -> TickClock:
        """Return the clock of a source; of answers a tick is all there is."""
        if source.answers is not None:
            return cls(source.every, source.every, 0, 0, asks_ticks=False)
        return cls(source.every, source.window, source.lateness, source.ahead, source.ask == "tick")

    @property
    def closes_after_ms(self) -> int:
        """From a window's begin to its close."""
        return self.window_ms + -(-self.lateness_ms // self.every_ms) * self.every_ms

    @property
    def asked_after_ms(self) -> int:
        """From a window's begin to the first tick at which it is asked."""
        return self.every_ms if self.asks_ticks else self.closes_after_ms

    def tick_after(self, ms: int) -> int:
        """Return the end of the first tick that ends after a moment.

        >>> clock = TickClock(10_000, 3_600_000, 60_000, 600_000, asks_ticks=False)
        >>> [clock.tick_after(ms) for ms in (0, 9_999, 10_000)]
        [10000, 10000, 20000]
        """
        return _begin(ms, self.every_ms) + self.every_ms

    def window_at(self, ms: int) -> int:
        """Return the begin of the window in which a moment lies."""
        return _begin(ms, self.window_ms)

    def close_of(self, begin_ms: int) -> int:
        """Return the tick at which the window with this begin is asked last."""
        return begin_ms + self.closes_after_ms

    def opens_ms(self, begin_ms: int) -> int:
        """Return when the window with this begin is opened; the list that is applied before holds for it."""
        return begin_ms - self.ahead_ms - OPENING_MS

    def place(
        self,
        event_ms: Integers,
        appended_ms: Integers | int,
        reading_for_ms: Integers | int,
        stamped: Mask | bool = True,
    ) -> Placed:
        """Return where records belong.

        Args:
            event_ms: Their own times, any 64 bits.
            appended_ms: When they were appended, any 64 bits, for each or for all of them.
            reading_for_ms: The next tick to ask: a record cannot belong to one that was asked.
            stamped: Whether this time is the broker's. Other records belong to the next tick to ask, the first one
                that the look serves which covers them.
        """
        appended = np.clip(appended_ms, -LAST_MS, LAST_MS)
        window = _begin(np.clip(event_ms, -LAST_MS, LAST_MS), self.window_ms)
        tick = np.maximum(_begin(appended, self.every_ms) + self.every_ms, reading_for_ms)
        tick = np.where(stamped, tick, reading_for_ms)
        return Placed(
            window=window,
            tick=np.maximum(tick, window + self.asked_after_ms),
            late=tick > window + self.closes_after_ms,
            early=window > appended + self.ahead_ms,
        )

    def is_asked(self, begin_ms: int, tick_ms: int) -> bool:
        """Return whether the window with this begin is asked at the end of a tick."""
        return begin_ms + self.asked_after_ms <= tick_ms <= self.close_of(begin_ms)

    def queries_due(self, tick_ms: int, windows: Iterable[int]) -> list[int]:
        """Return the begins of those windows that are asked at the end of a tick, in order."""
        return [begin for begin in sorted(windows) if self.is_asked(begin, tick_ms)]

    def look_by(self, ms: int) -> int:
        """Return the last moment of a look until a moment: looks are at each tick's end, and at most 10 s apart.

        >>> clock = TickClock(15_000, 3_600_000, 60_000, 600_000, asks_ticks=False)
        >>> [clock.look_by(ms) for ms in (0, 7_499, 7_500, 15_000)]
        [0, 0, 7500, 15000]
        """
        parts, begin = -(-self.every_ms // LOOKS_APART_MS), _begin(ms, self.every_ms)
        part = ((ms - begin + 1) * parts - 1) // self.every_ms
        return begin + part * self.every_ms // parts


def _begin(ms: _Ms, length_ms: int) -> _Ms:
    return ms - (ms - EPOCH_MS) % length_ms
