"""Requests over HTTP: one client a destination, deadlines, nothing followed, kept or repeated; what answers mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

import stream_svt
from stream_svt.forward.config import Destination
from stream_svt.forward.event import Request

LONGEST_REQUESTED_S = 3600.0
"""Most seconds for which a receiver may ask with Retry-After."""
_ALREADY_THERE = 409
"""Conflict: how receivers say that they have an event of this id. The id is the same for every copy, so they do."""
_ABOUT_THE_EVENT = frozenset({400, 413, 414, 415, 422, 431})
"""What says that this request will never be taken. Anything else a receiver can mend: an address, a token, a limit."""


class Result(StrEnum):
    """How an attempt ended; the words are labels of a metric. Of several receivers' answers the first of these counts.

    Refused comes last: what another receiver did not answer, it may take later.
    """

    ACCEPTED = "accepted"
    THROTTLED = "throttled"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        reason: A status or the kind of failure, for logs: nothing of the receiver's own words, and no
            address.
        wait: Seconds for which the receiver asked to be left alone, 0 where it did not.
    """

    result: Result
    reason: str
    wait: float = 0.0


def meaning(status: int, retry_after: str | None) -> Answer:
    """Return what an HTTP answer means; of Retry-After, seconds are heard and dates are not."""
    reason, text = f"status {status}", (retry_after or "").strip()
    if 200 <= status < 300 or status == _ALREADY_THERE:
        return Answer(Result.ACCEPTED, reason)
    if status in _ABOUT_THE_EVENT:
        return Answer(Result.REFUSED, reason)
    wait = min(float(text[:9]), LONGEST_REQUESTED_S) if text.isascii() and text.isdigit() else 0.0
    throttled = status == 429 or (status == 503 and wait)
    return Answer(Result.THROTTLED if throttled else Result.FAILED, reason, wait)


class HttpPosting:
    """Posts to one destination.

    Redirects are not followed: they would carry the event and its signature to an address nobody configured.
    Proxies of the environment are not used, and cookies not kept. Of an answer only status and Retry-After are
    looked at, so that no receiver can fill memory or log.
    """

    def __init__(self, destination: Destination) -> None:
        headers = {"User-Agent": f"stream-svt/{stream_svt.__version__}"}
        if destination.authorization is not None:
            headers["Authorization"] = destination.authorization
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=2 * destination.config.concurrency),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=destination.config.timeout / 1000),
        )

    async def post(self, url: str, request: Request) -> Answer:
        """Post once and say what came of it; never raises for what a receiver does."""
        try:
            async with self._session.post(
                url, data=request.body, headers=request.headers, allow_redirects=False
            ) as response:
                return meaning(response.status, response.headers.get("Retry-After"))
        except TimeoutError:
            return Answer(Result.TIMEOUT, "no answer in time")
        except aiohttp.ClientConnectorCertificateError:
            return Answer(Result.UNREACHABLE, "its certificate is not trusted")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may hold the address, which may be a secret.
            return Answer(Result.UNREACHABLE, type(error).__name__)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()
        await asyncio.sleep(0)  # lets transports report that they are closed
