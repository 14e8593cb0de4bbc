"""The forwarder's process: routes, pages, signals, exit codes; and what can be tried before."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import msgspec
from aiohttp import web
from aiokafka import AIOKafkaProducer, TopicPartition

from stream_svt.aiokafka_fixes import apply_fixes
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.forward.config import ForwardConfig
from stream_svt.forward.delivery import Answer, Delivery, Route, posting
from stream_svt.forward.event import receive, request_of
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.monitor.released import Envelope
from stream_svt.service.kafka import CALL_DEADLINE, deadline, group_offsets, partition_counts, started
from stream_svt.service.metrics import CONTENT_TYPE

TEST_TYPE = "io.stream-svt.forward.test.v1"
"""CloudEvents type of a test; no service releases it."""


async def forward(config: ForwardConfig, *, accept_loss: bool = False) -> int:
    """Forward until SIGTERM or SIGINT, or until each destination has stopped by itself; return the exit code."""
    apply_fixes()
    await _check_topics(config)
    metrics = ForwardMetrics(config.topic, [destination.name for destination in config.destinations])
    async with contextlib.AsyncExitStack() as stack:
        producer = None
        if config.parks:
            options = {"client_id": "stream-svt-forward", "acks": "all", "enable_idempotence": True}
            made = AIOKafkaProducer(**config.cluster.arguments, **options)
            doing = "connecting the producer of parked events"
            producer = await stack.enter_async_context(started(made, doing, "WRITE"))
        routes = []
        for destination in config.destinations:
            post = await stack.enter_async_context(posting(destination))
            delivery = Delivery(config, destination, post, metrics, producer)
            routes.append(Route(config, delivery, accept_loss=accept_loss))
        await stack.enter_async_context(served(config, pages(routes, metrics)))
        # With exceptions returned, it ends only once each of them has handed its partitions over.
        running = asyncio.gather(*(route.run() for route in routes), return_exceptions=True)
        for sent in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sent, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
    error = next((route.error for route in routes if route.error is not None), None)
    return error.exit_code if isinstance(error, StreamSvtError) else int(error is not None)


async def _check_topics(config: ForwardConfig) -> None:
    needed = [
        ("topic", config.topic, "it is the alert topic of a service, by default '<application>.alerts'")
    ]
    if config.parks:
        needed.append(("park_topic", config.park_topic, "it is where refused events go (on_refused: park)"))
    there = await partition_counts(config.cluster, "looking at the topics")
    problems = [
        Problem(0, field, f"topic {topic!r} does not exist, or this user may not see it; {why}")
        for field, topic, why in needed
        if topic not in there
    ]
    if problems:
        raise ConfigError(problems, config.source)


def pages(routes: Sequence[Route], metrics: ForwardMetrics) -> web.Application:
    """Return the pages, read-only and released; other methods than GET and HEAD are refused by the framework."""

    async def show_metrics(_: web.Request) -> web.Response:
        gauges = {sample: value for route in routes for sample, value in route.gauges().items()}
        return web.Response(body=metrics.text(gauges), headers={"Content-Type": CONTENT_TYPE})

    async def show_live(_: web.Request) -> web.Response:
        # A destination that stopped waits for somebody: to start anew would disturb the others and mend nothing.
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


@contextlib.asynccontextmanager
async def served(config: ForwardConfig, application: web.Application) -> AsyncIterator[None]:
    """Serve the pages while the body runs; raises ConfigError where the address cannot be listened on."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.web.host, config.web.port).start()
        except OSError as error:
            where = f"{config.web.host}:{config.web.port}"
            message = f"cannot listen on {where}: {error.strerror}; each forwarder of a machine needs a port"
            raise ConfigError([Problem(0, "web.port", message)], config.source) from None
        yield
    finally:
        await runner.cleanup()


async def check(config: ForwardConfig) -> None:
    """Raise what can be known to be wrong, topics or permissions, without reading an event or writing one."""
    apply_fixes()
    await _check_topics(config)
    doing = f"reading topic {config.topic!r}"
    async with started(config.cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        place = TopicPartition(config.topic, 0)
        reader.assign([place])
        await reader.seek_to_end()
        await reader.getmany(place, timeout_ms=150)
    for destination in config.destinations:
        doing = f"looking up the positions of group {destination.group!r}"
        await group_offsets(config.cluster, destination.group, doing)


async def send_test(config: ForwardConfig) -> list[tuple[str, Answer]]:
    """Post a test event to each address of each destination, once, whatever their filters; return the answers."""
    now = datetime.now(UTC)
    data = msgspec.Raw(b'{"test": "stream-svt forward --test: nothing happened"}')
    names = ("1.0", f"test/{uuid.uuid4()}", f"/stream-svt/{config.topic}", TEST_TYPE, "test")
    event = receive(msgspec.json.encode(Envelope(*names, now.isoformat(), 0, 0, "0-0", data)))
    answers = []
    for destination in config.destinations:
        async with posting(destination) as post:
            for number, url in enumerate(destination.urls, 1):
                name = destination.name if len(destination.urls) == 1 else f"{destination.name} {number}"
                answers.append((name, await post(url, request_of(destination, event, now))))
    return answers
