"""The forwarder's process: routes, pages, signals and exit codes; its check and its test event."""

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

from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.forward.config import ForwardConfig
from stream_svt.forward.delivery import Answer, Route, posting
from stream_svt.forward.event import receive, request_of
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.clients import CALL_DEADLINE, deadline, group_offsets, partition_counts, started
from stream_svt.monitor.released import Envelope
from stream_svt.service.metrics import CONTENT_TYPE
from stream_svt.service.topology import unseen

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
        await stack.enter_async_context(served(config, pages(routes, metrics)))
        # With return_exceptions, a cancelled gather ends once every route has committed and left its group.
        running = asyncio.gather(*(route.run() for route in routes), return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
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


@contextlib.asynccontextmanager
async def served(config: ForwardConfig, application: web.Application) -> AsyncIterator[None]:
    """Serve the pages while the body runs; raises ConfigError if the address is in use or not available."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.web.host, config.web.port).start()
        except OSError as error:
            address = f"{config.web.host}:{config.web.port}"
            message = f"cannot listen on {address}: {error.strerror}; each forwarder of a machine needs its own port"
            raise ConfigError([Problem(0, "web.port", message)], config.source) from None
        yield
    finally:
        await runner.cleanup()


async def check(config: ForwardConfig) -> None:
    """Raise the first error with topics and permissions that shows without writing a record."""
    apply_fixes()
    await _check_topics(config)
    doing = f"reading topic {config.topic!r}"
    async with started(config.cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        partition = TopicPartition(config.topic, 0)
        reader.assign([partition])
        await reader.seek_to_end()
        await reader.getmany(partition, timeout_ms=150)
    for destination in config.destinations:
        doing = f"looking up the positions of group {destination.group!r}"
        await group_offsets(config.cluster, destination.group, doing)


async def send_test(config: ForwardConfig) -> list[tuple[str, Answer]]:
    """Post a test event to each address of each destination, once and without filters; return the answers."""
    now = datetime.now(UTC)
    data = msgspec.Raw(b'{"test": "stream-svt forward --test: nothing happened"}')
    attributes = ("1.0", f"test/{uuid.uuid4()}", f"/stream-svt/{config.topic}", TEST_TYPE, "test")
    event = receive(msgspec.json.encode(Envelope(*attributes, now.isoformat(), 0, 0, "0-0", data)))
    answers = []
    for destination in config.destinations:
        async with posting(destination) as post:
            for number, url in enumerate(destination.urls, 1):
                name = destination.name if len(destination.urls) == 1 else f"{destination.name} {number}"
                answers.append((name, await post(url, request_of(destination, event, now))))
    return answers
