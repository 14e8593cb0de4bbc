"""Header names that are no text are read with replacement characters, and nothing else of a batch changes."""

from __future__ import annotations

import aiokafka.consumer.fetcher
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record import memory_records
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    _DefaultRecordBatchBuilderPy,
    _DefaultRecordBatchPy,
)

from stream_svt.aiokafka_fixes import read_every_header_name
from tests.support.records import Odd

PLACE = TopicPartition("counts", 0)


def batch(*names: str, codec: int = 0, first: int = 0) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 1 << 20)
    for offset, name in enumerate(names):
        builder.append(
            offset, None, key=b"a", value=b"%d" % offset, headers=[(name, b"\xff"), ("empty", None)]
        )
    return first.to_bytes(8, "big") + bytes(builder.build())[8:]


def read(content: bytes, offset: int = 0) -> list[tuple[object, ...]]:
    """Read an answer as a consumer does that fetched from an offset."""
    read_every_header_name()
    batches = aiokafka.consumer.fetcher.MemoryRecords(content)
    records = PartitionRecords(PLACE, batches, [], offset, None, None, True, 1)
    found = [(record.offset, record.key, record.value, *record.headers) for record in records]
    assert records.next_fetch_offset > max((one[0] for one in found), default=-1)
    return found


@pytest.mark.parametrize("compiled", [DefaultRecordBatch, _DefaultRecordBatchPy])
@pytest.mark.parametrize("codec", range(5))
def test_odd_names_have_replacement_characters_and_nothing_else_changes(
    monkeypatch, codec: int, compiled: type
) -> None:
    monkeypatch.setattr(memory_records, "DefaultRecordBatch", compiled)
    names = ["good", Odd("x"), "later", Odd("x"), "good"]
    content = batch(*names, codec=codec) + batch("next", codec=codec, first=5)
    shown = ["\ufffd\ufffd" if isinstance(name, Odd) else name for name in names]
    wanted = [
        (offset, b"a", b"%d" % (offset % 5), (name, b"\xff"), ("empty", None))
        for offset, name in enumerate([*shown, "next"])
    ]
    assert read(content) == wanted
    assert read(content, offset=3) == wanted[3:]


@pytest.mark.parametrize("compiled", [DefaultRecordBatch, _DefaultRecordBatchPy])
def test_what_is_corrupt_is_no_odd_name(monkeypatch, compiled: type) -> None:
    monkeypatch.setattr(memory_records, "DefaultRecordBatch", compiled)
    flipped = bytearray(batch("good", Odd("x")))
    flipped[-30] ^= 0x40
    with pytest.raises(CorruptRecordException):
        read(bytes(flipped))
