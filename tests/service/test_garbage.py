from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest

from stream_svt.service import garbage
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, spec_of


class Cyclic:
    def __init__(self) -> None:
        self.me = self


class Name(str):  # noqa: SLOT000  slots would take the weak reference away
    """A text that tells when it is gone: ledgers have no place for a weak reference."""


async def turns_until(freed: list[str], many: int) -> list[int]:
    """Return how much was freed after each turn of the event loop, until so much is."""
    turns = [len(freed)]
    async with asyncio.timeout(5):
        while len(freed) < many:
            await asyncio.sleep(0)
            turns.append(len(freed))
    return turns


async def test_what_a_tenure_left_in_a_cycle_is_gone_soon_and_tenures_share_one_look(monkeypatch) -> None:
    monkeypatch.setattr(garbage, "DELAY", 0.05)
    monkeypatch.setattr(garbage, "_next", None)
    looks: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looks.append(info["generation"])

    gc.disable()
    gc.callbacks.append(looked)
    try:
        left = weakref.ref(Cyclic())
        assert left() is not None
        garbage.collect_soon()
        garbage.collect_soon()
        await asyncio.sleep(0.2)
        assert left() is None
        assert len(looks) == 1
        again = weakref.ref(Cyclic())
        garbage.collect_soon()
        await asyncio.sleep(0.2)
        assert again() is None
    finally:
        gc.callbacks.remove(looked)
        gc.enable()


@pytest.fixture
def collector() -> Iterator[None]:
    """Give the collector back as it was."""
    thresholds = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(garbage._set_aside)
        gc.unfreeze()


def _loaded(datasets: int) -> Play:
    names = ", ".join(f"d{number}" for number in range(datasets))
    play = Play(spec_of(FORMS["plain"], datasets=f"{{names: [{names}], limit: 90, unit: one basket}}"))
    play.play(TOPIC, [Query(number, 1) for number in range(datasets)])
    play.crash()
    return play


@pytest.mark.usefixtures("collector")
def test_a_full_collection_does_not_walk_what_a_shard_holds() -> None:
    """What it walks is what is younger, however much is loaded."""
    garbage.collect_rarely()
    play = _loaded(3_000)
    gc.collect(1)  # as it comes by itself after so many allocations
    walked = {id(one) for one in gc.get_objects()}
    held = list(play.engine.accounts.held.values())
    assert len(held) == 3_000
    assert not walked & {id(account) for account in held}
    assert not walked & {id(run_state) for account in held for run_state in account.run_states.values()}
    assert len(walked) < 3_000


@pytest.mark.usefixtures("collector")
def test_no_collection_but_of_the_young_comes_by_itself() -> None:
    garbage.collect_rarely()
    generations: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            generations.append(info["generation"])

    gc.callbacks.append(looked)
    try:
        kept = [[] for _ in range(40 * garbage.COLLECT_AFTER[0])]
    finally:
        gc.callbacks.remove(looked)
    assert len(kept) > 1_000_000
    assert set(generations) == {0, 1}
    youngest = sum(garbage.COLLECT_AFTER[:1]) * (garbage.COLLECT_AFTER[1] + 2)
    assert len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < youngest


@pytest.mark.usefixtures("collector")
async def test_a_discarded_engine_is_freed_in_slices_though_it_was_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "FREED_AT_ONCE", 100)
    garbage.collect_rarely()
    play = _loaded(1_000)
    gc.collect(1)
    gc.disable()
    try:
        freed: list[str] = []
        engine = weakref.ref(play.engine)
        for account in play.engine.accounts.held.values():
            account.name = Name(account.name)
            weakref.finalize(account.name, freed.append, account.name[:])
        del account
        garbage.let_go(play.engine.discard())
        del play
        assert engine() is None
        turns = await turns_until(freed, 1_000)
        assert max(after - before for before, after in pairwise(turns)) <= 200
        assert turns[0] == 100
    finally:
        gc.enable()
