"""Numbers and tables for what-epsilon-buys.md, from the planner."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Final

from docs.generator.markdown import table
from stream_svt.planning.budget import SURE, reported_margin
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.wording import counted

EPSILONS: Final = tuple(Fraction(text) for text in ("0.1", "0.2", "0.5", "1", "2", "5", "10"))
CUTOFFS: Final = (1, 10, 100)
QUERIES: Final = 1_000_000
_LIMITS: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
_PRIORS: Final = (0.5, 0.1, 0.01)


def most_certain(prior: float, epsilon: float) -> float:
    """Return the most that a belief of ``prior`` can become: odds rise by a factor of e^epsilon at most."""
    odds = prior / (1 - prior) * math.exp(epsilon)
    return odds / (1 + odds)


def monitor_of(epsilon: Fraction, cutoff: int) -> MonitorSpec:
    """Return a monitor of counts over a million queries that wastes a tenth of its alerts at most."""
    return MonitorSpec.model_validate(
        {
            "name": "counts",
            "topic": "counts",
            "epsilon": epsilon,
            "cutoff": cutoff,
            "sensitivity": 1,
            "monotonic": True,
            "bounds": [0, 10**9],
            "threshold": 0,
            "expected_queries": QUERIES,
        }
    )


@cache
def sure_margin(epsilon: Fraction, cutoff: int) -> Fraction:
    """Return the distance above the threshold that one test reports 95 % of the time."""
    return reported_margin(monitor_of(epsilon, cutoff), SURE)


def _beliefs() -> str:
    rows = [
        [f"{epsilon:g}", *(_percent(most_certain(prior, epsilon)) for prior in _PRIORS)]
        for epsilon in _LIMITS
    ]
    return table(["epsilon", "from 50 % to at most", "from 10 %", "from 1 %"], rows)


def _distances() -> str:
    rows = [
        [f"{float(epsilon):g}", *(f"{float(sure_margin(epsilon, cutoff)):,.0f}" for cutoff in CUTOFFS)]
        for epsilon in EPSILONS
    ]
    heads = [f"{counted(cutoff, 'alert')} a run" for cutoff in CUTOFFS]
    return table(["epsilon of a run", *heads], rows)


def _percent(share: float) -> str:
    decimals = 2 if share > 0.999 else 1 if share < 0.1 or share > 0.99 else 0
    return f"{100 * share:.{decimals}f}%"


BLOCKS: Final = {"beliefs": _beliefs, "distances": _distances}
