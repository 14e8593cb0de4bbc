"""Numbers from the text of JSON tokens, exactly, at a cost bounded by the length of the text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

WHOLE_LIMIT = 1 << 62
"""Integers below this in size travel as int64."""

_LONG = 1000
"""Tokens of more characters are shortened: no lattice is fine enough to tell the difference."""

_HUGE = Decimal("Infinity")
"""Stands for every number too large for a double: each lies beyond the bounds of any lattice, on its side."""

_TINY = Decimal("1e-400")
"""Stands for every non-zero number too small for a double: its floor on a lattice is the same."""

_GROUP = 256
_EXACT = Context(prec=2 * _LONG)
_NUMBER = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?")
_THRESHOLD_LENGTH = 64


def number(token: bytes) -> int | Decimal | None:
    """Return the number a valid JSON token stands for, None where it is not a number.

    One that a double cannot hold because it is too large (``1e999``) is infinite, with its sign; one too small to
    tell from zero keeps its sign. A whole number comes as `int` where it is below 2**62 in size.
    """
    if not token or token[0] not in b"-0123456789":
        return None
    if len(token) > _LONG:
        token = _shortened(token)
    size = float(token)
    if math.isinf(size):
        return _HUGE if size > 0 else -_HUGE
    if abs(size) < 1e-300:
        return _near_zero(token)
    exact = Decimal(token.decode("ascii"))
    if abs(size) < WHOLE_LIMIT and exact == exact.to_integral_value(context=_EXACT):
        return int(exact) if exact.copy_abs() < WHOLE_LIMIT else exact
    return exact


def _near_zero(token: bytes) -> int | Decimal:
    mantissa = re.split(rb"[eE]", token, maxsplit=1)[0]
    if not mantissa.strip(b"-0."):
        return 0
    return -_TINY if token.startswith(b"-") else _TINY


def _shortened(token: bytes) -> bytes:
    """Return a short token for a long one: leading digits, then a 1 where non-zero digits were dropped."""
    match = _NUMBER.fullmatch(token)
    if match is None:  # pragma: no cover - the token is a number of JSON
        message = "no number of JSON"
        raise AssertionError(message)
    sign, whole, fraction, direction, power = (part or b"" for part in match.groups())
    digits = whole + fraction
    significant = digits.lstrip(b"0")
    if not significant.strip(b"0"):
        return b"0"
    # the number is 0.significant times ten to this
    point = len(whole) - (len(digits) - len(significant))
    if len(power) > 9:
        return sign + (b"1e-350" if direction == b"-" else b"1e999")
    point += int(direction + (power or b"0"))
    if point > 310:
        return sign + b"1e999"
    if point < -350:
        return sign + b"1e-350"
    kept = significant[: _LONG // 2]
    rest = b"1" if significant[_LONG // 2 :].strip(b"0") else b""
    return b"%s0.%s%se%d" % (sign, kept, rest, point)


def columns(tokens: Sequence[Raw]) -> tuple[NDArray[np.int64], dict[int, Decimal | None]]:
    """Return whole values, and by row index the others, or None for what is no number."""
    whole = _integers(tokens)
    if whole is not None:
        return whole, {}
    whole = np.zeros(len(tokens), np.int64)
    other: dict[int, Decimal | None] = {}
    for start in range(0, len(tokens), _GROUP):
        group = tokens[start : start + _GROUP]
        integers = _integers(group)
        if integers is not None:
            whole[start : start + _GROUP] = integers
            continue
        for row, token in enumerate(map(bytes, group), start):
            value = number(token)
            if isinstance(value, int):
                whole[row] = value
            else:
                other[row] = value
    return whole, other


def _integers(tokens: Sequence[Raw]) -> NDArray[np.int64] | None:
    """Return the values where all are integers below the limit, None otherwise."""
    try:
        whole = np.fromiter(map(int, tokens), np.int64, len(tokens))
    except (ValueError, OverflowError):
        return None
    if len(whole) and (whole.max() >= WHOLE_LIMIT or whole.min() <= -WHOLE_LIMIT):
        return None
    return whole


@lru_cache(maxsize=4096)
def threshold(token: bytes) -> Fraction | None:
    """Return the threshold a JSON token stands for, None where it is no number of moderate length."""
    if len(token) > _THRESHOLD_LENGTH:
        return None
    value = number(token)
    if value is None or (isinstance(value, Decimal) and not _TINY < value.copy_abs() < _HUGE):
        return None
    return Fraction(value)
