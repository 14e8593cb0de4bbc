"""Only the demo's queries, for a service that runs elsewhere: ``stream-svt demo --feed-only -c FILE``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable

from aiokafka.errors import KafkaError

from stream_svt.demo.clock import Clock
from stream_svt.demo.config import APPEND
from stream_svt.demo.data import LINES, load
from stream_svt.demo.producer import produce
from stream_svt.errors import ConfigError, Problem
from stream_svt.service.config import Config
from stream_svt.service.kafka import explain
from stream_svt.service.topology import require
from stream_svt.service.worker import cluster_of


def run_feed(
    config: Config,
    *,
    seconds: float = 2.0,
    duration: float | None = None,
    say: Callable[[str], None] = print,
    clock: Clock | None = None,
) -> int:
    """Send the demo's queries to the brokers of a configuration until they end or a signal comes; return 0.

    Args:
        config: Of the service; its monitors must read the demo's datasets, as ``demo --show-config`` declares
            them.
        seconds: Time between two sets of queries.
        duration: Seconds after which no further set is begun; None: all baskets.
        say: Told a line for each set.
        clock: For tests: another public clock.

    Raises:
        ConfigError: The configuration is not the demo's, or the topics do not fit it.
        BrokerError: The brokers cannot be reached or refuse.
    """
    return asyncio.run(_feed(config, clock or Clock(LINES), seconds, duration, say))


async def _feed(
    config: Config, clock: Clock, seconds: float, duration: float | None, say: Callable[[str], None]
) -> int:
    topic = _topic(config, clock)
    await require(config, cluster_of(config))
    stopped, loop, began = asyncio.Event(), asyncio.get_running_loop(), time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread of a process gets signals.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, stopped.set)
    sets = produce(
        load(), clock, kafka=config.kafka_arguments(), topic=topic, partitions=config.topics.partitions
    )
    try:
        async with contextlib.aclosing(sets):
            async for progress in sets:
                say(
                    f"line {progress.line:,} of {clock.lines:,}: set {progress.set_id} of {progress.dataset} is "
                    f"closed, {progress.queries:,} queries so far"
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), seconds)
                if stopped.is_set() or (duration is not None and time.monotonic() - began >= duration):
                    break
    except KafkaError as error:
        raise explain(error, f"sending to topic {topic!r}", "WRITE") from error
    return 0


def _topic(config: Config, clock: Clock) -> str:
    """Return the query topic of the demo's first monitor.

    Raises:
        ConfigError: The configuration does not monitor what the demo sends.
    """
    topics = {monitor.name: monitor.topic for monitor in config.spec.monitors}
    declared = {dataset.name for dataset in config.spec.datasets}
    if APPEND not in topics or not declared.issuperset(clock.weeks()):
        message = (
            "these are not the demo's: its queries fit the monitors and datasets that 'stream-svt demo "
            "--show-config' prints"
        )
        raise ConfigError([Problem(0, "monitors", message)], config.source)
    return topics[APPEND]
