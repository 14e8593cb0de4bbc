"""One demo from start to end: broker, topics, service, events, screen, summary. Nothing is left running.

`feed` only sends, to a service that runs elsewhere.
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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError
from rich.console import Console
from rich.live import Live

from stream_svt.application.config import Config, load_config
from stream_svt.application.topology import require
from stream_svt.demo.board import Board, picture, report
from stream_svt.demo.scenario import (
    ACKNOWLEDGEMENT,
    ASKED,
    ITEMS,
    LATENESS_MS,
    LIMITS,
    LINES,
    UNIT,
    WINDOW_MS,
    Baskets,
    Setting,
    counts_of,
    events_of,
    lines_sold,
    load_baskets,
    send,
    sold_ms,
    windows,
)
from stream_svt.errors import BrokerError, ConfigError, Problem, StreamSvtError
from stream_svt.kafka.clients import CALL_DEADLINE, Cluster, deadline, explain, partition_counts, started
from stream_svt.kafka.embedded import EmbeddedKafka, free_ports
from stream_svt.monitor.released import decode
from stream_svt.operate.check import create_missing
from stream_svt.terminal import say

READY_SECONDS = 120.0
STALLED_SECONDS = 60.0
DELETE_SECONDS = 15.0
STOP_SECONDS = 30.0
SLICE_SECONDS = 0.2
"""How long the events of some lines are sent after those of the lines before."""
TAIL_LINES = 15


async def run_demo(duration: float | None, broker: str | None, console: Console) -> Board:
    """Show private monitoring live; return the final board.

    After ``duration`` seconds no further window begins; the summary still covers all that were sent.
    ``broker`` is a running Kafka to use instead of a new one. The first SIGINT or SIGTERM cancels the demo, later ones
    do not interrupt the cleanup.
    """
    task = asyncio.current_task()
    on_signals(lambda: task is None or task.cancelling() or task.cancel())
    try:
        board = await _demo(duration, broker, console)
    except asyncio.CancelledError:
        say("demo interrupted; everything it started has ended", err=True)
        raise
    except KafkaError as error:
        raise explain(error, "running the demo") from error
    except BrokenPipeError:  # the reader of the output has ended
        raise
    except OSError as error:
        raise StreamSvtError(f"the demo failed: {error}") from error
    console.print(report(board))
    console.print(ACKNOWLEDGEMENT, style="dim")
    return board


async def _demo(duration: float | None, broker: str | None, console: Console) -> Board:
    """Run the demo; the exit stack ends everything that was started."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-svt-demo-")))
        if broker is None:
            console.out("starting an Apache Kafka on this machine (the first time it is downloaded) ...")
            kafka = EmbeddedKafka()
            stack.push_async_callback(asyncio.to_thread, kafka.stop)
            await asyncio.to_thread(kafka.start)
        setting = Setting(
            application=f"retail-demo-{secrets.token_hex(3)}",
            bootstrap=broker or kafka.bootstrap_servers,
            key_file=directory / "sealing.key",
            items_file=directory / "items.txt",
            port=free_ports(1)[0],
        )
        setting.key_file.touch(0o600)
        setting.key_file.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
        setting.items_file.write_text("".join(f"{item}\n" for item in ITEMS))
        config, log = directory / "monitors.yaml", directory / "service.log"
        config.write_text(setting.yaml(), encoding="utf-8")
        cluster = Cluster({"bootstrap_servers": setting.bootstrap})
        if broker is not None:
            stack.push_async_callback(delete_topics, setting)
            console.out(
                f"the topics {setting.application}.* are deleted from {broker} at the end; their offsets and "
                "transactional ids expire there"
            )
        console.out("creating topics: stream-svt check --create-topics ...")
        stamps = {"message.timestamp.type": "LogAppendTime"}
        raw = NewTopic(setting.topic("events"), setting.partitions, 1, topic_configs=stamps)
        async with started(cluster.admin(), "creating the topic of raw events", "CREATE") as admin:
            await admin.create_topics([raw])
        made = await create_missing(load_config(config), cluster)
        if problems := [finding.message for finding in made if finding.level == "problem"]:
            raise StreamSvtError("; ".join(problems))
        console.out("starting the service: stream-svt run --apply --with-counter ...")
        service = await start(
            ["run", "--apply", "--with-counter", f"--counter-log={log}", "-c", str(config)], log
        )
        stack.push_async_callback(stop, service)
        events = await stack.enter_async_context(started(cluster.reader(), "reading the alerts"))
        events.assign([TopicPartition(setting.topic("alerts"), part) for part in range(setting.partitions)])
        session = Session(setting, service, log, events, console, Board())
        await session.run(duration)
        return session.board


async def start(arguments: Sequence[str], log: Path) -> Process:
    """Start ``stream-svt`` in a separate session, so that Ctrl-C on the terminal reaches only the demo.

    Its environment has no variable that configures a service: the demo must not use the user's brokers.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_SVT_")}
    command = [sys.executable, "-m", "stream_svt.demo", *arguments]
    with log.open("ab") as sink:
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=sink, stderr=STDOUT, env=environ, start_new_session=True
        )


def require_running(service: Process, log: Path) -> None:
    """Raise if the service has ended: it must run as long as the demo."""
    if service.returncode is not None:
        raise failed(f"the service ended too early, with exit code {service.returncode}", log)


def failed(message: str, log: Path) -> StreamSvtError:
    """Return an error with the end of the service's log."""
    lines = log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
    return StreamSvtError("\n  ".join([f"{message}; the end of its log:", *(lines or ["empty"])]))


async def stop(service: Process) -> int:
    """Stop the service, kill it if it does not end in time, and return its exit code. May be called twice."""
    with contextlib.suppress(ProcessLookupError):
        service.terminate()
        await asyncio.wait([asyncio.ensure_future(service.wait())], timeout=STOP_SECONDS)
        service.kill()
    return await service.wait()


def counts_tested(status: dict[str, Any], setting: Setting, begin_ms: int) -> int:
    """Return the number of counts of all windows from a moment on before the one whose counts are being tested."""
    topic, shards = setting.topic("baskets.counts"), {shard["shard"]: shard for shard in status["shards"]}
    used = {setting.partitioning.of(name.encode()) for name in LIMITS}
    tick_ms = min(shards[one]["ticks"].get(topic, 0) if one in shards else 0 for one in used)
    return int(max((tick_ms - 1 - begin_ms - LATENESS_MS) // WINDOW_MS, 0) * ASKED)


@dataclass(frozen=True, slots=True)
class Session:
    """One stream of raw events, the events released for it, and the screen.

    From the service it reads only committed records of the alert topic and the status API.
    """

    setting: Setting
    service: Process
    log: Path
    events: AIOKafkaConsumer
    console: Console
    board: Board

    async def run(self, duration: float | None) -> None:
        """Wait until the service is ready, send events, then stop it and read the last alerts."""
        until = time.monotonic() + READY_SECONDS
        while not await self._is_ready():
            require_running(self.service, self.log)
            if time.monotonic() > until:
                raise failed(f"the service is not ready after {READY_SECONDS:g} s", self.log)
            await asyncio.sleep(0.1)
        pages = f"http://127.0.0.1:{self.setting.port}"
        foot = f"Kafka {self.setting.bootstrap}   page {pages}/   metrics {pages}/metrics"
        if not self.console.is_terminal:
            self.console.out(foot)
        with Live(
            console=self.console,
            get_renderable=lambda: picture(self.board, foot, self.console.height),
            auto_refresh=False,
            transient=not self.console.is_terminal,
        ) as screen:
            await self._follow(duration, screen)
            if code := await stop(self.service):
                raise StreamSvtError(f"stream-svt run ended with exit code {code} when asked to stop")
            async with deadline(CALL_DEADLINE, "reading the last alerts"):
                for partition, end in (await self.events.end_offsets(self.events.assignment())).items():
                    while await self.events.position(partition) < end:
                        await self._take()

    async def _is_ready(self) -> bool:
        """Return whether the service is ready and tests the first counts of each dataset."""
        status = await self._status() or {"ready": False}
        return status["ready"] and counts_tested(status, self.setting, 0) > 0

    async def _follow(self, duration: float | None, screen: Live) -> None:
        """Refresh the screen until all is sent and tested; raises if nothing was for `STALLED_SECONDS`.

        Without that the demo would never end after the loss of a broker: clients retry without end.
        """
        board, before, began = self.board, -1, time.monotonic()
        since, sending = began, asyncio.create_task(self._send(duration))
        try:
            while not sending.done() or board.tested < board.sent:
                require_running(self.service, self.log)
                if sending.done():
                    sending.result()  # raises its error: what was not sent is never tested
                await self._take()
                if (status := await self._status()) is not None:
                    board.tested = min(counts_tested(status, self.setting, board.begin_ms), board.sent)
                board.seconds = time.monotonic() - began
                screen.refresh()
                if (progress := board.sent + board.tested) != before:
                    before, since = progress, time.monotonic()
                if time.monotonic() - since > STALLED_SECONDS:
                    raise StreamSvtError(
                        f"nothing was sent or tested for {STALLED_SECONDS:g} s, after {board.tested:,} of "
                        f"{board.sent:,} counts; check that Kafka at {self.setting.bootstrap} still runs"
                    )
                await asyncio.sleep(0.2)
            sending.result()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, duration: float | None) -> None:
        board, setting, baskets, began = self.board, self.setting, load_baskets(), time.monotonic()
        board.begin_ms, topic = (_now_ms() // WINDOW_MS + 1) * WINDOW_MS, setting.topic("events")
        async with sender({"bootstrap_servers": setting.bootstrap}, topic) as client:
            for window in windows(board.begin_ms):
                board.add_counts(window, counts_of(baskets, window))
                while board.line < window.end:
                    await self._send_events(client, topic, baskets, window.end)
                if duration is not None and time.monotonic() - began >= duration:
                    break

    async def _send_events(self, client: AIOKafkaProducer, topic: str, baskets: Baskets, end: int) -> None:
        """Send the events of the next lines up to now, of a window whose lines end at ``end``."""
        await asyncio.sleep(SLICE_SECONDS)
        board, begin_ms = self.board, self.board.begin_ms
        line = min(lines_sold(_now_ms(), begin_ms), end)
        events = events_of(baskets, board.line, line, begin_ms)
        await send(client, topic, line % self.setting.partitions, None, events)
        board.line, board.events = line, board.events + len(events)
        if _now_ms() >= sold_ms(end, begin_ms) + LATENESS_MS:
            board.late += len(events)

    async def _take(self) -> None:
        """Read the events released since the last call; waits for 50 ms at most."""
        for records in (await self.events.getmany(timeout_ms=50)).values():
            for record in records:
                line = self.board.add(decode(record.value))
                if line is not None and not self.console.is_terminal:
                    self.console.out(line)

    async def _status(self) -> dict[str, Any] | None:
        """Return the service's status; None after an error."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            url, timeout = f"http://127.0.0.1:{self.setting.port}/api/v1/status", aiohttp.ClientTimeout(5)
            async with aiohttp.request("GET", url, timeout=timeout) as answer:
                return json.loads(await answer.read()) if answer.ok else None
        return None


async def delete_topics(setting: Setting) -> None:
    """Delete the demo's topics. After an error they stay, which does no harm: their names are not used again."""
    admin = Cluster({"bootstrap_servers": setting.bootstrap}).admin()
    names = "counts alerts state rejects control config events baskets.counts sources"
    with contextlib.suppress(BrokerError, KafkaError, TimeoutError, OSError):
        async with asyncio.timeout(DELETE_SECONDS), started(admin, "deleting the demo's topics"):
            await admin.delete_topics([setting.topic(name) for name in names.split()])


async def feed(config: Config, duration: float | None) -> None:
    """Send the demo's raw events to the brokers of a service's configuration until they end or a signal comes.

    Each window of the source plays `WINDOW_LINES` lines, the first one from its begin on; none begins after
    ``duration``, and a line is printed for each.
    """
    sources = [one for one in config.spec.sources if (one.unit, one.series_names) == (UNIT, ITEMS)]
    if len(sources) != 1 or not LIMITS.keys() <= {dataset.name for dataset in config.spec.datasets}:
        message = "the demo's raw events fit only the source and datasets of 'stream-svt demo --show-config'"
        raise ConfigError([Problem(0, "sources", message)], config.source)
    [source], cluster = sources, config.cluster()
    await require(config, cluster, sources=True)
    partitions = (await partition_counts(cluster, f"looking at topic {source.topic!r}"))[source.topic]
    window_ms, baskets, line, events_sent = source.window, load_baskets(), 0, 0
    stopped, began = asyncio.Event(), time.monotonic()
    on_signals(stopped.set)
    begin_ms = (_now_ms() // window_ms + 1) * window_ms
    async with sender(cluster.arguments, source.topic) as client:
        for window in windows(begin_ms, window_ms):
            while line < window.end and not stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), SLICE_SECONDS)
                due = min(lines_sold(_now_ms(), begin_ms, window_ms), window.end)
                events = events_of(baskets, line, due, begin_ms, window_ms)
                await send(client, source.topic, due % partitions, None, events)
                line, events_sent = due, events_sent + len(events)
            if stopped.is_set():
                break
            say(
                f"line {line:,} of {LINES:,}: a window of {window.dataset} is sent, {events_sent:,} events so far"
            )
            if duration is not None and time.monotonic() - began >= duration:
                break


@contextlib.asynccontextmanager
async def sender(kafka: Mapping[str, Any], topic: str) -> AsyncIterator[AIOKafkaProducer]:
    """Return a client for `send`, and explain its errors; ``kafka`` are the keywords of every client."""
    doing = f"sending to topic {topic!r}"
    client = AIOKafkaProducer(**kafka, acks="all", enable_idempotence=True, max_batch_size=512 * 1024)
    try:
        async with started(client, doing, "WRITE"):
            yield client
    except KafkaError as error:
        raise explain(error, doing, "WRITE") from error


def on_signals(end: Callable[[], object]) -> None:
    """Call a function on SIGINT and SIGTERM. Does nothing outside the main thread, which gets all signals."""
    with contextlib.suppress(ValueError, RuntimeError):
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)


def _now_ms() -> int:
    return int(time.time() * 1000)
