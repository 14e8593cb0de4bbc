"""What callers hand in, checked where it enters.

The guarantees are theorems about whole answers and one noise for each. Python and numpy take much else without a
word: unsigned answers whose difference wraps around, one noise that is broadcast to all answers, a run of another
mechanism that has more left. Each of them voids a guarantee and looks like an ordinary result, so it is refused,
with `MisuseError`. Messages never hold an answer, a noise or what else is secret.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeGuard, TypeVar

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.grid import NOISE_LIMIT, VALUE_LIMIT, Integers

BranchNoise = Callable[[int], Integers]
"""Fresh query noise of every test, by branch number."""

_Kind = TypeVar("_Kind", bound=StrEnum)


def require(holds: bool, otherwise: str) -> None:
    """Refuse what does not hold, with the reason."""
    if not holds:
        raise MisuseError(otherwise)


def parse_choice(kind: type[_Kind], given: object, name: str) -> _Kind:
    """Return the choice that is given, as itself or as its name in letters of any case.

    Refuses everything else: the message names the choices, and the reason where the kind's `refused` has one.
    """
    if isinstance(given, kind):
        return given
    word = given.lower() if isinstance(given, str) else ""
    for choice in kind:
        if choice.value == word:
            return choice
    shown = repr(given) if isinstance(given, str) else f"of type {type(given).__name__}"
    reason = getattr(kind, "refused", {}).get(word, "no such option is known")
    *others, last = (repr(choice.value) for choice in kind)
    raise MisuseError(f"{name} {shown} is refused: {reason}. Use {', '.join(others)} or {last}.")


def require_bool(given: object, name: str) -> None:
    """Refuse what merely counts as true or false, such as the word "no"."""
    require(type(given) is bool, f"{name} is True or False, not of type {type(given).__name__}")


def is_integer(given: object) -> TypeGuard[int]:
    """Whether a number is an integer of Python or numpy."""
    return isinstance(given, int | np.integer)


def integer_array(given: object, name: str) -> Integers:
    """Array of one axis as int64; anything but a one-dimensional array of integers within int64 is refused."""
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype.kind not in "iu":
        raise MisuseError(
            f"the {name} are a one-dimensional numpy array of whole numbers, of an integer dtype: no list, no floats "
            "and no booleans. Round them to the grid first"
        )
    if given.dtype.kind == "u":
        require(_within(given, 0, 2**63), f"one of the {name} does not fit int64")
    return given.astype(np.int64, copy=False)


def grid_values(given: object, name: str = "answers") -> Integers:
    """Array of values of the grid, shape (answers,), as int64; below 2^47 in magnitude."""
    values = integer_array(given, name)
    require(
        _within(values, 1 - VALUE_LIMIT, VALUE_LIMIT),
        f"one of the {name} lies beyond the grid: they are below 2^47 in magnitude",
    )
    return values


def checked_array(
    given: object, tests: int, name: str, least: int, limit: int, error: type[MisuseError] = MisuseError
) -> Integers:
    """Array of one whole number in [least, limit) for each test; `error` is raised for numbers out of range."""
    if not isinstance(given, np.ndarray) or given.shape != (tests,) or given.dtype.kind not in "iu":
        raise MisuseError(f"the {name} of {tests} tests is an array of as many whole numbers")
    if not _within(given, least, limit):
        raise error(_out_of_range(name, least, limit))
    return given.astype(np.int64, copy=False)


def checked_integer(
    given: object, name: str, least: int, limit: int, error: type[MisuseError] = MisuseError
) -> int:
    """One whole number in [least, limit) for all tests, as Python's."""
    if not is_integer(given):
        raise MisuseError(f"the {name} of a test is a whole number")
    if not least <= given < limit:
        raise error(_out_of_range(name, least, limit))
    return int(given)


def checked_integer_or_array(
    given: object, tests: int, name: str, least: int, limit: int, error: type[MisuseError] = MisuseError
) -> Integers | int:
    """One whole number for all tests, or an array with one for each."""
    if isinstance(given, np.ndarray):
        return checked_array(given, tests, name, least, limit, error)
    return checked_integer(given, name, least, limit, error)


def checked_noise(noise: BranchNoise, answers: int) -> BranchNoise:
    """Return the same noise, which is refused when it is read unless each answer has one of its own."""

    def checked(branch: int) -> Integers:
        drawn: object = noise(branch)
        if not isinstance(drawn, np.ndarray) or drawn.dtype != np.int64 or drawn.shape != (answers,):
            raise MisuseError(
                f"the noise of {answers} answers is an int64 array of shape ({answers},): one draw for each answer, "
                "for two answers must never share one"
            )
        require(
            _within(drawn, -NOISE_LIMIT, NOISE_LIMIT + 1),
            "noise lies within 2^62 grid steps, where every sampler saturates",
        )
        return drawn

    return checked


def next_word(word: Callable[[], int]) -> int:
    """Next 64 bits of a source of uniform numbers, 0 to 2^64 - 1.

    That they are 64, and uniform, is for the caller to see to: words of a 32-bit generator are in range.
    """
    bits = word()
    require(
        is_integer(bits) and 0 <= bits < 2**64,
        "a source of words returns whole numbers of 64 uniform bits, from 0 to 2^64 - 1",
    )
    return int(bits)


def _within(numbers: Integers, least: int, limit: int) -> bool:
    """Whether all numbers lie in [least, limit)."""
    if not len(numbers):
        return True
    return int(np.minimum.reduce(numbers)) >= least and int(np.maximum.reduce(numbers)) < limit


def _out_of_range(name: str, least: int, limit: int) -> str:
    """Say that a number is out of range, without the number, which may be private."""
    return (
        f"the {name} of a test lies outside [{least}, {limit - 1}], the range that its comparison and its noise "
        "allow; the batch was refused and no noise was drawn"
    )
