"""One demo from start to end: broker, topics, service, producer, screen, summary; nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from rich.console import Console

from stream_svt.demo.clock import Clock
from stream_svt.demo.config import LIMIT, MONITORS, SHORT_LIMIT, SHORT_WEEK, THRESHOLD, Setting, yaml
from stream_svt.demo.data import ACKNOWLEDGEMENT, LINES, load
from stream_svt.demo.demo_status import DemoStatus
from stream_svt.demo.processes import Child, DemoFailed, start, stream_svt
from stream_svt.demo.producer import produce
from stream_svt.demo.released_zone import Event, fetched, last_events, new_events, opened, queries_seen, urls
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
    try:
        figures = asyncio.run(_interruptible(_demo(duration, broker, clock, view_for(shown))))
        shown.print(figures.render())
        if summary is not None:
            summary.write_text(json.dumps(figures.document(), indent=2) + "\n", encoding="utf-8")
        shown.print(ACKNOWLEDGEMENT, style="dim", markup=False, highlight=False)
        return 0
    except asyncio.CancelledError:
        message, code = "demo interrupted; everything it started has ended", INTERRUPTED
    except StreamSvtError as error:
        message, code = f"demo failed: {error}", error.exit_code
    except OSError as error:
        message, code = f"demo failed: {error}", 1
    errors.print(message, markup=False, highlight=False, soft_wrap=True)
    return code


async def _interruptible(work: Coroutine[None, None, Figures]) -> Figures:
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


async def _demo(duration: float | None, broker: str | None, clock: Clock, view: PlainView) -> Figures:
    """Run the demo; what was started is ended by the exit stack."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-svt-demo-")))
        counting = asyncio.create_task(asyncio.to_thread(lambda: Truth.of(load(), clock, THRESHOLD)))
        if broker is not None:
            await require_broker(broker)
        else:
            view.say("starting an Apache Kafka on this machine (the first time it is downloaded) ...")
            kafka = EmbeddedKafka()
            stack.push_async_callback(asyncio.to_thread, kafka.stop)
            await asyncio.to_thread(kafka.start)
        setting = Setting(
            application=f"retail-demo-{secrets.token_hex(3)}",
            bootstrap=broker or kafka.bootstrap_servers,
            key_file=directory / "sealing.key",
            port=_free_port(),
        )
        if broker is not None:
            stack.push_async_callback(delete_topics, setting)
            view.say(
                f"the topics {setting.application}.* are deleted from {broker} at the end; offsets and "
                "transactional ids of this name it forgets by itself"
            )
        worker = await _service(setting, clock, directory, stack, view)
        events = await stack.enter_async_context(opened(setting))
        return await Session(setting, clock, await counting, events, view).run(worker, duration)


async def _service(
    setting: Setting, clock: Clock, directory: Path, stack: contextlib.AsyncExitStack, view: PlainView
) -> Child:
    """Write the configuration, create the topics, start the service and wait until it is ready."""
    setting.key_file.touch(0o600)
    setting.key_file.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
    config = directory / "monitors.yaml"
    config.write_text(yaml(setting, clock), encoding="utf-8")
    view.say("creating topics: stream-svt check --create-topics ...")
    command = stream_svt("check", "-c", str(config), "--create-topics")
    checking = await start("stream-svt check", command, directory / "check.log")
    stack.push_async_callback(checking.stop)
    await checking.must_succeed(READY_SECONDS)
    view.say("starting the service: stream-svt run --apply ...")
    command = stream_svt("run", "--apply", "-c", str(config))
    worker = await start("stream-svt run", command, directory / "service.log")
    stack.push_async_callback(worker.stop)

    async def ready() -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while await fetched(urls(setting)["health"]) is None:  # noqa: ASYNC110  nothing tells of it
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DemoFailed(f"the service is not ready after {READY_SECONDS:g} s") from None

    await _first(ready(), worker.must_go_on())
    return worker


class Session:
    """One stream of queries, what is released meanwhile, and the screen."""

    def __init__(
        self, setting: Setting, clock: Clock, truth: Truth, events: AIOKafkaConsumer, view: PlainView
    ) -> None:
        limits = {
            name: float(SHORT_LIMIT if number == SHORT_WEEK else LIMIT)
            for number, name in enumerate(clock.weeks(), start=1)
        }
        self._setting = setting
        self._clock = clock
        self._truth = truth
        self._events = events
        self._view = view
        self._board = DemoStatus(limits, MONITORS)
        self._scene = Scene(self._board, clock.lines, setting.bootstrap, urls(setting), phase="streaming")
        self._asked: list[str] = []
        self._sent = 0

    async def run(self, worker: Child, duration: float | None) -> Figures:
        """Stream, then stop the worker and take what it has published."""
        began = time.monotonic()
        with self._view:
            await _first(self._stream(duration), self._show(), self._progress(), worker.must_go_on())
            seconds = time.monotonic() - began
            code = await worker.stop()
            if code:
                raise DemoFailed(f"stream-svt run ended with exit code {code} when asked to stop")
            self._take(await last_events(self._events))
            self._view.refresh(self._scene, time.monotonic())
        return Figures(self._board, self._truth, self._scene.seen, seconds, tuple(self._asked))

    async def _stream(self, duration: float | None) -> None:
        """Send the queries, then wait until the service has looked at everything sent."""
        began, scene = time.monotonic(), self._scene
        sets = produce(
            load(),
            self._clock,
            kafka={"bootstrap_servers": self._setting.bootstrap},
            topic=self._setting.counts,
            partitions=self._setting.partitions,
        )
        async with contextlib.aclosing(sets):
            async for progress in sets:
                self._asked.append(progress.set_id)
                self._sent, scene.line = progress.queries, progress.line
                while self._sent > scene.seen + AHEAD:  # noqa: ASYNC110  `_show` refreshes it
                    await asyncio.sleep(0.05)
                if duration is not None and time.monotonic() - began >= duration:
                    break
        scene.phase = "draining"
        while scene.seen < self._sent:  # noqa: ASYNC110  `_show` refreshes it several times a second
            await asyncio.sleep(0.1)

    async def _show(self) -> None:
        scene = self._scene
        while True:
            self._take(await new_events(self._events))
            scene.seen = await queries_seen(self._setting) or scene.seen
            scene.truth = {
                name: score([tally], self._truth, self._asked) for name, tally in self._board.tallies.items()
            }
            self._view.refresh(scene, time.monotonic())
            await asyncio.sleep(0.2)

    def _take(self, events: list[Event]) -> None:
        for envelope, data in events:
            entry = self._board.tell(envelope, data)
            if entry is not None:
                self._view.entry(entry)

    async def _progress(self) -> None:
        """Watch that queries go on being sent or looked at: clients retry for ever where a broker is gone.

        Raises:
            DemoFailed: Nothing has moved for `STALLED_SECONDS`.
        """
        before, since = (-1, -1), time.monotonic()
        while time.monotonic() - since < STALLED_SECONDS:
            now = (self._sent, self._scene.seen)
            if now != before:
                before, since = now, time.monotonic()
            await asyncio.sleep(0.5)
        raise DemoFailed(
            f"no query was sent or looked at for {STALLED_SECONDS:g} s, after {self._scene.seen:,} of "
            f"{self._sent:,}; check that Kafka at {self._scene.broker} still runs"
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
