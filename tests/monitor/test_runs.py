"""Mutes of series, and their look-up."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stream_svt.columns import strings as texts_module
from stream_svt.columns.strings import TextCodes, TextList, TextParts, Texts, TextSlices
from stream_svt.monitor.state import mutes as mutes_module
from stream_svt.monitor.state.mutes import UNTIL_RUN_ENDS, MutedEntries, MuteIndex, Mutes, clock_of
from stream_svt.monitor.state.queue_journal import QueueJournal
from stream_svt.monitor.state.shard_datasets import NEVER

DATASETS = 4


def mute(index: MuteIndex, dataset: int, mutes: Mutes, series: str, until: int, clock_ms: int) -> None:
    """Mute a series of a dataset, which keeps 20 mutes."""
    ended = mutes.add(series, until, clock_ms, max_mutes=20)
    index.put(dataset, series, clock_of(until), clock_ms)
    for name in ended:
        index.remove(dataset, name)


def series_of(rng: random.Random, rows: int) -> Texts:
    """Return series of rows in a form of texts."""
    names = [
        rng.choice([None, *("x" * (number % 20) + f"s{number}" for number in range(60))]) for _ in range(rows)
    ]
    entries = sorted({name for name in names if name is not None})
    codes = np.array([-1 if name is None else entries.index(name) for name in names], np.int64)
    encoded = [None if name is None else name.encode() for name in names]
    forms: list[Texts] = [TextList(names), TextSlices.of(encoded), TextCodes(TextList(entries), codes)]
    forms.append(TextParts.of([forms[1], TextList(()), forms[2], forms[0]], [rows, 3, rows, rows]))
    return rng.choice([*forms, forms[0].coded(rows // 3, rows)[0], forms[3].coded(1, rows + 5)[0]])


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_index_finds_the_series_that_are_muted_and_no_other(
    seed: int, collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if collide:
        monkeypatch.setattr(mutes_module, "hash_of", lambda _: 0)
        monkeypatch.setattr(texts_module, "hashes_of", lambda _, start, __: np.zeros(len(start), np.uint64))
        monkeypatch.setattr(mutes_module, "_SPREAD", 0)
    monkeypatch.setattr(mutes_module, "_SMALLEST", 16)
    monkeypatch.setattr(mutes_module, "_FEW", 2)
    rng = random.Random(seed)
    held: dict[int, Mutes] = {}
    index = MuteIndex(held)
    for clock_ms in range(100 if collide else 300):
        dataset = rng.randrange(DATASETS)
        mutes = held.setdefault(dataset, Mutes(QueueJournal(), "m", f"d{dataset}"))
        for _ in range(rng.choice([0, 0, 1, 8])):
            number = rng.randrange(60)
            name = "x" * (number % 20) + f"s{number}"
            until = rng.choice([UNTIL_RUN_ENDS, clock_ms + rng.randrange(60)])
            mute(index, dataset, mutes, name, until, clock_ms)
        if rng.random() < 0.03:
            for name in mutes.end_run():
                index.remove(dataset, name)
        if rng.random() < 0.03:
            index = MuteIndex(held)
        series = series_of(rng, rng.choice([1, 9, 100]))
        datasets: np.ndarray | int = rng.choice(
            [rng.randrange(DATASETS), np.array(rng.choices(range(DATASETS), k=len(series)), np.int64)]
        )
        rows = np.array([row for row in range(len(series)) if rng.random() < 0.5], np.int64)
        for some in (None, rows):
            among = np.arange(len(series)) if some is None else some
            of_row = np.broadcast_to(datasets, len(series)).tolist()
            expected = {
                row: held[of_row[row]].until(series[row])
                for row in among.tolist()
                if of_row[row] in held and held[of_row[row]].until(series[row]) > clock_ms
            }
            found, ends = (column.tolist() for column in index.ends(datasets, series, some))
            assert len({*found}) == len(found)
            pairs = zip(found, ends, strict=True)
            assert {row: end for row, end in pairs if end > clock_ms} == expected


def test_the_index_keeps_no_series_whose_mute_has_ended() -> None:
    held = {0: Mutes(QueueJournal(), "m", "d")}
    index = MuteIndex(held)
    for number in range(20_000):
        mute(index, 0, held[0], f"s{number}", number + 9, number)
    assert len(index._keys) <= 2 * mutes_module._SMALLEST // mutes_module._LOAD
    assert len(index._names) < 10_000


def test_the_index_is_seldom_resized_where_each_mute_replaces_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = 1021  # with 1024 entries, room for 3 more would be left each time
    index = MuteIndex({})
    sizes: list[int] = []
    resize = MuteIndex._resize

    def counted(self: MuteIndex, clock_ms: int, more: int) -> None:
        sizes.append(self._count)
        resize(self, clock_ms, more)

    for number in range(kept):
        index.put(0, f"s{number}", NEVER, 0)
    monkeypatch.setattr(MuteIndex, "_resize", counted)
    for number in range(kept, 2 * kept):
        index.put(0, f"s{number}", NEVER, 0)
        index.remove(0, f"s{number - kept}")
    assert sum(sizes) < 50 * kept


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
    index = MuteIndex(held)
    muted = MutedEntries(held, index)
    dictionaries = [TextList([f"s{rng.randrange(40)}" for _ in range(60)]) for _ in range(2)]
    for clock_ms in range(400):
        dataset, entries = rng.randrange(2), dictionaries[rng.random() < 0.1]
        mutes = held[dataset]
        for _ in range(rng.choice([0, 0, 1, 3])):
            name = f"s{rng.randrange(50)}"
            until = rng.choice([UNTIL_RUN_ENDS, clock_ms + rng.randrange(60)])
            mute(index, dataset, mutes, name, until, clock_ms)
        if rng.random() < 0.03:
            for name in mutes.end_run():
                index.remove(dataset, name)
        expected = [code for code in range(60) if clock_ms < mutes.until(entries[code])]
        assert sorted(muted.at(dataset, entries, clock_ms).tolist()) == expected
        assert len(muted._known) <= seed + 1
