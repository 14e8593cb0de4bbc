"""Pages of a worker: a status page, metrics, health and status, all of it released or public, read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from inspect import iscoroutinefunction

from aiohttp.web import StreamResponse
from faust import App
from faust.web import Request, Response, Web

from stream_svt.monitor.released import DatasetView
from stream_svt.service.alert_tail import AlertTail, open_tail
from stream_svt.service.web.connection_limit import LimitedRunner, origin
from stream_svt.service.web.feed import HISTORY, Feed, TooManyViewers
from stream_svt.service.web.pages import HEADERS, PAGES, TEXT, Kept, MakePage, Page
from stream_svt.service.worker import Worker, cluster_of

EVENTS = "/api/v1/events"
"""Server-sent events: what is released, as it is published."""

WRITE_DEADLINE = 10.0
"""Seconds after which a viewer that takes nothing is cut off."""


def register(app: App, worker: Worker, feed: Feed | None = None) -> None:
    """Add the pages to a Faust app; other methods than GET and HEAD are refused by the framework.

    Parameters
    ----------
    feed
        What tells the viewers; by default, the worker's.
    """
    feed = feed or feed_of(worker)
    for path, page in PAGES.items():
        kept = Kept(page) if iscoroutinefunction(page) else page
        app.page(path, name="status-page" if path == "/" else _name(path))(_view(kept, worker))
    app.page(EVENTS, name=_name(EVENTS))(_events(feed))

    async def close(_: object) -> None:
        await feed.close()

    # The web server waits for open answers before it stops, and these have no end of their own.
    app.web.web_app.on_shutdown.append(close)
    # Faust has no setting for it, and makes its own runner without any bound.
    app.web._runner = LimitedRunner(app.web.web_app)  # noqa: SLF001


def feed_of(worker: Worker) -> Feed:
    """Return what tells the viewers of a worker's status page."""
    topics = worker.config.topics

    def open_alerts(starts: Mapping[int, int]) -> AbstractAsyncContextManager[AlertTail]:
        return open_tail(cluster_of(worker.config), topics.alerts, topics.partitions, starts, HISTORY)

    def views() -> dict[str, DatasetView]:
        return {name: view for status in worker.statuses() for name, view in status.views.items()}

    return Feed(open_alerts, topics.partitions, lambda: worker.workload.spec, views)


def _name(path: str) -> str:
    return path.strip("/").replace("/", "-")


def _view(page: MakePage, worker: Worker) -> Callable[[Web, Request], Awaitable[Response]]:
    async def view(web: Web, request: Request) -> Response:
        del request
        answer = page(worker)
        return _response(web, answer if isinstance(answer, Page) else await answer)

    return view


def _response(web: Web, answer: Page) -> Response:
    response = web.bytes(
        answer.body, content_type=answer.content_type.partition(";")[0], status=answer.status
    )
    response.headers.update(HEADERS)
    response.headers["Content-Type"] = answer.content_type
    return response


def _events(feed: Feed) -> Callable[[Web, Request], Awaitable[StreamResponse | Response]]:
    async def view(web: Web, request: Request) -> StreamResponse | Response:
        answer = StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"})
        answer.headers["X-Accel-Buffering"] = "no"  # nginx would keep events back until there are many
        if request.method == "HEAD":
            await answer.prepare(request)
            return answer
        # A browser sends the header when it comes back by itself, a page the parameter when it does so.
        place = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        try:
            viewer = feed.join(place, origin(request.remote))
        except TooManyViewers:
            full = _response(web, Page(503, TEXT, b"too many viewers of this worker; look at another one\n"))
            full.headers["Retry-After"] = "30"
            return full
        try:
            await answer.prepare(request)
            async for message in viewer.messages():
                if request.transport is None:
                    break
                async with asyncio.timeout(WRITE_DEADLINE):
                    await answer.write(message)
            async with asyncio.timeout(WRITE_DEADLINE):
                await answer.write_eof()
        except (ConnectionError, TimeoutError):
            # Gone, or as good as gone. The framework would wait without end for the rest to be taken.
            if request.transport is not None:
                request.transport.abort()
        finally:
            feed.leave(viewer)
        return answer

    return view
