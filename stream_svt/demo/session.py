"""One demo from start to end: broker, topics, service, producer, screen, summary; nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stream_svt.demo import producer
from stream_svt.demo.clock import Clock
from stream_svt.demo.config import LIMIT, MONITORS, SHORT_LIMIT, SHORT_WEEK, THRESHOLD, Setting, yaml
from stream_svt.demo.data import ACKNOWLEDGEMENT, LINES, load
from stream_svt.demo.demo_status import DemoStatus
from stream_svt.demo.processes import Child, DemoFailed, start, stream_svt
from stream_svt.demo.released_zone import EventReader, ServiceStatus
from stream_svt.demo.summary import Figures, score
from stream_svt.demo.topics import delete_topics, require_broker
from stream_svt.demo.truth import Truth
from stream_svt.demo.view import PlainView, Scene, view_for
from stream_svt.errors import StreamSvtError
from stream_svt.service.embedded import EmbeddedKafka

#: Queries the producer may be ahead of the service: enough to keep it busy, little to drain after
# ``--duration``.
AHEAD = 200_000
READY_SECONDS = 60.0
STALLED_SECONDS = 30.0
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user may choose; see `run_demo`."""

    duration: float | None
    broker: str | None
    summary: Path | None
    clock: Clock


def run_demo(
    duration: float | None = None,
    broker: str | None = None,
    show_config: bool = False,
    summary: Path | None = None,
    *,
    clock: Clock | None = None,
    console: Console | None = None,
) -> int:
    """Show private monitoring live and return the exit code: 0, or that of what went wrong.

    Args:
        duration: Seconds after which no further set of queries is begun; what was sent is still drained and
            summarised. None: all baskets.
        broker: ``host:port`` of a running Kafka to use instead of an own one. The demo's topics have names of
            their own there and are deleted at the end; the broker forgets offsets and transactional ids by
            itself.
        show_config: Only print the service's configuration.
        summary: File for the summary as JSON.
        clock, console: For tests: another public clock, another place to write to.
    """
    clock = clock or Clock(LINES)
    if show_config:
        sys.stdout.write(yaml(Setting(), clock))
        return 0
    shown, errors = console or Console(), console or Console(stderr=True)
    options = Options(duration=duration, broker=broker, summary=summary, clock=clock)
    try:
        return asyncio.run(_interruptible(_demo(options, shown)))
    except asyncio.CancelledError:
        message, code = "demo interrupted; everything it started has ended", INTERRUPTED
    except StreamSvtError as error:
        message, code = f"demo failed: {error}", error.exit_code
    except OSError as error:
        message, code = f"demo failed: {error}", 1
    errors.print(message, markup=False, highlight=False, soft_wrap=True)
    return code


async def _interruptible(work: Coroutine[None, None, int]) -> int:
    """Run ``work``; the first SIGINT or SIGTERM cancels it, further ones do not disturb the clearing up."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread of a process gets signals; elsewhere the caller cancels.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, interrupt)
    return await task


async def _demo(options: Options, console: Console) -> int:
    async with contextlib.AsyncExitStack() as stack:
        view = view_for(console)
        figures = await Session(options, stack, view).run()
    console.print(figures.render())
    if options.summary is not None:
        options.summary.write_text(json.dumps(figures.document(), indent=2) + "\n", encoding="utf-8")
    console.print(ACKNOWLEDGEMENT, style="dim", markup=False, highlight=False)
    return 0


class Session:
    """The parts of one demo while it runs."""

    def __init__(self, options: Options, stack: contextlib.AsyncExitStack, view: PlainView) -> None:
        self._options = options
        self._stack = stack
        self._view = view
        self._asked: list[str] = []
        self._sent = 0

    async def run(self) -> Figures:
        """Run the demo; what was started is ended by the exit stack."""
        clock = self._options.clock
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-svt-demo-")))
        counting = asyncio.create_task(asyncio.to_thread(lambda: Truth.of(load(), clock, THRESHOLD)))
        bootstrap = await self._broker()
        setting = Setting(
            application=f"retail-demo-{secrets.token_hex(3)}",
            bootstrap=bootstrap,
            key_file=directory / "sealing.key",
            port=_free_port(),
        )
        worker = await self._service(setting, directory)
        truth = await counting
        limits = {
            name: float(SHORT_LIMIT if number == SHORT_WEEK else LIMIT)
            for number, name in enumerate(clock.weeks(), start=1)
        }
        return await self._watch(setting, worker, truth, DemoStatus(limits, MONITORS), directory)

    async def _broker(self) -> str:
        if self._options.broker is not None:
            await require_broker(self._options.broker)
            return self._options.broker
        self._view.say("starting an Apache Kafka on this machine (the first time it is downloaded) ...")
        kafka = await self._stack.enter_async_context(EmbeddedKafka())
        return kafka.bootstrap_servers

    async def _service(self, setting: Setting, directory: Path) -> Child:
        """Write the configuration, create the topics and start the service."""
        _write_private(setting.key_file, secrets.token_hex(32))
        config = directory / "monitors.yaml"
        config.write_text(yaml(setting, self._options.clock), encoding="utf-8")
        if self._options.broker is not None:
            self._stack.push_async_callback(delete_topics, setting)
            self._view.say(
                f"the topics {setting.application}.* are deleted from {self._options.broker} at the end; offsets and "
                "transactional ids of this name it forgets by itself"
            )
        self._view.say("creating topics: stream-svt check --create-topics ...")
        checking = await start(
            "stream-svt check",
            stream_svt("check", "-c", str(config), "--create-topics"),
            directory / "check.log",
        )
        self._stack.push_async_callback(checking.stop)
        await checking.must_succeed(READY_SECONDS)
        self._view.say("starting the service: stream-svt run --apply ...")
        worker = await start(
            "stream-svt run", stream_svt("run", "--apply", "-c", str(config)), directory / "service.log"
        )
        self._stack.push_async_callback(worker.stop)
        return worker

    async def _watch(
        self, setting: Setting, worker: Child, truth: Truth, board: DemoStatus, directory: Path
    ) -> Figures:
        status = ServiceStatus(setting)
        await _first(self._ready(status), worker.must_go_on())
        events = await self._stack.enter_async_context(EventReader.open(setting))
        producing = await start(
            "the query producer",
            producer.command_line(
                self._options.clock,
                bootstrap=setting.bootstrap,
                topic=setting.counts,
                partitions=setting.partitions,
                ahead=AHEAD,
            ),
            directory / "producer.log",
            talks=True,
        )
        self._stack.push_async_callback(producing.stop)
        scene = Scene(board, self._options.clock.lines, setting.bootstrap, status.urls(), phase="streaming")

        async def show() -> None:
            while True:
                await self._take(events, board)
                scene.seen = await status.queries() or scene.seen
                producing.tell(f"seen {scene.seen}")
                scene.truth = {
                    name: score([tally], truth, self._asked) for name, tally in board.tallies.items()
                }
                self._view.refresh(scene, time.monotonic())
                await asyncio.sleep(0.2)

        began = time.monotonic()
        self._stack.enter_context(self._view)
        stream = self._stream(producing, scene)
        await _first(stream, show(), self._progress(scene), worker.must_go_on())
        seconds = time.monotonic() - began
        code = await worker.stop()
        if code:
            raise DemoFailed(f"stream-svt run ended with exit code {code} when asked to stop")
        await self._take(events, board, to_end=True)
        self._view.refresh(scene, time.monotonic())
        return Figures(board, truth, scene.seen, seconds, tuple(self._asked))

    async def _ready(self, status: ServiceStatus) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await status.ready()
        except TimeoutError:
            raise DemoFailed(f"the service is not ready after {READY_SECONDS:g} s") from None

    async def _take(self, events: EventReader, board: DemoStatus, *, to_end: bool = False) -> None:
        for envelope, data in await (events.rest() if to_end else events.new()):
            entry = board.tell(envelope, data)
            if entry is not None:
                self._view.entry(entry)

    async def _stream(self, producing: Child, scene: Scene) -> None:
        """Follow the producer to its end, then wait until the service has looked at everything sent."""
        duration = self._options.duration
        loop = asyncio.get_running_loop()
        bell = None if duration is None else loop.call_later(duration, producing.tell, "stop")
        try:
            async for line in producing.lines():
                told = json.loads(line)
                self._asked.append(told["set"])
                self._sent, scene.line = told["queries"], told["line"]
        finally:
            if bell is not None:
                bell.cancel()
        await producing.must_succeed(READY_SECONDS)
        scene.phase = "draining"
        while scene.seen < self._sent:  # noqa: ASYNC110  `show` refreshes it several times a second
            await asyncio.sleep(0.1)

    async def _progress(self, scene: Scene) -> None:
        """Watch that queries go on being sent or looked at: clients retry for ever where a broker is gone.

        Raises:
            DemoFailed: Nothing has moved for `STALLED_SECONDS`.
        """
        before, since = (-1, -1), time.monotonic()
        while time.monotonic() - since < STALLED_SECONDS:
            now = (self._sent, scene.seen)
            if now != before:
                before, since = now, time.monotonic()
            await asyncio.sleep(0.5)
        raise DemoFailed(
            f"no query was sent or looked at for {STALLED_SECONDS:g} s, after {scene.seen:,} of {self._sent:,}; check "
            f"that Kafka at {scene.broker} still runs"
        )


async def _first(main: Coroutine[None, None, None], *others: Coroutine[None, None, None]) -> None:
    """Wait for ``main``; an error of any of them ends all."""
    tasks = [asyncio.ensure_future(each) for each in (main, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _write_private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(text + "\n")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
