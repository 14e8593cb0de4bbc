"""A reader of one partition that is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition


class Reader:
    """Stands for an `AIOKafkaConsumer` of one partition; None among its values is the marker of a transaction.

    Attributes:
        piece: How many offsets a poll moves on by; ``seconds`` is how long it takes.
        stands: The offset at which every poll returns nothing.
        read: How many offsets were read.
    """

    def __init__(
        self,
        values: Sequence[Any],
        first: int = 0,
        *,
        piece: int = 1_000,
        seconds: float = 0,
        stands: int = -1,
    ) -> None:
        self.values, self.first, self.end = values, first, first + len(values)
        self.piece, self.seconds, self.stands = piece, seconds, stands
        self.read = self.at = 0
        self.assign = lambda places: None
        self._client = self

    async def set_topics(self, topics: Sequence[str]) -> None:
        """Know them already."""

    async def beginning_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.first)

    async def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.end)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.at = offset

    def highwater(self, place: TopicPartition) -> int:
        return self.end

    async def position(self, place: TopicPartition) -> int:
        return self.at

    async def getmany(self, *places: TopicPartition, **options: object) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(self.seconds)
        start = self.at - self.first
        part = [] if self.at == self.stands else self.values[start : start + self.piece]
        self.at += len(part)
        self.read += len(part)
        records = [SimpleNamespace(value=value) for value in part if value is not None]
        return dict.fromkeys(places, records)
