"""Partitioning: the partition that a producer's partitioner chooses for the records of a dataset, and so its shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from aiokafka.partitioner import murmur2
from numpy.typing import NDArray

from stream_svt.settings.sections import Partitioner

PRODUCERS: Final[dict[Partitioner, str]] = {
    "murmur2": "murmur2, the default of Kafka's Java client",
    "crc32": "CRC32, the default of librdkafka",
}
"""Description of each partitioner."""
PRODUCER_SETTING: Final[dict[Partitioner, str]] = {
    "murmur2": "partitioner=murmur2_random",
    "crc32": "partitioner=consistent_random",
}
"""The setting of a producer on librdkafka that chooses each partitioner."""


class Partitioning(NamedTuple):
    """The partition of each record key: fixed for the life of an application, since a dataset's ledger is there."""

    partitions: int
    partitioner: Partitioner

    def of(self, key: bytes) -> int:
        """Return the partition of a record key."""
        hashed = crc32(key) if self.partitioner == "crc32" else murmur2(key) & 0x7FFFFFFF
        return int(hashed % self.partitions)

    def of_names(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the partition of each dataset: `of`, for many names at once."""
        keys = [name.encode() for name in names]
        if self.partitioner == "crc32":
            return np.fromiter(map(crc32, keys), np.int64, len(keys)) % self.partitions
        hashes = np.zeros(len(keys), dtype=np.int64)
        by_length: dict[int, list[int]] = {}
        for row, key in enumerate(keys):
            by_length.setdefault(len(key), []).append(row)
        for length, rows in by_length.items():
            text = np.frombuffer(b"".join([keys[row] for row in rows]), dtype=np.uint8)
            hashes[rows] = _murmur2(text.reshape(len(rows), length)) & 0x7FFFFFFF
        return hashes % self.partitions

    @property
    def other(self) -> Partitioning:
        """The same number of partitions with the other partitioner."""
        return self._replace(partitioner="murmur2" if self.partitioner == "crc32" else "crc32")

    def misrouted(self) -> str:
        """Return cause and remedy for records on the partitions of the other partitioner."""
        other = self.other.partitioner
        return (
            f"these records were partitioned with {PRODUCERS[other]}: set {PRODUCER_SETTING[self.partitioner]} in "
            f"the producer, or topics.partitioner: {other} before the application's first start"
        )


def _murmur2(text: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return Kafka's hash of each row."""
    length = text.shape[1]
    factor, shift = np.uint32(0x5BD1E995), np.uint32(24)
    hashes = np.full(len(text), (0x9747B28C ^ length) & 0xFFFFFFFF, dtype=np.uint32)
    words = np.ascontiguousarray(text[:, : length & ~3]).view("<u4")
    for column in range(words.shape[1]):
        word = words[:, column] * factor
        word ^= word >> shift
        hashes *= factor
        hashes ^= word * factor
    rest = text[:, length & ~3 :].astype(np.uint32)
    for column in range(rest.shape[1]):
        hashes ^= rest[:, column] << np.uint32(8 * column)
    if rest.shape[1]:
        hashes *= factor
    hashes ^= hashes >> np.uint32(13)
    hashes *= factor
    return hashes ^ (hashes >> np.uint32(15))
