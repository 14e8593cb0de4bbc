"""Serves web pages on one address, with few connections."""

from __future__ import annotations

import asyncio
import os
from socket import gaierror

from aiohttp.web import Application, AppRunner, RequestHandler, Server, TCPSite

from stream_svt.errors import ConfigError, Problem

CONNECTIONS = 256
"""Maximum number of open connections: a process needs its few file descriptors for its brokers."""
IDLE = 75.0
"""Seconds after which an idle connection is closed: more than the 60 seconds of common proxies."""
CLOSE_TIMEOUT = 1.0
"""Seconds that answers in progress may take when the pages close."""


class Pages:
    """An application, served while it is open on the address of section `web` in the file ``source``."""

    def __init__(self, application: Application, host: str, port: int, source: str) -> None:
        self._address, self._source = (host, port), source
        self._runner = LimitedRunner(application, shutdown_timeout=CLOSE_TIMEOUT)

    async def open(self) -> None:
        """Listen on the address; raise ConfigError if that is not possible."""
        host, port = self._address
        await self._runner.setup()
        try:
            await TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.close()
            reason = error.strerror if isinstance(error, gaierror) else os.strerror(error.errno or 0)
            message = (
                f"cannot listen on {host}:{port}: {reason}; each process of a machine needs a port: "
                f"set web.port, or start with STREAM_SVT_WEB_PORT={port % 65535 + 1}"
            )
            raise ConfigError([Problem(0, "web.port", message)], self._source) from None

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        await self._runner.cleanup()


class LimitedServer(Server):
    """A web server that closes connections above the limit."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Accept a connection, or close it."""
        super().connection_made(handler, transport)
        if len(self.connections) > CONNECTIONS:
            # Later: the framework is still setting the connection up, and would fail.
            asyncio.get_running_loop().call_soon(transport.abort)


class LimitedRunner(AppRunner):
    """Runs an application with the limits."""

    async def _make_server(self) -> Server:
        made = await super()._make_server()
        return LimitedServer(
            made.request_handler,
            request_factory=made.request_factory,
            access_log=None,
            keepalive_timeout=IDLE,
        )
