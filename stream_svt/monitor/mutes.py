"""Muted series: which they are, and when a mute ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import ClassVar

from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.snapshot import StoredMute

FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Instead of a clock: when a mute ends."""


@dataclass(slots=True, repr=False, eq=False)
class Mutes(Queue[StoredMute]):
    """Muted series of a monitor on a dataset, oldest first."""

    kind: ClassVar[int] = 2
    holds: ClassVar[tuple[type, ...]] = (StoredMute,)

    def is_muted(self, series: str | None, clock_ms: int) -> bool:
        """Tell whether a series is muted at a clock."""
        mute = None if series is None else self.entries.get(series)
        return mute is not None and _holds(mute, clock_ms)

    def add(self, series: str, until: int, clock_ms: int, most: int) -> list[str]:
        """Mute a series; forget those that ran out, and return the oldest ones, which end beyond ``most``."""
        self._discard(takewhile(lambda mute: not _holds(mute, clock_ms), self.entries.values()))
        if series in self.entries:
            self.remove(series)
        self.count += 1
        self.put(StoredMute(self.count, series, until))
        return self._discard(islice(self.entries.values(), max(0, len(self.entries) - most)))

    def end_run(self) -> None:
        """End the mutes that hold until the run ends."""
        self._discard(mute for mute in self.entries.values() if mute.until == UNTIL_RUN_ENDS)

    def _discard(self, mutes: Iterable[StoredMute]) -> list[str]:
        names = [mute.series for mute in mutes]
        for series in names:
            self.remove(series)
        return names


def _holds(mute: StoredMute, clock_ms: int) -> bool:
    return mute.until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < mute.until
