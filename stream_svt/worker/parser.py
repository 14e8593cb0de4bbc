"""Parses a version of the configuration, a large one in a subprocess, which loads little more than the settings."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from errno import ENOENT

import msgspec

from stream_svt import plain_text
from stream_svt.errors import ConfigError, Problem
from stream_svt.protocol.configuration import Bundle
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.detection import Held

PIECE_SIZE = 500
"""Datasets in a piece that the subprocess returns."""


def spec_of(bundle: Bundle, source: str = "configuration") -> ApplicationSpec:
    """Return the specification in an applied bundle, or raise ConfigError with all problems."""

    def names(path: str) -> Sequence[str]:
        if path not in bundle.files:
            raise FileNotFoundError(ENOENT, "it is not among the files applied")
        return plain_text.lines(bundle.files[path])

    try:
        held = Held.by(bundle.files, own=True)
    except ValueError as error:
        raise ConfigError(
            [Problem(0, "monitors.detect", f"the numbers cannot be read: {error}")], source
        ) from None
    return load_spec(bundle.text, source, names, held)


def parsed(bundle: Bundle, source: str) -> tuple[ApplicationSpec, str]:
    """Return the specification in an applied bundle and its hash; raises the errors of `spec_of`."""
    spec = spec_of(bundle, source)
    return spec, spec.hash()


def parse() -> None:
    """Parse the content of a version from standard input, and write the result to standard output."""
    # Output that a library prints goes to standard error.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        result: object
        try:
            spec, digest = parsed(msgspec.json.decode(sys.stdin.buffer.read(), type=Bundle), sys.argv[1])
        except ConfigError as error:
            result = error
        else:
            pieces = (spec.datasets[at : at + PIECE_SIZE] for at in range(0, len(spec.datasets), PIECE_SIZE))
            result = replace(spec, datasets=()), digest, [*map(pickle.dumps, pieces)]
        output.write(pickle.dumps(result))
