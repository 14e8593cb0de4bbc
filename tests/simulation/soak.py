"""Plays many histories on all cores: ``tests/run soak simulation [--count N] [--first SEED]``."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from stream_svt.monitor.engine import Engine
from tests.simulation.applications import APPLICATIONS, DATASETS
from tests.simulation.effects import ModelLog
from tests.simulation.log import Broker
from tests.simulation.script import Script
from tests.simulation.world import ModelWorkload, Variant, play
from tests.soak import report
from tests.soak.stage import Outcome
from tests.support.broken_protocol import (
    ChargesAfterPublishing,
    ChargesHalf,
    DoublesLimits,
    ForgetsOutbox,
    ForgetsPositions,
    LosesQueries,
    PausesBeforeReplay,
    PublishesSliceEarly,
    RedrawsNoise,
    SameTransaction,
    TakesAnyState,
    TestsBeforeDurable,
)

DEFAULT_COUNT = 10_000
_SHARE = 50
SHRUNK = 3
"""Histories of which the smallest one is looked for."""


@dataclass(frozen=True)
class _Broken(ModelWorkload):
    """A workload with engines of a broken kind."""

    kind: type[Engine] = Engine

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return the broken engine."""
        return self.kind(
            self.spec, shard=shard, datasets=DATASETS, key=key, entropy=self.entropy, bounds=self.bounds
        )


def _unfenced(broker: Broker, number: int) -> ModelLog:
    return ModelLog(broker, f"app-0-{number}")


BROKEN: dict[str, tuple[Variant, str]] = {
    "alert in the transaction of its charge": (Variant(journal=SameTransaction), "before its charge"),
    "charge after publication": (Variant(journal=ChargesAfterPublishing), "before its charge"),
    "outbox ignored at a takeover": (Variant(journal=ForgetsOutbox), "charged and never published"),
    "threshold noise redrawn at a takeover": (
        Variant(workload=partial(_Broken, kind=RedrawsNoise)),
        "changed",
    ),
    "half the price of a top": (
        Variant(workload=partial(_Broken, kind=ChargesHalf)),
        "not charged its price",
    ),
    "twice the limit": (
        Variant(workload=partial(_Broken, kind=DoublesLimits)),
        "not the one declared, and no command",
    ),
    "a slice published before it is charged": (Variant(journal=PublishesSliceEarly), "before its charge"),
    "a slice without its positions": (
        Variant(workload=partial(_Broken, kind=ForgetsPositions)),
        "neither computed again nor paid for",
    ),
    "a budget's last run decided by a lost outcome": (
        Variant(workload=partial(_Broken, kind=TestsBeforeDurable)),
        "computed",
    ),
    "a pause that skips on one side of a takeover": (
        Variant(tenure=PausesBeforeReplay),
        "neither computed again nor paid for",
    ),
    "any state taken for the newest": (Variant(journal=TakesAnyState), "older than the alerts"),
    "queries lost": (Variant(workload=partial(ModelWorkload, decoder=LosesQueries)), "have no alert"),
    "two owners": (Variant(log=_unfenced), ""),
}
"""Deliberate bugs by name, and what the rules say of them."""


@dataclass
class Found:
    """What a number of histories showed."""

    count: int = 0
    tops: int = 0
    effects: int = 0
    failures: list[tuple[Script, list[str]]] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take another part in."""
        self.count += other.count
        self.tops += other.tops
        self.effects += other.effects
        self.failures += other.failures


def histories(
    seeds: Iterable[int],
    variant: Variant | None = None,
    *,
    most: int = 20,
    processes: int | None = None,
    progress: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Play the histories of these seeds; stop after so many failures."""
    seeds = list(seeds)
    shares = [seeds[start : start + _SHARE] for start in range(0, len(seeds), _SHARE)]
    processes = min(processes or os.cpu_count() or 1, len(shares))
    found = Found()
    work = partial(_some, variant=variant, most=most)
    if processes == 1:
        results: Iterable[Found] = map(work, shares)
        return _gather(results, found, most, progress)
    quiet = partial(logging.disable, logging.CRITICAL)
    with multiprocessing.get_context("spawn").Pool(processes, initializer=quiet) as pool:
        return _gather(pool.imap(work, shares), found, most, progress)


def _gather(results: Iterable[Found], found: Found, most: int, progress: Callable[[Found], None]) -> Found:
    for part in results:
        found.add(part)
        progress(found)
        if len(found.failures) >= most:
            break
    return found


def _some(seeds: list[int], variant: Variant | None, most: int) -> Found:
    found = Found()
    for seed in seeds:
        script = Script.random(seed, len(APPLICATIONS))
        world = play(script, variant)
        found.count += 1
        found.tops += world.rules.tops
        found.effects += world.effects
        if world.rules.violations:
            found.failures.append((script, world.rules.violations))
            if len(found.failures) >= most:
                break
    return found


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
    parser = argparse.ArgumentParser(prog="tests/run soak simulation", description=__doc__)
    parser.add_argument(
        "--count", type=report.at_least_one, default=DEFAULT_COUNT, help="histories (default: %(default)s)"
    )
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    arguments = parser.parse_args()
    began = last = time.monotonic()

    def progress(found: Found) -> None:
        nonlocal last
        if time.monotonic() - last > 30:
            last = time.monotonic()
            print(f"{found.count} histories, {found.tops} alerts, {last - began:.0f} s", file=sys.stderr)

    def played() -> Outcome:
        found = histories(range(arguments.first, arguments.first + arguments.count), progress=progress)
        told = [_told(*failure, small=number < SHRUNK) for number, failure in enumerate(found.failures)]
        return Outcome(found.count, told, [f"{found.effects} effects, {found.tops} alerts"])

    return report.finish("simulation", arguments.count, played)


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
