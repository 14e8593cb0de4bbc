"""The retail baskets that ship with the package, in order of time.

Source: the retail market basket data set, supplied by Tom Brijs: anonymised baskets of a Belgian retail
store, 88,162 of them, one a line, 16,470 items. It is a derived copy: the same lines and item numbers, the
order inside a basket (which means nothing) ascending, packed as differences.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

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


def from_lines(lines: Iterable[str]) -> Baskets:
    """Return the baskets of a text with one basket of item numbers a line."""
    baskets = [np.unique(np.array(line.split(), dtype=np.uint16)) for line in lines]
    start = np.concatenate([[0], np.cumsum([len(basket) for basket in baskets])]).astype(np.int64)
    return Baskets(start, np.concatenate(baskets).astype(np.uint16))


def save(baskets: Baskets, path: Path) -> None:
    """Write the packed copy: sizes, and the two bytes of each difference apart, which compresses best."""
    items = baskets.items.astype(np.int64)
    steps = items - np.concatenate([[0], items[:-1]])
    begins = baskets.start[:-1][np.diff(baskets.start) > 0]
    steps[begins] = baskets.items[begins]
    np.savez_compressed(
        path,
        source=np.array(ACKNOWLEDGEMENT),
        sizes=np.diff(baskets.start).astype(np.uint8),
        low=(steps & 0xFF).astype(np.uint8),
        high=(steps >> 8).astype(np.uint8),
    )


def load(path: Path | None = None) -> Baskets:
    """Return the baskets of a packed copy, by default of the one in the package."""
    place = resources.files("stream_svt.demo").joinpath("data", FILE) if path is None else path
    with place.open("rb") as stream, np.load(stream, allow_pickle=False) as packed:
        start = np.concatenate([[0], np.cumsum(packed["sizes"], dtype=np.int64)])
        steps = packed["low"].astype(np.int64) | packed["high"].astype(np.int64) << 8
    # A running sum over everything, less what had been reached before each basket.
    reached = np.concatenate([[0], np.cumsum(steps)])
    items = reached[1:] - np.repeat(reached[start[:-1]], np.diff(start))
    return Baskets(start, items.astype(np.uint16))


if __name__ == "__main__":  # python -m stream_svt.demo.data retail.dat.gz retail-baskets.npz
    with gzip.open(sys.argv[1], "rt", encoding="ascii") as text:
        save(from_lines(text), Path(sys.argv[2]))
