"""How much to simulate, and from which seeds."""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Effort:
    """Scale of all numbers of trials, and the seed that every measurement derives its own from.

    Attributes:
        scale: 1 for the published tables; standard errors grow with its inverse square root.
        seed: The same seed and scale give the same tables, whichever of them are made.
    """

    scale: float = 1.0
    seed: int = 1

    def trials(self, usual: int) -> int:
        """Return the number of trials of a cell that usually has so many; never fewer than 4."""
        return max(4, round(usual * self.scale))

    def generator(self, *cell: object) -> np.random.Generator:
        """Return the random numbers of one cell, which no other cell shares."""
        name = "/".join(str(part) for part in cell)
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


def progress(text: str) -> None:
    """Say on standard error what is being measured."""
    print(text, file=sys.stderr, flush=True)
