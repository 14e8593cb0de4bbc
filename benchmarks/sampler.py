"""Exact keyed noise against numpy's inexact exponential: draws a second, as a ratio.

Same count on both sides, one AES block a test on ours, repetitions interleaved so that both see the same
machine. The figure is the worst scale's median.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from benchmarks.command import median_ratio, seconds, show
from stream_svt.mechanisms import Identity, KeyedSampler, Law, Noise

SCALES = (2, 10, 100, 1000)


def figures(count: int = 400_000, repetitions: int = 9) -> dict[str, float]:
    """Return `exact_vs_numpy_exponential`, the median ratio of speeds at the scale where it is least."""
    keyed = KeyedSampler(bytes(range(32)))
    generator = np.random.default_rng(1)
    value = np.random.default_rng(2).integers(0, 10**6, count)
    identity = Identity((1, 2), offset=np.arange(count), row=0, attempt=0, branch=0, value=value)
    medians = []
    for scale in SCALES:

        def exact(rate: Fraction = Fraction(1, scale)) -> None:
            keyed.draw(Law(Noise.EXPONENTIAL, rate), identity)

        def inexact(scale: int = scale) -> None:
            generator.exponential(scale, count)

        turns = [(seconds(inexact), seconds(exact)) for _ in range(repetitions + 1)][1:]  # one to warm up
        medians.append(median_ratio(f"scale {scale}", *zip(*turns, strict=True)))
    return {"exact_vs_numpy_exponential": min(medians)}


if __name__ == "__main__":
    show(figures)
