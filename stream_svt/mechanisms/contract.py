"""The proof obligation of every mechanism: a randomness alignment that costs at most the charge.

For any output on one dataset, a mechanism says how far each of its noises moves so that the neighbouring dataset
gives the same output. If the move is one-to-one, no noise moves down whose family prices moves up only, and the
moves cost (rate times distance) at most what the output is charged, the output's likelihood ratio is at most
e^charge. That is the whole proof; `shifts` is its program, and the tests execute it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.grid import THRESHOLD_NOISE_LIMIT
from stream_svt.mechanisms.noise import Noise, set_families
from stream_svt.mechanisms.run import Integers, Run, mechanism_id


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

    Attributes:
        threshold: Of the run's threshold noise; 0 where a mechanism has none.
        queries: Of the query noises, shape (branches, tests).
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


def begin(mechanism: Hashable, threshold_noise: int, salt: tuple[int, int], left: int) -> Run:
    """Return a new run of a mechanism, with so many units left.

    Raises:
        MisuseError: The threshold noise is none that a sampler returns, or the salt is not two numbers of 64
            bits. Neither is repeated: they are secret.
    """
    if abs(threshold_noise) > THRESHOLD_NOISE_LIMIT:
        raise MisuseError("threshold noise beyond 2^60 grid steps; draw it with draw_threshold")
    if not all(0 <= half < 2**64 for half in salt):
        raise MisuseError("a salt is two numbers of 64 bits")
    return Run(threshold_noise=threshold_noise, salt=salt, mechanism=mechanism_id(mechanism), left=left)


class GridMechanism:
    """What mechanisms over answers on the grid share. It has no fields: they name a mechanism's runs."""

    __slots__ = ()
    monotonic: bool
    sensitivity: int

    @property
    def query_sensitivity(self) -> int:
        """U: the farthest that one noise must move between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity


class OneStep(GridMechanism):
    """A mechanism without a threshold, whose one step costs all of `epsilon`."""

    __slots__ = ()
    epsilon: int

    @property
    def threshold_law(self) -> None:
        """There is no threshold."""
        return

    @property
    def threshold_charge(self) -> int:
        """There is no threshold to pay for."""
        return 0

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run; its step is charged.

        Args:
            threshold_noise: 0, for there is no threshold.
            salt: 128 fresh secret bits.

        Raises:
            MisuseError: For another threshold noise, or a salt that is not two numbers of 64 bits.
        """
        if threshold_noise:
            raise MisuseError(f"{type(self).__name__} has no threshold: its threshold noise is 0")
        return begin(self, 0, salt, self.epsilon)

    def is_over(self, run: Run) -> bool:
        """Whether the run has made its step."""
        return run.left < self.epsilon
