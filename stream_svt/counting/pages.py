"""Pages of a counter: its metrics, whether it counts, and what its sources wait for, for the trusted zone."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from aiohttp.web import Application, Request, Response
from prometheus_client import generate_latest

from stream_svt.counting.metrics import FATES, METRICS, PREFIX
from stream_svt.counting.service import CounterService
from stream_svt.counting.source import HELD_UP_SHOWN, SourceLoop
from stream_svt.plain_text import escaped
from stream_svt.web_server import Pages
from stream_svt.worker.metrics import COMMON_LABELS, CONTENT_TYPE, Registry, registered

HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def health_of(service: CounterService) -> Response:
    """Return whether a counter counts, and why a source waits or is parked, which is no reason for a restart."""
    lacks, lines = service.lacks, service.lacks or ["ready"]
    for loop in service.loops:
        parked = loop.counter and loop.counter.parked
        reasons = (parked.text if parked else "", loop.waits)
        lines += [f"source {loop.spec.name}: {reason}" for reason in reasons if reason]
    text = "".join(f"{escaped(line)}\n" for line in lines)
    return Response(text=text, status=503 if lacks else 200)


def metrics_of(service: CounterService) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = Registry()
    found = registered(METRICS, registry, COMMON_LABELS)
    for loop in service.loops:
        for name, value, *labels in _samples(loop):
            of = found[PREFIX + name].labels(service.config.spec.application, loop.spec.name, *labels)
            (of.inc if name.endswith("_total") else of.set)(value)
    return generate_latest(registry)


def _samples(loop: SourceLoop) -> Iterator[tuple[str, float, str] | tuple[str, float]]:
    """Yield name, value and further labels of the metrics of a source."""
    for fate, text in FATES.items():
        yield "events_total", loop.fates[fate], text
    yield "late_records_total", loop.late_records
    yield "behind_seconds", loop.behind_ms / 1000
    yield "clocks_apart_seconds", loop.clocks_apart_ms / 1000
    for partition, since in loop.held_up.items():
        if (seconds := time.monotonic() - since) > HELD_UP_SHOWN:
            yield "open_transaction_seconds", seconds, str(partition)
    for measure, number in loop.measured.items():
        yield "measured_events_total", number, measure
    if (counter := loop.counter) is not None:
        if counter.state.asked is not None:
            yield "tick_timestamp_seconds", counter.state.asked / 1000
        if (parked := counter.parked) is not None:
            yield "parked", 1, str(parked)
        yield "pairs", counter.pairs
        yield "open_windows", len(counter.state.windows)


def pages_of(service: CounterService, port: int) -> Pages:
    """Return the pages of a counter, on the host of its configuration."""
    shown: dict[str, Callable[[], Response]] = {
        "/health/live": lambda: Response(text="live\n"),
        "/health/ready": lambda: health_of(service),
        "/metrics": lambda: Response(body=metrics_of(service), headers={"Content-Type": CONTENT_TYPE}),
    }
    application = Application(client_max_size=1024)
    for path, page in shown.items():
        application.router.add_get(path, _view(page))
    return Pages(application, service.config.web.host, port, service.config.source)


def _view(page: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        response = page()
        response.headers.update(HEADERS)
        return response

    return answer
