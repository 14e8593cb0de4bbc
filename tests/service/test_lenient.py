"""What aiokafka cannot read is told from what is broken, and read as it is."""

from __future__ import annotations

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    _DefaultRecordBatchBuilderPy,
    _DefaultRecordBatchPy,
)

from stream_svt.lenient import _about_text, _Batch, _Batches
from tests.support.odd_headers import Odd


def batch(*names: str, codec: int = 0) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 1 << 20)
    for offset, name in enumerate(names):
        builder.append(
            offset, None, key=b"a", value=b"%d" % offset, headers=[(name, b"\xff"), ("empty", None)]
        )
    return bytes(builder.build())


@pytest.mark.parametrize("codec", range(5))
def test_odd_names_have_replacement_characters_and_nothing_else_changes(codec: int) -> None:
    content = batch("good", Odd("x"), "later", codec=codec)
    batches = _Batches(content + batch("next", codec=codec))
    found = []
    while batches.has_next():
        part = batches.next_batch()
        assert part.validate_crc()
        found += [(record.value, record.key, list(record.headers)) for record in part]
    names = ["good", "\ufffd\ufffd", "later", "next"]
    values = [b"0", b"1", b"2", b"0"]
    assert found == [
        (value, b"a", [(name, b"\xff"), ("empty", None)]) for value, name in zip(values, names, strict=True)
    ]


@pytest.mark.parametrize("reader", [DefaultRecordBatch, _DefaultRecordBatchPy])
def test_both_ways_in_which_aiokafka_fails_are_recognised(reader) -> None:
    with pytest.raises((UnicodeDecodeError, CorruptRecordException)) as failed:
        list(reader(batch("good", Odd("x"))))
    assert _about_text(failed.value)


def test_what_is_corrupt_is_no_odd_name() -> None:
    assert not _about_text(CorruptRecordException("Invalid CRC"))
    content = bytearray(batch("good"))
    content[-30] ^= 0x40
    assert not _Batch(bytes(content)).validate_crc()
    cut = batch("good")
    with pytest.raises(CorruptRecordException) as failed:
        list(_DefaultRecordBatchPy(cut[:-5]))
    assert not _about_text(failed.value)
