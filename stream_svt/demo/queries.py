"""What is asked, and when: how often each item of the public list has been sold since the week began.

Line numbers are the public clock. Privacy unit and neighbours: one basket. Two data sets are neighbours when the
basket of one line is emptied in one of them and **the lines stay**: that lowers the answers about its items by one
from the next checkpoint to the end of its week, changes nothing else, and never raises one: sensitivity 1, monotonic.
Counting *non-empty* baskets instead would pull the successors of a removed one into another week.

Ids, order and number of records depend on the clock alone. So do record lengths, which are public: a value is padded
with the spaces that JSON allows after a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_svt.demo.data import LAST_ITEM, LINES, Baskets

DIGITS = 5
"""Digits that every count is padded to; a week has fewer lines than this can hold."""
SERIES = "item-%d"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A moment at which the running counts of all items are asked: the queries form the finite set ``set_id``.

    Attributes:
        dataset: The week's dataset.
        week_start, first, end: Lines: start of the week, first line since the last checkpoint, and the line
            after the last counted one.
    """

    dataset: str
    set_id: str
    week_start: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Weeks of ``week_lines`` lines, asked every ``every`` lines and at the end of each week.

    The data carry no dates, so a "week" is a number of lines; nothing in a monitor depends on its length.
    """

    lines: int = LINES
    week_lines: int = 14_700
    every: int = 300

    def weeks(self) -> list[str]:
        """Return the names of the weeks' datasets in order of time."""
        return [self.week_of(start) for start in range(0, self.lines, self.week_lines)]

    def week_of(self, line: int) -> str:
        """Return the dataset that holds a line."""
        return f"retail-week-{line // self.week_lines + 1}"

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield every checkpoint in order of time."""
        for start in range(0, self.lines, self.week_lines):
            stop = min(start + self.week_lines, self.lines)
            for first in range(start, stop, self.every):
                end = min(first + self.every, stop)
                yield Checkpoint(self.week_of(start), f"line-{end:05}", start, first, end)


def running_counts(baskets: Baskets, clock: Clock) -> Iterator[tuple[Checkpoint, NDArray[np.int64]]]:
    """Yield each checkpoint with the counts of items 1 to `LAST_ITEM` since its week began (private)."""
    if clock.week_lines >= 10**DIGITS:
        raise ValueError(f"week_lines {clock.week_lines} must have at most {DIGITS} digits")
    counts = np.zeros(LAST_ITEM + 1, dtype=np.int64)
    for point in clock.checkpoints():
        if point.first == point.week_start:
            counts[:] = 0
        counts += np.bincount(baskets.between(point.first, point.end), minlength=LAST_ITEM + 1)
        yield point, counts[1:].copy()


class Writer:
    """Writes the records of checkpoints; the parts that never change are formatted once."""

    def __init__(self) -> None:
        self._template = [
            f'{{"id":"%b/{item}","series":"{SERIES % item}","set":"%b","value":%b}}'.encode("ascii")
            for item in range(1, LAST_ITEM + 1)
        ]
        self._number = [f"{count:<{DIGITS}}".encode("ascii") for count in range(1024)]

    def records(self, point: Checkpoint, counts: NDArray[np.int64]) -> list[bytes]:
        """Return the queries of one checkpoint, then the marker that closes their set."""
        name = point.set_id.encode("ascii")
        number, known = self._number, len(self._number)
        records = [
            template % (name, name, number[count] if count < known else b"%-*d" % (DIGITS, count))
            for template, count in zip(self._template, counts.tolist(), strict=True)
        ]
        records.append(json.dumps({"set": point.set_id, "closed": True}).encode("ascii"))
        return records
