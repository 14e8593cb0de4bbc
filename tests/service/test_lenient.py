"""What aiokafka cannot read is told from what is broken, and read as it is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import CorruptRecordException, OffsetOutOfRangeError, TopicAuthorizationFailedError
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    _DefaultRecordBatchBuilderPy,
    _DefaultRecordBatchPy,
)

from stream_svt import header_decoding
from stream_svt.header_decoding import _about_text, _Batch, _Batches
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


PLACE = TopicPartition("counts", 0)


class Consumer:
    """A client that fails on what it read; its broker answers a request with one batch, or an error."""

    def __init__(self, content: bytes = b"", error: int = 0, *, at: int = 0) -> None:
        self._subscription = SubscriptionState()
        self._subscription.assign_from_user([PLACE])
        self.seek(PLACE, at)
        settings = {"_fetch_min_bytes": 1, "_fetch_max_bytes": 1, "_max_partition_fetch_bytes": 1}
        self._fetcher = SimpleNamespace(**settings, _isolation_level=1, _check_crcs=True)
        self._client = SimpleNamespace(
            cluster=SimpleNamespace(leader_for_partition=lambda place: 1), send=self.send
        )
        self.answer = (0, error, 0, 0, [], content)

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._subscription.seek(place, offset)

    async def getmany(self, *places: TopicPartition, **options: object) -> None:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "x")

    async def send(self, node: int, request: object) -> SimpleNamespace:
        await asyncio.sleep(0)
        return SimpleNamespace(API_VERSION=4, topics=[("counts", [self.answer])])


@pytest.mark.parametrize("at", [0, 2_500])
async def test_many_neighbours_are_parsed_in_pieces(monkeypatch, at: int) -> None:
    consumer = Consumer(batch(*["good"] * 3_999, Odd("x")), at=at)
    parsed, read = [0], _Batch._read_msg

    def count(self):
        parsed[-1] += 1
        return read(self)

    async def give_way() -> None:
        parsed.append(0)

    monkeypatch.setattr(_Batch, "_read_msg", count)
    found = await header_decoding.getmany(consumer, PLACE, max_records=1_200, give_way=give_way)
    assert [record.offset for record in found[PLACE]] == list(range(at, at + 1_200))
    assert sum(parsed) == at + 1_200
    assert max(parsed) <= header_decoding.PARSED_AT_ONCE
    assert header_decoding.state_of(consumer, PLACE).position == at + 1_200


async def test_what_was_moved_while_neighbours_were_parsed_is_not_returned() -> None:
    consumer = Consumer(batch(*["good"] * 1_500, Odd("x")))

    async def give_way() -> None:
        consumer.seek(PLACE, 7)

    assert await header_decoding.getmany(consumer, PLACE, give_way=give_way) == {}
    assert header_decoding.state_of(consumer, PLACE).position == 7


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [(1, OffsetOutOfRangeError, {PLACE: 5}), (29, TopicAuthorizationFailedError, "counts")],
)
async def test_what_the_broker_refuses_is_told_as_the_client_tells_it(code: int, kind, told: object) -> None:
    with pytest.raises(kind) as refused:
        await header_decoding.getmany(Consumer(error=code, at=5), PLACE)
    assert refused.value.args == (told,)
