"""Mechanisms on the integer grid: pure algorithms, given their noise. No clock, no I/O, no randomness.

One run, one form of outcome and the same verbs for all (`run.py`); each brings the randomness alignment that proves
it (`contract.py`). `docs/mechanisms.md` lists what each costs and where it comes from.
"""

from __future__ import annotations

from stream_svt.mechanisms.composition import Composition
from stream_svt.mechanisms.constructors import above_threshold, adaptive, ladder, sparse_vector
from stream_svt.mechanisms.contract import Law, Neighbours, Shifts
from stream_svt.mechanisms.correction import (
    Annealed,
    Comparison,
    Correction,
    Explicit,
    Exposure,
    Mean,
    Optimal,
    Uncorrected,
)
from stream_svt.mechanisms.exponential_mechanism import ExponentialMechanism, NoisyMaxGumbel
from stream_svt.mechanisms.gaussian import GaussianSparseVector, draw_discrete_gaussian, gaussian
from stream_svt.mechanisms.hybrids import HybridEstimates, HybridIdentity, hybrid_estimates
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.quantile import (
    Adjacency,
    ClippedSum,
    FullyUnboundedQuantile,
    UnboundedQuantile,
    fully_unbounded_quantile,
    multiple_quantiles,
    unbounded_quantile,
)
from stream_svt.mechanisms.run import UNITS_PER_EPSILON, Outcomes, Run, Top
from stream_svt.mechanisms.sampler import (
    SAMPLER_VERSION,
    KeyedSampler,
    draw_threshold,
    exact_geometric,
    exact_gumbel,
)
from stream_svt.mechanisms.selection import Chosen, Drawn, Selection
from stream_svt.mechanisms.sparse import NumericTop, Sparse, numeric_sparse, sparse
from stream_svt.mechanisms.sparse_vector import Branch, SparseVector
from stream_svt.mechanisms.top_k import LastGap, TopK

__all__ = [
    "SAMPLER_VERSION",
    "UNITS_PER_EPSILON",
    "Adjacency",
    "Annealed",
    "Branch",
    "Chosen",
    "ClippedSum",
    "Comparison",
    "Composition",
    "Correction",
    "Drawn",
    "Explicit",
    "ExponentialMechanism",
    "Exposure",
    "FullyUnboundedQuantile",
    "GaussianSparseVector",
    "HybridEstimates",
    "HybridIdentity",
    "KeyedSampler",
    "LastGap",
    "Law",
    "Mean",
    "Neighbours",
    "Noise",
    "NoisyMaxGumbel",
    "NumericTop",
    "Optimal",
    "Outcomes",
    "Run",
    "Selection",
    "Shifts",
    "Sparse",
    "SparseVector",
    "Top",
    "TopK",
    "UnboundedQuantile",
    "Uncorrected",
    "above_threshold",
    "adaptive",
    "draw_discrete_gaussian",
    "draw_threshold",
    "exact_geometric",
    "exact_gumbel",
    "fully_unbounded_quantile",
    "gaussian",
    "hybrid_estimates",
    "ladder",
    "multiple_quantiles",
    "numeric_sparse",
    "sparse",
    "sparse_vector",
    "unbounded_quantile",
]
