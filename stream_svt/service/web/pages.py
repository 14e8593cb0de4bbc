"""Pages of a worker as functions of it: all of it released or public, before any web framework sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from stream_svt.service import metrics
from stream_svt.service.worker import Worker

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


def about(worker: Worker) -> Page:
    """Return the same without the datasets."""
    return Page(200, JSON, msgspec.json.encode(worker.about()))


@cache
def _file(name: str) -> bytes:
    return files("stream_svt.service.web").joinpath("assets", name).read_bytes()


def front(worker: Worker) -> Page:
    """Return the status page; what it shows it fetches itself."""
    del worker
    return Page(200, "text/html; charset=utf-8", _file("index.html"))


def asset(name: str) -> Callable[[Worker], Page]:
    """Return the page of a file that the status page needs."""

    def page(worker: Worker) -> Page:
        del worker
        return Page(200, ASSETS[name], _file(name))

    return page


PAGES: dict[str, Callable[[Worker], Page]] = {
    "/": front,
    **{f"/assets/{name}": asset(name) for name in ASSETS},
    "/metrics": metrics_page,
    "/health/live": live,
    "/health/ready": ready,
    "/api/v1/status": status,
    "/api/v1/worker": about,
}
