"""The partition of a key by Kafka's default partitioner."""

from __future__ import annotations

from stream_svt.service.homes import Homes


def partition_of(key: bytes, partitions: int) -> int:
    return Homes(partitions, "murmur2").of(key)
