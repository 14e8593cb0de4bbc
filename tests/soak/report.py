"""The command line of a soak on real brokers, and the line it ends with."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.soak.stage import Outcome

MOST_SHOWN = 20


def run(
    name: str, about: str, play: Callable[[Path, int, int], Awaitable[Outcome]], *, short: int, full: int
) -> int:
    """Play, print what was found and the closing line; return 1 where a rule was broken."""
    parser = argparse.ArgumentParser(prog=f"tests/run soak {name}", description=about)
    parser.add_argument(
        "--count", type=int, default=short, help=f"how many (default: {short}, the full form has {full})"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random choices")
    arguments = parser.parse_args()
    began = time.monotonic()
    print(f"seed {arguments.seed}", file=sys.stderr)
    # Brokers that are away are meant to be; the client says so many times a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="stream-svt-soak-") as directory:
        outcome = asyncio.run(play(Path(directory), arguments.count, arguments.seed))
    for text in outcome.violations[:MOST_SHOWN]:
        print(text)
    for note in [*outcome.notes, f"{time.monotonic() - began:.0f} s"]:
        print(note, file=sys.stderr)
    print(f"soak.{name} count {outcome.count} violations {len(outcome.violations)}")
    return 1 if outcome.violations else 0
