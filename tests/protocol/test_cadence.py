"""With a cadence, transactions begin at ticks, whatever happens between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.applications import APPLICATIONS, application
from tests.simulation.script import Script
from tests.simulation.world import World

CADENCE = 0.25
JITTER = 0.06
"""Seconds that the modelled world takes between waking and the first record of a transaction."""


def begins(form: int, cadence: float | None) -> list[float]:
    """When each transaction after the takeover wrote its first record, in seconds after the last tick."""
    world = World(Script(5, form, 40, ()), None, replace(application(form), cadence=cadence))
    origin: list[float] = []
    spawn = world._spawn
    world._spawn = lambda: (origin.append(world.now), spawn())[1]
    assert world.run() == []
    found, seen = [], set()
    for entries in world.broker.partitions.values():
        for entry in entries:
            if entry.txn is not None and id(entry.txn) not in seen:
                seen.add(id(entry.txn))
                first = min(e.timestamp for e in entry.txn.entries) / 1000
                found.append(min((first - start) % CADENCE for start in origin if start <= first))
    return sorted(found)


@pytest.mark.parametrize("form", range(len(APPLICATIONS)))
def test_transactions_begin_at_ticks(form: int) -> None:
    ticked = begins(form, CADENCE)
    # The claim of a takeover comes when the takeover does; all others wait.
    assert len([late for late in ticked if late > JITTER]) <= 2
    assert len(ticked) > 10


def test_without_a_cadence_they_begin_when_there_is_something_to_say() -> None:
    assert len([late for late in begins(0, None) if late > JITTER]) > 3


def test_an_idle_shard_has_its_transactions_too() -> None:
    assert len(begins(0, CADENCE)) > len(begins(0, None))
