"""Plays many histories, chains of applications, or neighbours of sources: ``tests/run soak simulation|chains|sources``.

All cores take part.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.applications import APPLICATIONS
from tests.simulation.chains import CarryingOver, Chains, ProvingJournal
from tests.simulation.script import Faults, Script
from tests.simulation.world import Variant, play
from tests.soak import report
from tests.soak.stage import Outcome
from tests.support.counter_play import problem_of
from tests.support.raw_streams import history_of

DEFAULT_COUNT = 10_000
SHORT = {"sources": 400}
_SHARE = 50
MOST = 20
"""Failures after which a soak ends."""


@dataclass
class Found:
    """What a number of seeds showed: what was counted, and what broke a rule, with what is said of it."""

    count: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Any, list[str]]] = field(default_factory=list)


Play = Callable[[int], tuple[Any, list[str], Mapping[str, int]]]
"""Plays a seed; returns what names it, what broke a rule, and what is to be counted."""


def played(
    play_one: Play,
    seeds: Sequence[int],
    *,
    most: int = MOST,
    processes: int = 1,
    progress: Callable[[Found], None] = lambda found: None,
) -> Found:
    found, work = Found(), partial(_quietly, play_one)
    with contextlib.ExitStack() as stack:
        results: Iterable[Any] = map(work, seeds)
        if processes > 1:
            pool = multiprocessing.get_context("spawn").Pool(processes)
            results = stack.enter_context(pool).imap(work, seeds, _SHARE)
        for name, violations, counted in results:
            found.count += 1
            found.tally += Counter(counted)
            if violations:
                found.failures.append((name, violations))
            progress(found)
            if len(found.failures) >= most:
                break
    return found


def _quietly(play_one: Play, seed: int) -> Any:
    logging.disable(logging.CRITICAL)
    try:
        return play_one(seed)
    finally:
        logging.disable(logging.NOTSET)


def history(
    seed: int, variant: Variant | None = None, faults: Faults | None = None
) -> tuple[Script, list[str], Mapping[str, int]]:
    script = Script.random(seed, len(APPLICATIONS)) if faults is None else Script(seed, 0, 30, faults)
    world = play(script, variant)
    return script, world.rules.violations, {"alerts": world.rules.tops, "effects": world.effects}


def chain(
    seed: int, broken: tuple[Variant, CarryingOver] | None = None
) -> tuple[int, list[str], Mapping[str, int]]:
    whole = Chains(seed, *(broken or (Variant(journal=ProvingJournal), CarryingOver())))
    violations = whole.run()
    counted = {"chains": whole.count, "applications": len(whole.endings), "carried over": whole.carried}
    return seed, violations, Counter(whole.endings) + Counter(counted)


def neighbours(seed: int) -> tuple[int, list[str], Mapping[str, int]]:
    """Play raw streams with and without a unit through the counter of a source."""
    pair = history_of(seed)
    problem = problem_of(pair)
    return seed, [problem] if problem else [], {f"pairs on timestamps of kind {pair.stamps}": 1}


PLAYS: dict[str, Play] = {"simulation": history, "chains": chain, "sources": neighbours}


def main(name: str = "simulation", arguments: Sequence[str] | None = None) -> int:
    """Play as many seeds as the command line says, print the closing line, return 1 where a rule was broken."""
    said = report.Progress()

    def progress(found: Found) -> None:
        broke = ", ".join(str(failed) for failed, _ in found.failures)
        said(found.count, f", violations {len(found.failures)}" + (f": {broke}" if broke else ""))

    def outcome(count: int, first: int) -> Outcome:
        found = played(
            PLAYS[name], range(first, first + count), processes=os.cpu_count() or 1, progress=progress
        )
        told = ["\n  ".join([f"{failed} breaks a rule:", *said]) for failed, said in found.failures]
        counted = ", ".join(f"{number} {what}" for what, number in sorted(found.tally.items()))
        return Outcome(found.count, told, [counted])

    return report.run(
        name, __doc__, outcome, short=SHORT.get(name, DEFAULT_COUNT), first=0, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
