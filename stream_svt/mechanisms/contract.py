"""The proof obligation of every mechanism: a randomness alignment that costs at most the charge.

For any output on one dataset, a mechanism says how far each of its noises moves so that the neighbouring dataset
gives the same output. If the move is one-to-one, no one-sided noise moves down, and the moves cost (rate times
distance) at most what the output is charged, the output's likelihood ratio is at most e^charge. That is the whole
proof; `shifts` is its program, and the tests execute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.run import Integers


class Neighbours(StrEnum):
    """How the answers of the second dataset differ from those of the first.

    Monotonic mechanisms promise their charge for UP and DOWN only, general ones for MIXED, which contains both.
    """

    UP = "up"
    DOWN = "down"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Law:
    """Family of a noise and its rate, in epsilon per grid step."""

    noise: Noise
    rate: Fraction


@dataclass(frozen=True, slots=True)
class Shifts:
    """How far each noise moves, in grid steps, so that the neighbour gives the same output.

    Attributes
    ----------
    threshold
        Of the run's threshold noise; 0 where a mechanism has none.
    queries
        Of the query noises, shape (branches, tests).
    """

    threshold: int
    queries: Integers

    def cost(self, threshold: Law | None, branches: tuple[Law, ...]) -> Fraction:
        """Epsilon that the moves cost: the sum of rate times distance."""
        total = abs(self.threshold) * threshold.rate if threshold else Fraction(0)
        for law, moved in zip(branches, self.queries, strict=True):
            total += law.rate * sum(abs(int(steps)) for steps in moved)
        return total

    def leaves_support(self, threshold: Law | None, branches: tuple[Law, ...]) -> bool:
        """Whether a noise of a one-sided family moves down, where it may leave its support."""
        if threshold and threshold.noise is Noise.EXPONENTIAL and self.threshold < 0:
            return True
        return any(
            law.noise is Noise.EXPONENTIAL and bool((moved < 0).any())
            for law, moved in zip(branches, self.queries, strict=True)
        )
