"""The exact privacy curve of Gaussian noise without a grid."""

from __future__ import annotations

import math

from scipy.special import ndtr


def gaussian_delta(scale: float, epsilon: float) -> float:
    """Exact delta of the Gaussian mechanism (Balle & Wang 2018, Theorem 8)."""
    here, there = ndtr([0.5 / scale - epsilon * scale, -0.5 / scale - epsilon * scale])
    return here - math.exp(epsilon) * there
