"""The forwarder's process: routes, pages, signals, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator

from aiohttp import web
from aiokafka import TopicPartition

from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.forward.alertmanager import Alertmanager
from stream_svt.forward.config import Destination, ForwardConfig
from stream_svt.forward.dispatcher import Dispatcher
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.parking import Parked
from stream_svt.forward.posting import HttpPosting
from stream_svt.forward.route import Route
from stream_svt.forward.web import pages
from stream_svt.forward.webhook import Webhook
from stream_svt.service.kafka import CALL_DEADLINE, deadline, group_offsets, started, tune

log = logging.getLogger(__name__)

_FOR_PARKING = "it is where refused events go (on_refused: park)"


async def forward(config: ForwardConfig, *, accept_loss: bool = False) -> int:
    """Forward until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ConfigError
        A topic does not exist, or the pages' address cannot be listened on.
    BrokerError
        The brokers cannot be reached or refuse.
    """
    tune()
    await check_topics(config)
    metrics = ForwardMetrics(config.topic, [destination.name for destination in config.destinations])
    async with contextlib.AsyncExitStack() as stack:
        parking = Parked(config.cluster, config.topic, config.park_topic)
        if config.parks:
            stack.push_async_callback(parking.stop)
            await parking.start()
        routes = []
        for destination in config.destinations:
            posting = HttpPosting(destination)
            stack.push_async_callback(posting.close)
            dispatcher = Dispatcher(destination, wrapping(destination), posting, parking, metrics)
            routes.append(
                Route(
                    config.cluster,
                    config.topic,
                    destination,
                    dispatcher,
                    metrics,
                    start_at=config.start_at,
                    accept_loss=accept_loss,
                )
            )
        metrics.statuses = lambda: [route.status() for route in routes]
        await stack.enter_async_context(_served(config, pages(routes, metrics)))
        await _until_ended(routes)
    failed = [route.error for route in routes if route.error is not None]
    if not failed:
        return 0
    return failed[0].exit_code if isinstance(failed[0], StreamSvtError) else 1


def wrapping(destination: Destination) -> Webhook | Alertmanager:
    """Return what makes a destination's requests."""
    return Webhook(destination) if destination.config.webhook is not None else Alertmanager(destination)


async def check_topics(config: ForwardConfig) -> None:
    """Refuse to start without the topics.

    Raises
    ------
    ConfigError
        One does not exist or may not be seen.
    BrokerError
        The brokers cannot be reached or refuse.
    """
    needed = {
        "topic": (config.topic, "it is the alert topic of a service, by default '<application>.alerts'")
    }
    if config.parks:
        needed["park_topic"] = (config.park_topic, _FOR_PARKING)
    doing = "looking at the topics"
    async with started(config.cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        described = await admin.describe_topics([topic for topic, _ in needed.values()])
    there = {topic["topic"] for topic in described if topic["error_code"] == 0}
    problems = [
        Problem(0, field, f"topic {topic!r} does not exist, or this user may not see it; {why}")
        for field, (topic, why) in needed.items()
        if topic not in there
    ]
    if problems:
        raise ConfigError(problems, config.source)


async def check(config: ForwardConfig) -> None:
    """Look for everything that can be known without reading an event or writing one.

    Raises
    ------
    ConfigError
        As `check_topics`.
    BrokerError
        The brokers cannot be reached, or a right to read the topic or to be in a group is missing.
    """
    tune()
    await check_topics(config)
    doing = f"reading topic {config.topic!r}"
    async with started(config.cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        place = TopicPartition(config.topic, 0)
        reader.assign([place])
        await reader.seek_to_end()
        await reader.getmany(place, timeout_ms=150)
    for destination in config.destinations:
        group = destination.group
        await group_offsets(config.cluster, group, f"looking up the positions of group {group!r}")


async def _until_ended(routes: list[Route]) -> None:
    """Run all routes until a signal comes, or until each has stopped by itself."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for sent in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sent, asked.set)
    running = [asyncio.create_task(route.run(), name=f"route-{route.name}") for route in routes]

    def ended(_: asyncio.Task[None]) -> None:
        if all(task.done() for task in running):
            asked.set()

    for task in running:
        task.add_done_callback(ended)
    try:
        await asked.wait()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for sent in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(sent)


@contextlib.asynccontextmanager
async def _served(config: ForwardConfig, application: web.Application) -> AsyncIterator[None]:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.web.host, config.web.port).start()
        except OSError as error:
            message = (
                f"cannot listen on {config.web.host}:{config.web.port}: {error.strerror}; each forwarder of a "
                "machine needs a port"
            )
            raise ConfigError([Problem(0, "web.port", message)], config.source) from None
        yield
    finally:
        await runner.cleanup()
