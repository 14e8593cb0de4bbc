"""The tables of what-epsilon-buys.md."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from docs.generator.epsilon_figures import CUTOFFS, EPSILONS, QUERIES, bought, most_certain
from docs.generator.markdown import table

_LIMITS: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)


def _beliefs() -> str:
    rows = [
        [f"{epsilon:g}", *(_percent(most_certain(prior, epsilon)) for prior in (0.5, 0.1, 0.01))]
        for epsilon in _LIMITS
    ]
    return table(["epsilon", "from 50 % to at most", "from 10 %", "from 1 %"], rows)


def _distances() -> str:
    rows = [
        [f"{float(epsilon):g}", *(f"{float(bought(epsilon, cutoff).sure_margin):,.0f}" for cutoff in CUTOFFS)]
        for epsilon in EPSILONS
    ]
    heads = [f"{cutoff} alert{'s' if cutoff > 1 else ''} a run" for cutoff in CUTOFFS]
    return table(["epsilon of a run", *heads], rows)


def _runs() -> str:
    """Return what one limit buys when it is cut into runs of different size."""
    rows = []
    for epsilon in (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4)):
        found = bought(epsilon, 10, Fraction(4))
        queries = found.runs * QUERIES
        rows.append(
            [
                f"{float(epsilon):g}",
                str(found.runs),
                str(found.alerts),
                f"{queries:,}",
                f"{float(found.sure_margin):,.0f}",
            ]
        )
    return table(
        ["epsilon of a run", "runs", "alerts in all", "queries in all", "reported 19 times in 20 from"], rows
    )


def _percent(share: float) -> str:
    decimals = 2 if share > 0.999 else 1 if share < 0.1 or share > 0.99 else 0
    return f"{100 * share:.{decimals}f} %"


BLOCKS: Final = {"beliefs": _beliefs, "distances": _distances, "runs": _runs}
