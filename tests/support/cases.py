"""Sources of the random cases in which neighbouring streams are compared."""

from __future__ import annotations

import random
from collections.abc import Iterator

MAX_CASES = 150
"""Number of cases within which a mutant must be detected."""


def sources(seed: str, cases: int) -> Iterator[random.Random]:
    return (random.Random(f"{seed} {number}") for number in range(cases))
