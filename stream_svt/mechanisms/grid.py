"""The integer grid of values, thresholds, corrections and noise.

Every number that decides a comparison is an integer count of grid steps. Floats never take part: a float
comparison leaks through its rounding (Mironov 2012), and a float noise has no exact law to build a proof on.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

VALUE_LIMIT = 2**47
"""Values and thresholds are below this many grid steps in magnitude."""
PARTS = 10**18
"""Fractions of values are counted in units of 1/PARTS."""
FINEST = 10**12
"""A grid step of a monitor is a multiple of 1/FINEST, so that `GUARD` is many units of 1/PARTS."""
WHOLE_LIMIT = 2**62
"""Integer parts of values saturate here, beyond the bounds of every grid."""
BOUND_LIMIT = 2**61
"""Bounds times the denominator of the granularity are below this in magnitude, so that int64 holds every step."""
CORRECTION_LIMIT = 2**48
"""Corrections are below this many grid steps in magnitude."""
THRESHOLD_NOISE_LIMIT = 2**60
"""Threshold noise saturates here; at `LEAST_RATE`, a draw gets this far only after 10^6 zero bits in a row."""
NOISE_LIMIT = 2**62
"""One geometric draw of query noise saturates here."""
UNREACHABLE = NOISE_LIMIT + 2**61
"""A threshold in grid steps that no noise reaches, whatever value, correction and threshold noise are."""
GAP_LIMIT = 2**61
"""Gaps saturate here, below every gap of saturated query noise: outputs do not depend on its saturation."""
LEAST_RATE = Fraction(1, 2**40)
"""Rates below this are refused: their noise would be wider than the grid."""
GUARD = 1024
"""A value counts as on the next grid step from 1/GUARD of a step below it, whatever its origin.

A multiple of the granularity that was computed in floats lies a little above or below its step. Without the guard 0.3
is a step of 0.1 below 0.1 + 0.2, and neighbouring values one step apart could end two steps apart.
"""


def grid_floor(value: Fraction | int, granularity: Fraction) -> int:
    """Return the grid step of a value: floor(value / granularity + 1/GUARD).

    The function is increasing and moves by 1 with each granularity: values at most d apart stay at most
    ceil(d / granularity) steps apart. Python's ``round`` does not: it sends 0.5 to 0 and 1.5 to 2, which doubles a
    sensitivity of 1.
    """
    return math.floor(value / granularity + Fraction(1, GUARD))


def grid_ceil(threshold: Fraction | int, granularity: Fraction) -> int:
    """Return the grid step of a threshold: ceil(threshold / granularity - 1/GUARD)."""
    return -grid_floor(-threshold, granularity)


def grid_sensitivity(sensitivity: Fraction | int, granularity: Fraction) -> int:
    """Return D = ceil(sensitivity / granularity), in grid steps; `MisuseError` unless both are above 0."""
    if sensitivity <= 0 or granularity <= 0:
        raise MisuseError("sensitivity and granularity must both be greater than 0")
    return math.ceil(sensitivity / granularity)
