"""Mutes of series, and their look-up."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stream_svt.columns.strings import KeyedHash
from stream_svt.monitor.state import mutes as mutes_module
from stream_svt.monitor.state.mutes import FOR_EVER, UNTIL_RUN_ENDS, MuteIndex, Mutes, clock_of
from stream_svt.monitor.state.queue_journal import QueueJournal
from stream_svt.monitor.state.shard_datasets import NEVER
from stream_svt.proving.streams import Row
from tests.support.engine_play import Play
from tests.support.monitor_forms import FORMS, mutes_of, spec_of

DATASETS = 4


def mute(index: MuteIndex, dataset: int, mutes: Mutes, series: int, until: int, clock_ms: int) -> None:
    """Mute a series of a dataset, which keeps 20 mutes."""
    ended = mutes.add(series, until, clock_ms, max_mutes=20)
    index.put(dataset, series, clock_of(until), clock_ms)
    for oldest in ended:
        index.remove(dataset, oldest)


@pytest.mark.parametrize("bits", [64, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_index_finds_the_series_that_are_muted_and_no_other(
    seed: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutes_module, "_SMALLEST", 16)
    monkeypatch.setattr(mutes_module, "_SPREAD", 0 if bits < 64 else mutes_module._SPREAD)
    rng = random.Random(seed)
    series = [rng.getrandbits(bits) << 64 - bits | number for number in range(60)]  # 3 bits: few slots
    held: dict[int, Mutes] = {}
    index = MuteIndex(held)
    for clock_ms in range(300):
        monkeypatch.setattr(mutes_module, "_FEW", rng.choice([-1, 16]))
        dataset = rng.randrange(DATASETS)
        mutes = held.setdefault(dataset, Mutes(QueueJournal(), "m", f"d{dataset}"))
        for _ in range(rng.choice([0, 0, 1, 8])):
            until = rng.choice([UNTIL_RUN_ENDS, clock_ms + rng.randrange(60)])
            mute(index, dataset, mutes, rng.choice(series), until, clock_ms)
        if rng.random() < 0.03:
            for ended in mutes.end_run():
                index.remove(dataset, ended)
        if rng.random() < 0.03:
            index = MuteIndex(held)
        asked = rng.choices(series, k=rng.choice([0, 1, 9, 100]))
        of_rows = rng.choices(range(DATASETS), k=len(asked))
        clocks = [clock_ms + rng.randrange(9) for _ in asked]
        datasets: np.ndarray | int = np.array(of_rows, np.int64)
        clock: np.ndarray | int = np.array(clocks, np.int64)
        if rng.random() < 0.5:
            datasets, clock, of_rows, clocks = dataset, clock_ms, [dataset] * 100, [clock_ms] * 100
        expected = [
            of_row in held and held[of_row].until(one) > now
            for one, of_row, now in zip(asked, of_rows, clocks, strict=False)
        ]
        assert index.muted(datasets, np.array(asked, np.uint64), clock).tolist() == expected


def test_the_index_keeps_no_series_whose_mute_has_ended() -> None:
    held = {0: Mutes(QueueJournal(), "m", "d")}
    index = MuteIndex(held)
    for number in range(20_000):
        mute(index, 0, held[0], number, number + 9, number)
    assert len(index._entries) <= 2 * mutes_module._SMALLEST // mutes_module._LOAD


def test_the_index_is_seldom_resized_where_each_mute_replaces_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = 1021  # with 1024 entries, room for 3 more would be left each time
    index = MuteIndex({})
    sizes: list[int] = []
    resize = MuteIndex._resize

    def counted(self: MuteIndex, clock_ms: int) -> None:
        sizes.append(self._count)
        resize(self, clock_ms)

    for number in range(kept):
        index.put(0, number, NEVER, 0)
    monkeypatch.setattr(MuteIndex, "_resize", counted)
    for number in range(kept, 2 * kept):
        index.put(0, number, NEVER, 0)
        index.remove(0, number - kept)
    assert sum(sizes) < 50 * kept


@pytest.mark.parametrize("hashed", [0, 2**64 - 1])
def test_two_series_with_one_hash_are_muted_together_and_so_they_stay_after_a_takeover(
    hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(spec_of(FORMS["plain"].replace("cutoff: 3", "cutoff: 9")))
    monkeypatch.setattr(KeyedHash, "of", lambda *_: hashed)
    play.more(*[Row(0, 10**5, series) for series in ("x", "x", "y")])
    play.crash()
    play.more(*[Row(0, 10**5, series) for series in ("z", "x")])
    assert [alert.series for alert in play.alerts()] == ["x"]
    assert mutes_of(play.engine.runners["m0"], 0) == [(hashed, FOR_EVER)]


def test_a_new_mute_removes_the_oldest_ones_that_have_ended() -> None:
    mutes = Mutes(QueueJournal(), "m", "d")
    for series, until, clock_ms in ((1, 10, 0), (2, 20, 5), (3, 10, 6), (4, UNTIL_RUN_ENDS, 7)):
        assert mutes.add(series, until, clock_ms, max_mutes=9) == []
    assert mutes.add(5, 40, 15, max_mutes=9) == []
    assert [*mutes.entries] == [2, 3, 4, 5]
    assert mutes.add(6, 40, 20, max_mutes=9) == []
    assert [*mutes.entries] == [4, 5, 6]
    assert mutes.add(7, 50, 45, max_mutes=3) == [4]
