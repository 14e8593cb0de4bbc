"""Limits how often each place in the code writes a log line: an outage of the brokers must not fill a disk.

64 shards that try again, and a client for each of them, write a thousand lines a second that all say the same. The
first lines of a place always pass, then one now and then, which says how many were left out. Critical lines always
pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

TROUBLE = (3, 0.1)
"""Warnings and errors of one place: burst, and lines a second."""

PROGRESS = (200, 1.0)
"""The same for what is neither: a line for each shard or command, a few of each."""


@dataclass(slots=True)
class _Place:
    room: float
    looked: float
    left_out: int = 0


class LimitByPlace(logging.Filter):
    """Lets so many records of each line of code pass; on a handler, for all libraries.

    Args:
        now: Seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._places: dict[tuple[str, int, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; one that follows others left out says how many."""
        if record.levelno >= logging.CRITICAL or record.levelno < logging.INFO:
            return True
        passed: bool | None = getattr(record, "passed_limit", None)
        if passed is None:  # of several handlers, the first one decides
            passed = record.passed_limit = self._take(record)
        return passed

    def _take(self, record: logging.LogRecord) -> bool:
        most, rate = TROUBLE if record.levelno >= logging.WARNING else PROGRESS
        now = self._now()
        place = self._places.setdefault((record.pathname, record.lineno, record.levelno), _Place(most, now))
        place.room = min(most, place.room + rate * (now - place.looked))
        place.looked = now
        if place.room < 1:
            place.left_out += 1
            return False
        place.room -= 1
        if place.left_out:
            record.msg, record.args = f"{record.getMessage()} left_out={place.left_out}", ()
            place.left_out = 0
        return True


def limit_logs() -> None:
    """Limit what the handlers of all loggers write."""
    limit = LimitByPlace()
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)
