"""Homes are those that the clients' own partitioners choose."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import DefaultPartitioner

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.settings.sections import Partitioner

_LETTERS = "abcxyzäß€0189-_."
_RNG = random.Random(7)
NAMES = ["".join(_RNG.choice(_LETTERS) for _ in range(length)) for length in range(1, 41) for _ in range(20)]
"""Of every length up to 40 letters, some of several bytes."""


@pytest.mark.parametrize("partitions", [1, 3, 64])
@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_the_homes_of_many_names_are_the_home_of_each(partitioner: Partitioner, partitions: int) -> None:
    partitioning = Partitioning(partitions, partitioner)
    assert partitioning.of_names(NAMES).tolist() == [partitioning.of(name.encode()) for name in NAMES]
    assert partitioning.of_names([]).tolist() == []


@pytest.mark.parametrize("partitions", [1, 3, 64])
def test_murmur2_is_what_a_default_producer_of_aiokafka_chooses(partitions: int) -> None:
    partition, partitioning, known = (
        DefaultPartitioner(),
        Partitioning(partitions, "murmur2"),
        list(range(partitions)),
    )
    assert [partitioning.of(name.encode()) for name in NAMES] == [
        partition(name.encode(), known, known) for name in NAMES
    ]


@pytest.mark.parametrize(("key", "expected"), [(b"123456789", 0xCBF43926), (b"", 0)])
def test_crc32_is_that_of_ieee_802_3(key: bytes, expected: int) -> None:
    assert Partitioning(1 << 32, "crc32").of(key) == expected


@pytest.mark.parametrize(
    ("own", "cause", "remedies"),
    [
        ("murmur2", "partitioned with CRC32", ("partitioner=murmur2_random", "topics.partitioner: crc32")),
        (
            "crc32",
            "partitioned with murmur2",
            ("partitioner=consistent_random", "topics.partitioner: murmur2"),
        ),
    ],
)
def test_the_message_on_misrouted_records_names_the_partitioner_and_both_remedies(own, cause, remedies):
    said = Partitioning(4, own).misrouted()
    assert cause in said
    assert all(remedy in said for remedy in remedies)
