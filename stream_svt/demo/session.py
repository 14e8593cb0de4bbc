"""One demo from start to end: broker, topics, service, queries, screen, summary. Nothing is left running.

`feed` sends only the queries, to a service that runs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from rich.console import Console

from stream_svt.demo.board import Board, Screen, report, truth_of
from stream_svt.demo.scenario import (
    ACKNOWLEDGEMENT,
    APPEND,
    LAST_ITEM,
    THRESHOLD,
    Setting,
    WeekClock,
    limits,
    load_baskets,
    produce,
    service_yaml,
)
from stream_svt.errors import BrokerError, ConfigError, Problem, StreamSvtError
from stream_svt.monitor.released import decode
from stream_svt.service.check import create_missing
from stream_svt.service.config import Config, load_config
from stream_svt.service.embedded import EmbeddedKafka, free_ports
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, explain, started
from stream_svt.service.topology import require

MAX_AHEAD = 200_000
"""Queries that the producer may be ahead of the service: enough to keep it busy, and few to drain at the end."""
READY_SECONDS = 60.0
STALLED_SECONDS = 30.0
DELETE_SECONDS = 15.0
STOP_SECONDS = 15.0
TAIL_LINES = 15
INTERRUPTED = 130


def run_demo(
    duration: float | None = None,
    broker: str | None = None,
    show_config: bool = False,
    summary: Path | None = None,
    *,
    clock: WeekClock | None = None,
    console: Console | None = None,
) -> int:
    """Show private monitoring live and return the exit code: 0, or that of the error.

    After ``duration`` seconds no further set of queries is sent; the summary still covers all that were sent.
    ``broker`` is a running Kafka to use instead of a new one, ``summary`` a file for the summary as JSON.
    """
    clock = clock or WeekClock()
    if show_config:
        sys.stdout.write(service_yaml(Setting(), clock))
        return 0
    shown, errors = console or Console(), console or Console(stderr=True)
    try:
        board = asyncio.run(_interruptible(_demo(duration, broker, clock, shown)))
        shown.print(report(board))
        if summary is not None:
            summary.write_text(json.dumps(board.document(), indent=2) + "\n", encoding="utf-8")
        shown.print(ACKNOWLEDGEMENT, style="dim", markup=False, highlight=False)
        return 0
    except asyncio.CancelledError:
        message, code = "demo interrupted; everything it started has ended", INTERRUPTED
    except (StreamSvtError, OSError) as error:
        message, code = f"demo failed: {error}", getattr(error, "exit_code", 1)
    errors.print(message, markup=False, highlight=False, soft_wrap=True)
    return code


async def _interruptible(work: Coroutine[None, None, Board]) -> Board:
    """Run ``work``; the first SIGINT or SIGTERM cancels it, later ones do not interrupt the cleanup."""
    task = asyncio.ensure_future(work)
    on_signals(lambda: task.cancelling() or task.cancel())
    return await task


async def _demo(duration: float | None, broker: str | None, clock: WeekClock, console: Console) -> Board:
    """Run the demo; the exit stack ends everything that was started."""
    screen = Screen(console, clock.lines)
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-svt-demo-")))
        counting = asyncio.create_task(asyncio.to_thread(lambda: truth_of(load_baskets(), clock, THRESHOLD)))
        if broker is None:
            screen.write("starting an Apache Kafka on this machine (the first time it is downloaded) ...")
            kafka = EmbeddedKafka()
            stack.push_async_callback(asyncio.to_thread, kafka.stop)
            await asyncio.to_thread(kafka.start)
        setting = Setting(
            application=f"retail-demo-{secrets.token_hex(3)}",
            bootstrap=broker or kafka.bootstrap_servers,
            key_file=directory / "sealing.key",
            port=free_ports(1)[0],
        )
        setting.key_file.touch(0o600)
        setting.key_file.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
        config = directory / "monitors.yaml"
        config.write_text(service_yaml(setting, clock), encoding="utf-8")
        cluster = Cluster({"bootstrap_servers": setting.bootstrap})
        if broker is not None:
            stack.push_async_callback(delete_topics, setting)
            screen.write(
                f"the topics {setting.application}.* are deleted from {broker} at the end; their offsets and "
                "transactional ids expire there"
            )
        screen.write("creating topics: stream-svt check --create-topics ...")
        made = await create_missing(load_config(config), cluster)
        if problems := [finding.message for finding in made if finding.level == "problem"]:
            raise StreamSvtError("; ".join(problems))
        screen.write("starting the service: stream-svt run --apply ...")
        log = directory / "service.log"
        service = await start(["run", "--apply", "-c", str(config)], log)
        stack.push_async_callback(stop, service)
        address = f"http://127.0.0.1:{setting.port}"
        await _first(_ready(address), raise_when_ended(service, log))
        events = await stack.enter_async_context(started(cluster.reader(), "reading the alerts"))
        events.assign([TopicPartition(setting.topic("alerts"), part) for part in range(setting.partitions)])
        pages = {"page": "/", "metrics": "/metrics", "health": "/health/ready", "status": "/api/v1/status"}
        links = "   ".join(f"{name} {address}{path}" for name, path in pages.items())
        screen.foot = f"Kafka {setting.bootstrap}   {links}"
        if not console.is_terminal:
            screen.write(screen.foot)
        board = Board({name: float(limit) for name, limit in limits(clock).items()}, await counting)
        await Session(setting, clock, board, events, address, screen).run(service, log, duration)
        return board


async def raise_when_ended(service: Process, log: Path) -> None:
    """Wait until the service ends, then raise: it must run as long as the demo."""
    code = await service.wait()
    lines = log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]  # noqa: ASYNC240  the demo ends here
    tail = "".join(f"\n  {line}" for line in lines)
    raise StreamSvtError(
        f"the service ended too early, with exit code {code}; the end of its log:{tail or ' empty'}"
    )


async def stop(service: Process) -> int:
    """Stop the service, kill it if it does not end in time, and return its exit code. May be called twice."""
    with contextlib.suppress(ProcessLookupError):
        service.terminate()
        await asyncio.wait([asyncio.ensure_future(service.wait())], timeout=STOP_SECONDS)
        service.kill()
    return await service.wait()


async def start(arguments: Sequence[str], log: Path) -> Process:
    """Start ``stream-svt`` in a session of its own, so that Ctrl-C on the terminal reaches only the demo.

    Its environment has no variable that configures a service: the demo must not use the user's brokers.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_SVT_")}
    command = [sys.executable, "-m", "stream_svt.demo", *arguments]
    with log.open("ab") as sink:
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=sink, stderr=STDOUT, env=environ, start_new_session=True
        )


async def _ready(address: str) -> None:
    """Wait until the service is ready."""
    until = time.monotonic() + READY_SECONDS
    while await _fetched(address + "/health/ready") is None:
        if time.monotonic() > until:
            raise StreamSvtError(f"the service is not ready after {READY_SECONDS:g} s")
        await asyncio.sleep(0.1)


async def _fetched(url: str) -> bytes | None:
    """Return the answer of the service's web server, None if there is none or it is an error."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with aiohttp.request("GET", url, timeout=aiohttp.ClientTimeout(5)) as answer:
            return await answer.read() if answer.ok else None
    return None


def processed_queries(status: dict[str, Any], topic: str) -> int:
    """Return the number of queries before the committed offsets, without the records that close sets."""
    records = sum(shard["offsets"].get(topic, 0) for shard in status["shards"])
    return int(records - records // (LAST_ITEM + 1))


@dataclass(frozen=True, slots=True)
class Session:
    """One stream of queries, the events released for it, and the screen.

    From the service it reads only committed records of the alert topic and the status API.
    """

    setting: Setting
    clock: WeekClock
    board: Board
    events: AIOKafkaConsumer
    address: str
    screen: Screen
    began: float = field(default_factory=time.monotonic)

    async def run(self, service: Process, log: Path, duration: float | None) -> None:
        """Send the queries, then stop the service and read the last events."""
        with self.screen:
            await _first(self._stream(duration), self._show(), raise_when_ended(service, log))
            if code := await stop(service):
                raise StreamSvtError(f"stream-svt run ended with exit code {code} when asked to stop")
            async with deadline(CALL_DEADLINE, "reading the last alerts"):
                for partition, end in (await self.events.end_offsets(self.events.assignment())).items():
                    while await self.events.position(partition) < end:
                        await self._take()
            self.screen.show(self.board)

    async def _stream(self, duration: float | None) -> None:
        """Send the queries, then wait until the service has tested all of them."""
        board, setting = self.board, self.setting
        kafka, topic = {"bootstrap_servers": setting.bootstrap}, setting.topic("counts")
        sets = produce(load_baskets(), self.clock, kafka=kafka, topic=topic, partitions=setting.partitions)
        async with contextlib.aclosing(sets):
            async for point, sent in sets:
                board.closed.append(point.set_id)
                board.sent, board.line = sent, point.end
                while board.sent > board.tested + MAX_AHEAD:  # noqa: ASYNC110  `_show` refreshes it
                    await asyncio.sleep(0.05)
                if duration is not None and time.monotonic() - self.began >= duration:
                    break
        board.phase = "draining"
        while board.tested < board.sent:  # noqa: ASYNC110  `_show` refreshes it several times a second
            await asyncio.sleep(0.1)

    async def _show(self) -> None:
        """Refresh the screen; raises if no query was sent or tested for `STALLED_SECONDS`.

        Without that the demo would never end after the loss of a broker: clients retry for ever.
        """
        board, before, since = self.board, (-1, -1), time.monotonic()
        while time.monotonic() - since < STALLED_SECONDS:
            await self._take()
            if (body := await _fetched(self.address + "/api/v1/status")) is not None:
                board.tested = processed_queries(json.loads(body), self.setting.topic("counts"))
            if (now := (board.sent, board.tested)) != before:
                before, since = now, time.monotonic()
            board.seconds = time.monotonic() - self.began
            self.screen.show(board)
            await asyncio.sleep(0.2)
        raise StreamSvtError(
            f"no query was sent or tested for {STALLED_SECONDS:g} s, after {board.tested:,} of {board.sent:,}; "
            f"check that Kafka at {self.setting.bootstrap} still runs"
        )

    async def _take(self) -> None:
        """Read the events released since the last call; waits for 50 ms at most."""
        for records in (await self.events.getmany(timeout_ms=50)).values():
            for record in records:
                if (entry := self.board.add(*decode(record.value))) is not None:
                    self.screen.write_entry(entry)


async def _first(main: Coroutine[None, None, None], *others: Coroutine[None, None, None]) -> None:
    """Wait until one of the coroutines ends, ``main`` or another with an error, and cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in (main, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def delete_topics(setting: Setting) -> None:
    """Delete the demo's topics. After an error they stay, which does no harm: their names are not used again."""
    admin = Cluster({"bootstrap_servers": setting.bootstrap}).admin()
    names = ("counts", "alerts", "state", "rejects", "control", "config")
    with contextlib.suppress(BrokerError, KafkaError, TimeoutError, OSError):
        async with asyncio.timeout(DELETE_SECONDS), started(admin, "deleting the demo's topics"):
            await admin.delete_topics([setting.topic(name) for name in names])


async def feed(
    config: Config,
    *,
    seconds: float = 2.0,
    duration: float | None = None,
    write: Callable[[str], None] = print,
    clock: WeekClock | None = None,
) -> int:
    """Send the demo's queries to the brokers of a service's configuration until they end or a signal comes; return 0.

    A set is sent every ``seconds``, and none after ``duration``; ``write`` gets a line for each.
    """
    clock = clock or WeekClock()
    topics = {monitor.name: monitor.topic for monitor in config.spec.monitors}
    declared = {dataset.name for dataset in config.spec.datasets}
    if APPEND not in topics or not declared.issuperset(clock.weeks()):
        message = "the demo's queries fit only the monitors and datasets that 'stream-svt demo --show-config' prints"
        raise ConfigError([Problem(0, "monitors", message)], config.source)
    cluster = config.cluster()
    await require(config, cluster)
    stopped, began = asyncio.Event(), time.monotonic()
    on_signals(stopped.set)
    topic, partitions = topics[APPEND], config.topics.partitions
    sets = produce(load_baskets(), clock, kafka=cluster.arguments, topic=topic, partitions=partitions)
    try:
        async with contextlib.aclosing(sets):
            async for point, sent in sets:
                closed = f"set {point.set_id} of {point.dataset} is closed"
                write(f"line {point.end:,} of {clock.lines:,}: {closed}, {sent:,} queries so far")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), seconds)
                if stopped.is_set() or (duration is not None and time.monotonic() - began >= duration):
                    break
    except KafkaError as error:
        raise explain(error, f"sending to topic {topic!r}", "WRITE") from error
    return 0


def on_signals(end: Callable[[], object]) -> None:
    """Call a function on SIGINT and SIGTERM. Does nothing outside the main thread, which gets all signals."""
    with contextlib.suppress(ValueError, RuntimeError):
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)
