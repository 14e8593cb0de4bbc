"""When a budget will be spent if charges go on coming as they did: an interval.

Payments (charges of the same moment count as one) are taken as a Poisson process of unknown rate. Where `n` of them
came in a time `T`, the next `k` take a time whose ratio to `T k / n` has an F distribution with `2 k` and `2 n`
degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from scipy.special import fdtri

LEAST_PAYMENTS = 3
"""Payments after the first without which nothing is said."""

_TAIL = 0.05
"""Probability on either side of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """When what is left will be spent, in seconds of Unix time.

    Attributes:
        early, expected, late: With 90 % between the first and the last.
        payments, since: What that is drawn from: so many payments after the moment ``since``.
    """

    early: float
    expected: float
    late: float
    payments: int
    since: float


def exhaustion(charges: Iterable[tuple[float, float]], left: float, now: float) -> Exhaustion | None:
    """Project the end of a budget; None where nothing is left, or too little was charged to say anything.

    Args:
        charges: The latest ones as (Unix time, amount), oldest first. The first sets the clock and is not
            counted.
        left: What can still be spent, in the charges' measure.
        now: Unix time.

    >>> week = 7 * 86400
    >>> found = exhaustion([(day * 86400.0, 0.1) for day in range(8)], left=1.0, now=week)
    >>> [round((end - week) / 86400) for end in (found.early, found.expected, found.late)]
    [4, 10, 24]
    """
    payments: dict[float, float] = {}
    for time, amount in charges:
        payments[time] = payments.get(time, 0.0) + amount
    count = len(payments) - 1
    if left <= 0 or count < LEAST_PAYMENTS:
        return None
    since = next(iter(payments))
    seconds = max(now, *payments) - since
    mean = sum(payments.values()) / len(payments)
    if seconds <= 0 or mean <= 0:
        return None
    to_come = max(ceil(left / mean - 1e-9), 1)
    pace = seconds / count * to_come
    # The time ends now and not at a payment: counting one more makes the early end early enough.
    early = seconds / (count + 1) * to_come * float(fdtri(2 * to_come, 2 * count + 2, _TAIL))
    late = pace * float(fdtri(2 * to_come, 2 * count, 1 - _TAIL))
    return Exhaustion(early=now + early, expected=now + pace, late=now + late, payments=count, since=since)
