"""Private mechanisms on the integer grid, as pure algorithms: without clock, I/O and internal randomness.

The caller passes the noise. All mechanisms share `Run`, `Outcomes` and the methods described in `contract`, and each
defines the randomness alignment that proves its charge. `docs/mechanisms.md` lists charges and sources.
"""

from __future__ import annotations

from stream_svt.mechanisms.baselines.gaussian import GaussianSparseVector as GaussianSparseVector
from stream_svt.mechanisms.baselines.gaussian import draw_discrete_gaussian as draw_discrete_gaussian
from stream_svt.mechanisms.baselines.gaussian import gaussian as gaussian
from stream_svt.mechanisms.baselines.sparse import Composition as Composition
from stream_svt.mechanisms.baselines.sparse import Sparse as Sparse
from stream_svt.mechanisms.baselines.sparse import numeric_sparse as numeric_sparse
from stream_svt.mechanisms.baselines.sparse import sparse as sparse
from stream_svt.mechanisms.contract import Neighbours as Neighbours
from stream_svt.mechanisms.contract import Noises as Noises
from stream_svt.mechanisms.contract import Outcomes as Outcomes
from stream_svt.mechanisms.contract import Run as Run
from stream_svt.mechanisms.contract import Top as Top
from stream_svt.mechanisms.correction import Annealed as Annealed
from stream_svt.mechanisms.correction import Comparison as Comparison
from stream_svt.mechanisms.correction import Correction as Correction
from stream_svt.mechanisms.correction import Explicit as Explicit
from stream_svt.mechanisms.correction import Exposure as Exposure
from stream_svt.mechanisms.correction import Mean as Mean
from stream_svt.mechanisms.correction import Optimal as Optimal
from stream_svt.mechanisms.correction import Uncorrected as Uncorrected
from stream_svt.mechanisms.noise import Law as Law
from stream_svt.mechanisms.noise import Noise as Noise
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON as UNITS_PER_EPSILON
from stream_svt.mechanisms.numbers import Number as Number
from stream_svt.mechanisms.numbers import exact as exact
from stream_svt.mechanisms.sampler import SAMPLER_VERSION as SAMPLER_VERSION
from stream_svt.mechanisms.sampler import Identity as Identity
from stream_svt.mechanisms.sampler import KeyedSampler as KeyedSampler
from stream_svt.mechanisms.sampler import draw_threshold as draw_threshold
from stream_svt.mechanisms.sampler import exact_draw as exact_draw
from stream_svt.mechanisms.selection.exponential_mechanism import ExponentialMechanism as ExponentialMechanism
from stream_svt.mechanisms.selection.exponential_mechanism import NoisyMaxGumbel as NoisyMaxGumbel
from stream_svt.mechanisms.selection.hybrids import HybridEstimates as HybridEstimates
from stream_svt.mechanisms.selection.hybrids import HybridIdentity as HybridIdentity
from stream_svt.mechanisms.selection.quantile import Adjacency as Adjacency
from stream_svt.mechanisms.selection.quantile import ClippedSum as ClippedSum
from stream_svt.mechanisms.selection.quantile import FullyUnboundedQuantile as FullyUnboundedQuantile
from stream_svt.mechanisms.selection.quantile import UnboundedQuantile as UnboundedQuantile
from stream_svt.mechanisms.selection.quantile import multiple_quantiles as multiple_quantiles
from stream_svt.mechanisms.selection.top_k import LastGap as LastGap
from stream_svt.mechanisms.selection.top_k import TopK as TopK
from stream_svt.mechanisms.sparse_vector import Branch as Branch
from stream_svt.mechanisms.sparse_vector import SparseVector as SparseVector
from stream_svt.mechanisms.sparse_vector import above_threshold as above_threshold
from stream_svt.mechanisms.sparse_vector import adaptive as adaptive
from stream_svt.mechanisms.sparse_vector import ladder as ladder
from stream_svt.mechanisms.sparse_vector import sparse_vector as sparse_vector
