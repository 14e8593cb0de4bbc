"""The partition of a key by Kafka's default partitioner."""

from __future__ import annotations

from stream_svt.kafka.partitioning import Partitioning


def partition_of(key: bytes, partitions: int) -> int:
    return Partitioning(partitions, "murmur2").of(key)
