"""What an answer means, and how long to wait before asking again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from stream_svt.forward.document import RetryConfig

LONGEST_REQUESTED_S = 3600.0
"""Most seconds for which a receiver may ask with Retry-After."""

_ALREADY_THERE = 409
"""Conflict: how receivers say that they have an event of this id. The id is the same for every copy, so they do."""
_ABOUT_THE_EVENT = frozenset({400, 413, 414, 415, 422, 431})
"""What says that this request will never be taken. Anything else a receiver can mend: an address, a token, a limit."""


class Result(StrEnum):
    """How an attempt ended; the words are labels of a metric."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    THROTTLED = "throttled"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes
    ----------
    result
        What it means.
    reason
        A status or the kind of failure, for logs: nothing of the receiver's own words, and no address.
    wait
        Seconds for which the receiver asked to be left alone, 0 where it did not.
    """

    result: Result
    reason: str
    wait: float = 0.0


def meaning(status: int, retry_after: str | None, now: datetime) -> Answer:
    """Return what an HTTP answer means."""
    reason = f"status {status}"
    if 200 <= status < 300 or status == _ALREADY_THERE:
        return Answer(Result.ACCEPTED, reason)
    if status in _ABOUT_THE_EVENT:
        return Answer(Result.REFUSED, reason)
    wait = _requested(retry_after, now)
    if status == 429 or (status == 503 and wait):
        return Answer(Result.THROTTLED, reason, wait)
    return Answer(Result.FAILED, reason, wait)


def _requested(retry_after: str | None, now: datetime) -> float:
    """Return the seconds that a Retry-After header asks for: a number, or a date."""
    if retry_after is None:
        return 0.0
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            moment = parsedate_to_datetime(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = (moment - now).total_seconds()
        except (ValueError, ArithmeticError, LookupError, TypeError):
            # A receiver may write what it likes: years and zones too large for a number, half a date.
            return 0.0
    return min(max(seconds, 0.0), LONGEST_REQUESTED_S)


def delay(config: RetryConfig, attempt: int, fraction: float) -> float:
    """Return the seconds to wait after an attempt that failed, without what the receiver asked for.

    Parameters
    ----------
    attempt
        Its number, from 1.
    fraction
        A random number from 0 to 1: forwarders that failed together must not come back together.
    """
    longest = min(config.most, config.first * 2 ** min(attempt - 1, 40)) / 1000
    return float(longest * (1 + fraction) / 2)
