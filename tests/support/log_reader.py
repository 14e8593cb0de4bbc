"""Reads Kafka's log segments, for what no consumer shows: aborted records and markers.

With it a test can compare when and where an alert was appended with the COMMIT marker of the transaction that charged
it, by one clock: the broker's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aiokafka.record.memory_records import MemoryRecords

MARKERS: dict[int, Literal["commit", "abort"]] = {0: "abort", 1: "commit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record as it lies in the log.

    ``timestamp`` is in milliseconds. ``marker`` is set on control records, which end a transaction, and only there.
    """

    offset: int
    timestamp: int
    producer_id: int
    transactional: bool
    marker: Literal["commit", "abort"] | None
    key: bytes | None
    value: bytes | None


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
    batches = MemoryRecords(data)
    while batches.has_next() and (batch := batches.next_batch()) is not None:
        producer = batch.producer_id
        control, transactional = batch.is_control_batch, batch.is_transactional
        for record in batch:
            yield LogRecord(
                offset=record.offset,
                timestamp=record.timestamp,
                producer_id=producer,
                transactional=transactional,
                marker=MARKERS.get(struct.unpack_from(">hh", record.key)[1]) if control else None,
                key=record.key,
                value=record.value,
            )


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
