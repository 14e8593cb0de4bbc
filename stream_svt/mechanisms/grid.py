"""The integer grid that values, thresholds, corrections and noise live on.

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
"""Values and thresholds are strictly smaller in magnitude than this many grid steps."""
PARTS = 10**18
"""Parts of one in which a value's fraction is counted; a grid step is a whole number of them."""
WHOLE_LIMIT = 2**62
"""Whole parts of values saturate here, beyond the bounds of every grid."""
BOUND_LIMIT = 2**61
"""Bounds times the denominator of the granularity are below this in magnitude, so that int64 holds every step."""
CORRECTION_LIMIT = 2**48
"""Corrections are strictly smaller in magnitude than this many grid steps."""
THRESHOLD_NOISE_LIMIT = 2**60
"""Threshold noise saturates here: at the least admitted rate that takes 10^6 zero bits in a row."""
NOISE_LIMIT = 2**62
"""One geometric draw of query noise saturates here."""
GAP_LIMIT = 2**61
"""Gaps saturate here, below all that saturated query noise can lead to: its saturation leaves no trace."""
LEAST_RATE = Fraction(1, 2**40)
"""Rates below this are refused: their noise would be wider than the grid."""


def grid_floor(value: Fraction | int, granularity: Fraction) -> int:
    """Grid step at or below `value`.

    Floor, never round: neighbours at most d apart land at most ceil(d / granularity) steps apart and keep
    their order, whereas Python's ``round`` sends 0.5 to 0 and 1.5 to 2 and doubles a sensitivity of 1.
    """
    return math.floor(value / granularity)


def grid_sensitivity(sensitivity: Fraction | int, granularity: Fraction) -> int:
    """Sensitivity in grid steps, D = ceil(sensitivity / granularity)."""
    if sensitivity <= 0 or granularity <= 0:
        raise MisuseError("sensitivity and granularity must both be greater than 0")
    return math.ceil(sensitivity / granularity)
