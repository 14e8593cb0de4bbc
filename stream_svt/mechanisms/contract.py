"""What every mechanism is: checked parameters, a run, and a randomness alignment that costs at most the charge.

For any output on one dataset, a mechanism says how far each of its noises moves so that the neighbouring dataset
gives the same output. If the move is one-to-one, no noise moves down whose family prices moves up only, and the
moves cost (rate times distance) at most what the output is charged, the output's likelihood ratio is at most
e^charge. That is the whole proof; `shifts` is its program, and the tests execute it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, get_type_hints

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms.arguments import grid_values, one_of, require_bool, require_own
from stream_svt.mechanisms.grid import LEAST_RATE, THRESHOLD_NOISE_LIMIT
from stream_svt.mechanisms.noise import Law
from stream_svt.mechanisms.run import Integers, Run, mechanism_id

_AT_LEAST_ONE = {
    "epsilon": "epsilon must be at least one unit, 1e-9",
    "sensitivity": "sensitivity must be at least one grid step",
    "cutoff": "cutoff must be at least 1",
    "count": "count, the number of answers to report, must be at least 1",
    "refinement": "refinement must be at least 1",
}


class Neighbours(StrEnum):
    """How the answers of the second dataset differ from those of the first.

    Monotonic mechanisms promise their charge for UP and DOWN only, general ones for MIXED, which contains both.
    """

    UP = "up"
    DOWN = "down"
    MIXED = "mixed"


def check_fields(parameters: Hashable) -> None:
    """Check the fields of a frozen dataclass by their types and names, and put options in place of their names.

    Raises:
        MisuseError: For a flag that is not True or False, an option that is none, and a count below 1.
    """
    for name, kind in _typed_fields(type(parameters)):
        given = getattr(parameters, name)
        if kind is bool:
            require_bool(given, name)
        elif issubclass(kind, StrEnum):
            object.__setattr__(parameters, name, one_of(kind, given, name))
        elif name in _AT_LEAST_ONE and given < 1:
            raise MisuseError(_AT_LEAST_ONE[name])


@lru_cache
def _typed_fields(kind: type) -> tuple[tuple[str, type], ...]:
    """Fields whose type is a plain class."""
    hints = get_type_hints(kind)
    return tuple((part.name, hints[part.name]) for part in fields(kind) if isinstance(hints[part.name], type))


@dataclass(frozen=True, slots=True)
class Shifts:
    """How far each noise moves, in grid steps, so that the neighbour gives the same output.

    Attributes:
        threshold: Of the run's threshold noise; 0 where a mechanism has none.
        queries: Of the query noises, shape (branches, tests).
    """

    threshold: int
    queries: Integers


def begin(mechanism: Hashable, threshold_noise: int, salt: tuple[int, int], left: int) -> Run:
    """Return a new run of a mechanism, with so many units left.

    Raises:
        MisuseError: The threshold noise is none that a sampler returns, or the salt is not two numbers of 64 bits.
            Neither is repeated: they are secret.
    """
    if abs(threshold_noise) > THRESHOLD_NOISE_LIMIT:
        raise MisuseError("threshold noise beyond 2^60 grid steps; draw it with draw_threshold")
    if not all(0 <= half < 2**64 for half in salt):
        raise MisuseError("a salt is two numbers of 64 bits")
    return Run(threshold_noise=threshold_noise, salt=salt, mechanism=mechanism_id(mechanism), left=left)


class Mechanism:
    """A frozen dataclass of parameters whose runs are opened, stepped and proved alike.

    It has no fields of its own: a mechanism's fields name its runs.

    Raises:
        MisuseError: When a parameter is out of range, or noise would be wider than the grid.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # a field or a property of each

        @property
        def epsilon(self) -> int:
            """Units that a run costs at most."""

        @property
        def sensitivity(self) -> int:
            """D: most that one answer changes between neighbours, in grid steps."""

        @property
        def monotonic(self) -> bool:
            """Whether neighbours move all answers of a run the same way (counts under add or remove do)."""

        @property
        def threshold_charge(self) -> int:
            """Units that are spent when a run is opened."""

        @property
        def threshold_law(self) -> Law | None:
            """Law of a run's threshold noise."""

        @property
        def branch_laws(self) -> tuple[Law, ...]:
            """Law of the noise of the answers, by branch."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_fields(self)
        threshold = (self.threshold_law,) if self.threshold_law else ()
        if min(law.rate for law in (*threshold, *self.branch_laws)) < LEAST_RATE:
            raise MisuseError(
                "noise would be wider than the grid: raise epsilon, lower the cutoff or the count, or use a coarser "
                "granularity"
            )

    @property
    def query_sensitivity(self) -> int:
        """U: the farthest that one noise must move between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity

    @property
    def smallest_charge(self) -> int:
        """Units of the cheapest outcome; a run that has less left is over."""
        return self.epsilon

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run, whose threshold charge is spent and whose secrets are durable before its first test.

        Args:
            threshold_noise: A fresh draw of `threshold_law` from the system's entropy; 0 where there is no threshold.
            salt: 128 fresh secret bits.

        Raises:
            MisuseError: For a threshold noise or a salt that cannot be.
        """
        return begin(self, threshold_noise, salt, self.epsilon - self.threshold_charge)

    def is_over(self, run: Run) -> bool:
        """Whether the run cannot pay another outcome."""
        return run.left < self.smallest_charge

    def entered(self, run: Run, values: object) -> Integers:
        """Answers of a step as int64, once the run is known to be this mechanism's and not over.

        Raises:
            RunExhausted: When the run is over; nothing was drawn.
            MisuseError: For a run of another mechanism, and for answers that are no whole numbers of the grid.
        """
        require_own(run, self, self.epsilon - self.threshold_charge)
        if self.is_over(run):
            raise RunExhausted("this run has reported all that it pays for; a new run pays again")
        return grid_values(values)

    def lift(self, neighbours: Neighbours) -> int:
        """How far an alignment moves threshold noise up: D, and not at all where answers only fall."""
        return 0 if one_of(Neighbours, neighbours, "neighbours") is Neighbours.DOWN else self.sensitivity


class OneStep(Mechanism):
    """A mechanism without a threshold of its own to pay for, whose one step costs all of `epsilon` at most."""

    __slots__ = ()

    @property
    def threshold_law(self) -> Law | None:
        """There is no threshold."""
        return None

    @property
    def threshold_charge(self) -> int:
        """There is no threshold to pay for."""
        return 0

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run; its step is charged. See `Mechanism.open`."""
        if threshold_noise and self.threshold_law is None:
            raise MisuseError(f"{type(self).__name__} has no threshold: its threshold noise is 0")
        return begin(self, threshold_noise, salt, self.epsilon)
