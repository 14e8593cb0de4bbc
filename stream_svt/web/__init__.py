"""Read-only pages of a worker: status page, metrics, health and status, from released or public data only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib.resources import files
from inspect import iscoroutinefunction
from typing import Annotated

import msgspec
from aiohttp.web import Application, Request, Response
from msgspec import Meta

from stream_svt.monitor.released import DatasetView
from stream_svt.plain_text import escaped
from stream_svt.planning.budget import SURE, reported_margin
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.version import __version__
from stream_svt.web.overview import Overview
from stream_svt.web_server import Pages
from stream_svt.worker import metrics
from stream_svt.worker.worker import Worker

CACHE_SECONDS = 1.0
"""Seconds for which a slow page is cached."""
OVERVIEW = "/api/v1/overview"
"""Budgets of the whole application and the newest released events, as JSON."""
LARGE = 8192
"""Bytes from which on a page is compressed: the metrics of 1,000 datasets have 1.5 MB, or 60 kB."""
HEADERS = {
    # No content of other origins, no inline code, no text as markup, no framing.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response."""

ASSETS = {
    "status.css": "text/css; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class FaultStatus(msgspec.Struct):
    """Why the worker is outside its group."""

    cause: Annotated[str, Meta(description="One word, as in `stream_svt_worker_outside_group`.")]
    reason: Annotated[str, Meta(description="The same in words.")]


class RefusedRecords(msgspec.Struct):
    """Records refused since the worker started."""

    topic: Annotated[str, Meta(description="Topic with the position of each record.")]
    reasons: Annotated[dict[str, int], Meta(description="Number by reason.")]
    remedy: Annotated[str, Meta(description="Remedy if another partitioner was used, else empty.")]


class ShardLine(msgspec.Struct, rename={"key_id": "sealing_key_id"}):
    """A shard that the worker owns."""

    shard: Annotated[int, Meta(description="Its number.")]
    state: Annotated[ShardState, Meta(description="Such as running or parked.")]
    cause: Annotated[Cause, Meta(description="Why it is not open, in one word.")]
    reason: Annotated[str, Meta(description="The same in words.")]
    key_id: Annotated[str, Meta(description="Id of the key that seals its state.")]
    sequence: Annotated[int, Meta(description="Number of its latest commit: most commits have no event.")]
    state_records: Annotated[int, Meta(description="Live records on the state topic.")]
    offsets: Annotated[dict[str, int], Meta(description="Committed position, by topic; none of counts.")]
    lag: Annotated[
        dict[str, int],
        Meta(description="Offsets after that position, including open transactions, by topic."),
    ]
    ticks: Annotated[dict[str, int], Meta(description="Newest tick tested (Unix ms), by topic of counts.")]
    committed_at: Annotated[float, Meta(description="Unix time of the latest commit, 0 for none.")]


class MonitorLine(msgspec.Struct):
    """A monitor as it is configured."""

    monitor: Annotated[str, Meta(description="Its name.")]
    topic: Annotated[str, Meta(description="Its query topic.")]
    mechanism: Annotated[str, Meta(description="svt, adaptive or ladder.")]
    threshold: Annotated[float, Meta(description="In real units.")]
    cutoff: Annotated[int, Meta(description="Alerts that a run pays for.")]
    epsilon: Annotated[float, Meta(description="Privacy loss of a run.")]
    surely: Annotated[float, Meta(description="Least value that one test reports 95 % of the time.")]

    @classmethod
    @lru_cache(maxsize=1000)
    def of(cls, spec: MonitorSpec) -> MonitorLine:
        """Return the line of a monitor; cached, because the page is asked every two seconds."""
        threshold, surely = float(spec.threshold), float(spec.threshold + reported_margin(spec, SURE))
        return cls(spec.name, spec.topic, spec.form, threshold, spec.cutoff, float(spec.epsilon), surely)


class About(msgspec.Struct, kw_only=True):
    """The worker without the datasets: small whatever their number."""

    application: Annotated[str, Meta(description="Its name.")]
    version: Annotated[str, Meta(description="Version of stream-svt.")]
    worker: Annotated[str, Meta(description="Host and process.")]
    application_hash: Annotated[str, Meta(description="Digest of the datasets and monitors applied.")]
    ready: Annotated[bool, Meta(description="Same as `/health/ready`.")]
    fault: Annotated[FaultStatus | None, Meta(description="Reason why the worker is outside its group.")]
    partitioner: Annotated[str, Meta(description="murmur2 or crc32: it fixes the shard of a dataset.")]
    lacks: Annotated[
        str, Meta(description="Shards whose sealing key the worker lacks, in words; empty for none.")
    ]
    sealed: Annotated[bool, Meta(description="Whether state is encrypted.")]
    signatures_required: Annotated[bool, Meta(description="Whether unsigned commands are refused.")]
    shards: Annotated[list[ShardLine], Meta(description="The worker's shards.")]
    monitors: Annotated[list[MonitorLine], Meta(description="The application's monitors.")]
    refused: Annotated[RefusedRecords, Meta(description="Records refused since the worker's start.")]


class WorkerStatus(About, kw_only=True):
    """The worker, and its datasets among the first declared ones."""

    datasets_declared: Annotated[int, Meta(description="Number of datasets in the application.")]
    datasets: Annotated[list[DatasetView], Meta(description="Datasets of its shards, as of the last commit.")]


def status(worker: Worker) -> WorkerStatus:
    """Return the worker's shards and monitors, and its datasets among the first declared ones."""
    views = {name: view for one in worker.statuses() for name, view in one.views.items()}
    spec = worker.workload.spec
    return WorkerStatus(
        **msgspec.structs.asdict(about(worker)),
        datasets_declared=len(spec.datasets),
        datasets=[views[one.name] for one in spec.shown if one.name in views],
    )


def about(worker: Worker) -> About:
    """Return the status without the datasets."""
    spec, fault, config = worker.workload.spec, worker.outside, worker.config
    return About(
        application=spec.application,
        version=__version__,
        worker=worker.identity,
        application_hash=worker.workload.hash,
        ready=worker.ready,
        fault=None if fault is None else FaultStatus(str(fault.cause), fault.reason),
        partitioner=config.topics.partitioner,
        lacks=worker.lacks,
        sealed=bool(config.sealing.master_keys),
        signatures_required=bool(config.control.keys),
        shards=[msgspec.convert(one, ShardLine, from_attributes=True) for one in worker.statuses()],
        monitors=[MonitorLine.of(one) for one in spec.monitors],
        refused=RefusedRecords(
            config.topics.rejects, worker.metrics.refused_records(), worker.workload.misrouted()
        ),
    )


MakePage = Callable[[Worker], Response | Awaitable[Response]]


def _page(body: bytes, content_type: str = "application/json") -> Response:
    return Response(body=body, headers={"Content-Type": content_type})


async def metrics_page(worker: Worker) -> Response:
    """Return the metrics; another thread renders them, which takes long with many datasets."""
    return _page(await asyncio.to_thread(worker.metrics.rendering()), metrics.CONTENT_TYPE)


def live(worker: Worker) -> Response:
    """Return whether the process works: a failed one should be restarted."""
    return Response(text="live\n") if worker.alive else Response(text="failed\n", status=503)


def ready(worker: Worker) -> Response:
    """Return whether all owned shards are open or parked, and the keys open all others, as a standby needs."""
    if worker.ready:
        return Response(text="ready\n")
    waiting = [f"shard {status.shard}: {status.state}" for status in worker.statuses()]
    waiting += [worker.lacks] * bool(worker.lacks)
    if (fault := worker.outside) is not None:
        waiting = [f"outside the group: {fault.cause}: {fault.reason}"]
    return Response(
        text="".join(f"{escaped(line)}\n" for line in waiting or ["not in the group yet"]), status=503
    )


async def status_page(worker: Worker) -> Response:
    """Return the worker with its datasets as JSON; built in another thread, as the metrics are."""
    return _page(msgspec.json.encode(await asyncio.to_thread(status, worker)))


def worker_page(worker: Worker) -> Response:
    """Return the worker without the datasets as JSON."""
    return _page(msgspec.json.encode(about(worker)))


def _asset(name: str, content_type: str) -> MakePage:
    content = files("stream_svt.web").joinpath("assets", name).read_bytes()
    return lambda _: _page(content, content_type)


PAGES: dict[str, MakePage] = {
    "/": _asset("index.html", "text/html; charset=utf-8"),
    **{f"/assets/{name}": _asset(name, content_type) for name, content_type in ASSETS.items()},
    "/metrics": metrics_page,
    "/health/live": live,
    "/health/ready": ready,
    "/api/v1/status": status_page,
    "/api/v1/worker": worker_page,
}
"""Pages by path; coroutines take long with many datasets and are cached."""


def _cached(make: Callable[[Worker], Awaitable[Response]]) -> MakePage:
    """Return a page that is made at most once in `CACHE_SECONDS`, by one request at a time."""
    lock, page, made = asyncio.Lock(), Response(), -CACHE_SECONDS

    async def cached(worker: Worker) -> Response:
        nonlocal page, made
        async with lock:
            if time.monotonic() - made >= CACHE_SECONDS:
                page, made = await make(worker), time.monotonic()
            # A response can be sent only once.
            return Response(body=page.body, headers=page.headers)

    return cached


def application(worker: Worker, overview: Overview) -> Application:
    """Return the pages of a worker; the framework refuses methods other than GET and HEAD."""

    async def overview_page(_: Worker) -> Response:
        return _page(await overview.answer())

    def view(page: MakePage) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_: Request) -> Response:
            made = page(worker)
            response = made if isinstance(made, Response) else await made
            response.headers.update(HEADERS)
            if isinstance(response.body, bytes) and len(response.body) > LARGE:
                response.enable_compression()  # for a client that takes it; in a thread
            return response

        return answer

    app = Application()
    for path, page in {**PAGES, OVERVIEW: overview_page}.items():
        app.router.add_get(path, view(_cached(page) if iscoroutinefunction(page) else page))

    async def close(_: Application) -> None:
        await overview.close()

    app.on_shutdown.append(close)
    return app


def pages_of(worker: Worker, overview: Overview | None = None) -> Pages:
    """Return the pages of a worker, on the address of its configuration."""
    web, source = worker.config.web, worker.config.source
    return Pages(application(worker, overview or Overview(worker)), web.host, web.port, source)
