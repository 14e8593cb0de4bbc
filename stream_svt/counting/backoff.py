"""Seconds between two attempts of what failed."""

from __future__ import annotations

import time
from typing import Final

STEADY: Final = 60.0
"""Seconds of an attempt after which the next pause is the first one again."""


class Backoff:
    """Pauses before attempts: each longer than the one before, unless the attempt between them lasted."""

    def __init__(self, *seconds: float) -> None:
        self._seconds, self._tries, self._began = seconds, 0, time.monotonic()

    def next(self) -> float:
        """Return the seconds of the next pause, which begins now."""
        now = time.monotonic()
        self._tries = 0 if now - self._began > STEADY else self._tries
        seconds = self._seconds[min(self._tries, len(self._seconds) - 1)]
        self._tries, self._began = self._tries + 1, now + seconds
        return seconds
