"""Numbers of datasets by record key: every key finds its own dataset, whatever its hash, and no other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.columns.strings import KeyedHash
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.queries import dataset_index
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import load_spec
from tests.support.query_records import AT_HOME_NAMES, NAMES, OWN
from tests.support.query_records import HOMES as FOUR_HOMES

HOMES = Partitioning(1, "murmur2")


def numbers(
    index: DatasetIndex, keys: Iterable[bytes | None], behind: bytes = b"", singles: int = -1
) -> list[int]:
    """Return the numbers of keys that stand side by side in a buffer."""
    parts = [*keys]
    length = np.array([-1 if key is None else len(key) for key in parts], np.int64)
    start = np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_index, "SINGLES", singles)
        return index.numbers(b"".join([key or b"" for key in parts]) + behind, start, length).tolist()


names = st.text(min_size=1, max_size=40) | st.sampled_from(
    ["a", "a\0", "a" * 8, "a" * 9, "a" * 16, "a" * 200]
)
other_keys = st.none() | st.binary(max_size=20) | st.sampled_from([b"a\0\0", b"a" * 7, b"a" * 15 + b"b"])


@given(st.lists(names, unique=True, max_size=60), st.lists(other_keys, max_size=20), st.binary(max_size=9))
def test_a_key_finds_its_dataset_and_no_other(declared, others, behind):
    index = DatasetIndex(declared, partition=0, partitioning=HOMES)
    expected = {name.encode(): number for number, name in enumerate(declared)}
    keys = [*expected, *others, *expected]
    assert numbers(index, keys, behind) == [-1 if key is None else expected.get(key, -2) for key in keys]
    assert [index.number(key) for key in keys] == numbers(index, keys, behind)


@pytest.mark.parametrize("hashed", [0, 7, 2**64 - 1])
def test_names_with_equal_hashes_are_told_apart(monkeypatch, hashed):
    monkeypatch.setattr(
        KeyedHash, "of_slices", lambda _, __, start, ___: np.full(len(start), hashed, dtype=np.uint64)
    )
    monkeypatch.setattr(KeyedHash, "of", lambda *_: hashed)
    declared = [f"shop-{number}" for number in range(50)]
    index = DatasetIndex(declared, partition=0, partitioning=HOMES)
    assert numbers(index, [name.encode() for name in declared]) == [*range(50)]
    assert numbers(index, [b"shop-50", None, b"shop-"]) == [-2, -1, -2]
    assert numbers(index, [b"shop-49", b"shop-50", b"shop-"], singles=9) == [49, -2, -2]


def test_datasets_that_are_added_in_slices_keep_their_numbers(monkeypatch):
    monkeypatch.setattr(dataset_index, "NAMES_AT_ONCE", 100)
    index = DatasetIndex((), partition=0, partitioning=HOMES)
    keys = [b"shop-%d" % number for number in range(1050)]
    for slices, _ in enumerate(index.fill_in_slices(key.decode() for key in keys), start=1):
        known = min(100 * slices, 1050)
        assert numbers(index, keys) == [*range(known), *[-2] * (1050 - known)]
    assert (slices, len(index)) == (11, 1050)


def test_few_keys_need_no_arrays_of_hashes(monkeypatch):
    index = DatasetIndex(["a", "b"], partition=0, partitioning=HOMES)
    monkeypatch.setattr(KeyedHash, "of_slices", lambda *_: pytest.fail("arrays were made"))
    assert numbers(index, [b"b", None, b"?", b"a"], singles=4) == [1, -1, -2, 0]


@pytest.mark.parametrize("singles", [-1, 9])
def test_of_a_key_longer_than_all_names_no_more_is_hashed_than_of_a_name(monkeypatch, singles):
    index = DatasetIndex(["shop-1", "shop-12"], partition=0, partitioning=HOMES)
    hashed: list[int] = []
    many, one = KeyedHash.of_slices, KeyedHash.of
    monkeypatch.setattr(
        KeyedHash, "of_slices", lambda h, b, s, length: (hashed.extend(length), many(h, b, s, length))[1]
    )
    monkeypatch.setattr(KeyedHash, "of", lambda h, key: (hashed.append(len(key)), one(h, key))[1])
    assert numbers(index, [b"shop-12" * 1000, b"shop-12", b"shop-123"], singles=singles) == [-2, 1, -2]
    assert hashed == [7, 7, 7]


def _misrouted(*keys: bytes, caplog: pytest.LogCaptureFixture) -> tuple[bool, int]:
    """Return whether the other partitioner explains these keys on the own partition, and how often that was logged."""
    caplog.clear()
    spec = load_spec(SPEC.format(names=", ".join(NAMES)))
    index = DatasetIndex(AT_HOME_NAMES, partition=OWN, partitioning=FOUR_HOMES, spec=spec)
    assert {index.number(key) for key in keys} == {-3}
    return index.follows_other_partitioner, len(caplog.records)


def test_misrouted_keys_show_the_other_partitioner_only_if_it_explains_all_that_are_declared(caplog) -> None:
    away = [name.encode() for name in NAMES if name not in AT_HOME_NAMES]
    explained = [key for key in away if FOUR_HOMES.other.of(key) == OWN]
    others = [key for key in away if FOUR_HOMES.other.of(key) != OWN]
    private = next(
        key
        for key in (b"private-%d" % number for number in range(999))
        if FOUR_HOMES.of(key) != OWN and FOUR_HOMES.other.of(key) == OWN
    )
    assert _misrouted(*explained, caplog=caplog) == (True, 1)
    assert _misrouted(*explained, *others, caplog=caplog) == (False, 1)
    assert _misrouted(*others, *explained, caplog=caplog) == (False, 0)
    assert _misrouted(private, caplog=caplog) == (False, 0)
    assert _misrouted(private, explained[0], private, caplog=caplog) == (True, 1)
    assert "private" not in caplog.text


SPEC = """
application: shop
datasets: [{{names: [{names}], limit: 4, unit: one basket}}]
monitors:
  - {{name: hot, topic: t, epsilon: 1, cutoff: 10, sensitivity: 1, bounds: [0, 9], threshold: 5, expected_queries: 9}}
"""
