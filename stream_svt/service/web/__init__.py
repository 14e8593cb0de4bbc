"""Pages of a worker: a status page, metrics, health and status, all of it released or public, read-only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from inspect import iscoroutinefunction
from typing import Annotated

import msgspec
from aiohttp.web import AppRunner, Request, RequestHandler, Response, Server
from faust import App
from msgspec import Meta

from stream_svt.monitor.released import DatasetView
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.service import __version__, metrics
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


class FaultStatus(msgspec.Struct):
    """Why the worker stays out of its group."""

    cause: Annotated[str, Meta(description="One word, as in `stream_svt_worker_outside_group`.")]
    reason: Annotated[str, Meta(description="The same in words.")]


class RefusedRecords(msgspec.Struct):
    """Records refused since the worker started."""

    topic: Annotated[str, Meta(description="Where their places are listed.")]
    reasons: Annotated[dict[str, int], Meta(description="How many, by reason.")]


class ShardLine(msgspec.Struct, rename={"key_id": "sealing_key_id"}):
    """A shard that the worker owns."""

    shard: Annotated[int, Meta(description="Its number.")]
    state: Annotated[ShardState, Meta(description="Such as running or parked.")]
    cause: Annotated[Cause, Meta(description="Why it is not open, in one word.")]
    reason: Annotated[str, Meta(description="The same in words.")]
    key_id: Annotated[str, Meta(description="Id of the key that seals its state.")]
    sequence: Annotated[int, Meta(description="Number of its latest event.")]
    state_records: Annotated[int, Meta(description="Live records on the state topic.")]
    offsets: Annotated[dict[str, int], Meta(description="Committed position, by topic.")]
    lag: Annotated[dict[str, int], Meta(description="Records after it, by topic.")]
    committed_at: Annotated[float, Meta(description="Unix time of the latest commit, 0 for none.")]


class MonitorLine(msgspec.Struct):
    """A monitor as it is configured."""

    monitor: Annotated[str, Meta(description="Its name.")]
    topic: Annotated[str, Meta(description="Its query topic.")]
    mechanism: Annotated[str, Meta(description="svt, adaptive or ladder.")]
    threshold: Annotated[float, Meta(description="In real units.")]
    cutoff: Annotated[int, Meta(description="Tops that a run pays for.")]
    epsilon: Annotated[float, Meta(description="Privacy loss of a run.")]


class About(msgspec.Struct, kw_only=True):
    """The worker without the datasets: small however many there are."""

    application: Annotated[str, Meta(description="Its name.")]
    version: Annotated[str, Meta(description="Of stream-svt.")]
    worker: Annotated[str, Meta(description="Host and process.")]
    application_hash: Annotated[str, Meta(description="Digest of the datasets and monitors applied.")]
    ready: Annotated[bool, Meta(description="As `/health/ready`.")]
    fault: Annotated[FaultStatus | None, Meta(description="Why it stays out of its group.")]
    sealed: Annotated[bool, Meta(description="Whether state is encrypted.")]
    signatures_required: Annotated[bool, Meta(description="Whether unsigned commands are refused.")]
    shards: Annotated[list[ShardLine], Meta(description="Those that it owns.")]
    monitors: Annotated[list[MonitorLine], Meta(description="All of the application.")]
    refused: Annotated[RefusedRecords, Meta(description="Records refused since it started.")]


class WorkerStatus(About, kw_only=True):
    """The worker, and the datasets it owns of the first ones declared."""

    datasets_declared: Annotated[int, Meta(description="How many the application has.")]
    datasets: Annotated[list[DatasetView], Meta(description="Those of its shards, as of the last commit.")]


def status(worker: Worker) -> WorkerStatus:
    """Return the worker's shards and monitors, and the datasets it owns of the first ones declared."""
    views = {name: view for one in worker.statuses() for name, view in one.views.items()}
    spec = worker.workload.spec
    return WorkerStatus(
        **msgspec.structs.asdict(about(worker)),
        datasets_declared=len(spec.datasets),
        datasets=[views[one.name] for one in spec.shown if one.name in views],
    )


def about(worker: Worker) -> About:
    """Return the same without the datasets."""
    spec, fault = worker.workload.spec, worker.fault
    return About(
        application=spec.application,
        version=__version__,
        worker=worker.identity,
        application_hash=worker.workload.hash,
        ready=worker.ready,
        fault=None if fault is None else FaultStatus(str(fault.cause), fault.reason),
        sealed=bool(worker.config.master_keys),
        signatures_required=worker.config.control.required,
        shards=[
            ShardLine(*(getattr(one, name) for name in ShardLine.__struct_fields__))
            for one in worker.statuses()
        ],
        monitors=[
            MonitorLine(
                one.name, one.topic, one.form.value, float(one.threshold), one.cutoff, float(one.epsilon)
            )
            for one in spec.monitors
        ],
        refused=RefusedRecords(worker.config.topics.rejects, worker.metrics.refused_records()),
    )


# Pages


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


async def status_page(worker: Worker) -> Page:
    """Return the worker with its datasets as JSON; built in another thread, as the metrics are."""
    return Page(200, JSON, msgspec.json.encode(await asyncio.to_thread(status, worker)))


def worker_page(worker: Worker) -> Page:
    """Return the worker without the datasets as JSON."""
    return Page(200, JSON, msgspec.json.encode(about(worker)))


def _asset(name: str, content_type: str) -> Callable[[Worker], Page]:
    page = Page(200, content_type, files("stream_svt.service.web").joinpath("assets", name).read_bytes())
    return lambda _: page


PAGES: dict[str, MakePage] = {
    "/": _asset("index.html", "text/html; charset=utf-8"),
    **{f"/assets/{name}": _asset(name, content_type) for name, content_type in ASSETS.items()},
    "/metrics": metrics_page,
    "/health/live": live,
    "/health/ready": ready,
    "/api/v1/status": status_page,
    "/api/v1/worker": worker_page,
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
