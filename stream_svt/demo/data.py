"""The retail baskets that ship with the package, in order of time.

Source: the retail market basket data set, supplied by Tom Brijs: anonymised baskets of a Belgian retail
store, 88,162 of them, one a line, 16,470 items. It is a derived copy: the same lines and item numbers, the
order inside a basket (which means nothing) ascending. Packed are the sizes of baskets and the differences between items
(the first of a basket as it is), their low and high bytes apart, which compresses best.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources

import numpy as np
from numpy.typing import NDArray

ACKNOWLEDGEMENT = (
    "Retail baskets: the anonymised market baskets of a Belgian retail store, kindly supplied by Tom Brijs. "
    "T. Brijs, G. Swinnen, K. Vanhoof, G. Wets: The use of association rules for product assortment "
    "decisions: a case study. KDD 1999, pp. 254-260."
)
LAST_ITEM = 16_470
"""Items are numbered from 1 to this one without a gap. The list is public; which items sell is not."""
LINES = 88_162
"""Lines of the shipped copy."""
FILE = "retail-baskets.npz"


@dataclass(frozen=True, slots=True)
class Baskets:
    """Baskets by line number.

    Attributes:
        start: int64, one more than there are lines: ``items[start[n]:start[n + 1]]`` is the basket of line
            ``n``.
        items: uint16; item numbers, ascending inside a basket. Private: never shown.
    """

    start: NDArray[np.int64] = field(repr=False)
    items: NDArray[np.uint16] = field(repr=False)

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self.start) - 1

    def between(self, first: int, end: int) -> NDArray[np.uint16]:
        """Return the items of the lines ``first`` to ``end - 1``, one after another."""
        return self.items[self.start[first] : self.start[end]]


def load() -> Baskets:
    """Return the baskets."""
    with (
        resources.files("stream_svt.demo").joinpath("data", FILE).open("rb") as stream,
        np.load(stream, allow_pickle=False) as packed,
    ):
        start = np.concatenate([[0], np.cumsum(packed["sizes"], dtype=np.int64)])
        steps = packed["low"].astype(np.int64) | packed["high"].astype(np.int64) << 8
    # A running sum over everything, less what had been reached before each basket.
    reached = np.concatenate([[0], np.cumsum(steps)])
    items = reached[1:] - np.repeat(reached[start[:-1]], np.diff(start))
    return Baskets(start, items.astype(np.uint16))
