"""Plays many histories on all cores: ``tests/run soak simulation [--count N] [--first SEED]``."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stream_svt.monitor.engine import Engine
from tests.simulation.applications import APPLICATIONS
from tests.simulation.effects import ModelLog
from tests.simulation.log import Broker
from tests.simulation.script import Script
from tests.simulation.world import ModelWorkload, Variant, play
from tests.soak import report
from tests.soak.stage import Outcome
from tests.support.broken_protocol import (
    ChargesAfterPublishing,
    ChargesHalf,
    ComparesNoNumbers,
    DoublesLimits,
    ForgetsLostOutcomes,
    ForgetsOutbox,
    ForgetsPositions,
    GoesOnWithAnyVersion,
    LosesQueries,
    MissesNothing,
    PausesBeforeReplay,
    PublishesSliceEarly,
    RedrawsNoise,
    RetiresTooEarly,
    SameTransaction,
    TakesAnyState,
    TestsBeforeDurable,
    UsesNumbersLate,
)

DEFAULT_COUNT = 10_000
_SHARE = 50
SHRUNK = 3
"""Histories of which the smallest one is looked for."""


def _unfenced(broker: Broker, number: int) -> ModelLog:
    return ModelLog(broker, f"app-0-{number}")


def _engine(kind: type[Engine]) -> Variant:
    return Variant(workload=partial(ModelWorkload, kind=kind))


BROKEN: dict[str, tuple[Variant, str]] = {
    "alert in the transaction of its charge": (Variant(journal=SameTransaction), "before its charge"),
    "charge after publication": (Variant(journal=ChargesAfterPublishing), "before its charge"),
    "outbox ignored at a takeover": (Variant(journal=ForgetsOutbox), "charged and never published"),
    "threshold noise redrawn at a takeover": (_engine(RedrawsNoise), "changed"),
    "half the price of a top": (_engine(ChargesHalf), "not charged its price"),
    "twice the limit": (_engine(DoublesLimits), "not the one declared, and no command"),
    "a slice published before it is charged": (Variant(journal=PublishesSliceEarly), "before its charge"),
    "a slice without its positions": (_engine(ForgetsPositions), "neither computed again nor paid for"),
    "a budget's last run decided by a lost outcome": (_engine(TestsBeforeDurable), "computed"),
    "a pause that skips on one side of a takeover": (
        Variant(tenure=PausesBeforeReplay),
        "neither computed again nor paid for",
    ),
    "numbers not compared": (Variant(tenure=ComparesNoNumbers), "nobody had sent it for this number"),
    "versions not compared": (Variant(tenure=GoesOnWithAnyVersion), "older than the one before"),
    "lost outcomes of a dataset that is retired": (
        _engine(ForgetsLostOutcomes),
        "neither computed again nor paid for",
    ),
    "a dataset retired before the version is adopted": (Variant(tenure=RetiresTooEarly), "was retired"),
    "numbers durable after the effect": (Variant(tenure=UsesNumbersLate), "its number was not used up"),
    "any state taken for the newest": (Variant(journal=TakesAnyState), "that the alerts contradict"),
    "an event published last that nobody looks for": (
        Variant(journal=MissesNothing),
        "that the alerts contradict",
    ),
    "queries lost": (Variant(workload=partial(ModelWorkload, decoder=LosesQueries)), "have no alert"),
    "two owners": (Variant(log=_unfenced), ""),
}
"""Deliberate bugs by name, and what the rules say of them."""


@dataclass
class Found:
    """What a number of seeds showed.

    Attributes
    ----------
    tally
        Whatever was counted, over all of them.
    failures
        What broke a rule, and what is said of it.
    """

    count: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Any, list[str]]] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take another part in."""
        self.count += other.count
        self.tally += other.tally
        self.failures += other.failures


Play = Callable[[int], tuple[Any, list[str], Mapping[str, int]]]
"""Plays a seed; returns what names it, what broke a rule, and what is to be counted."""


def played(
    seeds: Iterable[int],
    play_one: Play,
    *,
    most: int,
    processes: int | None,
    progress: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Play these seeds; stop after so many failures."""
    seeds = list(seeds)
    shares = [seeds[start : start + _SHARE] for start in range(0, len(seeds), _SHARE)]
    processes = min(processes or os.cpu_count() or 1, len(shares))
    found, work = Found(), partial(_some, play_one=play_one, most=most)
    with contextlib.ExitStack() as stack:
        results: Iterable[Found] = map(work, shares)
        if processes > 1:
            quiet = partial(logging.disable, logging.CRITICAL)
            pool = multiprocessing.get_context("spawn").Pool(processes, initializer=quiet)
            results = stack.enter_context(pool).imap(work, shares)
        for part in results:
            found.add(part)
            progress(found)
            if len(found.failures) >= most:
                break
    return found


def _some(seeds: list[int], play_one: Play, most: int) -> Found:
    found = Found()
    for seed in seeds:
        name, violations, counted = play_one(seed)
        found.count += 1
        found.tally.update(counted)
        if violations:
            found.failures.append((name, violations))
            if len(found.failures) >= most:
                break
    return found


def histories(
    seeds: Iterable[int], variant: Variant | None = None, *, most: int = 20, processes: int | None = None
) -> Found:
    """Play the histories of these seeds; stop after so many failures."""
    return played(seeds, partial(_history, variant=variant), most=most, processes=processes)


def _history(seed: int, variant: Variant | None = None) -> tuple[Script, list[str], Mapping[str, int]]:
    script = Script.random(seed, len(APPLICATIONS))
    world = play(script, variant)
    return script, world.rules.violations, {"alerts": world.rules.tops, "effects": world.effects}


def shrink(script: Script, variant: Variant | None = None) -> Script:
    """Return a simpler history that still breaks a rule."""
    while True:
        for smaller in script.smaller():
            if play(smaller, variant).rules.violations:
                script = smaller
                break
        else:
            return script


def main() -> int:
    """Play, print the closing line, and return 1 where a rule was broken."""

    def told(failures: list[tuple[Any, list[str]]]) -> list[str]:
        return [_told(*failure, small=number < SHRUNK) for number, failure in enumerate(failures)]

    return soak("simulation", __doc__, _history, told)


def soak(
    name: str, about: str | None, play_one: Play, told: Callable[[list[tuple[Any, list[str]]]], list[str]]
) -> int:
    """Play as many seeds as the command line says, and report."""
    said = report.Progress()

    def progress(found: Found) -> None:
        broke = ", ".join(str(name) for name, _ in found.failures)
        said(found.count, f", violations {len(found.failures)}" + (f": {broke}" if broke else ""))

    def outcome(count: int, first: int) -> Outcome:
        seeds = range(first, first + count)
        found = played(seeds, play_one, most=20, processes=None, progress=progress)
        counted = ", ".join(f"{number} {what}" for what, number in sorted(found.tally.items()))
        return Outcome(found.count, told(found.failures), [counted])

    return report.run(name, about, outcome, short=DEFAULT_COUNT, first=0)


def _told(script: Script, violations: list[str], *, small: bool) -> str:
    """Return how a rule was broken, by the smallest history that breaks one where that is wanted."""
    trace: list[str] = []
    if small:
        script = shrink(script)
        world = play(script)
        violations, trace = world.rules.violations, world.trace
    return "\n  ".join([f"seed {script.seed} breaks a rule:", str(script), *violations, *trace])


if __name__ == "__main__":
    sys.exit(main())
