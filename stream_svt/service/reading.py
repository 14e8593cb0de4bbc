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
from dataclasses import replace
from typing import NamedTuple

import msgspec

from stream_svt.errors import ConfigError, Problem
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service.config import spec_of
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec

AT_ONCE = 500
"""Datasets in a piece."""

_PROGRAM = f"from {__name__} import main; main()"


class VersionRead(NamedTuple):
    """The specification of a version, and its digest, which takes long to compute."""

    version: Version
    spec: ApplicationSpec
    application_hash: str


async def read(version: Version) -> VersionRead:
    """Return what a version says; raise ConfigError where it cannot be read, or the process that parses it ended."""
    source = f"version {version.number} of the configuration"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, source, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate(msgspec.json.encode(version.bundle))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        message = f"the process that reads it ended early, with {process.returncode}; nothing was changed"
        raise ConfigError([Problem(0, "", message)], source)
    # From a process of our own, through a pipe that nobody else has.
    found = pickle.loads(output)  # noqa: S301
    if isinstance(found, ConfigError):
        raise found
    spec, application_hash, pieces = found
    datasets: list[DatasetSpec] = []
    for piece in pieces:
        datasets += pickle.loads(piece)  # noqa: S301
        await asyncio.sleep(0)
    return VersionRead(version, replace(spec, datasets=tuple(datasets)), application_hash)


def main() -> None:
    """Parse the content of a version from standard input, and write what it says to standard output."""
    # What a library prints must not come in between.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        found: object
        try:
            spec = spec_of(msgspec.json.decode(sys.stdin.buffer.read(), type=Bundle), sys.argv[1])
        except ConfigError as error:
            found = error
        else:
            pieces = (spec.datasets[at : at + AT_ONCE] for at in range(0, len(spec.datasets), AT_ONCE))
            found = replace(spec, datasets=()), spec.hash(), [*map(pickle.dumps, pieces)]
        output.write(pickle.dumps(found))
