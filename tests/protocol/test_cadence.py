"""With a cadence, when something becomes visible tells nothing of how long the work for it took."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from tests.simulation.applications import APPLICATIONS, DATASETS, application
from tests.simulation.script import Script
from tests.simulation.timed import Arrival, TimedWorld, outside
from tests.simulation.world import World

CADENCE = 0.25
JITTER = 0.06
"""Seconds that the modelled world takes between waking and the first record of a transaction."""
SECONDS = 12.0


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
    ticked, others = (sum(len(begins(form, cadence)) for form in range(3)) for cadence in (CADENCE, None))
    assert ticked > others


def stream(form: int, seed: int, *, neighbour: bool) -> list[Arrival]:
    """Queries that alert now and then; in the neighbour every bottom is lower by a half, and so no integer."""
    chance = random.Random(seed)
    topics = application(form).spec.topics()
    found = []
    for number in range(240):
        value: float = chance.randrange(1, 300)
        if chance.random() < 0.06:
            value = 90_000
        elif neighbour:
            value -= 0.5
        body = {
            "id": f"q{number}",
            "value": value,
            "series": f"i{chance.randrange(9)}",
            "set": f"s{number // 12}",
        }
        moment = number * 0.04 + chance.random() * 0.01
        found.append(
            (moment, chance.choice(topics), chance.choice(DATASETS).encode(), msgspec.json.encode(body))
        )
    return found


def labour(queries: Sequence[bytes], most: float = 0.03) -> float:
    """Seconds for some queries: more where one is no integer, and else as their values would have it."""
    slow = 0.015 if any(b".5," in query for query in queries) else 0.0
    return slow + most * random.Random(b"".join(queries)).random()


def played(form: int, seed: int, *, neighbour: bool, cadence: float | None, most: float = 0.03) -> TimedWorld:
    stage = replace(application(form), cadence=cadence)
    arrivals = stream(form, seed, neighbour=neighbour)
    world = TimedWorld(stage, arrivals, lambda queries: labour(queries, most), seconds=SECONDS)
    return world.run()


@pytest.mark.parametrize("form", range(len(APPLICATIONS)))
@pytest.mark.parametrize("seed", range(2))
def test_neighbours_that_released_the_same_cannot_be_told_apart_by_any_time(form: int, seed: int) -> None:
    """Work takes up to 0.2 s and depends on the values; the times of all records and all metrics are the same."""
    one, other = (played(form, seed, neighbour=which, cadence=CADENCE) for which in (False, True))
    assert len([event for event in one.alerts if b'"gap"' in event]) >= 3
    assert outside(one) == outside(other)


@pytest.mark.parametrize("form", range(len(APPLICATIONS)))
def test_without_a_cadence_the_same_neighbours_are_told_apart(form: int) -> None:
    one, other = (played(form, 0, neighbour=which, cadence=None) for which in (False, True))
    assert one.moments != other.moments
    assert one.observer.told != other.observer.told


def test_work_that_does_not_fit_between_two_ticks_shows() -> None:
    """The limit of the claim, and that the comparison sees a difference where a cadence is set."""
    one, other = (played(0, 0, neighbour=which, cadence=CADENCE, most=0.4) for which in (False, True))
    assert one.moments != other.moments
