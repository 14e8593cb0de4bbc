"""Pages of a counter: health, metrics, and how its sources stand. They belong to the trusted zone."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec
from aiohttp.web import Application, Request, Response
from prometheus_client import generate_latest

from stream_svt.counting.metrics import FATES, METRICS, PREFIX
from stream_svt.counting.service import CounterService
from stream_svt.counting.source import HELD_UP_SHOWN, SourceReport
from stream_svt.monitor.operations import utc
from stream_svt.plain_text import escaped
from stream_svt.sources.looks import SourceStatus
from stream_svt.web_server import Pages
from stream_svt.worker.metrics import COMMON_LABELS, CONTENT_TYPE, Registry, registered

HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def status_of(service: CounterService) -> dict[str, Any]:
    """Return how a counter stands, and each source of its partitions; texts are "" where nothing is to be said."""
    lacks = service.lacks
    return {
        "application": service.config.spec.application,
        "ready": not lacks,
        "lacks": lacks,
        "partitions": sorted(service.owners),
        "sources": [_line_of(report, report.status) for report in service.reports],
    }


def _line_of(report: SourceReport, status: SourceStatus | None) -> dict[str, Any]:
    return {
        "source": report.spec.name,
        "tick": utc(status.tick_ms) if status and status.tick_ms else "",
        "parked": status.parked.text if status and status.parked else "",
        "waits": report.waits,
        "held_up_partitions": sorted(_held_up(report)),
        "open_windows": status.open_windows if status else 0,
        "pairs": status.pairs if status else 0,
        "unreadable_batches": report.dropped,
    }


def _held_up(report: SourceReport) -> dict[int, float]:
    """Return since how many seconds partitions hold a tick up."""
    now = time.monotonic()
    return {n: now - at for n, at in report.held_up.items() if now - at > HELD_UP_SHOWN}


def metrics_of(service: CounterService) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = Registry()
    found = registered(METRICS, registry, COMMON_LABELS)
    for report in service.reports:
        for name, value, *labels in _samples(report):
            of = found[PREFIX + name].labels(service.config.spec.application, report.spec.name, *labels)
            (of.inc if name.endswith("_total") else of.set)(value)
    return generate_latest(registry)


def _samples(report: SourceReport) -> Iterator[tuple[str, float, str] | tuple[str, float]]:
    """Yield name, value and further labels of the metrics of a source."""
    status = report.status
    for fate, text in FATES.items():
        yield "events_total", report.fates[fate], text
    yield "late_records_total", report.late
    yield "behind_seconds", report.behind_ms / 1000
    yield "clocks_apart_seconds", report.clocks_apart_ms / 1000
    for partition, seconds in _held_up(report).items():
        yield "open_transaction_seconds", seconds, str(partition)
    if status is not None:
        if status.tick_ms is not None:
            yield "tick_timestamp_seconds", status.tick_ms / 1000
        if status.parked:
            yield "parked", 1, str(status.parked)
        yield "pairs", status.pairs
        yield "open_windows", status.open_windows


def pages_of(service: CounterService, port: int) -> Pages:
    """Return the pages of a counter, on the host of its configuration."""

    def ready() -> Response:
        text = "".join(f"{escaped(line)}\n" for line in service.lacks)
        return Response(status=503 if text else 200, text=text or "ready\n")

    shown: dict[str, Callable[[], Response]] = {
        "/health/live": lambda: Response(text="live\n"),
        "/health/ready": ready,
        "/metrics": lambda: _page(metrics_of(service), CONTENT_TYPE),
        "/api/v1/status": lambda: _page(msgspec.json.encode(status_of(service)), "application/json"),
    }
    application = Application(client_max_size=1024)
    for path, page in shown.items():
        application.router.add_get(path, _view(page))
    return Pages(application, service.config.web.host, port, service.config.source)


def _page(body: bytes, content_type: str) -> Response:
    return Response(body=body, headers={"Content-Type": content_type})


def _view(page: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        response = page()
        response.headers.update(HEADERS)
        return response

    return answer
