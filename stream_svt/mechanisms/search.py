"""Search on the integers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def least(holds: Callable[[int], bool]) -> int:
    """Return the least integer at which a predicate holds that is false before it and true from it on.

    The predicate is asked at powers of 2, negative ones where it holds at 0 or below, and then between two of them.
    """
    high = 1
    while not holds(high):
        high *= 2
    low = -1
    while holds(low):
        low *= 2
    return bisect_left(range(low + 1, high), True, key=holds) + low + 1
