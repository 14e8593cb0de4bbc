"""What every mechanism is: parameters, a run, its outcomes, and a randomness alignment that costs at most the charge.

A mechanism is a frozen description. `open` begins a run from fresh noise; `step` tests answers and returns the next
run with the outcomes; `is_over` says whether the run can pay anything more. Nothing here draws noise: it is handed
in, which is what lets the same code run in production, in proofs and in simulations.

For any output on one dataset, `shifts` says how far each noise moves so that the neighbouring dataset gives the same
output. If the move is one-to-one, no noise moves down whose family prices moves up only, and the moves cost (rate
times distance) at most what the output is charged, the output's likelihood ratio is at most e^charge. That is the
whole proof, and the tests execute it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, get_type_hints

import numpy as np

from stream_svt.errors import RunExhausted, UnreadableState
from stream_svt.mechanisms.arguments import grid_values, is_integer, parse_choice, require, require_bool
from stream_svt.mechanisms.grid import LEAST_RATE, THRESHOLD_NOISE_LIMIT, VALUE_LIMIT, Integers
from stream_svt.mechanisms.noise import Law

UNITS_PER_EPSILON = 10**9

_MECHANISM_BYTES = 16
_RUN = struct.Struct(f"<B{_MECHANISM_BYTES}sqQQqq")
_RUN_VERSION = 2
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


@dataclass(frozen=True, slots=True)
class Noises:
    """All noise of a run, or, as an alignment, how far each noise moves; in grid steps.

    Attributes:
        threshold: Of the run's threshold noise; 0 where a mechanism has none.
        queries: Of the query noises, shape (branches, tests).
    """

    threshold: int
    queries: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One use of a mechanism: a threshold noise and what is left to spend. Holds secrets; its repr does not.

    Attributes:
        threshold_noise: Grid steps; as sensitive as the data, since whoever knows it reads every bottom at
            full price.
        salt: 128 secret bits that keep the query noise of this run apart from that of all others.
        mechanism: Name of the mechanism that opened it, see `mechanism_id`; no other steps it.
        left: Units that tops may still cost.
        tops: Tops reported so far.
    """

    threshold_noise: int = field(repr=False)
    salt: tuple[int, int] = field(repr=False)
    mechanism: bytes = field(repr=False)
    left: int
    tops: int = 0

    def after(self, outcomes: Outcomes) -> Run:
        """Return the run that has told and paid these outcomes."""
        return replace(self, left=self.left - outcomes.charge, tops=self.tops + len(outcomes.tops))

    def to_bytes(self) -> bytes:
        """Return the run in 57 bytes."""
        return _RUN.pack(_RUN_VERSION, self.mechanism, self.threshold_noise, *self.salt, self.left, self.tops)

    @classmethod
    def from_bytes(cls, data: bytes) -> Run:
        """Run stored by `to_bytes`.

        Raises:
            UnreadableState: When the bytes are not a run of a known version. Never start afresh in its place.
        """
        if len(data) != _RUN.size or data[0] != _RUN_VERSION:
            raise UnreadableState(
                "a stored run has an unknown format: another version wrote it, or it is damaged"
            )
        _, mechanism, threshold_noise, high, low, left, tops = _RUN.unpack(data)
        if left < 0 or tops < 0:
            raise UnreadableState("a stored run holds a negative count; it is damaged")
        return cls(
            threshold_noise=threshold_noise, salt=(high, low), mechanism=mechanism, left=left, tops=tops
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """A reported answer.

    Attributes:
        row: Index of the test in the batch.
        branch: Number of the branch that fired.
        gap: Grid steps, at least 0, by which the noisy answer passes its bar; of a ranking, what comes next, see the
            mechanism. None where it is not released.
        charge, left: Units that this top costs, and that the run has left after it; of a ranking, which is charged as
            a whole, 0.
        answer: The answer plus fresh discrete Laplace noise, in grid steps, unbiased; None where it has no price.
    """

    row: int
    branch: int = 0
    gap: int | None
    charge: int = 0
    left: int = 0
    answer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What a step may tell.

    Attributes:
        consumed: Tests made before the run or the answers ended.
        tops: The reported answers, in order; of a ranking from the largest.
        charge: Units that they cost, beyond what the threshold cost when the run was opened.
        threshold_gap: Gap from the noisy threshold to the next answer, where a ranking releases it.
    """

    consumed: int
    tops: tuple[Top, ...]
    charge: int = 0
    threshold_gap: int | None = None

    @property
    def rows(self) -> Integers:
        """Indices of the reported answers, in order."""
        return np.array([top.row for top in self.tops], dtype=np.int64)


@lru_cache(maxsize=1024)
def mechanism_id(mechanism: Hashable) -> bytes:
    """Return 16 bytes that name a mechanism, in every release that writes runs of this version.

    They are a digest of its class and of all its parameters.
    """
    return hashlib.sha256(_described(mechanism).encode()).digest()[:_MECHANISM_BYTES]


def _described(value: object) -> str:
    """Return a parameter as text; numpy's integers as Python's."""
    if is_dataclass(value):
        parts = (f"{part.name}={_described(getattr(value, part.name))}" for part in fields(value))
        return f"{type(value).__name__}({','.join(parts)})"
    match value:
        case tuple():
            return f"({','.join(map(_described, value))})"
        case Enum():
            return str(value.value)
        case bool() | float() | str() | Fraction() | None:
            return str(value)
        case int() | np.integer():
            return str(int(value))
    message = f"a parameter of type {type(value).__name__} has no name"
    raise TypeError(message)


def rate_of(units: int, reach: int) -> Fraction:
    """Rate per grid step of noise that pays for moves of so many grid steps with so many units."""
    return Fraction(units, UNITS_PER_EPSILON * reach)


def check_fields(parameters: Hashable) -> None:
    """Check the fields of a frozen dataclass by their types and names, and put options in place of their names."""
    for name, kind in _hints_of(type(parameters)).items():
        given = getattr(parameters, name)
        if kind is bool:
            require_bool(given, name)
        elif isinstance(kind, type) and issubclass(kind, StrEnum):
            object.__setattr__(parameters, name, parse_choice(kind, given, name))
        elif name in _AT_LEAST_ONE:
            require(given >= 1, _AT_LEAST_ONE[name])
        elif name == "threshold":
            require(abs(given) < VALUE_LIMIT, "a threshold lies below 2^47 grid steps in magnitude")
        elif name == "split":
            require(
                given is None or given > 0,
                "a split is epsilon of the queries / epsilon of the threshold and greater than 0",
            )


_hints_of = lru_cache(get_type_hints)


def new_run(mechanism: Hashable, threshold_noise: int, salt: tuple[int, int], left: int) -> Run:
    """Return a new run of a mechanism, with so many units left; a noise or a salt that is refused is not repeated."""
    require(
        abs(threshold_noise) <= THRESHOLD_NOISE_LIMIT,
        "threshold noise beyond 2^60 grid steps; draw it with draw_threshold",
    )
    require(all(0 <= half < 2**64 for half in salt), "a salt is two numbers of 64 bits")
    return Run(threshold_noise=threshold_noise, salt=salt, mechanism=mechanism_id(mechanism), left=left)


def check_run(run: Run, mechanism: Hashable, most: int) -> None:
    """Refuse a run that a mechanism, whose runs have at most so many units left, cannot have opened."""
    require(
        run.mechanism == mechanism_id(mechanism),
        f"this run was opened by another mechanism than this {type(mechanism).__name__}: noise and charges would "
        "not agree. Step it with a mechanism of exactly the parameters that opened it",
    )
    require(
        run.left <= most,
        "this run has more left than any run of this mechanism: its tops would not be paid for by its noise",
    )
    noise = run.threshold_noise
    require(
        is_integer(noise) and abs(noise) <= THRESHOLD_NOISE_LIMIT,
        "the threshold noise of a run is a whole number within 2^60 grid steps",
    )


class Mechanism:
    """A frozen dataclass of parameters whose runs are opened, stepped and proved alike.

    It has no fields of its own: a mechanism's fields name its runs. Where nothing else is said there is no threshold,
    and the one step of a run costs all of `epsilon` at most. What has no meaning or no proof is refused with
    `MisuseError`: parameters out of range, noise wider than the grid, arguments that are not whole numbers of it.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # a field or a property of each

        @property
        def epsilon(self) -> int:
            """Units that a run costs at most."""

        @property
        def sensitivity(self) -> int:
            """D: the most that an answer changes between neighbours, in grid steps."""

        @property
        def monotonic(self) -> bool:
            """Whether neighbours move all answers the same way (counts under add or remove do)."""

        @property
        def branch_laws(self) -> tuple[Law, ...]:
            """Law of the noise of the answers, by branch."""

    def __post_init__(self) -> None:
        check_fields(self)
        threshold = (self.threshold_law,) if self.threshold_law else ()
        require(
            min(law.rate for law in (*threshold, *self.branch_laws)) >= LEAST_RATE,
            "noise would be wider than the grid: raise epsilon, lower the cutoff or the count, or use a coarser "
            "granularity",
        )

    @property
    def query_sensitivity(self) -> int:
        """U: the farthest that one noise must move between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity

    @property
    def threshold_charge(self) -> int:
        """Units that are spent when a run is opened."""
        return 0

    @property
    def threshold_law(self) -> Law | None:
        """Law of a run's threshold noise."""
        return None

    @property
    def smallest_charge(self) -> int:
        """Units of the cheapest outcome; a run that has less left is over."""
        return self.epsilon

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run, whose threshold charge is spent and whose secrets are durable before its first test.

        Args:
            threshold_noise: A fresh draw of `threshold_law` from the system's entropy; 0 where there is no threshold.
            salt: 128 fresh secret bits.
        """
        require(
            not threshold_noise or self.threshold_law is not None,
            f"{type(self).__name__} has no threshold: its threshold noise is 0",
        )
        return new_run(self, threshold_noise, salt, self.epsilon - self.threshold_charge)

    def is_over(self, run: Run) -> bool:
        """Whether the run cannot pay another outcome."""
        return run.left < self.smallest_charge

    def checked_values(self, run: Run, values: object) -> Integers:
        """Answers of a step as int64, once the run is known to be this mechanism's and not over."""
        check_run(run, self, self.epsilon - self.threshold_charge)
        if self.is_over(run):
            raise RunExhausted("this run has reported all that it pays for; a new run pays again")
        return grid_values(values)

    def threshold_shift(self, neighbours: Neighbours) -> int:
        """How far an alignment moves threshold noise up: D, and not at all where answers only fall."""
        return (
            0 if parse_choice(Neighbours, neighbours, "neighbours") is Neighbours.DOWN else self.sensitivity
        )


def shifts_of_rows(first: Integers, second: Integers, rows: Integers, lift: int) -> Integers:
    """Alignment that moves the noise of `rows` up by what the threshold moves and their answers fall."""
    moved = np.zeros(len(first), dtype=np.int64)
    moved[rows] = lift + first[rows] - second[rows]
    return moved
