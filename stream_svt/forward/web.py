"""Pages of the forwarder: metrics and health, released or public, read-only."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.route import Route
from stream_svt.service.metrics import CONTENT_TYPE


def pages(routes: Sequence[Route], metrics: ForwardMetrics) -> web.Application:
    """Return the pages; other methods than GET and HEAD are refused by the framework."""

    async def show_metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def show_live(request: web.Request) -> web.Response:
        del request
        # A destination that stopped waits for somebody: to start anew would disturb the others and mend nothing.
        # The process ends by itself once none is left.
        return web.Response(text="live\n")

    async def show_ready(request: web.Request) -> web.Response:
        del request
        missing = [
            f"destination {route.name}: {'stopped, see the log' if route.error is not None else 'not in its group'}\n"
            for route in routes
            if not route.joined
        ]
        return web.Response(status=503 if missing else 200, text="".join(missing) or "ready\n")

    application = web.Application(client_max_size=1024)
    application.add_routes(
        [
            web.get("/metrics", show_metrics),
            web.get("/health/live", show_live),
            web.get("/health/ready", show_ready),
        ]
    )
    return application
