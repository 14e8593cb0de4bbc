"""A version of the configuration parsed while a worker runs: by another process, and taken over in pieces.

Parsing hundreds of thousands of names takes seconds. The worker's event loop would stand still meanwhile, in a
thread as well: the parser keeps the interpreter to itself. So a process of its own parses the version and hands over
what it found, in pieces that take a few milliseconds each.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from stream_svt.errors import ConfigError, Problem
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service.config import spec_of
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec

AT_ONCE = 500
"""Datasets in a piece."""

_LENGTH = 8
"""Bytes before each piece that say how long it is."""

_PROGRAM = f"from {__name__} import main; main()"


@dataclass(frozen=True, slots=True)
class Reading:
    """The specification of a version, and its digest, which takes long to compute."""

    version: Version
    spec: ApplicationSpec
    spec_hash: str


async def read(version: Version) -> Reading:
    """Return what a version says, without holding the event loop.

    Raises:
        ConfigError: This release cannot read it, or the process that parses it ended early.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    sending = asyncio.create_task(_send(process.stdin, msgspec.json.encode(version.bundle)))
    found: tuple[ApplicationSpec, str] | None = None
    datasets: list[DatasetSpec] = []
    try:
        async for kind, content in _pieces(process.stdout):
            if kind == "refused":
                problems, more = content
                raise ConfigError(problems, _source(version), more)
            if kind == "spec":
                found = content
            else:
                datasets += content
            await asyncio.sleep(0)
    except asyncio.IncompleteReadError:
        found = None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await asyncio.gather(sending, return_exceptions=True)
    if found is None:
        message = f"the process that reads it ended early, with {process.returncode}; nothing was changed"
        raise ConfigError([Problem(0, "", message)], _source(version))
    spec, spec_hash = found
    return Reading(version, replace(spec, datasets=tuple(datasets)), spec_hash)


def _source(version: Version) -> str:
    return f"version {version.number} of the configuration"


async def _send(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is not None:
        stream.write(content)
        await stream.drain()
        stream.close()


async def _pieces(stream: asyncio.StreamReader | None) -> AsyncIterator[tuple[str, Any]]:
    """Yield what the other process wrote, up to the end that it announced."""
    if stream is None:
        return
    while length := int.from_bytes(await stream.readexactly(_LENGTH), "big"):
        # From a process of our own, through a pipe that nobody else has.
        yield pickle.loads(await stream.readexactly(length))  # noqa: S301


def main() -> None:
    """Read a version's content from standard input, and write the pieces to standard output."""
    # What a library prints must not come in between.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        for piece in _found(sys.stdin.buffer.read()):
            data = pickle.dumps(piece)
            output.write(len(data).to_bytes(_LENGTH, "big") + data)
        output.write(bytes(_LENGTH))


def _found(content: bytes) -> Iterator[tuple[str, Any]]:
    try:
        spec = spec_of(msgspec.json.decode(content, type=Bundle))
    except ConfigError as error:
        yield "refused", (error.problems, error.more)
        return
    yield "spec", (replace(spec, datasets=()), spec.hash())
    for at in range(0, len(spec.datasets), AT_ONCE):
        yield "datasets", spec.datasets[at : at + AT_ONCE]
