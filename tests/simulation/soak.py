"""Plays many histories, or chains of applications, on all cores: ``tests/run soak simulation|chains``."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.applications import APPLICATIONS
from tests.simulation.chains import CarryingOver, Chains, ProvingJournal
from tests.simulation.script import Faults, Script
from tests.simulation.world import Variant, play
from tests.soak import report
from tests.soak.stage import Outcome

DEFAULT_COUNT = 10_000
_SHARE = 50
MOST = 20
"""Failures after which a soak ends."""
SHRUNK = 3
"""Histories of which the smallest one is looked for."""


@dataclass
class Found:
    """What a number of seeds showed.

    Attributes:
        tally: Whatever was counted, over all of them.
        failures: What broke a rule, and what is said of it.
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
    play_one: Play,
    seeds: Sequence[int],
    *,
    most: int = MOST,
    processes: int | None = None,
    progress: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Play these seeds; stop after so many failures."""
    shares = [seeds[start : start + _SHARE] for start in range(0, len(seeds), _SHARE)]
    processes = min(processes or os.cpu_count() or 1, len(shares))
    found, work = Found(), partial(_some, play_one=play_one, most=most)
    with contextlib.ExitStack() as stack:
        results: Iterable[Found] = map(work, shares)
        if processes > 1:
            pool = multiprocessing.get_context("spawn").Pool(processes)
            results = stack.enter_context(pool).imap(work, shares)
        for part in results:
            found.add(part)
            progress(found)
            if len(found.failures) >= most:
                break
    return found


def _some(seeds: Sequence[int], play_one: Play, most: int) -> Found:
    found = Found()
    with _quick():
        for seed in seeds:
            name, violations, counted = play_one(seed)
            found.add(Found(1, Counter(counted), [(name, violations)] if violations else []))
            if len(found.failures) >= most:
                break
    return found


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Log nothing."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def history(
    seed: int, variant: Variant | None = None, faults: Faults | None = None
) -> tuple[Script, list[str], Mapping[str, int]]:
    """Play the history of a seed, or one with these faults."""
    script = Script.random(seed, len(APPLICATIONS)) if faults is None else Script(seed, 0, 30, faults)
    world = play(script, variant)
    return script, world.rules.violations, {"alerts": world.rules.tops, "effects": world.effects}


def chain(
    seed: int, broken: tuple[Variant, CarryingOver] | None = None
) -> tuple[int, list[str], Mapping[str, int]]:
    """Play the chains of a seed."""
    whole = Chains(seed, *(broken or (Variant(journal=ProvingJournal), CarryingOver())))
    violations = whole.run()
    counted = {"chains": whole.count, "applications": len(whole.endings), "carried over": whole.carried}
    return seed, violations, Counter(whole.endings) + Counter(counted)


PLAYS: dict[str, Play] = {"simulation": history, "chains": chain}


def shrink(script: Script, variant: Variant | None = None) -> Script:
    """Return a simpler history that still breaks a rule."""
    while True:
        for smaller in script.smaller():
            if play(smaller, variant).rules.violations:
                script = smaller
                break
        else:
            return script


def main(name: str = "simulation", arguments: Sequence[str] | None = None) -> int:
    """Play as many seeds as the command line says, print the closing line, return 1 where a rule was broken."""
    said = report.Progress()

    def progress(found: Found) -> None:
        broke = ", ".join(str(failed) for failed, _ in found.failures)
        said(found.count, f", violations {len(found.failures)}" + (f": {broke}" if broke else ""))

    def outcome(count: int, first: int) -> Outcome:
        found = played(PLAYS[name], range(first, first + count), progress=progress)
        told = [_told(*failure, small=number < SHRUNK) for number, failure in enumerate(found.failures)]
        counted = ", ".join(f"{number} {what}" for what, number in sorted(found.tally.items()))
        return Outcome(found.count, told, [counted])

    return report.run(name, __doc__, outcome, short=DEFAULT_COUNT, first=0, arguments=arguments)


def _told(failed: Script | int, violations: list[str], *, small: bool) -> str:
    """Return how a rule was broken, by the smallest history that breaks one where that is wanted."""
    if not isinstance(failed, Script):
        return "\n  ".join([f"seed {failed} breaks a rule:", *violations])
    trace: list[str] = []
    if small:
        failed = shrink(failed)
        world = play(failed)
        violations, trace = world.rules.violations, world.trace
    return "\n  ".join([f"seed {failed.seed} breaks a rule:", str(failed), *violations, *trace])


if __name__ == "__main__":
    sys.exit(main())
