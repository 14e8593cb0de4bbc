"""Only the demo's queries, for a service that runs elsewhere: ``stream-svt demo --feed-only -c FILE``.

It stands in for a producer of one's own, so it belongs to the trusted zone: it reads the baskets and writes true
counts. What it prints depends on the public clock alone, and so does when it sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

from aiokafka.errors import KafkaError

from stream_svt.demo.clock import Clock
from stream_svt.demo.config import APPEND
from stream_svt.demo.data import LINES, load
from stream_svt.demo.producer import Progress, produce
from stream_svt.errors import ConfigError, Problem
from stream_svt.service.config import Config
from stream_svt.service.kafka import explain
from stream_svt.service.topology import require
from stream_svt.service.worker import cluster_of


class Metronome:
    """Says when the next set may be sent: one every ``seconds``, the first at once, until stopped."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stopped = asyncio.Event()
        self._next: float | None = None

    def stop(self) -> None:
        """Let no further set begin."""
        self._stopped.set()

    async def may_send(self, sent: int) -> bool:
        """Wait for the next beat; False once stopped."""
        del sent
        now = asyncio.get_running_loop().time()
        if self._next is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._next - now)):
                    await self._stopped.wait()
        self._next = max(now, self._next or now) + self._seconds
        return not self._stopped.is_set()


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
    metronome = Metronome(seconds)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread of a process gets signals.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, metronome.stop)
    bell = None if duration is None else loop.call_later(duration, metronome.stop)

    def report(progress: Progress) -> None:
        say(
            f"line {progress.line:,} of {clock.lines:,}: set {progress.set_id} of {progress.dataset} is closed, "
            f"{progress.queries:,} queries so far"
        )

    try:
        await produce(
            load(),
            clock,
            kafka=config.kafka_arguments(),
            topic=topic,
            partitions=config.topics.partitions,
            may_send=metronome.may_send,
            report=report,
        )
    except KafkaError as error:
        raise explain(error, f"sending to topic {topic!r}", "WRITE") from error
    finally:
        if bell is not None:
            bell.cancel()
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
