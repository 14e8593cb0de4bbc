"""Applies a configuration: compares it with the version applied last, publishes it, waits until every shard has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
from aiokafka import TopicPartition

from stream_svt.errors import ConfigError, Problem
from stream_svt.monitor.released import EventType, Lifecycle, decode
from stream_svt.planning.difference import Difference, difference, limits_changed
from stream_svt.protocol.configuration import FORMAT, Bundle, Current, Version
from stream_svt.service.applied import newest, place_of, publish, read_versions, verifier
from stream_svt.service.assignor import user_data
from stream_svt.service.codec import home
from stream_svt.service.config import Config, spec_of
from stream_svt.service.control import id_of
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    Cluster,
    Member,
    deadline,
    members,
    read_partition,
    started,
)
from stream_svt.service.signatures import SigningKey
from stream_svt.service.topology import require


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration that may be applied.

    Attributes:
        bundle: What is published.
        before: The version that it follows, None where it is the first one.
        is_new: Whether it differs from that.
        difference: What it changes.
        refused: Why the newest record of the topic is not followed, None where it is.
    """

    bundle: Bundle
    before: Current | None
    is_new: bool
    difference: Difference
    refused: str | None


async def propose(config: Config, cluster: Cluster, bundle: Bundle) -> Proposal:
    """Compare a configuration with the version applied last, and with the topics; nothing is changed.

    Raises:
        ConfigError: It cannot be applied.
        BrokerError: The brokers refuse.
    """
    topic = config.topics.config
    await require(config, cluster)
    await _require_readers(config, cluster)
    versions = await read_versions(cluster, topic, await verifier(config, cluster))
    known = newest(versions, topic)
    old = None if known is None else spec_of(known.bundle, f"version {known.number} of the configuration")
    changed = limits_changed(old, config.spec)
    raised = await _raised_limits(config, cluster, changed) if changed else {}
    before = frozenset[str]() if known is None else frozenset(known.bundle.retired)
    found = difference(
        old,
        config.spec,
        config.topics.partitions,
        raised=raised,
        retired=before,
        now_ms=int(time.time() * 1000),
    )
    if found.refused:
        raise ConfigError(list(found.refused), config.source)
    names = {dataset.name for dataset in config.spec.datasets}
    gone = before.union(() if old is None else (one.name for one in old.datasets if one.name not in names))
    bundle = msgspec.structs.replace(bundle, retired=sorted(gone))
    is_new = known is None or known.bundle != bundle
    return Proposal(bundle, versions.current, is_new, found, versions.refused)


async def _require_readers(config: Config, cluster: Cluster) -> None:
    """Refuse where a live worker could not read what is to be applied."""
    older = [one for one in await workers(config, cluster) if user_data(one.user_data).reads < FORMAT]
    if older:
        named = ", ".join(sorted(f"{one.client} at {one.host.lstrip('/')}" for one in older))
        message = (
            f"an older release runs that cannot read this configuration: {named}. Upgrade every worker first; "
            "until then the version applied last stays"
        )
        raise ConfigError([Problem(0, "", message)], f"group {config.spec.application!r}")


async def _raised_limits(config: Config, cluster: Cluster, datasets: list[str]) -> dict[str, int]:
    """Return the newest limit, in ledger units, of those datasets whose limit an operator has raised."""
    found: dict[str, int] = {}
    kinds = {dataset.name: dataset.kind for dataset in config.spec.datasets}
    shards = {home(name.encode(), config.topics.partitions) for name in datasets}
    doing = f"looking for raised limits on alert topic {config.topics.alerts!r}"
    async with started(cluster.reader(), doing) as reader:
        for shard in sorted(shards):
            async for records in read_partition(reader, config.topics.alerts, shard, None, doing):
                for record in records:
                    told = _told(record.value)
                    if told is None or told[0] != EventType.BUDGET_RAISED or told[1].account is None:
                        continue
                    name, limit = told[1].dataset, told[1].account.limit
                    if name in kinds:
                        found[name] = round(limit * kinds[name].units)
    return found


async def commit(
    config: Config, cluster: Cluster, proposal: Proposal, *, above: int = 0, key: SigningKey | None = None
) -> Version:
    """Publish a proposal as the next version, and return that; as `publish`."""
    place = None if key is None else place_of(config, await id_of(cluster))

    def sign(content: bytes) -> list[tuple[str, bytes]]:
        return [] if key is None or place is None else [key.header(place, content)]

    return await publish(
        cluster,
        config.spec.application,
        config.topics.config,
        proposal.bundle,
        before=proposal.before,
        above=above,
        verify=await verifier(config, cluster),
        sign=sign,
    )


async def workers(config: Config, cluster: Cluster) -> list[Member]:
    """Return the members of the application's group; a worker that waits for a first version is none.

    Raises:
        BrokerError: The brokers do not say.
    """
    name = config.spec.application
    return await members(cluster, name, f"looking at group {name!r}")


async def ends_of_alerts(config: Config, cluster: Cluster) -> dict[int, int]:
    """Return where the alert partition of each shard ends.

    Raises:
        BrokerError: The brokers do not say.
    """
    doing = f"looking at the end of alert topic {config.topics.alerts!r}"
    places = [TopicPartition(config.topics.alerts, shard) for shard in range(config.topics.partitions)]
    async with started(cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        return {place.partition: end for place, end in (await reader.end_offsets(places)).items()}


async def adoptions(
    config: Config, cluster: Cluster, number: int, starts: dict[int, int], patience: float
) -> AsyncIterator[int]:
    """Yield each shard that has adopted a version, or a newer one, as that is read; end after ``patience`` seconds.

    Raises:
        BrokerError: The alert topic cannot be read.
    """
    doing = f"reading alert topic {config.topics.alerts!r}"
    left, now = set(starts), asyncio.get_running_loop().time
    until = now() + patience
    async with started(cluster.reader(), doing) as reader:
        places = [TopicPartition(config.topics.alerts, shard) for shard in starts]
        reader.assign(places)
        for place in places:
            reader.seek(place, starts[place.partition])
        while left and (seconds := until - now()) > 0:
            async with deadline(seconds + CALL_DEADLINE, doing):
                batches = await reader.getmany(timeout_ms=int(1000 * min(seconds, 1)))
            for record in (record for records in batches.values() for record in records):
                if record.partition in left and _adopts(record.value) >= number:
                    left.discard(record.partition)
                    yield record.partition


def _adopts(record: bytes | None) -> int:
    """Return the number of the version that an event says was adopted, 0 for any other record."""
    told = _told(record)
    number = told[1].detail.get("number") if told and told[0] == EventType.CONFIGURATION_ADOPTED else 0
    return number if isinstance(number, int) else 0


def _told(record: bytes | None) -> tuple[str, Lifecycle] | None:
    """Return kind and content of an event that is no alert, None for any other record."""
    try:
        envelope, data = decode(record or b"")
    except ValueError:
        return None
    return (envelope.type, data) if isinstance(data, Lifecycle) else None
