"""Pages of a worker: a status page, metrics, health and status, all of it released or public, read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from inspect import iscoroutinefunction

from faust import App
from faust.web import Request, Response, Web

from stream_svt.monitor.released import DatasetView
from stream_svt.service.web.alert_tail import AlertTail, open_tail
from stream_svt.service.web.connection_limit import LimitedRunner
from stream_svt.service.web.overview import Overview
from stream_svt.service.web.pages import HEADERS, JSON, PAGES, Kept, MakePage, Page
from stream_svt.service.worker import Worker, cluster_of

OVERVIEW = "/api/v1/overview"
"""Budgets of the whole application and the newest released events, as JSON."""


def register(app: App, worker: Worker, overview: Overview | None = None) -> None:
    """Add the pages to a Faust app; other methods than GET and HEAD are refused by the framework.

    Args:
        overview: What the status page shows; by default, the worker's.
    """
    shown = overview or overview_of(worker)

    async def answer(_: Worker) -> Page:
        return Page(200, JSON, await shown.answer())

    for path, page in {**PAGES, OVERVIEW: answer}.items():
        name = path.strip("/").replace("/", "-") or "status-page"
        app.page(path, name=name)(_view(Kept(page) if iscoroutinefunction(page) else page, worker))

    async def close(_: object) -> None:
        await shown.close()

    app.web.web_app.on_shutdown.append(close)
    # Faust has no setting for it, and makes its own runner without any bound.
    app.web._runner = LimitedRunner(app.web.web_app)  # noqa: SLF001


def overview_of(worker: Worker) -> Overview:
    """Return what a worker's status page shows."""
    topics = worker.config.topics

    def open_alerts() -> AbstractAsyncContextManager[AlertTail]:
        return open_tail(cluster_of(worker.config), topics.alerts, topics.partitions)

    def views() -> dict[str, DatasetView]:
        return {name: view for status in worker.statuses() for name, view in status.views.items()}

    return Overview(open_alerts, lambda: worker.workload.spec, views)


def _view(page: MakePage, worker: Worker) -> Callable[[Web, Request], Awaitable[Response]]:
    async def view(web: Web, request: Request) -> Response:
        del request
        made = page(worker)
        answer = made if isinstance(made, Page) else await made
        response = web.bytes(
            answer.body, content_type=answer.content_type.partition(";")[0], status=answer.status
        )
        response.headers.update(HEADERS)
        response.headers["Content-Type"] = answer.content_type
        return response

    return view
