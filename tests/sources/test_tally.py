"""Tallies are exact: equal to a count of all pairs, for any parts, orders, copies and merges."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from stream_svt.sources.tally import PARTS, Tally, cut, pack, sorted_keys

HASHES = 2**44
Pair = tuple[int, int]


def keys_of(pairs: list[Pair]) -> np.ndarray:
    cells, hashes = (
        (np.array(column) for column in zip(*pairs, strict=True)) if pairs else (np.zeros(0, int),) * 2
    )
    return pack(cells, hashes.astype(np.uint64))


def slow_counts(pairs: list[Pair], most: list[int]) -> list[int]:
    counts = [0] * len(most)
    for (cell, _), copies in Counter(pairs).items():
        counts[cell] += min(copies, most[cell])
    return counts


def slow_keys(pairs: list[Pair], most: list[int]) -> list[int]:
    return sorted(
        cell * HASHES + hashed
        for (cell, hashed), copies in Counter(pairs).items()
        for _ in range(min(copies, most[cell]))
    )


def some_pairs(chance: random.Random, most: list[int], count: int) -> list[Pair]:
    """Draw pairs of few units, so that copies are usual, with the largest and the smallest hash among them."""
    units = [0, HASHES - 1, *(chance.randrange(HASHES) for _ in range(chance.choice([1, 10, 300])))]
    return [(chance.randrange(len(most)), chance.choice(units)) for _ in range(count)]


def pieces(chance: random.Random, pairs: list[Pair], longest: int) -> list[list[Pair]]:
    """Cut pairs into pieces of random lengths, some of them empty."""
    cuts = [0]
    while cuts[-1] < len(pairs):
        cuts.append(cuts[-1] + chance.choice([0, 1, 2, longest // 10, longest]))
    return [pairs[begin:end] for begin, end in itertools.pairwise(cuts)]


def all_keys(tally: Tally) -> list[int]:
    return sorted(itertools.chain.from_iterable(part.tolist() for part in tally.parts()))


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_exact_for_any_pieces_orders_and_sorts(seed: int):
    chance = random.Random(seed)
    most = [chance.choice([1, 1, 2, 5, 100]) for _ in range(chance.choice([1, 3, 50]))]
    pairs = some_pairs(chance, most, 5000)
    tally = Tally(np.array(most))
    for piece in pieces(chance, pairs, chance.choice([10, 100, 2000])):
        keys = keys_of(piece)
        tally.add(np.sort(keys) if chance.random() < 0.5 else keys)
        if chance.random() < 0.02:
            tally.counts()  # counting early changes nothing later
    assert tally.counts().tolist() == slow_counts(pairs, most)
    assert all_keys(tally) == slow_keys(pairs, most)
    assert tally.pairs == sum(slow_counts(pairs, most))


@pytest.mark.parametrize("is_sorted", [False, True])
def test_one_piece_alone_is_counted_exactly(is_sorted: bool):
    chance, most = random.Random(1), [1, 2, 5]
    for _ in range(50):
        pairs = some_pairs(chance, most, chance.choice([1, 10, 500]))
        tally = Tally(np.array(most))
        tally.add(np.sort(keys_of(pairs)) if is_sorted else keys_of(pairs))
        assert tally.counts().tolist() == slow_counts(pairs, most)
        assert all_keys(tally) == slow_keys(pairs, most)


@pytest.mark.parametrize("seed", range(20))
def test_tallies_merge_in_any_order_to_what_all_pairs_give(seed: int):
    chance = random.Random(seed)
    most = [chance.choice([1, 3]) for _ in range(4)]
    pairs = some_pairs(chance, most, 3000)
    tallies = []
    for piece in pieces(chance, pairs, 400):
        tallies.append(Tally(np.array(most)))
        for part in pieces(chance, piece, 40):
            tallies[-1].add(keys_of(part))
    chance.shuffle(tallies)
    total = Tally(np.array(most))
    for tally in tallies:
        before = tally.pairs
        total.merge(tally)
        assert tally.pairs == before
    assert total.counts().tolist() == slow_counts(pairs, most)


def test_a_tally_that_was_merged_into_another_one_stays_as_it_was():
    one, other, most = Tally(np.array([1])), Tally(np.array([1])), [1]
    first, second = ([(0, hashed) for hashed in range(begin, begin + 500)] for begin in (0, 250))
    one.add(keys_of(first))
    other.add(keys_of(second))
    one.merge(other)
    one.add(keys_of(first))
    assert one.counts().tolist() == [750]
    assert all_keys(other) == slow_keys(second, most)


@pytest.mark.parametrize("most", [[1], [2], [100], [1, 3, 2]])
def test_cutting_keeps_as_many_copies_as_the_cell_has(most: list[int]):
    chance = random.Random(len(most))
    for _ in range(200):
        pairs = some_pairs(chance, most, chance.randrange(400))
        assert cut(np.sort(keys_of(pairs)), np.array(most)).tolist() == slow_keys(pairs, most)


def test_cutting_before_and_after_a_split_gives_the_same():
    chance, most = random.Random(1), [3, 1]
    for _ in range(100):
        pairs = some_pairs(chance, most, 200)
        parts = [cut(np.sort(keys_of(piece)), np.array(most)) for piece in pieces(chance, pairs, 60)]
        merged = np.sort(np.concatenate(parts))
        assert cut(merged, np.array(most)).tolist() == slow_keys(pairs, most)


def test_keys_order_by_cell_and_then_by_hash():
    cells, hashes = np.array([0, 0, 1, 2**20 - 1]), np.array([1, HASHES - 1, 0, HASHES - 1], np.uint64)
    keys = pack(cells, hashes)
    assert keys.tolist() == [1, 2**44 - 1, 2**44, 2**64 - 1]
    assert cells.tolist() == [0, 0, 1, 2**20 - 1]
    assert hashes.tolist() == [1, HASHES - 1, 0, HASHES - 1]


def test_sorted_keys_are_not_copied():
    keys = np.array([1, 2, 2, 2**64 - 1], np.uint64)
    assert sorted_keys(keys) is keys
    assert sorted_keys(keys[::-1]).tolist() == keys.tolist()


def test_adding_keeps_the_array_that_was_added():
    keys = np.arange(1000, 0, -1).astype(np.uint64)
    tally = Tally(np.array([1]))
    tally.add(keys)
    tally.counts()
    assert keys.tolist() == list(range(1000, 0, -1))


def test_a_tally_does_not_change_with_the_array_that_was_added():
    keys = np.arange(1000).astype(np.uint64)
    tally = Tally(np.array([1]))
    tally.add(keys)
    keys[:] = 0
    assert tally.counts().tolist() == [1000]


def test_counting_in_steps_pauses_after_each_part():
    tally = Tally(np.array([1, 1]))
    tally.add(keys_of([(1, hashed) for hashed in range(4 * PARTS)]))
    counted = [counts.sum() for counts in tally.count_in_steps()]
    assert counted == [*range(4, 4 * PARTS + 1, 4)]


@pytest.mark.parametrize("sizes", [[60], [1, 60], [60, 1], [200, 60, 20, 6, 2, 1]])
def test_a_part_holds_few_runs_however_long_the_pieces_are(sizes: list[int]):
    chance, tally = random.Random(1), Tally(np.array([1]))
    for size in itertools.islice(itertools.cycle(sizes), 3000):
        tally.add(keys_of([(0, chance.randrange(HASHES)) for _ in range(size)]))
    turns = PARTS + 1  # a part gets as many runs between two of its turns
    assert max(len(runs) for runs in tally._parts) <= turns + np.log2(tally.pairs)


def test_pairs_that_come_again_and_again_take_little_more_memory():
    chance = random.Random(1)
    keys = keys_of([(0, chance.randrange(HASHES)) for _ in range(20_000)])
    tally = Tally(np.array([1]))
    for number in range(400):
        part = number % 10
        tally.add(keys[part * 2000 : part * 2000 + 2000])
        assert tally.pairs <= 1.5 * len(keys) + PARTS * 2000
    assert tally.counts().tolist() == [20_000]


def test_a_large_tally_takes_less_than_24_bytes_a_pair_at_its_peak():
    chance, count = np.random.default_rng(1), 500_000
    tally = Tally(np.ones(10, np.int64))
    tracemalloc.start()
    try:
        for _ in range(0, count, 5000):
            tally.add(pack(chance.integers(0, 10, 5000), chance.integers(0, HASHES, 5000, np.uint64)))
        tally.counts()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * count


def test_no_addition_merges_more_than_one_part_of_a_large_tally(monkeypatch: pytest.MonkeyPatch):
    merged: list[int] = []
    merge = Tally._merge_last

    def watched(self: Tally, runs: list[np.ndarray], count: int) -> None:
        merged[-1] += sum(map(len, runs[-count:])) if count > 1 else 0
        merge(self, runs, count)

    monkeypatch.setattr(Tally, "_merge_last", watched)
    chance, tally = np.random.default_rng(1), Tally(np.array([1]))
    for _ in range(400):
        merged.append(0)
        tally.add(pack(np.zeros(600, int), chance.integers(0, HASHES, 600, np.uint64)))
    assert max(merged) <= 1.1 * tally.pairs / PARTS
    assert sum(merged) <= 12 * tally.pairs, "and each key is merged a few times only"
