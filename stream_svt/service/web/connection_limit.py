"""Connection limits: total, and idle time.

A worker has few file descriptors and needs them for its brokers. The web server below Faust takes connections
without end and keeps them for an hour, so the bounds are set here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.web import AppRunner, BaseRequest, RequestHandler, Server

CONNECTIONS = 256
"""Open at once, from everywhere."""

IDLE = 75.0
"""Seconds without a request after which a connection is closed; proxies keep theirs for 60."""


class ConnectionLimit(Server):
    """A web server that ends a connection too many as soon as it is made.

    Args:
        made: The server as the framework makes it, whose requests are answered.
    """

    def __init__(self, made: Server) -> None:
        super().__init__(
            made.request_handler, request_factory=self._heard, access_log=None, keepalive_timeout=IDLE
        )
        self._made = made
        self._open: set[RequestHandler] = set()
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}

    def _heard(self, *parts: Any) -> BaseRequest:  # noqa: ANN401  the framework's, handed on as they are
        """Return a request; from now on the framework's own timeout holds."""
        self._speaks(parts[2])
        return self._made.request_factory(*parts)

    def _speaks(self, handler: RequestHandler) -> None:
        if timer := self._silent.pop(handler, None):
            timer.cancel()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection, or end it."""
        super().connection_made(handler, transport)
        if len(self._open) < CONNECTIONS:
            self._open.add(handler)
            # Older frameworks begin to count after the first request only.
            self._silent[handler] = asyncio.get_running_loop().call_later(IDLE, transport.abort)
        else:
            # Not at once: the framework has not finished with it, and would trip over its end.
            asyncio.get_running_loop().call_soon(transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Give a place back."""
        self._open.discard(handler)
        self._speaks(handler)
        super().connection_lost(handler, exc)


class LimitedRunner(AppRunner):
    """Runs an application behind the limit."""

    async def _make_server(self) -> Server:
        return ConnectionLimit(await super()._make_server())
