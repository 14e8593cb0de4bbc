"""Pages of a worker: metrics, health and status, all of it released or public, all of it read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from faust import App
from faust.web import Request, Response, Web

from stream_svt.service import metrics
from stream_svt.service.worker import Worker

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer before any web framework sees it."""

    status: int
    content_type: str
    body: bytes


def metrics_page(worker: Worker) -> Page:
    """Return everything Prometheus scrapes."""
    return Page(200, metrics.CONTENT_TYPE, worker.metrics.text())


def live(worker: Worker) -> Page:
    """Answer whether the process should be kept: not once it cannot go on."""
    return Page(200, TEXT, b"live\n") if worker.alive else Page(503, TEXT, b"failed\n")


def ready(worker: Worker) -> Page:
    """Answer whether every shard owned is open; a standby without shards is ready."""
    if worker.ready:
        return Page(200, TEXT, b"ready\n")
    waiting = [f"shard {status.shard}: {status.state}" for status in worker.statuses()] or [
        "not in the group yet"
    ]
    return Page(503, TEXT, ("\n".join(waiting) + "\n").encode())


def status(worker: Worker) -> Page:
    """Return the released state as JSON."""
    return Page(200, JSON, msgspec.json.encode(worker.status()))


PAGES: dict[str, Callable[[Worker], Page]] = {
    "/metrics": metrics_page,
    "/health/live": live,
    "/health/ready": ready,
    "/api/v1/status": status,
}


def register(app: App, worker: Worker) -> None:
    """Add the pages to a Faust app; other methods than GET and HEAD are refused by the framework."""
    for path, page in PAGES.items():
        app.page(path, name=path.strip("/").replace("/", "-"))(_view(page, worker))


def _view(page: Callable[[Worker], Page], worker: Worker) -> Callable[[Web, Request], Awaitable[Response]]:
    async def view(web: Web, request: Request) -> Response:
        del request
        answer = page(worker)
        response = web.bytes(
            answer.body, content_type=answer.content_type.partition(";")[0], status=answer.status
        )
        response.headers["Content-Type"] = answer.content_type
        return response

    return view
