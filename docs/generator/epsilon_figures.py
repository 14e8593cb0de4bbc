"""Numbers and tables for what-epsilon-buys.md, from the solver of `detect`."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Final

from docs.generator.markdown import table
from stream_svt.settings.detection import RunProblem, solve
from stream_svt.wording import counted

DISTANCES: Final = (10, 20, 50, 100, 200, 500, 1_000)
ALERTS: Final = (1, 10, 100)
QUERIES: Final = 1_000_000
_LIMITS: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
_PRIORS: Final = (0.5, 0.1, 0.01)


def most_certain(prior: float, epsilon: float) -> float:
    """Return the most that a belief of ``prior`` can become: odds rise by a factor of e^epsilon at most."""
    odds = prior / (1 - prior) * math.exp(epsilon)
    return odds / (1 + odds)


@cache
def price(distance: int, alerts: int, queries: int = QUERIES) -> Fraction:
    """Return the epsilon of a run that finds a distance 95 % of the time, and wastes a tenth of its alerts at most."""
    solved = solve(RunProblem(distance, 1, alerts, queries))
    return Fraction(0) if solved is None else solved[0]


def _beliefs() -> str:
    rows = [
        [f"{epsilon:g}", *(_percent(most_certain(prior, epsilon)) for prior in _PRIORS)]
        for epsilon in _LIMITS
    ]
    return table(["epsilon", "from 50 % to at most", "from 10 %", "from 1 %"], rows)


def _distances() -> str:
    rows = [[f"{far:,}", *(f"{float(price(far, alerts)):.3g}" for alerts in ALERTS)] for far in DISTANCES]
    return table(["distance", *(counted(alerts, "alert") for alerts in ALERTS)], rows)


def _percent(share: float) -> str:
    decimals = 2 if share > 0.999 else 1 if share < 0.1 or share > 0.99 else 0
    return f"{100 * share:.{decimals}f}%"


BLOCKS: Final = {"beliefs": _beliefs, "distances": _distances}
