"""Log lines, so many of a kind: brokers that are away for a minute must not fill a disk.

64 shards that try again, and a client for each of them, write a thousand lines a second that all say the same. A
kind is what a line says whatever shard it is about: the name of our event, or the text of a library's message
without its numbers. Our events are a few dozen, each a kind of its own; libraries' texts may be any number, so they
share a table, from which those go that are written rarely. The first lines of a kind always pass, then one now and
then, which says how many there were in between. What is critical always passes.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

KINDS = 50
"""Kinds of libraries told apart; all others count as one."""

TROUBLE = (3, 0.1)
"""Warnings and errors of a kind: burst, and lines a second. `KINDS` of them are five a second."""

PROGRESS = (200, 1.0)
"""The same for what is neither: a line for each shard or command, a few of each."""

OWN = "stream_svt."
"""How our loggers' names begin."""

_EVENT = re.compile(r"event=\S+")
_NUMBERS = re.compile(r"[0-9]+")


@dataclass(slots=True)
class _Kind:
    most: float
    rate: float
    looked: float
    room: float
    left_out: int = 0

    def room_at(self, now: float) -> float:
        """Return how many more lines may be written at a time."""
        return min(self.most, self.room + self.rate * (now - self.looked))


class LimitByKind(logging.Filter):
    """Lets so many records of a kind pass; on a handler, for those of all libraries.

    Parameters
    ----------
    now
        Seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._events: dict[str, _Kind] = {}
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; one that stands for others says for how many."""
        if record.levelno >= logging.CRITICAL or record.levelno < logging.INFO:
            return True
        passed: bool | None = getattr(record, "passed_limit", None)
        if passed is None:  # of several handlers, the first one decides
            with self._lock:
                passed = record.passed_limit = self._take(record)
        return passed

    def _take(self, record: logging.LogRecord) -> bool:
        most, rate = TROUBLE if record.levelno >= logging.WARNING else PROGRESS
        now = self._now()
        event = _EVENT.match(str(record.msg)) if record.name.startswith(OWN) else None
        if event is not None:
            kinds, name = self._events, f"{record.levelno} {record.name} {event.group()}"
        else:
            # Libraries put names and numbers into their texts.
            kinds, name = self._kinds, f"{record.levelno} {record.name} {_NUMBERS.sub('#', str(record.msg))}"
            if name not in kinds and len(kinds) >= KINDS and not self._forget_one(now):
                name = ""
        kind = kinds.setdefault(name, _Kind(most, rate, now, most))
        kind.room, kind.looked = kind.room_at(now), now
        if kind.room < 1:
            kind.left_out += 1
            return False
        kind.room -= 1
        if kind.left_out:
            record.msg, record.args = f"{record.getMessage()} left_out={kind.left_out}", ()
            kind.left_out = 0
        return True

    def _forget_one(self, now: float) -> bool:
        """Forget a kind that would be written as if it were new; return whether there is one."""
        idle = [name for name, kind in self._kinds.items() if kind.room_at(now) >= kind.most]
        if not idle:
            return False
        # Rather one that has nothing left to count, then the one that was silent for the longest time.
        del self._kinds[
            min(idle, key=lambda name: (self._kinds[name].left_out > 0, self._kinds[name].looked))
        ]
        return True


def limit_logs() -> None:
    """Limit what the handlers of all loggers write."""
    limit = LimitByKind()
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)
