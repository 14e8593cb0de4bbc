"""Numbers for what-epsilon-buys.md, from the planner."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Final

from stream_svt.monitor.datasets import DatasetSpec
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.planning import Belief, Purchase, Span, forecast, purchase
from stream_svt.privacy.loss import Kind, to_units

EPSILONS: Final = tuple(Fraction(text) for text in ("0.1", "0.2", "0.5", "1", "2", "5", "10"))
CUTOFFS: Final = (1, 10, 100)
QUERIES: Final = 1_000_000
_BELIEF: Final = Belief(positives=0.00002, above=800.0, below=600.0)


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
def bought(epsilon: Fraction, cutoff: int, limit: Fraction | None = None) -> Purchase:
    """Return what a limit buys, one run unless given."""
    units = to_units(epsilon if limit is None else limit, Kind.PURE)
    return purchase(
        monitor_of(epsilon, cutoff), DatasetSpec(name="all", kind=Kind.PURE, limit=units, unit="one event")
    )


def sure_margin(epsilon: Fraction, cutoff: int) -> Fraction:
    """Return the distance above the threshold that one test reports 19 times in 20."""
    return bought(epsilon, cutoff).sure_margin


def believed(epsilon: float) -> Span:
    """Return the share of positives that a run of twenty alerts finds: as believed, and the range otherwise."""
    monitor = monitor_of(Fraction(f"{epsilon:.6f}"), 20)
    shares = [forecast(monitor, load).recall for load in (_BELIEF.central(QUERIES), *_BELIEF.spread(QUERIES))]
    return Span(low=min(shares), middle=shares[0], high=max(shares))
