"""Exact numbers of callers: a privacy loss is a number in epsilon, and the ledger's units stay internal.

One rule holds everywhere. An integer, a Fraction, a Decimal and a text such as "0.25" or "1/3" are what they denote. A
float is the shortest decimal that denotes it: 0.1 means one tenth, as its author wrote, and not the binary fraction
0.1000000000000000055511151231257827. NaN and infinity are refused. A value that was computed in floats need not be a
multiple of the granularity: `stream_svt.mechanisms.grid.GUARD` takes it to its step.

One unit is 10^-9 of epsilon. A given loss is rounded down to units, and noise follows from the rounded loss, so that
noise and charge agree. Names of amounts in units end in ``units``; an epsilon above `LARGEST_EPSILON` is refused, which
an amount in units taken for an epsilon exceeds from 10^-5 of epsilon on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol, TypeAlias, overload

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.arguments import require
from stream_svt.mechanisms.grid import GUARD, VALUE_LIMIT, Integers

Number: TypeAlias = int | float | str | Decimal | Fraction
"""Types of exact numbers (see the module), including integers and floats of numpy."""


class SupportsArray(Protocol):
    """An array of numpy, or an object that numpy converts to one: a column of pandas or polars."""

    def __array__(self, *args: Any, **options: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401  as numpy calls it
        """Return the entries as an array."""


Numbers: TypeAlias = Sequence[Number] | SupportsArray
"""A list, a one-dimensional array, or a column of numbers."""

UNITS_PER_EPSILON = 10**9
"""Units in an epsilon of 1."""
LARGEST_EPSILON = 10_000
"""Far smaller values already give no privacy."""

_FORMS = "(int, float, Decimal, Fraction or a text such as '1/3')"
# Exponents are short, since Fraction builds a number with as many digits as the exponent.
_NUMBER = re.compile(r"[-+]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})(?:[eE][-+]?\d{1,2})?", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_RATIO = re.compile(r"([-+]?\d{1,60}) ?/ ?(\d{1,60})", re.ASCII)
_FAR = 10_000
"""Powers of ten beyond any grid: larger ones would make numbers of as many digits."""


def exact(number: Number) -> Fraction:
    """Return the rational number that an integer, a float, a decimal or a text ("0.25", "1e-3", "1/3") denotes.

    `ValueError` if it is not finite, or a text of more than 60 digits or two digits of exponent. `TypeError` for a bool
    and any other type.

    >>> exact("0.1") + exact(0.2)
    Fraction(3, 10)
    """
    given: object = number
    if isinstance(given, Fraction):
        return given
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return Fraction(int(given))
    if isinstance(given, float | np.floating):
        if not np.isfinite(given):
            raise ValueError("not a number: expected a finite one")
        return Fraction(str(given))  # the shortest text that denotes it at its precision
    if not isinstance(given, str | Decimal):
        raise TypeError("expected an integer, a decimal, a float or a text such as '0.25' or '1/3'")
    text = str(given).strip()
    if _NUMBER.fullmatch(text):
        return Fraction(text)
    ratio = _RATIO.fullmatch(text)
    if ratio is None:
        raise ValueError("not a number: expected something like 4, 0.25, 1e-3 or 1/3")
    if int(ratio[2]) == 0:
        raise ValueError("not a number: it divides by zero")
    return Fraction(int(ratio[1]), int(ratio[2]))


def number_of(
    given: object, name: str, *, above: int | None = None, least: int | None = None, below: int | None = None
) -> Fraction:
    """Return an argument as an exact number; `MisuseError` names it unless above < number < below, least <= number."""
    try:
        number = exact(given)  # type: ignore[arg-type]  # raises TypeError for other types
        fits = (above is None or number > above) and (least is None or number >= least)
    except (TypeError, ValueError):
        number, fits = Fraction(0), False
    if not fits or (below is not None and number >= below):
        said = _range([("greater than", above), ("at least", least), ("less than", below)])
        raise MisuseError(f"{name} must be a number{said} {_FORMS}; found {shown(given)}")
    return number


def epsilon_units(given: object, name: str = "epsilon") -> int:
    """Return a loss given in epsilon in units, rounded down; `MisuseError` names it unless 10^-9 <= loss <= 10000.

    >>> epsilon_units(0.5), epsilon_units("1/3")
    (500000000, 333333333)
    """
    loss = number_of(given, name, above=0)
    require(
        loss <= LARGEST_EPSILON,
        f"{name} must be at most {LARGEST_EPSILON}; found {shown(given)}. It is a number in epsilon, not in units of "
        "10^-9; values above 10 already give next to no privacy",
    )
    units = math.floor(loss * UNITS_PER_EPSILON)
    require(units >= 1, f"{name} must be at least 1e-9, the unit of charges; found {shown(given)}")
    return units


def loss_of(units: int) -> Fraction:
    """Return an amount in units as a number in epsilon."""
    return Fraction(units, UNITS_PER_EPSILON)


def integer_of(given: object, name: str, *, least: int | None, limit: int | None = None) -> int:
    """Return an argument as an integer; `MisuseError` names it unless it is one in [least, limit)."""
    number = int(given) if isinstance(given, int | np.integer) and not isinstance(given, bool) else None
    said = _range([("at least", least), ("less than", limit)])
    if number is None or (least is not None and number < least) or (limit is not None and number >= limit):
        raise MisuseError(f"{name} must be an integer{said}; found {shown(given)}")
    return number


def _range(bounds: list[tuple[str, int | None]]) -> str:
    """Return the bounds that are not None as the end of a phrase."""
    said = " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)
    return f" {said}" if said else ""


def shown(given: object) -> str:
    """Return an argument as text for a message: its repr if it is a short number or text, otherwise its type."""
    if isinstance(given, bool | int | float | str | Decimal | Fraction | np.number | None):
        with suppress(ValueError):  # Python writes out no integer of more than 4300 digits
            text = f"{given!s}" if isinstance(given, Fraction | np.number) else f"{given!r}"
            if len(text) <= 40:
                return text
    return f"a {type(given).__name__}"


@np.errstate(all="ignore")  # numpy's warnings would reveal a value
def grid_steps(given: object, granularity: Fraction, name: str, *, up: bool = False) -> Integers:
    """Return numbers in steps of the grid, as `grid_floor` does, or `grid_ceil` if `up`: int64, shape (numbers,).

    `given` is a list, or a one-dimensional array, of numbers. Numbers beyond 2^47 steps count as the last step on
    their side, and are refused if `up`. `MisuseError` names the argument if it is neither, or if an entry is not a
    finite number; its message has no entry, because entries are secret.
    """
    numbers = listed(given, name)
    sign, over, under = -1 if up else 1, GUARD * granularity.denominator, granularity.numerator
    try:
        ratios = map(_ratio, numbers)
        steps = [
            sign * ((sign * numerator * over + denominator * under) // (GUARD * denominator * under))
            for numerator, denominator in ratios
        ]
    except (TypeError, ValueError, OverflowError):
        raise MisuseError(
            f"{name} must be finite numbers {_FORMS}, and one of them is not: replace what is missing (NaN, None) "
            "by a number that does not depend on other entries, such as the least possible one"
        ) from None
    most = VALUE_LIMIT - 1
    require(
        not up or all(-most <= step <= most for step in steps),
        f"{name} must lie within 2^47 steps of the grid, and one of them does not: use a coarser granularity",
    )
    return np.array([min(max(step, -most), most) for step in steps], dtype=np.int64)


def _ratio(number: Number) -> tuple[int, int]:
    """Return the numerator and denominator of one entry of `grid_steps`, whose digits and exponent have no limit.

    A float of fewer than 64 bits is the double that equals it, as in a column or a JSON message.
    """
    if type(number) is int:
        return number, 1
    if isinstance(number, float | np.floating):
        is_narrow = getattr(number, "nbytes", 8) < 8
        number = Decimal(str(float(number) if is_narrow else number))
    elif isinstance(number, str) and _DECIMAL.fullmatch(number.strip()):
        number = Decimal(number.strip())
    if not isinstance(number, Decimal):
        return exact(number).as_integer_ratio()
    if number.is_finite() and abs(size := number.adjusted()) > _FAR:
        number = Decimal((number.is_signed(), (bool(number),), _FAR if size > 0 else -_FAR))
    return number.as_integer_ratio()


@np.errstate(all="ignore")
def listed(given: object, name: str) -> Sequence[Any]:
    """Return a list or one-dimensional array as a sequence, whole numbers as int; otherwise `MisuseError` names it."""
    if hasattr(given, "__array__"):
        require(not np.ma.is_masked(given), f"{name} must have no masked entries: replace or leave them out")
        array = np.asarray(given)
        if array.ndim != 1:
            raise MisuseError(f"{name} must have one dimension; found shape {array.shape}")
        if array.dtype.kind in "iuO":
            return list(array.tolist())
        if array.dtype.kind != "f":
            return list(array)
        # Below, a whole float is its shortest decimal. Beyond, how an entry is read would depend on the others.
        limit = min(2 ** (np.finfo(array.dtype).nmant + 1), 2**62)
        whole = bool(((np.floor(array) == array) & (abs(array) < limit)).all())
        return array.astype(np.int64).tolist() if whole else list(array)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
        return given
    raise MisuseError(
        f"{name} must be a list or a one-dimensional array of numbers; found type {type(given).__name__}"
    )


class Exact:
    """A field of a mechanism: given as any `Number`, read as a Fraction. The owner's class must be without slots."""

    def __init__(
        self, default: Number | None = None, *, above: int | None = 0, below: int | None = None
    ) -> None:
        self.default, self.above, self.below = default, above, below

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Number: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Fraction: ...
    def __get__(self, instance: object | None, owner: type) -> Number:
        if instance is not None:
            found: Fraction = instance.__dict__[self.name]
            return found
        if self.default is None:  # the dataclass then treats the field as one without a default
            raise AttributeError(self.name)
        return self.default

    def __set__(self, instance: object, given: Number) -> None:
        instance.__dict__[self.name] = self.read(given)

    def read(self, given: object) -> Fraction:
        """Return the number; `MisuseError` names the field."""
        return number_of(given, self.name, above=self.above, below=self.below)


class Epsilon(Exact):
    """A privacy loss in epsilon, rounded down to units."""

    def read(self, given: object) -> Fraction:
        """Return the loss; `MisuseError` names the field."""
        return loss_of(epsilon_units(given, self.name))
