"""A configuration read again while a worker runs: by another process, and taken over in pieces.

Parsing hundreds of thousands of names takes seconds. The worker's event loop would stand still meanwhile, in a
thread as well: the parser keeps the interpreter to itself. So a process of its own parses the file and hands over
what it found, in pieces that take a few milliseconds each.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.datasets import DatasetSpec
from stream_svt.service.config import Config, load_config

AT_ONCE = 500
"""Datasets in a piece."""

_LENGTH = 8
"""Bytes before each piece that say how long it is."""

_PROGRAM = f"from {__name__} import main; main()"


@dataclass(frozen=True, slots=True)
class Reading:
    """A configuration that was read, and the digest of its specification, which takes long to compute."""

    config: Config
    spec_hash: str


async def read_again(path: Path) -> Reading:
    """Return the configuration in a file, with what the environment replaces, without holding the event loop.

    Raises
    ------
    ConfigError
        As `load_config`, or the process that parses the file ended early.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, str(path), stdout=asyncio.subprocess.PIPE
    )
    found: tuple[Config, str] | None = None
    datasets: list[DatasetSpec] = []
    try:
        async for kind, content in _pieces(process.stdout):
            if kind == "refused":
                raise ConfigError(*content)
            if kind == "config":
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
    if found is None:
        message = f"the process that reads it ended early, with {process.returncode}; nothing was changed"
        raise ConfigError([Problem(0, "", message)], str(path))
    config, spec_hash = found
    spec = replace(config.spec, datasets=tuple(datasets))
    return Reading(replace(config, spec=spec), spec_hash)


async def _pieces(stream: asyncio.StreamReader | None) -> AsyncIterator[tuple[str, Any]]:
    """Yield what the other process wrote, up to the end that it announced."""
    if stream is None:
        return
    while length := int.from_bytes(await stream.readexactly(_LENGTH), "big"):
        # From a process of our own, through a pipe that nobody else has.
        yield pickle.loads(await stream.readexactly(length))  # noqa: S301


def main() -> None:
    """Read the configuration named on the command line, and write the pieces to standard output."""
    # What a library prints must not come in between.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        for piece in _found(Path(sys.argv[1])):
            data = pickle.dumps(piece)
            output.write(len(data).to_bytes(_LENGTH, "big") + data)
        output.write(bytes(_LENGTH))


def _found(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        config = load_config(path, os.environ)
    except ConfigError as error:
        yield "refused", (error.problems, error.source, error.more)
        return
    datasets = config.spec.datasets
    yield "config", (replace(config, spec=replace(config.spec, datasets=())), config.spec.hash())
    for at in range(0, len(datasets), AT_ONCE):
        yield "datasets", datasets[at : at + AT_ONCE]
