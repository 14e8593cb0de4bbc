"""Pages of the forwarder: metrics and health, released or public, read-only."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from stream_svt.forward.metrics import CONTENT_TYPE, ForwardMetrics
from stream_svt.forward.route import Route


def pages(routes: Sequence[Route], metrics: ForwardMetrics) -> web.Application:
    """Return the pages; other methods than GET and HEAD are refused by the framework."""

    def live() -> tuple[int, str]:
        stopped = [route.name for route in routes if route.error is not None]
        return (503, _listed(stopped, "stopped, see the log")) if stopped else (200, "live\n")

    def ready() -> tuple[int, str]:
        missing = [route.name for route in routes if not route.joined]
        return (503, _listed(missing, "not in its group")) if missing else (200, "ready\n")

    async def show_metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def show_live(request: web.Request) -> web.Response:
        del request
        status, text = live()
        return web.Response(status=status, text=text)

    async def show_ready(request: web.Request) -> web.Response:
        del request
        status, text = ready()
        return web.Response(status=status, text=text)

    application = web.Application(client_max_size=1024)
    application.add_routes(
        [
            web.get("/metrics", show_metrics),
            web.get("/health/live", show_live),
            web.get("/health/ready", show_ready),
        ]
    )
    return application


def _listed(names: Sequence[str], what: str) -> str:
    return "".join(f"destination {name}: {what}\n" for name in names)
