"""The proof obligation of every mechanism: a randomness alignment that costs at most the charge.

For any output on one dataset, a mechanism says how far each of its noises moves so that the neighbouring dataset
gives the same output. If the move is one-to-one, no noise moves down whose family prices moves up only, and the
moves cost (rate times distance) at most what the output is charged, the output's likelihood ratio is at most
e^charge. That is the whole proof; `shifts` is its program, and the tests execute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from stream_svt.mechanisms.noise import Noise, set_families
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

    def __post_init__(self) -> None:
        """Refuse a value that is not a family."""
        set_families(self, "noise")


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

    def moves_down(self, threshold: Law | None, branches: tuple[Law, ...]) -> bool:
        """Whether a noise moves down whose family prices moves up only.

        Exponential noise may leave its support that way. Gumbel noise stays in it, but its probability may fall
        by more than e^(rate * distance), so that `cost` would be no bound.
        """
        if threshold and not threshold.noise.may_fall and self.threshold < 0:
            return True
        return any(
            not law.noise.may_fall and bool((moved < 0).any())
            for law, moved in zip(branches, self.queries, strict=True)
        )
