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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stream_svt.monitor.released import EventType
from stream_svt.proving.neighbours import Summary
from tests.simulation.applications import APPLICATIONS, COUNTED
from tests.simulation.chains import CarryingOver, Chains, ProvingJournal
from tests.simulation.script import Faults, Script
from tests.simulation.world import Variant, play
from tests.soak import report
from tests.soak.stage import Outcome
from tests.support.counted_alerts import CountedAlerts
from tests.support.counter_play import played as streams_played
from tests.support.counter_play import problem_of
from tests.support.raw_streams import history_of

DEFAULT_COUNT = 10_000
SHORT, FULL = {"sources": 5_000}, {"sources": 200_000}
_SHARE = 20
MOST = 20
"""Failures after which a soak ends; that of sources ends after the first."""
COUNTED_EACH = 10
"""Of so many histories one is of monitors on counts."""
ALERTS_EACH = 10
"""Of so many pairs of raw streams the counts of one go through the engine."""


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
    if faults is None and seed % COUNTED_EACH == COUNTED_EACH - 1:
        script = replace(script, form=COUNTED)
    world = play(script, variant)
    types = Counter(event["type"] for event in world.rules.shown.values())
    counted = {"alerts": world.rules.tops, "effects": world.effects}
    counted |= {"ends": types[EventType.ALERT_ENDED], "silences": types[EventType.NOT_RENEWED]}
    return script, world.rules.violations, counted


def chain(
    seed: int, broken: tuple[Variant, CarryingOver] | None = None
) -> tuple[int, list[str], Mapping[str, int]]:
    whole = Chains(seed, *(broken or (Variant(journal=ProvingJournal), CarryingOver())))
    violations = whole.run()
    counted = {"chains": whole.count, "applications": len(whole.endings), "carried over": whole.carried}
    return seed, violations, Counter(whole.endings) + Counter(counted)


def neighbours(seed: int) -> tuple[str, list[str], Mapping[str, int]]:
    """Play raw streams with and without a unit through the counter of a source, some also through the engine."""
    summary, problem = Summary(), ""
    if seed % ALERTS_EACH:
        pair = history_of(seed)
        plays = streams_played(pair)
    else:
        alerts = CountedAlerts(seed)
        pair, plays = alerts.history, alerts.plays
        problem = alerts.problem(summary)
    found = [one for one in (problem_of(pair, plays), problem) if one]
    counted = Counter({f"pairs of {pair.source.format}": 1, f"timestamps of kind {pair.stamps}": 1})
    counted["changed lists"] = len(pair.sources) - 1
    counted[f"losses of kind {pair.loss.kind}" if pair.loss else "without a loss"] = 1
    counted.update(
        {"through the engine": summary.cases, "alerts": summary.alerts, "unaligned": summary.unaligned}
    )
    for each in plays:
        counted.update(each.happened)
    return f"seed {seed}", found, counted


PLAYS: dict[str, Play] = {"simulation": history, "chains": chain, "sources": neighbours}


def main(name: str = "simulation", arguments: Sequence[str] | None = None) -> int:
    """Play as many seeds as the command line says, print the closing line, return 1 where a rule was broken."""
    said = report.Progress()

    def progress(found: Found) -> None:
        broke = ", ".join(str(failed) for failed, _ in found.failures)
        said(found.count, f", violations {len(found.failures)}" + (f": {broke}" if broke else ""))

    def outcome(count: int, first: int) -> Outcome:
        seeds, most = range(first, first + count), 1 if name == "sources" else MOST
        found = played(PLAYS[name], seeds, most=most, processes=os.cpu_count() or 1, progress=progress)
        told = ["\n  ".join([f"{failed} breaks a rule:", *said]) for failed, said in found.failures]
        counted = ", ".join(f"{number} {what}" for what, number in sorted(found.tally.items()))
        return Outcome(found.count, told, [counted])

    short, full = SHORT.get(name, DEFAULT_COUNT), FULL.get(name)
    return report.run(name, __doc__, outcome, short=short, full=full, first=0, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
