"""The own time of an event in milliseconds since 1970, from numbers and texts; fractions are rounded down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from typing import Final

import numpy as np

from stream_svt.columns.byte_buffer import Integers
from stream_svt.mechanisms.grid import PARTS
from stream_svt.settings.fields import LAST_MS

NO_TIME: Final = -1
"""Stands for a time that is missing, malformed, or not from 0 to `LAST_MS`."""
LONGEST: Final = 64
"""Most characters of a time."""
_SECOND, _MINUTE, _DAY = 1000, 60_000, 86_400_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_BEFORE_SECONDS: Final = len("2026-01-05T10:00")
_TO_MINUTE: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ]([01]\d|2[0-3]):([0-5]\d))?", re.ASCII)
_FROM_SECOND: Final = re.compile(
    r"(?::([0-5]\d|60)(?:[.,](\d+))?)?(?:[Zz]|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?", re.ASCII
)


def of_numbers(whole: Integers, fraction: Integers, scale: str) -> Integers:
    """Return times, given as whole parts and fractions (see `decimals`) in ``s``, ``ms`` or ``us``."""
    if scale == "s":
        # Of larger numbers only the side counts, so that the product has 64 bits.
        ms = np.clip(whole, -1, LAST_MS // _SECOND + 1) * _SECOND + fraction // (PARTS // _SECOND)
    else:
        ms = whole if scale == "ms" else whole // 1000
    return in_range(ms)


def in_range(ms: Integers) -> Integers:
    """Return times, `NO_TIME` for those before 1970 or after `LAST_MS`."""
    return np.where((ms < 0) | (ms > LAST_MS), NO_TIME, ms)


def of_texts(texts: Sequence[str | None]) -> Integers:
    """Return times in ISO 8601, as RFC 3339 has them; without a zone they are UTC, without a time midnight."""
    return np.fromiter((NO_TIME if text is None else of_text(text) for text in texts), np.int64, len(texts))


def of_text(text: str) -> int:
    """Return one such time.

    >>> of_text("2026-01-05T10:00:00.1239+01:00"), of_text("2026-01-05 09:00"), of_text("5 Jan 2026")
    (1767603600123, 1767603600000, -1)
    """
    if len(text) > LONGEST:
        return NO_TIME
    first, rest = _to_minute(text[:_BEFORE_SECONDS]), _from_second(text[_BEFORE_SECONDS:])
    return NO_TIME if first is None or rest is None else max(first + rest, NO_TIME)


@lru_cache(maxsize=4096)
def _to_minute(text: str) -> int | None:
    """Return the milliseconds up to a minute; events of one minute share it."""
    if (match := _TO_MINUTE.fullmatch(text)) is None:
        return None
    try:
        days = date.fromisoformat(match[1]).toordinal() - _EPOCH
    except ValueError:
        return None
    return days * _DAY + (int(match[2] or 0) * 60 + int(match[3] or 0)) * _MINUTE


@lru_cache(maxsize=4096)
def _from_second(text: str) -> int | None:
    """Return the milliseconds of seconds, less those of a zone."""
    if (match := _FROM_SECOND.fullmatch(text)) is None:
        return None
    seconds, fraction, sign, hours, minutes = match.groups()
    ms = int(seconds or 0) * _SECOND + int((fraction or "")[:3].ljust(3, "0"))
    zone = (int(hours or 0) * 60 + int(minutes or 0)) * _MINUTE
    return ms + zone if sign == "-" else ms - zone
