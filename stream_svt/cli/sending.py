"""The command `send`: queries from standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from pathlib import Path

import click

from stream_svt.application.config import Config
from stream_svt.cli import common
from stream_svt.operate.control import NotDeclared
from stream_svt.operate.send import SendProgress, send_lines
from stream_svt.settings.document import quote
from stream_svt.terminal import say, say_progress, styled
from stream_svt.wording import counted

_CHUNK = 1 << 20
"""Bytes read from standard input at once."""
_SHOWN = 20
"""Skipped lines that are named."""
_PROGRESS_SECONDS = 1.0


@common.command(
    "send -c monitors.yaml < queries.jsonl",
    "send -c monitors.yaml --dataset today --topic retail.counts < queries.jsonl",
)
@common.config_option()
@common.option("--topic", "Query topic. Default: the only one.", metavar="TOPIC")
@common.option("--dataset", "Dataset of all lines, instead of the field 'dataset'.", metavar="NAME")
@common.option("--from-line", "First line to send, from 1.", click.IntRange(1), default=1, metavar="N")
@common.flag("--skip", "Skip invalid lines instead of stopping at the first one.")
def send(path: Path, topic: str | None, dataset: str | None, from_line: int, skip: bool) -> int:
    """Send queries, one JSON object a line, from standard input.

    Each line is a query with the additional field `dataset`, and goes to the dataset's partition. The command
    ends at an invalid line: one that the service would refuse, or whose value is missing, not a number, or
    outside the bounds. Nothing after it is sent. Notes name ignored fields, and queries without a series if a
    monitor has `mute`. Standard error counts the acknowledged queries and names the line to continue from. A
    producer's file needs no section sealing. Exit code 1: a line was invalid.
    """
    config = common.load(path)
    topic, progress = _topic(config, topic), SendProgress(next_line=from_line)
    try:
        asyncio.run(_send(config, topic, progress, dataset=dataset, skip=skip))
    except asyncio.CancelledError:
        raise click.Abort from None
    finally:
        _print(topic, progress)
    return 1 if progress.skipped else 0


def _topic(config: Config, topic: str | None) -> str:
    """Return the query topic to send to."""
    topics = config.spec.produced_topics()
    if not topics:
        raise NotDeclared(
            f"every monitor of {config.source} tests counts: send events to the topics of its sources"
        )
    if topic is None and len(topics) > 1:
        raise click.UsageError(f"monitors read several topics: give --topic, one of {', '.join(topics)}.")
    if topic is not None and topic not in topics:
        raise NotDeclared(f"no monitor of {config.source} reads topic {quote(topic)}: {', '.join(topics)}")
    return topic or topics[0]


async def _send(
    config: Config, topic: str, progress: SendProgress, *, dataset: str | None, skip: bool
) -> None:
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    def report(number: int, problem: str) -> None:
        if progress.skipped <= _SHOWN:
            say(f"line {number}: {problem}; skipped", err=True)

    def note(number: int, message: str) -> None:
        say(styled("note", fg="yellow"), f" line {number}: {message} (said once)", err=True)

    showing = asyncio.create_task(_show(progress))
    try:
        chunks = _standard_input()
        await send_lines(
            config,
            config.cluster(),
            topic,
            chunks,
            progress,
            dataset=dataset,
            skip=skip,
            report=report,
            note=note,
        )
    finally:
        showing.cancel()


async def _show(progress: SendProgress) -> None:
    """Show the progress on a terminal."""
    errors = click.get_text_stream("stderr")
    while errors.isatty():
        await asyncio.sleep(_PROGRESS_SECONDS)
        say_progress(f"{progress.acknowledged:,} records acknowledged")


async def _standard_input() -> AsyncIterator[bytes]:
    """Yield available input, without waiting for more."""
    # A daemon, for a thread that waits for input would keep the process alive; os.read takes no lock of sys.stdin.
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes](1)

    def read() -> None:
        with contextlib.suppress(RuntimeError, CancelledError):  # the command has ended
            while chunk := os.read(0, _CHUNK):
                asyncio.run_coroutine_threadsafe(queue.put(chunk), loop).result()
            asyncio.run_coroutine_threadsafe(queue.put(b""), loop).result()

    threading.Thread(target=read, daemon=True).start()
    while chunk := await queue.get():
        yield chunk


def _print(topic: str, progress: SendProgress) -> None:
    """Print the progress, and how to continue."""
    records = counted(progress.acknowledged, "record")
    skipped = f", {counted(progress.skipped, 'line')} skipped" if progress.skipped else ""
    say(f"{records} acknowledged on {topic}{skipped}; the next line is {progress.next_line}.", err=True)
    if progress.last_sent >= progress.next_line:
        say(
            f"Lines {progress.next_line} to {progress.last_sent} were sent and not all acknowledged: some may be on "
            f"the topic, and come twice with --from-line {progress.next_line}.",
            err=True,
        )
