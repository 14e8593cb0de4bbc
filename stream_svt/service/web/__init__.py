"""Pages of a worker: a status page, metrics, health and status, all of it released or public, read-only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from inspect import iscoroutinefunction

import msgspec
from aiohttp.web import AppRunner, Request, RequestHandler, Response, Server
from faust import App

from stream_svt.service import metrics
from stream_svt.service.web import documents
from stream_svt.service.web.overview import Overview
from stream_svt.service.worker import Worker

AGE = 1.0
"""Seconds for which a page that is long work is shown again: what it says is of a moment that is past anyway."""

CONNECTIONS = 256
"""Open at once, from everywhere: a worker has few file descriptors and needs them for its brokers."""

IDLE = 75.0
"""Seconds without a request after which a connection is closed; proxies keep theirs for 60."""

OVERVIEW = "/api/v1/overview"
"""Budgets of the whole application and the newest released events, as JSON."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

HEADERS = {
    # Nothing comes from elsewhere, nothing is inline, no text becomes markup, and nobody frames the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

ASSETS = {
    "status.css": "text/css; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    content_type: str
    body: bytes


MakePage = Callable[[Worker], Page | Awaitable[Page]]


async def metrics_page(worker: Worker) -> Page:
    """Return everything Prometheus scrapes; put together on another thread, for that takes long with many datasets."""
    return Page(200, metrics.CONTENT_TYPE, await asyncio.to_thread(worker.metrics.rendering()))


def live(worker: Worker) -> Page:
    """Answer whether the process should be kept: not once it cannot go on."""
    return Page(200, TEXT, b"live\n") if worker.alive else Page(503, TEXT, b"failed\n")


def ready(worker: Worker) -> Page:
    """Answer whether every shard owned is open or parked; a standby without shards is ready."""
    if worker.ready:
        return Page(200, TEXT, b"ready\n")
    waiting = [f"shard {status.shard}: {status.state}" for status in worker.statuses()]
    if worker.fault is not None:
        waiting = [f"outside the group: {worker.fault.cause}: {worker.fault.reason}"]
    return Page(503, TEXT, ("\n".join(waiting or ["not in the group yet"]) + "\n").encode())


async def status(worker: Worker) -> Page:
    """Return the released state as JSON; put together on another thread, likewise."""
    document = await asyncio.to_thread(documents.status, worker)
    return Page(200, JSON, msgspec.json.encode(document))


def about(worker: Worker) -> Page:
    """Return the released state without the datasets."""
    return Page(200, JSON, msgspec.json.encode(documents.about(worker)))


def _asset(name: str, content_type: str) -> Callable[[Worker], Page]:
    page = Page(200, content_type, files("stream_svt.service.web").joinpath("assets", name).read_bytes())
    return lambda _: page


PAGES: dict[str, MakePage] = {
    "/": _asset("index.html", "text/html; charset=utf-8"),
    **{f"/assets/{name}": _asset(name, content_type) for name, content_type in ASSETS.items()},
    "/metrics": metrics_page,
    "/health/live": live,
    "/health/ready": ready,
    "/api/v1/status": status,
    "/api/v1/worker": about,
}
"""Those that are awaited grow with the number of datasets: each is to be `Kept`."""


class Kept:
    """A page that is made at most once in `AGE` seconds, and never twice at once, however many ask for it."""

    def __init__(self, make: Callable[[Worker], Awaitable[Page]]) -> None:
        self._make = make
        self._one_at_a_time = asyncio.Lock()
        self._page: Page | None = None
        self._made = 0.0

    async def __call__(self, worker: Worker) -> Page:
        """Return the page as it was when it was last made, or make it."""
        async with self._one_at_a_time:
            if self._page is None or time.monotonic() - self._made >= AGE:
                self._page = await self._make(worker)
                self._made = time.monotonic()
            return self._page


def register(app: App, worker: Worker, overview: Overview) -> None:
    """Add the pages to a Faust app; other methods than GET and HEAD are refused by the framework."""

    async def answer(_: Worker) -> Page:
        return Page(200, JSON, await overview.answer())

    for path, page in {**PAGES, OVERVIEW: answer}.items():
        view = _view(Kept(page) if iscoroutinefunction(page) else page, worker)
        app.web.web_app.router.add_get(path, view)

    async def close(_: object) -> None:
        await overview.close()

    app.web.web_app.on_shutdown.append(close)
    # Faust has no setting for it, and makes its own runner without any bound.
    app.web._runner = LimitedRunner(app.web.web_app)  # noqa: SLF001


def _view(page: MakePage, worker: Worker) -> Callable[[Request], Awaitable[Response]]:
    async def view(_: Request) -> Response:
        made = page(worker)
        answer = made if isinstance(made, Page) else await made
        headers = HEADERS | {"Content-Type": answer.content_type}
        return Response(body=answer.body, status=answer.status, headers=headers)

    return view


class LimitedServer(Server):
    """A web server that ends a connection too many as soon as it is made."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection, or end it."""
        super().connection_made(handler, transport)
        if len(self.connections) > CONNECTIONS:
            # Not at once: the framework has not finished with it, and would trip over its end.
            asyncio.get_running_loop().call_soon(transport.abort)


class LimitedRunner(AppRunner):
    """Runs an application behind the limits."""

    async def _make_server(self) -> Server:
        made = await super()._make_server()
        return LimitedServer(
            made.request_handler,
            request_factory=made.request_factory,
            access_log=None,
            keepalive_timeout=IDLE,
        )
