"""Pages of a counter: health, metrics, and how its sources stand. They belong to the trusted zone."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec
from aiohttp.web import Application, Request, Response
from prometheus_client import generate_latest

from stream_svt.counting.metrics import FATES, METRICS, PREFIX
from stream_svt.counting.service import CounterService
from stream_svt.counting.source import HELD_UP_SHOWN, SourceReport
from stream_svt.monitor.operations import utc
from stream_svt.plain_text import escaped
from stream_svt.web_server import Pages
from stream_svt.worker.metrics import COMMON_LABELS, CONTENT_TYPE, Registry, registered

HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class SourceLine(msgspec.Struct):
    """How a source stands: its newest tick, why it is parked or waits ("" for neither), windows and pairs in memory."""

    source: str
    tick: str
    parked: str
    waits: str
    held_up_partitions: list[int]
    open_windows: int
    pairs: int
    unreadable_batches: int


class CounterStatus(msgspec.Struct):
    """A counter, and the sources of its partitions of the event log."""

    application: str
    ready: bool
    lacks: list[str]
    partitions: list[int]
    sources: list[SourceLine]


def status_of(service: CounterService) -> CounterStatus:
    """Return how a counter stands."""
    lines = [
        SourceLine(
            source=report.spec.name,
            tick="" if (status := report.status) is None or not status.tick_ms else utc(status.tick_ms),
            parked=status.parked.text if status is not None and status.parked else "",
            waits=report.waits,
            held_up_partitions=sorted(_held_up(report)),
            open_windows=0 if status is None else status.open_windows,
            pairs=0 if status is None else status.pairs,
            unreadable_batches=report.dropped,
        )
        for report in service.reports
    ]
    lacks, name = service.lacks, service.config.spec.application
    return CounterStatus(name, not lacks, lacks, sorted(service.owners), lines)


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

    def live() -> Response:
        return Response(text="live\n")

    def ready() -> Response:
        lacks = service.lacks
        text = "".join(f"{escaped(line)}\n" for line in lacks or ["ready"])
        return Response(status=503 if lacks else 200, text=text)

    def metrics() -> Response:
        return Response(body=metrics_of(service), headers={"Content-Type": CONTENT_TYPE})

    def status() -> Response:
        content = msgspec.json.encode(status_of(service))
        return Response(body=content, headers={"Content-Type": "application/json"})

    application = Application(client_max_size=1024)
    shown = {"/health/live": live, "/health/ready": ready, "/metrics": metrics, "/api/v1/status": status}
    for path, page in shown.items():
        application.router.add_get(path, _view(page))
    return Pages(application, service.config.web.host, port, service.config.source)


def _view(page: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        response = page()
        response.headers.update(HEADERS)
        return response

    return answer
