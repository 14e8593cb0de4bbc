"""What callers hand in, checked where it enters.

The guarantees are theorems about whole answers and one noise for each. Python and numpy take much else without a
word: a family's name that is compared by identity, unsigned answers whose difference wraps around, one noise that
is broadcast to all answers, a run of another mechanism that has more left. Each of them voids a guarantee and looks
like an ordinary result, so that it is refused here. Messages never hold an answer, a noise or what else is secret.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import TypeGuard, TypeVar

import numpy as np

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.grid import NOISE_LIMIT, THRESHOLD_NOISE_LIMIT, VALUE_LIMIT
from stream_svt.mechanisms.run import BranchNoise, Integers, Run, mechanism_id

_Kind = TypeVar("_Kind", bound=StrEnum)

_WORD_LIMIT = 2**64
_INT64_LIMIT = 2**63
_ATTEMPT_LIMIT = 2**62


def one_of(kind: type[_Kind], given: object, name: str, reasons: Mapping[str, str] | None = None) -> _Kind:
    """Return the choice that is given, as itself or as its name in letters of any case.

    Args:
        name: What is chosen, for the message.
        reasons: Why some known words are no choice.

    Raises:
        MisuseError: For anything else; the message names the choices.
    """
    if isinstance(given, kind):
        return given
    word = given.lower() if isinstance(given, str) else None
    for choice in kind:
        if choice.value == word:
            return choice
    shown = repr(given) if isinstance(given, str) else f"of type {type(given).__name__}"
    reason = (reasons or {}).get(word or "", "no such option is known")
    *others, last = (repr(choice.value) for choice in kind)
    raise MisuseError(f"{name} {shown} is refused: {reason}. Use {', '.join(others)} or {last}.")


def require_bool(given: object, name: str) -> None:
    """Refuse what merely counts as true or false, such as the word "no".

    Raises:
        MisuseError: For anything but True and False.
    """
    if type(given) is not bool:
        raise MisuseError(f"{name} is True or False, not of type {type(given).__name__}")


def is_whole(given: object) -> TypeGuard[int]:
    """Whether a number is an integer of Python or numpy."""
    return isinstance(given, int | np.integer)


def whole_numbers(given: object, name: str) -> Integers:
    """Array of one axis as int64.

    Raises:
        MisuseError: For anything but a one-dimensional array of an integer dtype, and for numbers beyond
            int64.
    """
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype.kind not in "iu":
        raise MisuseError(
            f"the {name} are a one-dimensional numpy array of whole numbers, of an integer dtype: no list, no floats "
            "and no booleans. Round them to the grid first"
        )
    if given.dtype.kind == "u" and len(given) and int(np.maximum.reduce(given)) >= _INT64_LIMIT:
        raise MisuseError(f"one of the {name} does not fit int64")
    return given.astype(np.int64, copy=False)


def grid_values(given: object, name: str = "answers") -> Integers:
    """Array of values of the grid, shape (answers,), as int64.

    Raises:
        MisuseError: As `whole_numbers`, and for values of 2^47 or more in magnitude.
    """
    values = whole_numbers(given, name)
    if not _within(values, 1 - VALUE_LIMIT, VALUE_LIMIT):
        raise MisuseError(f"one of the {name} lies beyond the grid: they are below 2^47 in magnitude")
    return values


def grid_thresholds(given: object, tests: int) -> Integers | int:
    """One threshold for all tests, or one for each; below 2^47 in magnitude.

    Raises:
        MisuseError: For what is neither a whole number nor an array of as many as there are tests.
    """
    return _one_or_each(given, tests, "thresholds", 1 - VALUE_LIMIT, VALUE_LIMIT)


def attempt_numbers(given: object, tests: int) -> Integers | int:
    """Earlier tests of all queries, or of each.

    Raises:
        MisuseError: For what is neither a count nor an array of as many as there are tests.
    """
    return _one_or_each(given, tests, "attempts", 0, _ATTEMPT_LIMIT)


def noise_of_each(noise: BranchNoise, answers: int) -> BranchNoise:
    """Return the same noise, which is refused unless each answer has one of its own.

    Raises:
        MisuseError: When called, for anything but an int64 array of shape (answers,) within 2^62 grid steps.
    """

    def checked(branch: int) -> Integers:
        drawn: object = noise(branch)
        if not isinstance(drawn, np.ndarray) or drawn.dtype != np.int64 or drawn.shape != (answers,):
            raise MisuseError(
                f"the noise of {answers} answers is an int64 array of shape ({answers},): one draw for each answer, "
                "for two answers must never share one"
            )
        if not _within(drawn, -NOISE_LIMIT, NOISE_LIMIT + 1):
            raise MisuseError("noise lies within 2^62 grid steps, where every sampler saturates")
        return drawn

    return checked


def require_own(run: Run, mechanism: Hashable, most: int) -> None:
    """Refuse a run that a mechanism cannot have opened.

    Args:
        most: Units that a run of the mechanism has left when it is opened.

    Raises:
        MisuseError: For a run of another mechanism, whose threshold noise is that of another charge, for one
            with more left than it was opened with, and for a threshold noise of no sampler.
    """
    if run.mechanism != mechanism_id(mechanism):
        raise MisuseError(
            f"this run was opened by another mechanism than this {type(mechanism).__name__}: noise and charges would "
            "not agree. Step it with a mechanism of exactly the parameters that opened it"
        )
    if run.left > most:
        raise MisuseError(
            "this run has more left than any run of this mechanism: its tops would not be paid for by its noise"
        )
    noise = run.threshold_noise
    if not is_whole(noise) or not -THRESHOLD_NOISE_LIMIT <= noise <= THRESHOLD_NOISE_LIMIT:
        raise MisuseError("the threshold noise of a run is a whole number within 2^60 grid steps")


def next_word(word: Callable[[], int]) -> int:
    """Next 64 bits of a source of uniform numbers.

    That they are 64, and uniform, is for the caller to see to: words of a 32-bit generator are in range.

    Raises:
        MisuseError: For anything but a whole number from 0 to 2^64 - 1.
    """
    bits = word()
    if not is_whole(bits) or not 0 <= bits < _WORD_LIMIT:
        raise MisuseError("a source of words returns whole numbers of 64 uniform bits, from 0 to 2^64 - 1")
    return int(bits)


def _one_or_each(given: object, tests: int, name: str, least: int, limit: int) -> Integers | int:
    """One number for all tests or an array with one for each, in [least, limit)."""
    if isinstance(given, np.ndarray):
        numbers = whole_numbers(given, name)
        if len(numbers) != tests:
            raise MisuseError(f"{tests} tests have as many {name}, or one for all; {len(numbers)} were given")
        if not _within(numbers, least, limit):
            raise MisuseError(f"one of the {name} of a batch is out of range")
        return numbers
    if not is_whole(given):
        raise MisuseError(f"the {name} of tests are a whole number, or an array of them")
    if not least <= given < limit:
        raise MisuseError(f"the {name} of a batch are out of range")
    return int(given)


def _within(numbers: Integers, least: int, limit: int) -> bool:
    """Whether all numbers lie in [least, limit)."""
    if not len(numbers):
        return True
    return int(np.minimum.reduce(numbers)) >= least and int(np.maximum.reduce(numbers)) < limit
