"""Pages of a worker: a status page, metrics, health and status, all of it released or public, read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from inspect import iscoroutinefunction

from faust import App
from faust.web import Request, Response, Web

from stream_svt.monitor.released import DatasetView
from stream_svt.service.alert_tail import AlertTail, open_tail
from stream_svt.service.web.connection_limit import LimitedRunner
from stream_svt.service.web.overview import HISTORY, Overview
from stream_svt.service.web.pages import HEADERS, JSON, PAGES, Kept, MakePage, Page
from stream_svt.service.worker import Worker, cluster_of

OVERVIEW = "/api/v1/overview"
"""Budgets of the whole application and the newest released events, as JSON."""


def register(app: App, worker: Worker, overview: Overview | None = None) -> None:
    """Add the pages to a Faust app; other methods than GET and HEAD are refused by the framework.

    Args:
        overview: What the status page shows; by default, the worker's.
    """
    overview = overview or overview_of(worker)
    for path, page in PAGES.items():
        kept = Kept(page) if iscoroutinefunction(page) else page
        app.page(path, name="status-page" if path == "/" else _name(path))(_view(kept, worker))

    async def answer(_: Worker) -> Page:
        return Page(200, JSON, await overview.answer())

    app.page(OVERVIEW, name=_name(OVERVIEW))(_view(answer, worker))

    async def close(_: object) -> None:
        await overview.close()

    app.web.web_app.on_shutdown.append(close)
    # Faust has no setting for it, and makes its own runner without any bound.
    app.web._runner = LimitedRunner(app.web.web_app)  # noqa: SLF001


def overview_of(worker: Worker) -> Overview:
    """Return what a worker's status page shows."""
    topics = worker.config.topics

    def open_alerts(starts: Mapping[int, int]) -> AbstractAsyncContextManager[AlertTail]:
        return open_tail(cluster_of(worker.config), topics.alerts, topics.partitions, starts, HISTORY)

    def views() -> dict[str, DatasetView]:
        return {name: view for status in worker.statuses() for name, view in status.views.items()}

    return Overview(open_alerts, lambda: worker.workload.spec, views)


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
