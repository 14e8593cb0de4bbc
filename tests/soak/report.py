"""The command line of a soak, and the line it ends with."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.soak.stage import Outcome

MOST_SHOWN = 20


def run(
    name: str,
    about: str,
    play: Callable[[Path, int, int], Coroutine[Any, Any, Outcome]],
    *,
    short: int,
    full: int,
    arguments: Sequence[str] | None = None,
) -> int:
    """Play on real brokers, print what was found and the closing line; return 1 where a rule was broken."""
    parser = argparse.ArgumentParser(prog=f"tests/run soak {name}", description=about)
    parser.add_argument(
        "--count",
        type=at_least_one,
        default=short,
        help=f"how many (default: {short}, the full form has {full})",
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random choices")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", file=sys.stderr)
    return finish(
        name, options.count, lambda: on_brokers(lambda path: play(path, options.count, options.seed))
    )


def at_least_one(text: str) -> int:
    """Return a count from the command line: a soak that plays nothing would pass."""
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"a soak plays at least one, not {count}")
    return count


def on_brokers(play: Callable[[Path], Coroutine[Any, Any, Outcome]]) -> Outcome:
    """Play in a directory of its own."""
    # Brokers that are away are meant to be; the client says so many times a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="stream-svt-soak-") as directory:
        return asyncio.run(play(Path(directory)))


def finish(name: str, wanted: int, play: Callable[[], Outcome]) -> int:
    """Play, print what was found and the closing line; return 1 where a rule was broken or it came to an early end."""
    began = time.monotonic()
    try:
        outcome = play()
    except Exception as error:  # noqa: BLE001  whatever it is, the soak has not shown what it is to show
        traceback.print_exc()
        outcome = Outcome(0, [f"it ended with {type(error).__name__}: {error}"])
    if outcome.count < wanted and not outcome.violations:
        outcome.violations.append(f"only {outcome.count} of {wanted} were played")
    for text in outcome.violations[:MOST_SHOWN]:
        print(text)
    for note in [*outcome.notes, f"{time.monotonic() - began:.0f} s"]:
        print(note, file=sys.stderr)
    print(f"soak.{name} count {outcome.count} violations {len(outcome.violations)}")
    return 1 if outcome.violations else 0
