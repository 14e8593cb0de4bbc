"""Reads the ids of topics, which aiokafka does not request: a topic that is created again has another id."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any
from uuid import UUID

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_ANY = UUID(int=0)
_TEXT, _NUMBERS, _TAGS = CompactString("utf-8"), CompactArray(Int32), ("tags", TaggedFields)


class _Id(AbstractType):  # type: ignore[misc]  # aiokafka has no types
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 11
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("id", _Id),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", _NUMBERS),
                        ("isr", _NUMBERS),
                        ("offline", _NUMBERS),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _MetadataRequest(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, FLEXIBLE_VERSION = 3, 11, True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _Id), ("name", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        _TAGS,
    )


class _AskMetadata(Request[_MetadataRequest]):  # type: ignore[misc]
    """Metadata in the first version of Kafka 2.8, which has topic ids and is understood by all later brokers."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:  # noqa: ANN401
        return request_struct_class([(_ANY, topic, {}) for topic in self._topics], False, False, {})


async def topic_ids(client: AIOKafkaClient, topics: Sequence[str]) -> dict[str, str]:
    """Return the id of each topic that a broker shows; none for brokers without ids, before Kafka 2.8."""
    try:
        answer = await client.send(client.get_random_node(), _AskMetadata(topics))
    except NotImplementedError:
        return {}
    found = ((name, number) for code, name, number, *_ in answer.topics if not code)
    return {name: str(number) for name, number in found if number != _ANY}
