"""The configuration topic on Kafka: its versions are read, followed, and published one after the other.

All records stand on partition 0. A version is written in one transaction of a producer that whoever applies a
configuration shares with all others who do: the one that starts later fences the earlier, and reads the topic then. So
two versions never have one number, and nobody replaces a version that he has not seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiokafka import AIOKafkaProducer, TopicPartition

from stream_svt.errors import BrokerError, ConfigError, Problem, StreamSvtError
from stream_svt.protocol.configuration import CURRENT, Bundle, Current, Version, Versions, records
from stream_svt.protocol.controls import Verify, trust_the_topic
from stream_svt.protocol.sealing import RecordContext
from stream_svt.service.config import Config
from stream_svt.service.control import id_of
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    Cluster,
    Fenced,
    deadline,
    partition_counts,
    read_partition,
    started,
)
from stream_svt.service.signatures import Verifier
from stream_svt.service.topology import unseen

log = logging.getLogger(__name__)

PARTITION: Final = 0
FOLLOW_WAIT: Final = 1.0
"""Seconds that a fetch waits for another version."""
BACKOFF: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds before the topic is read again after an error."""

Sign = Callable[[bytes], list[tuple[str, bytes]]]
"""Returns the headers of a record `current` with this content."""


class Overtaken(StreamSvtError):
    """Somebody else applied a configuration meanwhile; nothing was changed."""


def sign_nothing(content: bytes) -> list[tuple[str, bytes]]:
    """Return no headers."""
    del content
    return []


async def verifier(config: Config, cluster: Cluster) -> Verify:
    """Return what tells which versions to follow: where commands must be signed, versions must be, too.

    Raises:
        BrokerError: The cluster's id cannot be asked for.
    """
    if not config.control.required:
        return trust_the_topic
    return Verifier(place_of(config, await id_of(cluster)), config.command_keys)


def place_of(config: Config, cluster_id: str) -> RecordContext:
    """Return what a version's signature binds beside its content."""
    return RecordContext(cluster_id, config.spec.application, config.topics.config, PARTITION)


async def read_versions(cluster: Cluster, topic: str, verify: Verify = trust_the_topic) -> Versions:
    """Return what the configuration topic shows.

    Raises:
        BrokerError: It cannot be read.
    """
    versions = Versions(verify)
    doing = f"reading configuration topic {topic!r}"
    async with started(cluster.reader(), doing) as reader:
        async for found in read_partition(reader, topic, PARTITION, None, doing):
            for record in found:
                versions.take(record)
    return versions


def newest(versions: Versions, topic: str) -> Version | None:
    """Return the version applied last, None where none was.

    Raises:
        ConfigError: What the topic shows cannot be used.
    """
    found = versions.newest()
    if isinstance(found, Version):
        return found
    if versions.current is None:
        return None
    why = found or "parts of it are missing"
    raise ConfigError([Problem(0, "", f"the version applied last cannot be used: {why}")], f"topic {topic!r}")


async def publish(
    cluster: Cluster,
    application: str,
    topic: str,
    bundle: Bundle,
    *,
    before: Current | None,
    above: int = 0,
    verify: Verify = trust_the_topic,
    sign: Sign = sign_nothing,
) -> Version:
    """Write the next version, and return it.

    Args:
        before: The version that it is to follow, None for the first one.
        above: Its number is larger than this one.

    Raises:
        Overtaken: Another version is there by now.
        BrokerError: The brokers refuse; whether the version was written is not known then.
    """
    doing = f"writing configuration topic {topic!r}"
    try:
        async with started(cluster.producer(f"{application}-config"), doing, "WRITE") as producer:
            known = (await read_versions(cluster, topic, verify)).current
            if known != before:
                there = "no version" if known is None else f"version {known.number}"
                raise Overtaken(
                    f"somebody else applied a configuration: {there} is there now. Nothing was changed; look at the "
                    "difference again"
                )
            version = Version(max(above, 0 if before is None else before.number) + 1, bundle)
            async with deadline(START_DEADLINE, doing, "WRITE"):
                await _write(producer, topic, version, before, sign)
    except Fenced:
        raise Overtaken(
            "somebody else is applying a configuration at this moment. Nothing was changed; look at the difference "
            "again"
        ) from None
    return version


async def _write(
    producer: AIOKafkaProducer, topic: str, version: Version, before: Current | None, sign: Sign
) -> None:
    await producer.begin_transaction()
    sent = [
        await producer.send(
            topic,
            value,
            key=key,
            partition=PARTITION,
            headers=sign(value) if key == CURRENT and value is not None else [],
        )
        for key, value in records(version, before)
    ]
    for result in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
    await producer.commit_transaction()


async def follow(config: Config, cluster: Cluster) -> AsyncIterator[Version]:
    """Yield the version applied last, then every newer one, for ever; errors are logged and pass."""
    topic = config.topics.config
    known, failures, said = (0, ""), 0, ""
    while True:
        try:
            versions = Versions(await verifier(config, cluster), known)
            async for version in _follow(cluster, topic, versions):
                failures, said = 0, ""
                known = (version.number, version.digest)
                yield version
        except (BrokerError, ConfigError) as error:
            if str(error) != said:
                said = str(error)
                log.warning("event=configuration_unread error=%r", said)
            await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1


async def _follow(cluster: Cluster, topic: str, versions: Versions) -> AsyncIterator[Version]:
    place = TopicPartition(topic, PARTITION)
    doing = f"reading configuration topic {topic!r}"
    refused, last = None, versions.known
    if topic not in await partition_counts(cluster, doing):
        message = f"{unseen(topic, 'READ')}; 'stream-svt apply -c FILE --create-topics' creates it"
        raise ConfigError([Problem(0, "topics.config", message)])
    async with started(cluster.reader(), doing) as reader:
        async with deadline(CALL_DEADLINE, doing):
            reader.assign([place])
            await reader.seek_to_beginning(place)
        while True:
            async with deadline(CALL_DEADLINE + FOLLOW_WAIT, doing):
                end = (await reader.end_offsets([place]))[place]
                found = await reader.getmany(place, timeout_ms=int(FOLLOW_WAIT * 1000))
                position = await reader.position(place)
            for record in found.get(place, ()):
                versions.take(record)
            if versions.refused != refused and (refused := versions.refused) is not None:
                log.critical("event=configuration_refused topic=%s error=%r", topic, refused)
            if position < end:  # a version counts as a whole, and of several the last
                continue
            version = newest(versions, topic) if versions.current is not None else None
            if version is not None and (version.number, version.digest) != last:
                last = (version.number, version.digest)
                yield version
