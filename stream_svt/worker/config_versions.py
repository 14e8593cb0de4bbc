"""The configuration topic: follows, parses, compares and publishes the versions of the configuration.

All records are on partition 0. One transaction writes a version. All runs of ``stream-svt apply`` for an application
use the same transactional id. A run that starts later fences the earlier one and then reads the topic. So no two
versions have the same number, and no run replaces a version that it has not read.

Parsing hundreds of thousands of names takes seconds and holds the GIL. So a worker parses a large version in a
subprocess, which returns it in pieces that take a few milliseconds each to load (`parser`). A small version is
parsed in a thread: the start of a subprocess would take longer than the rest of the adoption.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.facts import READ_MOST, read_adopted
from stream_svt.application.signatures import SigningKey
from stream_svt.application.topology import other_partitioner, require, unseen
from stream_svt.errors import BrokerError, ConfigError, Problem, StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.aiokafka_fixes import connections
from stream_svt.kafka.clients import BrokerUnavailable, Cluster, Denied, LoginRefused
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.kafka.topic_ids import topic_ids
from stream_svt.kafka.transactions import NewRecords
from stream_svt.monitor.released import EventType, lifecycle_in
from stream_svt.planning.difference import Difference, difference, limits_changed
from stream_svt.protocol.configuration import (
    CURRENT,
    FORMAT,
    Bundle,
    Current,
    Version,
    Versions,
    digest_of,
    records,
)
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.detection import Held
from stream_svt.wording import SHOWN, named
from stream_svt.worker.group import user_data
from stream_svt.worker.parser import parsed, spec_of
from stream_svt.worker.ports import FETCH_WAIT_MS, context_of, verifier_of
from stream_svt.worker.workload import AppliedWorkload

log = logging.getLogger(__name__)

PARTITION: Final = 0
FOLLOW_WAIT: Final = 1.0
"""Seconds that a fetch waits for a new version."""
RETRY_INTERVAL: Final = 3.0
"""Seconds before the topic is read again after an error."""
ADOPTED_MOST: Final = 20_000
"""Records of the alert topic that are searched for adopted versions if the configuration topic has a version."""
SMALL: Final = 32_768
"""Bytes of a version up to which a thread parses it."""
PARSER_OUTPUT: Final = 4000
"""Largest number of bytes that are logged of the subprocess's standard error."""

_PROGRAM = "from stream_svt.worker.parser import parse; parse()"


class Overtaken(StreamSvtError):
    """Another run applied a configuration meanwhile; this one changed nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. Nothing was changed; look at the difference again")


async def _versions(config: Config, cluster: Cluster, known: tuple[int, str] = (0, "")) -> Versions:
    cluster_id = await kafka.cluster_id_of(cluster) if config.control.keys else ""
    return Versions(verifier_of(config, cluster_id, config.topics.config, PARTITION), known)


async def read_versions(config: Config, cluster: Cluster) -> Versions:
    """Return the versions on the configuration topic."""
    topic, versions = config.topics.config, await _versions(config, cluster)
    doing = f"reading configuration topic {topic!r}"
    async with kafka.started(cluster.reader(), doing) as reader:
        async for record in kafka.read_partition(reader, TopicPartition(topic, PARTITION), None, doing):
            versions.take(record)
    return versions


def newest(versions: Versions, topic: str) -> Version | None:
    """Return the version applied last, or None; raise ConfigError if it cannot be used."""
    version = versions.newest()
    if isinstance(version, Version):
        return version
    if versions.current is None:
        return None
    why = version or "parts of it are missing"
    raise ConfigError([Problem(0, "", f"the version applied last cannot be used: {why}")], f"topic {topic!r}")


async def follow(
    config: Config, cluster: Cluster, on_read: Callable[[int], None] = lambda _: None
) -> AsyncGenerator[Version, None]:
    """Yield the version applied last, then every newer one, without end; errors are logged and retried.

    ``on_read`` is called with the offset below which every version was yielded or replaced.

    Raises:
        BrokerError: The first answer of the brokers refuses the login or the right to read the topic.
    """
    known, logged, is_start = (0, ""), "", True
    while True:
        try:
            versions = await _versions(config, cluster, known)
            async with aclosing(_follow(cluster, config.topics.config, versions, on_read)) as read_now:
                async for version in read_now:
                    logged = ""
                    known = (version.number, version.digest)
                    yield version
        except (BrokerError, ConfigError) as error:
            if is_start and isinstance(error, LoginRefused | Denied):
                raise
            is_start = is_start and not known[0] and isinstance(error, BrokerUnavailable)
            if str(error) != logged:
                logged = str(error)
                log.warning("event=configuration_unread error=%r", logged)
            await asyncio.sleep(RETRY_INTERVAL)


async def _follow(
    cluster: Cluster, topic: str, versions: Versions, on_read: Callable[[int], None]
) -> AsyncGenerator[Version, None]:
    """Yield versions as they are applied; end if the topic was created again."""
    partition = TopicPartition(topic, PARTITION)
    doing = f"reading configuration topic {topic!r}"
    refused, last = None, versions.known
    if topic not in await kafka.partition_counts(cluster, doing):
        message = f"{unseen(topic, 'READ')}; 'stream-svt apply -c FILE --create-topics' creates it"
        raise ConfigError([Problem(0, "topics.config", message)])
    async with kafka.started(cluster.reader(fetch_wait_ms=FETCH_WAIT_MS), doing) as reader:
        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
            reader.assign([partition])
            await reader.seek_to_beginning(partition)
        number: str | None = None
        while True:
            async with kafka.deadline(kafka.CALL_DEADLINE + FOLLOW_WAIT, doing):
                found = (await topic_ids(connections(reader), [topic])).get(topic)
                if number not in (None, found):
                    return  # created again: the caller reads it from its beginning
                number = found
                end = (await reader.end_offsets([partition]))[partition]
                batches = await reader.getmany(partition, timeout_ms=int(FOLLOW_WAIT * 1000))
                position = await reader.position(partition)
            for record in batches.get(partition, ()):
                versions.take(record)
            if versions.refused != refused and (refused := versions.refused) is not None:
                log.critical("event=configuration_refused topic=%s error=%r", topic, refused)
            if position < end:  # yield only complete versions, and only the last of several
                continue
            version = newest(versions, topic)
            if version is not None and (version.number, version.digest) != last:
                last = (version.number, version.digest)
                yield version
            on_read(position)


async def read(version: Version, partitions: int) -> AppliedWorkload:
    """Return the workload of a version; raise ConfigError if it is invalid or its process ended early."""
    source = f"version {version.number} of the configuration"
    content = version.bundle.to_bytes()
    is_small = len(content) <= SMALL
    parse = (
        asyncio.to_thread(parsed, version.bundle, source) if is_small else _parsed_elsewhere(content, source)
    )
    spec, application_hash = await parse
    partitioning = Partitioning(partitions, version.bundle.partitioner)
    return AppliedWorkload(spec, partitioning, (version.number, digest_of(content)), application_hash)


async def _parsed_elsewhere(content: bytes, source: str) -> tuple[ApplicationSpec, str]:
    """Return the specification in the bytes of a bundle and its hash, from a subprocess."""
    command, pipe = (sys.executable, "-P", "-c", _PROGRAM, source), asyncio.subprocess.PIPE
    # It imports the modules of this process, and no others from the working directory.
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=paths)
    try:
        output, said = await process.communicate(content)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if said:
        log.warning("event=parser_output text=%r", said[-PARSER_OUTPUT:].decode(errors="replace"))
    if process.returncode:
        message = f"its parser ended early with exit code {process.returncode}; nothing was changed"
        raise ConfigError([Problem(0, "", message)], source)
    # Written by our own subprocess, through a pipe that no other process has.
    result = pickle.loads(output)  # noqa: S301
    if isinstance(result, ConfigError):
        raise result
    spec, application_hash, pieces = result
    datasets: list[DatasetSpec] = []
    for piece in pieces:
        datasets += pickle.loads(piece)  # noqa: S301
        await asyncio.sleep(0)
    return replace(spec, datasets=tuple(datasets)), application_hash


class Proposal(NamedTuple):
    """A configuration that may be applied, and its difference from the version ``before`` it.

    ``refused`` is why the newest record of the topic is ignored, or None.
    """

    config: Config
    bundle: Bundle
    before: Current | None
    is_new: bool
    difference: Difference
    refused: str | None


async def propose(config: Config, cluster: Cluster, above: int = 0) -> Proposal:
    """Compare a configuration with the version applied last and with the topics; raise ConfigError for problems.

    It also counts as new if the version applied last has no number larger than ``above``.
    """
    await require(config, cluster)
    await _require_readers(config, cluster)
    versions = await read_versions(config, cluster)
    applied = newest(versions, config.topics.config)
    old = declared_in(applied)
    config = config if applied is None else config.holding(Held.by(applied.bundle.files))
    if applied is not None and applied.bundle.partitioner != config.topics.partitioner:
        raise other_partitioner(applied.bundle.partitioner, config)
    change = await changes(config, cluster, applied, old)
    was, now = ({one.name for one in spec.datasets} if spec else set() for spec in (old, config.spec))
    retired = (set() if applied is None else set(applied.bundle.retired)) | was - now
    digests = {} if applied is None else applied.bundle.sources
    for source in config.spec.sources:
        digests = digests | source.digests()
    digests = dict(sorted(digests.items()))
    own = {"retired": sorted(retired), "partitioner": config.topics.partitioner, "sources": digests}
    bundle = msgspec.structs.replace(config.bundle, **own)
    if applied is not None:
        bundle = msgspec.structs.replace(bundle, earlier=applied.bundle.earlier)
    is_new = applied is None or applied.bundle != bundle or applied.number <= above
    if is_new and applied is not None and old is not None:
        lists = {one.name: old.window_list(one) for one in old.sources}
        earlier = applied.histories(lists, int(time.time() * 1000))
        bundle = msgspec.structs.replace(bundle, earlier=earlier)
    comes = applied if applied is not None and not is_new else following(versions.current, bundle, above)
    adopted = await read_adopted(config, cluster, READ_MOST if applied is None else ADOPTED_MOST)
    if why := not_adopted((comes.number, comes.digest), adopted):
        change.refused.append(Problem(0, "", why))
    if change.refused:
        raise ConfigError([config.placed(one) for one in change.refused], config.source)
    return Proposal(config, bundle, versions.current, is_new, change, versions.refused)


async def as_applied(config: Config, cluster: Cluster) -> Config:
    """Return a configuration with the numbers that the version applied last holds, if it can be read."""
    held = Held()
    with suppress(BrokerError, ConfigError, ValueError):  # others say why
        applied = newest(await read_versions(config, cluster), config.topics.config)
        held = held if applied is None else Held.by(applied.bundle.files)
    return config.holding(held)


def declared_in(applied: Version | None) -> ApplicationSpec | None:
    """Return the declarations of a version; None for no version."""
    return (
        None if applied is None else spec_of(applied.bundle, f"version {applied.number} of the configuration")
    )


async def changes(
    config: Config, cluster: Cluster, applied: Version | None, old: ApplicationSpec | None
) -> Difference:
    """Return the difference of a configuration from the version applied last, which declares ``old``."""
    retired = frozenset[str]() if applied is None else frozenset(applied.bundle.retired)
    sources = {} if applied is None else applied.bundle.sources
    raised = await _raised_limits(config, cluster, limits_changed(old, config.spec))
    now_ms, shards = int(time.time() * 1000), config.topics.partitions
    return difference(
        old, config.spec, shards, raised=raised, retired=retired, sources=sources, now_ms=now_ms
    )


async def workers(config: Config, cluster: Cluster) -> list[tuple[str, bytes]]:
    """Return the members of the application's group; a worker that waits for a first version is not one."""
    name = config.spec.application
    return await kafka.members(cluster, name, f"reading the members of group {name!r}")


async def _require_readers(config: Config, cluster: Cluster) -> None:
    older = [name for name, data in await workers(config, cluster) if user_data(data).reads < FORMAT]
    if older:
        message = (
            f"workers of an older release cannot read this configuration: {', '.join(sorted(older))}. Upgrade every "
            "worker first; until then the version applied last stays in use"
        )
        raise ConfigError([Problem(0, "", message)], f"group {config.spec.application!r}")


async def _raised_limits(config: Config, cluster: Cluster, datasets: list[str]) -> dict[str, int]:
    """Return the newest limit, in ledger units, of each dataset whose limit an operator has raised."""
    limits: dict[str, int] = {}
    if not datasets:
        return limits
    kinds = {dataset.name: dataset.terms.kind for dataset in config.spec.datasets}
    doing = f"looking for raised limits on alert topic {config.topics.alerts!r}"
    async with kafka.started(cluster.reader(), doing) as reader:
        for shard in sorted({config.home(name) for name in datasets}):
            partition = TopicPartition(config.topics.alerts, shard)
            async for record in kafka.read_partition(reader, partition, None, doing):
                event = lifecycle_in(record.value, EventType.BUDGET_RAISED)
                if event is not None and event.account is not None and event.dataset in kinds:
                    limits[event.dataset] = round(event.account.limit * kinds[event.dataset].units)
    return limits


def following(before: Current | None, bundle: Bundle, above: int) -> Version:
    """Return the version that follows ``before``, with a number larger than ``above``."""
    return Version(max(above, 0 if before is None else before.number) + 1, bundle)


async def publish(
    config: Config,
    cluster: Cluster,
    bundle: Bundle,
    *,
    before: Current | None,
    above: int = 0,
    key: SigningKey | None = None,
) -> Version:
    """Write the version that follows ``before``, with a number larger than ``above``, and return it.

    Raises:
        Overtaken: Another version was applied meanwhile.
        BrokerError: The brokers refused; the version may or may not have been written.
    """
    topic, cluster_id = config.topics.config, "" if key is None else await kafka.cluster_id_of(cluster)
    context = context_of(config, cluster_id, topic, PARTITION)
    doing = f"writing configuration topic {topic!r}"
    client = cluster.producer(f"{config.spec.application}-config")
    try:
        async with kafka.started(client, doing, "WRITE") as producer:
            current = (await read_versions(config, cluster)).current
            if current != before:
                newest_now = "no version" if current is None else f"version {current.number}"
                raise Overtaken(f"another run applied a configuration: {newest_now} is there now")
            version = following(before, bundle, above)
            place, appends = TopicPartition(topic, PARTITION), list[NewRecords]()
            for name, value in records(version, before):
                headers = [key.header(context, value)] if key and value and name == CURRENT else []
                appends.append(NewRecords(place, [(name, value)], headers))
            async with kafka.deadline(kafka.START_DEADLINE, doing, "WRITE"):
                await producer.transact(appends, int(time.time() * 1000))
    except kafka.Fenced:
        raise Overtaken("another run is applying a configuration at this moment") from None
    return version


def not_adopted(version: tuple[int, str], adopted: Mapping[int, tuple[int, str]]) -> str:
    """Return why shards refuse a version, given number and digest of their adopted versions; "" if none refuses."""
    number, digest = version
    refusing = {
        shard: newest
        for shard, (newest, other) in sorted(adopted.items())
        if newest > number or (newest == number and other != digest)
    }
    if not refusing:
        return ""
    newest = max(refusing.values())
    which = "another version" if newest == number else "version"
    comes = f"version {number} would be refused" if number else "the configuration topic holds none"
    return (
        f"{named('shard', list(refusing), SHOWN)} adopted {which} {newest}, and {comes}: the topic was deleted or "
        f"created again. Apply with --above {newest}"
    )


async def ends_of_alerts(config: Config, cluster: Cluster) -> dict[int, int]:
    """Return the end offset of each shard's alert partition."""
    partitions = [TopicPartition(config.topics.alerts, shard) for shard in range(config.topics.partitions)]
    spans = await kafka.spans(cluster, partitions, f"reading the ends of topic {config.topics.alerts!r}")
    return {tp.partition: end for tp, (_, end) in spans.items()}


async def adoptions(
    config: Config, cluster: Cluster, number: int, starts: dict[int, int], timeout: float
) -> AsyncIterator[int]:
    """Yield each shard that has adopted the version or a newer one, as its event is read, for ``timeout`` seconds."""
    topic, pending = config.topics.alerts, set(starts)
    doing = f"reading alert topic {topic!r}"
    now = asyncio.get_running_loop().time
    until = now() + timeout
    async with kafka.started(cluster.reader(), doing) as reader:
        kafka.seek_all(reader, {TopicPartition(topic, shard): at for shard, at in starts.items()})
        while pending and (seconds := until - now()) > 0:
            for record in await kafka.poll(reader, min(seconds, 1), doing):
                event = lifecycle_in(record.value, EventType.CONFIGURATION_ADOPTED)
                adopted = None if event is None else event.detail.get("number")
                if record.partition in pending and isinstance(adopted, int) and adopted >= number:
                    pending.discard(record.partition)
                    yield record.partition
