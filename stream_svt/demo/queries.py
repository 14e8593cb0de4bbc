"""What is asked at a checkpoint: how often each item of the public list has been sold since the week began.

The answers are counts over disjoint weeks: emptying one basket lowers the answers about its items by one
from the next checkpoint to the end of its week, changes nothing else, and never raises one: sensitivity 1,
monotonic. Ids, order and number of records depend on the clock alone. So do record lengths: a value is
padded with the spaces that JSON allows after a number, because the length of a record is public.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stream_svt.demo.clock import Checkpoint, Clock
from stream_svt.demo.data import LAST_ITEM, Baskets

#: Digits that every count is padded to; a week has fewer lines than this can hold.
DIGITS = 5

SERIES = "item-%d"


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
