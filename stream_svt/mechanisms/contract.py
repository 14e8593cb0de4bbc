"""The interface of all mechanisms: parameters, runs, outcomes, and a randomness alignment that proves the charge.

`open` begins a run from fresh threshold noise, `step` tests answers and returns the next run and the outcomes, and
`is_over` is true when the run cannot pay for another outcome. The caller passes all noise, so the same code serves
production, proofs and simulations.

`shifts` is the alignment: for an output on one dataset it returns how far each noise moves so that the neighbouring
dataset gives the same output. The output's likelihood ratio is at most e^charge if the map is one-to-one, the moves
cost (rate times distance, summed) at most the charge of the output, and noise moves down only if its family has
`Noise.may_move_down`. The tests in `tests/exact` execute this proof.
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
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON, integer_of, loss_of, number_of

_MECHANISM_BYTES = 16
_RUN = struct.Struct(f"<B{_MECHANISM_BYTES}sqQQqq")
_RUN_VERSION = 2
_FROM_ZERO = frozenset({"threshold_units", "answer_units"})
"""Integer parameters that may be 0; `_ANY_SIGN` are those that may be negative, and all others are at least 1."""
_ANY_SIGN = frozenset({"threshold", "start"})


class Neighbours(StrEnum):
    """How the answers of the second dataset differ from those of the first.

    The charge of monotonic mechanisms holds only for UP and DOWN, the charge of others for MIXED, which includes
    both.
    """

    UP = "up"
    DOWN = "down"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Noises:
    """All noise of a run, or the distance that an alignment moves each noise, in grid steps.

    `threshold` is 0 for mechanisms without one; `queries` has shape (branches, tests).
    """

    threshold: int
    queries: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """State of one run of a mechanism. It contains secrets, which its repr omits.

    Attributes:
        threshold_noise: Grid steps. As sensitive as the data: given this noise, bottoms are no longer free.
        salt: 128 secret bits that make the query noise of this run independent of all other query noise.
        mechanism: `mechanism_id` of the mechanism that opened the run; `step` of any other refuses it.
        left_units: Units of 10^-9 epsilon that tops may still cost; `left` is the same in epsilon.
        tops: Number of tops reported so far.
    """

    threshold_noise: int = field(repr=False)
    salt: tuple[int, int] = field(repr=False)
    mechanism: bytes = field(repr=False)
    left_units: int
    tops: int = 0

    @property
    def left(self) -> Fraction:
        """Epsilon that tops may still cost."""
        return loss_of(self.left_units)

    def after(self, outcomes: Outcomes) -> Run:
        """Return the run after these outcomes: their charge is spent and their tops are counted."""
        return replace(
            self, left_units=self.left_units - outcomes.charge_units, tops=self.tops + len(outcomes.tops)
        )

    def to_bytes(self) -> bytes:
        """Return the run as 57 bytes, which contain its secrets."""
        return _RUN.pack(
            _RUN_VERSION, self.mechanism, self.threshold_noise, *self.salt, self.left_units, self.tops
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Run:
        """Return the run stored by `to_bytes`; `UnreadableState` for other bytes: do not open a new run then."""
        if len(data) != _RUN.size or data[0] != _RUN_VERSION:
            raise UnreadableState(
                "a stored run has an unknown format: another version wrote it, or it is damaged"
            )
        _, mechanism, noise, high, low, left, tops = _RUN.unpack(data)
        if left < 0 or tops < 0:
            raise UnreadableState("a stored run holds a negative count; it is damaged")
        return cls(threshold_noise=noise, salt=(high, low), mechanism=mechanism, left_units=left, tops=tops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """A reported answer.

    Attributes:
        row: Index of the answer in the batch.
        branch: Number of the branch that reported it.
        gap: Grid steps, at least 0, by which the noisy answer exceeds its bar or, in a ranking, the next answer (see
            the mechanism); None if the mechanism does not release it.
        charge_units, left_units: Units that this top costs and that the run has left after it; 0 in a ranking, which is
            charged per step. `charge` and `left` are the same in epsilon.
        answer: The answer plus fresh discrete Laplace noise, in grid steps, unbiased; None if it is not released.
    """

    row: int
    branch: int = 0
    gap: int | None
    charge_units: int = 0
    left_units: int = 0
    answer: int | None = None

    @property
    def charge(self) -> Fraction:
        """Epsilon that this top costs."""
        return loss_of(self.charge_units)

    @property
    def left(self) -> Fraction:
        """Epsilon that the run has left after it."""
        return loss_of(self.left_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Everything that a step releases.

    Attributes:
        consumed: Number of tests made before the run or the answers ended.
        tops: The reported answers in order of test; in a ranking, the largest first.
        charge_units: Units that the tops cost, in addition to the threshold charge paid when the run was opened;
            `charge` is the same in epsilon.
        threshold_gap: Grid steps from the noisy threshold to the next answer, if a ranking releases it.
    """

    consumed: int
    tops: tuple[Top, ...]
    charge_units: int = 0
    threshold_gap: int | None = None

    @property
    def charge(self) -> Fraction:
        """Epsilon that the tops cost."""
        return loss_of(self.charge_units)

    @property
    def rows(self) -> Integers:
        """Indices of the reported answers, int64, shape (tops,)."""
        return np.array([top.row for top in self.tops], dtype=np.int64)


@lru_cache(maxsize=1024)
def mechanism_id(mechanism: Hashable) -> bytes:
    """Return a 16-byte digest of a mechanism's class and parameters, the same in all releases of this format."""
    return hashlib.sha256(_describe(mechanism).encode()).digest()[:_MECHANISM_BYTES]


def _describe(value: object) -> str:
    """Return a parameter as text; integers of numpy like those of Python."""
    if is_dataclass(value):
        parts = (f"{part.name}={_describe(getattr(value, part.name))}" for part in fields(value) if part.init)
        return f"{type(value).__name__}({','.join(parts)})"
    match value:
        case tuple():
            return f"({','.join(map(_describe, value))})"
        case Enum():
            return str(value.value)
        case bool() | float() | str() | Fraction() | None:
            return str(value)
        case int() | np.integer():
            return str(int(value))
    raise TypeError(f"a parameter of type {type(value).__name__} has no name")


def rate_of(units: int, distance: int) -> Fraction:
    """Return the noise rate, in epsilon per grid step, at which moving noise by `distance` steps costs `units`."""
    return Fraction(units, UNITS_PER_EPSILON * distance)


def check_fields(parameters: Hashable) -> None:
    """Check the fields of a frozen dataclass by type and name, and replace names of options by the options."""
    for name, kind in _hints_of(type(parameters)).items():
        given = getattr(parameters, name)
        if kind is bool:
            require_bool(given, name)
        elif kind is int:
            least = None if name in _ANY_SIGN else int(name not in _FROM_ZERO)
            number = integer_of(given, name, least=least)
            require(
                name not in _ANY_SIGN or abs(number) < VALUE_LIMIT,
                f"{name} must be below 2^47 in magnitude, in grid steps",
            )
            object.__setattr__(parameters, name, number)
        elif isinstance(kind, type) and issubclass(kind, StrEnum):
            object.__setattr__(parameters, name, parse_choice(kind, given, name))
        elif name == "split" and given is not None:
            object.__setattr__(parameters, name, number_of(given, name, above=0))


_hints_of = lru_cache(get_type_hints)


def new_run(mechanism: Hashable, threshold_noise: int, salt: tuple[int, int], left: int) -> Run:
    """Return a new run of a mechanism with `left` units; error messages do not contain the noise or the salt."""
    fits = abs(threshold_noise) <= THRESHOLD_NOISE_LIMIT
    require(fits, "threshold noise lies beyond 2^60 grid steps; draw it with draw_threshold")
    require(all(0 <= half < 2**64 for half in salt), "a salt must be two integers of 64 bits")
    return Run(threshold_noise=threshold_noise, salt=salt, mechanism=mechanism_id(mechanism), left_units=left)


def check_run(run: Run, mechanism: Hashable, max_left: int) -> None:
    """Raise `MisuseError` unless the mechanism can have opened the run; its runs have at most `max_left` units."""
    require(
        run.mechanism == mechanism_id(mechanism),
        f"this run was opened by another mechanism than this {type(mechanism).__name__}: its noise would not match "
        "the charges. Step it with a mechanism of exactly the parameters that opened it",
    )
    require(
        run.left_units <= max_left,
        "this run has more units left than any run of this mechanism: its epsilon would be exceeded",
    )
    fits = is_integer(run.threshold_noise) and abs(run.threshold_noise) <= THRESHOLD_NOISE_LIMIT
    require(fits, "the threshold noise of a run must be an integer within 2^60 grid steps")


class Mechanism:
    """Base of the mechanisms, which are frozen dataclasses of parameters, all of which enter `mechanism_id`.

    By default a mechanism has no threshold, and a run makes one step that costs at most `epsilon`. Constructors and
    methods raise `MisuseError` for parameters out of range, for noise wider than the grid, and for arguments that are
    not integers on the grid.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # every mechanism has these as fields or properties

        @property
        def epsilon(self) -> Fraction:
            """Epsilon that a run costs at most, a whole number of units of 10^-9."""

        @property
        def sensitivity(self) -> int:
            """D: the largest change of an answer between neighbours, in grid steps."""

        @property
        def monotonic(self) -> bool:
            """Whether neighbours move all answers in one direction, as counts under adding or removing a record."""

        @property
        def branch_laws(self) -> tuple[Law, ...]:
            """Laws of the query noise, by branch."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            all(law.rate >= LEAST_RATE for law in (self.threshold_law, *self.branch_laws) if law),
            "noise would be wider than the grid: raise epsilon, lower the cutoff or the count, or use a coarser "
            "granularity",
        )

    @property
    def query_sensitivity(self) -> int:
        """U: the largest move of one query noise between neighbours, in grid steps."""
        return self.sensitivity if self.monotonic else 2 * self.sensitivity

    @property
    def epsilon_units(self) -> int:
        """Units of 10^-9 epsilon that a run costs at most."""
        return self.epsilon.numerator * UNITS_PER_EPSILON // self.epsilon.denominator

    @property
    def threshold_units(self) -> int:
        """Units that opening a run costs."""
        return 0

    @property
    def threshold_charge(self) -> Fraction:
        """Epsilon that opening a run costs."""
        return loss_of(self.threshold_units)

    @property
    def top_units(self) -> int:
        """Units that the tops of a run may cost."""
        return self.epsilon_units - self.threshold_units

    @property
    def threshold_law(self) -> Law | None:
        """Law of a run's threshold noise; None for mechanisms without a threshold."""
        return None

    @property
    def smallest_units(self) -> int:
        """Units of the cheapest outcome; a run with fewer units left is over."""
        return self.epsilon_units

    def open(self, threshold_noise: int, salt: tuple[int, int]) -> Run:
        """Begin a run and spend `threshold_charge`. The caller stores the run durably before its first test.

        `threshold_noise` is a fresh draw of `threshold_law` in grid steps, see `draw_threshold`, or 0 without a
        threshold; `salt` are 128 fresh secret bits, as two integers.
        """
        fits = not threshold_noise or self.threshold_law is not None
        require(fits, f"{type(self).__name__} has no threshold: its threshold noise must be 0")
        return new_run(self, threshold_noise, salt, self.top_units)

    def is_over(self, run: Run) -> bool:
        """Whether the run cannot pay for another outcome."""
        return self.is_spent(run.left_units)

    def is_spent(self, left: int) -> bool:
        """Whether `left` units cannot pay for another outcome."""
        return left < self.smallest_units

    def checked_values(self, run: Run, values: object) -> Integers:
        """Return the answers of a step as int64; `MisuseError` for another mechanism's run, `RunExhausted` if over."""
        check_run(run, self, self.top_units)
        if self.is_over(run):
            raise RunExhausted("this run has reported all that it pays for; open a new run")
        return grid_values(values)

    def threshold_shift(self, neighbours: Neighbours) -> int:
        """Grid steps that an alignment moves the threshold noise up: D, or 0 if answers only fall."""
        parsed = parse_choice(Neighbours, neighbours, "neighbours")
        return 0 if parsed is Neighbours.DOWN else self.sensitivity

    @staticmethod
    def shifts_of_rows(first: Integers, second: Integers, rows: Integers, threshold_shift: int) -> Integers:
        """Return shifts, shape (answers,), that keep the noisy answers of `rows` level with the shifted threshold."""
        moved = np.zeros(len(first), dtype=np.int64)
        moved[rows] = threshold_shift + first[rows] - second[rows]
        return moved
