"""Exact keyed noise against numpy's inexact exponential: draws a second, as a ratio.

Same count on both sides, one AES block a test on ours, repetitions interleaved so that both see the same
machine. The figure is the worst scale's median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from stream_svt.mechanisms import KeyedSampler, Noise

COUNT = 400_000
REPETITIONS = 9
SCALES = (2, 10, 100, 1000)


def figures() -> dict[str, float]:
    """Return `exact_vs_numpy_exponential`, the median ratio of speeds at the scale where it is least."""
    keyed = KeyedSampler(bytes(range(32)))
    generator = np.random.default_rng(1)
    offset = np.arange(COUNT, dtype=np.int64)
    value = np.random.default_rng(2).integers(0, 10**6, COUNT)

    def exact(scale: int) -> None:
        keyed.draw(
            Noise.EXPONENTIAL,
            Fraction(1, scale),
            salt=(1, 2),
            offset=offset,
            row=0,
            attempt=0,
            branch=0,
            value=value,
        )

    def inexact(scale: int) -> None:
        generator.exponential(scale, COUNT)

    medians = []
    for scale in SCALES:
        _seconds(exact, scale)
        _seconds(inexact, scale)
        ratios = [_seconds(inexact, scale) / _seconds(exact, scale) for _ in range(REPETITIONS)]
        medians.append(statistics.median(ratios))
    return {"exact_vs_numpy_exponential": min(medians)}


def _seconds(draw: Callable[[int], None], scale: int) -> float:
    start = time.perf_counter()
    draw(scale)
    return time.perf_counter() - start


if __name__ == "__main__":
    for name, figure in figures().items():
        print(f"sampler.{name} {figure:.3f}")
