"""Exact keyed noise against numpy's inexact exponential: draws and tests a second, as ratios.

Same count on both sides, one AES block a test on ours, each with a salt of its own as in service, repetitions
interleaved so that all see the same machine, processor time. A figure is the worst scale's median. Tests are as in
service, by an integer bound: half of the bars are so far away that no noise reaches them, the others so near that one
in a million does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from benchmarks.command import median_ratio, say, show
from stream_svt.mechanisms import Identity, KeyedSampler, Law, Noise

SCALES = (2, 10, 100, 1000)


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time that something takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def figures(count: int = 400_000, repetitions: int = 9) -> dict[str, float]:
    """Return the median ratios of speeds, each at the scale where it is least; nanoseconds go to standard error."""
    keyed = KeyedSampler(bytes(range(32)))
    generator = np.random.default_rng(1)
    chance = np.random.default_rng(2)
    value, salt = chance.integers(0, 10**6, count), chance.integers(0, 2**64, (2, count), dtype=np.uint64)
    identity = Identity((salt[0], salt[1]), np.arange(count), row=0, attempt=0, branch=0, value=value)
    draws, tests, nanoseconds = [], [], []
    for scale in SCALES:

        def exact(rate: Fraction = Fraction(1, scale)) -> None:
            keyed.draw(Law(Noise.EXPONENTIAL, rate), identity)

        def inexact(scale: int = scale) -> None:
            generator.exponential(scale, count)

        least = np.where(chance.random(count) < 0.5, 14 * scale, 10**6)

        def tested(rate: Fraction = Fraction(1, scale), least: np.ndarray = least) -> None:
            keyed.reaching([Law(Noise.EXPONENTIAL, rate)], identity, [least])

        turns = [(seconds(inexact), seconds(exact), seconds(tested)) for _ in range(repetitions + 1)]
        theirs, ours, bounds = zip(*turns[1:], strict=True)  # one to warm up
        draws.append(median_ratio(f"draws of scale {scale}", theirs, ours))
        tests.append(median_ratio(f"tests of scale {scale}", theirs, bounds))
        nanoseconds.append(1e9 * statistics.median(bounds) / count)
    say("nanoseconds a test, by scale: " + " ".join(f"{one:.1f}" for one in nanoseconds))
    return {
        "exact_vs_numpy_exponential": min(draws),
        "test_ns_vs_numpy_exponential": min(tests),
    }


if __name__ == "__main__":
    show(figures)
