"""Predicts what a privacy budget buys before any of it is spent."""

from __future__ import annotations

from stream_svt.planning.budget import PaidRuns, explain, reported_margin
from stream_svt.planning.model import Belief, Drift, Forecast, Span, Workload, forecast, from_percentiles
from stream_svt.planning.recommending import Candidate, Recommendation, monitor_for, recommend

__all__ = [
    "Belief",
    "Candidate",
    "Drift",
    "Forecast",
    "PaidRuns",
    "Recommendation",
    "Span",
    "Workload",
    "explain",
    "forecast",
    "from_percentiles",
    "monitor_for",
    "recommend",
    "reported_margin",
]
