"""An independent reader of Kafka's log segments, for what no consumer shows: aborted records and markers.

Reads the ``.log`` files of an embedded broker (record batches of format 2). With it a test can compare when
and where an alert was appended with the COMMIT marker of the transaction that charged it, by one clock.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

_BATCH = struct.Struct(">qiibIhiqqqhii")
_DECODERS = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record as it lies in the log.

    ``timestamp`` is in milliseconds; ``append_time`` says that it is the broker's clock at the append, which
    for a marker it always is. ``marker`` is set on control records, which end a transaction, and only there.
    """

    offset: int
    timestamp: int
    append_time: bool
    producer_id: int
    producer_epoch: int
    transactional: bool
    marker: Literal["commit", "abort"] | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_partition(data_dir: Path, topic: str, partition: int = 0) -> list[LogRecord]:
    """Return every record of a partition in order, committed or not, with the markers between them."""
    segments = sorted((data_dir / f"{topic}-{partition}").glob("*.log"))
    if not segments:
        raise FileNotFoundError(f"no log segment of {topic}-{partition} in {data_dir}")
    return [record for segment in segments for record in parse_segment(segment.read_bytes())]


async def read_ended(data_dir: Path, topic: str, partition: int = 0) -> list[LogRecord]:
    """Return every record of a partition once all its transactions are ended.

    A commit returns to the client before its markers are written, so a reader may come too early.
    """
    async with asyncio.timeout(10):
        while None in endings(records := read_partition(data_dir, topic, partition)).values():
            await asyncio.sleep(0.02)
    return records


def parse_segment(data: bytes) -> Iterator[LogRecord]:
    """Parse one segment; a batch that is still being written at its end is left out."""
    at = 0
    while at + _BATCH.size <= len(data):
        (base, length, _, magic, _, attributes, _, first_time, max_time, producer, epoch, _, count) = (
            _BATCH.unpack_from(data, at)
        )
        end = at + 12 + length
        if end > len(data):
            return
        if magic != 2:
            raise ValueError(f"record batch at byte {at} has format {magic}, expected 2")
        payload = data[at + _BATCH.size : end]
        if decode := _DECODERS.get(attributes & 7):
            payload = decode(payload)
        control, append_time = bool(attributes & 32), bool(attributes & 8)
        fields = _Fields(payload)
        for _ in range(count):
            delta, offset_delta, key, value, headers = fields.record()
            yield LogRecord(
                offset=base + offset_delta,
                timestamp=max_time if append_time else first_time + delta,
                append_time=append_time or control,
                producer_id=producer,
                producer_epoch=epoch,
                transactional=bool(attributes & 16),
                marker=_marker(key) if control else None,
                key=key,
                value=value,
                headers=headers,
            )
        at = end


def endings(records: list[LogRecord]) -> dict[int, LogRecord | None]:
    """Map the offset of each transactional record to the marker that ends its transaction.

    None where the transaction is still open. A producer has one open transaction at a time, so its marker is
    the next one of its id in the same partition (a takeover raises the epoch and keeps the id).
    """
    ends: dict[int, LogRecord | None] = {}
    open_offsets: dict[int, list[int]] = {}
    for record in records:
        if record.marker is not None:
            for offset in open_offsets.pop(record.producer_id, []):
                ends[offset] = record
        elif record.transactional:
            ends[record.offset] = None
            open_offsets.setdefault(record.producer_id, []).append(record.offset)
    return ends


def committed(records: list[LogRecord]) -> list[LogRecord]:
    """Return what a read_committed reader may see: no markers, nothing aborted, nothing still open."""
    kept = {offset for offset, end in endings(records).items() if end is not None and end.marker == "commit"}
    return [
        record
        for record in records
        if record.marker is None and (not record.transactional or record.offset in kept)
    ]


def _marker(key: bytes | None) -> Literal["commit", "abort"] | None:
    kind = struct.unpack_from(">hh", key or b"\0\0\xff\xff")[1]
    return "commit" if kind == 1 else "abort" if kind == 0 else None


class _Fields:
    """Reads the fields of the records inside a batch."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def record(self) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        """Return time delta, offset delta, key, value and headers of the next record."""
        length = self._varint()
        end = self._at + length
        self._at += 1  # attributes, unused
        delta, offset_delta = self._varint(), self._varint()
        key, value = self._bytes(), self._bytes()
        headers = tuple(((self._bytes() or b"").decode(), self._bytes()) for _ in range(self._varint()))
        if self._at != end:
            raise ValueError(f"a record of {length} bytes was read to byte {self._at}, expected {end}")
        return delta, offset_delta, key, value, headers

    def _bytes(self) -> bytes | None:
        length = self._varint()
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at]

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (result >> 1) ^ -(result & 1)
