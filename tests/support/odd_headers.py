"""A producer of records with header names that are no UTF-8: Kafka takes any bytes."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

BYTES = b"\xff\xfe"
CODECS = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCH = 50
"""Records of a batch."""


class Odd(str):
    """A name that is encoded as bytes which are no text."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        del encoding, errors
        return BYTES


async def send_mixed(
    servers: str, topic: str, records: list[tuple[bytes, bool]], *, key: bytes, compression: str | None = None
) -> None:
    """Send records to partition 0, in batches; those marked have an odd header."""
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", max_batch_size=1 << 20) as producer:
        for start in range(0, len(records), BATCH):
            batch: Any = producer.create_batch()
            # The compiled one takes no text that is none.
            batch._builder = _DefaultRecordBatchBuilderPy(2, CODECS[compression], 0, -1, -1, 0, 1 << 20)
            for value, odd in records[start : start + BATCH]:
                headers = [(Odd("x"), b"1"), ("content-type", b"application/json")] if odd else []
                assert batch.append(timestamp=None, key=key, value=value, headers=headers) is not None
            batch.close()
            await (await producer.send_batch(batch, topic, partition=0))
