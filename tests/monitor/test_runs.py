"""The filter of mutes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stream_svt.monitor import mutes as mutes_module
from stream_svt.monitor.mutes import UNTIL_RUN_ENDS, MutedEntries, MuteFilter, Mutes
from stream_svt.monitor.queue_journal import QueueJournal
from stream_svt.monitor.texts import TextList, hash_of


@pytest.mark.parametrize("at_once", [False, True])
def test_the_filter_finds_every_mute_and_few_others(at_once: bool) -> None:
    held: dict[int, Mutes] = {}
    found = MuteFilter(held)
    for dataset in range(3):
        mutes = held[dataset] = Mutes(QueueJournal(), "m", f"d{dataset}")
        for name in (f"s{k}" for k in range(dataset, 3000, 3)):
            mutes.add(name, UNTIL_RUN_ENDS, 0, max_mutes=1000)
            found.add(dataset, *([] if at_once else [hash_of(name.encode())]))
        found.add(dataset, *([hash_of(name.encode()) for name in mutes.entries] if at_once else ()))
    for dataset in range(3):
        hits = [
            len(found.hits(np.full(1000, dataset), TextList([*held[other].entries]).hashes()))
            for other in range(3)
        ]
        assert hits[dataset] == 1000
        assert sum(hits) < 1500
    for mutes in held.values():
        mutes.end_run()
    found.add(0, *(hash_of(b"more-%d" % number) for number in range(10_000)))
    assert (
        found.hits(np.zeros(1000, dtype=np.int64), TextList([str(k) for k in range(1000)]).hashes()).size
        < 100
    )


def test_a_new_mute_removes_the_oldest_ones_that_have_ended() -> None:
    mutes = Mutes(QueueJournal(), "m", "d")
    for name, until, clock_ms in (("a", 10, 0), ("b", 20, 5), ("c", 10, 6), ("d", UNTIL_RUN_ENDS, 7)):
        assert mutes.add(name, until, clock_ms, max_mutes=9) == []
    assert mutes.add("e", 40, 15, max_mutes=9) == []
    assert [*mutes.entries] == ["b", "c", "d", "e"]
    assert mutes.add("f", 40, 20, max_mutes=9) == []
    assert [*mutes.entries] == ["d", "e", "f"]
    assert mutes.add("g", 50, 45, max_mutes=3) == ["d"]


@pytest.mark.parametrize("seed", range(3))
def test_muted_entries_are_those_that_a_look_up_of_each_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutes_module, "_CODES_KEPT", seed)
    rng = random.Random(seed)
    held = {number: Mutes(QueueJournal(), "m", f"d{number}") for number in range(2)}
    found = MuteFilter(held)
    muted = MutedEntries(held, found)
    dictionaries = [TextList([f"s{rng.randrange(40)}" for _ in range(60)]) for _ in range(2)]
    for clock_ms in range(400):
        dataset, entries = rng.randrange(2), dictionaries[rng.random() < 0.1]
        mutes = held[dataset]
        for _ in range(rng.choice([0, 0, 1, 3])):
            name = f"s{rng.randrange(50)}"
            mutes.add(
                name, rng.choice([UNTIL_RUN_ENDS, clock_ms + rng.randrange(60)]), clock_ms, max_mutes=20
            )
            found.add(dataset, hash_of(name.encode()))
        if rng.random() < 0.03:
            mutes.end_run()
        expected = [code for code in range(60) if clock_ms < mutes.until(entries[code])]
        assert sorted(muted.at(dataset, entries, clock_ms).tolist()) == expected
        assert len(muted._known) <= seed + 1
