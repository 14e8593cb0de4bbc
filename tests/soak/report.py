"""The command line of a soak, and the line it ends with."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
    about: str | None,
    play: Callable[[int, int], Outcome],
    *,
    short: int,
    full: int | None = None,
    unit: str = "count",
    first: int | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Play as many, or for so many minutes, as the command line says, from a seed on: ``first``, or the clock's.

    Print what was found and the closing line; return 1 where a rule was broken.
    """
    parser = argparse.ArgumentParser(prog=f"tests/run soak {name}", description=about)
    told = f"how many (default: {short}{f', the full form has {full}' if full else ''})"
    parser.add_argument(f"--{unit}", type=at_least_one, default=short, dest="count", help=told)
    seed = ("--seed", int(time.time())) if first is None else ("--first", first)
    parser.add_argument(seed[0], type=int, default=seed[1], dest="seed", help="seed")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", file=sys.stderr)
    began = time.monotonic()
    try:
        outcome = play(options.count, options.seed)
    except Exception as error:  # noqa: BLE001  whatever it is, the soak has not shown what it is to show
        traceback.print_exc()
        outcome = Outcome(0, [f"it ended with {type(error).__name__}: {error}"])
    if outcome.count < options.count and not outcome.violations:
        outcome.violations.append(f"only {outcome.count} of {options.count} were played")
    for text in outcome.violations[:MOST_SHOWN]:
        print(text)
    for note in [*outcome.notes, f"{time.monotonic() - began:.0f} s"]:
        print(note, file=sys.stderr)
    print(f"soak.{name} count {outcome.count} violations {len(outcome.violations)}")
    return 1 if outcome.violations else 0


def at_least_one(text: str) -> int:
    """Return a count from the command line: a soak that plays nothing would pass."""
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"a soak plays at least one, not {count}")
    return count


def on_brokers(
    name: str,
    brokers: Callable[[], contextlib.AbstractAsyncContextManager[Any]],
    play: Callable[..., Coroutine[Any, Any, Outcome]],
) -> Callable[[Any, int], Outcome]:
    """Return what plays on brokers and in a directory of its own: ``play(brokers, name, directory, count, seed)``."""

    async def played(count: int, seed: int) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="stream-svt-soak-") as directory:
            async with brokers() as running:
                return await play(running, f"soak-{name}", Path(directory), count, seed)

    def run(count: int, seed: int) -> Outcome:
        # Brokers that are away are meant to be; the client says so many times a second.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        return asyncio.run(played(count, seed))

    return run


class Progress:
    """Says every half a minute how far a soak has come."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def __call__(self, done: int, more: str = "") -> None:
        now = time.monotonic()
        if now - self._last > 30:
            self._last = now
            print(f"{done} played, {now - self._began:.0f} s{more}", file=sys.stderr)
