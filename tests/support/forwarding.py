"""What the forwarder's tests share: events, a configuration, receivers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
from aiohttp import web

from stream_svt.forward.config import Destination, ForwardConfig, parse_forward_config
from stream_svt.forward.event import Received, receive
from stream_svt.forward.parcel import Parcel
from stream_svt.forward.retry import Answer, Result
from stream_svt.monitor.released import Alert, EventType, Lifecycle
from tests.support.alerts import alert, encoded

KEY, OLD_KEY = bytes(range(32)), bytes(range(100, 132))


def record(body: bytes, offset: int = 0, partition: int = 0) -> SimpleNamespace:
    """Return what a consumer would hand over."""
    return SimpleNamespace(
        value=body, key=b"shop", partition=partition, offset=offset, timestamp=1_767_600_000_000
    )


def received(
    data: Alert | Lifecycle | None = None, *, kind: EventType | None = None, sequence: int = 1
) -> Received:
    """Return an event as the forwarder reads it; an alert by default."""
    event = receive(record(encoded(sequence, data or alert(), kind=kind), offset=sequence))
    assert isinstance(event, Received)
    return event


def configured(
    directory: Path, destinations: str, *, servers: str = "127.0.0.1:1", **keys: str
) -> ForwardConfig:
    """Return a configuration whose destinations are given as YAML in one line; both keys stand in files."""
    for name, key in (("hook.key", KEY), ("old.key", OLD_KEY)):
        (directory / name).write_text(key.hex())
        (directory / name).chmod(0o600)
    text = f'kafka: {{bootstrap_servers: "{servers}"}}\ntopic: retail-watch.alerts\ndestinations: {destinations}\n'
    text += "".join(f"{name}: {value}\n" for name, value in keys.items())
    return parse_forward_config(text, directory=directory)


def destination(directory: Path, text: str) -> Destination:
    """Return one destination."""
    return configured(directory, f"[{text}]").destinations[0]


class Scripted:
    """Answers in place of HTTP: each request takes the next answer, the last one for ever."""

    def __init__(self, *answers: Answer | Result) -> None:
        self.answers = [one if isinstance(one, Answer) else Answer(one, one.value) for one in answers]
        self.posted: list[tuple[str, Parcel]] = []

    async def post(self, url: str, parcel: Parcel) -> Answer:
        self.posted.append((url, parcel))
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class Receiver:
    """An HTTP server on the loopback address that notes what it gets and answers as it is told.

    Attributes
    ----------
    answer
        Returns the response to a request; the body was read.
    bodies, headers
        Of all requests, in order of arrival.
    """

    answer: Callable[[web.Request, dict], web.StreamResponse | None] = lambda request, event: None
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    taken: list[dict] = field(default_factory=list)
    pause: float = 0.0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        event = msgspec.json.decode(body)
        answer = self.answer(request, event)
        await asyncio.sleep(self.pause)
        if answer is None:
            self.taken.append(event)
            return web.Response(status=204)
        return answer

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        """Serve while the body runs."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
            await site.start()
            port = runner.addresses[0][1]
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/hook"
            yield self
        finally:
            await runner.cleanup()


def moment(text: str) -> datetime:
    """Return a moment from RFC 3339 text."""
    return datetime.fromisoformat(text)
