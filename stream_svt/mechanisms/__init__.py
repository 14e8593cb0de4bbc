"""Mechanisms on the integer lattice: pure algorithms, given their noise. No clock, no I/O, no randomness."""

from __future__ import annotations

from stream_svt.mechanisms.correction import (
    Annealed,
    Correction,
    Explicit,
    Exposure,
    Mean,
    Optimal,
    Uncorrected,
)
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.run import UNITS_PER_EPSILON, Outcomes, Run, Top
from stream_svt.mechanisms.sampler import SAMPLER_VERSION, KeyedSampler, draw_threshold, exact_geometric
from stream_svt.mechanisms.sparse_vector import (
    BOTTOM,
    Branch,
    SparseVector,
    adaptive,
    ladder,
    sparse_vector,
)

__all__ = [
    "BOTTOM",
    "SAMPLER_VERSION",
    "UNITS_PER_EPSILON",
    "Annealed",
    "Branch",
    "Correction",
    "Explicit",
    "Exposure",
    "KeyedSampler",
    "Mean",
    "Noise",
    "Optimal",
    "Outcomes",
    "Run",
    "SparseVector",
    "Top",
    "Uncorrected",
    "adaptive",
    "draw_threshold",
    "exact_geometric",
    "ladder",
    "sparse_vector",
]
