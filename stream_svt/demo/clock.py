"""The demo's public clock: line numbers cut the weeks and say when queries are asked.

Privacy unit and neighbours: one basket. Two data sets are neighbours when the basket of one line is emptied
in one of them and **the lines stay**. Weeks and checkpoints are cut by line number, so emptying a basket
moves no other basket into another week or across a checkpoint; each basket belongs to exactly one week,
whose budget alone it uses. Counting *non-empty* baskets instead would break both promises (a removed one
would pull its successors forward).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One moment at which the running counts of all items are asked.

    Attributes:
        dataset: The week's dataset.
        set_id: Name of the finite set that the queries of this moment form.
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

    lines: int
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
