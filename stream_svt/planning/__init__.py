"""What a budget buys, worked out before a unit of it is spent."""

from __future__ import annotations

from stream_svt.planning.budget import Purchase, purchase
from stream_svt.planning.model import Forecast, Retries, Span, forecast
from stream_svt.planning.wording import explain
from stream_svt.planning.workload import Belief, Drift, Workload, from_percentiles

__all__ = [
    "Belief",
    "Drift",
    "Forecast",
    "Purchase",
    "Retries",
    "Span",
    "Workload",
    "explain",
    "forecast",
    "from_percentiles",
    "purchase",
]
