"""Checks of the arguments of mechanisms.

Python and numpy silently accept unsigned answers whose difference wraps around, one noise broadcast to all answers or a
run of another mechanism. Each voids the guarantee and its result looks ordinary, so the checks raise `MisuseError`.
Messages contain no answer, no noise and no other secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeGuard, TypeVar

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.grid import NOISE_LIMIT, VALUE_LIMIT, Integers

BranchNoise = Callable[[int], Integers]
"""Returns fresh query noise for a branch number: int64 grid steps, shape (tests,)."""
Reaching = Callable[[Sequence[Integers]], Sequence[tuple[Integers, Integers]]]
"""Returns by branch, for the least noise with which each test reaches its bar there, int64, shape (tests,), the tests
that have it, ascending, and their fresh noise."""

_Kind = TypeVar("_Kind", bound=StrEnum)


def require(condition: bool, message: str) -> None:
    """Raise `MisuseError` with the message unless the condition holds."""
    if not condition:
        raise MisuseError(message)


def parse_choice(kind: type[_Kind], given: object, name: str) -> _Kind:
    """Return the member of an enumeration given as itself or as its name, in any case.

    Anything else is a `MisuseError`, which lists the choices, and the reason if the kind's `refused` has one.
    """
    if isinstance(given, kind):
        return given
    lowered = given.lower() if isinstance(given, str) else ""
    for choice in kind:
        if choice.value == lowered:
            return choice
    shown = repr(given) if isinstance(given, str) else f"of type {type(given).__name__}"
    reason = getattr(kind, "refused", {}).get(lowered, "no such option is known")
    *others, last = (repr(choice.value) for choice in kind)
    raise MisuseError(f"{name} {shown} is refused: {reason}. Use {', '.join(others)} or {last}.")


def require_bool(given: object, name: str) -> None:
    """Raise `MisuseError` unless the value is a bool: the string "no" would count as true."""
    require(type(given) is bool, f"{name} is True or False, not of type {type(given).__name__}")


def is_integer(given: object) -> TypeGuard[int]:
    """Whether the value is an integer of Python or numpy."""
    return isinstance(given, (int, np.integer))


def integer_array(given: object, name: str) -> Integers:
    """Return a one-dimensional integer array as int64; anything else, or numbers beyond int64, is a `MisuseError`."""
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype.kind not in "iu":
        raise MisuseError(
            f"the {name} must be a one-dimensional numpy array of an integer dtype, not a list, floats or booleans. "
            "Round them to the grid first"
        )
    if given.dtype.kind == "u":
        require(_within(given, 0, 2**63), f"one of the {name} does not fit int64")
    return given.astype(np.int64, copy=False)


def grid_values(given: object, name: str = "answers") -> Integers:
    """Return values on the grid as int64, shape (answers,); `MisuseError` unless all are below 2^47 in magnitude."""
    values = integer_array(given, name)
    fits = _within(values, 1 - VALUE_LIMIT, VALUE_LIMIT)
    require(fits, f"one of the {name} lies beyond the grid: all must be below 2^47 in magnitude")
    return values


def checked_array(
    given: object, tests: int, name: str, least: int, limit: int, error: type[MisuseError] = MisuseError
) -> Integers:
    """Return an integer array, shape (tests,), as int64; raise `error` unless all numbers lie in [least, limit)."""
    if not isinstance(given, np.ndarray) or given.shape != (tests,) or given.dtype.kind not in "iu":
        raise MisuseError(f"the {name} of {tests} tests must be an integer array of shape ({tests},)")
    if not _within(given, least, limit):
        raise error(_out_of_range(name, least, limit))
    return given.astype(np.int64, copy=False)


def checked_integer(
    given: object, name: str, least: int, limit: int, error: type[MisuseError] = MisuseError
) -> int:
    """Return an integer that applies to all tests, as int; raise `error` unless it lies in [least, limit)."""
    if not is_integer(given):
        raise MisuseError(f"the {name} of a test must be an integer")
    if not least <= given < limit:
        raise error(_out_of_range(name, least, limit))
    return int(given)


def checked_integer_or_array(
    given: object, tests: int, name: str, least: int, limit: int, error: type[MisuseError] = MisuseError
) -> Integers | int:
    """Return an integer that applies to all tests, or an integer array of shape (tests,)."""
    if isinstance(given, np.ndarray):
        return checked_array(given, tests, name, least, limit, error)
    return checked_integer(given, name, least, limit, error)


def checked_noise(noise: BranchNoise, answers: int) -> BranchNoise:
    """Wrap a noise source: it raises `MisuseError` unless it returns one draw for each answer."""

    def checked(branch: int) -> Integers:
        drawn: object = noise(branch)
        if not isinstance(drawn, np.ndarray) or drawn.dtype != np.int64 or drawn.shape != (answers,):
            raise MisuseError(
                f"the noise of {answers} answers must be an int64 array of shape ({answers},): two answers must "
                "never share a draw"
            )
        fits = _within(drawn, -NOISE_LIMIT, NOISE_LIMIT + 1)
        require(fits, "noise must lie within 2^62 grid steps, where every sampler saturates")
        return drawn

    return checked


def reaching(noise: BranchNoise) -> Reaching:
    """Return the tests that reach their bar at each branch, by the noise of all."""

    def found(branch: int, least: Integers) -> tuple[Integers, Integers]:
        drawn = noise(branch)
        tests = np.flatnonzero(drawn >= least)
        return tests, drawn[tests]

    return lambda leasts: [found(branch, least) for branch, least in enumerate(leasts)]


def next_word(word: Callable[[], int]) -> int:
    """Return the next 64 bits of a source of uniform numbers; words of a 32-bit generator would pass the check."""
    bits = word()
    fits = is_integer(bits) and 0 <= bits < 2**64
    require(fits, "a source of words must return integers of 64 uniform bits, from 0 to 2^64 - 1")
    return int(bits)


def _within(numbers: Integers, least: int, limit: int) -> bool:
    """Whether all numbers lie in [least, limit)."""
    if not len(numbers):
        return True
    if least == 0 and limit.bit_count() == 1:  # one pass
        return 0 <= int(np.bitwise_or.reduce(numbers)) < limit
    return int(np.minimum.reduce(numbers)) >= least and int(np.maximum.reduce(numbers)) < limit


def _out_of_range(name: str, least: int, limit: int) -> str:
    """Return the message for a number out of range, without the number, which may be private."""
    return (
        f"the {name} of a test lies outside [{least}, {limit - 1}], the range that comparisons and noise support; "
        "the batch was refused and no noise was drawn"
    )
