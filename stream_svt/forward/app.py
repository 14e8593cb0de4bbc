"""The forwarder's process: routes, pages, signals and exit codes; its check and its test event."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from aiohttp import web
from aiokafka import AIOKafkaProducer

from stream_svt.application.topology import unseen
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.forward.config import ForwardConfig
from stream_svt.forward.delivery import Answer, Route, posting
from stream_svt.forward.event import request_of
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.standing import StandingAlerts
from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.clients import group_offsets, partition_counts, started, try_fetch
from stream_svt.monitor.released import SOURCE, decode
from stream_svt.web_server import Pages
from stream_svt.worker.metrics import CONTENT_TYPE

TEST_TYPE = "io.stream-svt.forward.test.v1"
"""CloudEvents type of a test event; no service releases this type."""


async def forward(config: ForwardConfig, *, accept_loss: bool = False) -> int:
    """Forward until SIGTERM or SIGINT, or until every destination has stopped; return the exit code."""
    apply_fixes()
    await _check_topics(config)
    metrics = ForwardMetrics(config.topic, [destination.name for destination in config.destinations])
    async with contextlib.AsyncExitStack() as stack:
        producer = None
        if config.parks:
            name = f"{config.cluster.config.client_id}-forward"
            options = {"client_id": name, "acks": "all", "enable_idempotence": True}
            client = AIOKafkaProducer(**config.cluster.arguments, **options)
            doing = "connecting the producer of parked events"
            producer = await stack.enter_async_context(started(client, doing, "WRITE"))
        routes = []
        for destination in config.destinations:
            post = await stack.enter_async_context(posting(destination))
            routes.append(Route(config, destination, post, metrics, producer, accept_loss=accept_loss))
        served = Pages(pages(routes, metrics), config.web.host, config.web.port, config.source)
        await served.open()
        stack.push_async_callback(served.close)
        # With return_exceptions, a cancelled gather ends once every route has committed and left its group.
        running = asyncio.gather(*(route.run() for route in routes), return_exceptions=True)
        standing = asyncio.create_task(StandingAlerts(config, routes).run(), name="standing alerts")
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
        standing.cancel()
        await asyncio.gather(standing, return_exceptions=True)
    error = next((route.error for route in routes if route.error is not None), None)
    return error.exit_code if isinstance(error, StreamSvtError) else int(error is not None)


async def _check_topics(config: ForwardConfig) -> None:
    existing = await partition_counts(config.cluster, "looking at the topics")
    why = "this is the alert topic of a service, by default '<application>.alerts'"
    needed = [("topic", config.topic, "READ", why)]
    if config.parks:
        why = "refused events are written to it (on_refused: park)"
        needed.append(("park_topic", config.park_topic, "WRITE", why))
    problems = [
        Problem(0, field, f"{unseen(topic, operation)}; {why}")
        for field, topic, operation, why in needed
        if topic not in existing
    ]
    if problems:
        raise ConfigError(problems, config.source)


def pages(routes: Sequence[Route], metrics: ForwardMetrics) -> web.Application:
    """Return the pages, which only GET and HEAD can read; they show released data only."""

    async def show_metrics(_: web.Request) -> web.Response:
        gauges = {sample: value for route in routes for sample, value in route.gauges().items()}
        return web.Response(body=metrics.text(gauges), headers={"Content-Type": CONTENT_TYPE})

    async def show_live(_: web.Request) -> web.Response:
        # A restart would not repair a stopped destination, and would disturb the others.
        return web.Response(text="live\n")

    async def show_ready(_: web.Request) -> web.Response:
        missing = [
            f"destination {route.name}: {'stopped, see the log' if route.error is not None else 'not in its group'}\n"
            for route in routes
            if not route.joined
        ]
        return web.Response(status=503 if missing else 200, text="".join(missing) or "ready\n")

    application = web.Application(client_max_size=1024)
    shown = {"/metrics": show_metrics, "/health/live": show_live, "/health/ready": show_ready}
    application.add_routes([web.get(path, show) for path, show in shown.items()])
    return application


async def check(config: ForwardConfig) -> None:
    """Raise the first error with topics and permissions that can be found without writing a record."""
    apply_fixes()
    await _check_topics(config)
    await try_fetch(config.cluster, config.topic)
    for destination in config.destinations:
        group = config.group_of(destination)
        await group_offsets(config.cluster, group, f"looking up the positions of group {group!r}")


async def send_test(config: ForwardConfig) -> list[tuple[str, Answer]]:
    """Post a test event to each address of each destination, once and without filters; return the answers."""
    now = datetime.now(UTC)
    content = {
        "specversion": "1.0",
        "id": f"test/{uuid.uuid4()}",
        "source": SOURCE + config.topic,
        "type": TEST_TYPE,
        "subject": "test",
        "time": now,
        "shard": 0,
        "sequence": 1,
        "origin": "0-0",
        "data": {"test": "stream-svt forward --test: nothing happened"},
    }
    body = msgspec.json.encode(content)
    answers = []
    for destination in config.destinations:
        async with posting(destination) as post:
            for number, url in enumerate(destination.urls, 1):
                name = destination.name if len(destination.urls) == 1 else f"{destination.name} {number}"
                answers.append((name, await post(url, request_of(destination, decode(body), body, now))))
    return answers
