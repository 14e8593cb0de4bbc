"""Requests over HTTP: one client a destination, deadlines, and nothing followed, kept or repeated by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp

import stream_svt
from stream_svt.forward.config import Destination
from stream_svt.forward.retry import Answer, Result, meaning


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its address. ``headers`` may hold a signature, and stays out of ``repr``."""

    headers: Mapping[str, str] = field(repr=False)
    body: bytes


class HttpPosting:
    """Posts to one destination.

    Redirects are not followed: they would carry the event and its signature to an address nobody configured.
    Proxies of the environment are not used, and cookies not kept. Of an answer only status and Retry-After are
    looked at, so that no receiver can fill memory or log.
    """

    def __init__(self, destination: Destination) -> None:
        seconds = destination.config.timeout / 1000
        headers = {"User-Agent": f"stream-svt/{stream_svt.__version__}"}
        if destination.authorization is not None:
            headers["Authorization"] = destination.authorization
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=destination.tls if destination.tls is not None else True,
                limit=2 * destination.config.concurrency,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=seconds),
            trust_env=False,
        )

    async def post(self, url: str, request: Request) -> Answer:
        """Post once and say what came of it; never raises for what a receiver does."""
        try:
            async with self._session.post(
                url, data=request.body, headers=request.headers, allow_redirects=False
            ) as response:
                return meaning(response.status, response.headers.get("Retry-After"), datetime.now(UTC))
        except TimeoutError:
            return Answer(Result.TIMEOUT, "no answer in time")
        except aiohttp.ClientConnectorCertificateError:
            return Answer(Result.UNREACHABLE, "its certificate is not trusted")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may hold the address, which may be a secret.
            return Answer(Result.UNREACHABLE, type(error).__name__)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await asyncio.sleep(0)  # lets transports report that they are closed
